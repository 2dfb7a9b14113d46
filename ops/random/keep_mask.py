"""Masks that keep an element with some probability: sixteen random bits decide each.

A word of the generator in `ops/random/words.py` decides four elements of a row, the last dimension. Rows are counted as
if they were multiples of 16 long. Of 16 neighbouring elements, word t has 2t, 2t + 1, 2t + 8 and 2t + 9, in this order
from its lowest bits on: those that a thread of a tensor core's product holds together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mspc.ops.cuda.move import coordinates
from mspc.ops.random.words import GOLDEN, draw

GROUP = 16
"""Elements that four words decide."""
_WORDS = 4


def count_of(keep_prob: float) -> int:
    """How many of the 65,536 values of sixteen bits keep an element."""
    return round(keep_prob * 65536)


def words_of_row(size: int) -> int:
    """How many words decide the elements of a row."""
    return -(-size // GROUP) * _WORDS


def decided(xp: Any, words: Any, keep_prob: float) -> Any:
    """Bool [4 n], in the order of elements, from UInt64 words [n] of entire groups; contiguous."""
    count = count_of(keep_prob)
    if not count:
        return xp.zeros(4 * words.size, bool)
    pairs = (words.reshape(-1).view(xp.uint16) <= count - 1).view(xp.uint16)
    return xp.ascontiguousarray(pairs.reshape(-1, _WORDS, 2).transpose(0, 2, 1)).reshape(-1).view(bool)


def keep_mask(
    xp: Any, key: int, shape: Sequence[int], begin: Sequence[int], local: Sequence[int], keep_prob: float
) -> Any:
    """Bool of `local` sizes: what is kept of the slice from `begin` on of a tensor of `shape`."""
    if not shape:
        return keep_mask(xp, key, (1,), (0,), (1,), keep_prob).reshape(())
    first, last = begin[-1] // GROUP, -(-(begin[-1] + local[-1]) // GROUP)
    rows, columns = math.prod(local[:-1]), (last - first) * GROUP
    mask = xp.empty(rows * columns, bool)

    def use(start: int, stop: int, words: Any) -> None:
        mask[4 * start : 4 * stop] = decided(xp, words, keep_prob)

    here = (*begin[:-1], first * _WORDS), (*local[:-1], (last - first) * _WORDS)
    draw(xp, key, (*shape[:-1], words_of_row(shape[-1])), *here, use)
    skipped = begin[-1] - first * GROUP
    found = mask.reshape(rows, columns)[:, skipped : skipped + local[-1]]
    return xp.ascontiguousarray(found).reshape(tuple(local))


def device_keeps(
    shape: Sequence[int], begin: Sequence[int], local: Sequence[int], keep_prob: float, at: str = "at",
    key: str = "key",
) -> str:  # fmt: skip
    """C++ of whether element `at` of a slice is kept, as `keep_mask` says."""
    count = count_of(keep_prob)
    if tuple(shape) == tuple(local):
        columns = shape[-1] if shape else 1
        if columns % GROUP == 0:
            return f"keeps(mixed(word_of_column({at}) * {GOLDEN}ull + {key} + {GOLDEN}ull), {at}, {count}u)"
        local = shape = (math.prod(shape[:-1]), columns)
        begin = (0, 0)
    terms, stride = ["word_of_column(column)"], words_of_row(shape[-1])
    for d in reversed(range(len(shape) - 1)):
        terms.append(f"((u64)i{d} + {begin[d]}ull) * {stride}ull")
        stride = stride * shape[d] % 2**64
    return (
        f"[&] {{ {coordinates(local, at)} const u64 column = (u64)i{len(shape) - 1} + {begin[-1]}ull; return "
        f"keeps(mixed(({' + '.join(terms)}) * {GOLDEN}ull + {key} + {GOLDEN}ull), column, {count}u); }}()"
    )
