"""Finds the quickest plan within a limit of memory, by compiling plans until one fits.

In small networks it is the fastest of a front of compiled plans. They do not depend on the limit: a smaller limit never
gives a faster plan. In larger networks, and if no plan of the front fits, the solver looks for a plan within the limit.
Its estimate of memory is not exact: if the program takes more, it runs again with a limit that is smaller by the
difference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from mspc.compiler.driver import Compiled
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.passes.lib.plan_header import LEAST
from mspc.runtime.memory_plan import plan_memory
from mspc.search.layouts.candidates import PlanCandidates, Values, least_stored
from mspc.search.plans.compiled_front import CompiledFront
from mspc.search.plans.problem import SearchProblem
from mspc.search.solver.elimination import LARGEST

ATTEMPTS = 6
"""How often less is looked for where a plan takes more memory than was foreseen."""


@dataclass(frozen=True)
class PlanMemory:
    """What a compiled plan takes on a rank. bytes: of memory, `workspace_bytes` of the kernels' workspaces among them;
    step: seconds; graph: of the rank."""

    bytes: int
    workspace_bytes: int
    step: float
    graph: Graph


@dataclass(frozen=True)
class _Tried:
    compiled: Compiled
    taken: PlanMemory
    values: Values


class LimitedPlans:
    """The plans of one network within `memory` bytes. problem: the network as the search sees it. measure: what a
    program takes on a rank. busiest: the rank of a program that counts; rank 0 is looked at first. front: compiled
    plans of a small network; None for a larger one."""

    def __init__(
        self, problem: SearchProblem, memory: int, measure: Callable[[Compiled, int], PlanMemory],
        busiest: Callable[[Compiled], int], front: CompiledFront | None = None,
    ) -> None:  # fmt: skip
        self.problem, self.memory, self.front = problem, memory, front
        self.measure, self.busiest = measure, busiest
        self.best: _Tried | None = None
        self.smallest: _Tried | None = None
        self.known: dict[Values, PlanMemory | None] = {}
        self.solver = problem.solver(LARGEST)
        self.proven = 0.0
        """What no plan costs less than that the search reckons to be within the limit."""

    @cached_property
    def candidates(self) -> PlanCandidates:
        """The costs of plans, and the copies that serve them best."""
        return PlanCandidates(self.problem.model, self.solver.memory)

    def taken(self, compiled: Compiled) -> PlanMemory:
        """What a program takes on the rank that counts."""
        return self.measure(compiled, self.busiest(compiled))

    def quickest(self) -> Compiled:
        """The quickest plan that was found to fit. Raises MspcError where none was."""
        first = self._searched() if self.front is None else self._of_front()
        if self.best is not None:
            return self.best.compiled
        least = least_stored(self.problem.model)
        if least > self.memory:
            raise MspcError(
                f"no plan fits {self.memory} bytes of memory on a rank: at least {least} are needed",
                notes=["for inputs as they arrive, results, and parameters and states sharded over all ranks",
                       "take more ranks, or allow more memory"],
            )  # fmt: skip
        self._look_for_less(first)
        if self.best is not None:
            return self.best.compiled
        assert self.smallest is not None
        plan, workspace_bytes = plan_memory(self.smallest.taken.graph), self.smallest.taken.workspace_bytes
        raise MspcError(
            f"no plan that was found fits {self.memory} bytes of memory on a rank: the smallest takes "
            f"{self.smallest.taken.bytes}",
            notes=[
                f"weights {plan.weights}, states {plan.states}, inputs {plan.inputs}, gradients at most "
                f"{plan.gradients}, activations at most {plan.activations}"
                + f", workspaces of kernels {workspace_bytes}" * bool(workspace_bytes),
                f"{least} bytes are needed at least, whatever the plan",
                "take more ranks, or allow more memory",
            ],
        )

    def _of_front(self) -> _Tried | None:
        """The fastest plan of the front that fits, or its smallest plan if none does."""
        assert self.front is not None
        values = self.front.fastest(self.memory)
        if values is None:
            self.front.explore_below(self.memory)
            values = self.front.fastest(self.memory)
        found = [values] if values is not None else self.front.smallest()
        return self._tried(found[0]) if found else None

    def _searched(self) -> _Tried | None:
        """What the search finds for the limit; None where it reckons that all plans are over it."""
        try:
            found = self.solver.solve(self.memory)
        except MspcError:
            return None
        self.proven = found.proven
        return self._tried(found.values, found.cost)

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
            values = self.candidates.settled(found.values)
            last = self._tried(values, self.candidates.cost(values)) or last

    def _tried(self, values: Values, cost: float = 0.0) -> _Tried | None:
        """Compile a plan; None where it does not compile, or was tried before. cost: of one that the search has found,
        and states how far it is from the best."""
        if values in self.known:
            return None
        self.known[values] = None
        share = min(1.0, self.proven / max(cost, 1.0)) if cost else 0.0
        try:
            tried = self._note(self.problem.compiled(values, share), values)
        except MspcError:
            return None
        self.known[values] = tried.taken
        return tried

    def _note(self, compiled: Compiled, values: Values) -> _Tried:
        found = _Tried(compiled, self.measure(compiled, 0), values)
        if self._is_better(found.taken) and (rank := self.busiest(compiled)):
            found = _Tried(compiled, self.measure(compiled, rank), values)
        if self.smallest is None or found.taken.bytes < self.smallest.taken.bytes:
            self.smallest = found
        if self._is_better(found.taken):
            self.best = found
        return found

    def _is_better(self, taken: PlanMemory) -> bool:
        """Whether a plan fits, and is quicker than those before."""
        return taken.bytes <= self.memory and (self.best is None or taken.step < self.best.taken.step)
