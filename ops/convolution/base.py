"""Convolutions share this base: attributes, and the rule over batch, channels, groups and the dimensions of the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.bases import require_same
from mspc.ops.collective.exchange import exchanged
from mspc.ops.convolution.device_products import convolution_by_products
from mspc.ops.convolution.memory_format import ImageOperator, Shape
from mspc.ops.convolution.window import Window, numbers, places_of_slices, result_lengths, slices_of, windows
from mspc.ops.device import Array, Device, Launch, Sliding
from mspc.ops.op import ArrayBackend, RankPlacement
from mspc.sharding.borders import Needed, border_bytes, border_exchange, is_sharded, own_span, place_of, request

BORDERS = "windows at the border of a slice look at the slices beside it"


class Convolution(ImageOperator, abstract=True):
    """Attributes as MindSpore's: each of kernel_size, stride and dilation one integer or one per dimension of the
    image; pad one integer, or two per dimension; pad_mode "same", "valid" or "pad"."""

    out_channel: int = 1
    kernel_size: Any = 1
    mode: int = 1
    pad_mode: str = "valid"
    pad: Any = 0
    stride: Any = 1
    dilation: Any = 1
    group: int = 1
    data_format: str = ""
    work = "convolutions"
    wants_channels_last = True
    linear_in = (0, 1)
    omitted = ("mode", "data_format")

    def sizes(self) -> Shape:
        """Places of the window along every dimension."""
        return numbers(self.name, "kernel_size", self.kernel_size, self.dims)

    def along(self, lengths: Sequence[int]) -> tuple[Window, ...]:
        """The window along every dimension of an image of these lengths. Raises MspcError for bad attributes."""
        strides = numbers(self.name, "stride", self.stride, self.dims)
        dilations = numbers(self.name, "dilation", self.dilation, self.dims)
        return windows(self.name, lengths, self.sizes(), strides, dilations, self.pad_mode, self.pad)

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_same(self.name, *types)
        return inferred

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.kernel(be)(*inputs)

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        return None if self.channels_last else self.kernel_on(be)

    def check(self, image: Shape, weight: Shape) -> None:
        """Raises MspcError where image and weights do not fit each other or the attributes."""
        order = {2: "NCHW", 3: "NCDHW"}[self.dims]
        if self.data_format not in ("", order):
            raise MspcError(f"{self.name}: data_format must be {order!r}, not {self.data_format!r}")
        if self.mode != 1:
            raise MspcError(f"{self.name}: mode must be 1, a cross correlation, not {self.mode!r}")
        for what, shape in (("x", image), ("weight", weight)):
            if len(shape) != self.dims + 2:
                raise MspcError(f"{self.name}: {what} must have {self.dims + 2} dimensions, but its shape is {shape}")
        group: Any = self.group
        if isinstance(group, bool) or not isinstance(group, int) or group < 1:
            raise MspcError(f"{self.name}: group must be a positive integer, not {group!r}")
        for what, count in (("in", image[1]), ("out", weight[0])):
            if count % group:
                raise MspcError(f"{self.name}: {count} {what} channels cannot be shared out to {group} groups")
        if image[1] != weight[1] * group:
            asked = f"{weight[1]} of each of {group} groups" if group > 1 else f"{weight[1]}"
            raise MspcError(f"{self.name}: x has {image[1]} channels, but the weight of shape {weight} takes {asked}")
        if weight[0] != self.out_channel:
            raise MspcError(
                f"{self.name}: out_channel is {self.out_channel}, but the weight of shape {weight} makes {weight[0]}"
            )
        if weight[2:] != self.sizes():
            raise MspcError(f"{self.name}: kernel_size is {self.kernel_size}, but the weight's shape is {weight}")

    def counts(self, lengths: Sequence[int]) -> Shape:
        """Positions along every dimension of an image of these lengths."""
        return result_lengths(self.name, lengths, self.along(lengths))

    def sides(self, image: Shape, weight: Shape) -> tuple[str, str, str]:
        """The rule's sides of image, weights and result. Raises MspcError where they do not fit."""
        self.check(image, weight)
        places, positions = image_tokens(image[2:], self.counts(image[2:]), self.along(image[2:]))
        window = " ".join(f"s{d}!" for d in range(self.dims))
        if self.group == 1:
            return f"n i {places}", f"o i {window}", f"n o {positions}"
        grouped = f"(g={self.group} i) {places}", f"(g={self.group} o) i {window}", f"(g={self.group} o) {positions}"
        return f"n {grouped[0]}", grouped[1], f"n {grouped[2]}"

    def image_and_weights(self, types: Sequence[TensorType]) -> tuple[Shape, Shape]:
        """The shapes of the image and of the weights, channels second, for operands of these types."""
        raise NotImplementedError

    def operations(self, types: Sequence[TensorType]) -> float:
        return self.amount(*self.image_and_weights(types))

    def amount(self, image: Shape, weight: Shape) -> float:
        """Floating-point operations of the products."""
        return 2.0 * image[0] * math.prod(weight) * math.prod(self.counts(image[2:]))

    def convolved(self, device: Device, kind: str, image: Array, weight: Array, result: Array) -> Launch | None:
        """See `Device.convolution`; by products of matrices where the device has none."""
        along = self.along(image.shape[2:])
        windows = [Sliding(w.before, w.after, w.stride, w.dilation) for w in along]
        found = device.convolution(kind, image, weight, result, windows)
        return found or convolution_by_products(device, kind, image, weight, result, along)

    def needed(self, type: TensorType, layout: Layout) -> Needed:
        """Which places of the image the holder of a slice of the result looks at."""
        lengths = type.shape[2:]
        return places_of_slices(self.along(lengths), lengths, self.counts(lengths), layout.strategy[2:])

    def with_borders(
        self, b: Builder, placement: RankPlacement, index: int, image: Value, again: bool = False
    ) -> tuple[Value, list[Window]]:
        """What a rank's slice of the result looks at, from its slice of the image, operand `index`, and the borders of
        its neighbours'; and the windows on it. again: see `exchanged`."""
        type, layout = placement.in_types[index], placement.in_layouts[index]
        needed, lengths = self.needed(type, layout), type.shape[2:]
        part = border_exchange(layout, type.shape, placement.rank, needed)
        wide = exchanged(b, image, part, layout.ranks, BORDERS, request(layout, type.shape, needed), again)
        counts, slice_counts, here = self.counts(lengths), layout.strategy[2:], place_of(layout, placement.rank)
        return wide, [
            window.on_places(needed(d, i), own_span(counts[d], slice_counts[d], i))
            for d, (window, i) in enumerate(zip(self.along(lengths), here, strict=True))
        ]

    def bytes_of_borders(self, type: TensorType, layout: Layout) -> float:
        """Bytes that `with_borders` sends, of an image of this type and layout."""
        return border_bytes(type, layout, self.needed(type, layout)) if is_sharded(layout) else 0.0

    def on_rank(self, along: Sequence[Window], out_channel: int, group: int, **others: Any) -> Any:
        """The operator on a slice, whose windows are `along`."""
        pad = tuple(n for w in along for n in (w.before, w.after))
        return replace(self, out_channel=out_channel, pad_mode="pad", pad=pad, group=group, **others)


def image_tokens(lengths: Sequence[int], counts: Sequence[int], along: Sequence[Window]) -> tuple[str, str]:
    """Factors of the dimensions of an image and of the result: both are sharded together, or not at all."""
    image: list[str] = []
    result: list[str] = []
    for d, (length, count, window) in enumerate(zip(lengths, counts, along, strict=True)):
        parts = slices_of(length, count, window)
        if parts == 1:
            image.append(f"p{d}={length}!")
            result.append(f"q{d}={count}!")
        else:
            image.append(f"(y{d}={parts} p{d}={length // parts}!)")
            result.append(f"(y{d}={parts} q{d}={count // parts}!)")
    return " ".join(image), " ".join(result)


def local_groups(group: int, image: Layout, weight: Layout) -> int:
    """Groups that are left on a rank, from the layouts of image (or result) and weights."""
    if group == 1:
        return 1
    return group // (image.strategy[1] // weight.strategy[1])
