"""Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.types import DType, TensorType, complex_of, dtype_of, real_of
from mspc.ops.bases import operator
from mspc.ops.math.arithmetic import scaled
from mspc.ops.math.elementwise import Real
from mspc.ops.op import Gradients, Op, Sample, sample
from mspc.ops.operator_arguments import axis_in, describe, ints_of, plain, require_elements, split_call
from mspc.ops.tensor.moving import Concat, Pad
from mspc.ops.tensor.slicing import first_part, take_part
from mspc.sharding.rules import factor_names, sized


def _resized(shape: Sequence[int], axes: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    found = dict(zip(axes, sizes, strict=True))
    return tuple(found.get(d, n) for d, n in enumerate(shape))


def _fitted(b: Builder, x: Value, axes: tuple[int, ...], sizes: tuple[int, ...]) -> Value:
    """Return x with the dimensions `axes` resized to `sizes`: truncated or zero-padded at their ends."""
    shape = _resized(x.shape, axes, sizes)
    margins = tuple((0, max(0, size - own)) for size, own in zip(shape, x.shape, strict=True))
    return first_part(b, b.emit(Pad(margins), x) if any(map(any, margins)) else x, shape)


def _weighted(b: Builder, x: Value, axis: int, points: int, factor: float) -> Value:
    """Return x with `factor` times those of its frequencies along `axis` that represent two, of a transform of `points`
    real numbers: all but the first and, for an even number of points, the last."""
    twice = (points + 1) // 2
    ends = [end for end in (1, twice, x.shape[axis]) if end <= x.shape[axis]]
    parts = [take_part(b, x, axis, begin, end) for begin, end in pairwise(sorted({0, *ends}))]
    if twice > 1:
        parts[1] = scaled(b, factor, parts[1])
    return b.emit(Concat(axis), *parts)


NORMS = {"backward": "forward", "forward": "backward", "ortho": "ortho"}
"""The norm of the inverse transform, by norm."""
AS_IT_IS = -1
"""The value for the size of the operand's own dimension."""


