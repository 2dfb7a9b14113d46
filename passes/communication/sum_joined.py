"""Sums the gradient of a joined product over ranks as it is, and cuts it apart behind the sum. An update reads columns
where they are (`runtime.gradient_slices`), so that nothing is copied then.

Input:  `%2 = Split(%1) {axis: 1, output_num: 2}` and its results `%3`, `%4`, `%6 = AllReduce(%3, %5, %4)`
Output: `%6 = AllReduce(%1, %5)`, and ahead of what reads the sums of `%3` and `%4` a `Split` of that of `%1`

Parts that travel in several buckets all travel in the last of them.
"""

from __future__ import annotations

from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TupleType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.tensor.moving import Split
from mspc.passes.base import Pass
from mspc.passes.fusion.rewriter import Rewriter, element, successor


@dataclass(frozen=True)
class SumJoined(Pass):
    """Move splits behind reductions."""

    def run(self, graph: Graph) -> bool:
        if not any(isinstance(node.op, Split) for node in graph.nodes):
            return False
        found = _Sums(graph)
        for node in graph.nodes:
            found.look_at(node)
        return found.apply()


class _Sums:
    """The reductions of what splits take apart. targets: of every such split the reduction of the whole."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.rewriter = graph, Rewriter(graph)
        self.numbers = {node: number for number, node in enumerate(graph.nodes)}
        self.targets: dict[Node, Node] = {}

    def look_at(self, split: Node) -> None:
        """Let the last of the reductions of a split's results have the whole."""
        parts = self.rewriter.readers(split)
        if not _is_along_rows(split) or split in self.rewriter.results:
            return
        indices = [part.op.index for part in parts if isinstance(part.op, TupleGetItem)]
        if sorted(indices) != [*range(len(element_types(split.type)))] or len(indices) != len(parts):
            return
        readers = [self.rewriter.only_reader(part) for part in parts]
        sums = [reader for reader in readers if reader is not None and self._may_change(reader)]
        if len(sums) < len(parts) or any(_kind(each) != _kind(sums[0]) for each in sums):
            return
        last = max(sums, key=self.numbers.__getitem__)
        if self.numbers[last] < min(self.numbers[reader] for part in parts for reader in self._read_sum(part)):
            self.targets[split] = last

    def _may_change(self, node: Node) -> bool:
        """Whether a node is a reduction of several tensors, whose results are taken apart and read."""
        if not isinstance(node.op, AllReduce) or len(node.inputs) < 2 or node in self.rewriter.results:
            return False
        taken = self.rewriter.readers(node)
        indices = sorted(each.op.index for each in taken if isinstance(each.op, TupleGetItem))
        read = all(self.rewriter.readers(each) and each not in self.rewriter.results for each in taken)
        return read and indices == [*range(len(node.inputs))] and len(indices) == len(taken)

    def _sum_of(self, part: Node) -> Node:
        """What takes a part's sum from the reduction."""
        (reduction,) = self.rewriter.readers(part)
        index = list(reduction.inputs).index(part)
        return next(
            each for each in self.rewriter.readers(reduction)
            if isinstance(each.op, TupleGetItem) and each.op.index == index
        )  # fmt: skip

    def _read_sum(self, part: Node) -> list[Node]:
        return self.rewriter.readers(self._sum_of(part))

    def apply(self) -> bool:
        """Change the graph."""
        changed = dict.fromkeys(
            reduction for split in self.targets for part in self.rewriter.readers(split)
            for reduction in self.rewriter.readers(part)
        )  # fmt: skip
        made = {reduction: self._reduce(reduction) for reduction in changed}
        for split, target in self.targets.items():
            self._cut(split, made[target])
        return self.rewriter.apply()

    def _reduce(self, node: Node) -> Node:
        """The reduction in the place of one; its other results are those of that."""
        inputs: list[Value] = []
        kept: dict[int, int] = {}
        for index, value in enumerate(node.inputs):
            split = value.inputs[0] if isinstance(value, Node) and isinstance(value.op, TupleGetItem) else None
            if not isinstance(split, Node) or split not in self.targets:
                kept[index] = len(inputs)
                inputs.append(value)
            elif self.targets[split] is node and split.inputs[0] not in inputs:
                inputs.append(split.inputs[0])
        types = tuple(value.tensor_type for value in inputs)
        type = types[0] if len(types) == 1 else TupleType(types)
        made = Node(node.op, inputs, type, scope=node.scope, frames=node.frames, phase=node.phase)
        made.name, made.instance, made.attrs = node.name, node.instance, dict(node.attrs)
        self.rewriter.put(node, [made] if inputs else [])
        for old in self.rewriter.readers(node):
            assert isinstance(old.op, TupleGetItem)
            if old.op.index in kept:
                new = made if len(inputs) == 1 else successor(made, kept[old.op.index], old)
                self.rewriter.put(old, [new] if new is not made else [])
                self.rewriter.replace(old, new)
        return made

    def _cut(self, split: Node, made: Node) -> None:
        """Cut a sum apart ahead of the first that reads one of its parts."""
        index = list(made.inputs).index(split.inputs[0])
        whole = element(made, index, split) if isinstance(made.type, TupleType) else made
        again = Node(split.op, [whole], split.type, scope=split.scope, frames=split.frames, phase=split.phase)
        again.name, again.instance, again.attrs = split.name, split.instance, dict(split.attrs)
        parts = self.rewriter.readers(split)
        readers = [reader for part in parts for reader in self._read_sum(part)]
        found: list[Node] = []
        for part in parts:
            assert isinstance(part.op, TupleGetItem)
            old = self._sum_of(part)
            found.append(successor(again, part.op.index, old))
            self.rewriter.replace(old, found[-1])
            self.rewriter.gone.add(old)
        first = min(readers, key=self.numbers.__getitem__)
        self.rewriter.put_ahead(first, [*([whole] if whole is not made else []), again, *found])
        self.rewriter.gone.update((split, *parts))


def _is_along_rows(node: Node) -> bool:
    """Whether a node splits the last dimension of a matrix."""
    return isinstance(node.op, Split) and len(node.inputs[0].shape) == 2 and node.op.axis % 2 == 1


def _kind(node: Node) -> tuple[object, ...]:
    """Equal for reductions that may have each other's operands."""
    return node.op, node.phase, node.attrs.get("stream"), "mirror_user_id" in node.attrs
