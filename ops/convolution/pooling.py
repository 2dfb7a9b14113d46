"""Pooling of images, its gradients, and columns as tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.bases import operator
from mspc.ops.collective.exchange import exchanged
from mspc.ops.convolution.window import (
    HALOS,
    Shape,
    Window,
    Windowed,
    clipped,
    image_tokens,
    like,
    met,
    numbers,
    paddings,
    replicated_sides,
    result_lengths,
    sharding_mistake,
    taps,
    windows,
)
from mspc.ops.cpu.blocks import in_blocks
from mspc.ops.cuda.windows import launch_max, launch_max_gradient, launch_mean, launch_mean_gradient
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import Gradients, NotDifferentiable, Op, RankPlacement, Sample, sample
from mspc.ops.operator_arguments import constant_of, shape_of
from mspc.ops.tensor.slicing import StridedSlice
from mspc.sharding.halos import Span, halo_exchange, is_sharded, place_of, slice_span


def _rows(x: Any) -> Any:
    """Return x as [batch * channels, ...]."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def combined(xp: Any, x: Any, along: Sequence[Window], counts: Sequence[int], neutral: float, combine: Any) -> Any:
    """Return the values in the window of every position, combined from `neutral` on."""
    out = xp.empty((*x.shape[:2], *counts), x.dtype)
    images, results = _rows(x), _rows(out)

    def work(rows: slice) -> None:
        image, found = images[rows], results[rows]
        found[...] = neutral
        for place in taps(along):
            inside, looked = met(along, place, x.shape[2:], counts)
            target = found[(slice(None), *inside)]
            combine(target, image[(slice(None), *looked)], out=target)

    in_blocks(xp, len(results), out.size, work)
    return out


def spread(xp: Any, dout: Any, lengths: Sequence[int], along: Sequence[Window]) -> Any:
    """Return the gradient of window sums: every position of an image of these lengths gets the sum over all windows
    containing it."""
    out = xp.empty((*dout.shape[:2], *lengths), dout.dtype)
    counts = dout.shape[2:]
    gradients, results = _rows(dout), _rows(out)

    def work(rows: slice) -> None:
        gradient, found = gradients[rows], results[rows]
        found[...] = 0
        for place in taps(along):
            inside, looked = met(along, place, lengths, counts)
            target = found[(slice(None), *looked)]
            xp.add(target, gradient[(slice(None), *inside)], out=target)

    in_blocks(xp, len(results), out.size, work)
    return out


TWO: tuple[tuple[Shape, dict[str, Any]], ...] = (
    ((4, 4, 8, 8), {"kernel_size": 2, "strides": 2}),
    ((2, 4, 8, 8), {"kernel_size": 3, "strides": 2, "pad_mode": "same"}),
    ((2, 4, 8, 6), {"kernel_size": (3, 2), "strides": (1, 2), "pad_mode": "pad", "pad": (1, 1, 0, 1)}),
    ((2, 2, 7, 8), {"kernel_size": 3, "strides": 2, "ceil_mode": True}),
    ((1, 2, 4, 6), {"kernel_size": 3, "strides": 2, "pad_mode": "pad", "pad": 1, "ceil_mode": True}),
    ((1, 2, 6, 4), {"kernel_size": (3, 2), "strides": 3}),
)
THREE: tuple[tuple[Shape, dict[str, Any]], ...] = (
    ((2, 2, 4, 4, 4), {"kernel_size": 2, "strides": 2}),
    ((2, 2, 4, 5, 4), {"kernel_size": (2, 3, 2), "strides": (2, 1, 1), "pad_mode": "same"}),
)


