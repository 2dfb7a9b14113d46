"""Sums the gradient of a joined product over ranks as it is, and cuts it apart behind the sum. An update reads its part
where it is (`runtime.gradient_slices`), so that nothing is copied then.

Input:  `%2 = Split(%1) {axis: 1, output_num: 2}` and its results `%3`, `%4`, `%6 = AllReduce(%3, %5, %4)`
Output: `%6 = AllReduce(%1, %5)`, and ahead of what reads the sums of `%3` and `%4` a `Split` of that of `%1`

Parts may be slices, and each may be cast to Float32 first, for which the whole is cast. Parts that travel in several
buckets all travel in the last of them.
"""

from __future__ import annotations

from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, TupleType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.tensor.cast import Cast
from mspc.ops.tensor.moving import Split
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.base import Pass
from mspc.passes.fusion.rewriter import Rewriter, element, successor


@dataclass(frozen=True)
class SumJoined(Pass):
    """Move splits behind reductions."""

    def run(self, graph: Graph) -> bool:
        if not any(isinstance(node.op, Split | StridedSlice) for node in graph.nodes):
            return False
        found = _Sums(graph)
        for node in graph.nodes:
            found.look_at(node)
        return found.apply()


@dataclass(eq=False)
class _Joined:
    """A matrix, or a vector, of which reductions read all parts. makers: its split, or its slices. parts: what makes
    each; casts: what they become for the reductions, the parts themselves without casts. target: the reduction that
    gets the whole."""

    source: Value
    makers: list[Node]
    parts: list[Node]
    casts: list[Node]
    target: Node


