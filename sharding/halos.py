"""Halo exchange: the elements that a rank needs from its neighbours' slices of an image sharded along height or width.

Tensors are [batch, channels, ...]; the remaining dimensions are those of the image. Pure arithmetic, as in `pieces`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.sharding.pieces import Box, RankExchange, common_part

Span = tuple[int, int]
"""Half-open range of positions: (begin, end)."""
Needed = Callable[[int, int], Span]
"""Function (dimension, slice) -> span of positions that the slice's rank needs; the first dimension of the image is
0."""


def is_sharded(layout: Layout) -> bool:
    """Return whether a tensor [batch, channels, ...] is sharded along a dimension of the image."""
    return any(shards > 1 for shards in layout.strategy[2:])


def place_of(layout: Layout, rank: int) -> tuple[int, ...]:
    """Return the index of a rank's slice for every dimension of the image."""
    return layout.slice_index(rank)[2:]


def slice_span(length: int, parts: int, part: int) -> Span:
    """Return the span of slice `part` of a dimension of `length` elements, divided into `parts` slices."""
    each = length // parts
    return part * each, (part + 1) * each


def halo_exchange(layout: Layout, shape: Sequence[int], rank: int, needed: Needed) -> RankExchange:
    """Return the boxes that a rank holds, sends and receives. Coordinates are global in the image, and local in the
    batch and the channels."""
    shard_counts = layout.strategy[2:]
    lead = layout.local_shape(shape)[:2]
    here = place_of(layout, rank)

    def boxes(place: Sequence[int]) -> tuple[Box, Box]:
        own = [slice_span(n, shards, i) for n, shards, i in zip(shape[2:], shard_counts, place, strict=True)]
        new = [needed(d, i) for d, i in enumerate(place)]
        return _box(lead, own), _box(lead, new)

    old, new = boxes(here)
    sends: list[tuple[int, Box]] = []
    receives: list[tuple[int, Box]] = []
    around = [_partners(*each, d, needed) for d, each in enumerate(zip(shape[2:], shard_counts, here, strict=True))]
    for place in itertools.product(*around):
        if place == here:
            continue
        other = _rank_at(layout, rank, place)
        theirs, wanted = boxes(place)
        for found, box in ((sends, common_part(old, wanted)), (receives, common_part(theirs, new))):
            if box.size:
                found.append((other, box))
    stays = common_part(old, new)
    in_order = (tuple(sorted(pieces, key=lambda piece: piece[0])) for pieces in (sends, receives))
    return RankExchange(old, new, stays if stays.size else None, *in_order)


def request(layout: Layout, shape: Sequence[int], needed: Needed) -> tuple[object, ...]:
    """Return a key of the halos of all ranks: with equal keys each rank needs the same elements."""
    spans = tuple(tuple(needed(d, part) for part in range(shards)) for d, shards in enumerate(layout.strategy[2:]))
    return layout, tuple(shape), spans


def halo_bytes(type: TensorType, layout: Layout, needed: Needed) -> float:
    """Return the mean bytes that a rank receives."""
    shard_counts, local = layout.strategy[2:], layout.local_shape(type.shape)
    wanted = held = float(local[0] * local[1])
    for d, (length, shards) in enumerate(zip(type.shape[2:], shard_counts, strict=True)):
        pairs = [(slice_span(length, shards, i), needed(d, i)) for i in range(shards)]
        wanted *= sum(max(new[1] - new[0], 0) for _, new in pairs) / shards
        held *= sum(max(min(own[1], new[1]) - max(own[0], new[0]), 0) for own, new in pairs) / shards
    return (wanted - held) * type.dtype.itemsize


def _partners(length: int, parts: int, part: int, dimension: int, needed: Needed) -> list[int]:
    """Return the slices along a dimension that exchange elements with slice `part`, including itself."""
    own, new = slice_span(length, parts, part), needed(dimension, part)
    found: list[int] = []
    for other in range(parts):
        theirs, wanted = slice_span(length, parts, other), needed(dimension, other)
        if other == part or _overlap(theirs, new) or _overlap(own, wanted):
            found.append(other)
    return found


def _overlap(left: Span, right: Span) -> bool:
    return max(left[0], right[0]) < min(left[1], right[1])


def _box(lead: Sequence[int], spans: Sequence[Span]) -> Box:
    return Box((0,) * len(lead) + tuple(s[0] for s in spans), (*lead, *(s[1] for s in spans)))


def _rank_at(layout: Layout, rank: int, place: Sequence[int]) -> int:
    """Return the rank with the slice at `place` of the image and the same other coordinates as `rank`."""
    found = list(layout.coordinates(rank))
    for axes, index in zip(layout.dims[2:], place, strict=True):
        for a in reversed(axes):
            index, found[a] = divmod(index, layout.mesh[a])
    number = 0
    for size, coordinate in zip(layout.mesh, found, strict=True):
        number = number * size + coordinate
    return number