class Transform(Op, abstract=True):
    """Fourier transform along the dimensions `dim`, each first truncated or zero-padded to the size in `s`. s: one size
    per dimension, -1 for the operand's, () for all of these. dim: () for all dimensions, or with `s` for the last ones.
    Class attributes: takes_real, gives_real: the operand, or the result, is real; the last of `dim` then has the first
    half of the frequencies on the other side. inverse: the direction."""

    s: tuple[int, ...] = ()
    dim: tuple[int, ...] = ()
    norm: str = "backward"
    takes_complex = True
    linear_in = (0,)
    takes_real: ClassVar[bool] = False
    gives_real: ClassVar[bool] = False
    inverse: ClassVar[bool] = False

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("s", "dim", "norm"), optional=3)
        size, dim, norm = (plain(found.get(name)) for name in ("s", "dim", "norm"))
        op = replace(
            self,
            s=() if size is None else ints_of(self.name, "s", size),
            dim=() if dim is None else ints_of(self.name, "dim", dim),
            norm="backward" if norm is None else norm,
        )
        if op.norm not in NORMS:
            known = "', '".join(NORMS)
            raise MspcError(f"{self.name}: norm is {describe(op.norm)}, not one of '{known}'")
        return op, tensors

    def axes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the non-negative dimensions of the transform, in order. Raise MspcError if one is repeated or out of
        range, or `s` has another number of sizes."""
        rank = len(shape)
        dims = self.dim or (range(rank - len(self.s), rank) if self.s else range(rank))
        found = tuple(axis_in(self.name, d, rank) for d in dims)
        if len(set(found)) != len(found) or not found:
            raise MspcError(f"{self.name}: dim {tuple(dims)} must name dimensions, each once")
        if self.s and len(self.s) != len(found):
            raise MspcError(f"{self.name}: s {self.s} must be a size for each of {len(found)} dimensions")
        return found

    def points(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the number of points of the transform along each of `axes`. Raise MspcError if there are none."""
        axes = self.axes(shape)
        own = [shape[axis] for axis in axes]
        if self.gives_real:
            own[-1] = 2 * (own[-1] - 1)
        sizes = tuple(n if wanted == AS_IT_IS else wanted for n, wanted in zip(own, self.s or own, strict=True))
        require_elements(self.name, shape, axes, "frequencies")
        for axis, size in zip(axes, sizes, strict=True):
            if size < 1:
                raise MspcError(f"{self.name}: dimension {axis} would have {size} points")
        return sizes

    def rule(self, input: TensorType) -> str:
        names = factor_names(2 * len(input.shape))
        axes, points = self.axes(input.shape), self.points(input.shape)
        left, right = names[: len(input.shape)], names[: len(input.shape)]
        for place, (axis, size) in enumerate(zip(axes, points, strict=True)):
            half = self.takes_real and place == len(axes) - 1
            result = size // 2 + 1 if half else size
            left[axis] = sized(names[axis], input.shape[axis])
            left[axis] += "!" * (left[axis] != "1")
            right[axis] = sized(names[len(input.shape) + axis], result)
            right[axis] += "!" * (right[axis] != "1")
        return f"{' '.join(left)} -> {' '.join(right)}"

    def check(self, *types: TensorType) -> None:
        if self.takes_real and types[0].dtype.is_complex:
            raise MspcError(f"{self.name}: input 0 is {types[0].dtype}, and must be real", kind=TypeError)

    def result_dtype(self, *types: TensorType) -> DType:
        kind = complex_of(types[0].dtype)
        return real_of(kind) if self.gives_real else kind

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        axes, points = self.axes(x.shape), self.points(x.shape)
        back: type[Transform] = RFFTN if self.gives_real else FFTN if self.inverse else IFFTN
        if self.takes_real and len(axes) == 1:
            # The real part of the inverse transform of half of the frequencies. An inverse transform of several
            # dimensions may assume that these belong to real numbers.
            dout, back = _weighted(b, dout, axes[0], points[0], 0.5), IRFFTN
        elif self.takes_real:
            dout = _fitted(b, dout, axes[-1:], points[-1:])
        dx: Value = b.emit(back(s=points, dim=axes, norm=NORMS[self.norm]), dout)
        if self.gives_real:
            dx = _weighted(b, dx, axes[-1], points[-1], 2.0)
        if not x.tensor_type.dtype.is_complex and dx.tensor_type.dtype.is_complex:
            dx = b.emit(Real(), dx)
        return (_fitted(b, dx, axes, tuple(x.shape[axis] for axis in axes)),)

    def compute(self, xp: Any, x: Any) -> Any:
        axes, points = self.axes(x.shape), self.points(x.shape)
        if x.dtype.kind != "c":
            x = x.astype(real_of(complex_of(dtype_of(x.dtype))).numpy, copy=False)
        if self.gives_real:
            made = xp.fft.irfftn(x, points, axes, self.norm)
        elif self.takes_real:
            made = xp.fft.rfftn(x, points, axes, self.norm)
        else:
            made = (xp.fft.ifftn if self.inverse else xp.fft.fftn)(x, points, axes, self.norm)
        return made


def _samples(*cases: tuple[tuple[int, ...], dict[str, Any]], dtypes: Sequence[str] = ()) -> tuple[Sample, ...]:
    return tuple(sample(shape, dtypes=dtypes, gradient=False, **fields) for shape, fields in cases)


_CASES: Any = (
    ((4, 6), {"dim": (-1,)}),
    ((4, 6), {"s": (5,), "dim": (0,), "norm": "ortho"}),
    ((4, 4, 2), {"s": (3, 5), "dim": (0, 1), "norm": "forward"}),
    ((2, 4, 4), {}),
    ((4, 2, 4), {"s": (4, 7), "dim": (2, 0), "norm": "ortho"}),
)
_OF_COMPLEX, _OF_REAL = _samples(*_CASES, dtypes=("Complex128",)), _samples(*_CASES)

FFTN = operator("FFTN", "The discrete Fourier transform.", Transform, samples=_OF_COMPLEX)
IFFTN = operator(
    "IFFTN", "The inverse of the discrete Fourier transform.", Transform, samples=_OF_COMPLEX, inverse=True
)
RFFTN = operator("RFFTN", "The frequencies from 0 on of real numbers.", Transform, samples=_OF_REAL, takes_real=True)
IRFFTN = operator(
    "IRFFTN", "The real numbers that have these frequencies from 0 on.", Transform,
    samples=_OF_COMPLEX, gives_real=True, inverse=True,
)  # fmt: skip
