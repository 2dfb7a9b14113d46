"""Max pooling that returns the positions of the maxima.

Positions are linear indices over all dimensions of an image, row-major, so that height and width cannot be sharded.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Node, Value
from mspc.ir.types import INT32, INT64, DType, TensorType, TupleType
from mspc.ops.control.structural import items
from mspc.ops.convolution.pooling import MaxPool, MaxPool3D, Pooling
from mspc.ops.convolution.resizing import adaptive_lengths
from mspc.ops.convolution.window import Shape, met, replicated_sides, taps
from mspc.ops.op import Gradients, Op, require_float, sample
from mspc.ops.operator_arguments import constant_of
from mspc.ops.tensor.reshape import Reshape
from mspc.ops.tensor.selection import GatherDGrad


class _WithPlaces(Op, abstract=True):
    """Class attribute: dims: dimensions of the image."""

    dims: ClassVar[int] = 2

    def counts(self, image: Shape) -> Shape:
        """Return the sizes of the result of images of these sizes. Raise MspcError for bad attributes."""
        raise NotImplementedError

    def places_type(self) -> DType:
        return INT64

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        inferred: Any = super().infer(*types)
        value, places = inferred.elements
        if self.places_type() not in (INT32, INT64):
            raise MspcError(f"{self.name}: argmax_type must be int32 or int64, not {self.places_type()}")
        return TupleType((value, TensorType(self.places_type(), places.shape)))

    def rule(self, x: TensorType) -> str:
        if len(x.shape) != self.dims + 2:
            raise MspcError(
                f"{self.name}: the image must have {self.dims + 2} dimensions, but its shape is {x.shape}", code="E0303"
            )
        if 0 in x.shape[2:]:
            raise MspcError(f"{self.name}: the image of shape {x.shape} is empty along height or width")
        image, result = replicated_sides(x.shape[2:], self.counts(x.shape[2:]))
        return f"{image} -> {result}, {result}"

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        if dout[0] is None:
            return (None,)
        places = _flat(b, items(b, out, 2)[1])
        found = b.emit(GatherDGrad(2, math.prod(x.shape[2:])), places, _flat(b, dout[0]))
        return (b.emit(Reshape(x.shape), found),)

    def values_and_places(self, xp: Any, x: Any) -> tuple[Any, Any]:
        """Return the window maxima, and the positions of the first maximum, or of the last NaN."""
        raise NotImplementedError

    def compute(self, xp: Any, *inputs: Any) -> Any:
        values, places = self.values_and_places(xp, *inputs)
        return values, places.astype(self.places_type().numpy)


def _flat(b: Builder, value: Value) -> Value:
    """Return images with all dimensions after the channels as one."""
    return b.emit(Reshape((*value.shape[:2], math.prod(value.shape[2:]))), value)


class _Pooled(_WithPlaces, abstract=True):
    def pool(self) -> Pooling:
        """Return the pooling that computes only the values."""
        raise NotImplementedError

    def places_type(self) -> DType:
        return cast(Any, self).argmax_type

    def counts(self, image: Shape) -> Shape:
        pool = self.pool()
        try:
            pool.sides((1, 1, *image))
        except MspcError as error:  # of an operator that is not in the script
            raise MspcError(error.message.replace(f"{pool.name}:", f"{self.name}:", 1), notes=error.notes) from None
        return pool.counts(image)

    def values_and_places(self, xp: Any, x: Any) -> tuple[Any, Any]:
        pool, lengths = self.pool(), x.shape[2:]
        along, counts = pool.exact(lengths), pool.counts(lengths)
        numbers = xp.arange(math.prod(lengths)).reshape(lengths)
        found, at = xp.full((*x.shape[:2], *counts), -math.inf, x.dtype), xp.full((*x.shape[:2], *counts), -1)
        for place in taps(along):
            inside, looked = met(along, place, lengths, counts)
            target, view = (slice(None), slice(None), *inside), x[(slice(None), slice(None), *looked)]
            better = (view > found[target]) | xp.isnan(view) | (at[target] < 0)
            found[target] = xp.where(better, view, found[target])
            at[target] = xp.where(better, numbers[looked], at[target])
        return found, at


class MaxPoolWithArgmaxV2(_Pooled):
    """MaxPool with `pads`, and the positions of its values over height and width; strides default to the kernel
    size."""

    kernel_size: Any = 1
    strides: Any = None
    pads: Any = 0
    dilation: Any = (1, 1)
    ceil_mode: bool = False
    argmax_type: DType = INT64
    samples = (
        sample((4, 4, 8, 8), kernel_size=2, strides=2),
        sample((2, 4, 7, 6), kernel_size=(3, 2), strides=(2, 1), pads=(1, 1), ceil_mode=True),
        sample((2, 4, 7, 6), kernel_size=2, strides=1, dilation=(2, 3), argmax_type=INT32),
    )

    def pool(self) -> Pooling:
        strides = self.kernel_size if self.strides is None else self.strides
        return MaxPool(self.kernel_size, strides, "pad", "NCHW", self.pads, self.dilation, self.ceil_mode)


class MaxPool3DWithArgmax(_Pooled):
    """MaxPool3D with `pads` and the places that its values come from, counted over depth, height and width."""

    ksize: Any = 1
    strides: Any = 1
    pads: Any = 0
    dilation: Any = (1, 1, 1)
    ceil_mode: bool = False
    data_format: str = "NCDHW"
    argmax_type: DType = INT64
    dims = 3
    samples = (
        sample((2, 2, 4, 4, 4), ksize=2, strides=2),
        sample((2, 2, 4, 5, 3), ksize=(2, 3, 2), strides=(2, 1, 1), pads=(0, 1, 1)),
    )

    def pool(self) -> Pooling:
        strides = self.ksize if self.strides is None else self.strides
        given = self.data_format, self.pads, self.dilation, self.ceil_mode
        return MaxPool3D(self.ksize, strides, "pad", *given)


class _AdaptiveMax(_WithPlaces, abstract=True):
    """Adaptive max pooling. output_size: sizes of the result, None to keep that of the image; one integer for all
    dimensions."""

    output_size: Any = 1

    def counts(self, image: Shape) -> Shape:
        return adaptive_lengths(self.name, self.output_size, image)

    def values_and_places(self, xp: Any, x: Any) -> tuple[Any, Any]:
        lengths = x.shape[2:]
        counts = self.counts(lengths)
        values = xp.empty((*x.shape[:2], *counts), x.dtype)
        places = xp.empty(values.shape, xp.int64)
        numbers = xp.arange(math.prod(lengths)).reshape(lengths)
        for at in itertools.product(*map(range, counts)):
            window = tuple(slice(i * n // m, -(-(i + 1) * n // m)) for i, n, m in zip(at, lengths, counts, strict=True))
            inside = x[(slice(None), slice(None), *window)]
            inside = inside.reshape(*x.shape[:2], math.prod(inside.shape[2:]))
            missing = xp.isnan(inside)
            last = inside.shape[2] - 1 - missing[..., ::-1].argmax(axis=2)
            chosen = xp.where(missing.any(axis=2), last, inside.argmax(axis=2))
            target = (slice(None), slice(None), *at)
            values[target] = xp.take_along_axis(inside, chosen[..., None], axis=2)[..., 0]
            places[target] = numbers[window].reshape(-1)[chosen]
        return values, places


class AdaptiveMaxPool2D(_AdaptiveMax):
    """Maxima of windows that cover the image, one per element of the result, and their positions."""

    samples = (sample((2, 4, 6, 8), output_size=(3, 2)), sample((2, 4, 5, 7), output_size=(None, 3)))


class AdaptiveMaxPool3D(_AdaptiveMax):
    """AdaptiveMaxPool2D over depth, height and width; positions are Int32. Called as `AdaptiveMaxPool3D()(x,
    sizes)`."""

    dims = 3
    settings = (("output_size", constant_of),)
    optional_settings = 1
    samples = (sample((2, 2, 4, 5, 6), output_size=(2, 1, 4)),)

    def places_type(self) -> DType:
        return INT32
