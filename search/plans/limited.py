"""The quickest plan within a limit of memory, by compiling plans until one fits.

What the search foresees of a plan's memory is not what its program takes. A plan that is over the limit, though the
search has foreseen less, has it look for one with so much less; and in networks that are compiled fast many plans are
compiled, of which the quickest that fits is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, OnStage, Stage
from mspc.compiler.strategy_names import all_is_given
from mspc.ir.diagnostics import MspcError
from mspc.passes.search.candidates import Candidates, Values, least_stored
from mspc.passes.search.elimination import LARGEST
from mspc.passes.search.limited import Limited
from mspc.passes.search.memory import Memory
from mspc.passes.search.model import Model
from mspc.passes.search.terms import LEAST
from mspc.passes.search.whole_graph import limited, mesh_of
from mspc.passes.sharding.propagate_sharding import begun
from mspc.runtime.memory_plan import MemoryPlan

ATTEMPTS = 6
"""How often less is looked for where a plan takes more memory than was foreseen."""
EFFORT = 4000
"""Operators of a rank that are compiled for plans beside those, up to which another one is tried."""
TRIES = 80
"""How many of these plans there are at most."""
SHARES = 6
"""The part of the tries in which several kinds of plans take turns."""
DOWNHILL = 8
"""Decisions one after the other by which a plan is made to hold less."""
STARTS = 3
"""Plans that are made so."""


@dataclass(frozen=True)
class Taken:
    """What a compiled plan takes on a rank. plan: its memory; beside: bytes of workspaces; step: seconds; operators: of
    the rank's graph."""

    plan: MemoryPlan
    beside: int
    step: float
    operators: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.plan.peak + self.beside


@dataclass(frozen=True)
class _Tried:
    compiled: Compiled
    taken: Taken
    values: Values | None


class _Read(Exception):  # it ends a compile that has told enough
    pass


