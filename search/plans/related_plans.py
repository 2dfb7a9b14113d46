"""Programs of the search's plan and of related plans, one of which may be faster. The search adds up operators and
collectives one by one, and does not know which of them will be fused, overlapped or combined."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial

from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, Decide
from mspc.ir.diagnostics import MspcError
from mspc.passes.lib.plan_header import MINIMAL_MEMORY, Terms
from mspc.search.layouts.candidates import PlanCandidates, Values
from mspc.search.layouts.within_memory import Limited
from mspc.search.plans.alternatives import LARGE, REPLICATED, Alternative, PlannedNetwork, PlanRequest
from mspc.search.plans.figures import (  # fmt: skip
    Outcome,
    RankLoads,
    executed_graph,
    figures,
    figures_of,
    is_configured,
    memory_of,
    plan_memory_of,
    rank_loads,
    with_program_facts,
)
from mspc.search.plans.limited import (
    CompiledFront,
    LimitedPlans,
    PlanCost,
    PlanMemory,
    SearchProblem,
    has_device_memory,
    quickest_on_host,
    share_of,
)
from mspc.search.plans.row import SEARCH, PlanResult

RELATED = 1000
"""Maximum number of operators of a network, including gradients, for which related plans are compiled."""
SHARES = (0.9, 0.75, 0.5)
"""Memory limits of related plans, as shares of the memory of the search's plan."""
TABLE = 1 << 13
"""Maximum number of elements of a table in the search for related plans, which need no proof."""
TRIED = "with optimizer states and activations on the host it does not fit either"
SMALL = 300
"""Maximum number of a rank's operators for which many plans are compiled."""


