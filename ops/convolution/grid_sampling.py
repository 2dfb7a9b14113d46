"""GridSampler2D and 3D, and their gradients, read images at places that a grid names.

A grid's last dimension holds one number for every dimension of the image, the last of them first: -1 and 1 are its
ends, the outer edges of the pixels there or, with align_corners, their centres.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.bases import require_float, require_same
from mspc.ops.control.structural import items
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample

Gradients = Sequence[Value | None]
Modes = tuple[str, str]


@dataclass(frozen=True)
class GridDimension:
    """Where a dimension of the image is read: places in pixels, and how much they move with the grid's numbers."""

    places: Any
    slope: Any


class _GridSampler(Op, abstract=True):
    """interpolation_mode: "bilinear" or "nearest". padding_mode: outside of the image are "zeros", its "border", or its
    "reflection".

    Class attributes:
        dims: dimensions of the image.
    """

    interpolation_mode: str = "bilinear"
    padding_mode: str = "zeros"
    align_corners: bool = False
    dims: ClassVar[int] = 2

    def check(self, x: TensorType, grid: TensorType) -> None:
        """Raises MspcError where images and grid do not fit each other or the attributes."""
        if self.interpolation_mode not in ("bilinear", "nearest"):
            raise MspcError(
                f"{self.name}: interpolation_mode must be 'bilinear' or 'nearest', not {self.interpolation_mode!r}"
            )
        if self.padding_mode not in ("zeros", "border", "reflection"):
            raise MspcError(
                f"{self.name}: padding_mode must be 'zeros', 'border' or 'reflection', not {self.padding_mode!r}"
            )
        for what, shape in (("image", x.shape), ("grid", grid.shape)):
            if len(shape) != self.dims + 2:
                raise MspcError(
                    f"{self.name}: the {what} must have {self.dims + 2} dimensions, but its shape is {shape}"
                )
        if grid.shape[-1] != self.dims:
            raise MspcError(
                f"{self.name}: the grid's last dimension must be {self.dims}, but its shape is {grid.shape}"
            )
        if 0 in x.shape[2:]:
            raise MspcError(f"{self.name}: the image of shape {x.shape} is empty")

    def sides(self) -> tuple[str, str, str]:
        """The rule's sides of images, grid and result."""
        image = " ".join(f"p{d}!" for d in range(self.dims))
        result = " ".join(f"q{d}" for d in range(self.dims))
        return f"n c {image}", f"n {result} t!", f"n c {result}"

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        require_same(self.name, *types)
        return super().infer(*types)

    def lines(self, xp: Any, lengths: Sequence[int], grid: Any) -> list[GridDimension]:
        """Where each dimension of an image of these sizes is read, [n, positions]."""
        flat = grid.reshape(grid.shape[0], math.prod(grid.shape[1:-1]), self.dims)
        return [self.line(xp, n, flat[..., self.dims - 1 - d]) for d, n in enumerate(lengths)]

    def line(self, xp: Any, length: int, numbers: Any) -> GridDimension:
        ends = length - 1 if self.align_corners else length
        places = (numbers + 1) * (ends / 2) - (0.0 if self.align_corners else 0.5)
        slope = xp.full(places.shape, ends / 2, places.dtype)
        if self.padding_mode == "zeros":
            return GridDimension(places, slope)
        if self.padding_mode == "reflection":
            low = 0.0 if self.align_corners else -0.5
            away = xp.abs(places - low)
            slope = xp.where(places < low, -slope, slope)
            rounds = xp.floor(away / ends) if ends else xp.zeros_like(away)
            rest = away - rounds * ends if ends else xp.zeros_like(away)
            back = rounds % 2 == 1
            places = xp.where(back, ends - rest, rest) + low
            slope = xp.where(back, -slope, slope) if ends else xp.zeros_like(slope)
        inside = (places >= 0) & (places <= length - 1)
        return GridDimension(xp.clip(places, 0, length - 1), xp.where(inside, slope, xp.zeros_like(slope)))

    def corners(
        self, xp: Any, lengths: Sequence[int], lines: Sequence[GridDimension]
    ) -> Iterator[tuple[Any, Any, list[Any]]]:
        """For every pixel that a place takes part of: (its number in the image, its weight, how that grows along each
        dimension), [n, positions]; the weight of one outside of the image is 0."""
        nearest = self.interpolation_mode == "nearest"
        lows = [xp.rint(line.places) if nearest else xp.floor(line.places) for line in lines]
        for corner in itertools.product((0,) if nearest else (0, 1), repeat=self.dims):
            number: Any = 0
            inside: Any = True
            shares: list[Any] = []
            for low, line, length, bit in zip(lows, lines, lengths, corner, strict=True):
                at = low + bit
                valid = (at >= 0) & (at < length)
                inside = inside & valid
                number = number * length + xp.where(valid, at, 0).astype(xp.int64)
                part = line.places - low
                shares.append(xp.ones_like(part) if nearest else part if bit else 1 - part)
            weight = math.prod(shares) * inside
            growth = [
                0 * weight
                if nearest
                else (2 * bit - 1) * math.prod([s for k, s in enumerate(shares) if k != d]) * inside
                for d, bit in enumerate(corner)
            ]
            yield number, weight, growth


