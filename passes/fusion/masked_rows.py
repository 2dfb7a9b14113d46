"""Rows of scores whose keys are all hidden: where there can be some, and the graph of what they give.

Written out, such a row attends to all keys alike where a mask puts a number in the place of scores, and is NaN where
scores become minus infinity. The fused operator gives zeros there, or on a GPU what its kernel makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import numpy as np

from mspc.analysis.integer_ranges import BOUNDS, IntegerRange, bounds_of, note_bounds
from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.iterative import iterative
from mspc.ir.types import BOOL, TensorType
from mspc.ops.bases import Elementwise
from mspc.ops.math.arithmetic import Equal, Greater, GreaterEqual, Less, LessEqual, LogicalNot, Mul, Select
from mspc.ops.math.mint import RepeatInterleaveInt
from mspc.ops.math.reduce import ReduceAll, ReduceAny, ReduceMean
from mspc.ops.op import Op
from mspc.ops.tensor.broadcast import BroadcastTo
from mspc.ops.tensor.creation import Fill, Ones, Range, Tril, Triu, Zeros
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import Cast, ExpandDims, Reshape, Squeeze
from mspc.passes.cleanup.simplify import Compiling
from mspc.passes.fusion.causal_masks import causal_mask_of

ROWS_HOLD = "rows_hold"
"""The attribute of a Bool constant: whether every row of its last dimension holds a False, and whether a True."""
LARGEST = 1 << 22
"""Elements up to which a mask is computed from constants to look for rows."""
SMALL = -1000.0
"""A number above it that is added to scores hides no key beside a mask, which puts MASKED or less in their place."""
MADE = Fill | Ones | Zeros | Range
MOVED = Reshape | ExpandDims | BroadcastTo | Squeeze | Transpose


def note_rows(graph: Graph, constants: Mapping[str, Any]) -> None:
    """Write the attribute `rows_hold` of the graph's Bool constants, and the bounds of what loops carry; `constants`
    holds the constants' elements by name."""
    note_bounds(graph)
    for parameter in graph.parameters:
        if parameter.kind != "constant" or parameter.tensor_type.dtype != BOOL or parameter.name not in constants:
            continue
        rows = np.atleast_1d(np.asarray(constants[parameter.name]))
        holds = bool((~rows).any(-1).all()), bool(rows.any(-1).all())
        if any(holds):
            parameter.attrs[ROWS_HOLD] = holds


def forget_rows(graph: Graph) -> bool:
    """Take away the attribute `rows_hold`, which does not hold for a slice, and the bounds of integers; True where
    there was one."""
    attrs = [parameter.attrs for parameter in graph.parameters]
    return any([each.pop(name, None) is not None for each in attrs for name in (ROWS_HOLD, BOUNDS)])


@iterative
def every_row_holds(mask: Value, wanted: bool) -> Generator[Any, bool, bool]:
    """Whether the graph shows that every row of a Bool tensor holds `wanted` at every step."""
    triangle = causal_mask_of(mask)
    if triangle is not None and triangle.diagonal is not None:
        queries, keys = mask.shape[-2:]
        near, far = triangle.diagonal >= 0, triangle.diagonal < keys - queries
        return bool((near and triangle.near == wanted) or (far and triangle.far == wanted))
    if isinstance(mask, Parameter):
        return mask.attrs.get(ROWS_HOLD, (False, False))[wanted]
    if isinstance(mask, Node) and isinstance(mask.op, LogicalNot):
        return (yield mask.inputs[0], not wanted)
    if isinstance(mask, Node) and isinstance(mask.op, Reshape | ExpandDims | BroadcastTo):
        before = mask.inputs[0]
        if before.shape and before.shape[-1] == mask.shape[-1] and (yield before, wanted):
            return True
    if isinstance(mask, Node) and isinstance(mask.op, Greater | GreaterEqual | Less | LessEqual):
        if _first_holds(mask.op, *mask.inputs) is wanted:
            return True
    elements = elements_of(mask)
    return elements is not None and bool((elements == wanted).any(-1).all())


def _first_holds(op: Op, left: Value, right: Value) -> bool | None:
    """What comparing two tensors gives for the first element of every row, None where it may be either."""
    if isinstance(op, Less | LessEqual):
        left, right = right, left
    above, below = _firsts(left), _firsts(right)
    if above is None or below is None:
        return None
    equal = isinstance(op, GreaterEqual | LessEqual)
    if above.low > below.high or (equal and above.low == below.high):
        return True
    return False if above.high < below.low or (not equal and above.high == below.low) else None


@iterative
def _firsts(value: Value) -> Generator[Any, IntegerRange | None, IntegerRange | None]:
    """The bounds of the first elements of rows; those of all elements where no more is known."""
    if isinstance(value, Node) and isinstance(value.op, Range) and value.op.dtype.is_integer and value.op.count < 0:
        return IntegerRange(int(value.op.start), int(value.op.start))
    if isinstance(value, Node) and isinstance(value.op, Reshape | ExpandDims | BroadcastTo):
        before = value.inputs[0]
        if before.shape and before.shape[-1] == value.shape[-1]:
            return (yield (before,))
    return bounds_of(value)