class SearchedNetwork:
    """Search for one network. way: the settings of the search."""

    def __init__(self, network: PlannedNetwork, asked: PlanRequest, way: Alternative) -> None:
        self.network, self.asked, self.way = network, asked, way
        self._made: set[Values] = set()
        self._busiest: tuple[Compiled, RankLoads] | None = None
        """The program with the loads computed last, and the loads."""
        self._taken: PlanMemory | None = None
        """Memory of the plan within the limit, on that rank."""
        self.deadline = time.monotonic() + asked.seconds if asked.seconds else float("inf")

    def quickest(self) -> Outcome:
        """Return the fastest of the search's plan and its related plans, by the estimated step. Raise MspcError if none
        is within the memory limit."""
        best, refusal = None, None
        try:
            compiled = self._within() if self.asked.memory else self.plain
            plan = with_program_facts(compiled, self._figures_of(compiled), self.asked, self.way)
            best = Outcome.of(plan, compiled, self.network.captured, self.asked)
        except MspcError as error:
            if not self.asked.memory:
                raise
            refusal = error
        for name, make in self._relatives():
            if time.monotonic() > self.deadline:
                break
            best = self._better(best, name, make)
        if best is None:
            assert refusal is not None
            raise refusal
        return best

    def _figures_of(self, compiled: Compiled) -> PlanResult:
        """Return the costs of the found plan; some are already known if it was found within a limit."""
        taken = self._taken
        if taken is None or self._busiest is None or self._busiest[0] is not compiled:
            return figures(SEARCH, compiled, self.network.captured, self.asked, self.asked.memory)
        return figures_of(SEARCH, compiled, self._busiest[1], taken.graph, taken.bytes, self.asked)

    def _better(self, best: Outcome | None, name: str, make: Callable[[], Compiled | None]) -> Outcome | None:
        """Return the best outcome so far, or that of a related plan if it is faster."""
        try:
            other = make()
            if other is None:
                return best
            plan = figures(SEARCH, other, self.network.captured, self.asked, self.asked.memory)
        except MspcError:
            return best
        if best is not None and plan.step >= best.plan.step:
            return best
        own = best.plan if best is not None else with_program_facts(self.plain, plan, self.asked, self.way)
        facts = {key: getattr(own, key) for key in ("keeps_strategies", "reason", "alike")}
        plan = replace(plan, taken_from=name, **facts)
        found = Outcome.of(plan, other, self.network.captured, self.asked)
        return replace(found, configured=is_configured(self.plain))

    def _relatives(self) -> Iterator[tuple[str, Callable[[], Compiled | None]]]:
        """Yield (name, function) for every related plan; only the last depends on the memory limit. A function returns
        None if the plan was compiled before."""
        if len(self.network.call.traced.graph.nodes) > RELATED or len(self.plain.graph.nodes) > RELATED:
            return
        if self.asked.memory:
            yield "a search without a limit", lambda: self.plain
        if self.front is not None:
            yield "a search among compiled plans", partial(self._fastest_of, self.front)
        yield "a search by bytes alone", self._by_bytes
        for limit in self._smaller_limits() if self.front is None else ():  # the front has them
            yield f"a search within {limit} bytes of memory", partial(self._near, limit)
        if self.asked.free or not is_configured(self.plain):
            yield "replication on all ranks", partial(self.network.compiled, REPLICATED)

    @cached_property
    def plain(self) -> Compiled:
        """The search's plan without a limit of memory. Raise MspcError if it does not compile."""
        return self.network.compiled(self.way)

    @cached_property
    def problem(self) -> SearchProblem:
        """The search problem of the network. Raise MspcError if it cannot be sharded."""

        def compiled(config: Config, decide: Decide) -> Compiled:
            return self.network.compiled(self.way, config, decide=decide)

        return SearchProblem(self.network.config, compiled)

    @cached_property
    def _solver(self) -> Limited:
        return self.problem.solver(TABLE, proves=False)

    def _by_bytes(self) -> Compiled:
        """Return the search's plan if only sent bytes count, with small tables."""
        own = self.network.config.search_terms
        terms = Terms(mesh=own.mesh, milliseconds=own.milliseconds)
        way = replace(self.way, settings={**self.way.settings, "search_mode": "recursive_programming"})
        compiled = self.network.compiled(way, replace(self.network.config, search_terms=terms))
        compiled.graph.attrs.pop("search_open", None)  # the gap of another sum
        return compiled

    def _smaller_limits(self) -> list[int]:
        peak = memory_of(executed_graph(self.plain, 0), self.network.captured, self.network.config.device)
        return [int(peak * share) for share in SHARES]

    def _near(self, limit: int) -> Compiled | None:
        """Return the plan within a limit of predicted memory; None if it was compiled before."""
        values = self._solver.solve(limit).values
        if values in self._made:
            return None
        self._made.add(values)
        return self._compiled(values)

    @cached_property
    def front(self) -> CompiledFront | None:
        """Front of compiled plans of a small network; None for a larger one, or if the search cannot shard it."""
        if len(self.plain.rank_graph(0).nodes) > SMALL:
            return None
        try:
            candidates = PlanCandidates(self.problem.model, self._solver.memory)
        except MspcError:
            return None
        if not candidates.is_small:
            return None
        seconds_per_byte = 1 / self.asked.machine.link.bandwidth.at(LARGE)
        found: list[Values] = []
        for limit in (MINIMAL_MEMORY, *self._smaller_limits()):
            with suppress(MspcError):  # less than the least
                found.append(self._solver.solve(limit).values)
        front = CompiledFront(candidates, self._cost_of, seconds_per_byte, self.deadline, found)
        front.explore()
        return front if front.front else None

    def _cost_of(self, values: Values) -> PlanCost:
        program = self.problem.compiled(values)
        rank = rank_loads(program, self.asked.machine).slowest
        taken = plan_memory_of(program, rank, self.network.captured, self.asked)
        return PlanCost(taken.bytes, taken.step, len(taken.graph.nodes))

    def _fastest_of(self, front: CompiledFront) -> Compiled | None:
        """Return the fastest compiled plan; None with a memory limit, for which `_within` selects the plan."""
        values = None if self.asked.memory else front.fastest()
        return None if values is None else self._compiled(values)

    def _compiled(self, values: Values) -> Compiled:
        """Return the program of an assignment, with its gap to the unlimited bound."""
        return self.problem.compiled(values, share_of(self._solver.first.bound, self._solver.costs.total(values)))

    def _within(self) -> Compiled:
        """Return the search's plan within the memory limit. Raise MspcError if none was found."""

        def taken(program: Compiled, rank: int) -> PlanMemory:
            return plan_memory_of(program, rank, self.network.captured, self.asked)

        def busiest(program: Compiled) -> int:
            self._busiest = program, rank_loads(program, self.asked.machine)
            return self._busiest[1].slowest

        plans, refusal = LimitedPlans(self.problem, self.asked.memory, taken, busiest, self.front), None
        try:
            own = plans.quickest()
        except MspcError as error:
            own, refusal = None, error
        has_host = has_device_memory(self.network.config.device)
        offloaded = quickest_on_host(plans, self.asked.machine) if has_host else None
        if offloaded is not None:
            return offloaded.compiled
        self._taken = None if plans.best is None else plans.best.taken
        if own is None:
            assert refusal is not None
            notes = [*refusal.notes, *[TRIED] * has_host]
            raise MspcError(refusal.message, refusal.location, notes, code=refusal.code)
        return own
