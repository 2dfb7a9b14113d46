"""Convolutions and their gradients, as matmuls and channel by channel."""

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
    blocks,
    chunks,
    columns,
    gathered,
    is_point,
    like,
    local_groups,
    met,
    multiplied,
    reach_of,
    scratch_array,
    sharding_mistake,
    spread,
    taps,
)
from mspc.ops.cpu.blocks import thread_count
from mspc.ops.cpu.products import product, share_out
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import ArrayBackend, Gradients, Op, RankPlacement, sample
from mspc.ops.operator_arguments import shape_of
from mspc.sharding.halos import Span, halo_bytes, halo_exchange, is_sharded, place_of, request, slice_span


def depthwise(xp: Any, x: Any, weight: Any, along: Sequence[Window], counts: Sequence[int], out: Any) -> Any:
    """Do `convolve` for depthwise weights [out channels, 1, *sizes]."""
    channels = x.shape[1]
    scaled = _by_place(weight, channels, len(counts))

    def work(batch: slice) -> None:
        image = gathered(xp, x[batch])
        total = xp.zeros((channels, scaled.shape[2], *counts, image.shape[-1]), out.dtype)
        for factor, place in zip(scaled, taps(along), strict=True):
            inside, looked = met(along, place, x.shape[2:], counts)
            target = total[(slice(None), slice(None), *inside)]
            xp.add(target, image[(slice(None), *looked)][:, None] * factor, out=target)
        out[batch] = xp.moveaxis(total.reshape(-1, *total.shape[2:]), -1, 0)

    batches = _blocks(xp, x.shape[0], along, counts)
    share_out([functools.partial(work, batch) for batch in batches], out.size * len(scaled))
    return out


def depthwise_input_gradient(xp: Any, dout: Any, weight: Any, along: Sequence[Window], out: Any) -> Any:
    """Do `input_gradient` for depthwise weights."""
    channels, lengths, counts = out.shape[1], out.shape[2:], dout.shape[2:]
    scaled = _by_place(weight, channels, len(counts))

    def work(batch: slice) -> None:
        given = gathered(xp, dout[batch])
        given = given.reshape(channels, -1, *given.shape[1:])
        total = xp.zeros((channels, *lengths, given.shape[-1]), out.dtype)
        for factor, place in zip(scaled, taps(along), strict=True):
            inside, looked = met(along, place, lengths, counts)
            target = total[(slice(None), *looked)]
            for each in range(given.shape[1]):
                xp.add(target, given[(slice(None), each, *inside)] * factor[:, each], out=target)
        out[batch] = xp.moveaxis(total, -1, 0)

    batches = _blocks(xp, out.shape[0], along, counts)
    share_out([functools.partial(work, batch) for batch in batches], dout.size * len(scaled))
    return out


