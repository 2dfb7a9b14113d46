"""What a loop carries from turn to turn: names, elements of lists and dicts, and attributes, which its body changes.

At first only tensors that the body assigns are carried, and Python's numbers are taken for constant. What a turn leaves
otherwise than it found it is carried, too, numbers as tensors, and the turn is traced again, until nothing is new.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import numpy as np

from mspc.compiler.frontend.merging import behind_orderings, zeros
from mspc.compiler.frontend.number_types import number_dtype
from mspc.compiler.frontend.operators import is_number
from mspc.compiler.frontend.program_state import ProgramState, TraceSnapshot, fill
from mspc.compiler.frontend.shared_lists import shared_and_replaced
from mspc.compiler.frontend.source import assigned_names, names_read
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import (
    COMPUTED,
    MISSING,
    POISON,
    Frame,
    OnlyInLoop,
    Undecided,
    contains_tensor,
    describe,
)
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, TensorType
from mspc.ops.bases import promoted

Place = tuple[str, Any]
"""("name", a name), ("contents", the identity of a list or dict) or ("attribute", the key of an attribute)."""
Path = tuple[Any, ...]
"""Indices and keys that lead from the value at a place to an entry of it."""

KEEPS = "what a loop carries keeps its shape and element type in every turn"


@dataclass
class CarriedTensor:
    """One tensor that is carried.

    label: what it is called in messages. before: what is there ahead of the loop; `MISSING` where nothing is. type: of
    the tensor. is_number: it stays a number of Python. inside: what stands for it in a turn. after: what a turn leaves.
    """

    label: str
    before: Any
    type: TensorType
    is_number: bool = False
    inside: Parameter | None = None
    after: Value | None = None


class Carried:
    """The slots of one loop.

    loop: the statement. place: of its mistakes. surely: it makes one turn at least, so that what it assigns has a value
    behind it.
    """

    def __init__(self, tracer: Tracer, frame: Frame, loop: ast.For | ast.While, place: ast.AST, surely: bool) -> None:
        self.tracer, self.frame, self.loop, self.place = tracer, frame, loop, place
        self.surely, self.read_behind = surely, names_read(frame.source.tree, loop)
        self.beginning = TraceSnapshot(tracer, frame)
        self.slots: dict[tuple[Place, Path], CarriedTensor] = {}
        self.fresh: set[tuple[Place, Path]] = set()
        """Slots without a value ahead of the loop, which no turn reads."""
        self.open: dict[tuple[Place, Path], Undecided] = {}
        """What changes as no tensor can; it may be assigned, not read."""
        self.made: set[int] = set()
        """Lists and dicts that a turn begins with in the place of the program's, as another one may come there."""
        self.begun = self.beginning.state
        self.is_new = False
        for name in sorted(assigned_names(loop)):
            value = frame.locals.get(name)
            if isinstance(value, Value) and isinstance(value.type, TensorType):
                self.slots[("name", name), ()] = CarriedTensor(name, value, value.tensor_type, value in tracer.weak)

    # A turn -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Go back to the state ahead of the loop, with a new parameter in every slot."""
        tracer = self.tracer
        self.beginning.restore()
        self.made.clear()
        for key, slot in self.slots.items():
            slot.inside = Parameter(slot.label, slot.type, "input")
            slot.after = None
            if slot.is_number and key not in self.fresh:
                tracer.weak.add(slot.inside)
        self._put({key: slot.inside for key, slot in self.slots.items() if key not in self.fresh} | self.open)
        self.begun = ProgramState(tracer, self.frame)

    def _put(self, given: dict[tuple[Place, Path], Any]) -> None:
        """Put values where their slots are."""
        state = ProgramState(self.tracer, self.frame)
        for place in dict.fromkeys(place for place, _ in given):
            kind, key = place
            here = {path: value for (other, path), value in given.items() if other == place}
            if kind == "name":
                self.frame.locals[key] = self._with(state.names.get(key, MISSING), (), here)
            elif kind == "attribute":
                before = state.attributes.get(key, self.tracer.attributes_before.get(key, MISSING))
                self.tracer.attributes[key] = self._with(before, (), here)
            else:
                held = self.tracer.owned[key]
                fill(held, self._entries_with(state.contents[key], (), here))

    def _with(self, value: Any, path: Path, given: dict[Path, Any]) -> Any:
        if path in given:
            return given[path]
        if not any(other[: len(path)] == path for other in given):
            return value
        entries = self._entries_with(value, path, given)
        if isinstance(value, tuple):
            return type(value)(*entries) if hasattr(value, "_fields") else tuple(entries)
        self.made.add(id(entries))
        return self.tracer.own(entries)

    def _entries_with(self, value: Any, path: Path, given: dict[Path, Any]) -> Any:
        if isinstance(value, dict):
            return {key: self._with(item, (*path, key), given) for key, item in value.items()}
        return [self._with(item, (*path, i), given) for i, item in enumerate(value)]

    # What a turn changed ----------------------------------------------------------------------------------

    def compare(self, nodes: list[Node]) -> bool:
        """Whether the turn that was traced into `nodes` changed what is not carried yet, so that it has to be traced
        again.

        Raises:
            MspcError: what is carried has another type behind the turn.
        """
        self.is_new = False
        read = {value for node in nodes for value in node.inputs}
        for place, before, after in self._changes():
            self._compare(place, (), self._label(place), before, after)
        read |= {slot.after for slot in self.slots.values() if slot.after is not None and slot.after is not slot.inside}
        for key in list(self.slots):
            self._check(key, read)
        if not self.is_new:
            shared = shared_and_replaced(self.beginning.state, self.frame.caller, (*self.slots, *self.open))
            if shared is not None:
                raise self._shared(shared)
        return self.is_new

    def _changes(self) -> Iterator[tuple[Place, Any, Any]]:
        tracer, begun = self.tracer, self.begun
        for name, after in list(self.frame.locals.items()):
            yield ("name", name), begun.names.get(name, MISSING), after
        for key, before in begun.contents.items():
            if key in self.made:
                continue
            yield ("contents", key), before, tracer.owned[key]
        for key, after in list(tracer.attributes.items()):
            yield ("attribute", key), begun.attributes.get(key, tracer.attributes_before.get(key, MISSING)), after

    def _compare(self, place: Place, path: Path, label: str, before: Any, after: Any) -> None:
        key = (place, path)
        if before is POISON or after is POISON:
            return
        if key in self.slots:
            self._note_after(key, after)
            return
        if key in self.open:
            return
        below = any(other == place and inner[: len(path)] == path for other, inner in (*self.slots, *self.open))
        if not below and (before is after or behind_orderings(before) is behind_orderings(after)):
            return
        if before is MISSING or isinstance(before, OnlyInLoop):
            self._new_name(place, path, label, after)
            return
        contents = self.begun.contents
        if isinstance(before, list | dict):
            before = contents.get(id(before), before)
        if _alike(before, after):
            keys = list(before) if isinstance(before, dict) else range(len(before))
            for index in keys:
                self._compare(place, (*path, index), f"{label}[{index!r}]", before[index], after[index])
            return
        if isinstance(before, list | dict) and isinstance(after, type(before)) and self._is_read(place):
            raise self._grows(label, before, after)
        if self._is_tensor(before) and self._is_tensor(after):
            if type(before) is type(after) and not self.tracer.is_tensor(before) and before == after:
                return
            self._add(key, label, before, after)
            return
        if type(before) is type(after) and not contains_tensor(before) and _equal(before, after):
            return
        self._leave_open(key, label, before, after)

    def _label(self, place: Place) -> str:
        kind, key = place
        if kind == "name":
            return key
        if kind == "attribute":
            return f"self.{key[1]}"
        names = (*self.begun.names.items(), *self.beginning.state.names.items())
        return next((name for name, value in names if id(value) == key), "list")

    def _is_read(self, place: Place) -> bool:
        """Whether the loop may read what is there; a name that is assigned alone may come to hold anything."""
        return place[0] != "name" or place[1] in names_read(self.loop)

    def _is_tensor(self, value: Any) -> bool:
        if isinstance(value, Value):
            return isinstance(value.type, TensorType)
        return self.tracer.is_tensor(value) or isinstance(value, bool | int | float | np.generic)

    def _add(self, key: tuple[Place, Path], label: str, before: Any, after: Any) -> None:
        tracer = self.tracer
        if tracer.is_tensor(before):
            self.slots[key] = CarriedTensor(label, before, tracer.value(before).tensor_type, is_number(tracer, before))
        else:
            dtype = number_dtype(before, None)
            stays = is_number(tracer, after)
            if tracer.is_tensor(after) and not tracer.value(after).shape:
                dtype = promoted(dtype, tracer.value(after).tensor_type.dtype)
            elif not tracer.is_tensor(after):
                dtype = promoted(dtype, number_dtype(after, None))
            self.slots[key] = CarriedTensor(label, before, TensorType(dtype, ()), stays)
        self.is_new = True

    def _new_name(self, place: Place, path: Path, label: str, after: Any) -> None:
        """A name that gets its first value in the loop is carried where it surely has one, and is read behind it."""
        if not self.surely or place[0] != "name" or place[1] not in self.read_behind:
            return
        if (place, path) in self.slots:
            self._note_after((place, path), after)
        elif isinstance(after, tuple | list | dict):
            keys = list(after) if isinstance(after, dict) else range(len(after))
            for index in keys:
                self._new_name(place, (*path, index), f"{label}[{index!r}]", after[index])
        elif isinstance(after, Value) and isinstance(after.type, TensorType):
            self.fresh.add((place, path))
            self.slots[place, path] = CarriedTensor(
                label, MISSING, after.tensor_type, after in self.tracer.weak, after=after
            )

    def _leave_open(self, key: tuple[Place, Path], label: str, before: Any, after: Any) -> None:
        self.open[key] = Undecided(before, after, True)
        self.is_new = True
        self._new_name(*key, label, after)

    def _note_after(self, key: tuple[Place, Path], after: Any) -> None:
        slot = self.slots[key]
        if not self._is_tensor(after):
            if key in self.fresh:
                raise self._mistake(slot.label, slot.type, describe(after))
            raise self._mistake(slot.label, self._text(slot), describe(after))
        tracer = self.tracer
        value = after if isinstance(after, Value) else tracer.value(after, slot.type.dtype)
        number = is_number(tracer, after)
        if slot.is_number and not number:
            slot.is_number, self.is_new = False, True
        if value.type != slot.type and not value.shape and not slot.type.shape and is_number(tracer, slot.before):
            dtype = promoted(slot.type.dtype, value.tensor_type.dtype)
            if dtype != slot.type.dtype:
                slot.type, self.is_new = TensorType(dtype, ()), True
            elif number:
                value = tracer.cast(value, dtype)
        slot.after = value

    def _check(self, key: tuple[Place, Path], read: set[Value]) -> None:
        slot = self.slots[key]
        if slot.after is None or self.is_new or slot.after.type == slot.type:
            return
        if key not in self.fresh and slot.inside in read:
            raise self._mistake(slot.label, self._text(slot), str(slot.after.type), slot.type, slot.after.type)
        del self.slots[key]
        self.fresh.discard(key)
        self._leave_open(key, slot.label, slot.before, slot.after)

    def _text(self, slot: CarriedTensor) -> Any:
        return slot.type if self.tracer.is_tensor(slot.before) else describe(slot.before)

    def _mistake(self, label: str, before: Any, after: Any, *types: Any) -> MspcError:
        notes = [KEEPS]
        if len(types) == 2 and types[0].shape == types[1].shape:
            notes = [f"give it one element type ahead of the loop: {label} = {label}.astype({_script(types[1].dtype)})"]
        elif len(types) == 2 and not types[0].shape and not isinstance(before, TensorType):
            made = f"ops.full({types[1].shape}, {before}, dtype={_script(types[1].dtype)})"
            notes = [f"make it a tensor ahead of the loop: {label} = {made}"]
        message = f"'{label}' is {before} ahead of the loop, and {after} behind a turn"
        return self.frame.error(self.place, message, notes, TypeError)

    def _grows(self, label: str, before: Any, after: Any) -> MspcError:
        kind = type(before).__name__
        message = f"the {kind} '{label}' has {len(before)} elements ahead of the loop, and {len(after)} behind a turn"
        note = f"a {kind} that a loop carries keeps its elements: make a tensor of all entries, and assign to x[i]"
        return self.frame.error(self.place, message, [note], TypeError)

    def _shared(self, held: list[Any] | dict[Any, Any]) -> MspcError:
        kind, label = type(held).__name__, self._label(("contents", id(held)))
        message = f"the {kind} '{label}' is changed by the loop, which then replaces it where it is not alone"
        note = f"give the loop one of its own: {label} = {kind}({label})"
        return self.frame.error(self.place, message, [note])

    # Behind the loop --------------------------------------------------------------------------------------

    def initial(self, slot: CarriedTensor) -> Value:
        """What is in a slot ahead of the loop."""
        tracer = self.tracer
        if slot.before is MISSING:
            return zeros(tracer, slot.type)
        if tracer.is_tensor(slot.before):
            return tracer.cast(tracer.value(slot.before), slot.type.dtype)
        return Constant(slot.before, slot.type.dtype)

    def finish(self, results: list[Value]) -> None:
        """The state behind the loop, whose slots have these values."""
        tracer, frame = self.tracer, self.frame
        end = ProgramState(tracer, frame)
        state = self.beginning.state
        state.restore(tracer, frame)
        for slot, value in zip(self.slots.values(), results, strict=True):
            if slot.is_number:
                tracer.weak.add(value)
        for name, value in end.names.items():
            if name not in state.names or isinstance(state.names[name], OnlyInLoop):
                carried = any(place == ("name", name) for place, _ in self.slots)
                known = self.surely and (carried or not contains_tensor(value, COMPUTED))
                frame.locals[name] = value if known else OnlyInLoop(name)
        self._put(self.open | dict(zip(self.slots, results, strict=True)))
        if any(place[0] == "attribute" for place, _ in (*self.slots, *self.open)):
            tracer.runs.clear()


def _alike(before: Any, after: Any) -> bool:
    """Whether two values are tuples, lists or dicts with entries at the same places."""
    if isinstance(before, dict):
        return isinstance(after, dict) and before.keys() == after.keys()
    return isinstance(before, tuple | list) and isinstance(after, tuple | list) and len(before) == len(after)


def _equal(before: Any, after: Any) -> bool:
    try:
        return bool(before == after)
    except (TypeError, ValueError):
        return False


def _script(dtype: DType) -> str:
    return f"mindspore.{str(dtype).lower()}"
