"""Loops with a number of iterations known only at run time: carried values, and the operators of the loops."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any

import numpy as np

from mspc.analysis.aliasing import source
from mspc.compiler.frontend.branches import (
    ProgramState,
    TraceSnapshot,
    any_flag,
    apart,
    condition_of,
    emitting_to,
    fill,
    finished,
    mapped,
    negation,
    unless_left,
    zeros,
)
from mspc.compiler.frontend.operators import is_number, reshape, truth
from mspc.compiler.frontend.source import assigned_names, names_read
from mspc.compiler.frontend.state import Tracer, number_dtype
from mspc.compiler.frontend.values import (
    COMPUTED,
    LEFT,
    MISSING,
    NEVER_ENDS,
    POISON,
    RETURNED,
    Exit,
    Frame,
    OnlyInLoop,
    Poisoned,
    TensorRange,
    TooManyErrors,
    Undecided,
    contains_tensor,
    describe,
    exit_of,
    simplest,
)
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BOOL, INT64, DType, TensorType
from mspc.ops.bases import promoted
from mspc.ops.control.regions import COUNT, For, Scan, While, captured_values, emit_regions, outlined
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import Op


def range_of(tracer: Tracer, args: Sequence[Any]) -> TensorRange:
    """Return `range(...)` with tensors among its arguments. Raise MspcError if an argument is no integer."""
    if not 1 <= len(args) <= 3:
        raise tracer.error(f"range() takes 1 to 3 arguments, it is given {len(args)}", kind=TypeError, code="E0209")
    start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    return TensorRange(*(_bound(tracer, value) for value in (start, stop, step)))


def _bound(tracer: Tracer, value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    tensor = tracer.value(value, None, "range(): an argument")
    type = tensor.tensor_type
    if type.size != 1 or type.dtype.kind not in "iu":
        notes = ["cast it first: n.astype(mindspore.int64)"] if type.size == 1 else []
        raise tracer.error(f"range() counts by integers of one element, not by a tensor {type}", notes, TypeError)
    return reshape(tracer, tracer.cast(tensor, INT64), ())


def count_of(tracer: Tracer, numbers: TensorRange | range) -> Value | int:
    """Return the number of elements of a range."""
    if isinstance(numbers, range):
        return len(numbers)
    emit, op = tracer.emit, tracer.op
    start, stop, step = numbers.start, numbers.stop, numbers.step
    counts_up = isinstance(step, int) and step == 1
    if counts_up and isinstance(start, int) and start == 0:
        count = stop
    elif counts_up:
        count = emit(op("Sub"), stop, start)
    else:  # the quotient rounded up
        first = Constant(start, INT64) if isinstance(start, int) else start
        count = emit(op("Neg"), emit(op("FloorDiv"), emit(op("Sub"), first, stop), step))
    return emit(op("Maximum"), count, 0)


def number_at(tracer: Tracer, numbers: TensorRange | range, turn: Value) -> Value:
    """Return the element of the range in iteration `turn`. It acts as a Python number."""
    step = turn if isinstance(numbers.step, int) and numbers.step == 1 else tracer.emit(
        tracer.op("Mul"), turn, numbers.step
    )  # fmt: skip
    if isinstance(numbers.start, int) and numbers.start == 0:
        found = step
    else:
        found = tracer.emit(tracer.op("Add"), step, numbers.start)
    tracer.weak.add(found)
    return found


Key = tuple[tuple[str, Any], tuple[Any, ...]]
"""A place of a value, and the path from there to one of its entries."""


def shared_and_replaced(state: ProgramState, caller: Frame | None, carried: Iterable[Key]) -> Any:
    """Return a list or dict that a loop changes and replaces while something else still refers to it, or None.

    state: of the program before the loop. caller: the function that contains the loop. carried: all that the loop
    changes.
    """
    keys = list(carried)
    changed = {place[1] for place, _ in keys if place[0] == "contents"}
    replaced = {(place, path[:length]) for place, path in keys for length in range(len(path))}
    if not changed:
        return None
    kept: dict[int, Any] = {}
    """Lists and dicts, by identity, still referred to after the loop replaced some."""
    lost: set[int] = set()
    """Identities of those that it replaced in some place."""

    def visit(value: Any, place: tuple[str, Any], path: tuple[Any, ...]) -> None:
        """Visit the value at the end of a path. The entries of a list or dict that is not replaced have places of their
        own."""
        if isinstance(value, list | dict):
            key = id(value)
            if (place, path) in replaced:
                lost.add(key)
            elif key in kept:
                return
            else:
                kept[key] = value
                place, path = ("contents", key), ()
            value = state.contents.get(key, value)
        if isinstance(value, dict | list | tuple):
            for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
                visit(entry, place, (*path, key))

    for name, value in state.names.items():
        visit(value, ("name", name), ())
    for key, value in state.attributes.items():
        visit(value, ("attribute", key), ())
    while caller is not None:
        for value in caller.locals.values():
            visit(value, ("caller", None), ())
        caller = caller.caller
    return next((kept[key] for key in kept if key in changed & lost), None)


Place = tuple[str, Any]
"""("name", a name), ("contents", the identity of a list or dict) or ("attribute", the key of an attribute)."""
Path = tuple[Any, ...]
"""Indices and keys that lead from the value at a place to an entry of it."""

KEEPS = "carried values keep their shape and element type in every iteration"


@dataclass
class CarriedTensor:
    """One carried tensor.

    label: its name in messages. before: its value before the loop, or `MISSING`. type: of the tensor. is_number: it
    acts as a Python number throughout. inside: the parameter for it in an iteration. after: its value after an
    iteration.
    """

    label: str
    before: Any
    type: TensorType
    is_number: bool = False
    inside: Parameter | None = None
    after: Value | None = None


class Carried:
    """The carried values of one loop.

    loop: the statement. place: the location for its errors. surely: it runs at least one iteration, so that a name
    assigned in it has a value afterwards.
    """

    def __init__(self, tracer: Tracer, frame: Frame, loop: ast.For | ast.While, place: ast.AST, surely: bool) -> None:
        self.tracer, self.frame, self.loop, self.place = tracer, frame, loop, place
        self.surely, self.read_behind = surely, names_read(frame.source.tree, loop)
        self.beginning = TraceSnapshot(tracer, frame)
        self.slots: dict[tuple[Place, Path], CarriedTensor] = {}
        self.fresh: set[tuple[Place, Path]] = set()
        """Slots without a value before the loop, which no iteration reads."""
        self.open: dict[tuple[Place, Path], Undecided] = {}
        """Values that change in a way no tensor can. They may be assigned but not read."""
        self.made: set[int] = set()
        """Lists and dicts created at the start of an iteration in place of the program's, because an iteration may
        replace them."""
        self.begun = self.beginning.state
        self.is_new = False
        for name in sorted(assigned_names(loop)):
            value = frame.locals.get(name)
            if isinstance(value, Value) and isinstance(value.type, TensorType):
                self.slots[("name", name), ()] = CarriedTensor(name, value, value.tensor_type, value in tracer.weak)

    # An iteration -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Return to the state before the loop, with a new parameter in every slot."""
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
        """Store values at the places of their slots."""
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
                container = self.tracer.owned[key]
                fill(container, self._entries_with(state.contents[key], (), here))

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

    # Changes of an iteration ------------------------------------------------------------------------------

    def compare(self, nodes: list[Node]) -> bool:
        """Return whether the iteration traced into `nodes` changed a value that is not carried yet, so that it must be
        traced again. Raise MspcError if a carried value has another type after the iteration."""
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
                kind, label = type(shared).__name__, self._label(("contents", id(shared)))
                message = f"the {kind} '{label}' is changed by the loop, which replaces it, and other names refer to it"
                note = f"give the loop one of its own: {label} = {kind}({label})"
                raise self.frame.error(self.place, message, [note])
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
        if not below and (before is after or source(before) is source(after)):
            return
        if before is MISSING or isinstance(before, OnlyInLoop):
            self._new_name(place, path, label, after)
            return
        contents = self.begun.contents
        if isinstance(before, list | dict):
            before = contents.get(id(before), before)
        if isinstance(before, dict):
            is_alike = isinstance(after, dict) and before.keys() == after.keys()
        else:
            is_alike = (
                isinstance(before, tuple | list) and isinstance(after, tuple | list) and len(before) == len(after)
            )
        if is_alike:
            keys = list(before) if isinstance(before, dict) else range(len(before))
            for index in keys:
                self._compare(place, (*path, index), f"{label}[{index!r}]", before[index], after[index])
            return
        may_be_read = place[0] != "name" or place[1] in names_read(self.loop)
        if isinstance(before, list | dict) and isinstance(after, type(before)) and may_be_read:
            kind = type(before).__name__
            counts = f"{len(before)} elements ahead of the loop, and {len(after)} behind a turn"
            note = f"a {kind} that a loop carries keeps its elements: make a tensor of all entries, and assign to x[i]"
            raise self.frame.error(self.place, f"the {kind} '{label}' has {counts}", [note], TypeError)
        if self._is_tensor(before) and self._is_tensor(after):
            if type(before) is type(after) and not self.tracer.is_tensor(before) and before == after:
                return
            self._add(key, label, before, after)
            return
        if type(before) is type(after) and not contains_tensor(before):
            with suppress(TypeError, ValueError):  # values that cannot be compared differ
                if before == after:
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
        """Carry a name that gets its first value in the loop if it is certain to get one and is read after the loop."""
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
            notes = [f"give it one element type before the loop: {label} = {label}.astype({_script(types[1].dtype)})"]
        elif len(types) == 2 and not types[0].shape and not isinstance(before, TensorType):
            made = f"ops.full({types[1].shape}, {before}, dtype={_script(types[1].dtype)})"
            notes = [f"make it a tensor before the loop: {label} = {made}"]
        message = f"'{label}' is {before} ahead of the loop, and {after} behind a turn"
        return self.frame.error(self.place, message, notes, TypeError)

    # After the loop ---------------------------------------------------------------------------------------

    def initial(self, slot: CarriedTensor) -> Value:
        """Return the value of a slot before the loop."""
        tracer = self.tracer
        if slot.before is MISSING:
            return zeros(tracer, slot.type)
        if tracer.is_tensor(slot.before):
            return tracer.cast(tracer.value(slot.before), slot.type.dtype)
        return Constant(slot.before, slot.type.dtype)

    def finish(self, results: list[Value]) -> None:
        """Set the program state after the loop. `results` are the final values of the slots."""
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