def depthwise_weight_gradient(xp: Any, dout: Any, x: Any, along: Sequence[Window], out: Any) -> Any:
    """Do `weight_gradient` for depthwise weights."""
    channels, lengths, counts = x.shape[1], x.shape[2:], dout.shape[2:]
    places = list(taps(along))
    batches = _blocks(xp, x.shape[0], along, counts)
    sums = xp.empty((len(batches), channels, out.shape[0] // channels, len(places)), out.dtype)

    def work(number: int) -> None:
        image, given = gathered(xp, x[batches[number]]), gathered(xp, dout[batches[number]], stays=True)
        given = given.reshape(channels, -1, *given.shape[1:])
        for index, place in enumerate(places):
            inside, looked = met(along, place, lengths, counts)
            products = given[(slice(None), slice(None), *inside)] * image[(slice(None), *looked)][:, None]
            sums[number, :, :, index] = products.reshape(*products.shape[:2], -1).sum(axis=2)

    share_out([functools.partial(work, number) for number in range(len(batches))], dout.size * len(places))
    out[...] = sums.sum(axis=0).reshape(out.shape)
    return out


def _blocks(xp: Any, batch: int, along: Sequence[Window], counts: Sequence[int]) -> list[slice]:
    """Return `blocks`, but single images if there is a stride and rows have more positions than blocks have images:
    arithmetic with strides then has longer runs along the positions."""
    together = blocks(xp, batch, along, counts)
    if xp is np and along[-1].stride > 1 and counts[-1] > together[0].stop:
        return [slice(i, i + 1) for i in range(batch)]
    return together


def _by_place(weight: Any, channels: int, dims: int) -> Any:
    """Return the weights at every tap: [taps, channels, results per channel, 1, ...]."""
    each = weight.shape[0] // channels
    window = math.prod(weight.shape[2:])
    return weight.reshape(channels, each, window).transpose(2, 0, 1).reshape(window, channels, each, *[1] * (dims + 1))

LONG_SUM = 512
"""Positions of an image from which its share of the weights' gradient is worth a matmul, and a pass over the sum."""


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
    if weight.shape[1] == 1 and groups > 1 and _finite(xp, weight):
        return depthwise(xp, x, weight, along, counts, out)
    matrix = weight.reshape(groups, weight.shape[0] // groups, -1)
    by_group = out.reshape(out.shape[0], groups, matrix.shape[1], *counts)
    flat = out.reshape(*by_group.shape[:3], -1)
    batches = blocks(xp, x.shape[0], along, counts)
    if xp is np and batches[0].stop == 1 and is_point(along, x.shape[2:]):
        product(matrix, x.reshape(x.shape[0], groups, matrix.shape[2], -1), flat)
        return out
    pieces = chunks(xp, groups * matrix.shape[2], counts, batches[0].stop)
    reach = reach_of(along, counts)

    def multiply(found: Any, batch: slice, rows: Span, made: Span) -> None:
        factor = matrix[:, slice(*made)]
        images = batch.stop - batch.start
        if images == 1 and xp is np:
            row = math.prod(counts[1:])
            target = flat[batch.start, :, slice(*made), rows[0] * row : rows[1] * row]
            np.matmul(factor, found, out=target)
            return
        results = multiplied(xp, factor, found).reshape(groups, made[1] - made[0], -1, *counts[1:], images)
        by_group[batch, :, slice(*made), slice(*rows)] = xp.moveaxis(results, -1, 0)

    def prepared(image: Any, rows: Span) -> Any:
        return columns(xp, image, along, counts, rows).reshape(groups, matrix.shape[2], -1)

    def piece(image: Any, batch: slice, rows: Span) -> None:
        multiply(prepared(image, rows), batch, rows, (0, matrix.shape[1]))

    def all_pieces(batch: slice) -> None:
        image = gathered(xp, x[batch], reach)
        for rows in pieces:
            piece(image, batch, rows)

    multiplications = out.size * matrix.shape[2]
    if len(batches) >= _threads(xp):
        share_out([functools.partial(all_pieces, batch) for batch in batches], multiplications)
        return out
    for batch in batches:
        image = gathered(xp, x[batch], reach)
        if len(pieces) >= _threads(xp):
            share_out([functools.partial(piece, image, batch, rows) for rows in pieces], multiplications)
            continue
        for rows in pieces:
            found = prepared(image, rows)
            parts = [functools.partial(multiply, found, batch, rows, made) for made in _parts(xp, matrix.shape[1])]
            share_out(parts, multiplications)
    return out


def input_gradient(xp: Any, dout: Any, weight: Any, along: Sequence[Window], groups: int, out: Any) -> Any:
    """Fill `out` [batch, in channels, ...], the gradient of the image, from that of the result [batch, out channels,
    ...]: the columns' gradients, added up at places that columns share. `out` is contiguous."""
    if not out.size or not weight.size or not dout.size:
        out[...] = 0
        return out
    if hasattr(xp, "convolved"):
        return xp.convolved("image", dout, weight, along, groups, out)
    if weight.shape[1] == 1 and groups > 1:
        return depthwise_input_gradient(xp, dout, weight, along, out)
    counts, lengths, window = dout.shape[2:], out.shape[2:], math.prod(weight.shape[2:])
    turned = weight.reshape(groups, weight.shape[0] // groups, -1).swapaxes(1, 2)
    by_group = out.reshape(out.shape[0], groups, weight.shape[1], *lengths)
    flat = out.reshape(*by_group.shape[:3], -1)
    batches = blocks(xp, dout.shape[0], along, counts)
    point = is_point(along, lengths)
    if xp is np and batches[0].stop == 1 and point:
        product(turned, dout.reshape(dout.shape[0], groups, turned.shape[2], -1), flat)
        return out
    pieces = chunks(xp, groups * turned.shape[1], counts, batches[0].stop)

    def work(batch: slice, part: Span) -> None:
        given = gathered(xp, dout[batch])
        factor = turned[:, part[0] * window : part[1] * window]
        images = given.shape[-1]
        if point and images == 1 and xp is np:
            target = flat[batch.start, :, slice(*part)]
            np.matmul(factor, given.reshape(groups, turned.shape[2], -1), out=target)
            return
        image = scratch_array(xp, "image", (groups * (part[1] - part[0]), *lengths, images), out.dtype)
        image[...] = 0
        for rows in pieces:
            some = given[:, slice(*rows)].reshape(groups, turned.shape[2], -1)
            spread(xp, multiplied(xp, factor, some), image, along, counts, rows)
        by_group[batch, :, slice(*part)] = xp.moveaxis(image.reshape(groups, -1, *image.shape[1:]), -1, 0)

    parts = _parts(xp, weight.shape[1]) if len(batches) < _threads(xp) else [(0, weight.shape[1])]
    calls = [functools.partial(work, batch, part) for batch in batches for part in parts]
    share_out(calls, dout.size * turned.shape[1])
    return out


def weight_gradient(xp: Any, dout: Any, x: Any, along: Sequence[Window], groups: int, out: Any) -> Any:
    """Fill `out` [out channels, in channels / groups, *sizes], the gradient of the weights, from that of the result
    [batch, out channels, ...]. `out` is contiguous."""
    if not dout.size or not out.size:
        out[...] = 0
        return out
    if hasattr(xp, "convolved"):
        return xp.convolved("weight", dout, x, along, groups, out)
    if out.shape[1] == 1 and groups > 1 and _finite(xp, dout):
        return depthwise_weight_gradient(xp, dout, x, along, out)
    counts, window = dout.shape[2:], math.prod(out.shape[2:])
    by_group = x.reshape(x.shape[0], groups, out.shape[1], *x.shape[2:])
    matrix = out.reshape(groups, out.shape[0] // groups, -1)
    batches = blocks(xp, x.shape[0], along, counts, least=LONG_SUM)
    pieces = chunks(xp, groups * matrix.shape[2], counts, batches[0].stop)
    reach = reach_of(along, counts)
    given = [gathered(xp, dout[batch], stays=True) for batch in batches]

    def work(part: Span) -> None:
        target = matrix[:, :, part[0] * window : part[1] * window]
        begun = False
        for batch, result in zip(batches, given, strict=True):
            some = by_group[batch, :, slice(*part)]
            channels = groups * (part[1] - part[0])
            image = gathered(xp, some.reshape(some.shape[0], channels, *x.shape[2:]), reach)
            for rows in pieces:
                found = columns(xp, image, along, counts, rows).reshape(groups, target.shape[2], -1)
                left = result[:, slice(*rows)].reshape(groups, matrix.shape[1], -1)
                if begun:
                    xp.add(target, multiplied(xp, left, found.swapaxes(1, 2)), out=target)
                else:
                    target[...] = multiplied(xp, left, found.swapaxes(1, 2))
                begun = True

    calls = [functools.partial(work, part) for part in _parts(xp, out.shape[1])]
    share_out(calls, dout.size * matrix.shape[2])
    return out


def _finite(xp: Any, factors: Any) -> bool:
    """Return whether skipping padding is exact: with infinite weights 0 * inf is NaN. Only checked on CPUs, because a
    GPU would have to be synchronised, and has kernels of its own."""
    return xp is not np or bool(np.isfinite(factors).all())


def _threads(xp: Any) -> int:
    return thread_count() if xp is np else 1


def _parts(xp: Any, channels: int) -> list[Span]:
    """Return the channels in parts of about the same size, one for each thread."""
    number = min(_threads(xp), channels)
    bounds = [channels * i // number for i in range(number + 1)]
    return [(bounds[i], bounds[i + 1]) for i in range(number)]


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