class LimitedPlans:
    """The plans of one launch within `memory` bytes. compile: makes a program of settings, and tells its stages.
    measure: what a program takes on a rank. busiest: the rank of a program that counts; rank 0 is looked at first."""

    def __init__(
        self, config: Config, memory: int, compile: Callable[[Config, OnStage | None], Compiled],
        measure: Callable[[Compiled, int], Taken], busiest: Callable[[Compiled], int],
    ) -> None:  # fmt: skip
        self.config, self.memory = config, memory
        self.compile, self.measure, self.busiest = compile, measure, busiest
        self.best: _Tried | None = None
        self.smallest: _Tried | None = None
        self.effort = EFFORT
        self.known: dict[Values, Taken | None] = {}
        self.model: Model
        self.solver: Limited
        self.candidates: Candidates

    def quickest(self) -> Compiled:
        """The quickest plan that was found to fit. Raises MspcError where none was."""
        first = self._searched()
        if first is not None and first.taken.bytes <= self.memory:
            return first.compiled
        self._read()
        least = least_stored(self.model)
        if least > self.memory:
            raise MspcError(
                f"no plan fits {self.memory} bytes of memory on a rank: at least {least} are needed",
                notes=["for inputs as they arrive, results, and parameters and states cut over all ranks",
                       "take more ranks, or allow more memory"],
            )  # fmt: skip
        self._look_for_less(first)
        self._try_others()
        if self.best is not None:
            return self.best.compiled
        assert self.smallest is not None
        plan, beside = self.smallest.taken.plan, self.smallest.taken.beside
        raise MspcError(
            f"no plan that was found fits {self.memory} bytes of memory on a rank: the smallest takes "
            f"{self.smallest.taken.bytes}",
            notes=[
                f"weights {plan.weights}, states {plan.states}, inputs {plan.inputs}, gradients at most "
                f"{plan.gradients}, activations at most {plan.activations}"
                + f", workspaces of kernels {beside}" * bool(beside),
                f"{least} bytes are needed at least, whatever the plan",
                "take more ranks, or allow more memory",
            ],
        )

    def _searched(self) -> _Tried | None:
        """What the search finds for the limit; None where it reckons that all plans are over it."""
        terms = replace(self.config.search_terms, memory=self.memory)
        try:
            return self._note(self.compile(replace(self.config, search_terms=terms), None), None)
        except MspcError:
            return None

    def _read(self) -> None:
        """Take the network as the search sees it."""

        def look(stage: Stage) -> None:
            if all_is_given(stage.name, stage.graph):
                search, _ = begun(stage.graph)
                self.model = Model(search, mesh_of(search))
                raise _Read

        terms = replace(self.config.search_terms, memory=self.memory)
        try:
            self.compile(replace(self.config, search_terms=terms), look)
        except _Read:
            pass
        memory = Memory(self.model)
        self.candidates = Candidates(self.model, memory)
        self.solver = limited(self.model, memory, LARGEST, terms.milliseconds / 1000)

    def _look_for_less(self, first: _Tried | None) -> None:
        """Have the search look for less until a plan fits, at last for the least."""
        limit, last = self.memory, first
        for attempt in range(1, ATTEMPTS):
            if last is not None:
                if last.taken.bytes <= self.memory:
                    return
                foreseen = int(last.compiled.graph.attrs.get("search_held", 0))
                if limit == LEAST or foreseen > limit:  # it is the least that the search knows
                    return
                limit = min(self.memory - (last.taken.bytes - foreseen), limit - limit // 50)
            if last is None or limit <= 0 or attempt == ATTEMPTS - 1:
                limit = LEAST
            try:
                found = self.solver.solve(limit)
            except MspcError:
                found, limit = self.solver.solve(LEAST), LEAST  # even the least that it reckons with is more
            last = self._tried(found.values, found.bound) or last

    def _try_others(self) -> None:
        """Compile other plans, first those that seem to fit."""
        assert self.smallest is not None
        left = min(TRIES, EFFORT // self.smallest.taken.operators)
        tries = self._in_order(left)
        while left > 0 < self.effort and (values := next(tries, None)) is not None:
            if values not in self.known:
                self._tried(values, 0.0)
                left -= 1

    def _in_order(self, tries: int) -> Iterator[Values]:
        """Plans to try: in turn those that hold the least and the cheapest that seem to fit, for a third of the tries,
        and then what lies one decision from the best that were tried."""
        plans, peak, cost = self.candidates.found(), self.candidates.peak, self.candidates.cost
        small = sorted(plans, key=lambda values: (peak(values), cost(values)))
        made = [self.candidates.smaller(values, DOWNHILL) for values in small[:STARTS]]
        cheap = sorted((values for values in plans if peak(values) <= self.memory), key=cost)
        for i in range(tries // SHARES):
            for values in [*made[i : i + 1], *small[i : i + 1]]:
                yield values
                yield self.candidates.plain(values)
            yield from cheap[i : i + 1]
        seen: set[Values] = set()
        while (begin := self._begin(seen)) is not None:
            seen.add(begin)
            best = self._begin(set())
            near = [values for values in self.candidates.neighbours(begin) if values not in self.known]
            fits = self.best is not None
            near.sort(key=lambda values: (peak(values) > self.memory, cost(values)) if fits
                      else (peak(values), cost(values)))  # fmt: skip
            for values in near:
                yield values
                if self._begin(set()) != best:
                    break

    def _begin(self, seen: set[Values]) -> Values | None:
        """The plan around which others are tried: the quickest that fits, or else the smallest, but for those where
        that was done."""
        known = {values: taken for values, taken in self.known.items() if taken is not None and values not in seen}
        fitting = [values for values, taken in known.items() if taken.bytes <= self.memory]
        if fitting:
            return min(fitting, key=lambda values: known[values].step)
        return min(known, key=lambda values: known[values].bytes, default=None)

    def _tried(self, values: Values, proven: float) -> _Tried | None:
        """Compile a plan; None where it does not compile, or was tried before."""
        values = self.candidates.settled(values)
        if values in self.known:
            return None
        self.known[values] = None
        given = " ".join(map(str, values))
        terms = replace(self.config.search_terms, memory=self.memory, given=given, proven=int(max(0.0, proven)))
        try:
            found = self._note(self.compile(replace(self.config, search_terms=terms), None), values)
        except MspcError:
            return None
        self.known[values] = found.taken
        return found

    def _note(self, compiled: Compiled, values: Values | None) -> _Tried:
        found = _Tried(compiled, self.measure(compiled, 0), values)
        self.effort -= found.taken.operators
        if self._is_better(found.taken) and (rank := self.busiest(compiled)):
            found = _Tried(compiled, self.measure(compiled, rank), values)
        if self.smallest is None or found.taken.bytes < self.smallest.taken.bytes:
            self.smallest = found
        if self._is_better(found.taken):
            self.best = found
        return found

    def _is_better(self, taken: Taken) -> bool:
        """Whether a plan fits, and is quicker than those before."""
        return taken.bytes <= self.memory and (self.best is None or taken.step < self.best.taken.step)
