"""Search for the fastest plan within a memory limit, by compiling plans until one fits.

For small networks it is the fastest plan of a Pareto front of compiled plans. The front does not depend on the limit,
so that a smaller limit never gives a faster plan. For larger networks the solver searches for a plan within the limit.
Its memory estimate is not exact: if the program takes more, the search is repeated with a limit lowered by the
difference.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate, cycle
from typing import Any

import numpy as np

from mspc.analysis.cost.machine import HOST_COPIES, Machine
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, Decide
from mspc.ir.diagnostics import MspcError, shown_bytes
from mspc.ir.graph import OFFLOAD, Graph
from mspc.ir.late_dataclass import dataclass
from mspc.passes.lib.choices import MILLION, MINIMAL_MEMORY
from mspc.passes.lib.host_memory import HostStores
from mspc.passes.lib.opened_graphs import open_regions, opened
from mspc.passes.lib.recomputation import mark_offloaded, mark_states, states_of
from mspc.passes.sharding.propagate_sharding import begun
from mspc.runtime.memory_plan import plan_memory
from mspc.search.layouts.cheapest import limited, mesh_of, place
from mspc.search.layouts.within_memory import AxisSymmetry, Limited, PlanCandidates, Values, stored_bytes_bound
from mspc.search.model.memory import MemoryModel
from mspc.search.model.model import CostModel
from mspc.search.plans.alternatives import LARGE
from mspc.search.solver.elimination import LARGEST

SEEDS = 20
"""Maximum number of plans of the model's own front that are compiled first."""
TRIES = 130
"""Maximum number of compiled plans."""
EFFORT = 3200
"""Number of a rank's operators that are compiled before no further plan is tried."""
GAIN, NEAR, MEMORY = "gain", "near", "memory"
ORDER = (GAIN, NEAR, GAIN, MEMORY)
"""Criteria for the next plan, used in turn: expected gain; neighbours of the fastest plan, because expected gains
inherit the model's errors; and least expected memory, so that small limits have plans."""
ORDER_BELOW = (MEMORY, GAIN)
"""The criteria for limits that exclude the fastest plan."""
NEAR_COST = 1.3
"""Maximum model cost of a neighbour, as a multiple of the plan's, for which it is compiled."""
HOPE = 0.5
"""Minimum expected speed-up over the best plan with as much memory; exploration ends below it."""
FASTEST = 0.1
"""Lower bound of any plan's expected step, as a share of the fastest step."""
LOCAL = 8
"""Exponent of the number of equal decisions in the weight of a compiled plan's error: the most similar plans count."""


@dataclass(frozen=True)
class PlanCost:
    """Costs of a program, measured or expected: bytes at the memory peak, seconds of a step, and operators of a
    rank."""

    bytes: float
    step: float
    operators: int = 0


