"""The generator of random masks in C++: 64 bits of a counter, see `ops/random/dropout.py`."""

from __future__ import annotations

RANDOM = """
__device__ __forceinline__ u64 mixed(u64 word) {
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
    return word ^ (word >> 31);
}
"""
"""Put before a kernel that draws."""
