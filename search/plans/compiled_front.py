"""Compiles many plans of a small network, and knows the fastest for every limit of memory.

The model's estimate of memory and time is not exact, so plans are compared by their programs. The choice of plans does
not depend on the limit: with more memory the front never has a slower plan.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.search.layouts.axis_symmetry import AxisSymmetry
from mspc.search.layouts.candidates import PlanCandidates, Values

SEEDS = 20
"""Plans of the model's own front that are compiled first, at most."""
TRIES = 100
"""Plans that are compiled at most."""
EFFORT = 2500
"""Operators of a rank that are compiled, up to which another plan is tried."""
MEMORY_TURN = 4
"""Every fourth plan is the one that is expected to take the least memory, so that small limits have plans, too."""
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
    deadline: by `time.monotonic`."""

    def __init__(
        self, candidates: PlanCandidates, measure: Callable[[Values], PlanCost], seconds_per_byte: float,
        deadline: float = math.inf,
    ) -> None:  # fmt: skip
        self.candidates, self.measure = candidates, measure
        self.seconds_per_byte, self.deadline = seconds_per_byte, deadline
        self.known: dict[Values, PlanCost] = {}
        self.front: list[tuple[float, float, Values]] = []
        """(bytes, step, assignment), ascending in bytes and descending in steps."""
        self._symmetry = AxisSymmetry(candidates.model, candidates.decisions)
        self._operators = AxisSymmetry(candidates.model, [candidates.model.of[node] for node in candidates.model.nodes])
        self._seen: set[tuple[int, ...]] = set()
        self._open: dict[tuple[int, ...], Values] = {}
        """Plans that may be compiled, one of those that differ in the order of mesh axes alone."""
        self._expanded: set[Values] = set()
        self._tries, self._effort = TRIES, EFFORT

    def explore(self) -> None:
        """Compile plans until the effort is spent: some of the model's front, and then the neighbours of the best that
        are expected to be better."""
        for values in self._seeds():
            self._try(values)
        turn = 0
        while self._goes_on() and (values := self._next(by_memory=turn % MEMORY_TURN == MEMORY_TURN - 1)) is not None:
            self._try(values)
            turn += 1

    def explore_below(self, limit: int) -> None:
        """Compile plans that are expected to take little memory, as long as none is within a limit."""
        self._tries, self._effort = TRIES, 2 * EFFORT
        while self.fastest(limit) is None and self._goes_on() and (values := self._next(by_memory=True)) is not None:
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

    def _next(self, by_memory: bool) -> Values | None:
        """The plan that is expected to improve the front the most, or to take the least memory."""
        for _, _, values in self.front:
            if values not in self._expanded:
                self._expanded.add(values)
                self._consider(self.candidates.neighbours(values))
        plans = list(self._open.values())
        if not plans:
            return None
        expected = self._expected(plans)
        gains = [self._gain(cost) for cost in expected]
        score = (lambda i: -expected[i].bytes) if by_memory else lambda i: (gains[i], -expected[i].bytes)
        best = max(range(len(plans)), key=score)
        return plans[best] if by_memory or gains[best] >= HOPE else None

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
        peak, cost = self.candidates.peak, self.candidates.cost
        return np.array([[peak(values), self.seconds_per_byte * cost(values)] for values in plans])
