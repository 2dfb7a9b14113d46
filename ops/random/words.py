"""Random words from a seed, the step and an element's position, and masks made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, Protocol, Self, TypeGuard

from mspc.ops import gpu
from mspc.ops.op import Op

_WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15
"""The difference between the words of neighbouring elements before they are mixed."""
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def mixed(word: int) -> int:
    """Return SplitMix64's output function of one Python integer."""
    for shift, factor in _MIX:
        word = (word ^ (word >> shift)) * factor % _WORD
    return word


def key_of(*words: int) -> int:
    """Return one 64-bit key made of several integers; each of them changes all its bits."""
    key = 0
    for word in words:
        key = mixed((key + word + GOLDEN) % _WORD)
    return key


def number_of_run(be: Any) -> int:
    """Return the number that distinguishes the draws of a node in this run from those of others: a hash of the
    backend's `step`, the iteration numbers of enclosing loops, and the numbers of enclosing nodes that share regions
    (`structural.CALL`). A loop that counts down draws the same numbers as one that counts up."""
    step, turns, calls = getattr(be, "step", 0), getattr(be, "turns", ()), getattr(be, "calls", ())
    return key_of(step, *turns, *(-number for number in calls)) if turns or calls else step


def merged_slice(
    shape: Sequence[int], begin: Sequence[int], local: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """Return (shape, begin, local) of the same elements, with unsharded dimensions merged into the preceding ones; at
    least one dimension."""
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
    """Apply SplitMix64's output function to an array of UInt64, in place."""
    spare = xp.empty_like(words)
    for shift, factor in _MIX:
        xp.right_shift(words, xp.uint64(shift), out=spare)
        xp.bitwise_xor(words, spare, out=words)
        if factor != 1:
            xp.multiply(words, xp.uint64(factor), out=words)


def random_words(xp: Any, key: int, shape: Sequence[int], begin: Sequence[int], local: Sequence[int]) -> Any:
    """Return 64 random bits for every element of the slice of `local` sizes that begins at `begin` of a tensor of
    `shape`."""
    if not math.prod(local):
        return xp.empty(tuple(local), xp.uint64)
    merged, starts, sizes = merged_slice(shape, begin, local)
    inner, stride = xp.zeros(1, xp.uint64), 1
    for n, start, size in reversed(list(zip(merged[1:], starts[1:], sizes[1:], strict=True))):
        along = xp.arange(start, start + size, dtype=xp.uint64) * xp.uint64(stride * GOLDEN % _WORD)
        inner = (along[:, None] + inner).reshape(-1)
        stride *= n
    outer = xp.arange(starts[0], starts[0] + sizes[0], dtype=xp.uint64) * xp.uint64(stride * GOLDEN % _WORD)
    outer += xp.uint64((key + GOLDEN) % _WORD)
    words = (outer[:, None] + inner).reshape(-1)
    mix_words(xp, words)
    return words.reshape(tuple(local))


def before_step(*seeds: int) -> int:
    """Return the word from which, after adding the step, `key_of(*seeds, step)` is mixed."""
    return (key_of(*seeds) + GOLDEN) % _WORD


def device_key(*seeds: int) -> str:
    """Return C++ of the key that `key_of(*seeds, step)` is, from `step`, a pointer to the running step."""
    return f"const u64 key = mixed({before_step(*seeds)}ull + (u64)*step);"


def device_word(shape: Sequence[int], begin: Sequence[int], local: Sequence[int], at: str = "at") -> str:
    """Return C++ of the 64 random bits of element `at` of a slice, equal to `random_words`, from `key`."""
    if tuple(shape) == tuple(local):
        return f"mixed((u64){at} * {GOLDEN}ull + key + {GOLDEN}ull)"
    terms: list[str] = []
    stride = 1
    for d in reversed(range(len(shape))):
        terms.append(f"((u64)i{d} + {begin[d]}ull) * {stride}ull")
        stride = stride * shape[d] % _WORD
    places = gpu.moves.coordinates(local, at)
    return f"[&] {{ {places} return mixed(({' + '.join(terms)}) * {GOLDEN}ull + key + {GOLDEN}ull); }}()"

Shape = tuple[int, ...]


def place_of_rows(shape: Sequence[int], rows: Sequence[int], rank: int, ranks: int) -> tuple[Shape, Shape, Shape]:
    """Return (global shape, start of the rank's slice, the slice's shape) of a tensor of which every rank has its own
    rows. shape: of a rank's tensor. rows: (dimension, outer): the dimension has `outer` equal parts, each of which
    starts with rows of the batch, so that one device has those of all ranks there. With several parts the dimension is
    split into (outer, rest) in the results."""
    dimension, outer = rows
    size = shape[dimension]
    parts = (outer,) if outer > 1 else ()
    rest = size // outer
    ahead, behind = tuple(shape[:dimension]), tuple(shape[dimension + 1 :])
    return (
        (*ahead, *parts, rest * ranks, *behind),
        (*(0 for _ in (*ahead, *parts)), rest * rank, *(0 for _ in behind)),
        (*ahead, *parts, rest, *behind),
    )


class Drawing(Protocol):
    """The interface, for passes, of an operator that draws numbers by their places in its results.

    draws_by_place: whether it does, which may depend on its attributes.
    """

    @property
    def rows(self) -> tuple[int, ...]: ...
    @property
    def draws_by_place(self) -> bool: ...
    def over_rows(self, dimension: int, outer: int) -> Op: ...


class DrawnByPlace(Op, abstract=True):
    """Operator that draws numbers by the position in its result. Fields of subclasses: rows, () or, if every rank has
    its own rows, see `place_of_rows`."""

    rows: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def draws_by_place(self) -> bool:
        """See `Drawing`."""
        return True

    def over_rows(self, dimension: int, outer: int) -> Self:
        """Return the operator for results of which every rank has its own rows along a dimension."""
        return replace(self, rows=(dimension, outer))


def draws_by_place(op: object) -> TypeGuard[Drawing]:
    """Whether an operator draws numbers by their places."""
    return bool(getattr(op, "draws_by_place", False))

GROUP = 16
"""Elements whose draws come from four words."""
_WORDS = 4
_ROW = 1 << 18
"""Number of elements of a row that a run of elements becomes."""


def count_of(keep_prob: float) -> int:
    """Return how many of the 65,536 values of sixteen bits keep an element."""
    return round(keep_prob * 65536)


def keep_mask(
    xp: Any, key: int, shape: Sequence[int], begin: Sequence[int], local: Sequence[int], keep_prob: float
) -> Any:
    """Return Bool of `local` sizes: which elements remain of the slice from `begin` on of a tensor of `shape`."""
    merged, starts, sizes = merged_slice(shape, begin, local)
    size = math.prod(sizes)
    places, stride = xp.full(1, starts[-1], xp.uint64), merged[-1]
    for n, start, count in reversed(list(zip(merged[:-1], starts[:-1], sizes[:-1], strict=True))):
        ahead = xp.arange(start, start + count, dtype=xp.uint64) * xp.uint64(stride)
        places = (ahead[:, None] + places).reshape(-1)
        stride *= n
    columns = sizes[-1]
    if len(merged) == 1:  # one run of elements becomes several rows, the last of which may go beyond it
        columns = min(_ROW, -(-size // GROUP) * GROUP)
        places = xp.arange(starts[0], starts[0] + size, max(1, columns), dtype=xp.uint64)
    aligned = not any(number % GROUP for number in (columns, starts[-1], *(merged[-1:] if len(merged) > 1 else ())))
    mask = keep_rows(xp, key, places, columns, keep_prob, aligned) if size else xp.empty(0, bool)
    return mask.reshape(-1)[:size].reshape(tuple(local))


def keep_rows(xp: Any, key: int, places: Any, columns: int, keep_prob: float, aligned: bool) -> Any:
    """Return Bool [rows, columns]: the kept elements, with draws starting at each of the positions. aligned: these and
    the columns are multiples of 16."""
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
    """Return a C++ expression for whether element `at` of a slice remains, equal to `keep_mask`."""
    count = count_of(keep_prob)
    if tuple(shape) == tuple(local):
        return f"keeps({at}, {key}, {count}u)"
    terms, stride = list[str](), 1
    for d in reversed(range(len(shape))):
        terms.append(f"((u64)i{d} + {begin[d]}ull) * {stride}ull")
        stride = stride * shape[d] % 2**64
    return f"[&] {{ {gpu.moves.coordinates(local, at)} return keeps({' + '.join(terms)}, {key}, {count}u); }}()"
