"""This module has functions of arrays as cells."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.nn.cell import Cell
from mspc.api.nn.cell_arguments import flag, positive
from mspc.ir.types import FLOAT32


class ClipByNorm(Cell):
    """x made shorter to clip_norm where it is longer, along `axis`, None for all dimensions. clip_norm is a tensor of
    one value, or of a shape that x broadcasts to."""

    def __init__(self, axis: Any = None) -> None:
        super().__init__()
        self.axis = axis

    def construct(self, x: Any, clip_norm: Any) -> Any:
        wide = ops.cast(x, FLOAT32)
        squares = ops.reduce_sum(wide * wide, () if self.axis is None else self.axis, True)
        # Where x is 0 throughout, the gradient of the root is not requested.
        norm = ops.sqrt(ops.select(squares > 0.0, squares, ops.ones_like(squares)))
        longest = ops.cast(clip_norm, FLOAT32)
        return ops.cast(wide * longest / ops.maximum(norm, longest), x.dtype)


class Norm(Cell):
    """The Euclidean length along `axis`, () for all dimensions."""

    def __init__(self, axis: Any = (), keep_dims: bool = False) -> None:
        super().__init__()
        self.axis = axis
        self.keep_dims = flag("Norm", "keep_dims", keep_dims)

    def construct(self, x: Any) -> Any:
        return ops.sqrt(ops.reduce_sum(ops.square(x), self.axis, self.keep_dims))


class OneHot(Cell):
    """A new dimension of `depth` at `axis`: on_value at the index, off_value elsewhere."""

    def __init__(
        self, axis: int = -1, depth: int = 1, on_value: float = 1.0, off_value: float = 0.0, dtype: Any = FLOAT32
    ) -> None:
        super().__init__()
        self.onehot = ops.OneHot(axis)
        self.depth = positive("OneHot", "depth", depth)
        self.on_value, self.off_value, self.dtype = on_value, off_value, dtype

    def construct(self, indices: Any) -> Any:
        return self.onehot(
            indices, self.depth, ops.scalar_to_tensor(self.on_value, self.dtype),
            ops.scalar_to_tensor(self.off_value, self.dtype),
        )  # fmt: skip


class Tril(Cell):
    """x on and below the diagonal k, 0 above."""

    def construct(self, x: Any, k: int = 0) -> Any:
        return ops.tril(x, k)


class Triu(Cell):
    """x on and above the diagonal k, 0 below."""

    def construct(self, x: Any, k: int = 0) -> Any:
        return ops.triu(x, k)


class Range(Cell):
    """Numbers from start, or from 0 to it where it is given alone, below limit, by delta."""

    def __init__(self, start: Any, limit: Any = None, delta: Any = 1) -> None:
        super().__init__()
        self.start, self.limit, self.delta = (0, start, delta) if limit is None else (start, limit, delta)

    def construct(self) -> Any:
        return ops.arange(self.start, self.limit, self.delta)


class Roll(Cell):
    """x moved round by `shift` along `axis`; of tuples, by each shift along its axis."""

    def __init__(self, shift: Any, axis: Any) -> None:
        super().__init__()
        self.shift, self.axis = shift, axis

    def construct(self, input_x: Any) -> Any:
        return ops.roll(input_x, self.shift, self.axis)


class Moments(Cell):
    """(mean, variance) along `axis`, None for all dimensions."""

    def __init__(self, axis: Any = None, keep_dims: bool | None = None) -> None:
        super().__init__()
        self.axis = () if axis is None else axis
        self.keep_dims = flag("Moments", "keep_dims", False if keep_dims is None else keep_dims)

    def construct(self, x: Any) -> Any:
        wide = ops.cast(x, FLOAT32) if x.dtype != FLOAT32 else x
        mean = ops.reduce_mean(wide, self.axis, True)
        variance = ops.reduce_mean(ops.square(wide - ops.stop_gradient(mean)), self.axis, self.keep_dims)
        if not self.keep_dims:
            mean = ops.reduce_mean(wide, self.axis, False)
        return ops.cast(mean, x.dtype), ops.cast(variance, x.dtype)


class ReduceLogSumExp(Cell):
    """The logarithm of the sum of exponentials along `axis`, () for all, without overflow."""

    def __init__(self, axis: Any, keep_dims: bool = False) -> None:
        super().__init__()
        self.axis, self.keep_dims = axis, flag("ReduceLogSumExp", "keep_dims", keep_dims)

    def construct(self, x: Any) -> Any:
        return ops.logsumexp(x, self.axis, self.keep_dims)


class MatMul(Cell):
    """The matrix product, each operand with its last two dimensions exchanged where its flag says so; leading
    dimensions are batches and broadcast, and a vector is a row on the left and a column on the right."""

    def __init__(self, transpose_x1: bool = False, transpose_x2: bool = False) -> None:
        super().__init__()
        self.transpose_x1 = flag("MatMul", "transpose_x1", transpose_x1)
        self.transpose_x2 = flag("MatMul", "transpose_x2", transpose_x2)

    def construct(self, x1: Any, x2: Any) -> Any:
        if self.transpose_x1 and len(x1.shape) > 1:
            x1 = ops.swapaxes(x1, -1, -2)
        if self.transpose_x2 and len(x2.shape) > 1:
            x2 = ops.swapaxes(x2, -1, -2)
        return ops.matmul(x1, x2)
