"""Joins LayerNorm with the conversions around it, and its three gradients into one operator that reads memory once.

Input:  %1 = Cast(%x); %2 = LayerNorm(%1, %g, %b); %4 = Cast(TupleGetItem(%2)); in the backward graph
        LayerNormGrad(%d, %1, ...), LayerNormGammaGrad(%d, %1, ...), ReduceSum(%d) of %d = Cast(%dy)
Output: %2 = FusedLayerNorm(%x, %g, %b) {dst_type: BFloat16} and FusedLayerNormGrad(%dy, %x, ...), a tuple of three.

Only norms of the last dimension, of lengths that the kernels take. Sums as residual connections make them are joined
too: of two tensors whose sum is normalised, of the gradient in x and one other tensor, and of two that are the gradient
of the norm's result. On GPUs `split_norm` takes LayerNorm apart before, and the gradients are left.
"""

from __future__ import annotations

from collections.abc import Iterable

from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import reshapes
from mspc.ops.fused.norms import FusedLayerNorm, FusedLayerNormGrad
from mspc.ops.math.arithmetic import Add, AddN
from mspc.ops.nn.norm import LayerNorm, LayerNormGammaGrad, LayerNormGrad
from mspc.ops.tensor.reshape import Cast, ReduceSum, Reshape
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.rewriter import Rewriter, fused, node_like, successor


class FuseNorm(Pass):
    def run(self, graph: Graph) -> bool:
        if not _Norms(graph).run():
            return False
        remove_dead(graph)  # conversions that nobody reads any more
        return True


