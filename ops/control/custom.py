"""Gradients that the script gives."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from mspc.ir.graph import Builder, Node, Value
from mspc.ir.types import TupleType, Type
from mspc.ops.op import Gradients, NotDifferentiable, Op


class GradientPlaceholder(Op):
    """A placeholder for the gradient of a result while the operators that compute the script's own gradient are
    read."""

    type: Any = None
    takes_complex = True
    bprop = NotDifferentiable("it is gone before gradients are taken")

    def infer(self, *types: Any) -> Type:
        return self.type


class OwnGradient(Op):
    """The first `results` operands, whose gradient the script gives. After them come the values that they were computed
    from, a placeholder for each result's gradient, and the gradients that the script computes from these, one for each
    of those values. The pass `grad` puts the operators in place and removes this one.

    inner: the number of (placeholder, gradient) pairs after these, all placeholders first. The placeholders are those
        of an OwnGradient that comes earlier in the graph, whose gradients are replaced: they may then depend on the
        gradients of both, as those of a backward hook of a cell do.
    """

    results: int = 1
    sources: int = 1
    inner: int = 0
    takes_complex = True

    def infer(self, *types: Any) -> Type:
        return TupleType(types[: self.results])

    def bprop(self, b: Builder, *values: Any) -> Gradients:
        *inputs, _, douts = values
        first = self.results + self.sources
        placeholders, written = inputs[first : first + self.results], inputs[first + self.results :]
        own, pairs = written[: self.sources], written[self.sources :]
        stands_for: dict[Value, Value] = {}
        if placeholders[0] in b.inner_gradients:
            by_placeholder, outer = b.inner_gradients.pop(placeholders[0])
            own = [by_placeholder[value] for value in own]
            stands_for.update(outer)
        for placeholder, result, dout in zip(placeholders, inputs, douts, strict=False):
            if dout is None:
                type = result.tensor_type
                dout = b.constant(np.zeros(type.shape, type.dtype.numpy), type.dtype)
            stands_for[placeholder] = dout
        grads = [_copied(b, value, stands_for) for value in own]
        if self.inner:
            by_placeholder = dict(zip(pairs[: self.inner], pairs[self.inner :], strict=True))
            b.inner_gradients[pairs[0]] = by_placeholder, stands_for
        return (*[None] * self.results, *grads, *[None] * (self.results + self.sources + 2 * self.inner))


def _copied(b: Builder, value: Value, stands_for: dict[Value, Value]) -> Value:
    """Return `value` recomputed with placeholders replaced; values that do not depend on placeholders are not
    copied."""
    order: list[Node] = []
    depends: dict[Value, bool] = dict.fromkeys(stands_for, True)
    waiting = [value]
    while waiting:
        node = waiting[-1]
        if node in depends or not isinstance(node, Node):
            depends.setdefault(node, False)
            waiting.pop()
            continue
        unknown = [operand for operand in node.inputs if operand not in depends]
        if unknown:
            waiting += unknown
            continue
        depends[node] = any(depends[operand] for operand in node.inputs)
        if depends[node]:
            order.append(node)
    for node in order:
        inputs = [stands_for.get(operand, operand) for operand in node.inputs]
        if node.regions:
            from mspc.ops.control.regions import RegionOp, emit_regions  # late: few networks have regions

            copy = emit_regions(b, cast(RegionOp, node.op), inputs, node.regions, node.name)
        else:
            copy = b.emit(cast(Op, node.op), *inputs, name=node.name, instance=node.instance)
        copy.in_strategy, copy.out_strategy, copy.attrs = node.in_strategy, node.out_strategy, dict(node.attrs)
        stands_for[node] = copy
    return stands_for.get(value, value)