class _Sampled(_GridSampler, abstract=True):
    linear_in = (0,)

    def rule(self, x: TensorType, grid: TensorType) -> str:
        self.check(x, grid)
        image, places, result = self.sides()
        return f"{image}, {places} -> {result}"

    def bprop(self, b: Builder, x: Value, grid: Value, out: Value, dout: Value) -> Gradients:
        backward = GridSampler2DGrad if self.dims == 2 else GridSampler3DGrad
        return items(b, b.emit(backward(**self.attributes()), dout, x, grid), 2)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x, grid) = be.xp, inputs
        lengths = x.shape[2:]
        pixels = x.reshape(*x.shape[:2], math.prod(lengths))
        images = xp.arange(x.shape[0])[:, None]
        total: Any = xp.zeros((x.shape[0], math.prod(grid.shape[1:-1]), x.shape[1]), x.dtype)
        for number, weight, _ in self.corners(xp, lengths, self.lines(xp, lengths, grid)):
            total += pixels[images, :, number] * weight[..., None]
        return xp.ascontiguousarray(xp.moveaxis(total, 2, 1)).reshape(*x.shape[:2], *grid.shape[1:-1])


class _SampledGrad(_GridSampler, abstract=True):
    """(the gradient of the images, that of the grid)."""

    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")

    def rule(self, dout: TensorType, x: TensorType, grid: TensorType) -> str:
        self.check(x, grid)
        image, places, result = self.sides()
        return f"{result}, {image}, {places} -> +{image}, +{places}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (dout, x, grid) = be.xp, inputs
        lengths = x.shape[2:]
        pixels = x.reshape(*x.shape[:2], math.prod(lengths))
        images = xp.arange(x.shape[0])[:, None]
        given = xp.moveaxis(dout.reshape(*dout.shape[:2], math.prod(dout.shape[2:])), 1, 2)
        dx = xp.zeros((x.shape[0], pixels.shape[2], x.shape[1]), x.dtype)
        lines = self.lines(xp, lengths, grid)
        moves: list[Any] = [xp.zeros(line.places.shape, x.dtype) for line in lines]
        for number, weight, growth in self.corners(xp, lengths, lines):
            xp.add.at(dx, (images, number), given * weight[..., None])
            met = (pixels[images, :, number] * given).sum(axis=2)
            for d, (line, steep) in enumerate(zip(lines, growth, strict=True)):
                moves[d] = moves[d] + met * steep * line.slope
        dgrid = xp.stack(moves[::-1], axis=-1).reshape(grid.shape).astype(grid.dtype)
        return xp.ascontiguousarray(xp.moveaxis(dx, 2, 1)).reshape(x.shape), dgrid


_KINDS: tuple[dict[str, Any], ...] = (
    {}, {"padding_mode": "border", "align_corners": True}, {"padding_mode": "reflection"},
    {"interpolation_mode": "nearest"},
)  # fmt: skip


class GridSampler2D(_Sampled):
    """Images [n, c, h, w] read at a grid [n, h', w', 2]: [n, c, h', w']."""

    samples = tuple(sample((2, 4, 5, 6), (2, 4, 2, 2), low=-1.4, high=1.4, **kind) for kind in _KINDS)


class GridSampler3D(_Sampled):
    """Images [n, c, d, h, w] read at a grid [n, d', h', w', 3]."""

    dims = 3
    samples = (sample((2, 2, 3, 4, 2), (2, 2, 1, 4, 3), low=-1.4, high=1.4),)


class GridSampler2DGrad(_SampledGrad):
    """The gradients of GridSampler2D's images and grid."""

    samples = (sample((2, 4, 4, 2), (2, 4, 5, 6), (2, 4, 2, 2), low=-1.4, high=1.4),)


class GridSampler3DGrad(_SampledGrad):
    """The gradients of GridSampler3D's images and grid."""

    dims = 3
    samples = (sample((2, 2, 2, 1, 4), (2, 2, 3, 4, 2), (2, 2, 1, 4, 3), low=-1.4, high=1.4),)
