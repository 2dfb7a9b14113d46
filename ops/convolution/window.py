"""A window slides along the dimensions of an image: it has sizes and padding, and tells what a slice of the image needs
of others.

Position j of the result looks at places j * stride - before + t * dilation of the image, for t in [0, size). Places
outside of the image are padding. Dumoulin and Visin, arXiv 1603.07285, have the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import gcd
from typing import Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.sharding.borders import Needed, Span, own_span

MODES = ("same", "valid", "pad")


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one dimension. before, after: padding in front of and behind the image; a negative one leaves out
    places of the image."""

    size: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    @property
    def extent(self) -> int:
        """Places from the first to the last that it looks at."""
        return (self.size - 1) * self.dilation + 1

    def count(self, length: int, ceil: bool | None = False) -> int:
        """Positions on an image of `length`: 0 or less where the window is larger than the padded image.

        ceil: one more where the last would begin within the image or the padding in front of it, but end outside.
        """
        room = length + self.before + self.after - self.extent
        if not ceil:
            return room // self.stride + 1
        count = -(-room // self.stride) + 1
        return count - 1 if (count - 1) * self.stride >= length + self.before else count

    def places(self, positions: Span) -> Span:
        """What these positions of the result look at; may reach outside of the image."""
        first, end = positions
        return first * self.stride - self.before, (end - 1) * self.stride - self.before + self.extent

    def positions(self, places: Span, count: int) -> Span:
        """The positions of the result, of `count`, that look at these places; empty ones where none do."""
        first, end = places
        low = max(0, -(-(first + self.before - self.extent + 1) // self.stride))
        high = min(count, (end - 1 + self.before) // self.stride + 1)
        return low, max(low, high)

    def met(self, tap: int, length: int, positions: Span) -> tuple[slice, slice]:
        """Those of the positions, counted from the first one, that look with one place of the window at places within
        an image of `length`; and these places."""
        offset = tap * self.dilation - self.before
        low = max(positions[0], -(offset // self.stride))
        high = min(positions[1], (length - 1 - offset) // self.stride + 1)
        if low >= high:
            return slice(0, 0), slice(0, 0)
        first, last = low * self.stride + offset, (high - 1) * self.stride + offset
        return slice(low - positions[0], high - positions[0]), slice(first, last + 1, self.stride)

    def on_places(self, places: Span, positions: Span) -> Window:
        """The window between these places, as an image of their own, and these positions, as a result of their own."""
        (first, end), (low, high) = places, positions
        before = self.before + first - low * self.stride
        after = max(high - low - 1, 0) * self.stride + self.extent - (end - first) - before
        return Window(self.size, self.stride, self.dilation, before, after)


def clipped(span: Span, length: int) -> Span:
    """The part of a span within [0, length)."""
    first = min(max(span[0], 0), length)
    return first, max(first, min(span[1], length))


def places_of_slices(
    along: Sequence[Window], lengths: Sequence[int], counts: Sequence[int], slice_counts: Sequence[int]
) -> Needed:
    """Which places of an image of these lengths the holder of a slice of the result looks at."""

    def needed(d: int, part: int) -> Span:
        return clipped(along[d].places(own_span(counts[d], slice_counts[d], part)), lengths[d])

    return needed


def positions_of_slices(
    along: Sequence[Window], lengths: Sequence[int], counts: Sequence[int], slice_counts: Sequence[int]
) -> Needed:
    """Which positions of the result look at a slice of the image."""

    def needed(d: int, part: int) -> Span:
        return along[d].positions(own_span(lengths[d], slice_counts[d], part), counts[d])

    return needed


@lru_cache(maxsize=4096)
def slices_of(length: int, count: int, window: Window) -> int:
    """The most equal slices into which the image and the result can be sharded together so that a rank needs places of
    its own slice and of the two beside it only; what divides it can be had as well."""
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
    lengths: Sequence[int],
    counts: Callable[[Sequence[int]], Sequence[int]],
    along: Callable[[Sequence[int]], Sequence[Window]],
    d: int,
    shards: int,
) -> str:
    """Why an image of these lengths and its result cannot have `shards` shards along a dimension; "" where they
    can, or it is none of the image. counts, along: positions and windows of an image."""
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
    """The elements of a tuple or list; of anything else as many as there are dimensions."""
    return tuple(cast("Sequence[Any]", value)) if isinstance(value, (tuple, list)) else (value,) * dims


def numbers(operator: str, name: str, value: Any, dims: int) -> tuple[int, ...]:
    """One positive integer per dimension, from one for all, one each, or one each behind two 1 for batch and channels.

    Raises:
        MspcError: it is none of these. RuntimeError: it says something else of batch and channels.
    """
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
    """(before, after) per dimension, from one integer for all, one per dimension, or two per dimension in order.

    Raises:
        MspcError: it is none of these.
    """
    given = listed(value, 2 * dims)
    if len(given) not in (dims, 2 * dims) or not all(map(_is_integer, given)):
        raise MspcError(f"{operator}: pad must be an integer or a tuple of {2 * dims} of them, not {value!r}")
    if len(given) == dims:
        return tuple((n, n) for n in given)
    return tuple((given[2 * d], given[2 * d + 1]) for d in range(dims))


def windows(
    operator: str,
    lengths: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    mode: Any,
    pad: Any,
) -> tuple[Window, ...]:
    """The window along every dimension of an image of these lengths.

    Raises:
        MspcError: the padding mode is unknown, or gets a padding that it does not take.
    """
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
    """Positions per dimension.

    Raises:
        MspcError: a window is larger than the padded image; the message names the dimension.
    """
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