def _script(dtype: DType) -> str:
    return f"mindspore.{str(dtype).lower()}"


TRIALS = 100
"""Maximum number of times an iteration is traced until no new value is carried."""

GOES_ON = TensorType(BOOL, ())


@dataclass
class ScanRows:
    """Rows that a `Scan` reads in each iteration, and values that it saves in each iteration.

    rows, entries: the stacked tensors, and the parameter for one row of each. values: saved by an iteration. stacked:
    the saved values of all iterations, once the loop is in the graph. micro_batches, reverse: see `Scan`.
    """

    rows: Sequence[Value]
    entries: Sequence[Parameter]
    micro_batches: bool = False
    reverse: bool = False
    values: list[Value] = field(default_factory=list[Value])
    stacked: list[Value] = field(default_factory=list[Value])


@dataclass(frozen=True)
class LoopPlan:
    """A loop to be compiled.

    loop, place: the statement, and the location for its errors. test: evaluates the condition of a `while` before each
    iteration. body: runs an iteration, with its number as a tensor, and returns how it ends. count: the number of
    iterations of a `for`; None for `while`. orelse: runs the `else` part, if the loop is not left early. scan: for a
    `Scan`.
    """

    loop: ast.For | ast.While
    place: ast.expr
    test: Callable[[], Any] | None
    body: Callable[[Value | None], Any]
    count: Value | int | None
    orelse: Callable[[], Any] | None = None
    scan: ScanRows | None = None


