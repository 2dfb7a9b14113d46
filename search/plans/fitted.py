"""Makes a usual plan fit a limit of memory: by smaller slices of parameters, by cells that are computed again, by what
lives on the host. What cannot be enough by what the plan's own program holds is not compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

from mspc.analysis.cost.timeline import StreamTimeline
from mspc.compiler.driver import Compiled
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.runtime.memory import MemoryPlan
from mspc.runtime.memory_plan import plan_memory
from mspc.search.plans.alternatives import CONFIGURED, Alternative, PlannedNetwork, PlanRequest
from mspc.search.plans.chosen_pairs import FAR
from mspc.search.plans.figures import as_run, figures_of, memory_of, plan_memory_of
from mspc.search.plans.fitting import AGAIN, SLICES, Variant, variants_of
from mspc.search.plans.host_room import HostMemoryUse, has_host_apart
from mspc.search.plans.limited import PlanMemory
from mspc.search.plans.offloading import Offloading
from mspc.search.plans.rank_loads import RankLoads, rank_loads
from mspc.search.plans.row import PlanResult

LARGE_GRAPH = 1000
"""Operators of a network from which on a plan that is far from any good one is not made to fit."""


@dataclass(frozen=True)
class _Program:
    """A program of a way. words: what is done so that it takes less, "" for nothing. graph: of the slowest rank;
    memory: bytes that it takes."""

    way: Alternative
    words: str
    compiled: Compiled
    loads: RankLoads
    graph: Graph
    memory: int

    @cached_property
    def plan(self) -> MemoryPlan:
        """What takes the memory."""
        return plan_memory(self.graph)


class FittedWay:
    """A usual way to shard a network, within the memory that there is."""

    def __init__(self, network: PlannedNetwork, asked: PlanRequest, way: Alternative) -> None:
        self.network, self.asked, self.way = network, asked, way
        self.captured, self.limit = network.captured, asked.memory or math.inf
        self.tried: list[str] = []
        self.left_out: list[str] = []
        self.is_far = False

    def quickest(self) -> tuple[Compiled, PlanResult]:
        """The way's program and its plan; where it takes too much memory the quickest variant that fits, but for the
        script as it is given. Raises MspcError where none does."""
        own = self._program(self.way)
        if own.memory <= self.limit:
            return own.compiled, self._figures(own)
        best: tuple[Compiled, PlanResult] | None = None
        over = [own]
        for program in () if self.way.name == CONFIGURED.name else self._variants(own):
            if program.memory > self.limit:
                over.append(program)
            else:
                best = _quicker(best, (program.compiled, self._made_to_fit(own, program, program.words)))
        if self.way.name != CONFIGURED.name and not self.is_far and has_host_apart(own.compiled.config.device):
            best = self._on_host(own, over, best)
        if best is not None:
            return best
        least = min(program.memory for program in over)
        also = f"; {', '.join(self.tried)} were tried, and {least} are the least" if self.tried else ""
        also += f"; {', '.join(self.left_out)} cannot be enough" if self.left_out else ""
        also = "; its step is far from any good one, and nothing was tried" if self.is_far else also
        raise MspcError(f"it needs {own.memory} bytes of memory on a rank, and there are {self.limit}{also}")

    def _variants(self, own: _Program) -> Iterator[_Program]:
        """The programs of variants that may fit: of smaller slices and of cells again, and of both where none of these
        fits."""
        fits, last = False, own
        if self._is_far(own):
            self.is_far = True
            return
        for variants in variants_of(own.compiled.graph):
            for variant in () if fits else variants:
                if _least(last, variant) > self.limit:
                    self.left_out.append(variant.words)
                    continue
                way = replace(self.way, settings={**self.way.settings, **variant.settings}, again=variant.again)
                try:
                    program = self._program(way, variant.words)
                except MspcError:
                    continue
                self.tried.append(variant.words)
                fits |= program.memory <= self.limit
                last = program if variant.words == AGAIN else last
                yield program

    def _on_host(
        self, own: _Program, over: list[_Program], best: tuple[Compiled, PlanResult] | None
    ) -> tuple[Compiled, PlanResult] | None:
        """The best with what lives on the host, of programs that take too much."""
        taken = [(self._taken(program), program) for program in over]
        for memory, program in sorted(taken, key=lambda each: each[0].step):
            offloading = Offloading(self._make(program.way), self._measured, int(self.limit), self.asked.machine)
            found = offloading.quickest(memory, math.inf if best is None else best[1].step)
            if found is not None:
                words = " and ".join(filter(None, (program.words, found.on_host.words)))
                made = self._looked_at(program.way, words, found.compiled)
                best = found.compiled, self._made_to_fit(own, made, words)
        self.tried.append("copies on the host")
        return best

    def _make(self, way: Alternative) -> Callable[[HostMemoryUse], Compiled]:
        def make(on_host: HostMemoryUse) -> Compiled:
            return self.network.compiled(way, decide=on_host.mark)

        return make

    def _measured(self, compiled: Compiled) -> PlanMemory:
        return plan_memory_of(compiled, rank_loads(compiled, self.asked.machine).slowest, self.captured, self.asked)

    def _taken(self, program: _Program) -> PlanMemory:
        return PlanMemory(program.memory, 0, StreamTimeline(program.graph, self.asked.machine).total, program.graph)

    def _program(self, way: Alternative, words: str = "") -> _Program:
        return self._looked_at(way, words, self.network.compiled(way))

    def _looked_at(self, way: Alternative, words: str, compiled: Compiled) -> _Program:
        loads = rank_loads(compiled, self.asked.machine)
        graph = as_run(compiled, loads.slowest)
        memory = memory_of(graph, self.captured, compiled.config.device)
        return _Program(way, words, compiled, loads, graph, memory)

    def _figures(self, program: _Program) -> PlanResult:
        return figures_of(
            self.way.name, program.compiled, program.loads, program.graph, program.memory, self.asked
        )

    def _made_to_fit(self, own: _Program, program: _Program, words: str) -> PlanResult:
        plan = self._figures(program)
        return replace(plan, remarks=replace(plan.remarks, made_to_fit=words, otherwise=own.memory))

    def _is_far(self, own: _Program) -> bool:
        """Whether a large network's plan is far from any good one, whatever it would do to hold less."""
        if len(own.graph.nodes) <= LARGE_GRAPH:
            return False
        plan = self._figures(own)
        return plan.step > FAR * plan.least > 0


def _quicker(
    best: tuple[Compiled, PlanResult] | None, other: tuple[Compiled, PlanResult]
) -> tuple[Compiled, PlanResult]:
    return other if best is None or other[1].step < best[1].step else best


def _least(program: _Program, variant: Variant) -> int:
    """Bytes that a variant of a program takes at least. Slices spare of what is stored and of gradients at most all,
    but for weights that gradients read: these are gathered once, and stay until then. What is computed again spares
    nothing of what is stored."""
    plan = program.plan
    if variant.settings != SLICES:
        return plan.weights + plan.states + plan.inputs + plan.constants
    least = program.memory - plan.weights - plan.states - plan.gradients
    read = {value for node in program.graph.nodes if node.phase == "backward" for value in node.inputs}
    whole = sum(p.type.nbytes for p in program.graph.parameters if p in read and p.trainable)
    if variant.again and not program.way.again:
        return whole
    return max(least, plan.activations + whole)