class _Sums:
    """The reductions of what splits take apart. joined: by the operands that they read so far."""

    def __init__(self, graph: Graph) -> None:
        self.rewriter = Rewriter(graph)
        self.numbers = {node: number for number, node in enumerate(graph.nodes)}
        self.joined: dict[Value, _Joined] = {}

    def look_at(self, source: Node) -> None:
        """Let the last of the reductions of a matrix's parts have the whole."""
        if source in self.rewriter.results or not isinstance(source.type, TensorType) or len(source.shape) > 2:
            return
        makers = list(dict.fromkeys(self.rewriter.readers(source)))
        parts = self._parts(source, makers)
        if not parts or any(part in self.rewriter.results for part in (*makers, *parts)):
            return
        casts = [self._cast_of(part) for part in parts]
        if len({cast.tensor_type.dtype for cast in casts}) > 1 or any(cast in self.rewriter.results for cast in casts):
            return
        readers = [self.rewriter.only_reader(cast) for cast in casts]
        sums = [reader for reader in readers if reader is not None and self._may_change(reader)]
        if len(sums) < len(parts) or any(_kind(each) != _kind(sums[0]) for each in sums):
            return
        last = max(sums, key=self.numbers.__getitem__)
        if self.numbers[last] < min(self.numbers[reader] for cast in casts for reader in self._read_sum(cast)):
            found = _Joined(source, makers, parts, casts, last)
            self.joined |= {cast: found for cast in casts}

    def _parts(self, source: Node, makers: list[Node]) -> list[Node]:
        """What takes a matrix apart, in order; [] where something else reads it, or not all of it."""
        if len(makers) == 1 and isinstance(makers[0].op, Split):
            taken = [each for each in self.rewriter.readers(makers[0]) if isinstance(each.op, TupleGetItem)]
            by_index = {each.op.index: each for each in taken if isinstance(each.op, TupleGetItem)}
            whole = len(self.rewriter.readers(makers[0])) == len(by_index) == len(element_types(makers[0].type))
            return [by_index[index] for index in sorted(by_index)] if whole else []
        slices = [maker for maker in makers if isinstance(maker.op, StridedSlice)]
        if len(slices) < len(makers) or len(slices) < 2 or len(self.rewriter.readers(source)) != len(slices):
            return []
        ranges = {each: _ranges(each) for each in slices}
        for axis, length in enumerate(source.shape):
            ordered = sorted(slices, key=lambda each: ranges[each][axis : axis + 1])
            end = 0
            for each in ordered:
                others = [(0, size) for size in source.shape]
                if ranges[each][axis : axis + 1] and ranges[each][axis][0] == end:
                    end = ranges[each][axis][1]
                    others[axis] = ranges[each][axis]
                if ranges[each] != tuple(others):
                    end = -1
            if end == length and len({ranges[each] for each in slices}) == len(slices):
                return ordered
        return []

    def _cast_of(self, part: Node) -> Node:
        """The cast that alone reads a part, or the part itself."""
        reader = self.rewriter.only_reader(part)
        return reader if reader is not None and isinstance(reader.op, Cast) else part

    def _may_change(self, node: Node) -> bool:
        """Whether a node is a reduction of several tensors, whose results are taken apart and read."""
        if not isinstance(node.op, AllReduce) or len(node.inputs) < 2 or node in self.rewriter.results:
            return False
        taken = self.rewriter.readers(node)
        indices = sorted(each.op.index for each in taken if isinstance(each.op, TupleGetItem))
        read = all(self.rewriter.readers(each) and each not in self.rewriter.results for each in taken)
        return read and indices == [*range(len(node.inputs))] and len(indices) == len(taken)

    def _sum_of(self, operand: Node) -> Node:
        """What takes an operand's sum from the reduction."""
        (reduction,) = self.rewriter.readers(operand)
        index = list(reduction.inputs).index(operand)
        return next(
            each for each in self.rewriter.readers(reduction)
            if isinstance(each.op, TupleGetItem) and each.op.index == index
        )  # fmt: skip

    def _read_sum(self, operand: Node) -> list[Node]:
        return self.rewriter.readers(self._sum_of(operand))

    def apply(self) -> bool:
        """Change the graph."""
        changed = dict.fromkeys(reduction for cast in self.joined for reduction in self.rewriter.readers(cast))
        wholes = {joined: self._whole(joined) for joined in dict.fromkeys(self.joined.values())}
        made = {reduction: self._reduction(reduction, wholes) for reduction in changed}
        for joined, whole in wholes.items():
            self._cut(joined, whole, made[joined.target])
        for reduction in changed:  # behind what is cut for another reduction that is in the place of this one
            self._put(reduction, made[reduction])
        return self.rewriter.apply()

    def _whole(self, joined: _Joined) -> Value:
        """What travels of a matrix: it is cast where its parts were."""
        first = joined.casts[0]
        if first is joined.parts[0]:
            return joined.source
        type = TensorType(first.tensor_type.dtype, joined.source.shape)
        made = Node(first.op, [joined.source], type, scope=first.scope, frames=first.frames, phase=first.phase)
        made.attrs = dict(first.attrs)
        self.rewriter.put_ahead(min(joined.makers, key=self.numbers.__getitem__), [made])
        return made

    def _reduction(self, node: Node, wholes: dict[_Joined, Value]) -> Node:
        """What takes the place of a reduction."""
        inputs: list[Value] = []
        for value in node.inputs:
            joined = self.joined.get(value)
            if joined is None:
                inputs.append(value)
            elif joined.target is node and wholes[joined] not in inputs:
                inputs.append(wholes[joined])
        types = tuple(value.tensor_type for value in inputs)
        type = types[0] if len(types) == 1 else TupleType(types)
        made = Node(node.op, inputs, type, scope=node.scope, frames=node.frames, phase=node.phase)
        made.name, made.instance, made.attrs = node.name, node.instance, dict(node.attrs)
        return made

    def _put(self, node: Node, made: Node) -> None:
        """Put it there; the sums of what it reads as it was are its own."""
        self.rewriter.put(node, [made] if made.inputs else [])
        for old in self.rewriter.readers(node):
            assert isinstance(old.op, TupleGetItem)
            value = node.inputs[old.op.index]
            if value not in self.joined:
                new = made if len(made.inputs) == 1 else successor(made, list(made.inputs).index(value), old)
                self.rewriter.put(old, [new] if new is not made else [])
                self.rewriter.replace(old, new)

    def _cut(self, joined: _Joined, whole: Value, made: Node) -> None:
        """Cut a sum apart ahead of the first that reads one of its parts."""
        index = list(made.inputs).index(whole)
        like = joined.makers[0]
        total = element(made, index, like) if isinstance(made.type, TupleType) else made
        nodes = [total] if total is not made else []
        dtype = total.tensor_type.dtype
        if isinstance(like.op, Split):
            types = TupleType(tuple(TensorType(dtype, type.shape) for type in element_types(like.type)))
            again = _again(like, total, types)
            found = [successor(again, number, self._sum_of(cast)) for number, cast in enumerate(joined.casts)]
            nodes.append(again)
        else:
            found = [_again(part, total, TensorType(dtype, part.shape)) for part in joined.parts]
        olds = [self._sum_of(cast) for cast in joined.casts]
        readers = [reader for cast in joined.casts for reader in self._read_sum(cast)]
        for old, new in zip(olds, found, strict=True):
            self.rewriter.replace(old, new)
        self.rewriter.put_ahead(min(readers, key=self.numbers.__getitem__), [*nodes, *found])
        self.rewriter.gone.update((*joined.makers, *joined.parts, *joined.casts, *olds))


def _again(node: Node, source: Node, type: TensorType | TupleType) -> Node:
    """What a node does of another matrix."""
    made = Node(node.op, [source], type, scope=node.scope, frames=node.frames, phase=node.phase)
    made.name, made.instance, made.attrs = node.name, node.instance, dict(node.attrs)
    return made


def _ranges(node: Node) -> tuple[tuple[int, int], ...]:
    """Where a slice begins along every dimension, and ends; () for one with gaps, or of other dimensions."""
    assert isinstance(node.op, StridedSlice)
    cuts = node.op.cuts(node.inputs[0].shape)
    if [cut.dim for cut in cuts] != [*range(len(cuts))] or any(cut.step != 1 or cut.size <= 0 for cut in cuts):
        return ()
    return tuple((cut.start, cut.start + cut.size) for cut in cuts)


def _kind(node: Node) -> tuple[object, ...]:
    """Equal for reductions that may have each other's operands."""
    return node.op, node.phase, node.attrs.get("stream"), "mirror_user_id" in node.attrs
