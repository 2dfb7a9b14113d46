"""Convolutions and their gradients, as matmuls of columns."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.bases import operator
from mspc.ops.collective.exchange import exchanged
from mspc.ops.convolution.window import (
    HALOS,
    Convolution,
    Shape,
    Window,
    like,
    local_groups,
    met,
    sharding_mistake,
    taps,
)
from mspc.ops.cpu.products import product, share_out
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import ArrayBackend, Gradients, Op, RankPlacement, sample
from mspc.ops.operator_arguments import shape_of
from mspc.sharding.halos import halo_bytes, halo_exchange, is_sharded, place_of, request, slice_span

COLUMN_ELEMENTS = 1 << 20
"""Elements of the columns made at a time: 4 MiB of Float32."""


def convolve(
    xp: Any, x: Any, weight: Any, along: Sequence[Window], counts: Sequence[int], groups: int, out: Any
) -> Any:
    """Fill `out` [batch, out channels, *counts]: sums over the input channels of the group and the window.

    x: [batch, in channels, ...]. weight: [out channels, in channels / groups, *sizes]. `out` is contiguous.
    """
    if not out.size or not weight.size:  # an image without places is only padding, which counts
        out[...] = 0
        return out
    if hasattr(xp, "convolved"):
        return xp.convolved("forward", x, weight, along, groups, out)
    matrix = weight.reshape(groups, weight.shape[0] // groups, -1)
    if _is_matmul(xp, along, x.shape[2:]):
        product(matrix, _by_image(x, groups), _by_image(out, groups))
        return out

    def work(batch: slice) -> None:
        found = xp.matmul(matrix, _columns(xp, x[batch], along, counts, groups))
        out[batch] = xp.moveaxis(found.reshape(out.shape[1], *counts, -1), -1, 0)

    share_out([functools.partial(work, batch) for batch in _blocks(x, along, counts)], out.size * matrix.shape[2])
    return out


def input_gradient(xp: Any, dout: Any, weight: Any, along: Sequence[Window], groups: int, out: Any) -> Any:
    """Fill `out` [batch, in channels, ...], the gradient of the image, from that of the result [batch, out channels,
    ...]: the columns' gradients, added up at places that columns share. `out` is contiguous."""
    if not out.size or not weight.size or not dout.size:
        out[...] = 0
        return out
    if hasattr(xp, "convolved"):
        return xp.convolved("image", dout, weight, along, groups, out)
    counts, lengths, places = dout.shape[2:], out.shape[2:], list(taps(along))
    turned = weight.reshape(groups, weight.shape[0] // groups, -1).swapaxes(1, 2)
    if _is_matmul(xp, along, lengths):
        product(turned, _by_image(dout, groups), _by_image(out, groups))
        return out

    def work(batch: slice) -> None:
        found = xp.matmul(turned, _by_channel(xp, dout[batch], groups))
        found = found.reshape(out.shape[1], len(places), *counts, -1)
        image = xp.zeros((out.shape[1], *lengths, found.shape[-1]), out.dtype)
        for number, place in enumerate(places):
            inside, looked = met(along, place, lengths, counts)
            target = image[(slice(None), *looked)]
            xp.add(target, found[(slice(None), number, *inside)], out=target)
        out[batch] = xp.moveaxis(image, -1, 0)

    share_out([functools.partial(work, batch) for batch in _blocks(out, along, counts)], dout.size * turned.shape[1])
    return out


def weight_gradient(xp: Any, dout: Any, x: Any, along: Sequence[Window], groups: int, out: Any) -> Any:
    """Fill `out` [out channels, in channels / groups, *sizes], the gradient of the weights, from that of the result
    [batch, out channels, ...]. `out` is contiguous."""
    if not dout.size or not out.size:
        out[...] = 0
        return out
    if hasattr(xp, "convolved"):
        return xp.convolved("weight", dout, x, along, groups, out)
    if _is_matmul(xp, along, x.shape[2:]):
        each = xp.matmul(_by_image(dout, groups), _by_image(x, groups).swapaxes(2, 3))
        out[...] = each.sum(axis=0).reshape(out.shape)
        return out
    counts, rows = dout.shape[2:], out.shape[0] // groups
    batches = _blocks(x, along, counts)
    sums = xp.empty((len(batches), groups, rows, out.size // out.shape[0]), out.dtype)

    def work(number: int) -> None:
        found = _columns(xp, x[batches[number]], along, counts, groups)
        sums[number] = xp.matmul(_by_channel(xp, dout[batches[number]], groups), found.swapaxes(1, 2))

    share_out([functools.partial(work, number) for number in range(len(batches))], dout.size * sums.shape[3])
    out[...] = sums.sum(axis=0).reshape(out.shape)
    return out


MANY_POSITIONS = 64
"""Positions of an image from which its share is worth a matmul of its own."""


def _is_matmul(xp: Any, along: Sequence[Window], lengths: Sequence[int]) -> bool:
    """Return whether every position reads only the element at its own place, and each image has many."""
    pairs = zip(along, lengths, strict=True)
    points = all(w.size == w.stride == 1 and w.before == 0 and w.count(n) == n for w, n in pairs)
    return points and xp is np and math.prod(lengths) >= MANY_POSITIONS


def _by_image(x: Any, groups: int) -> Any:
    """Return a view [images, groups, channels of a group, positions]."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, -1)


def _blocks(image: Any, along: Sequence[Window], counts: Sequence[int]) -> list[slice]:
    """Return the images whose columns are made together."""
    elements = image.shape[1] * math.prod(w.size for w in along) * math.prod(counts)
    step = max(1, COLUMN_ELEMENTS // max(elements, 1))
    return [slice(first, min(first + step, len(image))) for first in range(0, len(image), step)]


def _by_channel(xp: Any, x: Any, groups: int) -> Any:
    """Return [groups, channels of a group, positions and images]: with the images last, elements of small images are
    long runs."""
    return xp.moveaxis(x, 0, -1).reshape(groups, x.shape[1] // groups, -1)


def _columns(xp: Any, x: Any, along: Sequence[Window], counts: Sequence[int], groups: int) -> Any:
    """Return [groups, channels of a group and places of a window, positions and images]: the elements in every window
    of images, 0 for padding."""
    places, images = list(taps(along)), xp.ascontiguousarray(xp.moveaxis(x, 0, -1))
    found = xp.zeros((x.shape[1], len(places), *counts, x.shape[0]), x.dtype)
    for number, place in enumerate(places):
        inside, looked = met(along, place, x.shape[2:], counts)
        found[(slice(None), number, *inside)] = images[(slice(None), *looked)]
    return found.reshape(groups, x.shape[1] // groups * len(places), -1)


class _ConvolutionForward(Convolution, abstract=True):
    """x [batch, in channels, ...] by weights [out channels, in channels / group, *kernel_size]."""

    bordered: ClassVar[int | None] = 0

    def rule(self, x: TensorType, weight: TensorType) -> str:
        image, window, result = self.sides(x.shape, weight.shape)
        return f"{image}, {window} -> {result}"

    def sharding_mistake(self, types: Sequence[TensorType], operand: int, dimension: int, shards: int) -> str:
        return "" if operand else sharding_mistake(types[0].shape[2:], self.counts, self.along, dimension - 2, shards)

    def bprop(self, b: Builder, x: Value, weight: Value, out: Value, dout: Value) -> Gradients:
        dx = b.emit(like(self, f"Conv{self.dims}DBackpropInput", input_size=x.shape), dout, weight)
        return dx, b.emit(like(self, f"Conv{self.dims}DBackpropFilter", filter_size=weight.shape), dout, x)

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        x, weight = inputs
        if not is_sharded(placement.in_layouts[0]):
            return None
        image, along = self.with_halo(b, placement, 0, x)
        group = local_groups(self.group, *placement.in_layouts)
        return b.emit(self.on_rank(along, weight.shape[0], group), image, weight)

    def localize(self, placement: RankPlacement) -> Op:
        x, weight = placement.in_layouts
        shape = weight.local_shape(placement.in_types[1].shape)
        return replace(self, out_channel=shape[0], group=local_groups(self.group, x, weight))

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        return self.halo_traffic(types[0], layouts[0])

    def shapes(self, operands: Sequence[Shape]) -> tuple[Shape, Shape]:
        return operands[0], operands[1]

    def launch_on(self, device: Device, out: Array, x: Array, weight: Array) -> Launch | None:
        return self.convolved(device, "forward", x, weight, out)

    def kernel_on(self, be: ArrayBackend) -> Callable[..., Any]:
        xp = be.xp

        def kernel(x: Any, weight: Any, out: Any = None) -> Any:
            along, counts = self.along(x.shape[2:]), self.counts(x.shape[2:])
            if out is None:
                out = xp.empty((x.shape[0], weight.shape[0], *counts), x.dtype)
            return convolve(xp, x, weight, along, counts, self.group, out)

        return kernel


class _Backward(Convolution, abstract=True):
    """A gradient of `_ConvolutionForward`: operand 0 is the gradient of its result."""

    def on_slices(self, placement: RankPlacement) -> dict[str, Any]:
        """Return the attributes of the operator on a rank's slices."""
        raise NotImplementedError

    def localize(self, placement: RankPlacement) -> Op:
        return replace(self, **self.on_slices(placement))

    def check_result(self, dout: Shape, image: Shape, weight: Shape) -> None:
        """Raise MspcError if `dout` has not the shape of the forward operator's result."""
        expected = (image[0], weight[0], *self.counts(image[2:]))
        if dout != expected:
            raise MspcError(
                f"{self.name}: the gradient has shape {dout}, but images {image} and weights {weight} make {expected}"
            )


class InputGradient(_Backward, abstract=True):
    """The gradient of the image from that of the result and the weights; a transposed convolution.

    input_size: shape of the image.
    """

    input_size: tuple[int, ...] = ()
    bordered: ClassVar[int | None] = 0
    work = "convolution_inputs"
    sizes_of = ("input_size",)
    settings = (("input_size", shape_of),)
    optional_settings = 1

    def rule(self, dout: TensorType, weight: TensorType) -> str:
        image, window, result = self.sides(self.input_size, weight.shape)
        self.check_result(dout.shape, self.input_size, weight.shape)
        return f"{result}, {window} -> {image}"

    def bprop(self, b: Builder, dout: Value, weight: Value, out: Value, second: Value) -> Gradients:
        again = b.emit(like(self, f"Conv{self.dims}D"), second, weight)
        return again, b.emit(like(self, f"Conv{self.dims}DBackpropFilter", filter_size=weight.shape), dout, second)

    def shapes(self, operands: Sequence[Shape]) -> tuple[Shape, Shape]:
        return self.input_size, operands[1]

    def on_slices(self, placement: RankPlacement) -> dict[str, Any]:
        weight = placement.in_layouts[1]
        return {
            "out_channel": weight.local_shape(placement.in_types[1].shape)[0],
            "group": local_groups(self.group, placement.out_layouts[0], weight),
            "input_size": placement.out_layouts[0].local_shape(self.input_size),
        }

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        layout, types = placement.in_layouts[0], placement.in_types
        if not is_sharded(layout):
            return None
        shape, lengths, slice_counts = types[0].shape, self.input_size[2:], layout.strategy[2:]
        needed, here = self.positions(lengths, layout), place_of(layout, placement.rank)
        part = halo_exchange(layout, shape, placement.rank, needed)
        wide = exchanged(b, inputs[0], part, layout.ranks, HALOS, request(layout, shape, needed))
        along = [
            window.on_places(slice_span(lengths[d], slice_counts[d], i), needed(d, i))
            for d, (window, i) in enumerate(zip(self.along(lengths), here, strict=True))
        ]
        local = replace(self, **self.on_slices(placement))
        return b.emit(local.on_rank(along, local.out_channel, local.group), wide, inputs[1])

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        if not is_sharded(layouts[0]):
            return 0.0
        return halo_bytes(types[0], layouts[0], self.positions(self.input_size[2:], layouts[0]))

    def launch_on(self, device: Device, out: Array, dout: Array, weight: Array) -> Launch | None:
        return self.convolved(device, "image", out, weight, dout)

    def kernel_on(self, be: ArrayBackend) -> Callable[..., Any]:
        xp, along = be.xp, self.along(self.input_size[2:])

        def kernel(dout: Any, weight: Any, out: Any = None) -> Any:
            out = xp.empty(self.input_size, dout.dtype) if out is None else out
            return input_gradient(xp, dout, weight, along, self.group, out)

        return kernel


class WeightGradient(_Backward, abstract=True):
    """The gradient of the weights from that of the result and the image.

    filter_size: shape of the weights.
    """

    makes_images = False

    filter_size: tuple[int, ...] = ()
    bordered: ClassVar[int | None] = 1
    work = "convolution_filters"
    sizes_of = ("filter_size",)
    settings = (("filter_size", shape_of),)
    optional_settings = 1

    def rule(self, dout: TensorType, x: TensorType) -> str:
        image, _, result = self.sides(x.shape, self.filter_size)
        self.check_result(dout.shape, x.shape, self.filter_size)
        sizes = " ".join(f"s{d}={n}!" for d, n in enumerate(self.filter_size[2:]))
        lead = f"(g={self.group} o)" if self.group > 1 else "o"
        return f"{result}, {image} -> {lead} i {sizes}"

    def bprop(self, b: Builder, dout: Value, x: Value, out: Value, second: Value) -> Gradients:
        again = b.emit(like(self, f"Conv{self.dims}D"), x, second)
        return again, b.emit(like(self, f"Conv{self.dims}DBackpropInput", input_size=x.shape), dout, second)

    def shapes(self, operands: Sequence[Shape]) -> tuple[Shape, Shape]:
        return operands[1], self.filter_size

    def on_slices(self, placement: RankPlacement) -> dict[str, Any]:
        shape = placement.out_layouts[0].local_shape(self.filter_size)
        group = local_groups(self.group, placement.in_layouts[1], placement.out_layouts[0])
        return {"out_channel": shape[0], "group": group, "filter_size": shape}

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        dout, x = inputs
        if not is_sharded(placement.in_layouts[1]):
            return None
        image, along = self.with_halo(b, placement, 1, x, again=True)
        local = replace(self, **self.on_slices(placement))
        return b.emit(local.on_rank(along, local.out_channel, local.group), dout, image)

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        return self.halo_traffic(types[1], layouts[1])

    def launch_on(self, device: Device, out: Array, dout: Array, x: Array) -> Launch | None:
        return self.convolved(device, "weight", x, out, dout)

    def kernel_on(self, be: ArrayBackend) -> Callable[..., Any]:
        xp = be.xp

        def kernel(dout: Any, x: Any, out: Any = None) -> Any:
            out = xp.empty(self.filter_size, dout.dtype) if out is None else out
            return weight_gradient(xp, dout, x, self.along(x.shape[2:]), self.group, out)

        return kernel


_TWO: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((4, 4, 8, 8), (8, 4, 3, 3), {"pad_mode": "same"}),
    ((2, 4, 9, 8), (4, 4, 3, 2), {"stride": (2, 1), "pad_mode": "pad", "pad": (1, 2, 0, 1)}),
    ((2, 8, 8, 8), (8, 2, 3, 3), {"group": 4, "stride": 2, "pad_mode": "same"}),
    ((2, 4, 8, 4), (8, 1, 3, 1), {"group": 4, "dilation": (2, 1), "pad_mode": "pad", "pad": (2, 2, 0, 0)}),
    ((4, 4, 4, 4), (4, 4, 1, 1), {"stride": 2}),
)  # fmt: skip
_THREE: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((2, 4, 4, 4, 4), (4, 4, 3, 3, 3), {"pad_mode": "same"}),
    ((2, 2, 5, 4, 4), (4, 1, 2, 3, 2), {"group": 2, "stride": (1, 2, 1), "pad_mode": "pad", "pad": (0, 1, 1, 1, 0, 0)}),
)


def convolutions(
    name: str, cases: Sequence[tuple[Shape, Shape, dict[str, Any]]], texts: Sequence[str], dims: int, **of_inputs: Any
) -> tuple[type[_ConvolutionForward], type[InputGradient], type[WeightGradient]]:
    """Make a convolution and its gradients in images and in weights. cases: images, weights and other attributes of
    samples. of_inputs: declarations of the gradient in images."""
    given: list[tuple[Shape, Shape, dict[str, Any]]] = [
        (x, w, {"out_channel": w[0], "kernel_size": w[2:], **fields}) for x, w, fields in cases
    ]
    samples = tuple(sample(x, w, **fields) for x, w, fields in given)
    made = operator(name, texts[0], _ConvolutionForward, dims=dims, samples=samples)
    results = [(x[0], w[0], *made(**fields).counts(x[2:])) for x, w, fields in given]
    pairs = list(zip(given, results, strict=True))
    samples = tuple(sample(y, w, input_size=x, **fields) for (x, w, fields), y in pairs)
    inputs = operator(f"{name}BackpropInput", texts[1], InputGradient, dims=dims, samples=samples, **of_inputs)
    samples = tuple(sample(y, x, filter_size=w, **fields) for (x, w, fields), y in pairs)
    return made, inputs, operator(f"{name}BackpropFilter", texts[2], WeightGradient, dims=dims, samples=samples)


Conv2D, Conv2DBackpropInput, Conv2DBackpropFilter = convolutions(
    "Conv2D", _TWO, (
        "A convolution over height and width: images [n, c, h, w], weights [out channels, c / group, *kernel_size].",
        "The gradient of Conv2D's images; also a transposed convolution of images [n, out channels, h, w].",
        "The gradient of Conv2D's weights.",
    ), dims=2, arguments=("out_channel", "kernel_size", "pad_mode", "pad"),
)  # fmt: skip
Conv3D, Conv3DBackpropInput, Conv3DBackpropFilter = convolutions(
    "Conv3D", _THREE, (
        "A convolution over depth, height and width.", "The gradient of Conv3D's images.",
        "The gradient of Conv3D's weights.",
    ), dims=3,
)  # fmt: skip
Conv2DTranspose = operator(
    "Conv2DTranspose", "A transposed convolution of images: Conv2DBackpropInput as scripts call it.",
    Conv2DBackpropInput, samples=Conv2DBackpropInput.samples[:2],
)  # fmt: skip
Conv3DTranspose = operator(
    "Conv3DTranspose", "A transposed convolution of images of three dimensions.", Conv3DBackpropInput,
    samples=Conv3DBackpropInput.samples[:1],
)  # fmt: skip
