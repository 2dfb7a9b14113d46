"""Which weights of an attention are dropped at random: a function of seeds, step and the weight's place alone.

The numbers are those that `Dropout` draws for a tensor [batch, heads, queries, keys] of all weights, so that attention
that is written out and attention in one operator drop the same, on every device and on any number of ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ops.cuda.move import coordinates
from mspc.ops.cuda.random import RANDOM
from mspc.ops.op import RankPlacement
from mspc.ops.random.keep_mask import GROUP, count_of, keep_rows
from mspc.ops.random.row_offsets import place_of_rows
from mspc.ops.random.words import before_step, key_of


@dataclass(frozen=True, slots=True)
class Draws:
    """seeds: two, as those of `Dropout`. keep_prob: the share of weights that stay. shape: of all weights on all ranks,
    the keys last. begin, local: where this rank's slice begins in it, and its sizes; no rank has a slice of the keys.
    """

    seeds: tuple[int, int]
    keep_prob: float
    shape: tuple[int, ...]
    begin: tuple[int, ...]
    local: tuple[int, ...]

    def keep_mask(self, xp: Any, step: int, first: int, last: int) -> Any:
        """Bool [last - first, keys] of the rank's rows from `first` to `last`: the weights that stay."""
        rest, place, stride = xp.arange(first, last, dtype=xp.uint64), xp.zeros(last - first, xp.uint64), 1
        for n, size, begin in reversed(list(zip(self.shape[:-1], self.local[:-1], self.begin[:-1], strict=True))):
            place += (rest % xp.uint64(size) + xp.uint64(begin)) * xp.uint64(stride)
            rest //= xp.uint64(size)
            stride *= n
        keys, key = self.shape[-1], key_of(*self.seeds, step)
        return keep_rows(xp, key, place * xp.uint64(keys), keys, self.keep_prob, self.aligned)

    @property
    def aligned(self) -> bool:
        """Whether every row begins with a group of elements that words decide together."""
        return self.shape[-1] % GROUP == 0


def place_of_weights(
    placement: RankPlacement, rows: tuple[int, ...], weights: tuple[int, ...], dims: tuple[int, int, int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(shape of all weights, where a rank's slice begins in it, its sizes or () where they are those of its operands).

    Args:
        rows: where every rank has rows of its own, see `place_of_rows`. weights: shape of the weights. dims: of the
        first operand that hold batch, heads (perhaps with their depth) and queries.
    """
    if rows:
        all_sizes, begin, local = place_of_rows(weights, rows, placement.rank, placement.in_layouts[0].ranks)
        return all_sizes, begin, local if len(local) > len(weights) else ()
    shape = placement.in_types[0].shape
    here = placement.in_layouts[0].slices_for(placement.rank, shape)
    starts = [here[d].start * n // shape[d] if shape[d] else 0 for d, n in zip(dims, weights[:3], strict=True)]
    return weights, (*starts, 0), ()


def draws_source(draws: Draws | None, type: str = "float") -> str:
    """C++ of functions and a macro. The weight of a row and a key remains where `stays(word, key)` says so of the
    `word_of_row(row, step, seed)`, seed being `seed_of(draws)`; it counts KEPT_FACTOR then, a number of this type.
    """
    if draws is None:
        return _NOTHING_DROPPED
    rows, terms, stride = draws.local[:-1], list[str](), 1
    for d in reversed(range(len(rows))):
        terms.append(f"((u64)i{d} + {draws.begin[d]}ull) * {stride}ull")
        stride *= draws.shape[d]
    count = count_of(draws.keep_prob)
    return RANDOM + f"""
__device__ __forceinline__ u64 place_of_row(long long row) {{
    typedef long long Index;
    {coordinates(rows, "row")}
    return ({" + ".join(terms)}) * {draws.shape[-1]}ull;
}}
{_ALIGNED if draws.aligned else _ANYWHERE}
__device__ __forceinline__ bool stays(Word row, int key) {{ return bits_of(row, key) < {count}u; }}
#define KEPT_FACTOR (({type}){1 / draws.keep_prob!r})
"""


def seed_of(draws: Draws | None) -> Any:
    """What kernels get of the seeds: networks of many layers then share them."""
    return np.uint64(0 if draws is None else before_step(*draws.seeds))


_ALIGNED = """
typedef u64 Word;
__device__ __forceinline__ Word word_of_row(long long row, const long long* step, u64 seed) {
    return word_of_place(place_of_row(row)) * GOLDEN + mixed(seed + (u64)*step) + GOLDEN;
}
__device__ __forceinline__ Word word_of_key(int key) { return word_of_place(key) * GOLDEN; }
__device__ __forceinline__ unsigned int bits_of(Word row, int key) {
    return (unsigned int)(mixed(row + word_of_key(key)) >> (((key & 1) | (key >> 2 & 2)) * 16)) & 0xffff;
}
"""
"""Where rows begin with groups of elements a word is a row's part and a key's, ready to be mixed."""
_ANYWHERE = """
struct Word {
    u64 place, key;
    __device__ __forceinline__ Word operator+(const Word& word) const { return {place + word.place, key + word.key}; }
};
__device__ __forceinline__ Word word_of_row(long long row, const long long* step, u64 seed) {
    return {place_of_row(row), mixed(seed + (u64)*step)};
}
__device__ __forceinline__ Word word_of_key(int key) { return {(u64)key, 0}; }
__device__ __forceinline__ unsigned int bits_of(const Word& row, int key) { return bits_at(row.place + key, row.key); }
"""
"""Elsewhere each weight has a word of its own."""
_NOTHING_DROPPED = """
struct Word {};
__device__ __forceinline__ Word word_of_row(long long, const long long*, u64) { return {}; }
__device__ __forceinline__ bool stays(Word, int) { return true; }
#define KEPT_FACTOR 1
"""
