"""Runs an operator on the tensors of all ranks at once.

The operator's own kernel does the work; it gets the ranks as dimensions ahead of the tensors' own, by one of these:

- it works element by element, so that NumPy's broadcasting does it;
- a row of `FORMS`, by operator class: the same operator with its axes moved, or on the last two dimensions;
- it says itself that it is several operators (`as_rows`, `as_reductions`), of which each is one of these;
- the first dimension of some operands is a batch (`batches.py`), which every result has, too: ranks become more of it;
- else the kernel runs rank by rank, or only where ranks differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.bases import ArrayFunction, Elementwise
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.fused.grouped_update import GroupedUpdate
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.fused.update import FusedUpdate
from mspc.ops.math.arithmetic import AddN
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.math.reduce import CumSum
from mspc.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxBackward
from mspc.ops.op import Op
from mspc.ops.optim.optimizer import Update
from mspc.ops.tensor.broadcast import BroadcastTo, ReductionOp
from mspc.ops.tensor.creation import Tril, Triu
from mspc.ops.tensor.moving import Concat, Split, Stack, Tile, Transpose
from mspc.ops.tensor.slicing import StridedSlice
from mspc.verify.scale.batches import SAYS_NOTHING, batch_of
from mspc.verify.scale.routed_kernels import BLOCKS
from mspc.verify.scale.spread import (
    aligned,
    block_by_block,
    common_lead,
    mapped,
    own_shape,
    wide_axes,
    widened,
)

Array = Any
Form = Callable[[Any, Any, int, Sequence[Array]], Any]
"""(operator, backend, number of leading dimensions, operands) -> result, with as many leading dimensions."""


def run_on_all(op: Op, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    """The result of an operator that is the same on all ranks. arrays: operands with `depth` leading dimensions, those
    that the operator overwrites with all that any operand has, and writable.

    Raises:
        MspcError: the operands are none that the operator takes.
    """
    if not wide_axes(arrays, depth):
        found = op.kernel(backend)(*(array.reshape(own_shape(array, depth)) for array in arrays))
        if op.mutates and not op.updates_aside:
            return _written(op, arrays, found)
        return mapped(found, lambda made: np.asarray(made).reshape((1,) * depth + np.shape(made)))
    form = _form(type(op))
    if form is not None:
        return form(op, backend, depth, arrays)
    types = [_type(array, depth) for array in arrays]
    lines = _several(op, tuple(types))
    if lines is not None:
        return _run_lines(lines, backend, depth, arrays)
    if not op.mutates and not op.draws:
        batch = batch_of(op, tuple(types))
        if batch is not None:
            return _in_batch(op, backend, depth, arrays, batch)
    return block_by_block(
        lambda *own: run_on_all(op, backend, depth, own),
        arrays, depth, wide_axes(arrays, depth), common_lead(arrays, depth),
    )  # fmt: skip


def _type(array: Array, depth: int) -> TensorType:
    return TensorType(dtype_of(array.dtype), own_shape(array, depth))


def _written(op: Op, arrays: Sequence[Array], found: Any) -> Any:
    """The result of an update: the operands that it overwrites."""
    count = len(found) if isinstance(found, tuple) else 1
    changed = tuple(arrays[i] for i in op.mutates)[:count]
    return changed if isinstance(found, tuple) else changed[0]


# Element by element


def _elementwise(op: Elementwise, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    if op.broadcasts and "{i}" not in op.cuda:
        return op.kernel(backend)(*aligned(arrays, depth))
    return _one_by_one(op, backend, depth, arrays)


def _added(op: AddN, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    lead = common_lead(arrays, depth)
    return op.kernel(backend)(*(widened(array, lead) for array in arrays))


def _one_by_one(op: Op, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    return block_by_block(
        lambda *own: run_on_all(op, backend, depth, own),
        arrays, depth, wide_axes(arrays, depth), common_lead(arrays, depth),
    )  # fmt: skip


def _fused(op: FusedElementwise, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    lines: list[Any] = []
    for step in steps_of(op):
        operands = [(arrays if kind == "x" else lines)[index] for kind, index in step.operands]
        lines.append(run_on_all(step.op, backend, depth, operands))
    results = tuple(lines[index] for index in op.returns)
    return results if len(results) > 1 else results[0]


# Updates


def _update(op: Update, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    rank = arrays[0].ndim - depth
    operands = [
        array.reshape(*array.shape[:depth], *(1,) * rank) if i in op.scalars and array.ndim == depth else array
        for i, array in enumerate(arrays)
    ]
    if isinstance(op, FusedUpdate):
        lines: list[Any] = []
        for step in op.lines():
            read = [(operands if kind == "x" else lines)[index] for kind, index in step.operands]
            lines.append(run_on_all(step.op, backend, depth, read))
        for target, line in zip(operands, op.writes, strict=False):
            target[...] = lines[line]
        made = tuple(operands[: len(op.writes)])
        return made if len(made) > 1 else made[0]
    lead = common_lead(arrays, depth)
    scalars_wide = any(arrays[i].shape[:depth] != (1,) * depth for i in op.scalars)
    if not op.cuda_update or scalars_wide:
        return block_by_block(
            lambda *own: run_on_all(op, backend, depth, own), arrays, depth, wide_axes(arrays, depth), lead
        )
    given = [
        array.reshape(()) if i in op.scalars else array if i in op.mutates else widened(array, lead)
        for i, array in enumerate(arrays)
    ]
    op.run(backend, *given)
    changed = tuple(arrays[i] for i in op.mutates)
    return changed[: op.outputs] if op.outputs > 1 else changed[0]


def _grouped(op: GroupedUpdate, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    found: list[Any] = []
    for operands in op.members(arrays):
        made = run_on_all(op.member, backend, depth, operands)
        found += made if isinstance(made, tuple) else (made,)
    return tuple(found)


# Operators whose axes move


def _along_axis(op: Any, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    rank = arrays[0].ndim - depth
    name = "dim" if hasattr(op, "dim") else "axis"
    axis: Any = getattr(op, name)
    moved = tuple(a % rank + depth for a in axis) if isinstance(axis, tuple) else axis % rank + depth
    lead = common_lead(arrays, depth)
    return replace(op, **{name: moved}).kernel(backend)(*(widened(array, lead) for array in arrays))


def _beside(op: Any, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    lead = common_lead(arrays, depth)
    rank = arrays[0].ndim - depth + isinstance(op, Stack)
    return replace(op, axis=op.axis % rank + depth).kernel(backend)(*(widened(array, lead) for array in arrays))


def _reduced(op: ReductionOp, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    rank = arrays[0].ndim - depth
    axes = op.axes(rank) or tuple(range(rank))
    if not axes:
        return _one_by_one(op, backend, depth, arrays)
    return replace(op, axis=tuple(axis + depth for axis in axes)).kernel(backend)(*arrays)


def _transposed(op: Transpose, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    rank = arrays[0].ndim - depth
    return arrays[0].transpose(*range(depth), *(p % rank + depth for p in op.perm))


def _product(op: MatMul | BatchMatMul, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    return BatchMatMul(op.transpose_a, op.transpose_b).kernel(backend)(*aligned(arrays, depth))


def _fused_product(op: FusedMatMul, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    if op.wide:  # its addend must have the result's shape
        return _one_by_one(op, backend, depth, arrays)
    return op.kernel(backend)(*aligned(arrays, depth))


def _sliced(op: StridedSlice, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    index = op.index()
    index = index if isinstance(index, tuple) else (index,)
    return arrays[0][(*(slice(None),) * depth, *index)]


def _broadcast(op: BroadcastTo, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    found = op.infer(_type(arrays[0], depth))
    assert isinstance(found, TensorType)
    (given,) = arrays
    ahead = len(found.shape) - (given.ndim - depth)
    given = given.reshape(*given.shape[:depth], *(1,) * ahead, *given.shape[depth:])
    return np.broadcast_to(given, (*given.shape[:depth], *found.shape))


def _tiled(op: Tile, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    (given,) = arrays
    ahead = len(op.multiples) - (given.ndim - depth)
    given = given.reshape(*given.shape[:depth], *(1,) * ahead, *given.shape[depth:])
    return np.tile(given, (*(1,) * depth, *op.multiples))


def _as_it_is(op: Op, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    return op.kernel(backend)(*arrays)


FORMS: dict[type[Op], Form] = {
    Elementwise: _elementwise,
    AddN: _added,
    ArrayFunction: _as_it_is,
    FusedElementwise: _fused,
    Update: _update,
    GroupedUpdate: _grouped,
    ReductionOp: _reduced,
    Softmax: _along_axis,
    SoftmaxBackward: _along_axis,
    LogSoftmax: _along_axis,
    LogSoftmaxGrad: _along_axis,
    CumSum: _along_axis,
    Concat: _beside,
    Stack: _beside,
    Split: _along_axis,
    Transpose: _transposed,
    MatMul: _product,
    BatchMatMul: _product,
    FusedMatMul: _fused_product,
    StridedSlice: _sliced,
    BroadcastTo: _broadcast,
    Tile: _tiled,
    Tril: _as_it_is,
    Triu: _as_it_is,
    **BLOCKS,
}


@cache
def _form(kind: type[Op]) -> Form | None:
    if kind.reshapes:
        return _reshaped
    return next((FORMS[base] for base in kind.__mro__ if base in FORMS), None)


def _reshaped(op: Op, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    found = op.infer(_type(arrays[0], depth))
    assert isinstance(found, TensorType)
    return arrays[0].reshape(*arrays[0].shape[:depth], *found.shape)


# Operators that are several


class _Lines:
    """The operators that one is, as a graph."""

    def __init__(self, given: Sequence[Value], nodes: Sequence[Node], results: Sequence[Value]) -> None:
        self.given, self.nodes, self.results = given, nodes, results


@lru_cache(maxsize=4096)
def _several(op: Op, types: tuple[TensorType, ...]) -> _Lines | None:
    if type(op).as_reductions is Op.as_reductions and type(op).as_rows is Op.as_rows:
        return None
    builder = Builder(Graph(""))
    given = [Value(type) for type in types]
    try:
        results = op.as_reductions(builder, *given)
    except (MspcError, NotImplementedError):
        return None
    return _Lines(given, builder.nodes, list(results))


def _run_lines(lines: _Lines, backend: Any, depth: int, arrays: Sequence[Array]) -> Any:
    values: dict[Value, Any] = dict(zip(lines.given, arrays, strict=True))

    def value(of: Value) -> Any:
        return of.value.reshape((1,) * depth + of.value.shape) if isinstance(of, Constant) else values[of]

    for node in lines.nodes:
        assert isinstance(node.op, Op)
        values[node] = run_on_all(node.op, backend, depth, [value(v) for v in node.inputs])
    results = tuple(map(value, lines.results))
    return results if len(results) > 1 else results[0]


# More of a batch

def _in_batch(op: Op, backend: Any, depth: int, arrays: Sequence[Array], batch: tuple[bool, ...]) -> Any:
    rest = [array for array, own in zip(arrays, batch, strict=True) if not own]
    same = SAYS_NOTHING.get(type(op), ())

    def run(*own: Array) -> Any:
        lead = common_lead((a for a, more in zip(own, batch, strict=True) if more), depth)
        ranks = math.prod(lead)
        given = [
            np.ascontiguousarray(widened(a, lead)).reshape(ranks * a.shape[depth], *a.shape[depth + 1 :])
            if more
            else a.reshape(own_shape(a, depth))
            for a, more in zip(own, batch, strict=True)
        ]

        def apart(number: int, made: Array) -> Array:
            if number in same:
                return made.reshape((1,) * depth + made.shape)
            return made.reshape(*lead, made.shape[0] // ranks, *made.shape[1:])

        found = op.kernel(backend)(*given)
        return tuple(map(apart, range(len(found)), found)) if isinstance(found, tuple) else apart(0, found)

    return block_by_block(run, arrays, depth, wide_axes(rest, depth), common_lead(arrays, depth))
