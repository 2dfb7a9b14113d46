"""Sums the gradient of a joined matmul over ranks whole, and splits it after the sum. An update reads
its part in place (`runtime.gradient_slices`), so that nothing is copied then.

Input:  `%2 = Split(%1) {axis: 1, output_num: 2}` and its results `%3`, `%4`, `%6 = AllReduce(%3, %5, %4)`
Output: `%6 = AllReduce(%1, %5)`, and before the readers of the sums of `%3` and `%4` a `Split` of the sum of `%1`

Parts may be slices, and each may be cast to Float32 first, for which the whole is cast. Parts that travel in several
buckets all travel in the last of them.
"""

from __future__ import annotations

from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, TupleType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.tensor.moving import Split
from mspc.ops.tensor.reshape import Cast
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.base import Pass
from mspc.passes.fusion.rewriter import Emitter


class SumJoined(Pass):
    def run(self, graph: Graph) -> bool:
        if not any(isinstance(node.op, Split | StridedSlice) for node in graph.nodes):
            return False
        found = _Sums(graph)
        for node in graph.nodes:
            found.look_at(node)
        return found.apply()


@dataclass(eq=False)
class _Joined:
    """A matrix, or a vector, of which reductions read all parts.

    makers: its split, or its slices. parts: their results; casts: their casts for the reductions, the parts themselves
    without casts. target: the reduction that gets the whole.
    """

    source: Value
    makers: list[Node]
    parts: list[Node]
    casts: list[Node]
    target: Node


