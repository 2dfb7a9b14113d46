"""Finds the borders of one way to run units, by branch and bound, with a proof where that ends in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, pairwise

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.search.stages.bounds import StageBounds
from mspc.search.stages.problem import Borders, UnitCosts, Way, equal_parts
from mspc.search.stages.walk import walk_of

TOGETHER = 512
"""Choices that are walked at once."""
EFFORT = 1_000_000
"""Entries of stages that are walked at most for one way, each choice's by itself: about a quarter of a second."""
NODES = 20_000
"""Chunks that are given an end at most for one way, on the way to such choices."""
SAME = 1e-9
"""The part of a step by which another has to be quicker to count."""


@dataclass(frozen=True)
class Found:
    """The best borders of a way. seconds: of a step; infinite where none fit the memory. proven: what no borders of
    this way go below, or what was given as known where none below that was looked for."""

    way: Way
    borders: Borders
    seconds: float
    proven: float


class BorderSearch:
    """The search for one way. memory: bytes of a rank, 0 for any. kept: borders that are given."""

    def __init__(self, costs: UnitCosts, way: Way, memory: float = 0, kept: Borders | None = None) -> None:
        self.costs, self.way, self.memory, self.kept = costs, way, memory, kept
        self.walk = walk_of(way.order)
        self.bounds = StageBounds(costs, self.walk, memory)
        entries = sum(map(len, self.walk.schedule.entries))
        self.most = max(TOGETHER, EFFORT // max(1, entries))
        self._nodes = 0

    def seconds(self, borders: Borders) -> float:
        """A step by these borders; infinite where they do not fit the memory."""
        return float(self._walked([borders])[0])

    def smallest(self) -> tuple[float, Way]:
        """Bytes of equal parts, or of the borders that are given, and the way."""
        borders = equal_parts(self.costs.count, self.way.parts) if self.kept is None else self.kept
        return float(self.walk.memory(self.costs, np.array([borders], dtype=int).reshape(1, -1))[0]), self.way

    def solve(self, known: float = np.inf, most: int = 0) -> Found:
        """The best borders. known: seconds of a step that is known, so that only quicker ones count. most: choices that
        are walked at most, in place of the usual number."""
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
        """Borders to begin with: equal parts, and what the bounds lead to, moved one by one while that helps."""
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
        """All borders whose bound is below a limit, which may fall meanwhile, the least bounds of each chunk first."""
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
    """The same with one border moved by one, or two neighbours together."""
    edges = (0, *borders, count)
    for width in (1, 2):
        for i in range(len(borders) - width + 1):
            for step in (-1, 1):
                found = tuple(b + step * (i <= j < i + width) for j, b in enumerate(borders))
                whole = (0, *found, count)
                if all(a < b for a, b in pairwise(whole)) and whole != edges:
                    yield found
