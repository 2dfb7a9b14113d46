"""Pooling operators share this base: attributes, the rule over batch, channels and the image, and borders of slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.bases import require_float
from mspc.ops.collective.exchange import exchanged
from mspc.ops.convolution.base import BORDERS, image_tokens
from mspc.ops.convolution.memory_format import ImageOperator, Shape
from mspc.ops.convolution.window import (
    Window,
    clipped,
    numbers,
    places_of_slices,
    positions_of_slices,
    result_lengths,
    sharding_mistake,
    windows,
)
from mspc.ops.op import RankPlacement
from mspc.ops.tensor.slicing import StridedSlice
from mspc.sharding.borders import Needed, Span, border_bytes, border_exchange, is_sharded, own_span, place_of

TWO: tuple[tuple[Shape, dict[str, Any]], ...] = (
    ((4, 4, 8, 8), {"kernel_size": 2, "strides": 2}),
    ((2, 4, 8, 8), {"kernel_size": 3, "strides": 2, "pad_mode": "same"}),
    ((2, 4, 8, 6), {"kernel_size": (3, 2), "strides": (1, 2), "pad_mode": "pad", "pad": (1, 1, 0, 1)}),
    ((2, 2, 7, 8), {"kernel_size": 3, "strides": 2, "ceil_mode": True}),
    ((1, 2, 6, 4), {"kernel_size": (3, 2), "strides": 3}),
)
THREE: tuple[tuple[Shape, dict[str, Any]], ...] = (
    ((2, 2, 4, 4, 4), {"kernel_size": 2, "strides": 2}),
    ((2, 2, 4, 5, 4), {"kernel_size": (2, 3, 2), "strides": (2, 1, 1), "pad_mode": "same"}),
)


class Pooling(ImageOperator, abstract=True):
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
            pads = (window.before, window.after)
            if self.pad_mode.lower() != "pad" or 2 * max(pads) <= window.extent:
                continue
            if self.dims == 2:
                raise MspcError(
                    f"{self.name}: a padding of {max(pads)} along dimension {d + 2} is more than half of the window's "
                    f"{window.extent}"
                )
            if sum(pads) > window.extent or max(pads) == window.extent:
                raise MspcError(
                    f"{self.name}: paddings of {pads[0]} and {pads[1]} along dimension {d + 2} must be smaller than "
                    f"the window's {window.extent}, both together at most as large"
                )
        places, positions = image_tokens(image[2:], self.counts(image[2:]), self.exact(image[2:]))
        return f"n c {places}", f"n c {positions}"

    def on_rank(self, along: Sequence[Window], **others: Any) -> Any:
        """The operator on a slice, whose windows are `along`."""
        pad = tuple(n for w in along for n in (w.before, w.after))
        return replace(self, pad_mode="pad", pad=pad, ceil_mode=False, **others)

    def needed(self, lengths: Sequence[int], layout: Layout) -> Needed:
        """Which places of the image the holder of a slice of the result looks at."""
        return places_of_slices(self.exact(lengths), lengths, self.counts(lengths), layout.strategy[2:])

    def positions(self, lengths: Sequence[int], layout: Layout) -> Needed:
        """Which positions of the result look at a slice of the image."""
        return positions_of_slices(self.exact(lengths), lengths, self.counts(lengths), layout.strategy[2:])


class PoolingForward(Pooling, abstract=True):
    def rule(self, x: TensorType) -> str:
        return " -> ".join(self.sides(x.shape))

    def sharding_mistake(self, types: Sequence[TensorType], operand: int, dimension: int, shards: int) -> str:
        return sharding_mistake(types[0].shape[2:], self.counts, self.exact, dimension - 2, shards)

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        return super().infer(*types)

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        type, layout = placement.in_types[0], placement.in_layouts[0]
        if not is_sharded(layout):
            return None
        lengths = type.shape[2:]
        needed, counts, slice_counts = self.needed(lengths, layout), self.counts(lengths), layout.strategy[2:]
        part = border_exchange(layout, type.shape, placement.rank, needed)
        along = [
            window.on_places(needed(d, i), own_span(counts[d], slice_counts[d], i))
            for d, (window, i) in enumerate(zip(self.exact(lengths), place_of(layout, placement.rank), strict=True))
        ]
        return b.emit(self.on_rank(along), exchanged(b, inputs[0], part, layout.ranks, BORDERS))

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        if not is_sharded(layouts[0]):
            return 0.0
        return border_bytes(types[0], layouts[0], self.needed(types[0].shape[2:], layouts[0]))


class PoolingBackward(Pooling, abstract=True):
    """The gradient of an image: on a rank computed for all places that windows look at which touch its slice."""

    def on_slice(
        self, b: Builder, placement: RankPlacement, inputs: Sequence[Value], shape: Shape, images: int
    ) -> Value:
        """Emit the operator on a slice of an image of the global `shape`; the first `images` operands are images."""
        layout, lengths = placement.in_layouts[0], shape[2:]
        touching, along, slice_counts = self.positions(lengths, layout), self.exact(lengths), layout.strategy[2:]

        def seen(d: int, part: int) -> Span:
            first, end = clipped(along[d].places(touching(d, part)), lengths[d])
            own = own_span(lengths[d], slice_counts[d], part)  # no window may look at the last places
            return min(first, own[0]), max(end, own[1])

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
        spans = [(seen(d, i), own_span(lengths[d], slice_counts[d], i)) for d, i in enumerate(here)]
        local = [w.on_places(seen(d, i), touching(d, i)) for d, (w, i) in enumerate(zip(along, here, strict=True))]
        size = (*placement.out_layouts[0].local_shape(shape)[:2], *(wide[1] - wide[0] for wide, _ in spans))
        found = b.emit(self.on_rank(local, **({} if images else {"input_size": size})), *operands)
        begin = (0, 0, *(own[0] - wide[0] for wide, own in spans))
        end = (*size[:2], *(own[1] - wide[0] for wide, own in spans))
        if end == size and not any(begin):
            return found
        return b.emit(StridedSlice(begin=begin, end=end, strides=(1,) * len(end)), found)


def alike(op: Pooling, other: type[Any], **more: Any) -> Any:
    """An operator of another class with the attributes that all pooling has."""
    return other(**{f.name: getattr(op, f.name) for f in fields(Pooling)}, **more)


def pooled_shape(op: type[Pooling], image: Shape, given: dict[str, Any]) -> Shape:
    return (*image[:2], *op(**given).counts(image[2:]))
