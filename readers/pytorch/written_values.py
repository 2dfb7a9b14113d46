"""Tensors that a program overwrites: their names, and writes through any of these.

A name is the whole of a tensor or a view of it: steps that lead there. Writing into a view replaces that part of the
tensor, and every other view of it is taken anew when it is read again, as the names share their elements in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api import ops
from mspc.readers.pytorch.exported_program import (
    CONTROL,
    INLINED,
    ExportedGraph,
    ExportedNode,
    ExportedProgram,
    ExportedType,
    NodeResult,
    inlined,
    names_in,
)
from mspc.readers.pytorch.kinds.aten_table import GIVEN, STOPPED, kind_of, kinds
from mspc.readers.pytorch.kinds.creation import with_gradient_of
from mspc.readers.pytorch.kinds.kind import Function, Kind
from mspc.readers.pytorch.kinds.shapes import joined

Call = Callable[[Function, Sequence[Any]], Any]
"""Computes a function of values."""


@dataclass(frozen=True)
class ViewStep:
    """One step from a tensor to a view of it. operands: the kind's arguments after the tensor."""

    kind: Kind
    operands: tuple[Any, ...]


PARTS = frozenset({"aten.slice.Tensor", "aten.narrow.default", "aten.select.int"})
"""Views of a part of a dimension, their second argument; the elements of a part of the first one follow each other."""
TURNED = frozenset({
    "aten.transpose.int", "aten.swapdims.default", "aten.swapaxes.default", "aten.t.default", "aten.numpy_T.default",
    "aten.mT.default", "aten.adjoint.default", "aten.matrix_H.default", "aten.permute.default", "aten.movedim.int",
    "aten.movedim.intlist",
    "aten.moveaxis.int", "aten.moveaxis.intlist", "aten.diagonal.default", "aten.unfold.default", "aten.expand.default",
    "aten.expand_as.default", "aten.broadcast_to.default",
})  # fmt: skip
"""Views of the elements in another order, of some of them, or of some several times."""
COPIED_IN_ORDER = frozenset({
    "aten.contiguous.default", "aten.reshape.default", "aten.reshape_as.default", "aten.flatten.using_ints",
    "aten.ravel.default",
})  # fmt: skip
"""Kinds that give a view if elements follow each other in memory, and a copy otherwise."""
DROPPED = frozenset({"aten.dropout.default", "aten.feature_dropout.default"})
"""Kinds that give the tensor itself if they have nothing to draw."""
SPLITS: Mapping[str, bool] = {
    "aten.split.Tensor": False, "aten.split.sizes": False, "aten.split_with_sizes.default": False,
    "aten.chunk.default": False, "aten.tensor_split.sections": False, "aten.tensor_split.indices": False,
    "aten.vsplit.int": False, "aten.hsplit.int": False, "aten.dsplit.int": False, "aten.unbind.int": True,
}  # fmt: skip
"""Kinds whose results are views of parts of a dimension; True: each without that dimension."""
_OF_DIMENSION: Mapping[str, int] = {"aten.vsplit.int": 0, "aten.hsplit.int": 1, "aten.dsplit.int": 2}
"""The dimension of those whose last argument does not name it."""


APART = "aten.detach.default"
"""The view of all elements through which no gradient goes."""
STOPS = frozenset({APART, STOPPED})


def split_dimension(kind: str, operands: Sequence[Any], rank: int) -> int:
    """Return the dimension of which a kind of `SPLITS` gives parts."""
    named = _OF_DIMENSION.get(kind)
    return operands[-1] if named is None else min(named, rank - 1)


def shares(kind: Kind, operands: Sequence[Any], is_in_order: bool) -> bool:
    """Return whether the result of a kind is a view of its first argument. is_in_order: whether that one's elements
    follow each other in memory."""
    if kind.name in DROPPED:
        _, probability, trains = operands
        return not trains or probability == 0
    return kind.put is not None and (is_in_order or kind.name not in COPIED_IN_ORDER)