@dataclass
class Hidden:
    """A value that the loop carries for its own control: before the loop, in an iteration, and after an iteration."""

    before: Value
    inside: Parameter
    after: Value


@dataclass
class TracedIteration:
    """One iteration: the nodes of its condition and of its body, the value of the condition, and how the body ends."""

    number: Parameter
    condition: list[Node]
    holds: Any
    body: list[Node]
    end: Exit


def run_loop(tracer: Tracer, frame: Frame, plan: LoopPlan) -> Any:
    """Compile a loop from the current program state. Return how it ends: None, or by `return`. Raise MspcError if a
    carried value changes its type, or the loop never ends."""
    surely = plan.count is None or (isinstance(plan.count, int) and plan.count > 0)
    if plan.test is not None:
        beginning = TraceSnapshot(tracer, frame)
        with apart(tracer):
            surely = not isinstance(_condition(tracer, frame, plan), Value)
        beginning.restore()
    carried = Carried(tracer, frame, plan.loop, plan.place, surely)
    try:
        traced = _settled(tracer, frame, plan, carried)
    except BaseException:
        carried.beginning.state.restore(tracer, frame)
        raise
    return _emit(tracer, frame, plan, carried, traced)


def _settled(tracer: Tracer, frame: Frame, plan: LoopPlan, carried: Carried) -> TracedIteration:
    for _ in range(TRIALS):
        carried.begin()
        number = Parameter("turn", COUNT, "input")
        tracer.weak.add(number)
        with apart(tracer) as condition:
            holds = True if plan.test is None else _condition(tracer, frame, plan)
        with apart(tracer) as body, frame.followed_by(None):
            end = exit_of(plan.body(number))
        tracer.at(frame, plan.place)
        with emitting_to(tracer, body):
            if not carried.compare([*condition, *body]):
                return TracedIteration(number, condition, holds, body, end)
    raise frame.error(plan.place, f"after {TRIALS} attempts a turn still changes more than the loop carries")