class Pooling(Windowed, abstract=True):
    """Attributes as MindSpore's: kernel_size and strides one integer or one per dimension; pad_mode "valid", "same" or
    "pad", which takes `pad`, one integer, one per dimension or two; ceil_mode: windows may end outside of the image."""

    kernel_size: Any = 1
    strides: Any = 1
    pad_mode: str = "valid"
    data_format: str = ""
    pad: Any = 0
    dilation: Any = 1
    ceil_mode: bool | None = False
    omitted = ("data_format", "pad", "dilation", "ceil_mode")

    def along(self, lengths: Sequence[int]) -> tuple[Window, ...]:
        """Return the window along every dimension of an image of these lengths. Raise MspcError for bad attributes."""
        sizes = numbers(self.name, "kernel_size", self.kernel_size, self.dims)
        strides = numbers(self.name, "strides", self.strides, self.dims)
        dilations = numbers(self.name, "dilation", self.dilation, self.dims)
        return windows(self.name, lengths, sizes, strides, dilations, self.pad_mode, self.pad)

    def counts(self, lengths: Sequence[int]) -> Shape:
        """Return the number of positions along every dimension of an image of these lengths."""
        return result_lengths(self.name, lengths, self.along(lengths), self.ceil_mode)

    def exact(self, lengths: Sequence[int]) -> tuple[Window, ...]:
        """Return the windows with as much padding after the image as their positions read."""
        pairs = zip(self.along(lengths), lengths, self.counts(lengths), strict=True)
        return tuple(window.on_places((0, length), (0, count)) for window, length, count in pairs)

    def sides(self, image: Shape) -> tuple[str, str]:
        """Return the rule's sides of image and result. Raise MspcError if the image does not fit the attributes."""
        self.check_image("the image", image)
        along = self.along(image[2:])
        for d, window in enumerate(along):
            pads = (window.before, window.after)
            if self.pad_mode.lower() == "pad" and (sum(pads) > window.extent or max(pads) == window.extent):
                raise MspcError(
                    f"{self.name}: paddings of {pads[0]} and {pads[1]} along dimension {d + 2} must be smaller than "
                    f"the window's {window.extent}, both together at most as large"
                )
        places, positions = image_tokens(image[2:], self.counts(image[2:]), self.exact(image[2:]))
        return f"n c {places}", f"n c {positions}"

    def on_rank(self, along: Sequence[Window], **others: Any) -> Any:
        """Return the operator on a slice, whose windows are `along`."""
        pad = tuple(n for w in along for n in (w.before, w.after))
        return replace(self, pad_mode="pad", pad=pad, ceil_mode=False, **others)


class PoolingForward(Pooling, abstract=True):
    float_only = True

    def rule(self, x: TensorType) -> str:
        return " -> ".join(self.sides(x.shape))

    def sharding_mistake(self, types: Sequence[TensorType], operand: int, dimension: int, shards: int) -> str:
        return sharding_mistake(types[0].shape[2:], self.counts, self.exact, dimension - 2, shards)

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        if not is_sharded(placement.in_layouts[0]):
            return None
        image, along = self.with_halo(b, placement, 0, inputs[0])
        return b.emit(self.on_rank(along), image)

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        return self.halo_traffic(types[0], layouts[0])


class PoolingBackward(Pooling, abstract=True):
    """The gradient of an image. A rank computes it for all places of the windows that touch its slice."""

    def on_slice(
        self, b: Builder, placement: RankPlacement, inputs: Sequence[Value], shape: Shape, images: int
    ) -> Value:
        """Emit the operator on a slice of an image of the global `shape`; the first `images` operands are images."""
        layout, lengths = placement.in_layouts[0], shape[2:]
        touching, along, slice_counts = self.positions(lengths, layout), self.exact(lengths), layout.strategy[2:]

        def seen(d: int, part: int) -> Span:
            first, end = clipped(along[d].places(touching(d, part)), lengths[d])
            own = slice_span(lengths[d], slice_counts[d], part)  # no window may look at the last places
            return min(first, own[0]), max(end, own[1])

        here = place_of(layout, placement.rank)
        operands: list[Value] = []
        for i, (x, type) in enumerate(zip(inputs, placement.in_types, strict=True)):
            part = halo_exchange(layout, type.shape, placement.rank, seen if i < images else touching)
            operands.append(exchanged(b, x, part, layout.ranks, HALOS))
        spans = [(seen(d, i), slice_span(lengths[d], slice_counts[d], i)) for d, i in enumerate(here)]
        local = [w.on_places(seen(d, i), touching(d, i)) for d, (w, i) in enumerate(zip(along, here, strict=True))]
        size = (*placement.out_layouts[0].local_shape(shape)[:2], *(wide[1] - wide[0] for wide, _ in spans))
        found = b.emit(self.on_rank(local, **({} if images else {"input_size": size})), *operands)
        begin = (0, 0, *(own[0] - wide[0] for wide, own in spans))
        end = (*size[:2], *(own[1] - wide[0] for wide, own in spans))
        if end == size and not any(begin):
            return found
        return b.emit(StridedSlice(begin=begin, end=end, strides=(1,) * len(end)), found)


class _MaxPool(PoolingForward, abstract=True):
    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(like(self, f"{self.name}Grad"), x, out, dout),)

    def launch_on(self, device: Device, out: Array, x: Array) -> Launch | None:
        return launch_max(device, x, out, self.exact(x.shape[2:]))

    def compute(self, xp: Any, x: Any) -> Any:
        return combined(xp, x, self.exact(x.shape[2:]), self.counts(x.shape[2:]), -math.inf, xp.maximum)