class _Norms(Rewriter):
    """One walk over the nodes: a norm and its gradients take in the operators around them."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.place: dict[Value, int] = {node: i for i, node in enumerate(graph.nodes)}

    def run(self) -> bool:
        for node in self.graph.nodes:
            if isinstance(node.op, LayerNorm):
                self._forward(node, node.op)
            elif isinstance(node.op, LayerNormGrad):
                self._backward(node, node.op)
        return self.apply()

    def _forward(self, node: Node, op: LayerNorm) -> None:
        x, gamma, beta = node.inputs
        if not _last_only(op.begin_norm_axis, x) or not _last_only(op.begin_params_axis, x) or node in self.results:
            return
        readers = self.readers(node)
        items = {user.op.index: user for user in readers if isinstance(user.op, TupleGetItem)}
        if len(items) < len(readers) or node.attrs.get("unused"):
            return
        source = _before_cast(x, gamma)
        y = items.get(0)
        cast = self._only_cast(y)
        total = source if isinstance(source, Node) and isinstance(source.op, Add) and not self.taken(source) else None
        if total is not None and (
            len(total.inputs) != 2 or any(v.type != total.type for v in total.inputs)
            or any(self.place.get(v, -1) > self.place[total] for v in (gamma, beta))
        ):  # fmt: skip
            total = None
        if source is x and cast is None and total is None:
            return
        assert isinstance(node.type, TupleType)
        kind = (element_types(node.type)[0] if cast is None else cast.tensor_type).dtype
        elements = (TensorType(kind, x.shape), *node.type.elements[1:])
        if total is not None:
            elements = (*elements, total.tensor_type)
        absorbed = [value for value, is_in in ((total, total is not None), (x, source is not x)) if is_in and value]
        parts = [*absorbed, node, *([] if cast is None else [cast])]
        inputs = [*(total.inputs if total is not None else [source]), gamma, beta]
        fused_op = FusedLayerNorm(op.epsilon, kind, total is not None)
        made = fused(fused_op, inputs, TupleType(elements), node, node, _labels(node, parts))
        added = [made]
        for index, item in items.items():
            added.append(successor(made, index, item))
            self.replace(cast if index == 0 and cast is not None else item, added[-1])
        if total is not None:
            added.append(successor(made, 3, total))
            self.replace(total, added[-1])
        self.gone.add(node)
        # A sum that is normalised takes the place of the sum: others may read it before the norm.
        self.put(node if total is None else total, added)

    def _backward(self, node: Node, op: LayerNormGrad) -> None:
        dout, x, mean, variance, gamma = node.inputs
        if not _last_only(op.begin_norm_axis, x) or gamma.shape != x.shape[-1:] or node in self.results:
            return
        siblings = self.readers(dout)
        scale = next((user for user in siblings if self._is_gamma_gradient(user, node)), None)
        shift = next((user for user in siblings if _sums_columns(user, gamma.type)), None)
        if scale is None or shift is None or scale in self.results or shift in self.results:
            return
        views: list[Node] = []
        terms = self._two_terms(dout, [node, scale, shift], gamma)
        sources = [_before_view(value, gamma, views) for value in ((terms or (dout,))[0], x)]
        absorbed = [value for value, source in zip((dout, x), sources, strict=True) if source is not value]
        last, parts = node, [*absorbed, node, scale, shift]
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
        if terms is not None:
            inputs.append(_before_view(terms[1], gamma, views))
        # The results must come before all who read them, and all operands before the fused node.
        at = last if total is None else total
        first_read = min((self.place[u] for v in (scale, shift) for u in self.readers(v)), default=len(self.place))
        at = node if first_read <= self.place[at] else at
        if total is not None and at is node:
            del inputs[5]
            parts.pop()
            total = None
        if first_read <= self.place[node] or any(self.place.get(v, -1) >= self.place[at] for v in inputs):
            return
        result = TupleType((TensorType(kind, x.shape), gamma.tensor_type, gamma.tensor_type))
        fused_op = FusedLayerNormGrad(op.epsilon, kind, total is not None, terms is not None)
        made = fused(fused_op, inputs, result, node, node, _labels(node, parts))
        added = [*views, made]
        for index, old in enumerate((total or last, scale, shift)):
            added.append(successor(made, index, old))
            self.replace(old, added[-1])
        self.put(at, added)
        self.gone.update((node, last))

    # What may be joined

    def _only_cast(self, value: Node | None) -> Node | None:
        """Return the only reader of a value if it is a conversion to a half."""
        cast = None if value is None else self.only_reader(value)
        if cast is None or not isinstance(cast.op, Cast):
            return None
        kind = cast.tensor_type.dtype
        return cast if kind.is_float and kind.itemsize == 2 else None

    def _two_terms(self, dout: Value, readers: list[Node], gamma: Value) -> tuple[Value, Value] | None:
        """Return the two terms of a gradient that nothing else reads, or None."""
        if not isinstance(dout, Node) or not isinstance(dout.op, Add | AddN) or len(dout.inputs) != 2:
            return None
        if self.taken(dout) or dout in self.results or not set(self.readers(dout)).issubset(readers):
            return None
        first, second = dout.inputs
        same = first.type == second.type == dout.type and dout.tensor_type.dtype == gamma.tensor_type.dtype
        return (first, second) if same else None

    def _is_gamma_gradient(self, user: Node, node: Node) -> bool:
        op = user.op
        if not isinstance(op, LayerNormGammaGrad) or not isinstance(node.op, LayerNormGrad):
            return False
        same = user.inputs == node.inputs[:4] and op.epsilon == node.op.epsilon
        return same and _last_only(op.begin_params_axis, node.inputs[1])

    def _sum_with_one(self, value: Node, before: list[Node]) -> tuple[Node | None, Value | None]:
        """Return (sum, other operand) if the only reader of a value adds one more tensor to it."""
        total = self.only_reader(value)
        if total is None or self.taken(total):
            return None, None
        if not isinstance(total.op, Add | AddN) or len(total.inputs) != 2 or total.type != value.type:
            return None, None
        other = total.inputs[0] if total.inputs[1] is value else total.inputs[1]
        if other is value or other.type != value.type or other in before:
            return None, None
        return total, other


def _labels(norm: Node, parts: Iterable[Value]) -> list[str]:
    return [part.label for part in parts if isinstance(part, Node) and part.phase == norm.phase]


def _before_cast(value: Value, like: Value) -> Value:
    """Return the operand of a widening conversion to the element type of `like`, else the value itself."""
    if isinstance(value, Node) and isinstance(value.op, Cast):
        source = value.inputs[0].tensor_type.dtype
        if source.is_float and source.itemsize < like.tensor_type.dtype.itemsize:
            return value.inputs[0]
    return value


def _before_view(value: Value, like: Value, views: list[Node]) -> Value:
    """Do as `_before_cast`, also for a conversion read in another shape: its operand in that shape, a new node in
    `views`."""
    shown = value.inputs[0] if isinstance(value, Node) and reshapes(value.op) else value
    source = _before_cast(shown, like)
    if source is shown:
        return value
    if shown is value:
        return source
    assert isinstance(value, Node)
    views.append(node_like(value, Reshape(value.shape), [source], source.tensor_type.with_shape(value.shape)))
    return views[-1]


def _last_only(axis: int, x: Value) -> bool:
    from mspc.ops.cuda.norms import fits  # late: only where there is a norm

    rank = len(x.shape)
    return rank > 1 and axis in (-1, rank - 1) and fits(x.shape[-1])


def _sums_columns(node: Node, wanted: Type) -> bool:
    op = node.op
    if not isinstance(op, ReduceSum) or node.type != wanted:
        return False
    rank = len(node.inputs[0].shape)
    return sorted(op.axes(rank)) == list(range(rank - 1))