def _condition(tracer: Tracer, frame: Frame, plan: LoopPlan) -> Any:
    assert plan.test is not None
    value = plan.test()
    tracer.at(frame, plan.place)
    holds = condition_of(tracer, value)
    return truth(tracer, value, "the condition of 'while'") if holds is None else holds


def _emit(tracer: Tracer, frame: Frame, plan: LoopPlan, carried: Carried, traced: TracedIteration) -> Any:
    """Append the loop, set the program state after it, and return how it ends."""
    tracer.at(frame, plan.place)
    hidden, value = _hidden(tracer, plan, traced)
    goes_on = hidden.get("goes_on")
    counted = traced.holds is True and not hidden and plan.count is not None
    with emitting_to(tracer, traced.condition):
        parts: list[Any] = [] if traced.holds is True else [traced.holds]
        if plan.count is not None and not counted:
            with emitting_to(tracer, traced.body):
                counted_up = tracer.builder.emit(tracer.op("Add"), traced.number, Constant(1, INT64))  # type: ignore[arg-type]  # an operator has types
            hidden["turn"] = Hidden(Constant(0, INT64), traced.number, counted_up)
            count = tracer.value(plan.count)
            parts = [tracer.builder.emit(tracer.op("Less"), hidden["turn"].inside, count)]  # type: ignore[arg-type]  # an operator has types
        parts = [*([goes_on.inside] if goes_on is not None else []), *parts]
        holds: Any = parts[0] if parts else None
        for part in parts[1:]:
            holds = tracer.emit(tracer.op("LogicalAnd"), holds, part)
    if holds is None and not counted:
        raise frame.error(plan.place, NEVER_ENDS, code="E0206")
    slots = list(carried.slots.values())
    insides = [slot.inside or Parameter(slot.label, slot.type, "input") for slot in slots]
    afters = [inside if slot.after is None else slot.after for slot, inside in zip(slots, insides, strict=True)]
    before = [*(each.before for each in hidden.values()), *map(carried.initial, slots)]
    own = [*(each.inside for each in hidden.values()), *insides]
    after = [*(each.after for each in hidden.values()), *afters]
    if plan.test is not None and goes_on is None:
        read = {traced.holds, *(value for node in traced.condition for value in node.inputs)}
        changed = {node.inputs[index] for node in traced.body for index in node.op.mutates}
        draws = any(isinstance(node.op, Op) and node.op.seeds for node in traced.condition)
        if not draws and not read & {*own, *changed}:
            tracer.warn("the condition reads nothing that the loop changes: once it holds, the loop never ends")
    made = _operator(tracer, plan, traced, holds, before, own, after)
    results: list[Value] = [tracer.builder.emit(TupleGetItem(index=i), made) for i in range(len(before))]
    if plan.scan is not None:
        places = range(len(before), len(before) + len(plan.scan.values))
        plan.scan.stacked += [tracer.builder.emit(TupleGetItem(index=i), made) for i in places]
    carried.finish(results[len(hidden) :])
    for slot, result in zip(slots, results[len(hidden) :], strict=True):
        if isinstance(result, Node) and slot.label.isidentifier():
            result.name = slot.label
    return _end(tracer, frame, plan, traced, dict(zip(hidden, results, strict=False)), value)