class _MaxPoolGrad(PoolingBackward, abstract=True):
    """Gradient that goes to the first position of a window with the maximum."""

    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    one_type = True

    def rule(self, x: TensorType, out: TensorType, dout: TensorType) -> str:
        image, result = self.sides(x.shape)
        return f"{image}, {result}, {result} -> {image}"

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        if not is_sharded(placement.in_layouts[0]):
            return None
        return self.on_slice(b, placement, inputs, placement.in_types[0].shape, 1)

    def launch_on(self, device: Device, out: Array, x: Array, found: Array, dout: Array) -> Launch | None:
        return launch_max_gradient(device, x, found, dout, out, self.exact(x.shape[2:]))

    def compute(self, xp: Any, x: Any, out: Any, dout: Any) -> Any:
        along, counts = self.exact(x.shape[2:]), out.shape[2:]
        found = xp.empty(x.shape, dout.dtype)

        arrays = [_rows(array) for array in (found, x, out, dout)]

        def work(rows: slice) -> None:
            total, image, best, gradient = (array[rows] for array in arrays)
            total[...] = 0
            free = xp.ones(best.shape, bool)
            missing = xp.isnan(best)
            search = xp is not np or missing.any()  # asking an array of a GPU would make the CPU wait
            for place in taps(along):
                inside, looked = met(along, place, x.shape[2:], counts)
                chosen = (slice(None), *inside)
                view = image[(slice(None), *looked)]
                here = view == best[chosen]
                if search:
                    here |= xp.isnan(view) & missing[chosen]
                here &= free[chosen]
                free[chosen] ^= here
                target = total[(slice(None), *looked)]
                xp.add(target, gradient[chosen] * here, out=target)

        in_blocks(xp, len(arrays[0]), found.size, work)
        return found


class _AvgPool(PoolingForward, abstract=True):
    """Average pooling. count_include_pad: positions outside the image count as zeros. divisor_override: divisor of the
    sums; 0 and None for the number of positions that count."""

    count_include_pad: bool = False
    divisor_override: int | None = None
    omitted = (*Pooling.omitted, "count_include_pad", "divisor_override")

    def rule(self, x: TensorType) -> str:
        return " -> ".join(mean_sides(self, x.shape))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(like(self, f"{self.name}Grad", input_size=x.shape), dout),)

    def launch_on(self, device: Device, out: Array, x: Array) -> Launch | None:
        shares = divisors(device.xp, self, x.shape[2:], out.dtype)
        return launch_mean(device, x, shares, out, self.exact(x.shape[2:]))

    def compute(self, xp: Any, x: Any) -> Any:
        total = combined(xp, x, self.exact(x.shape[2:]), self.counts(x.shape[2:]), 0, xp.add)
        return total / divisors(xp, self, x.shape[2:], x.dtype)


class _AvgPoolGrad(PoolingBackward, abstract=True):
    """The gradient of an image of shape `input_size`."""

    count_include_pad: bool = False
    divisor_override: int | None = None
    input_size: tuple[int, ...] = ()
    sizes_of = ("input_size",)
    omitted = _AvgPool.omitted
    float_only = True
    settings = (("input_size", shape_of),)
    optional_settings = 1
    settings_at = 0

    def rule(self, dout: TensorType) -> str:
        image, result = mean_sides(self, self.input_size)
        expected = (*self.input_size[:2], *self.counts(self.input_size[2:]))
        if dout.shape != expected:
            raise MspcError(
                f"{self.name}: the gradient has shape {dout.shape}, but images {self.input_size} make {expected}"
            )
        return f"{result} -> {image}"

    def bprop(self, b: Builder, dout: Value, out: Value, second: Value) -> Gradients:
        return (b.emit(like(self, self.name.removesuffix("Grad")), second),)

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        if not is_sharded(placement.in_layouts[0]):
            return None
        return self.on_slice(b, placement, inputs, self.input_size, 0)

    def localize(self, placement: RankPlacement) -> Op:
        size = placement.out_layouts[0].local_shape(self.input_size)
        return replace(self, input_size=size)

    def launch_on(self, device: Device, out: Array, dout: Array) -> Launch | None:
        lengths = self.input_size[2:]
        return launch_mean_gradient(
            device, dout, divisors(device.xp, self, lengths, dout.dtype), out, self.exact(lengths)
        )

    def compute(self, xp: Any, dout: Any) -> Any:
        lengths = self.input_size[2:]
        share = dout / divisors(xp, self, lengths, dout.dtype)
        return spread(xp, share, lengths, self.exact(lengths))


