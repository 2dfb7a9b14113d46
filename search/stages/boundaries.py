"""Branch and bound search for the boundaries of pipeline stages in one way to run units, with a proof if it ends in
time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.passes.lib.schedules import FORWARD, GRADIENTS, WEIGHT_GRADIENT, Schedule
from mspc.search.stages.problem import (
    ON_DEVICE,
    Boundaries,
    UnitCosts,
    Walk,
    Way,
    equal_parts,
    largest_of,
    walk_of,
    ways_of,
)

# Lower bounds over all choices of the other boundaries, given the units [a, b) of one chunk.
#
# The chunk waits until the first micro-batch has passed all units before a. Then its stage does its work on all
# micro-batches. After its last input gradient, the gradient of that micro-batch passes the units before a. This holds
# for every schedule and any partition of the units before a:
#
#     step >= forward(0..a) + m (forward + gradients)(a..b) + gradients of inputs(0..a)
#
# Its first gradient waits until the first micro-batch has passed all units, and its gradient all units after b. The
# schedule determines the work of the stage from then on; the last term is as above:
#
#     step >= forward(0..end) + gradients of inputs(b..end) + work after the first gradient(a..b) + the same
#
# If the two gradients are separate, weight gradients may wait until the last input gradient has passed, so that only
# one of the two counts. Every message counts as the shortest one.


SAFE = 1 - 1e-9
"""Factor that keeps a rounded bound from exceeding its exact value."""


class _Counts(NamedTuple):
    """Numbers of actions in a range of a chunk's schedule: forwards, input gradients and weight gradients."""

    forward: int
    inputs: int
    weights: int


class StageBounds:
    """Lower bounds of one way to run units. least: [chunk, first unit, end], infinite if the chunk's stage would exceed
    the memory; chunks are bounded one by one, as if their stages had no other work. busy: [first unit, end], seconds of
    the units' work on all micro-batches."""

    def __init__(self, costs: UnitCosts, walk: Walk, memory: float = 0) -> None:
        way, count = walk.way, costs.count
        costs = costs.under(way)
        self.costs, self.way, self.memory = costs, way, memory
        weights = costs.weights if way.splits_gradients else np.zeros(count)
        own = (costs.forward, costs.inputs if way.splits_gradients else costs.backward, weights)
        by_itself = own if way.splits_gradients else (costs.separate.forward, costs.inputs + costs.weights, weights)
        least = [np.minimum(*pair) for pair in zip(own, by_itself, strict=True)]
        self.forward, self.backward = _prefix_sums(least[0]), _prefix_sums(least[1])
        self.rest = _prefix_sums(costs.rest)
        first, end = np.indices((count + 1, count + 1))
        self._own = tuple(
            _between(_prefix_sums(each)) + costs.alone(each, separate, first, end)
            for each, separate in zip(own, by_itself, strict=True)
        )
        self.busy = way.micro_batches * sum(self._own, np.zeros(()))
        spared = np.sort(sum(own, np.zeros(count)) - sum(least, np.zeros(count)))[::-1]
        all_work = sum(own, np.zeros(count)).sum() - (spared[: way.parts].sum() if costs.loops else 0.0)
        self._share = way.micro_batches * all_work / way.stages * SAFE  # at least one stage has its share of all work
        message = costs.message.min(initial=np.inf) if way.parts > 1 else 0.0
        places = walk.schedule.placement
        hops = np.concatenate([[0], np.cumsum([a != b for a, b in pairwise(places)])]) * message
        self.least = np.stack([self._of_chunk(walk, chunk, hops) for chunk in range(way.parts)])
        # [chunk, first unit]: a lower bound for this chunk and all after it, over all their boundaries.
        self.behind = np.full((way.parts + 1, count + 1), np.inf)
        self.behind[way.parts, count] = 0.0
        for chunk in reversed(range(way.parts)):
            self.behind[chunk] = np.maximum(self.least[chunk], self.behind[chunk + 1][None, :]).min(axis=1)

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
            resident = _between(_prefix_sums(costs.resident - costs.totals))
            resident += costs.alone(costs.resident, costs.separate.resident, first, end)
            saved = _between(_prefix_sums(costs.saved))
            saved += costs.alone(costs.saved, costs.separate.saved, first, end)
            late = _between(_prefix_sums(costs.late))
            all_kept, kept_late = walk.max_saved_of_chunk(chunk)
            away = self._away(all_kept)
            saved = np.maximum(all_kept * saved - away, kept_late * (late if self.way.splits_gradients else saved))
            legal &= resident + saved + largest_of(self.costs.work) <= self.memory
        return np.where(legal, found * SAFE, np.inf)

    def _away(self, saved: int) -> np.ndarray:
        """Return [first, end]: maximum bytes of `saved` micro-batches that may be offloaded."""
        host = self.costs.host
        if host is None:
            return np.zeros(())
        return _between(_prefix_sums(host.values)) * max(0, saved - ON_DEVICE * (self.way.chunks == 1))

    def _work(self, counts: _Counts) -> np.ndarray:
        """Return [first, end]: seconds of these actions."""
        return sum((count * each for count, each in zip(counts, self._own, strict=True)), np.zeros(()))

    @property
    def of_all(self) -> float:
        """Lower bound for all boundaries of this way; infinite if none fit."""
        return max(float(self.behind[0, 0]), float(self._share))


