"""Windows that slide over images, and margins around them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from math import gcd
from typing import Any, ClassVar, Self, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.collective.exchange import exchanged
from mspc.ops.device import Array, Device, Launch, Sliding
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import REGISTRY, ArrayBackend, Op, RankPlacement
from mspc.sharding.halos import Needed, Span, halo_bytes, halo_exchange, is_sharded, place_of, request, slice_span

MODES = ("same", "valid", "pad")


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one dimension. before, after: padding before and after the image; a negative one leaves out places
    of the image."""

    size: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    @property
    def extent(self) -> int:
        """Number of positions from the first to the last tap of the window."""
        return (self.size - 1) * self.dilation + 1

    def count(self, length: int, ceil: bool | None = False) -> int:
        """Return the number of positions on an image of `length`: 0 or less if the window is larger than the padded
        image.

        ceil: one more if the last would begin within the image or the padding before it, but end outside.
        """
        room = length + self.before + self.after - self.extent
        if not ceil:
            return room // self.stride + 1
        count = -(-room // self.stride) + 1
        return count - 1 if (count - 1) * self.stride >= length + self.before else count

    def places(self, positions: Span) -> Span:
        """Return the places that these positions of the result read; they may reach outside of the image."""
        first, end = positions
        return first * self.stride - self.before, (end - 1) * self.stride - self.before + self.extent

    def positions(self, places: Span, count: int) -> Span:
        """Return the span of outputs, of `count`, that read these input positions; empty if there are none."""
        first, end = places
        low = max(0, -(-(first + self.before - self.extent + 1) // self.stride))
        high = min(count, (end - 1 + self.before) // self.stride + 1)
        return low, max(low, high)

    def met(self, tap: int, length: int, positions: Span) -> tuple[slice, slice]:
        """Return the outputs, counted from the first one, whose input at one tap is within an image of `length`; and
        these inputs."""
        offset = tap * self.dilation - self.before
        low = max(positions[0], -(offset // self.stride))
        high = min(positions[1], (length - 1 - offset) // self.stride + 1)
        if low >= high:
            return slice(0, 0), slice(0, 0)
        first, last = low * self.stride + offset, (high - 1) * self.stride + offset
        return slice(low - positions[0], high - positions[0]), slice(first, last + 1, self.stride)

    def on_places(self, places: Span, positions: Span) -> Window:
        """Return the window between these places, as an image of their own, and these positions, as a result of their
        own."""
        (first, end), (low, high) = places, positions
        before = self.before + first - low * self.stride
        after = max(high - low - 1, 0) * self.stride + self.extent - (end - first) - before
        return Window(self.size, self.stride, self.dilation, before, after)


def clipped(span: Span, length: int) -> Span:
    """Return the part of a span within [0, length)."""
    first = min(max(span[0], 0), length)
    return first, max(first, min(span[1], length))


@lru_cache(maxsize=4096)
def slices_of(length: int, count: int, window: Window) -> int:
    """Return the maximum number of equal slices of image and result for which a rank only needs its own slice and the
    two adjacent ones; every divisor of it is possible, too."""
    common = gcd(length, count)
    for parts in range(common, 1, -1):
        if common % parts == 0 and _reaches_neighbours(length, count, window, parts):
            return parts
    return 1


def _reaches_neighbours(length: int, count: int, window: Window, parts: int) -> bool:
    own, made = length // parts, count // parts
    for part in range(parts):
        first, end = clipped(window.places((part * made, (part + 1) * made)), length)
        low, high = window.positions((part * own, (part + 1) * own), count)
        if first < (part - 1) * own or end > (part + 2) * own:
            return False
        if low < (part - 1) * made or high > (part + 2) * made or low == high:
            return False
    return True


def sharding_mistake(
    lengths: Sequence[int], counts: Callable[[Sequence[int]], Sequence[int]],
    along: Callable[[Sequence[int]], Sequence[Window]], d: int, shards: int,
) -> str:  # fmt: skip
    """Return why an image of these lengths and its result cannot have `shards` shards along a dimension; "" if they
    can, or it is not a dimension of the image. counts, along: positions and windows of an image."""
    if d < 0:
        return ""
    length, count, window = lengths[d], counts(lengths)[d], along(lengths)[d]
    if length % shards:
        return f"has {length} places, which {shards} does not divide"
    if count % shards:
        return f"makes {count} places of the result, which {shards} does not divide"
    if _reaches_neighbours(length, count, window, shards):
        return ""
    places = f"{length // shards} place{'s' * (length > shards)}"
    return (
        f"would be sharded into {shards} slices of {places}, but a window that spans {window.extent} reads "
        f"beyond the slices beside its own, or a slice has no result"
    )


def listed(value: Any, dims: int) -> tuple[Any, ...]:
    """Return the elements of a tuple or list; any other value is repeated for every dimension."""
    return tuple(cast("Sequence[Any]", value)) if isinstance(value, (tuple, list)) else (value,) * dims


def numbers(operator: str, name: str, value: Any, dims: int) -> tuple[int, ...]:
    """Return one positive integer per dimension, from one for all, one each, or one each after two 1 for batch and
    channels. Raise MspcError if it is none of these, and RuntimeError if its numbers for batch and channels are not
    1."""
    found = listed(value, dims)
    if len(found) == dims + 2:
        if found[:2] != (1, 1):
            message = f"{operator}: {name} {value!r} must be 1 along batch and channels, its first two numbers"
            raise MspcError(message, kind=RuntimeError)
        found = found[2:]
    if len(found) != dims or not all(_is_integer(n) and n > 0 for n in found):
        raise MspcError(f"{operator}: {name} must be a positive integer or {dims} of them, not {value!r}")
    return found


def paddings(operator: str, value: Any, dims: int) -> tuple[Span, ...]:
    """Return (before, after) per dimension, from one integer for all, one per dimension, or two per dimension in order.
    Raise MspcError if it is none of these."""
    given = listed(value, 2 * dims)
    if len(given) not in (dims, 2 * dims) or not all(map(_is_integer, given)):
        raise MspcError(f"{operator}: pad must be an integer or a tuple of {2 * dims} of them, not {value!r}")
    if len(given) == dims:
        return tuple((n, n) for n in given)
    return tuple((given[2 * d], given[2 * d + 1]) for d in range(dims))


def windows(
    operator: str, lengths: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    mode: Any, pad: Any,
) -> tuple[Window, ...]:  # fmt: skip
    """Return the window along every dimension of an image of these lengths. Raise MspcError if the padding mode is
    unknown, or gets a padding that it does not take."""
    dims = len(lengths)
    known = str(mode).lower()
    if known not in MODES:
        raise MspcError(f"{operator}: pad_mode must be 'same', 'valid' or 'pad', not {mode!r}")
    given = paddings(operator, pad, dims)
    if known != "pad" and any(span != (0, 0) for span in given):
        raise MspcError(f"{operator}: pad must be 0 when pad_mode is {known!r}, not {pad!r}",
                        notes=["pad_mode='pad' takes a padding"])  # fmt: skip
    found: list[Window] = []
    for length, size, stride, dilation, (before, after) in zip(
        lengths, sizes, strides, dilations, given, strict=True
    ):
        if known == "same":
            total = max((-(-length // stride) - 1) * stride + (size - 1) * dilation + 1 - length, 0)
            before, after = total // 2, total - total // 2
        found.append(Window(size, stride, dilation, before, after))
    return tuple(found)


def result_lengths(
    operator: str, lengths: Sequence[int], along: Sequence[Window], ceil: bool | None = False
) -> tuple[int, ...]:
    """Return the number of positions per dimension. Raise MspcError if a window is larger than the padded image; the
    message names the dimension."""
    found: list[int] = []
    for d, (length, window) in enumerate(zip(lengths, along, strict=True)):
        count = window.count(length, ceil)
        if count < 1:
            padded = f"{length} and {window.before + window.after} of padding"
            spread = f" (a kernel of {window.size} with dilation {window.dilation})" * (window.dilation > 1)
            raise MspcError(
                f"{operator}: the window along dimension {d + 2} spans {window.extent}{spread}, more than the image "
                f"with its {padded}",
                notes=["use a smaller kernel, a larger image, or more padding"],
            )
        found.append(count)
    return tuple(found)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def taps(along: Sequence[Window]) -> Iterator[tuple[int, ...]]:
    """Return all places of the window, the last dimension running fastest."""
    return itertools.product(*(range(w.size) for w in along))


def met(
    along: Sequence[Window], place: Sequence[int], lengths: Sequence[int], counts: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return the outputs that read positions of an image at one tap of the window, and these positions."""
    found = [w.met(t, n, (0, count)) for w, t, n, count in zip(along, place, lengths, counts, strict=True)]
    return tuple(inside for inside, _ in found), tuple(looked for _, looked in found)


# Bases of image operators and convolutions ------------------------------------------------------------
# Shapes, windows, layouts of images in memory, borders of slices.


Shape = tuple[int, ...]
SECOND = {2: "NCHW", 3: "NCDHW"}
LAST = {2: "NHWC", 3: "NDHWC"}
"""data_format by the number of image dimensions: channels second, and channels last."""


def last_order(rank: int) -> Shape:
    """Return (batch, channels, positions) permuted to channels last."""
    return 0, *range(2, rank), 1


def first_order(rank: int) -> Shape:
    """Return (batch, positions, channels) permuted to channels first."""
    return 0, rank - 1, *range(1, rank - 1)


class ImageOperator(Op, abstract=True):
    """Operator on images. With data_format "NHWC" or "NDHWC" all operands, including weights, and the result have
    channels (dimension 1) last; the pass channels_last makes such operators in the graphs of ranks. Class attributes:
    dims: dimensions of the image. sizes_of: attributes that are shapes of an operand or of the result. makes_images:
    the result is an image; else it is weights, whose readers expect their shape's order."""

    dims: ClassVar[int] = 2
    sizes_of: ClassVar[tuple[str, ...]] = ()
    makes_images: ClassVar[bool] = True

    @property
    def channels_last(self) -> bool:
        """Whether dimension 1 of all operands is at their end."""
        given: Any = self  # the attribute has its place in each operator's own order
        return given.data_format == LAST[self.dims]

    def check_image(self, what: str, shape: Shape) -> None:
        """Raise MspcError for another data_format than of channels second, or another number of dimensions."""
        given: Any = self
        if given.data_format not in ("", SECOND[self.dims]):
            raise MspcError(f"{self.name}: data_format must be {SECOND[self.dims]!r}, not {given.data_format!r}")
        if len(shape) != self.dims + 2:
            raise MspcError(
                f"{self.name}: {what} must have {self.dims + 2} dimensions, but its shape is {shape}", code="E0303"
            )

    def with_channels_last(self) -> Self:
        """Return the operator on operands whose channels come last."""
        return self._ordered(LAST[self.dims], last_order(self.dims + 2))

    def with_channels_second(self) -> Self:
        """Return the operator on operands whose channels come second."""
        return self._ordered("", first_order(self.dims + 2))

    def _ordered(self, data_format: str, order: Shape) -> Self:
        sizes: dict[str, Shape] = {name: getattr(self, name) for name in self.sizes_of}
        reordered: dict[str, Any] = {name: tuple(size[d] for d in order) for name, size in sizes.items() if size}
        return replace(self, **reordered, **{"data_format": data_format})

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        found: Any = self.infer(*types)
        if self.channels_last or not isinstance(found, TensorType):
            return None
        order = last_order(self.dims + 2)
        operands = tuple(MemoryOrder.of(type.shape, order) for type in types)
        return Reordered(self.with_channels_last(), operands, (MemoryOrder.of(found.shape, order),), self.makes_images)

    def made_in(self, order: MemoryOrder, types: Sequence[TensorType]) -> Reordered | None:
        image = last_order(self.dims + 2)
        if self.wants_channels_last or self.channels_last or order.memory != MemoryOrder.of(order.shape, image).memory:
            return None
        return self.reordered(types, ())

    def in_order(self, types: Sequence[TensorType]) -> list[TensorType]:
        """Return the operands' types with their channels second."""
        if not self.channels_last or any(len(type.shape) != self.dims + 2 for type in types):
            return list(types)
        order = first_order(self.dims + 2)
        return [type.with_shape(tuple(type.shape[d] for d in order)) for type in types]

    def infer(self, *types: Any) -> Any:
        if not self.channels_last:
            return super().infer(*types)
        found = self.with_channels_second().infer(*self.in_order(types))
        return found.with_shape(tuple(found.shape[d] for d in last_order(self.dims + 2)))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        if not self.channels_last:
            return self.kernel_on(be)
        run = self.with_channels_second().kernel_on(be)
        first, last = first_order(self.dims + 2), last_order(self.dims + 2)

        def kernel(*inputs: Any) -> Any:
            found = run(*(be.xp.ascontiguousarray(x.transpose(first)) for x in inputs))
            return be.xp.ascontiguousarray(found.transpose(last))

        return kernel

    def kernel_on(self, be: ArrayBackend) -> Callable[..., Any]:
        """See `Op.kernel`: of arrays whose channels come second."""
        return super().kernel(be)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        if not self.channels_last:
            return self.launch_on(device, out, *inputs)
        order = first_order(self.dims + 2)
        plain = self.with_channels_second()
        return plain.launch_on(device, out.transpose(order), *(array.transpose(order) for array in inputs))

    def launch_on(self, device: Device, out: Array, *inputs: Array) -> Launch | None:
        """Like `Op.launch`, on arrays with channels second in their shape, whatever their memory order; None if not
        supported."""
        return None

HALOS = "windows at the border of a slice look at the slices beside it"


class Windowed(ImageOperator, abstract=True):
    """An operator whose windows slide over images."""

    def along(self, lengths: Sequence[int]) -> tuple[Window, ...]:
        """Return the window along every dimension of an image of these lengths. Raise MspcError for bad attributes."""
        raise NotImplementedError

    def exact(self, lengths: Sequence[int]) -> tuple[Window, ...]:
        """Return the windows with as much padding after the image as their positions read."""
        return self.along(lengths)

    def counts(self, lengths: Sequence[int]) -> Shape:
        """Return the number of positions along every dimension of an image of these lengths."""
        return result_lengths(self.name, lengths, self.along(lengths))

    def needed(self, lengths: Sequence[int], layout: Layout) -> Needed:
        """Return which places of the image the owner of a slice of the result reads."""
        along, counts, slices = self.exact(lengths), self.counts(lengths), layout.strategy[2:]
        return lambda d, part: clipped(along[d].places(slice_span(counts[d], slices[d], part)), lengths[d])

    def positions(self, lengths: Sequence[int], layout: Layout) -> Needed:
        """Return which positions of the result read a slice of the image."""
        along, counts, slices = self.exact(lengths), self.counts(lengths), layout.strategy[2:]
        return lambda d, part: along[d].positions(slice_span(lengths[d], slices[d], part), counts[d])

    def with_halo(
        self, b: Builder, placement: RankPlacement, index: int, image: Value, again: bool = False
    ) -> tuple[Value, list[Window]]:
        """Return the part of the image that a rank's slice of the result reads, made of its slice of the image, operand
        `index`, and the halos from its neighbours; and the windows on it. again: see `exchanged`."""
        type, layout = placement.in_types[index], placement.in_layouts[index]
        lengths = type.shape[2:]
        needed = self.needed(lengths, layout)
        part = halo_exchange(layout, type.shape, placement.rank, needed)
        shared = None if self.bordered is None else request(layout, type.shape, needed)
        wide = exchanged(b, image, part, layout.ranks, HALOS, shared, again)
        counts, slice_counts, here = self.counts(lengths), layout.strategy[2:], place_of(layout, placement.rank)
        return wide, [
            window.on_places(needed(d, i), slice_span(counts[d], slice_counts[d], i))
            for d, (window, i) in enumerate(zip(self.exact(lengths), here, strict=True))
        ]

    def halo_traffic(self, type: TensorType, layout: Layout) -> float:
        """Return the bytes that `with_halo` sends, for an image of this type and layout."""
        return halo_bytes(type, layout, self.needed(type.shape[2:], layout)) if is_sharded(layout) else 0.0


def like(op: Op, other: str, **more: Any) -> Any:
    """Return the operator of another name with the attributes that both have."""
    kind = REGISTRY[other]
    common = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    return kind(**{name: value for name, value in vars(op).items() if name in common} | more)


class Convolution(Windowed, abstract=True):
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
    one_type = True

    def sizes(self) -> Shape:
        """Return the size of the window along every dimension."""
        return numbers(self.name, "kernel_size", self.kernel_size, self.dims)

    def along(self, lengths: Sequence[int]) -> tuple[Window, ...]:
        """Return the window along every dimension of an image of these lengths. Raise MspcError for bad attributes."""
        strides = numbers(self.name, "stride", self.stride, self.dims)
        dilations = numbers(self.name, "dilation", self.dilation, self.dims)
        return windows(self.name, lengths, self.sizes(), strides, dilations, self.pad_mode, self.pad)

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        return None if self.channels_last else self.kernel_on(be)

    def check_channels(self, image: Shape, weight: Shape) -> None:
        """Raise MspcError if image and weights do not fit each other or the attributes."""
        self.check_image("x", image)
        self.check_image("weight", weight)
        if self.mode != 1:
            raise MspcError(f"{self.name}: mode must be 1, a cross correlation, not {self.mode!r}")
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

    def sides(self, image: Shape, weight: Shape) -> tuple[str, str, str]:
        """Return the rule's sides of image, weights and result. Raise MspcError if they do not fit."""
        self.check_channels(image, weight)
        places, positions = image_tokens(image[2:], self.counts(image[2:]), self.along(image[2:]))
        window = " ".join(f"s{d}!" for d in range(self.dims))
        if self.group == 1:
            return f"n i {places}", f"o i {window}", f"n o {positions}"
        grouped = f"(g={self.group} i) {places}", f"(g={self.group} o) i {window}", f"(g={self.group} o) {positions}"
        return f"n {grouped[0]}", grouped[1], f"n {grouped[2]}"

    def image_and_weights(self, types: Sequence[TensorType]) -> tuple[Shape, Shape]:
        """Return the shapes of the image and of the weights, channels second, for operands of these types."""
        plain = self.with_channels_second() if self.channels_last else self
        return plain.shapes([type.shape for type in self.in_order(types)])

    def shapes(self, operands: Sequence[Shape]) -> tuple[Shape, Shape]:
        """Return the global shapes of the image and of the weights for operands of these shapes."""
        raise NotImplementedError

    def operations(self, types: Sequence[TensorType]) -> float:
        image, weight = self.image_and_weights(types)
        return 2.0 * image[0] * math.prod(weight) * math.prod(self.counts(image[2:]))

    def convolved(self, device: Device, kind: str, image: Array, weight: Array, result: Array) -> Launch | None:
        """Return the launch of `Device.convolution`."""
        along = self.along(image.shape[2:])
        windows = [Sliding(w.before, w.after, w.stride, w.dilation) for w in along]
        return device.convolution(kind, image, weight, result, windows)

    def on_rank(self, along: Sequence[Window], out_channel: int, group: int, **others: Any) -> Any:
        """Return the operator on a slice, whose windows are `along`."""
        pad = tuple(n for w in along for n in (w.before, w.after))
        return replace(self, out_channel=out_channel, pad_mode="pad", pad=pad, group=group, **others)


def image_tokens(lengths: Sequence[int], counts: Sequence[int], along: Sequence[Window]) -> tuple[str, str]:
    """Return the factors of the dimensions of an image and of the result: both are sharded together, or not at all."""
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


def replicated_sides(image: Sequence[int], counts: Sequence[int]) -> tuple[str, str]:
    """Return the rule's sides of an image and a result whose dimensions are not sharded."""
    places = " ".join(f"p{d}={n}!" for d, n in enumerate(image))
    return f"n c {places}", "n c " + " ".join(f"q{d}={n}!" for d, n in enumerate(counts))


def local_groups(group: int, image: Layout, weight: Layout) -> int:
    """Return the number of groups on a rank, from the layouts of image (or result) and weights."""
    if group == 1:
        return 1
    return group // (image.strategy[1] // weight.strategy[1])