def _hidden(tracer: Tracer, plan: LoopPlan, traced: TracedIteration) -> tuple[dict[str, Hidden], Any]:
    """Return the values that the loop carries to know how it ends, by name, and the returned value with a `LoopLeaf`
    for each tensor that is carried for it."""
    found: dict[str, Hidden] = {}
    end = traced.end
    with emitting_to(tracer, traced.body):
        left = any_flag(tracer, end, (LEFT, RETURNED))
        if left is False:
            return found, MISSING
        stays = negation(tracer, left) if isinstance(left, Value) else Constant(False, BOOL)
        found["goes_on"] = Hidden(Constant(True, BOOL), Parameter("goes_on", GOES_ON, "input"), stays)
        if not end.may(RETURNED):
            return found, MISSING
        flag = tracer.value(end.flags[RETURNED])
        found["returned"] = Hidden(Constant(False, BOOL), Parameter("returned", GOES_ON, "input"), flag)
        leaves: list[Value] = []
        value = leaves_of(tracer, end.value, leaves)
    for i, leaf in enumerate(leaves):
        inside = Parameter("result", leaf.type, "input")
        found[f"result{i}"] = Hidden(zeros(tracer, leaf.tensor_type), inside, leaf)
    return found, value


@dataclass(frozen=True)
class LoopLeaf:
    """A placeholder for a tensor in a returned value."""

    name: str
    is_number: bool


def leaves_of(tracer: Tracer, value: Any, leaves: list[Value]) -> Any:
    """Return `value` with a `LoopLeaf` for each tensor. The tensors are appended to `leaves`."""

    def leaf(tensor: Any) -> LoopLeaf:
        leaves.append(tracer.value(tensor))
        return LoopLeaf(f"result{len(leaves) - 1}", is_number(tracer, tensor))

    return mapped(tracer, value, leaf)


def _operator(
    tracer: Tracer, plan: LoopPlan, traced: TracedIteration, holds: Value | None, before: Sequence[Value],
    own: Sequence[Value], after: Sequence[Value],
) -> Node:  # fmt: skip
    """Append the operator of the loop: a `Scan`, a `For` if there is no condition, or a `While`."""
    tracer.regions += 1
    b, count, scanned, number = tracer.builder, plan.count, plan.scan, tracer.regions
    if scanned is not None:
        assert isinstance(count, int)
        results, entries = [*after, *scanned.values], (*own, *scanned.entries)
        body, captured = outlined(f"scan_{number}_body", traced.body, results, entries)
        scan = Scan(
            carried=len(before), scanned=len(scanned.rows), stacked=len(scanned.values), turns=count,
            micro_batches=scanned.micro_batches, reverse=scanned.reverse,
        )  # fmt: skip
        return emit_regions(b, scan, [*before, *scanned.rows, *captured], (body,))
    if holds is None:
        body, captured = outlined(f"for_{number}_body", traced.body, after, (traced.number, *own))
        if isinstance(count, int):
            return emit_regions(b, For(carried=len(before), turns=count), [*before, *captured], (body,))
        assert count is not None
        return emit_regions(b, For(carried=len(before)), [count, *before, *captured], (body,))
    read = (captured_values(traced.condition, [holds], own), captured_values(traced.body, after, own))
    captured = list(dict.fromkeys([*read[0], *read[1]]))
    condition, _ = outlined(f"while_{number}_condition", traced.condition, [holds], own, captured)
    body, _ = outlined(f"while_{number}_body", traced.body, after, own, captured)
    return emit_regions(b, While(carried=len(before)), [*before, *captured], (condition, body))


