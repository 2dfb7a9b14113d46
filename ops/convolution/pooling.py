"""Pooling: the greatest or the mean of what a window looks at, channel by channel, and the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.arguments import shape_of
from mspc.ops.bases import require_float, require_same
from mspc.ops.collective.exchange import exchanged
from mspc.ops.convolution.base import Shape, image_tokens
from mspc.ops.convolution.convolve import BORDERS
from mspc.ops.convolution.pooling_kernels import greatest, greatest_gradient, spread, summed
from mspc.ops.convolution.window import Window, clipped, numbers, result_lengths, windows
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, Placement, sample
from mspc.ops.tensor.slicing import StridedSlice
from mspc.sharding.borders import Needed, Span, border_bytes, border_exchange, is_cut, own_span, place_of

Gradients = Sequence[Value | None]


class Pooling(Op, abstract=True):
    """Attributes as MindSpore's: kernel_size and strides one integer or one per dimension; pad_mode "valid", "same" or
    "pad", which takes `pad`, one integer, one per dimension or two; ceil_mode: windows may end outside of the image.

    Class attributes:
        dims: dimensions of the image.
    """

    kernel_size: Any = 1
    strides: Any = 1
    pad_mode: str = "valid"
    data_format: str = ""
    pad: Any = 0
    dilation: Any = 1
    ceil_mode: bool = False
    dims: ClassVar[int] = 2
    omitted: ClassVar[tuple[str, ...]] = ("data_format", "pad", "dilation", "ceil_mode")

    def along(self, lengths: Sequence[int]) -> tuple[Window, ...]:
        """The window along every dimension of an image of these lengths. Raises MspcError for bad attributes."""
        sizes = numbers(self.name, "kernel_size", self.kernel_size, self.dims)
        strides = numbers(self.name, "strides", self.strides, self.dims)
        dilations = numbers(self.name, "dilation", self.dilation, self.dims)
        return windows(self.name, lengths, sizes, strides, dilations, self.pad_mode, self.pad)

    def counts(self, lengths: Sequence[int]) -> Shape:
        """Positions along every dimension of an image of these lengths."""
        return result_lengths(self.name, lengths, self.along(lengths), self.ceil_mode)

    def exact(self, lengths: Sequence[int]) -> tuple[Window, ...]:
        """The windows with as much padding behind the image as their positions look at."""
        pairs = zip(self.along(lengths), lengths, self.counts(lengths), strict=True)
        return tuple(window.on_places((0, length), (0, count)) for window, length, count in pairs)

    def sides(self, image: Shape) -> tuple[str, str]:
        """The rule's sides of image and result. Raises MspcError where the image does not fit the attributes."""
        names = {2: "NCHW", 3: "NCDHW"}[self.dims]
        if self.data_format not in ("", names):
            raise MspcError(f"{self.name}: data_format must be {names!r}, not {self.data_format!r}")
        if len(image) != self.dims + 2:
            raise MspcError(f"{self.name}: the image must have {self.dims + 2} dimensions, but its shape is {image}")
        along = self.along(image[2:])
        for d, window in enumerate(along):
            if 2 * max(window.before, window.after) > window.extent and str(self.pad_mode).lower() == "pad":
                raise MspcError(
                    f"{self.name}: a padding of {max(window.before, window.after)} along dimension {d + 2} is more "
                    f"than half of the window's {window.extent}"
                )
        places, positions = image_tokens(image[2:], self.counts(image[2:]), self.exact(image[2:]))
        return f"n c {places}", f"n c {positions}"

    def on_rank(self, along: Sequence[Window], **others: Any) -> Any:
        """The operator on a slice, whose windows are `along`."""
        pad = tuple(n for w in along for n in (w.before, w.after))
        given: dict[str, Any] = {"pad_mode": "pad", "pad": pad, "ceil_mode": False}
        return type(self)(**(self.attributes() | given | others))

    def needed(self, lengths: Sequence[int], layout: Layout) -> Needed:
        """Which places of the image the holder of a slice of the result looks at."""
        along, counts, cuts = self.exact(lengths), self.counts(lengths), layout.strategy[2:]

        def places(d: int, part: int) -> Span:
            return clipped(along[d].places(own_span(counts[d], cuts[d], part)), lengths[d])

        return places

    def positions(self, lengths: Sequence[int], layout: Layout) -> Needed:
        """Which positions of the result look at a slice of the image."""
        along, counts, cuts = self.exact(lengths), self.counts(lengths), layout.strategy[2:]

        def found(d: int, part: int) -> Span:
            return along[d].positions(own_span(lengths[d], cuts[d], part), counts[d])

        return found