def _counts(schedule: Schedule, chunk: int) -> tuple[_Counts, _Counts, _Counts, _Counts]:
    """Return the numbers of actions of a chunk: of all; up to the last input gradient; from the first input gradient
    on; and between the two."""
    kinds = [action.kind for action in schedule.entries[schedule.placement[chunk]] if action.chunk == chunk]
    gradients = [i for i, kind in enumerate(kinds) if kind in GRADIENTS]
    first, last = gradients[0], gradients[-1] + 1

    def counted(part: list[str]) -> _Counts:
        return _Counts(part.count(FORWARD), sum(kind in GRADIENTS for kind in part), part.count(WEIGHT_GRADIENT))

    return counted(kinds), counted(kinds[:last]), counted(kinds[first:]), counted(kinds[first:last])


def _prefix_sums(numbers: np.ndarray) -> np.ndarray:
    """Return the sum before each unit, followed by the total."""
    return np.concatenate([[0.0], np.cumsum(numbers)])


def _between(ahead: np.ndarray) -> np.ndarray:
    """Return [first, end]: the sum over units first to end - 1."""
    return ahead[None, :] - ahead[:, None]


BATCH = 512
"""Number of candidates that are evaluated together."""
EFFORT = 1_000_000
"""Maximum number of schedule entries that are evaluated for one way, over all candidates: about a quarter of a
second."""
NODES = 20_000
"""Maximum number of search nodes for one way."""
SAME = 1e-9
"""Minimum relative saving of a faster candidate."""


@dataclass(frozen=True)
class BoundaryResult:
    """Best boundaries of a way. seconds: of a step; infinite if none fit the memory. proven: lower bound for all
    boundaries of the way, or the known time if nothing below it was searched."""

    way: Way
    boundaries: Boundaries
    seconds: float
    proven: float


