"""Search for a launch with pipeline stages: the network without stages, and all requested numbers of stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mspc.analysis.cost.machine import Machine
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError, shown_bytes
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.settings import SHARDED
from mspc.passes.lib.schedules import GPIPE, ONE_FORWARD_ONE_BACKWARD
from mspc.plans.files.plan_file import PlanFile, StagePlan, together
from mspc.search.plans.alternatives import MEGATRON, PlanRequest, tensor_sizes
from mspc.search.plans.figures import over_limit
from mspc.search.plans.limited import has_device_memory
from mspc.search.plans.table import parallel_results, plans_for
from mspc.search.stages.boundaries import BoundaryResult, BoundarySearch, StageChoice, StageProblem, choose, joined
from mspc.search.stages.costing import (  # fmt: skip
    CostedUnits,
    StageRow,
    UnitMeasurement,
    compiled_plan_file,
    compiled_row,
    predicted_row,
)
from mspc.search.stages.network import (
    AskedStages,
    StagedNetwork,
    Unit,
    check_divides,
    cuts_batch,
    plan_of,
    script_boundaries,
    script_ways,
    wrap_network,
)
from mspc.search.stages.problem import IN_ROUNDS, Boundaries, UnitCosts, Way, equal_parts, walk_of, ways_of


def cells_on_host(
    units: Sequence[Unit], costs: UnitCosts, way: Way, boundaries: Boundaries, memory: float
) -> tuple[str, ...]:  # fmt: skip
    """Return the cells whose values are offloaded: in every stage those of its first units, as few as bring the stage
    within the memory, or all if that is not enough. costs: with the bytes that may be offloaded."""
    walk, row = walk_of(way.order), np.array([boundaries], dtype=int).reshape(1, -1)
    edges = [*pairwise((0, *boundaries, len(units)))]
    chosen = np.zeros(len(units), bool)
    for stage in range(way.stages):
        own = [unit for chunk in walk.schedule.chunks_of(stage) for unit in range(*edges[chunk])]
        for unit in own:
            if walk.memory_of_stages(costs.only(chosen), row)[stage, 0] <= memory:
                break
            chosen[unit] = costs.host is not None and costs.host.values[unit] > 0
    return tuple(name for unit, is_chosen in zip(units, chosen, strict=True) if is_chosen for name in unit.cells)


SEARCH, ON_DEVICE = "search", "all on the device"
TRIES = 3
"""Number of times that another way is chosen if the chosen one takes more memory than predicted."""
LARGE_PROGRAM = 1500
"""Maximum total number of forward operators in the programs of a table. Further rows are predicted instead of
compiled."""
FEW = 2
"""Number of other rows that are compiled if the network is too large to compile all: those with the fewest chunks."""
Tell = Callable[[str], None]


@dataclass
class StagePlans:
    """Plans of a search with stages. plans: the rows, fastest first. files: plan files by row name. gap: the largest
    share of a step that any other choice could save, by the costs of units. refused: reasons for missing ways."""

    network: StagedNetwork
    plans: list[StageRow] = field(default_factory=list[StageRow])
    files: dict[str, PlanFile] = field(default_factory=dict[str, PlanFile])
    gap: float = 0.0
    refused: list[str] = field(default_factory=list[str])

    @property
    def units(self) -> int:
        """Number of units of the network."""
        return len(self.network.units)

    def file_of(self, name: str) -> PlanFile:
        """Return the plan file of a row, compiling the row if needed to complete the file. Raise MspcError if it does
        not compile."""
        found = self.files[name]
        if found.stages is None or not found.stages.tries:
            return found
        return compiled_plan_file(self.network, found)


class _Numbers(NamedTuple):
    """Key of costs; fields as in `Way`."""

    stages: int
    micro_batches: int
    tensor: int
    slices: bool = False
    recompute: bool = False
    states: bool = False

    @classmethod
    def of(cls, way: Way) -> _Numbers:
        return cls(way.stages, way.micro_batches, way.tensor, way.slices, way.recompute, way.states)


@dataclass(frozen=True)
class _Row:
    """Row of the table before it is compiled (`is_compiled`) or predicted."""

    name: str
    found: BoundaryResult
    is_compiled: bool = True


class StageSearch:
    """Search for one network. memory: bytes per rank, 0 for no limit. own: the script's number of stages, for which its
    cells stay on their stages; 0 for none. top: number of rows compiled besides the chosen one: the fastest by
    prediction, and one in the style of Megatron-LM."""

    def __init__(
        self, network: StagedNetwork, machine: Machine, memory: int = 0, own: int = 0, top: int = 5
    ) -> None:  # fmt: skip
        self.network, self.machine, self.memory, self.own, self.top = network, machine, memory, own, top
        self._costs: dict[_Numbers, CostedUnits] = {}
        self._over: list[StageRow] = []
        """Rows that exceed the memory, until another is chosen."""
        self._least_over: StageRow | None = None
        self._without_host: BoundaryResult | None = None
        """The best plan without offloads, if both kinds were searched."""
        self._limit = float(memory)
        """Bytes that the predicted memory of the choice must not exceed."""
        self._script_boundaries: dict[int, Boundaries | None] = {}
        """The script's boundaries for its own number of stages."""
        self.found = StagePlans(network)

    def add(self, row: StageRow, file: PlanFile) -> None:
        """Add a row."""
        self.found.plans.append(row)
        self.found.files[row.name] = file

    def plans(self, stages: list[int], counts: list[int], tell: Tell) -> StagePlans:
        """Return all rows, for numbers of stages above 1 and numbers of micro-batches. Raise MspcError if nothing is
        found."""
        problems = self._problems(stages, counts, tell)
        choice = self._choose(problems, tell)
        rows = self._within_reason(self._rows(choice))
        if rows:
            tell(f"{rows[0].found.way.name} in {rows[0].found.way.stages} stages, and {len(rows) - 1} ways beside it")
        for row, made in zip(rows, parallel_results([partial(self._made, row) for row in rows]), strict=True):
            self._take(row, made)
        choice = self._within_memory(problems, choice, tell)
        if choice.best is None and problems:
            self.found.refused.append(self._too_large(problems))
        self.found.gap = choice.gap
        if not self.found.plans:
            raise MspcError(self.found.refused[-1])
        self._take_best()
        return self.found

    def _within_memory(self, problems: list[StageProblem], choice: StageChoice, tell: Tell) -> StageChoice:
        """Choose again within a lower limit as long as the choice takes more memory than predicted, and return the last
        choice."""
        for _ in range(TRIES):
            over = next((row for row in self._over if row.name == SEARCH), None)
            if choice.best is None or over is None:
                break
            self._over.remove(over)
            self._limit *= self.memory / over.memory * 0.999
            choice = choose(problems, self._limit)
            if choice.best is not None:
                tell(f"{choice.best.way.name} in {choice.best.way.stages} stages, which takes less memory")
                (row,) = self._within_reason([_Row(SEARCH, choice.best)])
                self._take(row, self._made(row))
        return choice

    def _problems(self, stages: list[int], counts: list[int], tell: Tell) -> list[StageProblem]:
        """Return all ways for these numbers. Raise MspcError if the network compiles for none."""
        most = max(counts)
        for number in stages:
            if number > most:
                self.found.refused.append(f"{number} stages: there are {most} micro-batches at most")
        asked = [_Numbers(s, m, t) for s in stages for m in counts if 2 <= s <= m for t in (0, *self._tensor(s))]
        if asked:
            tell(f"units in {', '.join(map(str, dict.fromkeys(each.stages for each in asked)))} stages")
        found: list[StageProblem] = []
        errors: list[MspcError] = []
        for numbers, made in zip(
            asked, parallel_results([partial(self._costs_of, each) for each in asked]), strict=True
        ):
            if isinstance(made, MspcError):
                errors += [] if numbers.tensor else [made]
                self.found.refused.append(f"{self._name(numbers)}: {made.message}")
                continue
            self._costs[numbers] = made
            if not (numbers.tensor and self.network.config.search_terms.mesh):  # a mesh needs searched layouts
                found += self._ways(numbers)
        if not found and errors:
            raise errors[0]
        return found

    def _choose(self, problems: list[StageProblem], tell: Tell) -> StageChoice:
        """Return the fastest way, including ways that lower memory, which are added to `problems`. If the fastest of
        all fits, only slices of parameters are tried, which shorten its updates. Otherwise all numbers of stages are
        tried that may be faster than the best that fits."""
        quickest = choose(problems)
        if quickest.best is None:
            return quickest
        way, boundaries = quickest.best.way, quickest.best.boundaries
        own = _Numbers.of(way)
        fits = BoundarySearch(self._costs_by(way), way, self.memory, boundaries).seconds(boundaries) < np.inf
        choice = quickest if fits else choose(problems, self.memory)
        if fits:
            wanted = [own]
        else:
            known = np.inf if choice.best is None else choice.best.seconds
            asked = dict.fromkeys(_Numbers.of(each.way) for each in problems)
            wanted = [each for each in asked if quickest.each[each.stages].seconds < known]
            tell("smaller slices of parameters, and cells again")
        slices = [each._replace(slices=True) for each in wanted if self._costs[each].slices]
        found = self._varied([*slices, *(each._replace(recompute=True) for each in wanted if not fits)])
        found += self._varied([n._replace(recompute=True) for n in slices if n in self._costs and not fits])
        choice = joined(choice, choose(found, self.memory))
        problems += found
        if fits or not has_device_memory(self.network.config.device):
            return choice
        self._without_host = choice.best
        tell("what lives on the host")
        found = self._on_host([*wanted, *slices], problems)
        problems += found
        return joined(choice, choose(found, self.memory))

    def _on_host(self, several: list[_Numbers], known: list[StageProblem]) -> list[StageProblem]:
        """Return the ways with offloaded states, values or both, and those that also recompute cells if nothing else
        fits."""
        states = [each._replace(states=True) for each in several if each in self._costs]
        found = self._varied(states)
        found += [
            replace(each, costs=self._costs[_Numbers.of(each.way)].costs, way=replace(each.way, values=True))
            for each in (*known, *found)
            if self._costs[_Numbers.of(each.way)].costs.host is not None and not each.way.recompute
        ]
        if choose([*known, *found], self.memory).best is None:
            found += self._varied([each._replace(recompute=True) for each in states if each in self._costs])
        return found

    def _varied(self, several: list[_Numbers]) -> list[StageProblem]:
        """Return the ways of keys that differ in one field from keys with known costs."""
        found: list[StageProblem] = []
        calls = [partial(self._costs_of, each) for each in several]
        for numbers, made in zip(several, parallel_results(calls), strict=True):
            if not isinstance(made, MspcError):
                self._costs[numbers] = made
                found += self._ways(numbers)
        return found

    def _ways(self, numbers: _Numbers) -> list[StageProblem]:
        stages, micro_batches, *options = numbers
        costs = replace(self._costs[numbers].costs, host=None)
        if stages == self.own and not self.network.free and self.own not in self._script_boundaries:
            self._script_boundaries[self.own] = script_boundaries(self.network, self.own)
        fixed = self._script_boundaries.get(stages)
        if fixed is None:
            ways = ways_of(stages, micro_batches, costs.count, *options)
        else:
            ways = script_ways(stages, micro_batches, fixed, *options)
        return [StageProblem(costs, way, fixed) for way in ways]

    def _tensor(self, stages: int) -> list[int]:
        """Return the numbers of ranks that share a matmul in pairs of matmuls, as an alternative to searched layouts:
        the size of a host, or [] if the script's own strategies stay."""
        if self.network.is_configured and not self.network.free:
            return []
        return tensor_sizes(self.network.config.ranks // stages, self.machine.ranks_per_host)[-1:]

    def _name(self, numbers: _Numbers) -> str:
        if numbers.tensor:
            data = self.network.config.ranks // numbers.stages // numbers.tensor
            return f"{MEGATRON}, {numbers.tensor} x {numbers.stages} x {data}"
        return f"{numbers.stages} stages, {numbers.micro_batches} micro-batches"

    def _costs_by(self, way: Way) -> UnitCosts:
        return self._costs[_Numbers.of(way)].of(way)

    def _costs_of(self, numbers: _Numbers) -> CostedUnits | MspcError:
        measured = UnitMeasurement(self.network, numbers.stages, numbers.micro_batches, self.machine, bool(self.memory))
        try:
            if numbers.recompute:
                return measured.with_recomputation(self._costs[numbers._replace(recompute=False)])
            if numbers.states:
                return measured.with_host_states(self._costs[numbers._replace(states=False)])
            if numbers.slices:
                return measured.with_slices(self._costs[numbers._replace(slices=False)])
            return measured.costs(numbers.tensor)
        except MspcError as error:
            return error

    def _rows(self, choice: StageChoice) -> Iterator[_Row]:
        """Yield the rows of the table: the choice, then the fastest others by prediction."""
        if choice.best is None:
            return
        yield _Row(SEARCH, choice.best)
        best, units = choice.best.way, self.found.units
        if self._without_host is not None and (best.states or best.values):
            yield _Row(ON_DEVICE, self._without_host)
        others = [
            _Row(f"best of {stages} stages", found)
            for stages, found in choice.each.items() if stages != best.stages and found.seconds < np.inf
        ]  # fmt: skip
        fixed = self._script_boundaries.get(best.stages)
        usual = [(name, way) for name, way in _usual_ways(best, units)]
        for size in self._tensor(best.stages):
            way = replace(best, schedule=ONE_FORWARD_ONE_BACKWARD, chunks=1, tensor=size)
            usual.append((self._name(_Numbers.of(way)), way))
        for name, way in usual:
            if fixed is not None and way.parts != len(fixed) + 1:
                continue
            name = name.replace("equal stages", "the script's stages") if fixed else name
            found = self._usual_result(way, fixed or equal_parts(units, way.parts))
            if found is not None:
                others.append(_Row(name, found))
        if self.network.operators(best.splits_gradients, best.parts) <= LARGE_PROGRAM:
            yield from sorted(others, key=lambda row: row.found.seconds)[: self.top - 1]
        else:
            yield from sorted(others, key=lambda row: (row.found.way.chunks, row.found.seconds))[:FEW]

    def _within_reason(self, rows: Iterable[_Row]) -> list[_Row]:
        """Return the rows, marked to be compiled as long as the total size of their programs is within the limit."""
        found: list[_Row] = []
        left = LARGE_PROGRAM
        for row in rows:
            way = row.found.way
            operators = self.network.operators(way.splits_gradients, way.parts)
            is_compiled = operators <= left
            left -= operators if is_compiled else 0
            found.append(replace(row, is_compiled=is_compiled))
        return found

    def _usual_result(self, way: Way, boundaries: Boundaries) -> BoundaryResult | None:
        """Return a usual way, with measures that lower memory only if needed; None if its costs are unknown."""
        ways = dict.fromkeys((replace(way, slices=False, recompute=False, states=False, values=False), way))
        known = [each for each in ways if _Numbers.of(each) in self._costs]
        searches = [BoundarySearch(self._costs_by(each), each, self.memory) for each in known]
        fitting = [search for search in searches if search.seconds(boundaries) < np.inf]
        if not searches:
            return None
        chosen = (fitting or searches[-1:])[0]
        chosen.memory = 0
        return BoundaryResult(chosen.way, boundaries, chosen.seconds(boundaries), 0.0)

    def _made(self, row: _Row) -> tuple[StageRow, PlanFile] | MspcError:
        """Return a compiled or predicted row and its file, or the error if it does not compile."""
        way, boundaries = row.found.way, row.found.boundaries
        known = self._costs[_Numbers.of(way)]
        layouts = known.layouts
        if way.values:
            cells = cells_on_host(self.network.units, known.costs, way, boundaries, self._limit)
            layouts = replace(layouts, offload=tuple(together(dict.fromkeys(cells, 0))))
        if not row.is_compiled:
            made = predicted_row(row.name, self.network, known, way, boundaries, layouts)
            return made, replace(layouts, stages=plan_of(self.network.units, way, boundaries))
        try:
            made, file = compiled_row(row.name, self.network, way, boundaries, self.machine, layouts)
        except MspcError as error:
            return error
        note = ""
        if way.tensor and not row.name.startswith(MEGATRON):
            note = f"has pairs of products over {way.tensor} ranks"
        return replace(made, foreseen=row.found.seconds, note=note), file

    def _take(self, row: _Row, made: tuple[StageRow, PlanFile] | MspcError) -> None:
        """Add a row, or record why it does not compile or fit."""
        if isinstance(made, MspcError):
            self.found.refused.append(f"{row.name}: {made.message}")
        elif self.memory and made[0].memory > self.memory:
            self._over.append(made[0])
            self._least_over = min(filter(None, (self._least_over, made[0])), key=lambda row: row.memory)
            text = over_limit(made[0].memory, self.memory)
            self.found.refused.append(f"{row.name} ({made[0].schedule}, {made[0].stages} stages): {text}")
        else:
            self.add(*made)

    def _take_best(self) -> None:
        """Give the name of the search to the fastest row if that is faster than the search's own row, or there is
        none."""
        rows = sorted(self.found.plans, key=lambda row: row.step)
        own = next((row for row in rows if row.name == SEARCH), None)
        if own is None or rows[0].step < own.step:
            if own is not None:  # keep its plan under another name
                other = f"best of {own.stages} stages"
                rows = [replace(row, name=other) if row is own else row for row in rows]
                self.found.files[other] = self.found.files[SEARCH]
            rows.insert(0, replace(rows[0], name=SEARCH, note=f"takes the plan of {rows[0].name}, which is quicker"))
            self.found.files[SEARCH] = self.found.files[rows[1].name]
        self.found.plans = rows

    def _too_large(self, problems: list[StageProblem]) -> str:
        """Return the message that nothing fits: with the smallest compiled row if some were predicted to fit, else with
        the smallest prediction."""
        row = self._least_over
        if row is not None:
            way = f"{row.schedule} in {row.stages} stages with {row.micro_batches} micro-batches"
            least = shown_bytes(row.memory)
            return f"no plan fits {shown_bytes(self.memory)}: the smallest compiled one takes {least}, {way}"
        smallest = min(
            (BoundarySearch(p.costs, p.way, 0, p.fixed).smallest() for p in problems), key=lambda each: each[0]
        )  # fmt: skip
        nbytes, way = smallest
        return (
            f"no plan fits {shown_bytes(self.memory)}: the smallest predicted one takes {shown_bytes(round(nbytes))}, "
            f"{way.name} in {way.stages} stages with {way.micro_batches} micro-batches{way.memory_measures}"
        )


def _usual_ways(best: Way, units: int) -> Iterator[tuple[str, Way]]:
    """Yield (name, way) with nearly equal numbers of units per stage and the layouts of the search."""
    for name, schedule in (("equal stages, 1F1B", ONE_FORWARD_ONE_BACKWARD), ("equal stages, GPipe", GPIPE)):
        yield name, replace(best, schedule=schedule, chunks=1)
    if 2 * best.stages <= units:
        yield "equal stages, interleaved", replace(best, schedule=IN_ROUNDS, chunks=2)


LARGE = 1000
"""Number of operators of all micro-batches above which the network without stages is not compiled; each micro-batch has
copies of all operators there."""
ONE_STAGE = "no stages"


def of_one_stage(
    captured: CapturedCall, asked: PlanRequest, numbers: AskedStages
) -> tuple[CapturedCall, PlanRequest]:  # fmt: skip
    """Return (the launch without stages, the request for the ranks of one stage), for one number of stages. Raise
    MspcError for several numbers, or if the number does not divide the ranks."""
    if len(numbers.stages) != 1:
        raise MspcError(
            "--explain tells of the layouts within a stage, and stages of several sizes are asked for",
            notes=["give one number with --stages"],
        )  # fmt: skip
    (stages,) = numbers.stages
    check_divides(stages, asked.ranks)
    if not numbers.fits(stages, asked.ranks):
        raise numbers.no_fit(asked.ranks, str(stages))
    flat = replace(captured, context=replace(captured.context, pipeline_stages=1))
    return flat, replace(asked, ranks=asked.ranks // stages)


def search_in_stages(captured: CapturedCall, asked: PlanRequest, numbers: AskedStages, tell: Tell) -> StagePlans:
    """Return all rows of a launch; `numbers.top` of them are shown. Raise MspcError if nothing is found, and for
    impossible numbers."""
    own = captured.context.pipeline_stages
    flat = replace(captured, context=replace(captured.context, pipeline_stages=1))
    config = asked.config(flat)
    if config.mode not in SHARDED:
        config = replace(config, mode="auto_parallel", dataset_strategy="full_batch")
    network = StagedNetwork(captured, config, asked.free)
    is_cut = cuts_batch(captured)
    if not is_cut and not numbers.micro_batches:
        raise MspcError(
            "the script trains in no micro-batches, so that there is no number of them to search stages for",
            notes=["wrap the network in a PipelineCell, or give --micro-batches to see the effect"],
            kind=RuntimeError,
        )  # fmt: skip
    one, notes = None, list[str]()
    if not is_cut:
        one = _one_stage(flat, asked, 1, own, tell) if numbers.wants(1, config.ranks) else None
        wrap_network(captured)
        notes.append("the script has no PipelineCell: rows with stages are of it as if it had one, which a plan needs")
    stages, counts = numbers.numbers(network)
    if is_cut and 1 in stages:
        operators = network.operators(True) * network.micro_batches
        if operators > LARGE:
            notes.append(
                f"{ONE_STAGE}: not compiled, as the {network.micro_batches} micro-batches of one stage are so many "
                f"copies, of {operators} operators together"
            )
        else:
            one = _one_stage(flat, asked, network.micro_batches, own, tell)
    search = StageSearch(network, asked.machine, asked.memory, own if own > 1 else 0, numbers.top)
    if one is not None:
        search.add(*one)
    search.found.refused += notes
    return search.plans(stages, counts, tell)


def _one_stage(
    captured: CapturedCall, asked: PlanRequest, micro_batches: int, own: int, tell: Tell
) -> tuple[StageRow, PlanFile] | None:  # fmt: skip
    """Return the best plan of the unchanged network on all ranks; None if none fits the memory. own: the script's
    number of stages, which the plan overrides."""
    try:
        plans = plans_for(captured, asked, tell)
    except MspcError:
        if not asked.memory:
            raise
        return None
    plan = plans.plans[0]
    row = StageRow(
        ONE_STAGE, plan.ranks, 1, "-", micro_batches, (), plan.step, 0.0, plan.nbytes, plan.memory, compiled=1,
        note=f"is the plan of {plan.name}", cut_further=plan.cut_further, recompute=plan.recompute,
        degrees=plan.degrees, on_host=plan.on_host, offload=tuple(plan.offload),
        offload_states=plan.offload_states, missing_rates=plan.missing_rates,
    )  # fmt: skip
    file = plans.files[plan.name]
    is_said = own > 1  # otherwise there is nothing to override
    return row, replace(file, stages=StagePlan(1, "1f1b", micro_batches)) if is_said else file