class CompiledFront:
    """Pareto front of compiled plans. measure: compiles an assignment, or raises MspcError. seconds_per_byte: converts
    model costs to seconds. deadline: by `time.monotonic`. found: assignments of the solver, which are compiled
    first."""

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
        """Plans that may be compiled, one of each set of plans that differ only in the order of mesh axes."""
        self._neighbours: dict[Values, list[Values]] = {}
        self._model_costs_of: dict[Values, tuple[float, float]] = {}
        self._tries, self._effort = TRIES, EFFORT
        self._is_complete = False

    def explore(self) -> None:
        """Compile plans until the effort is spent: first some of the model's front, then the most promising
        neighbours."""
        for values in (*map(self.candidates.with_best_copies, self.found), *self._seeds()):
            self._try(values)
        self._continue(ORDER)

    def within(self, limit: int) -> Values:
        """Return the fastest plan within a limit of bytes, or the smallest plan. If the fastest plan of all exceeds the
        limit, further plans are compiled once, the same for all such limits."""
        if not self._is_complete and self.front[-1][0] > limit:
            self._is_complete = True
            self._tries, self._effort = TRIES, EFFORT // 2
            self._continue(ORDER_BELOW)
        return self.fastest(limit) or self.front[0][2]

    def _continue(self, order: Sequence[str]) -> None:
        for how in cycle(order):
            if not self._may_continue() or (values := self._next(how)) is None:
                return
            self._try(values)

    def fastest(self, limit: float = math.inf) -> Values | None:
        """Return the fastest plan within a limit of bytes, or None."""
        place = bisect_right(self.front, limit, key=lambda each: each[0])
        return self.front[place - 1][2] if place else None

    def _may_continue(self) -> bool:
        return self._tries > 0 < self._effort and time.monotonic() <= self.deadline

    def _seeds(self) -> list[Values]:
        """Return the cheapest and the smallest plans of the model, one for every way to shard all operators."""
        plans, found = self.candidates, self.candidates.found()
        self._consider(found)
        by_cost = sorted(found, key=lambda each: (plans.cost(each), each))
        by_memory = sorted(found, key=lambda each: (plans.peak(each), plans.cost(each), each))
        cheap, small = (self._unlike(order)[: SEEDS // 2] for order in (by_cost, by_memory))
        return list(dict.fromkeys(each for pair in zip(cheap, small, strict=True) for each in pair))

    def _unlike(self, plans: Sequence[Values]) -> list[Values]:
        """Return the first plan of every way to shard the operators."""
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
        if key in self._seen or not self._may_continue():
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
        """Add a plan to the front unless a plan there is at least as small and as fast."""
        if any(held <= cost.bytes and step <= cost.step for held, step, _ in self.front):
            return
        others = [each for each in self.front if each[0] < cost.bytes or each[1] < cost.step]
        self.front = sorted([*others, (cost.bytes, cost.step, values)], key=lambda each: each[:2])

    def _next(self, how: str) -> Values | None:
        """Return the plan to compile next, or None. how: a criterion of `ORDER`."""
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
        """Return the cheapest unseen neighbour, with a low model cost, of a plan of the front, starting at the fastest
        plan; None if there is none."""
        cost = self.candidates.cost
        for _, _, values in reversed(self.front):
            most = NEAR_COST * cost(values)
            near = (each for each in self._neighbours[values] if cost(each) <= most)
            found = min((each for each in near if self._symmetry.key(each) not in self._seen), key=cost, default=None)
            if found is not None:
                return found
        return None

    def _gain(self, cost: PlanCost) -> float:
        """Return the speed-up of a plan over the fastest known plan with as much memory. For less memory than any known
        plan, return 1 plus the saved share of the least known memory."""
        place = bisect_right(self.front, cost.bytes, key=lambda each: each[0])
        if place:
            return self.front[place - 1][1] / cost.step
        least = self.front[0][0]
        return 1 + (least - cost.bytes) / least

    def _expected(self, plans: Sequence[Values]) -> list[PlanCost]:
        """Return the model's costs of plans, corrected by its mean error on compiled plans, weighted by the number of
        equal decisions. The order of the sums is fixed, so that every machine compiles the same plans."""
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


LARGE_SHARE = 1 / 8
"""Share of the saved bytes above which a cell is replaced by the cells inside it."""


@dataclass(frozen=True)
class HostMemoryUse:
    """Offloads to the host. cells: whose values saved for gradients are offloaded. states: optimizer states are
    offloaded."""

    cells: tuple[str, ...] = ()
    states: bool = False

    @property
    def words(self) -> str:
        """Description for people."""
        cells = f"values of {len(self.cells)} cell{'s' * (len(self.cells) != 1)}"
        return " and ".join(["optimizer states"] * self.states + [cells] * bool(self.cells)) + " on the host"

    def mark(self, graph: Graph) -> None:
        """Mark the offloads in a graph whose other decisions are made."""
        mark_offloaded(graph, self.cells)
        if self.states:
            mark_states(graph)


NOTHING = HostMemoryUse()


def has_device_memory(device: str) -> bool:
    """Return whether a program's device has memory of its own, separate from the host's."""
    return device == "GPU"


@dataclass(frozen=True)
class HostCopyBudget:
    """Time for copies to the host. cells: in execution order, with the bytes that each saves for gradients. states:
    bytes. forward, backward: seconds of a step up to the last forward operator, and after it. machine: gives the
    rates."""

    cells: tuple[tuple[str, float], ...]
    states: float
    forward: float
    backward: float
    machine: Machine

    @classmethod
    def of(cls, graph: Graph, machine: Machine) -> HostCopyBudget:
        """Return the budget of a rank's graph without offloads."""
        spans = StreamTimeline(graph, machine).spans
        ends = {node: sum(span) for node, span in spans.items()}
        forward = max((end for node, end in ends.items() if node.phase == "forward"), default=0.0)
        states = sum(state.type.nbytes for state in states_of(graph) if OFFLOAD not in state.attrs)
        return cls(_cells(graph), states, forward, max(0.0, max(ends.values(), default=0.0) - forward), machine)

    @property
    def hidden(self) -> float:
        """Bytes that can be copied to the host by the end of the forward part."""
        return min(sum(nbytes for _, nbytes in self.cells), self.forward / self._seconds(1 << 30) * (1 << 30))

    def late(self, states: bool) -> float:
        """Return the seconds by which the copies of states, parallel to the gradients, outlast them."""
        return max(0.0, self._seconds(self.states) - self.backward) if states and self.states else 0.0

    def first_cells(self, nbytes: float) -> tuple[str, ...]:
        """Return the first cells that together save `nbytes` bytes, or as many as can be copied by the end of the
        forward part."""
        sums = accumulate((kept for _, kept in self.cells), initial=0.0)
        count = next((i for i, total in enumerate(sums) if total >= min(nbytes, self.hidden)), len(self.cells))
        return tuple(cell for cell, _ in self.cells[:count])

    def _seconds(self, nbytes: float) -> float:
        return self.machine.moving_seconds(nbytes, HOST_COPIES)


def _cells(graph: Graph) -> tuple[tuple[str, float], ...]:
    """Return (cell, bytes saved) of the outermost cells that save a small share of all bytes or have no inner cells, in
    the order of their first saved value."""
    kept: dict[str, float] = {}
    within: dict[str, float] = {}
    for value in HostStores(graph):
        if OFFLOAD not in value.maker.attrs and not value.maker.attrs.get("recompute"):  # the script does not set it
            kept[value.maker.scope] = kept.get(value.maker.scope, 0.0) + value.value.type.nbytes
    for scope, nbytes in kept.items():
        for cell in _cells_around(scope):
            within[cell] = within.get(cell, 0.0) + nbytes
    total = sum(kept.values())
    found: dict[str, float] = {}
    for scope in kept:
        around = _cells_around(scope)
        if not found.keys() & set(around):
            small = (cell for cell in around[1:] if within[cell] <= LARGE_SHARE * total)
            cell = next(small, scope if within[scope] == kept[scope] else "")
            found |= {cell: within[cell]} if cell else {}
    return tuple(found.items())


def _cells_around(scope: str) -> list[str]:
    """Return the cells that contain a scope, outermost first, and the scope itself."""
    parts = scope.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


class _ProblemRead(Exception):  # ends a compile once the problem is known
    pass


class SearchProblem:
    """Model of a network, with its `memory`, and the programs of its assignments. compile: makes a program with given
    settings and a function that decides on the graph. Raise MspcError if the network cannot be sharded."""

    def __init__(self, config: Config, compile: Callable[[Config, Decide], Compiled]) -> None:
        terms = replace(config.search_terms, memory=MINIMAL_MEMORY)
        self._config, self._compile = replace(config, search_terms=terms), compile
        self.model: CostModel

        def read(graph: Graph) -> None:
            if any(node.regions for node in graph.nodes):
                open_regions(graph)  # permanently: the compile ends here
            search, _ = begun(graph)
            self.model = CostModel(search, mesh_of(search))
            raise _ProblemRead

        try:
            self._compile(self._config, read)
        except _ProblemRead:
            pass
        self.memory = MemoryModel(self.model)

    def solver(self, largest: int, proves: bool = True) -> Limited:
        """Return a search within limits, with moments of its own; see `Limited`."""
        seconds = self._config.search_terms.milliseconds / 1000
        return limited(self.model, self.memory.with_first_moments(), largest, seconds, proves)

    def compiled(self, values: Sequence[int], share: float = 0.0, on_host: HostMemoryUse = NOTHING) -> Compiled:
        """Return the program of an assignment. share: proven lower bound of all costs, as a share of its cost; 0 if
        unknown. Raise MspcError if it does not compile."""
        return self._compile(self._config, partial(self._decide, tuple(values), share, on_host))

    def _decide(self, values: Sequence[int], share: float, on_host: HostMemoryUse, graph: Graph) -> None:
        with opened(graph):
            place(self.memory, graph, values)
            on_host.mark(graph)
        if on_host != NOTHING:
            del graph.attrs["search_held"]  # actual memory is less than predicted
        if share:
            graph.attrs["search_open"] = round((1 - share) * MILLION)


def share_of(bound: float, cost: float) -> float:
    """Return the lower bound of all plans as a share of a plan's cost; 0 if nothing is proven."""
    return min(1.0, bound / max(cost, 1.0)) if bound else 0.0


ATTEMPTS = 6
"""Number of smaller limits that are tried if a plan takes more memory than predicted."""


@dataclass(frozen=True)
class PlanMemory:
    """Memory and time of a compiled plan on a rank. bytes: including `workspace_bytes` of kernel workspaces. step:
    seconds. graph: of the rank."""

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
    """Plans of one network within `memory` bytes. problem: the search problem. measure: memory of a program on a rank.
    busiest: the rank of a program that is measured, after rank 0. front: compiled plans of a small network; None for a
    larger one."""

    def __init__(
        self, problem: SearchProblem, memory: int, measure: Callable[[Compiled, int], PlanMemory],
        busiest: Callable[[Compiled], int], front: CompiledFront | None = None,
    ) -> None:  # fmt: skip
        self.problem, self.memory, self.front = problem, memory, front
        self.measure, self.busiest = measure, busiest
        self.best: _Tried | None = None
        self.smallest: _Tried | None = None
        self.known: set[Values] = set()
        self.solver = problem.solver(LARGEST)
        self.proven = 0.0
        """Lower bound of the cost of all plans that are within the limit by the search's estimate."""

    @cached_property
    def candidates(self) -> PlanCandidates:
        """Plans of the model, with their costs and best copies."""
        return PlanCandidates(self.problem.model, self.solver.memory)

    def taken(self, compiled: Compiled) -> PlanMemory:
        """Return the memory of a program on its fullest rank."""
        return self.measure(compiled, self.busiest(compiled))

    def quickest(self) -> Compiled:
        """Return the fastest plan found that fits. Raise MspcError if none fits."""
        if self.front is None:
            first = self._searched()
        else:
            self.proven, values = self.solver.first.bound, self.front.within(self.memory)
            first = self._tried(values, self.front.candidates.cost(values))
        if self.best is not None:
            return self.best.compiled
        least = stored_bytes_bound(self.problem.model)
        if least > self.memory:
            raise MspcError(
                f"no plan fits {shown_bytes(self.memory)} of memory on a rank: "
                f"at least {shown_bytes(least)} are needed",
                notes=["for inputs as they arrive, results, and parameters and states sharded over all ranks",
                       "take more ranks, or allow more memory"], code="E1301",
            )  # fmt: skip
        if self.front is None:
            self._look_for_less(first)
        if self.best is not None:
            return self.best.compiled
        assert self.smallest is not None
        plan, workspace_bytes = plan_memory(self.smallest.taken.graph), self.smallest.taken.workspace_bytes
        raise MspcError(
            f"no plan that was found fits {shown_bytes(self.memory)} of memory on a rank: the smallest takes "
            f"{shown_bytes(self.smallest.taken.bytes)}",
            notes=[
                f"weights {shown_bytes(plan.weights)}, states {shown_bytes(plan.states)}, inputs "
                f"{shown_bytes(plan.inputs)}, gradients at most {shown_bytes(plan.gradients)}, activations at most "
                f"{shown_bytes(plan.activations)}"
                + f", workspaces of kernels {shown_bytes(workspace_bytes)}" * bool(workspace_bytes),
                f"{shown_bytes(least)} are needed at least, whatever the plan",
                "take more ranks, or allow more memory",
            ],
        )

    def _searched(self) -> _Tried | None:
        """Return the plan that the solver finds for the limit; None if all plans exceed it by the estimate."""
        try:
            found = self.solver.solve(self.memory)
        except MspcError:
            return None
        self.proven = found.proven
        return self._tried(found.values, found.cost)

    def _look_for_less(self, first: _Tried | None) -> None:
        """Search with decreasing limits until a plan fits, finally for the least memory."""
        limit, last = self.memory, first
        for attempt in range(1, ATTEMPTS):
            if last is not None:
                if last.taken.bytes <= self.memory:
                    return
                foreseen = int(last.compiled.graph.attrs.get("search_held", 0))
                if limit == MINIMAL_MEMORY or foreseen > limit:  # already the least estimate
                    return
                limit = min(self.memory - (last.taken.bytes - foreseen), limit - limit // 50)
            if last is None or limit <= 0 or attempt == ATTEMPTS - 1:
                limit = MINIMAL_MEMORY
            try:
                found = self.solver.solve(limit)
            except MspcError:
                found, limit = self.solver.solve(MINIMAL_MEMORY), MINIMAL_MEMORY  # no estimate is within the limit
            values = self.candidates.with_best_copies(found.values)
            last = self._tried(values, self.candidates.cost(values)) or last

    def _tried(self, values: Values, cost: float = 0.0) -> _Tried | None:
        """Compile a plan and return it; None if it does not compile or was tried before. cost: model cost of a searched
        plan, to report its gap."""
        if values in self.known:
            return None
        self.known.add(values)
        try:
            compiled = self.problem.compiled(values, share_of(self.proven, cost))
            found = _Tried(compiled, self.measure(compiled, 0), values)
            if self._is_better(found.taken) and (rank := self.busiest(compiled)):
                found = _Tried(compiled, self.measure(compiled, rank), values)
        except MspcError:
            return None
        if self.smallest is None or found.taken.bytes < self.smallest.taken.bytes:
            self.smallest = found
        if self._is_better(found.taken):
            self.best = found
        return found

    def _is_better(self, taken: PlanMemory) -> bool:
        """Return whether a plan fits and is faster than all earlier ones."""
        return taken.bytes <= self.memory and (self.best is None or taken.step < self.best.taken.step)


HOST_ATTEMPTS = 4
"""Number of times that more cells are offloaded if the previous ones are not enough."""
COPY_MARGIN = 1.02
"""Factor on the bytes to offload, because copies in flight occupy memory."""

SMALL_SLOWDOWN = 0.01
"""Slowdown by the memory limit, as a share of a step, up to which offloads are not searched."""
MAX_STATE_SAVING = 1.5
"""Upper bound of the bytes saved by offloaded states, as a multiple of their bytes: their updates run early, so that
fewer gradients are live at once."""


@dataclass(frozen=True)
class Offloaded:
    """A plan with offloaded values or states, and its memory."""

    compiled: Compiled
    taken: PlanMemory
    on_host: HostMemoryUse


def quickest_on_host(plans: LimitedPlans, machine: Machine) -> Offloaded | None:
    """Return the fastest plan that fits by offloading values or states to the host. Return None if none is faster than
    the best plan without offloads, or if the limit slows the step too little to search.

    The candidates are the cheapest plans without a limit and with limits raised by the bytes that may be offloaded.
    """
    solver, first, below = plans.solver, plans.solver.first.plan, math.inf
    if solver.memory.peak(first.values) <= plans.memory:
        return None
    if plans.best is not None:
        below = plans.best.taken.step
        more = solver.costs.total(plans.best.values) - first.cost
        if more / machine.link.bandwidth.at(LARGE) <= SMALL_SLOWDOWN * below:
            return None
    best: Offloaded | None = None
    tried, more = set[Values](), [math.inf]
    while more:
        values = _within(plans, plans.memory + more.pop(0))
        if values is None or values in tried:
            continue
        tried.add(values)
        offloading = Offloading(partial(plans.problem.compiled, values, 0.0), plans.taken, plans.memory, machine)
        try:
            over = plans.taken(plans.problem.compiled(values))
        except MspcError:
            continue
        if len(tried) == 1:
            room = HostCopyBudget.of(over.graph, machine)
            more += [room.hidden, room.hidden + MAX_STATE_SAVING * room.states, 0.0]
        found = offloading.quickest(over, below)
        if found is not None:
            best, below = found, found.taken.step
    return best


def _within(plans: LimitedPlans, limit: float) -> Values | None:
    """Return the solver's plan within a limit, or the smallest known plan; None if there is none. The unlimited plan is
    returned if it fits."""
    first, solver = plans.solver.first.plan, plans.solver
    if solver.memory.peak(first.values) <= limit:
        return first.values
    try:
        return solver.solve(math.floor(limit)).values
    except MspcError:
        return None if plans.smallest is None else plans.smallest.values


@dataclass(frozen=True)
class Offloading:
    """Search for the values to offload. make: compiles the program with offloads. measure: its memory on the fullest
    rank. limit: bytes per rank. machine: gives the rates."""

    make: Callable[[HostMemoryUse], Compiled]
    measure: Callable[[Compiled], PlanMemory]
    limit: int
    machine: Machine

    def quickest(self, over: PlanMemory, below: float) -> Offloaded | None:
        """Return the fastest offload that fits and takes less than `below` seconds per step, or None. over: the plan
        without offloads, which exceeds the limit."""
        if over.step >= below:
            return None
        best: Offloaded | None = None
        room = HostCopyBudget.of(over.graph, self.machine)
        for states in sorted((False, True), key=room.late):
            if over.step + room.late(states) < (below if best is None else best.taken.step):
                found = self._fitting(over, room, states)
                if found is not None and found.taken.step < (below if best is None else best.taken.step):
                    best = found
        return best

    def _fitting(self, over: PlanMemory, room: HostCopyBudget, states: bool) -> Offloaded | None:
        """Return the offload with the fewest cells that fits, or None."""
        over_by, spared = over.bytes - self.limit, room.states * states
        if over_by > room.hidden + MAX_STATE_SAVING * spared or (states and not spared):
            return None
        wanted, last = over_by * COPY_MARGIN - spared, None
        for _ in range(HOST_ATTEMPTS):
            on_host = HostMemoryUse(room.first_cells(wanted), states)
            if on_host in (last, HostMemoryUse()):
                return None
            try:
                compiled = self.make(on_host)
            except MspcError:
                return None
            taken = self.measure(compiled)
            if taken.bytes <= self.limit:
                return Offloaded(compiled, taken, on_host)
            wanted, last = max(wanted, 0.0) + (taken.bytes - self.limit) * COPY_MARGIN, on_host
        return None
