"""Sums of products in Einstein notation."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import ops
from mspc.mindspore_api.ops.einsum_plan import einsum_equation, einsum_plan
from mspc.mindspore_api.ops.function.array_func import in_shape, require_tensors


def einsum(equation: Any, *operands: Any) -> Any:
    """Return the sum of products given by an equation in Einstein notation: `einsum("ij,jk->ik", x, y)`. Raise
    ValueError if the equation does not fit the tensors."""
    if not isinstance(equation, str):
        given = (equation, *operands)
        pairs = len(given) // 2 * 2
        equation, operands = einsum_equation(given[1:pairs:2], given[pairs:]), given[:pairs:2]
    require_tensors("einsum", operands)
    plan = einsum_plan(equation, [x.shape for x in operands])
    total = _prepared(operands[0], plan.operands[0])
    for i in range(len(plan.products)):
        step = plan.products[i]
        left = _arranged(total, step.left_order, step.left_shape)
        right = _arranged(_prepared(operands[i + 1], plan.operands[i + 1]), step.right_order, step.right_shape)
        total = in_shape(_multiplied(left, right, step.is_matrix), step.shape)
    return _arranged(total, plan.order, plan.shape)


def _prepared(x: Any, how: Any) -> Any:
    x = ops.Squeeze(how.dropped)(x) if how.dropped else x
    for first, second in how.diagonals:
        x = ops.diagonal(x, 0, first, second)
    return ops.ReduceSum()(x, how.summed) if how.summed else x


def _multiplied(left: Any, right: Any, is_matrix: bool) -> Any:
    if not is_matrix:
        return ops.Mul()(left, right)
    return ops.MatMul()(left, right) if len(left.shape) == 2 else ops.BatchMatMul()(left, right)


def _arranged(x: Any, order: Any, shape: Any) -> Any:
    return in_shape(x if order == tuple(range(len(order))) else ops.Transpose()(x, order), shape)
