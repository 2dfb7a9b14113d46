"""RmsNorm normalises by the root of the mean square, of rows that may be sharded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.named_layout import NamedLayout
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.control.constraint import constrained
from mspc.ops.control.structural import items
from mspc.ops.cuda.row_kernels import RowPass, Rows
from mspc.ops.cuda.source import Operand
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Add, Mul
from mspc.ops.math.elementwise import Rsqrt, Square
from mspc.ops.math.reduce import ReduceMean
from mspc.ops.nn.norm import NO_SECOND, Gradients, Norm, add_to, matrix, norm_sides, statistics_dtype
from mspc.ops.op import ArrayBackend, Op, RequestedSharding, sample
from mspc.ops.tensor.broadcast import sum_to_shape
from mspc.ops.tensor.cast import as_dtype


class RmsNorm(Norm):
    """x / sqrt(mean(x^2) + epsilon) * gamma and the reciprocal root: a tuple of two.

    The mean is over the dimensions of gamma, the last ones of x. Zhang and Sennrich, arXiv 1910.07467.
    A strategy that shards these makes it several operators, whose mean is a sum over the ranks.
    """

    epsilon: float = 1e-6
    scales = (1,)
    made = (1,)
    samples = (sample((8, 16), (16,)), sample((8, 4, 4), (4, 4)), sample((2, 8, 4), (4,)))

    def rule(self, x: TensorType, gamma: TensorType) -> str:
        begin = len(x.shape) - len(gamma.shape)
        if begin < 0:
            raise MspcError(f"RmsNorm: gamma of shape {gamma.shape} has more dimensions than x of shape {x.shape}")
        full, statistics = norm_sides(len(x.shape), begin)
        return f"{full}, {' '.join(full.split()[begin:])} -> {full}, {statistics}"

    def bprop(self, b: Builder, x: Value, gamma: Value, out: Node, dout: Any) -> Gradients:
        dy, drstd = dout
        _, rstd = items(b, out, 2)
        dtype, kind = x.tensor_type.dtype, rstd.tensor_type.dtype
        dx = dgamma = None
        if dy is not None:
            dx = b.emit(RmsNormGrad(), dy, x, rstd, gamma)
            hat = b.emit(Mul(), as_dtype(b, x, kind), rstd)
            total = sum_to_shape(b, b.emit(Mul(), as_dtype(b, dy, kind), hat), gamma.shape)
            dgamma = as_dtype(b, total, gamma.tensor_type.dtype)
        if drstd is not None:
            count = math.prod(gamma.shape) or 1  # no elements have no shares
            cube = b.emit(Mul(), rstd, b.emit(Mul(), rstd, rstd))
            share = b.emit(Mul(), b.emit(Mul(), drstd, cube), b.constant(-1 / count, kind))
            dx = add_to(b, dx, as_dtype(b, b.emit(Mul(), as_dtype(b, x, kind), share), dtype), x)
        return dx, dgamma

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        x, gamma = inputs
        dims = len(gamma.shape)
        entries = asked.in_strategy or ()
        if len(entries) != 2 or asked.out_strategy is not None:
            return None
        if any(len(_slice_counts(entry)) != len(value.shape) for entry, value in zip(entries, inputs, strict=True)):
            return None  # the pass that checks strategies reports it
        last = _slice_counts(entries[0])[len(x.shape) - dims :]
        if all(shards == 1 for shards in last):
            return None
        _check_same(self.name, entries[0], entries[1], last)
        _check_divides(self.name, entries[0], x.shape)
        row = _replicated_behind(entries[0], len(x.shape) - dims)

        def emit(op: Op, *operands: Value, entry: Any = entries[0], second: tuple[Any, ...] = ()) -> Node:
            node = b.emit(op, *operands)
            node.in_strategy = (entry, *second)
            return node

        dtype = x.tensor_type.dtype
        wide = statistics_dtype(dtype)
        x = as_dtype(b, constrained(b, x, entries[0]), wide)
        gamma = as_dtype(b, constrained(b, gamma, entries[1]), wide)
        axes = tuple(range(len(x.shape) - dims, len(x.shape)))
        mean = emit(ReduceMean(axis=axes, keep_dims=True), emit(Square(), x))
        root = emit(Rsqrt(), emit(Add(), mean, b.constant(self.epsilon, wide), entry=row, second=((),)), entry=row)
        scaled = emit(Mul(), emit(Mul(), x, root, second=(row,)), gamma, second=(entries[1],))
        return as_dtype(b, scaled, dtype), root

    def row_axes(self, *types: TensorType) -> tuple[int, ...]:
        x, gamma = types
        return tuple(range(x.rank - gamma.rank, x.rank))

    def as_rows(self, b: Builder, *inputs: Value) -> Sequence[Value]:
        x, gamma = inputs
        kind = statistics_dtype(x.tensor_type.dtype)
        wide = as_dtype(b, x, kind)
        axes = self.row_axes(x.tensor_type, gamma.tensor_type)
        mean = b.emit(ReduceMean(True, axes), b.emit(Square(), wide))
        root = b.emit(Rsqrt(), b.emit(Add(), mean, b.constant(self.epsilon, kind)))
        scaled = b.emit(Mul(), b.emit(Mul(), wide, root), as_dtype(b, gamma, kind))
        return as_dtype(b, scaled, x.tensor_type.dtype), root

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        x, gamma = inputs
        axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
        rstd = 1 / xp.sqrt(xp.mean(x * x, axis=axes, keepdims=True) + self.epsilon)
        return x * rstd * gamma, rstd

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        x, gamma = inputs
        rows, columns = matrix(x.shape, x.ndim - gamma.ndim)
        stage = RowPass(
            (("squares", "Sum", "x * x"),),
            then=f"const A inverse = 1 / sqrt_of(squares / COLUMNS + (A){self.epsilon});",
        )
        return Rows(
            "rms_norm", rows, columns, dtype_of(x.dtype), (stage,), [Operand("x", x)],
            by_column=[Operand("gamma", gamma)], results=[(out[0], "x * inverse * gamma")],
            row_results=[(out[1], "inverse")],
        ).launch(device)  # fmt: skip


def _slice_counts(entry: Any) -> tuple[int, ...]:
    return entry.strategy if isinstance(entry, NamedLayout) else entry


def _replicated_behind(entry: Any, leading: int) -> Any:
    """A strategy with its first `leading` dimensions alone."""
    if isinstance(entry, NamedLayout):
        return replace(entry, tensor_map=(*entry.tensor_map[:leading], *[-1] * (len(entry.tensor_map) - leading)))
    return (*entry[:leading], *[1] * (len(entry) - leading))


def _check_same(name: str, first: Any, second: Any, last: tuple[int, ...]) -> None:
    """Raise MspcError where gamma is not sharded as the last dimensions of x are."""
    if isinstance(first, NamedLayout) and isinstance(second, NamedLayout):
        same = first.axes[len(first.axes) - len(last) :] == second.axes
    else:
        same = last == _slice_counts(second)
    if not same:
        raise MspcError(
            f"{name}: the last dimensions of input 0 are sharded {last}, but input 1 {_slice_counts(second)}",
            notes=["shard both alike"],
        )


def _check_divides(name: str, entry: Any, shape: Sequence[int]) -> None:
    """Raise MspcError where a strategy does not divide a dimension, once for all operators that would say so."""
    for d, (shards, size) in enumerate(zip(_slice_counts(entry), shape, strict=True)):
        if shards < 1 or size % shards:
            raise MspcError(
                f"{name}: dimension {d} of input 0 is {size}, which {shards} does not divide",
                notes=[f"shard it {', '.join(str(n) for n in range(1, size + 1) if size % n == 0)} ways"],
            )


class RmsNormGrad(Norm):
    """Gradient of RmsNorm in x, of (dout, x, rstd, gamma): rstd (g - y mean(g y)), g = dout gamma and y = x
    rstd.
    """

    linear_in = (0,)
    statistics = (2,)
    scales = (3,)
    bprop = NO_SECOND
    samples = (sample((8, 16), (8, 16), (8, 1), (16,), low=0.1),)

    def rule(self, dout: TensorType, x: TensorType, rstd: TensorType, gamma: TensorType) -> str:
        begin = len(x.shape) - len(gamma.shape)
        full, statistics = norm_sides(len(x.shape), begin)
        return f"{full}, {full}, {statistics}, {' '.join(full.split()[begin:])} -> {full}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        dout, x, rstd, gamma = inputs
        axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
        g = dout * gamma
        y = x * rstd
        y *= be.xp.mean(g * y, axis=axes, keepdims=True)
        g -= y
        g *= rstd
        return g

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        dout, x, rstd, gamma = inputs
        rows, columns = matrix(x.shape, x.ndim - gamma.ndim)
        stage = RowPass((("mean_gx", "Sum", "g * x"),), "g *= gamma; x *= rstd;", "mean_gx /= COLUMNS;")
        return Rows(
            "rms_norm_gradient", rows, columns, dtype_of(x.dtype), (stage,), [Operand("g", dout), Operand("x", x)],
            [Operand("rstd", rstd)], [Operand("gamma", gamma)], [(out, "(g - x * mean_gx) * rstd")],
        ).launch(device)  # fmt: skip
