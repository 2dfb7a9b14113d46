"""What no choice of the other borders can go below, given where one chunk lies.

A chunk that begins at unit a waits until the first micro-batch has passed all units before a; then its stage has its
work to do on all micro-batches; and behind its last gradient of inputs the same micro-batch's gradient has to pass the
units before a. That holds for every schedule, and however the units before a are shared out:

    step >= forward(0..a) + m (forward + gradients)(a..b) + gradients of inputs(0..a)

Its first gradient waits until the first micro-batch has passed all units, and its gradient all behind b; what the stage
does from then on says the schedule:

    step >= forward(0..end) + gradients of inputs(b..end) + work behind the first gradient(a..b) + the same

Gradients of weights may wait until the last gradient of inputs has passed by, so that where they are apart those that
do not count or what is behind them does. Every message on the way counts as the shortest one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mspc.passes.lib.schedules import FORWARD, GRADIENTS, WEIGHT_GRADIENT, Schedule, actions_of
from mspc.search.stages.host_bytes import ON_DEVICE
from mspc.search.stages.problem import UnitCosts
from mspc.search.stages.walk import Walk, largest_of

SAFE = 1 - 1e-9
"""Sums are rounded; a bound is not to be above what it bounds because of that."""


class _Counts(NamedTuple):
    """Actions of a chunk from one of its actions to another: forwards, gradients of inputs, and those of weights."""

    forward: int
    inputs: int
    weights: int


class StageBounds:
    """Bounds of one way to run units. least: [chunk, first unit, end], infinite where the stage of the chunk would not
    fit the memory. Chunks are looked at one by one, as if their stages had nothing else to do. busy: [first unit, end],
    seconds of their work on all micro-batches."""

    def __init__(self, costs: UnitCosts, walk: Walk, memory: float = 0) -> None:
        way, count = walk.way, costs.count
        self.costs, self.way, self.memory = costs, way, memory
        weights = costs.weights if way.is_apart else np.zeros(count)
        own = (costs.forward_of(way), costs.inputs if way.is_apart else costs.backward, weights)
        by_itself = own if way.is_apart else (costs.apart.forward, costs.inputs + costs.weights, weights)
        least = [np.minimum(*pair) for pair in zip(own, by_itself, strict=True)]
        self.forward, self.backward = _ahead(least[0]), _ahead(least[1])
        self.rest = _ahead(costs.rest)
        first, end = np.indices((count + 1, count + 1))
        self._own = tuple(
            _between(_ahead(each)) + costs.alone(way, each, apart, first, end)
            for each, apart in zip(own, by_itself, strict=True)
        )
        self.busy = way.micro_batches * sum(self._own, np.zeros(()))
        spared = np.sort(sum(own, np.zeros(count)) - sum(least, np.zeros(count)))[::-1]
        all_work = sum(own, np.zeros(count)).sum() - (spared[: way.parts].sum() if costs.loops else 0.0)
        self._share = way.micro_batches * all_work / way.stages * SAFE  # one stage at least has its share of all work
        message = costs.message.min(initial=np.inf) if way.parts > 1 else 0.0
        places = walk.schedule.placement
        hops = np.concatenate([[0], np.cumsum([a != b for a, b in pairwise(places)])]) * message
        self.least = np.stack([self._of_chunk(walk, chunk, hops) for chunk in range(way.parts)])
        self.behind = self._behind()

    def _of_chunk(self, walk: Walk, chunk: int, hops: np.ndarray) -> np.ndarray:
        count, parts = self.costs.count, self.way.parts
        first, end = np.indices((count + 1, count + 1))
        before, all_hops = hops[chunk], hops[-1]
        arrives = self.forward[first] + before
        returns = self.forward[-1] + self.backward[-1] - self.backward[end] + 2 * all_hops - before
        back, rest = self.backward[first] + before, _between(self.rest)
        whole, to_last, from_first, within = _counts(walk.schedule, chunk)
        found = arrives + self._work(whole) + rest
        for least in (
            arrives + self._work(to_last) + back, returns + self._work(from_first) + rest,
            returns + self._work(within) + back,
        ):  # fmt: skip
            np.maximum(found, least, out=found)
        legal = (end > first) & (first >= chunk) & (count - end >= parts - 1 - chunk)
        if self.memory:
            costs = self.costs
            held = _between(_ahead(costs.held_of(self.way) - costs.totals))
            held += costs.alone(self.way, costs.held_of(self.way), costs.apart.held, first, end)
            kept = _between(_ahead(costs.kept_of(self.way)))
            kept += costs.alone(self.way, costs.kept_of(self.way), costs.apart.kept, first, end)
            late = _between(_ahead(costs.late_of(self.way)))
            all_kept, kept_late = walk.kept_of_chunk(chunk)
            away = self._away(all_kept)
            kept = np.maximum(all_kept * kept - away, kept_late * (late if self.way.is_apart else kept))
            legal &= held + kept + largest_of(self.costs.work_of(self.way)) <= self.memory
        return np.where(legal, found * SAFE, np.inf)

    def _away(self, kept: int) -> np.ndarray:
        """[first, end]: bytes of so many micro-batches that may be on the host at most."""
        host = self.costs.host
        if host is None:
            return np.zeros(())
        return _between(_ahead(host.values)) * max(0, kept - ON_DEVICE * (self.way.chunks == 1))

    def _work(self, counts: _Counts) -> np.ndarray:
        """[first, end]: seconds of so many actions."""
        return sum((count * each for count, each in zip(counts, self._own, strict=True)), np.zeros(()))

    def _behind(self) -> np.ndarray:
        """[chunk, first unit]: the least that this chunk and those behind it come to, over all their borders."""
        parts, count = self.way.parts, self.costs.count
        found = np.full((parts + 1, count + 1), np.inf)
        found[parts, count] = 0.0
        for chunk in reversed(range(parts)):
            found[chunk] = np.maximum(self.least[chunk], found[chunk + 1][None, :]).min(axis=1)
        return found

    @property
    def of_all(self) -> float:
        """What no borders of this way go below; infinite where none fit."""
        return max(float(self.behind[0, 0]), float(self._share))


def _counts(schedule: Schedule, chunk: int) -> tuple[_Counts, _Counts, _Counts, _Counts]:
    """What a stage does for a chunk: in all, up to its last gradient of inputs, from the first one on, and between."""
    kinds = [action.kind for action in actions_of(schedule.entries[schedule.placement[chunk]]) if action.chunk == chunk]
    gradients = [i for i, kind in enumerate(kinds) if kind in GRADIENTS]
    first, last = gradients[0], gradients[-1] + 1

    def counted(part: list[str]) -> _Counts:
        return _Counts(part.count(FORWARD), sum(kind in GRADIENTS for kind in part), part.count(WEIGHT_GRADIENT))

    return counted(kinds), counted(kinds[:last]), counted(kinds[first:]), counted(kinds[first:last])


def _ahead(numbers: np.ndarray) -> np.ndarray:
    """Sums of all before each unit, and of all."""
    return np.concatenate([[0.0], np.cumsum(numbers)])


def _between(ahead: np.ndarray) -> np.ndarray:
    """[first, end]: the sum from first to end."""
    return ahead[None, :] - ahead[:, None]
