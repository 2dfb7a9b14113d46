"""These are discrete cosine transforms of type 2, orthonormal, along dimensions that are not sharded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import FLOAT32, DType, TensorType
from mspc.ops.math.frequencies import FitSizes
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.ops.operator_arguments import axis_in, describe, ints_of, plain, require_elements, split_call
from mspc.sharding.rules import factor_names, sized


def cosines(xp: Any, points: int) -> Any:
    """The orthonormal matrix of the transform, [frequency, place], in Float64: sqrt(2 / n) cos(pi (2 j + 1) k / (2 n)),
    the row of frequency 0 divided by sqrt(2)."""
    places, frequencies = xp.arange(points), xp.arange(points)[:, None]
    matrix = xp.sqrt(2 / points) * xp.cos(xp.pi * (2 * places + 1) * frequencies / (2 * points))
    matrix[0] /= xp.sqrt(xp.float64(2))
    return matrix


class DCTN(Op):
    """The cosine transform along `dim` (() for all dimensions, or for the last ones where `s` says how many), each
    truncated or filled up with zeros to the size in `s` (() for those of the operand) first.

    Called as `DCTN()(x, type, s, axes, norm)`; MindSpore has type 2 and the norm "ortho" alone. Complex numbers are
    transformed part by part. Class attributes: given: names of a user's arguments. inverse: which way.
    """

    s: tuple[int, ...] = ()
    dim: tuple[int, ...] = ()
    takes_complex = True
    linear_in = (0,)
    given: ClassVar[tuple[str, ...]] = ("type", "s", "axes", "norm")
    default_dim: ClassVar[tuple[int, ...]] = ()
    inverse: ClassVar[bool] = False
    samples = (
        sample((2, 4, 3)),
        sample((4, 2, 3), s=(6, 2), dim=(0, 2)),
        sample((4, 3), s=(5,), dtypes=("Complex128",), gradient=False),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, self.given, optional=4)
        kind, size, dim, norm = (plain(found.get(name)) for name in self.given)
        if kind not in (None, 2):
            raise MspcError(f"{self.name}: type is {describe(kind)}, not 2")
        if norm not in (None, "ortho"):
            raise MspcError(f"{self.name}: norm is {describe(norm)}, not 'ortho'")
        op = replace(
            self,
            s=() if size is None else ints_of(self.name, self.given[1], size),
            dim=self.default_dim if dim is None else ints_of(self.name, self.given[2], dim),
        )
        return op, tensors

    def sizes(self, shape: Sequence[int]) -> dict[int, int]:
        """How many points the transform has, by dimension.

        Raises:
            MspcError: a dimension is not there, named twice, empty, or without a size, or a size is below 1.
        """
        rank = len(shape)
        dims = self.dim or (range(rank - len(self.s), rank) if self.s else range(rank))
        axes = [axis_in(self.name, d, rank) for d in dims]
        wanted = self.s or [shape[axis] for axis in axes]
        require_elements(self.name, shape, axes, "frequencies")
        if len(set(axes)) != len(axes) or len(wanted) != len(axes) or not axes or min(wanted) < 1:
            raise MspcError(
                f"{self.name}: {self.given[1]} {tuple(wanted)} and {self.given[2]} {tuple(dims)} must be a size of at "
                f"least 1 for each of some dimensions"
            )
        return dict(zip(axes, wanted, strict=True))

    def rule(self, x: TensorType) -> str:
        rank = len(x.shape)
        names = factor_names(2 * rank)
        left, right = list(names[:rank]), list(names[:rank])
        for axis, size in self.sizes(x.shape).items():
            for side, name, n in ((left, names[axis], x.shape[axis]), (right, names[rank + axis], size)):
                token = sized(name, n)
                side[axis] = token if token == "1" else f"{token}!"
        return f"{' '.join(left)} -> {' '.join(right)}"

    def result_dtype(self, *types: TensorType) -> DType:
        kind = types[0].dtype
        return kind if kind.has_gradient and kind.itemsize > 2 else FLOAT32

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        sizes = self.sizes(x.shape)
        axes = tuple(sizes)
        back = DCTN if self.inverse else IDCTN
        dx = b.emit(back(tuple(sizes.values()), axes), dout)
        return (b.emit(FitSizes(axes, tuple(x.shape[axis] for axis in axes)), dx),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        sizes = self.sizes(x.shape)
        x = FitSizes(tuple(sizes), tuple(sizes.values())).run(be, x)
        wide = x.astype(xp.complex128 if x.dtype.kind == "c" else xp.float64)
        for axis, points in sizes.items():
            matrix = cosines(xp, points)
            wide = xp.moveaxis(xp.tensordot(wide, matrix.T if not self.inverse else matrix, (axis, 0)), -1, axis)
        kind = x.dtype if x.dtype.kind in "fc" and x.dtype.itemsize > 2 else xp.float32
        return wide.astype(kind)


class IDCTN(DCTN):
    """The inverse of `DCTN`."""

    inverse = True
    samples = DCTN.samples


class DCT(DCTN):
    """The cosine transform along one dimension, by default the last. Called as `DCT()(x, type, n, axis,
    norm)`."""

    given = ("type", "n", "axis", "norm")
    default_dim = (-1,)
    samples = (
        sample((4, 6), dim=(-1,)),
        sample((4, 6), s=(5,), dim=(0,)),
        sample((4, 3), dim=(1,), dtypes=("Complex128",), gradient=False),
    )


class IDCT(DCT):
    """The inverse of `DCT`."""

    inverse = True
    samples = DCT.samples
