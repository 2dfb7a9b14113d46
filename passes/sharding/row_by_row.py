"""Tells which operators compute row by row, so that they can do so with other rows."""

from __future__ import annotations

from dataclasses import replace

from mspc.ir.graph import Constant, Node, element_types, operand_types
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Reshape
from mspc.ops.tensor.slicing import StridedSlice


def with_other_rows(node: Node, rows: int, other: int) -> tuple[Op, tuple[int, ...]] | None:
    """(the operator that computes of `other` rows what a node's computes of `rows` rows, operands that have them).

    None where the operator does not compute every row of all results of the same row of operands and of constants
    alone, or draws random numbers.
    """
    op = node.op
    if isinstance(op, TupleGetItem):
        return op, (0,)
    if not isinstance(op, Op) or op.seeds or op.has_side_effect or op.mutates or op.runs_on_host:
        return None
    if isinstance(op, Reshape):
        keeps = node.inputs[0].shape[:1] == node.tensor_type.shape[:1] == (rows,)
        return (replace(op, shape=(other, *node.tensor_type.shape[1:])), (0,)) if keeps else None
    if isinstance(op, StridedSlice):
        return _sliced(op, node, rows, other)
    if type(op).localize is not Op.localize or type(op).expand is not Op.expand:
        return None  # its attributes may hold sizes
    rule = op.parsed_rule(*operand_types(node))
    if not element_types(node.type) or not rule.outputs or not rule.outputs[0] or len(rule.outputs[0][0]) != 1:
        return None
    (factor,) = rule.outputs[0][0]
    if factor in rule.frozen or rule.sizes[factor] != rows:
        return None
    if any(dims[:1] != ((factor,),) or _has(dims[1:], factor) for dims in rule.outputs):
        return None
    found: list[int] = []
    for index, dims in enumerate(rule.inputs):
        if dims[:1] == ((factor,),) and not _has(dims[1:], factor):
            found.append(index)
        elif _has(dims, factor) or not isinstance(node.inputs[index], Constant):
            return None
    return op, tuple(found)


def _has(dims: tuple[tuple[int, ...], ...], factor: int) -> bool:
    return any(factor in dim for dim in dims)


def _sliced(op: StridedSlice, node: Node, rows: int, other: int) -> tuple[Op, tuple[int, ...]] | None:
    """A slice along other dimensions than the first."""
    first = op.cuts(node.inputs[0].shape)[0]
    if first.dim != 0 or not first.takes_all or node.inputs[0].shape[0] != rows:
        return None
    if op.ellipsis_mask & 1 or op.end_mask & 1 or not op.end:
        return op, (0,)
    return replace(op, end=(other, *op.end[1:])), (0,)
