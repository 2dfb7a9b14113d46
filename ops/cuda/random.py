"""The generator of random masks in C++, see `ops/random/words.py` and `ops/random/words.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SEED = re.compile(r"\bseed_(\d+)\b")


def seed_name(value: int) -> str:
    """How an expression names a number of seeds that kernels get as an argument, so that operators share them."""
    return f"seed_{value}"


def with_arguments(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """(texts in which seeds are called seed0, seed1, ..., their values in this order)."""
    values = list(dict.fromkeys(int(found) for text in texts for found in _SEED.findall(text)))
    return [_SEED.sub(lambda match: f"seed{values.index(int(match[1]))}", text) for text in texts], values


RANDOM = """
constexpr u64 GOLDEN = 0x9E3779B97F4A7C15ull;
__device__ __forceinline__ u64 mixed(u64 word) {
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
    return word ^ (word >> 31);
}
// The word that decides the element at a place, its sixteen bits of it, and whether they keep it.
__device__ __forceinline__ u64 word_of_place(u64 place) { return place >> 4 << 2 | (place >> 1 & 3); }
__device__ __forceinline__ unsigned int bits_at(u64 place, u64 key) {
    const u64 word = mixed(word_of_place(place) * GOLDEN + key + GOLDEN);
    return (unsigned int)(word >> (((place & 1) | (place >> 2 & 2)) * 16)) & 0xffff;
}
__device__ __forceinline__ bool keeps(u64 place, u64 key, unsigned int count) { return bits_at(place, key) < count; }
"""
"""Put before a kernel that draws."""