def _end(
    tracer: Tracer, frame: Frame, plan: LoopPlan, traced: TracedIteration, hidden: dict[str, Value], value: Any
) -> Any:
    """Return how the loop ends, and run the statements that follow if it was not left early."""
    orelse = plan.orelse
    if "goes_on" not in hidden:
        return None if orelse is None else orelse()
    flags: dict[str, Any] = {"continued": False, LEFT: False, RETURNED: hidden.get("returned", False)}
    if traced.end.may(LEFT) and orelse is not None:
        flags[LEFT] = negation(tracer, hidden["goes_on"])
    returned: Any = MISSING
    if "returned" in hidden:

        def result(leaf: Any) -> Any:
            if not isinstance(leaf, LoopLeaf):
                return leaf
            found = hidden[leaf.name]
            if leaf.is_number:
                tracer.weak.add(found)
            return found

        returned = mapped(tracer, value, result, LoopLeaf)
        if not traced.end.may(LEFT) and traced.holds is True and plan.count is None:
            flags[RETURNED] = True  # it ends in no other way
    end = Exit(flags, returned)
    if orelse is not None:
        return finished(unless_left(tracer, frame, plan.loop, end, (LEFT, RETURNED), orelse))
    return finished(simplest(end))


UNROLLED = object()
"""A loop must be unrolled, because its body needs numbers known at compile time."""


def compile_for(tracer: Tracer, frame: Frame, node: ast.For, numbers: TensorRange | range) -> Any:
    """Compile a `for` over numbers. Return None, or how it ends if it is left by `return`."""
    tracer.at(frame, node.iter)
    count = count_of(tracer, numbers)

    def body(turn: Value | None) -> Any:
        assert turn is not None
        tracer.at(frame, node.target)
        tracer.assign(frame, node.target, number_at(tracer, numbers, turn))
        return tracer.block(frame, node.body)

    orelse = (lambda: tracer.block(frame, node.orelse)) if node.orelse else None
    return run_loop(tracer, frame, LoopPlan(node, node.iter, None, body, count, orelse))


def compile_while(tracer: Tracer, frame: Frame, node: ast.While) -> Any:
    """Compile a `while`. Return None, or how it ends if it is left by `return`."""
    statements, test = node.body, node.test
    if any(isinstance(part, ast.NamedExpr) for part in ast.walk(test)):
        # A condition that assigns names is part of the iteration: `while True`, and `if not test: break` first.
        leave = ast.copy_location(ast.If(ast.UnaryOp(ast.Not(), test), [ast.Break()], []), test)
        statements = [ast.fix_missing_locations(leave), *statements]
        test = ast.copy_location(ast.Constant(True), test)

    def body(turn: Value | None) -> Any:
        return tracer.block(frame, statements)

    def holds() -> Any:
        return tracer.evaluate_test(frame, test)

    orelse = (lambda: tracer.block(frame, node.orelse)) if node.orelse else None
    return run_loop(tracer, frame, LoopPlan(node, node.test, holds, body, None, orelse))


def require_end(tracer: Tracer, frame: Frame, node: ast.While) -> None:
    """Raise MspcError if a `while` with a known condition never ends, because no iteration changes the condition."""
    beginning = TraceSnapshot(tracer, frame)
    try:
        tried(tracer, beginning, lambda: compile_while(tracer, frame, node))
    finally:
        beginning.restore()


def tried(tracer: Tracer, beginning: TraceSnapshot, run: Callable[[], Any]) -> Any:
    """Return the result of `run` from `beginning` on; `UNROLLED`, with nothing traced, if it has errors. Raise
    MspcError if it never ends."""
    beginning.restore()
    noted = len(tracer.errors)
    try:
        found = run()
    except (MspcError, Poisoned, TooManyErrors) as error:
        if isinstance(error, MspcError) and error.message == NEVER_ENDS:
            raise
        found = UNROLLED
    if found is UNROLLED or len(tracer.errors) > noted:
        beginning.restore()
        return UNROLLED
    return found