Mean = _AvgPool | _AvgPoolGrad


def mean_sides(op: Mean, image: Shape) -> tuple[str, str]:
    """Return `Pooling.sides` of a mean. If windows may end outside of padding that counts, the image is not sharded."""
    override: Any = op.divisor_override
    if override is not None and (isinstance(override, bool) or not isinstance(override, int) or override < 0):
        raise MspcError(f"{op.name}: divisor_override must be a positive integer, 0 or None, not {override!r}")
    found = Pooling.sides(op, image)
    if not (op.ceil_mode and op.count_include_pad):
        return found
    return replicated_sides(image[2:], op.counts(image[2:]))


def divisors(xp: Any, op: Mean, lengths: Sequence[int], dtype: Any) -> Any:
    """Return the divisor of every window, [*counts]: the number of positions that count."""
    if op.divisor_override:
        return xp.asarray(op.divisor_override, dtype)
    found: Any = None
    for window, length, count in zip(op.along(lengths), lengths, op.counts(lengths), strict=True):
        places = np.arange(count)[:, None] * window.stride - window.before + np.arange(window.size) * window.dilation
        low, high = (-window.before, length + window.after) if op.count_include_pad else (0, length)
        counted = np.maximum(((places >= low) & (places < high)).sum(axis=1), 1)
        found = counted if found is None else found[..., None] * counted
    return xp.asarray(found, dtype)


_COUNTED: dict[str, Any] = {
    "kernel_size": 3, "strides": 2, "pad_mode": "pad", "pad": 1, "ceil_mode": True, "count_include_pad": True,
}  # fmt: skip


Cases = Sequence[tuple[Shape, dict[str, Any]]]


def _samples(cases: Cases) -> tuple[Sample, ...]:
    return tuple(sample(x, **given) for x, given in cases)


def _of_gradients(forward: type[Pooling], cases: Cases) -> Iterator[tuple[Shape, Shape, dict[str, Any]]]:
    """Yield (shape of the image, shape of the result, attributes) of every case."""
    for x, given in cases:
        yield x, (*x[:2], *forward(**given).counts(x[2:])), given


MaxPool = operator(
    "MaxPool", "The greatest value of every window over height and width.", _MaxPool, samples=_samples(TWO)
)
MaxPool3D = operator(
    "MaxPool3D", "The greatest value of every window over depth, height and width.", _MaxPool, dims=3,
    samples=_samples(THREE),
    arguments=("kernel_size", "strides", "pad_mode", "pad_list=pad", "ceil_mode", "data_format"),
)  # fmt: skip
MaxPoolGrad = operator(
    "MaxPoolGrad", "The gradient of MaxPool's images, from them, the result and its gradient.", _MaxPoolGrad,
    samples=tuple(sample(x, y, y, **given) for x, y, given in _of_gradients(MaxPool, TWO)),
)  # fmt: skip
MaxPool3DGrad = operator(
    "MaxPool3DGrad", "The gradient of MaxPool3D's images.", _MaxPoolGrad, dims=3,
    samples=tuple(sample(x, y, y, **given) for x, y, given in _of_gradients(MaxPool3D, THREE)),
)  # fmt: skip
_WITH_COUNTED = (*TWO, ((2, 2, 7, 8), _COUNTED))
AvgPool = operator(
    "AvgPool", "The mean of every window over height and width; padding does not count by default.", _AvgPool,
    samples=_samples(_WITH_COUNTED),
)  # fmt: skip


class AvgPool3D(_AvgPool):
    """The mean of every window over depth, height and width; padding counts by default."""

    count_include_pad: bool = True
    arguments = (
        "kernel_size", "strides", "pad_mode", "pad", "ceil_mode", "count_include_pad", "divisor_override",
        "data_format",
    )  # fmt: skip
    dims = 3
    samples = _samples(THREE)


AvgPoolGrad = operator(
    "AvgPoolGrad", "The gradient of AvgPool's images.", _AvgPoolGrad,
    samples=tuple(sample(y, input_size=x, **given) for x, y, given in _of_gradients(AvgPool, _WITH_COUNTED)),
)  # fmt: skip
AvgPool3DGrad = operator(
    "AvgPool3DGrad", "The gradient of AvgPool3D's images.", _AvgPoolGrad, dims=3,
    samples=tuple(sample(y, input_size=x, **given) for x, y, given in _of_gradients(AvgPool3D, THREE)),
)  # fmt: skip


