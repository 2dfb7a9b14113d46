"""Attention over slices of a sequence is work on pairs: a slice of the queries looks at a slice of the keys.

A pair is worked on where its queries are, and the keys and values go there; or, where that rank has more to do, where
its keys are, and the queries go there and the result comes back; or by halves: Li et al., DistFlashAttn, arXiv
2310.03294. A causal attention has half of the pairs, and without it most of them would be on the ranks of the last
slices. So ranks have as much to do as where each holds an early and a late piece of the sequence, nothing is permuted,
and what a position stands for (masks, documents, draws, whatever a network computes of it) stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from mspc.ir.late_dataclass import dataclass

Pair = tuple[int, int]
"""(slice of the queries, slice of the keys); slice i is on rank i of the ring."""
Window = tuple[int | None, int | None]
"""(least, greatest) distance from a query to a key that it looks at, None for no limit."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of different ranks of which some query looks at some key. by_queries: those worked on where the queries
    are; by_keys: where the keys are; halved: the first half of the keys there, the second half where the queries are.
    """

    ranks: int
    by_queries: frozenset[Pair] = frozenset()
    by_keys: frozenset[Pair] = frozenset()
    halved: frozenset[Pair] = frozenset()

    def sent(self, keys: float, queries: float) -> float:
        """What a rank sends in the mean, where all keys of a pair are so much, and its queries with what comes back."""
        return sum(_sent(self, pair, keys, queries) for pair in self.all) / self.ranks

    @property
    def all(self) -> frozenset[Pair]:
        """All of them."""
        return self.by_queries | self.by_keys | self.halved

    def busiest(self, lengths: tuple[int, int], window: Window) -> float:
        """What the rank with the most to do computes, where the mean over all ranks is 1."""
        load = [_seen(rank, rank, lengths, window) for rank in range(self.ranks)]
        for pair in self.all:
            (i, j), share = pair, _seen(*pair, lengths, window)
            at_keys = 0.5 if pair in self.halved else float(pair in self.by_keys)
            load[i] += share * (1 - at_keys)
            load[j] += share * at_keys
        return max(load) * self.ranks / sum(load) if any(load) else 1.0

    @property
    def distances(self) -> Sequence[int]:
        """Over how many ranks of the ring something is sent, ascending: a round each."""
        to_queries, to_keys = self.by_queries | self.halved, self.by_keys | self.halved
        found = {(i - j) % self.ranks for i, j in to_queries} | {(j - i) % self.ranks for i, j in to_keys}
        return sorted(found)


def _sent(pairs: Pairs, pair: Pair, keys: float, queries: float) -> float:
    if pair in pairs.halved:
        return keys / 2 + queries
    return queries if pair in pairs.by_keys else keys


@lru_cache(maxsize=4096)
def pairs_of(ranks: int, lengths: tuple[int, int], window: Window, ratio: float, movable: bool) -> Pairs:
    """Where pairs are worked on.

    Args:
        lengths: of a slice of the queries and one of the keys. window: of whole sequences. ratio: bytes of a slice of
        the queries and its result over those of keys and values. movable: whether queries may go to their keys.

    All together send at most what a ring does, in which every slice of the keys goes to all ranks.
    """
    shares = {(i, j): _seen(i, j, lengths, window) for i in range(ranks) for j in range(ranks)}
    apart = [pair for pair, share in shares.items() if share and pair[0] != pair[1]]
    load = [sum(share for (i, _), share in shares.items() if i == rank) for rank in range(ranks)]
    spare = float(ranks * (ranks - 1) - len(apart))
    moved: dict[int, set[Pair]] = {1: set(), 2: set()}
    # The farthest first: the other way round the ring they are near, and the ring is shorter.
    ordered = sorted(apart, key=lambda pair: (-abs(pair[0] - pair[1]), pair)) if movable else []
    for parts in (1, 2) if lengths[1] % 2 == 0 else (1,):
        for pair in ordered:
            (i, j), extra, own = pair, ratio - 1 / parts, shares[pair] / parts
            if pair in moved[1] or load[i] - 2 * own < load[j] - 1e-9 or extra > spare:
                continue
            if parts == 1 and load[i] - own <= load[j]:
                continue
            moved[parts].add(pair)
            spare -= extra
            load[i], load[j] = load[i] - own, load[j] + own
    return Pairs(ranks, frozenset(apart) - moved[1] - moved[2], frozenset(moved[1]), frozenset(moved[2]))


@lru_cache(maxsize=256)
def busiest_slice(slices: int, lengths: tuple[int, int], window: Window) -> tuple[float, float]:
    """Of so many slices of the queries that look at all keys: (the share of all pairs of a query and a key that are
    seen, how many times the mean the slice with the most of them has).

    Args:
        lengths: of whole sequences.
    """
    (queries, keys), (low, high) = lengths, window
    places = np.arange(queries)
    first = np.zeros(queries) if low is None else np.clip(places + low, 0, keys)
    last = np.full(queries, keys) if high is None else np.clip(places + high + 1, 0, keys)
    seen = np.maximum(last - first, 0).reshape(slices, -1).sum(axis=1)
    total = float(seen.sum())
    return (total / (queries * keys), float(seen.max()) * slices / total) if total else (1.0, 1.0)


def _seen(i: int, j: int, lengths: tuple[int, int], window: Window) -> float:
    """Which share of a pair's scores somebody looks at: none, all, or something between."""
    queries, keys = lengths
    low, high = window
    first, last = j * keys - (i + 1) * queries + 1, (j + 1) * keys - 1 - i * queries
    if (low is not None and last < low) or (high is not None and first > high):
        return 0.0
    return 1.0 if (low is None or first >= low) and (high is None or last <= high) else 0.5
