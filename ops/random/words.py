"""Random numbers depend on the seed, the step, the turns of loops and the place of an element alone, not on the ranks.

A counter-based generator: the bits of element i are the i-th output of SplitMix64 (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", 2014), started from a key made of seeds and step. A rank
computes its slice from where it begins, so that a sharded run equals one device's bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ops.cpu.blocks import shared_out
from mspc.ops.cuda.move import coordinates

_WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15
"""By which the words of neighbouring elements differ before they are mixed."""
_BLOCK = 1 << 16
"""Elements of a block: what is drawn takes eight bytes each, twice."""
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def mixed(word: int) -> int:
    """SplitMix64's output function of one Python integer."""
    for shift, factor in _MIX:
        word = (word ^ (word >> shift)) * factor % _WORD
    return word


def key_of(*words: int) -> int:
    """One 64-bit key out of several integers; each of them changes all its bits."""
    key = 0
    for word in words:
        key = mixed((key + word + GOLDEN) % _WORD)
    return key


def number_of_run(be: Any) -> int:
    """The number that tells what a node draws in this run from what it draws in others: the backend's `step`, with
    which inside of loops the numbers of their turns are mixed, and in graphs that several nodes run the numbers of
    these (`structural.CALL`). A loop that counts down draws what one that counts up has drawn."""
    step, turns, calls = getattr(be, "step", 0), getattr(be, "turns", ()), getattr(be, "calls", ())
    return key_of(step, *turns, *(-number for number in calls)) if turns or calls else step


def merged_slice(
    shape: Sequence[int], begin: Sequence[int], local: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """(shape, begin, local) of the same elements, where dimensions that are not sharded have gone into those
    before them; there is at least one."""
    merged, starts, sizes = [1], [0], [1]
    for n, start, size in zip(shape, begin, local, strict=True):
        if size == n or merged == [1]:
            merged[-1], starts[-1], sizes[-1] = merged[-1] * n, starts[-1] * n + start, sizes[-1] * size
        else:
            merged.append(n)
            starts.append(start)
            sizes.append(size)
    return merged, starts, sizes


def mix_words(xp: Any, words: Any) -> None:
    """SplitMix64's output function of an array of UInt64, in place."""
    spare = xp.empty_like(words)
    for shift, factor in _MIX:
        xp.right_shift(words, xp.uint64(shift), out=spare)
        xp.bitwise_xor(words, spare, out=words)
        if factor != 1:
            xp.multiply(words, xp.uint64(factor), out=words)


def random_words(xp: Any, key: int, shape: Sequence[int], begin: Sequence[int], local: Sequence[int]) -> Any:
    """64 random bits for every element of the slice of `local` sizes that begins at `begin` of a tensor of
    `shape`, drawn block by block, on several threads where it is large."""
    words = xp.empty(math.prod(local), xp.uint64)
    merged, starts, sizes = merged_slice(shape, begin, local)
    if not words.size:
        return words.reshape(tuple(local))
    inner, stride = xp.zeros(1, xp.uint64), 1
    for n, start, size in reversed(list(zip(merged[1:], starts[1:], sizes[1:], strict=True))):
        along = xp.arange(start, start + size, dtype=xp.uint64) * xp.uint64(stride * GOLDEN % _WORD)
        inner = (along[:, None] + inner).reshape(-1)
        stride *= n
    step = max(1, _BLOCK // inner.size) if xp is np else sizes[0]

    def part(first: int, last: int) -> None:
        for row in range(first, last, step):
            end = min(row + step, last)
            outer = xp.arange(starts[0] + row, starts[0] + end, dtype=xp.uint64)
            outer *= xp.uint64(stride * GOLDEN % _WORD)
            outer += xp.uint64((key + GOLDEN) % _WORD)
            found = (outer[:, None] + inner).reshape(-1)
            mix_words(xp, found)
            words[row * inner.size : end * inner.size] = found

    shared_out(xp, sizes[0], step, words.size, part)
    return words.reshape(tuple(local))


def before_step(*seeds: int) -> int:
    """The word of which, the step added to it, `key_of(*seeds, step)` is mixed."""
    return (key_of(*seeds) + GOLDEN) % _WORD


def device_key(*seeds: int) -> str:
    """C++ of the key that `key_of(*seeds, step)` is, from `step`, a pointer to the running step."""
    return f"const u64 key = mixed({before_step(*seeds)}ull + (u64)*step);"


def device_word(shape: Sequence[int], begin: Sequence[int], local: Sequence[int], at: str = "at") -> str:
    """C++ of the 64 random bits of element `at` of a slice, as `random_words` gives them, from `key`."""
    if tuple(shape) == tuple(local):
        return f"mixed((u64){at} * {GOLDEN}ull + key + {GOLDEN}ull)"
    terms: list[str] = []
    stride = 1
    for d in reversed(range(len(shape))):
        terms.append(f"((u64)i{d} + {begin[d]}ull) * {stride}ull")
        stride = stride * shape[d] % _WORD
    places = coordinates(local, at)
    return f"[&] {{ {places} return mixed(({' + '.join(terms)}) * {GOLDEN}ull + key + {GOLDEN}ull); }}()"