class _Sums:
    """The reductions of the parts of splits. joined: by the operands that they read so far."""

    def __init__(self, graph: Graph) -> None:
        self.emitter = Emitter(graph)
        self.numbers = {node: number for number, node in enumerate(graph.nodes)}
        self.joined: dict[Value, _Joined] = {}

    def look_at(self, source: Node) -> None:
        """Let the last of the reductions of a matrix's parts have the whole."""
        if source in self.emitter.results or not isinstance(source.type, TensorType) or len(source.shape) > 2:
            return
        makers = list(dict.fromkeys(self.emitter.readers(source)))
        parts = self._split_parts(source, makers)
        if not parts or any(part in self.emitter.results for part in (*makers, *parts)):
            return
        casts = [self._cast_of(part) for part in parts]
        if len({cast.tensor_type.dtype for cast in casts}) > 1 or any(cast in self.emitter.results for cast in casts):
            return
        readers = [self.emitter.only_reader(cast) for cast in casts]
        sums = [reader for reader in readers if reader is not None and self._may_change(reader)]
        if len(sums) < len(parts) or any(_reduction_key(each) != _reduction_key(sums[0]) for each in sums):
            return
        last = max(sums, key=self.numbers.__getitem__)
        if self.numbers[last] < min(self.numbers[reader] for cast in casts for reader in self._read_sum(cast)):
            found = _Joined(source, makers, parts, casts, last)
            self.joined |= {cast: found for cast in casts}

    def _split_parts(self, source: Node, makers: list[Node]) -> list[Node]:
        """Return the nodes that split a matrix, in order; [] if something else reads it, or not all of it."""
        if len(makers) == 1 and isinstance(makers[0].op, Split):
            taken = [each for each in self.emitter.readers(makers[0]) if isinstance(each.op, TupleGetItem)]
            by_index = {each.op.index: each for each in taken if isinstance(each.op, TupleGetItem)}
            whole = len(self.emitter.readers(makers[0])) == len(by_index) == len(element_types(makers[0].type))
            return [by_index[index] for index in sorted(by_index)] if whole else []
        slices = [maker for maker in makers if isinstance(maker.op, StridedSlice)]
        if len(slices) < len(makers) or len(slices) < 2 or len(self.emitter.readers(source)) != len(slices):
            return []
        ranges = {each: each.op.ranges(source.shape) for each in slices if isinstance(each.op, StridedSlice)}
        known = {each: found for each, found in ranges.items() if found is not None}
        for axis in range(len(source.shape) if len(known) == len(slices) else 0):
            ordered = sorted(slices, key=lambda each: known[each][axis])
            begins, ends = zip(*(known[each][axis] for each in ordered), strict=True)
            others = {found[:axis] + found[axis + 1 :] for found in known.values()}
            whole = tuple((0, size) for d, size in enumerate(source.shape) if d != axis)
            if others == {whole} and (*begins, source.shape[axis]) == (0, *ends):
                return ordered
        return []

    def _cast_of(self, part: Node) -> Node:
        """Return the cast that alone reads a part, or the part itself."""
        reader = self.emitter.only_reader(part)
        return reader if reader is not None and isinstance(reader.op, Cast) else part

    def _may_change(self, node: Node) -> bool:
        """Return whether a node is a reduction of several tensors, whose results are taken apart and read."""
        if not isinstance(node.op, AllReduce) or len(node.inputs) < 2 or node in self.emitter.results:
            return False
        taken = self.emitter.readers(node)
        indices = sorted(each.op.index for each in taken if isinstance(each.op, TupleGetItem))
        read = all(self.emitter.readers(each) and each not in self.emitter.results for each in taken)
        return read and indices == [*range(len(node.inputs))] and len(indices) == len(taken)

    def _sum_of(self, operand: Node) -> Node:
        """Return the element of the reduction that is an operand's sum."""
        (reduction,) = self.emitter.readers(operand)
        index = list(reduction.inputs).index(operand)
        return next(
            each for each in self.emitter.readers(reduction)
            if isinstance(each.op, TupleGetItem) and each.op.index == index
        )  # fmt: skip

    def _read_sum(self, operand: Node) -> list[Node]:
        return self.emitter.readers(self._sum_of(operand))

    def apply(self) -> bool:
        """Change the graph: the reductions in their order, as one may read a part split off for another."""
        reductions = {reduction for cast in self.joined for reduction in self.emitter.readers(cast)}
        joined = list(dict.fromkeys(self.joined.values()))
        wholes = {each: self._whole_matrix(each) for each in joined}
        for reduction in sorted(reductions, key=self.numbers.__getitem__):
            made = self._reduce(reduction, wholes)
            for each in joined:
                if each.target is reduction:
                    self._split_sum(each, wholes[each], made)
        return self.emitter.apply()

    def _whole_matrix(self, joined: _Joined) -> Value:
        """Return the tensor to reduce for a matrix: it is cast if its parts were."""
        first = joined.casts[0]
        if first is joined.parts[0]:
            return joined.source
        place = min(joined.makers, key=self.numbers.__getitem__)
        return self.emitter.emit(place, Cast(first.tensor_type.dtype), [joined.source], first, takes=True)

    def _reduce(self, node: Node, wholes: dict[_Joined, Value]) -> Node | None:
        """Replace a reduction; the sums of its unchanged operands are its own. None if all operands travel in
        others."""
        inputs: list[Value] = []
        for value in node.inputs:
            joined = self.joined.get(value)
            if joined is None:
                inputs.append(value)
            elif joined.target is node and wholes[joined] not in inputs:
                inputs.append(wholes[joined])
        self.emitter.gone.add(node)
        if not inputs:
            return None
        assert isinstance(node.op, AllReduce)
        made = self.emitter.emit(node, node.op, inputs, node, takes=True)
        for old in self.emitter.readers(node):
            assert isinstance(old.op, TupleGetItem)
            value = node.inputs[old.op.index]
            if value not in self.joined:
                self.emitter.replace(old, self._emit_result(old, made, inputs.index(value), old, takes=True))
        return made

    def _emit_result(self, place: Node, made: Node, index: int, like: Node, takes: bool = False) -> Node:
        """Emit one result of a reduction, before a node; like, takes: see `Emitter.emit`."""
        if not isinstance(made.type, TupleType):
            return made
        return self.emitter.emit(place, TupleGetItem(index), [made], like, takes=takes)

    def _split_sum(self, joined: _Joined, whole: Value, made: Node | None) -> None:
        """Split a sum before the first reader of one of its parts."""
        assert made is not None
        readers = [reader for cast in joined.casts for reader in self._read_sum(cast)]
        place = min(readers, key=self.numbers.__getitem__)
        total = self._emit_result(place, made, list(made.inputs).index(whole), joined.parts[0])
        again: dict[Value, Node] = {
            maker: self.emitter.emit(place, maker.op, [total], maker, takes=True)
            for maker in joined.makers if isinstance(maker.op, Split | StridedSlice)
        }  # fmt: skip
        for part, cast in zip(joined.parts, joined.casts, strict=True):
            old = self._sum_of(cast)
            if isinstance(part.op, TupleGetItem):
                new = self.emitter.emit(place, part.op, [again[part.inputs[0]]], old, takes=True)
            else:
                new = again[part]
            self.emitter.replace(old, new)
            self.emitter.gone.add(old)
        self.emitter.gone.update((*joined.makers, *joined.parts, *joined.casts))


def _reduction_key(node: Node) -> tuple[object, ...]:
    """Return a key that is equal for reductions that may take each other's operands."""
    return node.op, node.phase, node.attrs.get("stream"), "mirror_user_id" in node.attrs
