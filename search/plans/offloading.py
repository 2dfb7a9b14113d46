"""Makes a plan that takes too much memory fit by what lives in the memory of the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from mspc.analysis.cost.machine import Machine
from mspc.compiler.driver import Compiled
from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.search.layouts.candidates import Values
from mspc.search.plans.host_room import HostMemoryUse, HostRoom
from mspc.search.plans.limited import LimitedPlans, PlanMemory
from mspc.search.plans.machine_terms import LARGE

ATTEMPTS = 4
"""How often more cells are taken where what is on the host is not enough yet."""
MORE = 1.02
"""By how much more leaves than a plan is over its limit: copies need room while they are under way."""

LITTLE = 0.01
"""The share of a step that a limit of memory may cost without looking for what could live on the host."""
EARLY = 1.5
"""What states on the host spare at most, by their bytes: their updates do not wait for all gradients, of which fewer
are there at once."""


@dataclass(frozen=True)
class Offloaded:
    """A plan with something on the host, and what it takes."""

    compiled: Compiled
    taken: PlanMemory
    on_host: HostMemoryUse


def quickest_on_host(plans: LimitedPlans, machine: Machine) -> Offloaded | None:
    """The quickest plan of a search that fits with something on the host; None where none is quicker than what fits
    without, or where the limit of memory costs too little to look.

    Looked at are the cheapest plans of more memory than there is: of any, and of so much more as may live on the host.
    """
    solver, first, below = plans.solver, plans.solver.first.plan, math.inf
    if solver.memory.peak(first.values) <= plans.memory:
        return None
    if plans.best is not None:
        below = plans.best.taken.step
        more = solver.costs.total(plans.best.values) - first.cost
        if more / machine.link.bandwidth.at(LARGE) <= LITTLE * below:
            return None
    best: Offloaded | None = None
    tried, more = set[Values](), [math.inf]
    while more:
        values = _within(plans, plans.memory + more.pop(0))
        if values is None or values in tried:
            continue
        tried.add(values)
        offloading = Offloading(partial(_made, plans, values), plans.taken, plans.memory, machine)
        try:
            over = plans.taken(plans.problem.compiled(values))
        except MspcError:
            continue
        if len(tried) == 1:
            room = HostRoom.of(over.graph, machine)
            more += [room.hidden, room.hidden + EARLY * room.states, 0.0]
        found = offloading.quickest(over, below)
        if found is not None:
            best, below = found, found.taken.step
    return best


def _within(plans: LimitedPlans, limit: float) -> Values | None:
    """What the search finds within a limit; the least where that is too little. None where what fits without is so."""
    first, solver = plans.solver.first.plan, plans.solver
    if solver.memory.peak(first.values) <= limit:
        return first.values
    try:
        return solver.solve(math.floor(limit)).values
    except MspcError:
        return None if plans.smallest is None else plans.smallest.values


def _made(plans: LimitedPlans, values: Values, on_host: HostMemoryUse) -> Compiled:
    return plans.problem.compiled(values, on_host=on_host)


@dataclass(frozen=True)
class Offloading:
    """make: the program with something on the host. measure: what a program takes on the rank that counts. limit: bytes
    of memory of a rank. machine: whose rates count."""

    make: Callable[[HostMemoryUse], Compiled]
    measure: Callable[[Compiled], PlanMemory]
    limit: int
    machine: Machine

    def quickest(self, over: PlanMemory, below: float) -> Offloaded | None:
        """The quickest way that fits of those that may take less than `below` seconds a step; None where there is
        none. over: the plan without, which is over the limit."""
        if over.step >= below:
            return None
        best: Offloaded | None = None
        room = HostRoom.of(over.graph, self.machine)
        for states in sorted((False, True), key=room.late):
            if over.step + room.late(states) < (below if best is None else best.taken.step):
                found = self._fitting(over, room, states)
                if found is not None and found.taken.step < (below if best is None else best.taken.step):
                    best = found
        return best

    def _fitting(self, over: PlanMemory, room: HostRoom, states: bool) -> Offloaded | None:
        """The way with the fewest cells that fits."""
        over_by, spared = over.bytes - self.limit, room.states * states
        if over_by > room.hidden + EARLY * spared or (states and not spared):
            return None
        wanted, last = over_by * MORE - spared, None
        for _ in range(ATTEMPTS):
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
            wanted, last = max(wanted, 0.0) + (taken.bytes - self.limit) * MORE, on_host
        return None
