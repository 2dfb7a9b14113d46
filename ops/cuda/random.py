"""The generator of random masks in C++: 64 bits of a counter, see `ops/random/draws.py`."""

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
__device__ __forceinline__ u64 mixed(u64 word) {
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
    return word ^ (word >> 31);
}
"""
"""Put before a kernel that draws."""
