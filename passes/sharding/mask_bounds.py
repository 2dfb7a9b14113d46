"""Masks the padding of dimensions whose size depends on data and has a bound.

Input:  `%2 = Bounded(%0, %1) {axis: 0}` of which %1 elements count, and `%3 = ReduceSum(%2)`
Output: `%3 = ReduceSum(Select(Range() < %1, %0, 0))`

The bound is the size of the dimension. Dimensions have padding together along operators that work on every index alone
(`passes/lib/padding.py`); those that combine the dimension read a value there that changes nothing. Other
operators are refused. Results of the network have zeros there.
"""

from __future__ import annotations

from mspc.ir.diagnostics import MspcError, raise_all
from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import INT32, TensorType, TupleType
from mspc.ops.control.structural import Bounded, TupleGetItem
from mspc.ops.tensor.reshape import Cast
from mspc.passes.base import Pass
from mspc.passes.lib.padding import ZERO, Element, PaddedGraph, PaddingPlan, Place, fill_of, grouped, is_made_padded


@dataclass(frozen=True)
class MaskBounds(Pass):
    """Let operators read no padding of dimensions that have a bound."""

    def run(self, graph: Graph) -> bool:
        bounded = [node for node in graph.nodes if isinstance(node.op, Bounded)]
        if bounded:
            _MaskedGraph(graph, *_plan(graph, bounded)).rewrite()
            graph.replace({node: node.inputs[0] for node in bounded})
            graph.nodes = [node for node in graph.nodes if node not in set(bounded)]
        return bool(bounded)


def _plan(graph: Graph, bounded: list[Node]) -> tuple[PaddingPlan, dict[Place, Value]]:
    """Return the dimensions with padding, and the number of elements before it of each. Raise MspcError if it differs
    within a group."""
    sizes = {node.shape[node.op.axis] for node in bounded if isinstance(node.op, Bounded)}
    plan, groups, places = grouped(graph, sizes, resized=False)
    counts: dict[Place, Node] = {}
    mistakes: list[MspcError] = []
    for node in bounded:
        assert isinstance(node.op, Bounded)
        root = groups.of((node, 0, node.op.axis))
        first = counts.setdefault(root, node)
        if first.inputs[1] is not node.inputs[1]:
            mistakes.append(node.error(f"{node.label}: values of two sizes that depend on data are combined"))
    raise_all(mistakes)
    held: dict[Place, Value] = {}
    for value, i, d in places:
        source = counts.get(groups.of((value, i, d)))
        if source is not None:
            held[value, i, d] = source.inputs[1]
            size = element_types(value.type)[i].shape[d]
            plan.sizes.setdefault((value, i), {})[d] = size
            plan.reasons[value, i] = f"the size of dimension {d} depends on data, and is at most {size}"
            if is_made_padded(value, i, d, plan):
                plan.made.setdefault((value, i), {})[d] = size
    return plan, held


class _MaskedGraph(PaddedGraph):
    """A graph with masks. counts: the numbers of elements before padding."""

    def __init__(self, graph: Graph, plan: PaddingPlan, counts: dict[Place, Value]) -> None:
        super().__init__(graph, plan)
        self._counts = counts

    def inside(self, element: Element, dim: int) -> int | Value:
        count = self._counts[*element, dim]
        return count if count.tensor_type.dtype == INT32 else self.builder.emit(Cast(INT32), count)

    def result(self, value: Value) -> Value:
        dims = tuple(sorted(self.plan.made.get((value, 0), {})))
        found = self.versions.get((value, 0, dims), value)
        for dim in dims if isinstance(value.type, TensorType) else ():
            fill = fill_of(ZERO, value.tensor_type.dtype)
            found = self.masked(found, dim, self.inside((value, 0), dim), fill, "the network returns no padding")
        return found

    def plain(self, value: Value) -> Value:
        for i in range(len(element_types(value.type))):
            self._check_read(value, i, ())
        return self.versions.get((value, 0, ()), value)

    def version(self, value: Value, i: int, dims: tuple[int, ...]) -> Value:
        self._check_read(value, i, dims)
        if isinstance(value.type, TupleType):
            return self.builder.emit(TupleGetItem(i), value)
        return self.versions.get((value, i, dims), value)

    def _check_read(self, value: Value, i: int, dims: tuple[int, ...]) -> None:
        """Raise MspcError if the node reads padding in other dimensions than these."""
        hidden = [d for d in self.plan.made.get((value, i), {}) if d not in dims]
        if hidden and self.node is not None:
            raise self.node.error(
                f"{self.node.label} reads padding: {self.plan.reasons[value, i]}",
                notes=["sums, means, extremes, softmax, matmuls and elementwise operators read none; combine the "
                       "dimension by one of these first"],
            )  # fmt: skip
