"""Search for the boundaries of one way to run units, by branch and bound, with a proof if it ends in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.passes.lib.schedules import FORWARD, GRADIENTS, WEIGHT_GRADIENT, Schedule
from mspc.search.stages.problem import (
    ON_DEVICE,
    Borders,
    UnitCosts,
    Walk,
    Way,
    equal_parts,
    largest_of,
    walk_of,
    ways_of,
)

# Lower bounds over all choices of the other boundaries, given the place of one chunk.
#
# A chunk that begins at unit a waits until the first micro-batch has passed all units before a. Then its stage has its
# work to do on all micro-batches. After its last gradient of inputs, the same micro-batch's gradient has to pass the
# units before a. This holds for every schedule, however the units before a are distributed:
#
#     step >= forward(0..a) + m (forward + gradients)(a..b) + gradients of inputs(0..a)
#
# Its first gradient waits until the first micro-batch has passed all units, and its gradient all units after b. The
# schedule determines the work of the stage from then on, and the last term is the same as above:
#
#     step >= forward(0..end) + gradients of inputs(b..end) + work after the first gradient(a..b) + the same
#
# Gradients of weights may wait until the last gradient of inputs has passed, so that only one of the two counts if they
# are separate. Every message on the way counts as the shortest one.


SAFE = 1 - 1e-9
"""Sums are rounded; this factor keeps a bound from exceeding its exact value."""


class _Counts(NamedTuple):
    """Actions of a chunk from one of its actions to another: forwards, gradients of inputs, and those of weights."""

    forward: int
    inputs: int
    weights: int


class StageBounds:
    """Bounds of one way to run units. least: [chunk, first unit, end], infinite if the stage of the chunk would not
    fit the memory. Chunks are bounded one by one, as if their stages had no other work. busy: [first unit, end],
    seconds of their work on all micro-batches."""

    def __init__(self, costs: UnitCosts, walk: Walk, memory: float = 0) -> None:
        way, count = walk.way, costs.count
        costs = costs.under(way)
        self.costs, self.way, self.memory = costs, way, memory
        weights = costs.weights if way.is_apart else np.zeros(count)
        own = (costs.forward, costs.inputs if way.is_apart else costs.backward, weights)
        by_itself = own if way.is_apart else (costs.apart.forward, costs.inputs + costs.weights, weights)
        least = [np.minimum(*pair) for pair in zip(own, by_itself, strict=True)]
        self.forward, self.backward = _ahead(least[0]), _ahead(least[1])
        self.rest = _ahead(costs.rest)
        first, end = np.indices((count + 1, count + 1))
        self._own = tuple(
            _between(_ahead(each)) + costs.alone(each, apart, first, end)
            for each, apart in zip(own, by_itself, strict=True)
        )
        self.busy = way.micro_batches * sum(self._own, np.zeros(()))
        spared = np.sort(sum(own, np.zeros(count)) - sum(least, np.zeros(count)))[::-1]
        all_work = sum(own, np.zeros(count)).sum() - (spared[: way.parts].sum() if costs.loops else 0.0)
        self._share = way.micro_batches * all_work / way.stages * SAFE  # at least one stage has its share of all work
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
            held = _between(_ahead(costs.held - costs.totals))
            held += costs.alone(costs.held, costs.apart.held, first, end)
            kept = _between(_ahead(costs.kept))
            kept += costs.alone(costs.kept, costs.apart.kept, first, end)
            late = _between(_ahead(costs.late))
            all_kept, kept_late = walk.kept_of_chunk(chunk)
            away = self._away(all_kept)
            kept = np.maximum(all_kept * kept - away, kept_late * (late if self.way.is_apart else kept))
            legal &= held + kept + largest_of(self.costs.work) <= self.memory
        return np.where(legal, found * SAFE, np.inf)

    def _away(self, kept: int) -> np.ndarray:
        """Return [first, end]: most bytes of `kept` micro-batches that may be on the host."""
        host = self.costs.host
        if host is None:
            return np.zeros(())
        return _between(_ahead(host.values)) * max(0, kept - ON_DEVICE * (self.way.chunks == 1))

    def _work(self, counts: _Counts) -> np.ndarray:
        """Return [first, end]: seconds of these actions."""
        return sum((count * each for count, each in zip(counts, self._own, strict=True)), np.zeros(()))

    def _behind(self) -> np.ndarray:
        """Return [chunk, first unit]: lower bound for this chunk and the following ones, over all their boundaries."""
        parts, count = self.way.parts, self.costs.count
        found = np.full((parts + 1, count + 1), np.inf)
        found[parts, count] = 0.0
        for chunk in reversed(range(parts)):
            found[chunk] = np.maximum(self.least[chunk], found[chunk + 1][None, :]).min(axis=1)
        return found

    @property
    def of_all(self) -> float:
        """Lower bound for all boundaries of this way; infinite if none fit."""
        return max(float(self.behind[0, 0]), float(self._share))


def _counts(schedule: Schedule, chunk: int) -> tuple[_Counts, _Counts, _Counts, _Counts]:
    """Return the actions of a stage for a chunk: all; up to its last gradient of inputs; from the first one on; and
    between these."""
    kinds = [action.kind for action in schedule.entries[schedule.placement[chunk]] if action.chunk == chunk]
    gradients = [i for i, kind in enumerate(kinds) if kind in GRADIENTS]
    first, last = gradients[0], gradients[-1] + 1

    def counted(part: list[str]) -> _Counts:
        return _Counts(part.count(FORWARD), sum(kind in GRADIENTS for kind in part), part.count(WEIGHT_GRADIENT))

    return counted(kinds), counted(kinds[:last]), counted(kinds[first:]), counted(kinds[first:last])


def _ahead(numbers: np.ndarray) -> np.ndarray:
    """Return the sum before each unit, and the total."""
    return np.concatenate([[0.0], np.cumsum(numbers)])


def _between(ahead: np.ndarray) -> np.ndarray:
    """Return [first, end]: the sum from first to before end."""
    return ahead[None, :] - ahead[:, None]


TOGETHER = 512
"""Choices that are evaluated at once."""
EFFORT = 1_000_000
"""Most entries of stages that are evaluated for one way, counted for each choice: about a quarter of a second."""
NODES = 20_000
"""Most chunks that are given an end for one way, in the search for such choices."""
SAME = 1e-9
"""The part of a step that another choice must save to be quicker."""


@dataclass(frozen=True)
class Found:
    """Best boundaries of a way. seconds: of a step; infinite if none fit the memory. proven: lower bound for all
    boundaries of this way, or the given known time if nothing below that was searched."""

    way: Way
    borders: Borders
    seconds: float
    proven: float


class BorderSearch:
    """Search for one way. memory: bytes of a rank, 0 for any. kept: given boundaries."""

    def __init__(self, costs: UnitCosts, way: Way, memory: float = 0, kept: Borders | None = None) -> None:
        self.costs, self.way, self.memory, self.kept = costs, way, memory, kept
        self.walk = walk_of(way.order)
        self.bounds = StageBounds(costs, self.walk, memory)
        entries = sum(map(len, self.walk.schedule.entries))
        self.most = max(TOGETHER, EFFORT // max(1, entries))
        self._nodes = 0

    def seconds(self, borders: Borders) -> float:
        """Return the seconds of a step with these boundaries; infinite if they do not fit the memory."""
        return float(self._walked([borders])[0])

    def smallest(self) -> tuple[float, Way]:
        """Return the bytes of equal parts, or of the given boundaries, and the way."""
        borders = equal_parts(self.costs.count, self.way.parts) if self.kept is None else self.kept
        return float(self.walk.memory(self.costs, np.array([borders], dtype=int).reshape(1, -1))[0]), self.way

    def solve(self, known: float = np.inf, most: int = 0) -> Found:
        """Return the best boundaries. known: seconds of a known step, so that only quicker ones count. most: most
        choices that are evaluated, in place of the usual number."""
        if self.kept is not None:
            seconds = self.seconds(self.kept)
            return Found(self.way, self.kept, seconds, seconds)
        best, seconds = self._begin()
        proven = self.bounds.of_all
        limit = min(known, seconds)
        left = most or self.most
        self._nodes = 0
        choices = self._below(lambda: limit)
        while proven < limit:
            batch = list(islice(choices, min(TOGETHER, left)))
            left -= len(batch)
            if batch:
                times = self._walked(batch)
                at = int(times.argmin())
                if times[at] < seconds * (1 - SAME):
                    best, seconds = batch[at], float(times[at])
                    limit = min(limit, seconds)
            if len(batch) < TOGETHER:
                if left > 0 and self._nodes < NODES:
                    proven = limit
                break
        return Found(self.way, best, seconds, min(proven, seconds))

    def _walked(self, batch: list[Borders]) -> np.ndarray:
        borders = np.array(batch, dtype=int).reshape(len(batch), self.way.parts - 1)
        times = self.walk.seconds(self.costs, borders)
        if self.memory:
            times = np.where(self.walk.memory(self.costs, borders) <= self.memory, times, np.inf)
        return times

    def _begin(self) -> tuple[Borders, float]:
        """Return boundaries to begin with, and their seconds: equal parts, or the choice with the least bounds, with
        boundaries moved by one unit while that helps."""
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

    def _below(self, limit: Callable[[], float]) -> Iterator[Borders]:
        """Yield all boundaries with a bound below a limit, which may fall meanwhile, the least bounds of each chunk
        first."""
        yield from self._from(limit, 0, 0, (), np.zeros(self.way.stages))

    def _from(
        self, limit: Callable[[], float], chunk: int, first: int, chosen: Borders, busy: np.ndarray
    ) -> Iterator[Borders]:
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


def _moved(borders: Borders, count: int) -> Iterator[Borders]:
    """Yield the boundaries with one of them moved by one unit, or two neighbours together."""
    edges = (0, *borders, count)
    for width in (1, 2):
        for i in range(len(borders) - width + 1):
            for step in (-1, 1):
                found = tuple(b + step * (i <= j < i + width) for j, b in enumerate(borders))
                whole = (0, *found, count)
                if all(a < b for a, b in pairwise(whole)) and whole != edges:
                    yield found


@dataclass(frozen=True)
class StageProblem:
    """A way with the costs of units for its numbers. kept: given boundaries, None if they are searched."""

    costs: UnitCosts
    way: Way
    kept: Borders | None = None


@dataclass(frozen=True)
class StageChoice:
    """Result of a choice. best: None if nothing fits the memory. proven: lower bound in seconds for all ways of all
    numbers. each: the best of every number of stages, in the order of these."""

    best: Found | None
    proven: float
    each: dict[int, Found]

    @property
    def gap(self) -> float:
        """The largest part of the step that any other choice could save."""
        return 0.0 if self.best is None else max(0.0, 1 - self.proven / self.best.seconds)


def choose(problems: Sequence[StageProblem], memory: float = 0) -> StageChoice:
    """Return the quickest of all ways. memory: bytes of a rank, 0 for any."""
    searches = [BorderSearch(each.costs, each.way, memory, each.kept) for each in problems]
    bounds = [search.bounds.of_all for search in searches]
    best: Found | None = None
    proven = np.inf
    each: dict[int, Found] = {}
    for i in sorted(range(len(searches)), key=bounds.__getitem__):
        count = searches[i].way.stages
        known = each[count].seconds if count in each else np.inf
        if bounds[i] >= known:
            continue
        found = searches[i].solve(known)
        # The known time belongs to another way, which has a proof of its own for times below it.
        proven = min(proven, found.proven if found.proven < known else np.inf)
        if found.seconds < known * (1 - SAME):
            each[count] = found
        if found.seconds < (np.inf if best is None else best.seconds):
            best = found
    proven = min(proven, np.inf if best is None else best.seconds)
    return StageChoice(best, float(proven), dict(sorted(each.items())))


def joined(one: StageChoice, other: StageChoice) -> StageChoice:
    """Return the choice among the ways of both."""
    bests = [each.best for each in (one, other) if each.best is not None]
    both = [found for each in (one, other) for found in each.each.items()]
    each = {count: min((f for c, f in both if c == count), key=lambda found: found.seconds) for count, _ in both}
    proven = min(one.proven, other.proven)
    return StageChoice(min(bests, key=lambda found: found.seconds, default=None), proven, dict(sorted(each.items())))


def all_ways(costs: UnitCosts, stages: Sequence[int], micro_batches: Sequence[int]) -> list[StageProblem]:
    """Return all ways for these numbers, if costs are the same for all of them."""
    return [StageProblem(costs, way) for s in stages for m in micro_batches for way in ways_of(s, m, costs.count)]