@iterative
def elements_of(value: Value) -> Generator[Any, Any, Any]:
    """The elements of a value that is made of constants alone; None where it is not, or is large."""
    if isinstance(value, Constant):
        return value.value
    if not isinstance(value, Node) or not isinstance(value.type, TensorType) or value.type.size > LARGEST:
        return None
    op = value.op
    if not isinstance(op, Elementwise | MADE | MOVED | Tril | Triu) or op.has_side_effect:
        return None
    inputs: list[Any] = []
    for operand in value.inputs:
        inputs.append((yield (operand,)))
        if inputs[-1] is None:
            return None
    with np.errstate(all="ignore"):
        return np.asarray(op.kernel(Compiling())(*inputs))


def may_be_infinite(shift: Value) -> bool:
    """Whether what is added to scores may be minus infinity: such numbers are written, or it is fed as it is."""
    dtype = shift.tensor_type.dtype.numpy
    with np.errstate(over="ignore"):
        return any(
            leaf.kind == "input" and straight
            if isinstance(leaf, Parameter)
            else np.asarray(_least(leaf)).astype(dtype) == -math.inf
            for leaf, straight in _leaves(shift)
        )


def may_hide(shift: Value) -> bool:
    """Whether what is added to scores may be SMALL or less, so that it hides keys."""
    return any(
        leaf.kind != "parameter" if isinstance(leaf, Parameter) else _least(leaf) <= SMALL for leaf, _ in _leaves(shift)
    )


def _least(leaf: Value) -> float:
    if isinstance(leaf, Constant):
        return float(np.min(leaf.value)) if leaf.value.size else 0.0
    return float(leaf.op.value) if isinstance(leaf, Node) and isinstance(leaf.op, Fill) else 0.0


def _leaves(value: Value) -> Iterator[tuple[Value, bool]]:
    """(floating-point numbers of which a tensor is made element by element, whether they are only moved and cast)."""
    seen: set[tuple[Value, bool]] = set()
    waiting = [(value, True)]
    while waiting:
        at, straight = item = waiting.pop()
        if item in seen or not isinstance(at.type, TensorType) or not at.type.dtype.is_float:
            continue
        seen.add(item)
        if isinstance(at, Node) and isinstance(at.op, Elementwise | MOVED | Tril | Triu):
            straight = straight and not (isinstance(at.op, Elementwise) and not isinstance(at.op, Cast | Select))
            waiting += [(operand, straight) for operand in at.inputs]
        else:
            yield item


def with_hidden_rows(b: Builder, out: Value, mask: Value, value: Value, layout: str, filled: float) -> Node:
    """An attention's result in `layout` with the rows replaced that `mask` hides: by the mean of the values where
    scores became the number `filled`, NaN where it is infinite. Gradients follow from the operators."""
    rows = _in_layout(b, b.emit(ReduceAll(axis=(-1,), keep_dims=True), mask), layout)
    sequence = -3 if layout == "BSND" else -2
    mean = b.emit(ReduceMean(axis=(sequence,), keep_dims=True), value)
    heads = {"BNSD": 1, "BSND": 2}.get(layout)
    if heads is not None and 1 < value.shape[heads] < out.shape[heads]:  # each serves several of the query's
        mean = b.emit(RepeatInterleaveInt(out.shape[heads] // value.shape[heads], heads), mean)
    if not math.isfinite(filled):
        # Of heads with such a row alone, as NaN goes into the gradients of all their values.
        some = b.emit(ReduceAny(axis=(sequence,), keep_dims=True), rows) if len(rows.shape) >= -sequence else rows
        mean = b.emit(Mul(), mean, _nan_where(b, some, out))
    return b.emit(Select(), rows, mean, out)


def with_infinite_rows(b: Builder, out: Value, shift: Value, layout: str) -> Node:
    """An attention's result with NaN in the rows of which `shift` is minus infinity throughout, and their gradients."""
    hidden = b.emit(Equal(), shift, b.constant(-math.inf, shift.tensor_type.dtype))
    rows = _in_layout(b, b.emit(ReduceAll(axis=(-1,), keep_dims=True), hidden), layout)
    return b.emit(Mul(), out, _nan_where(b, rows, out))


def _nan_where(b: Builder, rows: Value, out: Value) -> Node:
    dtype = out.tensor_type.dtype
    return b.emit(Select(), rows, b.constant(math.nan, dtype), b.constant(1, dtype))


def _in_layout(b: Builder, rows: Value, layout: str) -> Value:
    """Facts of rows, [batch, heads, queries, 1] from the right, for a result in `layout`."""
    rank = len(rows.shape)
    if layout != "BSND" or rank < 2:
        return rows
    if rank == 2:
        return b.emit(ExpandDims(axis=1), rows)
    return b.emit(Transpose((*range(rank - 3), rank - 2, rank - 3, rank - 1)), rows)
