"""Compiles many plans of a small network, and knows the fastest for every limit of memory.

The model's estimate of memory and time is not exact, so plans are compared by their programs. The choice of plans does
not depend on the limit: with more memory the front never has a slower plan.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.search.layouts.axis_symmetry import AxisSymmetry
from mspc.search.layouts.candidates import PlanCandidates, Values

SEEDS = 20
"""Plans of the model's own front that are compiled first, at most."""
TRIES = 130
"""Plans that are compiled at most."""
EFFORT = 3200
"""Operators of a rank that are compiled, up to which another plan is tried."""
GAIN, NEAR, MEMORY = "gain", "near", "memory"
ORDER = (GAIN, NEAR, GAIN, MEMORY)
"""How the next plans are chosen, one after the other: by the expected gain; as a neighbour of the fastest plan, since
expected gains are wrong if the model's memory is; and by the least expected memory, so that small limits have plans."""
NEAR_COST = 1.3
"""Times the model's cost of a plan up to which its neighbours are compiled for that alone."""
HOPE = 0.5
"""Exploration ends if no plan is expected to be within twice the time of the best in as much memory."""
FASTEST = 0.1
"""The share of the fastest step that is expected of any plan at least."""
LOCAL = 8
"""Power of the number of equal decisions in the weight of a compiled plan's error: the most similar plans count."""


@dataclass(frozen=True)
class PlanCost:
    """Measured of a program, or expected: bytes at the peak of memory, seconds of a step, and operators of a rank."""

    bytes: float
    step: float
    operators: int = 0