class _Forward(Pooling, abstract=True):
    def rule(self, x: TensorType) -> str:
        return " -> ".join(self.sides(x.shape))

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        return super().infer(*types)

    def expand(self, b: Builder, placement: Placement, inputs: Sequence[Value]) -> Value | None:
        type, layout = placement.in_types[0], placement.in_layouts[0]
        if not is_cut(layout):
            return None
        lengths = type.shape[2:]
        needed, counts, cuts = self.needed(lengths, layout), self.counts(lengths), layout.strategy[2:]
        part = border_exchange(layout, type.shape, placement.rank, needed)
        along = [
            window.on_places(needed(d, i), own_span(counts[d], cuts[d], i))
            for d, (window, i) in enumerate(zip(self.exact(lengths), place_of(layout, placement.rank), strict=True))
        ]
        return b.emit(self.on_rank(along), exchanged(b, inputs[0], part, layout.ranks, BORDERS))

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        if not is_cut(layouts[0]):
            return 0.0
        return border_bytes(types[0], layouts[0], self.needed(types[0].shape[2:], layouts[0]))


class _MaxPool(_Forward, abstract=True):
    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(_like(self, _MAX_GRADIENTS[self.dims]), x, out, dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        return greatest(be.xp, x, self.exact(x.shape[2:]), self.counts(x.shape[2:]))


class _Backward(Pooling, abstract=True):
    """The gradient of an image: on a rank computed for all places that windows look at which touch its slice."""

    def on_slice(self, b: Builder, placement: Placement, inputs: Sequence[Value], shape: Shape, images: int) -> Value:
        """Emit the operator on a slice of an image of the global `shape`; the first `images` operands are images."""
        layout, lengths = placement.in_layouts[0], shape[2:]
        touching, along, cuts = self.positions(lengths, layout), self.exact(lengths), layout.strategy[2:]

        def seen(d: int, part: int) -> Span:
            return clipped(along[d].places(touching(d, part)), lengths[d])

        here = place_of(layout, placement.rank)
        operands = [
            exchanged(
                b,
                x,
                border_exchange(layout, type.shape, placement.rank, seen if i < images else touching),
                layout.ranks,
                BORDERS,
            )
            for i, (x, type) in enumerate(zip(inputs, placement.in_types, strict=True))
        ]
        spans = [(seen(d, i), own_span(lengths[d], cuts[d], i)) for d, i in enumerate(here)]
        local = [w.on_places(seen(d, i), touching(d, i)) for d, (w, i) in enumerate(zip(along, here, strict=True))]
        size = (*placement.out_layouts[0].local_shape(shape)[:2], *(wide[1] - wide[0] for wide, _ in spans))
        found = b.emit(self.on_rank(local, **({} if images else {"input_size": size})), *operands)
        begin = (0, 0, *(own[0] - wide[0] for wide, own in spans))
        end = (*size[:2], *(own[1] - wide[0] for wide, own in spans))
        if end == size and not any(begin):
            return found
        return b.emit(StridedSlice(begin=begin, end=end, strides=(1,) * len(end)), found)


class _MaxPoolGrad(_Backward, abstract=True):
    """The gradient goes to the first place of a window that holds the greatest value."""

    bprop: ClassVar[Any] = NotDifferentiable("it is a gradient, and its second derivative is not built")

    def infer(self, *types: Any) -> Any:
        require_same(self.name, *types)
        return super().infer(*types)

    def rule(self, x: TensorType, out: TensorType, dout: TensorType) -> str:
        image, result = self.sides(x.shape)
        return f"{image}, {result}, {result} -> {image}"

    def expand(self, b: Builder, placement: Placement, inputs: Sequence[Value]) -> Value | None:
        if not is_cut(placement.in_layouts[0]):
            return None
        return self.on_slice(b, placement, inputs, placement.in_types[0].shape, 1)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, out, dout = inputs
        return greatest_gradient(be.xp, x, out, dout, self.exact(x.shape[2:]))


class _AvgPool(_Forward, abstract=True):
    """count_include_pad: places outside of the image count as zeros. divisor_override: what sums are divided by."""

    count_include_pad: bool = False
    divisor_override: int | None = None
    omitted: ClassVar[tuple[str, ...]] = (*Pooling.omitted, "count_include_pad", "divisor_override")

    def rule(self, x: TensorType) -> str:
        return " -> ".join(mean_sides(self, x.shape))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(_like(self, _MEAN_GRADIENTS[self.dims], input_size=x.shape, **_means(self)), dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        total = summed(be.xp, x, self.exact(x.shape[2:]), self.counts(x.shape[2:]))
        return total / divisors(be.xp, self, x.shape[2:], x.dtype)


class _AvgPoolGrad(_Backward, abstract=True):
    """The gradient of an image of shape `input_size`."""

    count_include_pad: bool = False
    divisor_override: int | None = None
    input_size: tuple[int, ...] = ()
    omitted: ClassVar[tuple[str, ...]] = _AvgPool.omitted

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 2:
            return self, args
        size = shape_of(self.name, "input_size", args[0])
        return replace(self, input_size=size), args[1:]

    def rule(self, dout: TensorType) -> str:
        image, result = mean_sides(self, self.input_size)
        expected = (*self.input_size[:2], *self.counts(self.input_size[2:]))
        if dout.shape != expected:
            raise MspcError(
                f"{self.name}: the gradient has shape {dout.shape}, but images {self.input_size} make {expected}"
            )
        return f"{result} -> {image}"

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        return super().infer(*types)

    def bprop(self, b: Builder, dout: Value, out: Value, second: Value) -> Gradients:
        return (b.emit(_like(self, _MEANS[self.dims], **_means(self)), second),)

    def expand(self, b: Builder, placement: Placement, inputs: Sequence[Value]) -> Value | None:
        if not is_cut(placement.in_layouts[0]):
            return None
        return self.on_slice(b, placement, inputs, self.input_size, 0)

    def localize(self, placement: Placement) -> Op:
        size = placement.out_layouts[0].local_shape(self.input_size)
        return replace(self, input_size=size)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (dout,) = inputs
        lengths = self.input_size[2:]
        share = dout / divisors(be.xp, self, lengths, dout.dtype)
        return spread(be.xp, share, lengths, self.exact(lengths))


Mean = _AvgPool | _AvgPoolGrad


def mean_sides(op: Mean, image: Shape) -> tuple[str, str]:
    """`Pooling.sides` of a mean. Where windows may end outside of padding that counts, the image stays whole."""
    override: Any = op.divisor_override
    if override is not None and (isinstance(override, bool) or not isinstance(override, int) or override < 1):
        raise MspcError(f"{op.name}: divisor_override must be a positive integer or None, not {override!r}")
    found = Pooling.sides(op, image)
    if not (op.ceil_mode and op.count_include_pad):
        return found
    counts = op.counts(image[2:])
    places = " ".join(f"p{d}={n}!" for d, n in enumerate(image[2:]))
    return f"n c {places}", "n c " + " ".join(f"q{d}={n}!" for d, n in enumerate(counts))


def divisors(xp: Any, op: Mean, lengths: Sequence[int], dtype: Any) -> Any:
    """What the sum at every position is divided by, [*counts]: the places that count."""
    if op.divisor_override is not None:
        return xp.asarray(op.divisor_override, dtype)
    found: Any = None
    for window, length, count in zip(op.along(lengths), lengths, op.counts(lengths), strict=True):
        places = np.arange(count)[:, None] * window.stride - window.before + np.arange(window.size) * window.dilation
        low, high = (-window.before, length + window.after) if op.count_include_pad else (0, length)
        counted = np.maximum(((places >= low) & (places < high)).sum(axis=1), 1)
        found = counted if found is None else found[..., None] * counted
    return xp.asarray(found, dtype)


def _like(op: Pooling, other: type[Any], **more: Any) -> Any:
    """An operator of another class with the attributes that all pooling has."""
    return other(**{f.name: getattr(op, f.name) for f in fields(Pooling)}, **more)


def _means(op: Mean) -> dict[str, Any]:
    return {"count_include_pad": op.count_include_pad, "divisor_override": op.divisor_override}


_TWO: tuple[tuple[Shape, dict[str, Any]], ...] = (
    ((4, 4, 8, 8), {"kernel_size": 2, "strides": 2}),
    ((2, 4, 8, 8), {"kernel_size": 3, "strides": 2, "pad_mode": "same"}),
    ((2, 4, 8, 6), {"kernel_size": (3, 2), "strides": (1, 2), "pad_mode": "pad", "pad": (1, 1, 0, 1)}),
    ((2, 2, 7, 8), {"kernel_size": 3, "strides": 2, "ceil_mode": True}),
)
_THREE: tuple[tuple[Shape, dict[str, Any]], ...] = (
    ((2, 2, 4, 4, 4), {"kernel_size": 2, "strides": 2}),
    ((2, 2, 4, 5, 4), {"kernel_size": (2, 3, 2), "strides": (2, 1, 1), "pad_mode": "same"}),
)
_COUNTED: dict[str, Any] = {
    "kernel_size": 3, "strides": 2, "pad_mode": "pad", "pad": 1, "ceil_mode": True, "count_include_pad": True,
}  # fmt: skip


def _out(op: type[Pooling], image: Shape, given: dict[str, Any]) -> Shape:
    return (*image[:2], *op(**given).counts(image[2:]))


class MaxPool(_MaxPool):
    """The greatest value of every window over height and width."""

    samples: ClassVar[Any] = tuple(sample(x, **given) for x, given in _TWO)


class MaxPool3D(_MaxPool):
    """The greatest value of every window over depth, height and width."""

    dims: ClassVar[int] = 3
    samples: ClassVar[Any] = tuple(sample(x, **given) for x, given in _THREE)


class MaxPoolGrad(_MaxPoolGrad):
    """The gradient of MaxPool's images, from them, the result and its gradient."""

    samples: ClassVar[Any] = tuple(
        sample(x, _out(MaxPool, x, given), _out(MaxPool, x, given), **given) for x, given in _TWO
    )


class MaxPool3DGrad(_MaxPoolGrad):
    """The gradient of MaxPool3D's images."""

    dims: ClassVar[int] = 3
    samples: ClassVar[Any] = tuple(
        sample(x, _out(MaxPool3D, x, given), _out(MaxPool3D, x, given), **given) for x, given in _THREE
    )


class AvgPool(_AvgPool):
    """The mean of every window over height and width; padding does not count unless asked for."""

    samples: ClassVar[Any] = tuple(sample(x, **given) for x, given in (*_TWO, ((2, 2, 7, 8), _COUNTED)))


class AvgPool3D(_AvgPool):
    """The mean of every window over depth, height and width."""

    dims: ClassVar[int] = 3
    samples: ClassVar[Any] = tuple(sample(x, **given) for x, given in _THREE)


class AvgPoolGrad(_AvgPoolGrad):
    """The gradient of AvgPool's images."""

    samples: ClassVar[Any] = tuple(
        sample(_out(AvgPool, x, given), input_size=x, **given) for x, given in (*_TWO, ((2, 2, 7, 8), _COUNTED))
    )


class AvgPool3DGrad(_AvgPoolGrad):
    """The gradient of AvgPool3D's images."""

    dims: ClassVar[int] = 3
    samples: ClassVar[Any] = tuple(sample(_out(AvgPool3D, x, given), input_size=x, **given) for x, given in _THREE)


_MAX_GRADIENTS: dict[int, type[_MaxPoolGrad]] = {2: MaxPoolGrad, 3: MaxPool3DGrad}
_MEAN_GRADIENTS: dict[int, type[_AvgPoolGrad]] = {2: AvgPoolGrad, 3: AvgPool3DGrad}
_MEANS: dict[int, type[_AvgPool]] = {2: AvgPool, 3: AvgPool3D}
