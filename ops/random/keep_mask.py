"""Masks that keep an element with some probability: sixteen random bits decide each.

A word of the generator in `ops/random/words.py` decides four elements. Of 16 neighbouring elements of a tensor, counted
from its first one, word t has 2t, 2t + 1, 2t + 8 and 2t + 9, in this order from its lowest bits on: those that a thread
of a tensor core's product holds together. As all random numbers they depend on an element's place among all alone, and
not on the dimensions that a tensor is seen with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mspc.ops.cpu.blocks import shared_out
from mspc.ops.cuda.move import coordinates
from mspc.ops.random.words import GOLDEN, merged_slice, mix_words

GROUP = 16
"""Elements that four words decide."""
_WORDS = 4
_BLOCK = 1 << 18
"""Elements that are decided at once, of which each fourth takes eight bytes, twice."""


def count_of(keep_prob: float) -> int:
    """How many of the 65,536 values of sixteen bits keep an element."""
    return round(keep_prob * 65536)


def keep_mask(
    xp: Any, key: int, shape: Sequence[int], begin: Sequence[int], local: Sequence[int], keep_prob: float
) -> Any:
    """Bool of `local` sizes: what is kept of the slice from `begin` on of a tensor of `shape`."""
    merged, starts, sizes = merged_slice(shape, begin, local)
    size = math.prod(sizes)
    places, stride = xp.full(1, starts[-1], xp.uint64), merged[-1]
    for n, start, count in reversed(list(zip(merged[:-1], starts[:-1], sizes[:-1], strict=True))):
        ahead = xp.arange(start, start + count, dtype=xp.uint64) * xp.uint64(stride)
        places = (ahead[:, None] + places).reshape(-1)
        stride *= n
    columns = sizes[-1]
    if len(merged) == 1:  # one run of elements becomes several rows, the last of which may go beyond it
        columns = min(_BLOCK, -(-size // GROUP) * GROUP)
        places = xp.arange(starts[0], starts[0] + size, max(1, columns), dtype=xp.uint64)
    aligned = not any(number % GROUP for number in (columns, starts[-1], *(merged[-1:] if len(merged) > 1 else ())))
    mask = xp.empty((len(places), columns), bool)
    step = max(1, _BLOCK // max(1, columns))

    def part(first: int, last: int) -> None:
        for row in range(first, last, step):
            here = slice(row, min(row + step, last))
            mask[here] = keep_rows(xp, key, places[here], columns, keep_prob, aligned)

    if size:
        shared_out(xp, len(places), step, size, part)
    return mask.reshape(-1)[:size].reshape(tuple(local))


def keep_rows(xp: Any, key: int, places: Any, columns: int, keep_prob: float, aligned: bool) -> Any:
    """Bool [rows, columns]: what is kept of the elements from each of the places on. aligned: these, and the columns,
    are multiples of 16."""
    count = count_of(keep_prob)
    if not count:
        return xp.zeros((len(places), columns), bool)
    if aligned:
        words = (places // xp.uint64(GROUP // _WORDS))[:, None] + xp.arange(columns // 4, dtype=xp.uint64)
        _draw(xp, key, words)
        pairs = (words.reshape(-1).view(xp.uint16) <= count - 1).view(xp.uint16)
        ordered = xp.ascontiguousarray(pairs.reshape(-1, _WORDS, 2).transpose(0, 2, 1))
        return ordered.reshape(-1).view(bool).reshape(len(places), columns)
    elements = places[:, None] + xp.arange(columns, dtype=xp.uint64)
    words = (elements >> xp.uint64(4) << xp.uint64(2)) | (elements >> xp.uint64(1) & xp.uint64(3))
    _draw(xp, key, words)
    fields = (elements & xp.uint64(1)) | (elements >> xp.uint64(2) & xp.uint64(2))
    return (words >> (fields * xp.uint64(16)) & xp.uint64(0xFFFF)) <= xp.uint64(count - 1)


def _draw(xp: Any, key: int, words: Any) -> None:
    """Put the random bits in the place of the words' numbers."""
    words *= xp.uint64(GOLDEN)
    words += xp.uint64((key + GOLDEN) % 2**64)
    mix_words(xp, words)


def device_keeps(
    shape: Sequence[int], begin: Sequence[int], local: Sequence[int], keep_prob: float, at: str = "at",
    key: str = "key",
) -> str:  # fmt: skip
    """C++ of whether element `at` of a slice is kept, as `keep_mask` says."""
    count = count_of(keep_prob)
    if tuple(shape) == tuple(local):
        return f"keeps({at}, {key}, {count}u)"
    terms, stride = list[str](), 1
    for d in reversed(range(len(shape))):
        terms.append(f"((u64)i{d} + {begin[d]}ull) * {stride}ull")
        stride = stride * shape[d] % 2**64
    return f"[&] {{ {coordinates(local, at)} return keeps({' + '.join(terms)}, {key}, {count}u); }}()"