class _Columns(Op, abstract=True):
    linear_in = (0,)
    float_only = True

    def given(self) -> tuple[Any, Any, Any, Any]:
        """Return (sizes, strides, dilations, padding) as they were given."""
        raise NotImplementedError

    def along(self) -> tuple[Window, Window]:
        """Return the window along height and width. Raise MspcError for bad attributes."""
        size, stride, dilation, pad = self.given()
        found = zip(
            numbers(self.name, "kernel size", size, 2), numbers(self.name, "stride", stride, 2),
            numbers(self.name, "dilation", dilation, 2), paddings(self.name, pad, 2), strict=True,
        )  # fmt: skip
        first, second = (Window(n, step, spread, *pair) for n, step, spread, pair in found)
        return first, second

    def sides(self, lengths: Shape) -> tuple[str, str]:
        """Return the rule's sides of images of these sizes and of columns."""
        along = self.along()
        counts = result_lengths(self.name, lengths, along)
        columns = f"k={math.prod(w.size for w in along)}! l={math.prod(counts)}!"
        return f"n c p0={lengths[0]}! p1={lengths[1]}!", f"n c {columns}"


class Im2Col(_Columns):
    """[n, c, places of a window, positions] of images [n, c, h, w]."""

    ksizes: Any = 1
    strides: Any = 1
    dilations: Any = 1
    pads: Any = 0
    samples = (
        sample((4, 4, 6, 5), ksizes=(3, 2), strides=(1, 2), pads=1),
        sample((2, 4, 7, 7), ksizes=2, dilations=(2, 3)),
    )

    def given(self) -> tuple[Any, Any, Any, Any]:
        return self.ksizes, self.strides, self.dilations, self.pads

    def rule(self, x: TensorType) -> str:
        if len(x.shape) != 4:
            raise MspcError(f"Im2Col: the image must have 4 dimensions, but its shape is {x.shape}", code="E0303")
        if 0 in x.shape[2:]:
            raise MspcError(f"Im2Col: the image of shape {x.shape} is empty")
        return " -> ".join(self.sides(x.shape[2:]))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        op = Col2Im(self.ksizes, self.dilations, self.pads, self.strides, x.shape[2:])
        return (b.emit(op, dout),)

    def compute(self, xp: Any, x: Any) -> Any:
        along = self.along()
        counts = result_lengths(self.name, x.shape[2:], along)
        found = xp.zeros((*x.shape[:2], *(w.size for w in along), *counts), x.dtype)
        for place in taps(along):
            inside, looked = met(along, place, x.shape[2:], counts)
            found[(slice(None), slice(None), *place, *inside)] = x[(slice(None), slice(None), *looked)]
        return found.reshape(*x.shape[:2], math.prod(w.size for w in along), math.prod(counts))


class Col2Im(_Columns):
    """Images [n, c, *output_size] whose positions are sums of the values for them in the columns [n, c, taps, windows].
    Called as `Col2Im(...)(x, output_size)`."""

    kernel_size: Any = 1
    dilation: Any = 1
    padding: Any = 0
    stride: Any = 1
    output_size: Any = ()
    settings = (("output_size", constant_of),)
    optional_settings = 1
    samples = (sample((4, 4, 6, 21), kernel_size=(3, 2), padding=1, stride=(1, 2), output_size=(7, 5)),)

    def given(self) -> tuple[Any, Any, Any, Any]:
        return self.kernel_size, self.stride, self.dilation, self.padding

    def rule(self, x: TensorType) -> str:
        lengths = numbers(self.name, "output_size", self.output_size, 2)
        if len(x.shape) != 4:
            raise MspcError(f"Col2Im: the columns must have 4 dimensions, but their shape is {x.shape}")
        image, columns = self.sides(lengths)
        along = self.along()
        expected = math.prod(w.size for w in along), math.prod(result_lengths(self.name, lengths, along))
        if x.shape[2:] != expected:
            raise MspcError(
                f"Col2Im: the columns have shape {x.shape}, but an image of {lengths} has {expected[0]} places of a "
                f"window and {expected[1]} positions"
            )
        return f"{columns} -> {image}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Im2Col(self.kernel_size, self.stride, self.dilation, self.padding), dout),)

    def compute(self, xp: Any, x: Any) -> Any:
        lengths, along = numbers(self.name, "output_size", self.output_size, 2), self.along()
        counts = result_lengths(self.name, lengths, along)
        columns = x.reshape(*x.shape[:2], *(w.size for w in along), *counts)
        found = xp.zeros((*x.shape[:2], *lengths), x.dtype)
        for place in taps(along):
            inside, looked = met(along, place, lengths, counts)
            found[(slice(None), slice(None), *looked)] += columns[(slice(None), slice(None), *place, *inside)]
        return found