class CompiledFront:
    """measure: compiles an assignment, or raises MspcError. seconds_per_byte: of what the model's costs count.
    deadline: by `time.monotonic`. found: assignments that the solver finds, which are compiled before all others."""

    def __init__(
        self, candidates: PlanCandidates, measure: Callable[[Values], PlanCost], seconds_per_byte: float,
        deadline: float = math.inf, found: Sequence[Values] = (),
    ) -> None:  # fmt: skip
        self.candidates, self.measure, self.found = candidates, measure, found
        self.seconds_per_byte, self.deadline = seconds_per_byte, deadline
        self.known: dict[Values, PlanCost] = {}
        self.front: list[tuple[float, float, Values]] = []
        """(bytes, step, assignment), ascending in bytes and descending in steps."""
        self._symmetry = AxisSymmetry(candidates.model, candidates.decisions)
        self._operators = AxisSymmetry(candidates.model, [candidates.model.of[node] for node in candidates.model.nodes])
        self._seen: set[tuple[int, ...]] = set()
        self._open: dict[tuple[int, ...], Values] = {}
        """Plans that may be compiled, one of those that differ in the order of mesh axes alone."""
        self._neighbours: dict[Values, list[Values]] = {}
        self._model_costs_of: dict[Values, tuple[float, float]] = {}
        self._tries, self._effort = TRIES, EFFORT

    def explore(self) -> None:
        """Compile plans until the effort is spent: some of the model's front, and then the neighbours of the best that
        are expected to be better."""
        for values in (*map(self.candidates.settled, self.found), *self._seeds()):
            self._try(values)
        for how in cycle(ORDER):
            if not self._goes_on() or (values := self._next(how)) is None:
                return
            self._try(values)

    def explore_below(self, limit: int) -> None:
        """Compile plans that are expected to take little memory, as long as none is within a limit."""
        self._tries, self._effort = TRIES, 2 * EFFORT
        while self.fastest(limit) is None and self._goes_on() and (values := self._next(MEMORY)) is not None:
            self._try(values)

    def fastest(self, limit: float = math.inf) -> Values | None:
        """The fastest plan within a limit of bytes; None if no plan is."""
        place = bisect_right(self.front, limit, key=lambda each: each[0])
        return self.front[place - 1][2] if place else None

    def smallest(self) -> list[Values]:
        """The plan that takes the least memory, if any plan compiles."""
        return [values for _, _, values in self.front[:1]]

    def _goes_on(self) -> bool:
        return self._tries > 0 < self._effort and time.monotonic() <= self.deadline

    def _seeds(self) -> list[Values]:
        """The cheapest and the smallest plans that the model finds, one for every way to shard all operators."""
        plans, found = self.candidates, self.candidates.found()
        self._consider(found)
        by_cost = sorted(found, key=lambda each: (plans.cost(each), each))
        by_memory = sorted(found, key=lambda each: (plans.peak(each), plans.cost(each), each))
        cheap, small = (self._unlike(order)[: SEEDS // 2] for order in (by_cost, by_memory))
        return list(dict.fromkeys(each for pair in zip(cheap, small, strict=True) for each in pair))

    def _unlike(self, plans: Sequence[Values]) -> list[Values]:
        """The first plan of every way to shard the operators."""
        found: dict[tuple[int, ...], Values] = {}
        for values in plans:
            found.setdefault(self._operators.key(values), values)
        return list(found.values())

    def _consider(self, plans: Sequence[Values]) -> None:
        for values in plans:
            key = self._symmetry.key(values)
            if key not in self._seen:
                self._open.setdefault(key, values)

    def _try(self, values: Values) -> None:
        key = self._symmetry.key(values)
        if key in self._seen or not self._goes_on():
            return
        self._seen.add(key)
        self._open.pop(key, None)
        self._tries -= 1
        try:
            found = self.measure(values)
        except MspcError:
            return
        self._effort -= found.operators
        self.known[values] = found
        self._add(found, values)

    def _add(self, cost: PlanCost, values: Values) -> None:
        """Put a plan on the front if none there is as small and as fast."""
        if any(held <= cost.bytes and step <= cost.step for held, step, _ in self.front):
            return
        others = [each for each in self.front if each[0] < cost.bytes or each[1] < cost.step]
        self.front = sorted([*others, (cost.bytes, cost.step, values)], key=lambda each: each[:2])

    def _next(self, how: str) -> Values | None:
        """The plan to compile next; None if none is worth it. how: see `ORDER`."""
        for _, _, values in self.front:
            if values not in self._neighbours:
                self._neighbours[values] = self.candidates.neighbours(values)
                self._consider(self._neighbours[values])
        if how == NEAR and (nearest := self._nearest()) is not None:
            return nearest
        plans = list(self._open.values())
        if how == MEMORY and self.front:
            own = [self._symmetry.key(each) for each in self._neighbours[self.front[0][2]]]
            plans = [self._open[key] for key in dict.fromkeys(own) if key in self._open] or plans
        if not plans:
            return None
        expected = self._expected(plans)
        gains = [self._gain(cost) for cost in expected]
        score = (lambda i: -expected[i].bytes) if how == MEMORY else lambda i: (gains[i], -expected[i].bytes)
        best = max(range(len(plans)), key=score)
        return plans[best] if how == MEMORY or gains[best] >= HOPE else None

    def _nearest(self) -> Values | None:
        """The neighbour of the fastest plan of the front that has one which costs little in the model, the cheapest."""
        cost = self.candidates.cost
        for _, _, values in reversed(self.front):
            most = NEAR_COST * cost(values)
            near = (each for each in self._neighbours[values] if cost(each) <= most)
            found = min((each for each in near if self._symmetry.key(each) not in self._seen), key=cost, default=None)
            if found is not None:
                return found
        return None

    def _gain(self, cost: PlanCost) -> float:
        """How many times faster a plan is than the fastest known in as much memory; for less memory than any known,
        by how much less."""
        place = bisect_right(self.front, cost.bytes, key=lambda each: each[0])
        if place:
            return self.front[place - 1][1] / cost.step
        least = self.front[0][0]
        return 1 + (least - cost.bytes) / least

    def _expected(self, plans: Sequence[Values]) -> list[PlanCost]:
        """Expect of plans what the model says, with its errors for compiled plans: their mean, weighted by how many
        decisions are the same. All sums are in one order, so that every machine compiles the same plans."""
        known, decisions = list(self.known), self.candidates.decisions
        of_known, of_plans = np.array(known)[:, decisions], np.array(plans)[:, decisions]
        errors = np.array([[self.known[values].bytes, self.known[values].step] for values in known])
        errors = errors - self._model_costs(known)
        alike = (of_plans[:, None, :] == of_known[None, :, :]).sum(axis=2)
        weights = ((1 + alike) ** LOCAL).astype(float)
        total = np.add.accumulate(weights, axis=1)[:, -1:]
        mean = np.add.accumulate(weights[:, :, None] * errors[None], axis=1)[:, -1] / total
        least = FASTEST * self.front[-1][1]
        return [PlanCost(float(nbytes), max(float(step), least)) for nbytes, step in self._model_costs(plans) + mean]

    def _model_costs(self, plans: Sequence[Values]) -> Any:
        known = self._model_costs_of
        for values in plans:
            if values not in known:
                known[values] = self.candidates.peak(values), self.seconds_per_byte * self.candidates.cost(values)
        return np.array([known[values] for values in plans])
