"""Joins LayerNorm with the conversions around it, and its three gradients into one operator that reads memory once.

Input:  %1 = Cast(%x); %2 = LayerNorm(%1, %g, %b); %4 = Cast(TupleGetItem(%2)); in the backward graph
        LayerNormGrad(%d, %1, ...), LayerNormGammaGrad(%d, %1, ...), ReduceSum(%d) of %d = Cast(%dy)
Output: %2 = FusedLayerNorm(%x, %g, %b) {dst_type: BFloat16} and FusedLayerNormGrad(%dy, %x, ...), a tuple of three.

Only norms of the last dimension, of lengths that the kernels take. Sums as residual connections make them are joined
too: of two tensors whose sum is normalised, and of the gradient in x and one other tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.arithmetic import Add, AddN
from mspc.ops.broadcast import ReduceSum
from mspc.ops.cast import Cast
from mspc.ops.cuda_norm import fits
from mspc.ops.fused_norm import FusedLayerNorm, FusedLayerNormGrad
from mspc.ops.norm import LayerNorm, LayerNormGammaGrad, LayerNormGrad
from mspc.ops.op import Op
from mspc.ops.structural import TupleGetItem
from mspc.passes.base import Pass
from mspc.passes.execute import Execute


@dataclass(frozen=True)
class FuseNorm(Pass):
    """Replace LayerNorm and its gradients by their fused forms."""

    def run(self, graph: Graph) -> bool:
        changed = Execute().run(graph)
        return _Joining(graph).run() or changed


class _Joining:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users = graph.users()
        self.results = set(graph.results)
        self.place: dict[Value, int] = {node: i for i, node in enumerate(graph.nodes)}
        self.made: dict[Node, list[Node]] = {}
        self.replaced: dict[Value, Value] = {}

    def run(self) -> bool:
        for node in self.graph.nodes:
            if isinstance(node.op, LayerNorm):
                self._forward(node, node.op)
            elif isinstance(node.op, LayerNormGrad):
                self._backward(node, node.op)
        if not self.made:
            return False
        nodes: list[Node] = []
        for node in self.graph.nodes:
            nodes.extend(self.made.get(node, ()))
            if node not in self.replaced and node not in self.made:
                nodes.append(node)
        self.graph.nodes = nodes
        self.graph.replace(self.replaced)
        Execute().run(self.graph)  # conversions that nobody reads any more
        return True

    def _forward(self, node: Node, op: LayerNorm) -> None:
        x, gamma, beta = node.inputs
        if not _last_only(op.begin_norm_axis, x) or not _last_only(op.begin_params_axis, x) or node in self.results:
            return
        if not all(isinstance(user.op, TupleGetItem) for user in self._readers(node)):
            return
        source = _before_cast(x, gamma)
        items = {user.op.index: user for user in self._readers(node) if isinstance(user.op, TupleGetItem)}
        y = items.get(0)
        cast = self._only_cast(y)
        total = self._sum_of_two(source)
        if source is x and cast is None and total is None:
            return
        assert isinstance(node.type, TupleType)
        kind = (cast if cast is not None else gamma).tensor_type.dtype
        elements = (TensorType(kind, x.shape), *node.type.elements[1:])
        if total is not None:
            elements = (*elements, total.tensor_type)
        result, parts = TupleType(elements), [source, x, node, node if cast is None else cast]
        inputs = [*(total.inputs if total is not None else [source]), gamma, beta]
        fused = self._new(FusedLayerNorm(op.epsilon, kind, total is not None), inputs, result, node, parts)
        added = [fused]
        for index, item in items.items():
            added.append(self._new(TupleGetItem(index), [fused], elements[index], item, ()))
            self.replaced[cast if index == 0 and cast is not None else item] = added[-1]
        if total is not None:
            added.append(self._new(TupleGetItem(3), [fused], total.type, total, ()))
            self.replaced[total] = added[-1]
            self.replaced[node] = fused
        # A sum that is normalised stands where the sum stood: others may read it before the norm.
        self.made[node if total is None else total] = added

    def _sum_of_two(self, value: Value) -> Node | None:
        """The node of a sum of two tensors of its own type, unless it is part of something else."""
        if not isinstance(value, Node) or not isinstance(value.op, Add) or value in self.made or value in self.replaced:
            return None
        return value if len(value.inputs) == 2 and all(v.type == value.type for v in value.inputs) else None

    def _backward(self, node: Node, op: LayerNormGrad) -> None:
        dout, x, mean, variance, gamma = node.inputs
        if not _last_only(op.begin_norm_axis, x) or gamma.shape != x.shape[-1:] or node in self.results:
            return
        siblings = self._readers(dout)
        scale = next((user for user in siblings if self._is_gamma_gradient(user, node)), None)
        shift = next((user for user in siblings if _sums_columns(user, gamma.type)), None)
        if scale is None or shift is None or scale in self.results or shift in self.results:
            return
        sources = [_before_cast(value, gamma) for value in (dout, x)]
        last, parts = node, [dout, x, node, scale, shift]
        cast = self._only_cast(node)
        if cast is not None:
            last = cast
            parts.append(cast)
        kind = last.tensor_type.dtype
        inputs: list[Value] = [*sources, mean, variance, gamma]
        total, other = self._sum_with_one(last, [scale, shift])
        if total is not None and other is not None:
            inputs.append(other)
            parts.append(total)
        # The results must stand before all who read them, and all operands before the fused node.
        at = last if total is None else total
        first_read = min((self.place[u] for v in (scale, shift) for u in self._readers(v)), default=len(self.place))
        at = node if first_read <= self.place[at] else at
        if total is not None and at is node:
            inputs.pop()
            parts.pop()
            total = None
        if first_read <= self.place[node] or any(self.place.get(v, -1) >= self.place[at] for v in inputs):
            return
        result = TupleType((TensorType(kind, x.shape), gamma.tensor_type, gamma.tensor_type))
        made = self._new(FusedLayerNormGrad(op.epsilon, kind, total is not None), inputs, result, node, parts)
        added = [made]
        for index, (old, type) in enumerate(zip((total or last, scale, shift), result.elements, strict=True)):
            added.append(self._new(TupleGetItem(index), [made], type, old, ()))
            self.replaced[old] = added[-1]
        self.made[at] = added
        self.replaced.setdefault(node, added[1])

    # What may be joined

    def _readers(self, value: Value) -> list[Node]:
        return [user for user, _ in self.users.get(value, ())]

    def _only_cast(self, value: Node | None) -> Node | None:
        """The one reader of a value, where it is a conversion to a half."""
        readers = [] if value is None or value in self.results else self._readers(value)
        if len(readers) != 1 or not isinstance(readers[0].op, Cast) or readers[0].tensor_type.dtype.itemsize != 2:
            return None
        return readers[0] if readers[0].tensor_type.dtype.is_float else None

    def _is_gamma_gradient(self, user: Node, node: Node) -> bool:
        op = user.op
        if not isinstance(op, LayerNormGammaGrad) or not isinstance(node.op, LayerNormGrad):
            return False
        same = user.inputs == node.inputs[:4] and op.epsilon == node.op.epsilon
        return same and _last_only(op.begin_params_axis, node.inputs[1])

    def _sum_with_one(self, value: Node, before: list[Node]) -> tuple[Node | None, Value | None]:
        """(the sum, the other operand) where a value's one reader adds one more tensor to it."""
        readers = self._readers(value)
        if len(readers) != 1 or value in self.results or readers[0] in self.made or readers[0] in self.replaced:
            return None, None
        total = readers[0]
        if not isinstance(total.op, Add | AddN) or len(total.inputs) != 2 or total.type != value.type:
            return None, None
        other = total.inputs[0] if total.inputs[1] is value else total.inputs[1]
        if other is value or other.type != value.type or other in before:
            return None, None
        return total, other

    def _new(self, op: Op, inputs: list[Value], type: Type, like: Node, parts: Sequence[Value]) -> Node:
        made = Node(op, inputs, type, like.name, like.instance, like.scope, like.frames, like.phase)
        made.attrs = dict(like.attrs)
        members = [part for part in parts if isinstance(part, Node) and part.phase == like.phase]
        if members:
            made.attrs["fused"] = tuple(dict.fromkeys(member.label for member in members))
        return made


def _before_cast(value: Value, like: Value) -> Value:
    """What a widening conversion to the element type of `like` reads, else the value itself."""
    if isinstance(value, Node) and isinstance(value.op, Cast):
        source = value.inputs[0].tensor_type.dtype
        if source.is_float and source.itemsize < like.tensor_type.dtype.itemsize:
            return value.inputs[0]
    return value


def _last_only(axis: int, x: Value) -> bool:
    rank = len(x.shape)
    return rank > 1 and axis in (-1, rank - 1) and fits(x.shape[-1])


def _sums_columns(node: Node, wanted: Type) -> bool:
    """Whether a node sums all dimensions but the last."""
    op = node.op
    if not isinstance(op, ReduceSum) or node.type != wanted:
        return False
    rank = len(node.inputs[0].shape)
    return sorted(op.axes(rank)) == list(range(rank - 1))
