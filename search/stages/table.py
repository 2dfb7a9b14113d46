"""Compares ways to train one network in stages: what is chosen, and the usual ones beside it, each compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, replace

from mspc.analysis.cost.machine import Machine
from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.passes.pipelining.schedules import gpipe, one_forward_one_backward
from mspc.plans.files.plan_file import PlanFile
from mspc.search.plans.megatron import tensor_sizes
from mspc.search.stages.borders import BorderSearch, Found
from mspc.search.stages.choice import Choice, Problem, choose
from mspc.search.stages.costing import unit_costs
from mspc.search.stages.kept import kept_borders, kept_ways
from mspc.search.stages.network import StagedNetwork
from mspc.search.stages.problem import IN_ROUNDS, UnitCosts, Way, equal_parts, ways_of
from mspc.search.stages.rows import StageRow, measured

SEARCH = "search"
TRIES = 3
"""How often what was chosen is chosen anew where it takes more memory than was foreseen."""
Tell = Callable[[str], None]


@dataclass
class StagePlans:
    """plans: the rows, the quickest first. files: of each by its name. gap: the part of a step that any other choice
    could save at most, by the costs of units. refused: why ways are not among them. units: of the network."""

    plans: list[StageRow] = field(default_factory=list[StageRow])
    files: dict[str, PlanFile] = field(default_factory=dict[str, PlanFile])
    gap: float = 0.0
    refused: list[str] = field(default_factory=list[str])
    units: int = 0


class StageSearch:
    """The search for one network. memory: bytes of a rank, 0 for any. keeps: the stages of cells stay where the script
    gives them for its own number of stages, which is `own`."""

    def __init__(self, network: StagedNetwork, machine: Machine, memory: int = 0, own: int = 0) -> None:
        self.network, self.machine, self.memory, self.own = network, machine, memory, own
        self._costs: dict[tuple[int, int], UnitCosts] = {}
        self.found = StagePlans(units=len(network.units))

    def add(self, row: StageRow, file: PlanFile) -> None:
        """Set a row beside the others."""
        self.found.plans.append(row)
        self.found.files[row.name] = file

    def plans(self, stages: list[int], counts: list[int], tell: Tell) -> StagePlans:
        """All rows, for numbers of stages above 1, and of micro-batches. Raises MspcError where nothing is found."""
        problems = self._problems(stages, counts, tell)
        choice = self._chosen(problems, tell)
        if choice.best is not None:
            self._others(choice, tell)
            self._usual(choice.best, tell)
            self.found.gap = choice.gap
        elif problems:
            self.found.refused.append(self._too_large(problems))
        if not self.found.plans:
            raise MspcError(self.found.refused[-1])
        self._take_best()
        return self.found

    def _chosen(self, problems: list[Problem], tell: Tell) -> Choice:
        """What is chosen of all, compiled; where that takes more memory than was foreseen less is looked for."""
        limit = float(self.memory)
        choice = choose(problems, limit)
        for _ in range(TRIES):
            if choice.best is None:
                break
            tell(f"{choice.best.way.name} in {choice.best.way.stages} stages")
            row = self._add(SEARCH, choice.best)
            if row is None or not self.memory or row.memory <= self.memory:
                break
            self._refuse(row)
            limit *= self.memory / row.memory * 0.999
            choice = choose(problems, limit)
        return choice

    def costs(self, stages: int, count: int) -> UnitCosts:
        """The costs of units for these numbers. Raises MspcError."""
        key = stages, count
        if key not in self._costs:
            self._costs[key] = unit_costs(self.network, stages, count, self.machine, bool(self.memory))
        return self._costs[key]

    def _problems(self, stages: list[int], counts: list[int], tell: Tell) -> list[Problem]:
        found: list[Problem] = []
        errors: list[MspcError] = []
        for number in stages:
            for count in counts:
                if number < 2 or max(counts) < number:
                    if number > max(counts):
                        self.found.refused.append(f"{number} stages: there are {max(counts)} micro-batches at most")
                    continue
                if count < number:
                    continue
                tell(f"units in {number} stages, {count} micro-batches")
                kept = kept_borders(self.network, number) if number == self.own and not self.network.free else None
                try:
                    costs = self.costs(number, count)
                except MspcError as error:
                    errors.append(error)
                    self.found.refused.append(f"{number} stages, {count} micro-batches: {error.message}")
                    continue
                if kept is not None:
                    found += [Problem(costs, way, kept) for way in kept_ways(number, count, kept)]
                else:
                    found += [Problem(costs, way) for way in ways_of(number, count, costs.count)]
        if not found and errors:
            raise errors[0]
        return found

    def _add(self, name: str, found: Found, tensor: int = 0) -> StageRow | None:
        """The row of what was found, compiled; None where it does not compile."""
        try:
            row, file = measured(name, self.network, found.way, found.borders, self.machine, tensor)
        except MspcError as error:
            self.found.refused.append(f"{name}: {error.message}")
            return None
        row = replace(row, foreseen=0.0 if tensor else found.seconds)
        self.add(row, file)
        return row

    def _refuse(self, row: StageRow) -> None:
        self.found.plans.remove(row)
        text = f"it needs {row.memory} bytes of memory on a rank, and there are {self.memory}"
        self.found.refused.append(f"{row.name} ({row.schedule}, {row.stages} stages): {text}")

    def _others(self, choice: Choice, tell: Tell) -> None:
        """The best of other numbers of stages."""
        assert choice.best is not None
        for stages, found in choice.each.items():
            if stages != choice.best.way.stages:
                tell(f"{found.way.name} in {stages} stages")
                self._fitting(self._add(f"best of {stages} stages", found))

    def _usual(self, best: Found, tell: Tell) -> None:
        """The usual ways for as many stages as were chosen."""
        for name, way, tensor in _usual_ways(best.way, self.found.units, self.machine, self.network):
            tell(name)
            costs = self.costs(way.stages, way.micro_batches)
            borders = equal_parts(self.found.units, way.parts)
            seconds = BorderSearch(costs, way).seconds(borders)
            self._fitting(self._add(name, Found(way, borders, seconds, 0.0), tensor))

    def _fitting(self, row: StageRow | None) -> None:
        if row is not None and self.memory and row.memory > self.memory:
            self._refuse(row)

    def _take_best(self) -> None:
        """The search takes the quickest of all rows, where one is quicker than its own, or its own is not there."""
        rows = sorted(self.found.plans, key=lambda row: row.step)
        own = next((row for row in rows if row.name == SEARCH), None)
        if own is None or rows[0].step < own.step:
            if own is not None:  # its plan stays, under another name
                other = f"best of {own.stages} stages"
                rows = [replace(row, name=other) if row is own else row for row in rows]
                self.found.files[other] = self.found.files[SEARCH]
            rows.insert(0, replace(rows[0], name=SEARCH, note=f"takes the plan of {rows[0].name}, which is quicker"))
            self.found.files[SEARCH] = self.found.files[rows[1].name]
        self.found.plans = rows

    def _too_large(self, problems: list[Problem]) -> str:
        smallest = min(
            (BorderSearch(p.costs, p.way, 0, p.kept).smallest() for p in problems), key=lambda each: each[0]
        )  # fmt: skip
        nbytes, way = smallest
        return (
            f"no plan fits {self.memory} bytes: the smallest that is foreseen takes {nbytes:.0f}, {way.name} in "
            f"{way.stages} stages with {way.micro_batches} micro-batches"
        )


def _usual_ways(
    best: Way, units: int, machine: Machine, network: StagedNetwork
) -> Iterator[tuple[str, Way, int]]:  # fmt: skip
    """(name, way, ranks that share a product) with as many units on each stage, as nearly as can be."""
    for name, schedule in (("equal stages, 1F1B", one_forward_one_backward.NAME), ("equal stages, GPipe", gpipe.NAME)):
        yield name, replace(best, schedule=schedule, chunks=1), 0
    if 2 * best.stages <= units:
        yield "equal stages, interleaved", replace(best, schedule=IN_ROUNDS, chunks=2), 0
    ranks = network.config.ranks // best.stages
    for size in tensor_sizes(ranks, machine.ranks_per_host)[-2:]:
        name = f"Megatron-style, {size} x {best.stages} x {ranks // size}"
        yield name, replace(best, schedule=one_forward_one_backward.NAME, chunks=1), size
