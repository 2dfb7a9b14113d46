"""Fractional pooling has windows of one size at places drawn at random for every image and channel. Graham 2014.

With k places a window, n of the image, m of the result and a number u drawn from [0, 1), window i begins at
floor((i + u) * a) - floor(u * a) with a = (n - k) / (m - 1), and the last at n - k. As in PyTorch, the numbers of a
channel are for the dimensions of an image from the last to the first, in three dimensions from the first to the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.types import INT64, TensorType, TupleType
from mspc.ops.bases import require_float
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.sharding.rules import sized

Gradients = Sequence[Value | None]
NAMES = "hwd"


class _Fractional(Op, abstract=True):
    """The greatest of every window and its place in the image, counted over all its dimensions: a tuple of two.

    ksize, output_shape: of windows and of the result, a number for every dimension of the image or one for all. Class
    attributes: dims: of the image. order: the dimension of each drawn number.
    """

    ksize: tuple[int, ...] = (1,)
    output_shape: tuple[int, ...] = (1,)
    dims: ClassVar[int] = 2
    order: ClassVar[tuple[int, ...]] = (1, 0)

    def __post_init__(self) -> None:
        for what in ("ksize", "output_shape"):
            given: Any = getattr(self, what)
            sizes = (given,) * self.dims if isinstance(given, int) else tuple(given)
            sizes = sizes * self.dims if len(sizes) == 1 else sizes
            if len(sizes) != self.dims or not all(type(n) is int and n > 0 for n in sizes):
                raise MspcError(f"{self.name}: {what} must be a positive integer or {self.dims} of them, not {given!r}")
            object.__setattr__(self, what, sizes)

    def rule(self, x: TensorType, random_samples: TensorType) -> str:
        image = x.shape[2:]
        if len(image) != self.dims:
            raise MspcError(f"{self.name}: input 0 of shape {x.shape} must have {self.dims + 2} dimensions")
        if random_samples.shape not in ((*x.shape[:2], self.dims), (1, x.shape[1], self.dims)):
            wanted = (*x.shape[:2], self.dims)
            raise MspcError(f"{self.name}: input 1 has shape {random_samples.shape}, not {wanted}")
        for d, (n, k, m) in enumerate(zip(image, self.ksize, self.output_shape, strict=True)):
            if k + m - 1 > n:
                raise MspcError(
                    f"{self.name}: {m} windows of {k} need {k + m - 1} places along dimension {d + 2}, which has {n}"
                )
        batch = "1" if random_samples.shape[0] == 1 else "n"
        left = " ".join(_replicated(name, n) for name, n in zip(NAMES, image, strict=False))
        right = " ".join(_replicated(f"{name}1", n) for name, n in zip(NAMES, self.output_shape, strict=False))
        return f"n c {left}, {batch} c u! -> n c {right}, n c {right}"

    def infer(self, *types: Any) -> Any:
        super().infer(*types)
        require_float(self.name, types[1])
        shape = (*types[0].shape[:2], *self.output_shape)
        return TupleType((TensorType(types[0].dtype, shape), TensorType(INT64, shape)))

    def bprop(self, b: Builder, x: Value, random_samples: Value, out: Node, dout: Any) -> Gradients:
        if dout[0] is None:
            return None, None
        return b.emit(FractionalMaxPoolGrad(x.shape[2:]), dout[0], b.emit(TupleGetItem(1), out)), None

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x, samples) = be.xp, inputs
        image, count = x.shape[2:], self.dims
        flat = xp.zeros((1,) * (2 + 2 * count), xp.int64)
        for d in range(count):
            first = starts(xp, samples[..., self.order.index(d)], image[d], self.ksize[d], self.output_shape[d])
            along = first[..., None] + xp.arange(self.ksize[d])
            shape = [*along.shape[:2], *[1] * (2 * count)]
            shape[2 + d], shape[2 + count + d] = self.output_shape[d], self.ksize[d]
            flat = flat * image[d] + along.reshape(shape)
        channels, window = x.shape[:2], math.prod(self.ksize)
        flat = xp.broadcast_to(flat, (*channels, *flat.shape[2:])).reshape(*channels, *self.output_shape, window)
        looked_up = flat.reshape(*channels, math.prod(self.output_shape) * window)
        values = xp.take_along_axis(x.reshape(*channels, math.prod(image)), looked_up, 2).reshape(flat.shape)
        best = xp.argmax(values, -1)[..., None]
        made = (xp.take_along_axis(values, best, -1)[..., 0], xp.take_along_axis(flat, best, -1)[..., 0])
        return made


def _replicated(name: str, size: int) -> str:
    token = sized(name, size)
    return token if token == "1" else f"{token}!"


def starts(xp: Any, samples: Any, size: int, window: int, count: int) -> Any:
    """The first place of every window, by the numbers `drawn` for every image and channel."""
    last = xp.full((*samples.shape, 1), size - window, xp.int64)
    if count == 1:
        return last
    step = samples.dtype.type(size - window) / samples.dtype.type(count - 1)
    begun = xp.floor((xp.arange(count - 1).astype(samples.dtype) + samples[..., None]) * step)
    return xp.concatenate([(begun - xp.floor(samples[..., None] * step)).astype(xp.int64), last], -1)


class FractionalMaxPoolWithFixedKsize(_Fractional):
    """The greatest of windows of [n, c, h, w] and their places h * w: called with x and numbers [n or 1, c, 2]."""

    samples = (
        sample((4, 2, 7, 6), (4, 2, 2), ksize=(2, 3), output_shape=(3, 2), low=0.01, high=0.99),
        sample((2, 4, 5, 5), (1, 4, 2), ksize=(2, 2), output_shape=(1, 4), low=0.01, high=0.99),
    )


class FractionalMaxPool3DWithFixedKsize(_Fractional):
    """The same pooling of [n, c, d, h, w], with numbers [n or 1, c, 3]."""

    dims = 3
    order = (0, 1, 2)
    samples = (
        sample((2, 2, 4, 5, 4), (2, 2, 3), ksize=(2, 2, 1), output_shape=(2, 3, 4), low=0.01, high=0.99),
    )


class FractionalMaxPoolGrad(Op):
    """An image of `size` with the elements of dout added at the places that were the greatest, zeros elsewhere."""

    size: tuple[int, ...] = ()
    linear_in = (0,)
    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    samples = (
        sample((2, 4, 2, 2), (2, 4, 2, 2), size=(3, 4), dtypes=("Float64", "Int64"), low=0, high=12, gradient=False),
    )

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: math.prod(self.size)}

    def rule(self, dout: TensorType, places: TensorType) -> str:
        pooled = " ".join(_replicated(f"{name}1", n) for name, n in zip(NAMES, dout.shape[2:], strict=False))
        image = " ".join(_replicated(name, n) for name, n in zip(NAMES, self.size, strict=False))
        return f"n c {pooled}, n c {pooled} -> n c {image}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (dout, places) = be.xp, inputs
        rows, count = dout.shape[0] * dout.shape[1], math.prod(dout.shape[2:])
        made = xp.zeros((rows, math.prod(self.size)), dout.dtype)
        xp.add.at(made, (xp.arange(rows)[:, None], places.reshape(rows, count)), dout.reshape(rows, count))
        return made.reshape(*dout.shape[:2], *self.size)
