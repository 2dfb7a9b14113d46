"""Chooses among all ways of all numbers of stages and of micro-batches at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.search.stages.borders import SAME, BorderSearch, Found
from mspc.search.stages.problem import Borders, UnitCosts, Way, ways_of


@dataclass(frozen=True)
class StageProblem:
    """A way with the costs of units for its numbers. kept: borders that are given, None where they are looked for."""

    costs: UnitCosts
    way: Way
    kept: Borders | None = None


@dataclass(frozen=True)
class StageChoice:
    """What was chosen. best: None where nothing fits the memory. proven: seconds that no way of any number goes below.
    each: the best of every number of stages, in the order of these."""

    best: Found | None
    proven: float
    each: dict[int, Found]

    @property
    def gap(self) -> float:
        """The part of the step that any other choice could save at most."""
        return 0.0 if self.best is None else max(0.0, 1 - self.proven / self.best.seconds)


def choose(problems: Sequence[StageProblem], memory: float = 0) -> StageChoice:
    """The quickest of all. memory: bytes of a rank, 0 for any."""
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
        # What is known is of another way, whose own proof says what is below it.
        proven = min(proven, found.proven if found.proven < known else np.inf)
        if found.seconds < known * (1 - SAME):
            each[count] = found
        if found.seconds < (np.inf if best is None else best.seconds):
            best = found
    proven = min(proven, np.inf if best is None else best.seconds)
    return StageChoice(best, float(proven), dict(sorted(each.items())))


def joined(one: StageChoice, other: StageChoice) -> StageChoice:
    """What is chosen among the ways of both."""
    bests = [each.best for each in (one, other) if each.best is not None]
    both = [found for each in (one, other) for found in each.each.items()]
    each = {count: min((f for c, f in both if c == count), key=lambda found: found.seconds) for count, _ in both}
    proven = min(one.proven, other.proven)
    return StageChoice(min(bests, key=lambda found: found.seconds, default=None), proven, dict(sorted(each.items())))


def all_ways(costs: UnitCosts, stages: Sequence[int], micro_batches: Sequence[int]) -> list[StageProblem]:
    """All ways for these numbers, where costs are the same for all of them."""
    return [StageProblem(costs, way) for s in stages for m in micro_batches for way in ways_of(s, m, costs.count)]