class Storage:
    """The elements that several names share, as a value, and how often they were replaced. is_differentiated: whether
    gradients may go through it.

    A buffer that is filled slice by slice, as FSDP does it, would be joined anew for every slice. Written slices of one
    dimension are remembered instead, and joined once if the whole is read.
    """

    def __init__(self, value: Any, is_differentiated: bool = True) -> None:
        self._value = value  # without the written slices
        self._dim = 0
        self._slices: dict[tuple[int, int], Any] = {}
        self.version = 0
        self.is_differentiated = is_differentiated

    def replace(self, value: Any) -> None:
        """Other elements from now on."""
        self._value, self._slices = value, {}
        self.version += 1

    def whole(self, call: Call) -> Any:
        """Return the value of all elements."""
        if self._slices:
            at, parts = 0, list[Any]()
            for (begin, end), value in sorted(self._slices.items(), key=lambda each: each[0]):
                if begin > at:
                    parts.append(self._unwritten(call, at, begin))
                parts.append(value)
                at = end
            if at < (size := self._value.shape[self._dim]):
                parts.append(self._unwritten(call, at, size))
            self._value, self._slices = call(joined, [tuple(parts), self._dim]) if len(parts) > 1 else parts[0], {}
        return self._value

    def slice(self, call: Call, steps: Sequence[ViewStep]) -> Any:
        """Return the view of these steps, or None if it is no slice that was written alone or not at all."""
        place = self._slice_of(steps)
        if place is None or not self._slices:
            return None
        if place in self._slices:
            return self._slices[place]
        begin, end = place
        is_apart = all(end <= first or begin >= last for first, last in self._slices)
        return self._unwritten(call, begin, end) if is_apart else None

    def write_slice(self, call: Call, steps: Sequence[ViewStep], value: Any) -> bool:
        """Replace the elements of a slice; return False, with nothing done, if the steps lead to another view."""
        place = self._slice_of(steps)
        if place is None:
            return False
        if not self._slices:
            self._dim = steps[0].operands[0] % len(self._value.shape)
        elif place not in self._slices and any(place[0] < end and begin < place[1] for begin, end in self._slices):
            self.whole(call)
        self._slices[place] = value
        self.version += 1
        return True

    def _unwritten(self, call: Call, begin: int, end: int) -> Any:
        return call(kinds()["aten.slice.Tensor"].target, [self._value, self._dim, begin, end, 1])

    def _slice_of(self, steps: Sequence[ViewStep]) -> tuple[int, int] | None:
        """Return the bounds of a view that is a slice without gaps, of the dimension of those that were written."""
        if len(steps) != 1 or steps[0].kind.name != "aten.slice.Tensor":
            return None
        dim, begin, end, step = steps[0].operands
        shape = self._value.shape
        if not all(isinstance(each, int) for each in (dim, begin, end)) or step != 1:
            return None
        size = shape[dim % len(shape)]
        is_alike = not self._slices or dim % len(shape) == self._dim
        return (begin, end) if is_alike and 0 <= begin < end <= size else None


class NamedValue:
    """The tensor of a name in the graph. storage: the owner of its elements; steps: the way to it from there."""

    def __init__(self, storage: Storage, value: Any, steps: tuple[ViewStep, ...] = ()) -> None:
        self.storage = storage
        self.steps = steps
        self._value = value
        self._version = storage.version

    def read(self, call: Call) -> Any:
        """Return the value as it is now."""
        if self._version != self.storage.version:
            self._value = self.storage.slice(call, self.steps)
            if self._value is None:
                self._value = self.storage.whole(call)
                for step in self.steps:
                    self._value = call(step.kind.target, [self._value, *step.operands])
            self._version = self.storage.version
        return self._value

    def write(self, call: Call, value: Any, is_differentiated: bool) -> None:
        """Replace the elements. Without differentiation it changes the numbers alone: the gradient goes on to the
        former value, as PyTorch keeps it."""
        is_differentiated = is_differentiated and all(step.kind.name != APART for step in self.steps)
        if is_differentiated or not self.storage.is_differentiated:
            held = value if is_differentiated else call(ops.stop_gradient, [value])
            if self.storage.write_slice(call, self.steps, held):
                self.storage.is_differentiated |= is_differentiated
                self._value, self._version = held, self.storage.version
                return
        bases = [self.storage.whole(call)]
        for step in self.steps[:-1]:
            bases.append(call(step.kind.target, [bases[-1], *step.operands]))
        new = value
        for step, base in zip(reversed(self.steps), reversed(bases), strict=False):
            assert step.kind.put is not None
            new = call(step.kind.put, [base, new, *step.operands])
        if is_differentiated:
            self.storage.is_differentiated = True
        elif self.storage.is_differentiated:
            new = call(with_gradient_of, [bases[0], new])
        else:
            new = call(ops.stop_gradient, [new])
        self.storage.replace(new)
        if is_differentiated:
            self._value, self._version = value, self.storage.version

    @property
    def is_in_order(self) -> bool:
        """Return whether the elements follow each other in memory as those of the whole do."""
        return not any(
            step.kind.name in TURNED or (step.kind.name in PARTS and step.operands[0] != 0) for step in self.steps
        )

    def parts(self, kind: str, dim: int, values: Sequence[Any], sizes: Sequence[int]) -> list[NamedValue]:
        """Return the parts that a kind of `SPLITS` makes of this one's elements; sizes: of the parts along the
        dimension."""
        found: list[NamedValue] = []
        begin = 0
        for number, (value, size) in enumerate(zip(values, sizes, strict=True)):
            if SPLITS[kind]:
                found.append(self.view(kinds()["aten.select.int"], (dim, number), value))
            else:
                found.append(self.view(kinds()["aten.slice.Tensor"], (dim, begin, begin + size, 1), value))
            begin += size
        return found

    def view(self, kind: Kind, operands: Sequence[Any], value: Any) -> NamedValue:
        """Return a kind's view of this one's elements."""
        made = NamedValue(self.storage, value, (*self.steps, ViewStep(kind, tuple(operands))))
        made._version = self._version
        return made