class BoundarySearch:
    """Search for one way. memory: bytes per rank, 0 for no limit. fixed: boundaries set by the script."""

    def __init__(self, costs: UnitCosts, way: Way, memory: float = 0, fixed: Boundaries | None = None) -> None:
        self.costs, self.way, self.memory, self.fixed = costs, way, memory, fixed
        self.walk = walk_of(way.order)
        self.bounds = StageBounds(costs, self.walk, memory)
        entries = sum(map(len, self.walk.schedule.entries))
        self.most = max(BATCH, EFFORT // max(1, entries))
        self._nodes = 0

    def seconds(self, boundaries: Boundaries) -> float:
        """Return the seconds of a step with these boundaries; infinite if they do not fit the memory."""
        return float(self._walked([boundaries])[0])

    def smallest(self) -> tuple[float, Way]:
        """Return the bytes of equal parts, or of the fixed boundaries, and the way."""
        boundaries = equal_parts(self.costs.count, self.way.parts) if self.fixed is None else self.fixed
        return float(self.walk.memory(self.costs, np.array([boundaries], dtype=int).reshape(1, -1))[0]), self.way

    def solve(self, known: float = np.inf, most: int = 0) -> BoundaryResult:
        """Return the best boundaries. known: seconds of a known step; only faster ones count. most: maximum number of
        evaluations, 0 for the default."""
        if self.fixed is not None:
            seconds = self.seconds(self.fixed)
            return BoundaryResult(self.way, self.fixed, seconds, seconds)
        best, seconds = self._begin()
        proven = self.bounds.of_all
        limit = min(known, seconds)
        left = most or self.most
        self._nodes = 0
        choices = self._below(lambda: limit)
        while proven < limit:
            batch = list(islice(choices, min(BATCH, left)))
            left -= len(batch)
            if batch:
                times = self._walked(batch)
                at = int(times.argmin())
                if times[at] < seconds * (1 - SAME):
                    best, seconds = batch[at], float(times[at])
                    limit = min(limit, seconds)
            if len(batch) < BATCH:
                if left > 0 and self._nodes < NODES:
                    proven = limit
                break
        return BoundaryResult(self.way, best, seconds, min(proven, seconds))

    def _walked(self, batch: list[Boundaries]) -> np.ndarray:
        boundaries = np.array(batch, dtype=int).reshape(len(batch), self.way.parts - 1)
        times = self.walk.seconds(self.costs, boundaries)
        if self.memory:
            times = np.where(self.walk.memory(self.costs, boundaries) <= self.memory, times, np.inf)
        return times

    def _begin(self) -> tuple[Boundaries, float]:
        """Return initial boundaries and their seconds: equal parts, or the boundaries of least bounds, improved by
        moves of one unit."""
        found = [equal_parts(self.costs.count, self.way.parts)]
        found += islice(self._below(lambda: np.inf), 1)
        times = self._walked(found)
        best, seconds = found[int(times.argmin())], float(times.min())
        while True:
            moved = [*_moved(best, self.costs.count)]
            if not moved:
                return best, seconds
            times = self._walked(moved)
            at = int(times.argmin())
            if not times[at] < seconds * (1 - SAME):
                return best, seconds
            best, seconds = moved[at], float(times[at])

    def _below(self, limit: Callable[[], float]) -> Iterator[Boundaries]:
        """Yield all boundaries with a bound below a limit, which may decrease meanwhile, smallest bounds of each chunk
        first."""
        yield from self._from(limit, 0, 0, (), np.zeros(self.way.stages))

    def _from(
        self, limit: Callable[[], float], chunk: int, first: int, chosen: Boundaries, busy: np.ndarray
    ) -> Iterator[Boundaries]:
        bounds, parts = self.bounds, self.way.parts
        stage = self.walk.schedule.placement[chunk]
        least = np.maximum(bounds.least[chunk, first], bounds.behind[chunk + 1])
        if self.way.chunks > 1:
            work = bounds.busy[first] + bounds.rest - bounds.rest[first]
            least = np.maximum(least, busy[stage] + work)
        for end in np.argsort(least, kind="stable"):
            if not least[end] < limit() or self._nodes >= NODES:
                return
            self._nodes += 1
            if chunk == parts - 1:
                yield chosen
                continue
            others = busy
            if self.way.chunks > 1:
                others = busy.copy()
                others[stage] = max(busy[stage], bounds.forward[first]) + work[end]
            yield from self._from(limit, chunk + 1, int(end), (*chosen, int(end)), others)


def _moved(boundaries: Boundaries, count: int) -> Iterator[Boundaries]:
    """Yield the boundaries with one of them, or two adjacent ones, moved by one unit."""
    edges = (0, *boundaries, count)
    for width in (1, 2):
        for i in range(len(boundaries) - width + 1):
            for step in (-1, 1):
                found = tuple(b + step * (i <= j < i + width) for j, b in enumerate(boundaries))
                whole = (0, *found, count)
                if all(a < b for a, b in pairwise(whole)) and whole != edges:
                    yield found


@dataclass(frozen=True)
class StageProblem:
    """A way with the costs of units for its numbers. fixed: boundaries set by the script, None if they are searched."""

    costs: UnitCosts
    way: Way
    fixed: Boundaries | None = None


@dataclass(frozen=True)
class StageChoice:
    """Result of `choose`. best: None if nothing fits the memory. proven: lower bound in seconds over all ways and
    numbers. each: the best result for every number of stages."""

    best: BoundaryResult | None
    proven: float
    each: dict[int, BoundaryResult]

    @property
    def gap(self) -> float:
        """The largest share of the step that any other choice could save."""
        return 0.0 if self.best is None else max(0.0, 1 - self.proven / self.best.seconds)


def choose(problems: Sequence[StageProblem], memory: float = 0) -> StageChoice:
    """Return the fastest of all ways. memory: bytes per rank, 0 for no limit."""
    searches = [BoundarySearch(each.costs, each.way, memory, each.fixed) for each in problems]
    bounds = [search.bounds.of_all for search in searches]
    best: BoundaryResult | None = None
    proven = np.inf
    each: dict[int, BoundaryResult] = {}
    for i in sorted(range(len(searches)), key=bounds.__getitem__):
        count = searches[i].way.stages
        known = each[count].seconds if count in each else np.inf
        if bounds[i] >= known:
            continue
        found = searches[i].solve(known)
        # The known time is of another way, which has its own proof.
        proven = min(proven, found.proven if found.proven < known else np.inf)
        if found.seconds < known * (1 - SAME):
            each[count] = found
        if found.seconds < (np.inf if best is None else best.seconds):
            best = found
    proven = min(proven, np.inf if best is None else best.seconds)
    return StageChoice(best, float(proven), dict(sorted(each.items())))


def joined(one: StageChoice, other: StageChoice) -> StageChoice:
    """Return the better choice of two, with bounds over the ways of both."""
    bests = [each.best for each in (one, other) if each.best is not None]
    both = [found for each in (one, other) for found in each.each.items()]
    each = {count: min((f for c, f in both if c == count), key=lambda found: found.seconds) for count, _ in both}
    proven = min(one.proven, other.proven)
    return StageChoice(min(bests, key=lambda found: found.seconds, default=None), proven, dict(sorted(each.items())))


def all_ways(costs: UnitCosts, stages: Sequence[int], micro_batches: Sequence[int]) -> list[StageProblem]:
    """Return all ways for these numbers, if they all have the same costs."""
    return [StageProblem(costs, way) for s in stages for m in micro_batches for way in ways_of(s, m, costs.count)]