def written_inputs(program: ExportedProgram) -> set[str]:
    """Return the inputs of a program that it may overwrite, through a view or by its outputs."""
    written = written_names(program.graph)
    targets = {output.target for output in program.outputs if output.kind.endswith("mutation")}
    return {e.name for e in program.inputs if e.name in written or e.name in targets or e.qualified in targets}


def written_names(graph: ExportedGraph) -> set[str]:
    """Return the names of values whose elements are overwritten, under that name or another one of a view."""
    written, origin = _written_and_origin(graph)
    return written | {name for name, first in origin.items() if first in written}


def differentiated_names(graph: ExportedGraph, results: Iterable[str]) -> set[str]:
    """Return the names of values by which results have gradients: everything they are computed from, unless something
    stops gradients."""
    _, origin = _written_and_origin(graph, of_gradients=True)
    reached = {origin.get(name, name) for name in results}
    for node in reversed(graph.nodes):
        kind = None if node.target in CONTROL else kind_of(node.target)
        given = dict(node.arguments)
        written = [given.get(name) for name in kind.writes] if kind is not None else []
        found = [*node.results, *[each.name for each in written if isinstance(each, NodeResult)]]
        if not reached.isdisjoint(origin.get(name, name) for name in found):
            reached |= {origin.get(name, name) for name in _differentiated_operands(node)}
    return reached | {name for name, first in origin.items() if first in reached}


def read_names(graph: ExportedGraph) -> set[str]:
    """Return the names of all values that nodes or the caller are given."""
    return {*(name for node in graph.nodes for name in node.operands), *names_in(graph.outputs)}


def _differentiated_operands(node: ExportedNode) -> set[str]:
    """Return the operands by which the results of a node have gradients."""
    if node.target in STOPS or (node.types and not any(map(_is_differentiated, node.types))):
        return set()
    if node.target not in INLINED:
        return set(node.operands)
    graph, operands, is_differentiated = inlined(node)
    if not is_differentiated:
        return set(_overwritten_operands(node)[1].values())
    reached = differentiated_names(graph, names_in(graph.outputs))
    pairs = zip(graph.inputs, operands, strict=True)
    return {operand.name for (name, _), operand in pairs if name in reached and isinstance(operand, NodeResult)}


def _is_differentiated(type: ExportedType | None) -> bool:
    return type is None or type.dtype.is_float or type.dtype.is_complex


def _written_and_origin(graph: ExportedGraph, of_gradients: bool = False) -> tuple[set[str], dict[str, str]]:
    """Return (the names whose elements are overwritten, for every view the name of the whole). of_gradients: except
    through views without gradients."""
    origin: dict[str, str] = {}
    written: set[str] = set()
    for node in graph.nodes:
        if node.target in INLINED:
            inner_written, views = _overwritten_operands(node)
            written |= {origin.get(name, name) for name in inner_written}
            origin |= {name: origin.get(first, first) for name, first in views.items()}
            continue
        kind = None if node.target in CONTROL else kind_of(node.target)
        given = dict(node.arguments)
        overwritten = names_in(tuple(given.get(name) for name in kind.writes)) if kind is not None else []
        if node.target != STOPPED:
            written |= {origin.get(name, name) for name in overwritten}
        base = returned(node, kind) if kind is not None and not (of_gradients and node.target in STOPS) else None
        if base is not None:
            origin |= dict.fromkeys(node.results, origin.get(base.name, base.name))
    return written, origin


def returned(node: ExportedNode, kind: Kind) -> NodeResult | None:
    """Return the value whose elements the results of a node share, if there is one."""
    base = node.arguments[0][1] if node.arguments else None
    if kind.writes == (GIVEN,) or kind.writes == (kind.arguments[0].name,):
        base = dict(node.arguments).get(kind.writes[0])
    elif kind.put is None and kind.name not in SPLITS:
        return None
    return base if isinstance(base, NodeResult) else None


def _overwritten_operands(node: ExportedNode) -> tuple[set[str], dict[str, str]]:
    """Return (the operands that an inner graph overwrites, for every result that shares an operand's elements that
    one)."""
    try:
        graph, operands, _ = inlined(node)
    except MspcError:  # reported later
        return set(), {}
    outer = {
        name: operand.name
        for (name, _), operand in zip(graph.inputs, operands, strict=True)
        if isinstance(operand, NodeResult)
    }
    written, origin = _written_and_origin(graph)
    views: dict[str, str] = {}
    for result, output in zip(node.results, graph.outputs, strict=False):
        if isinstance(output, NodeResult):
            first = origin.get(output.name, output.name)
            views |= {result: outer[first]} if first in outer else {}
    return {outer[name] for name in written if name in outer}, views
