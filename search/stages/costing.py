"""Costs of a network's units. Each kind of unit is compiled as a separate stage, all in one program.

In a run of equal units, the first and the last are measured separately, because operators outside any unit may belong
to them; the second represents the others. Folded units (one graph in a loop over layers) are slower than inlined ones.
If the schedule allows folding, the cost of one iteration of the loop is used.

Variants with less memory are compiled the same way, with the same layouts: parameters stored in slices, and recomputed
cells. A unit is recomputed only if that at least halves its saved bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.nodes import sent_bytes
from mspc.analysis.cost.timeline import MissingRate, missing_rates
from mspc.compiler.driver import Compiled
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import MICRO_BATCH, OFFLOAD, WORK, Constant, Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.text.families import each_of_cells
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.ops.control.regions import MakeStack, nodes_with_times
from mspc.ops.control.structural import MakeTuple, extracted_elements
from mspc.output.stage_times import predicted_times, stage_times, timeline_of
from mspc.passes.lib.propagation import sharded_further
from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    ONE_FORWARD_ONE_BACKWARD,
    WEIGHT_GRADIENT,
    ZERO_BUBBLE_H1,
)
from mspc.passes.lib.stage_placement import chosen_schedule
from mspc.plans.files.plan_file import PlanFile, StagePlan, together
from mspc.search.plans.degrees import Degrees, degrees_of
from mspc.search.plans.figures import count_of, max_bytes_sent, memory_of, on_host_of
from mspc.search.plans.limited import has_device_memory
from mspc.search.stages.network import StagedNetwork, Unit, plan_of
from mspc.search.stages.problem import (
    Boundaries,
    SeparateCosts,
    UnitCosts,
    Way,
    host_bytes,
    saved_micro_batches,
    values_of,
    walk_of,
)


def common_plan(plan: PlanFile, units: Sequence[Unit], like: Sequence[int]) -> PlanFile:
    """Return the plan with the entries of unit like[i] copied to unit i. Loops are omitted, because other plans have
    other iterations and carried values; so are operators outside units that read partial sums of micro-batches."""
    cells: dict[str, list[str]] = {}
    own: set[str] = set()
    for unit, other in zip(units, like, strict=True):
        for name, model in zip(unit.cells, units[other].cells, strict=True):
            cells.setdefault(model, []).append(name)
            own.add(name)
    paths = {_path(model): [_path(name) for name in names] for model, names in cells.items()}
    known = {_path(name) for name in own}

    def of_operators(found: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for key, value in found.items() for name in _names(key, cells, own, "/")}

    operators = {
        name: layouts for name, layouts in of_operators(plan.operators).items()
        if not any(layout.partial for layout in layouts) or any(name[:at] in own for at in _ends(name, "/"))
    }  # fmt: skip
    strategies = None if plan.strategies is None else of_operators(plan.strategies)
    return replace(
        plan, operators=operators, results=of_operators(plan.results), strategies=strategies,
        parameters={n: v for key, v in plan.parameters.items() for n in _names(key, paths, known, ".")},
        recompute=tuple(dict.fromkeys(n for key in plan.recompute for n in _names(key, cells, own, "/"))),
        offload=tuple(dict.fromkeys(n for key in plan.offload for n in _names(key, cells, own, "/"))),
        gather_again=tuple(dict.fromkeys(n for key in plan.gather_again for n in _names(key, paths, known, "."))),
        loops={},
    )  # fmt: skip


def _names(key: str, models: Mapping[str, Sequence[str]], cells: set[str], mark: str) -> Iterator[str]:
    """Yield the new names of an entry of the plan. A name in a cell that represents others is repeated for all of them;
    a name in one of the others is dropped."""
    for name in each_of_cells(key):
        cell = next((name[:at] for at in _ends(name, mark) if name[:at] in cells), None)
        if cell is None:
            yield name
        else:
            yield from (f"{each}{name[len(cell) :]}" for each in models.get(cell, ()))


def _ends(name: str, mark: str) -> Iterator[int]:
    yield len(name)
    at = name.rfind(mark)
    while at > 0:
        yield at
        at = name.rfind(mark, 0, at)


def _path(scope: str) -> str:
    """Return the prefix of the names of a cell's parameters: the names of its lists and its own name."""
    found: list[str] = []
    for part in reversed(scope.split("/")):
        name, _, kind = part.rpartition("-")
        found.insert(0, name)
        if not (len(found) == 1 and name.isdigit()) and kind not in ("CellList", "SequentialCell"):
            break
    return ".".join(found)


def persistent_bytes(graph: Graph) -> tuple[float, float]:
    """Return (bytes of parameters, their states, and values computed from them that all micro-batches read, such as
    gathered weights; bytes of sums of gradients): those live on a rank from the first micro-batch to the last."""
    stored = [p for p in graph.parameters if p.kind == "parameter" and OFFLOAD not in p.attrs]
    work = [node for node in graph.nodes if WORK in node.attrs]
    calls = [[node for node in work if node.attrs[MICRO_BATCH] == number] for number in (0, 1)]
    of_parameters: set[Value] = set(stored)
    for node in graph.nodes:
        read = [value for value in node.inputs if not isinstance(value, Constant)]
        if read and WORK not in node.attrs and of_parameters.issuperset(read):
            of_parameters.add(node)
    given = {part for node in calls[0] for value in node.inputs for part in _parts_of(value)}
    made = [v for v in given if isinstance(v, Node) and v in of_parameters]
    made = [node for node in made if not node.op.is_view and not isinstance(node.op, MakeStack)]
    sums = [v for node in calls[1] for v in node.inputs if isinstance(v, Node) and _continues_call(v, node)]
    if not calls[1]:
        sums = [p for p in stored if p.trainable]
    return float(sum(v.type.nbytes for v in (*stored, *made))), float(sum(v.type.nbytes for v in sums))


def _parts_of(value: Value) -> Sequence[Value]:
    return value.inputs if isinstance(value, Node) and isinstance(value.op, MakeTuple) else [value]


def _continues_call(value: Node, call: Node) -> bool:
    """Return whether a call reads a result of another call of the same graph."""
    source = value.inputs[0] if extracted_elements(value.op) is not None else None
    return isinstance(source, Node) and source.regions == call.regions


def saved_bytes(work: Sequence[Node]) -> tuple[float, float, float]:
    """Return the saved bytes of one micro-batch as (forward results and received values that gradients read; the part
    of them that separate weight gradients read; results of input gradients, and values received for those, that weight
    gradients read)."""
    kinds: dict[Value, str] = {node: str(node.attrs[WORK]) for node in work}
    came = {value for node in work if kinds[node] == FORWARD for value in node.inputs}
    saved: set[Value] = set()
    late: set[Value] = set()
    between: set[Value] = set()
    for node in work:
        for value in node.inputs:
            made = _kind_of(value, kinds, came)
            if kinds[node] != FORWARD and made == FORWARD:
                saved.add(value)
            if kinds[node] == WEIGHT_GRADIENT and made in (FORWARD, INPUT_GRADIENT):
                (late if made == FORWARD else between).add(value)
    of_saved, of_late, of_between = (float(sum(v.type.nbytes for v in each)) for each in (saved, late, between))
    return of_saved, of_late, of_between


def _kind_of(value: Value, kinds: Mapping[Value, str], came: Collection[Value]) -> str:
    """Return the kind of work that made a value or that received it from another stage; "" outside micro-batches. came:
    the operands of forward work."""
    if not isinstance(value, Node):
        return ""
    if isinstance(value.op, ReceiveFromStage):
        return FORWARD if value in came else INPUT_GRADIENT
    return kinds.get(value.inputs[0], "") if extracted_elements(value.op) is not None else ""


LESS = 1 / 2
"""Maximum share of a unit's saved bytes that remains if its cells are recomputed."""


@dataclass(frozen=True)
class CostedUnits:
    """Costs and layouts of a network's units on the ranks of one stage; equal units have equal layouts. slices: sharded
    layouts of parameters that the plan replicates. cut_further: the parameters stored that way. degrees: of a stage's
    ranks."""

    costs: UnitCosts
    layouts: PlanFile
    slices: Mapping[str, Layout] = field(default_factory=dict[str, Layout])
    cut_further: tuple[str, ...] = ()
    degrees: Degrees = Degrees()

    def of(self, way: Way) -> UnitCosts:
        """Return the costs of a way, without offloading unless the way offloads values."""
        return self.costs if way.values else replace(self.costs, host=None)


@dataclass(frozen=True)
class _Group:
    """Run of equal units. first, count: of the units. parts: the stages compiled for them as (unit, number of units):
    the first unit, the second, the units in between (in two parts if there are enough), and the last; fewer for fewer
    units."""

    first: int
    count: int
    parts: tuple[tuple[int, int], ...]

    def part_of(self, unit: int) -> int:
        """Return the stage that represents a unit."""
        place = unit - self.first
        if place == self.count - 1:
            return self.parts[-1][0]
        return self.parts[min(place, 1)][0]

    @property
    def model(self) -> int:
        """The unit whose layouts all of them take; it is compiled by itself."""
        return self.first + min(1, self.count - 1)


@dataclass(frozen=True)
class _Costs:
    """Costs of one compiled stage; fields as in `UnitCosts`."""

    forward: float
    inputs: float
    weights: float
    rest: float
    saved: float
    resident: float
    work: float
    message: float
    sent: float
    sent_forward: float
    sent_back: float
    totals: float
    late: float
    between: float
    leaves: float = 0.0

    @property
    def always(self) -> float:
        """Bytes without those saved by micro-batches."""
        return self.resident + self.work


_NOTHING = _Costs(*[0.0] * 14)
OF_UNITS = ("forward", "inputs", "weights", "saved", "resident", "work", "sent")
"""Costs that differ if equal units are folded."""


@dataclass(frozen=True)
class UnitMeasurement:
    """Measurement of the costs of a network's units on the ranks of one of `stages` stages. memory: buffers
    count. Every method raises MspcError if the network does not compile."""

    network: StagedNetwork
    stages: int
    micro_batches: int
    machine: Machine
    memory: bool = False

    def costs(self, tensor: int = 0) -> CostedUnits:
        """Return the costs. tensor: as in `Way`."""
        compiled, found, _ = self._compiled(tensor=tensor)
        layouts = self._common(compiled.strategies.plan(compiled.config.ranks))
        slices = {p.name: layout for p, layout in sharded_further(compiled.graph) if layout != p.layout}
        return CostedUnits(found, layouts, slices, degrees=_shared_by(compiled))

    def with_slices(self, known: CostedUnits) -> CostedUnits:
        """Return the costs with replicated parameters stored in slices."""
        stored = {**known.layouts.parameters, **known.slices}
        layouts = self._common(replace(known.layouts, parameters=stored))
        compiled, found, _ = self._compiled(layouts)
        return CostedUnits(found, layouts, cut_further=tuple(known.slices), degrees=_shared_by(compiled))

    def with_host_states(self, known: CostedUnits) -> CostedUnits:
        """Return the costs with optimizer states in host memory. Raise MspcError if there are no states."""
        layouts = replace(known.layouts, offload_states=True)
        _, found, parts = self._compiled(layouts)
        for group in self._groups:  # copies of different units to and from the host overlap
            pair = group.parts[2][0] if len(group.parts) > 2 and group.parts[2][1] > 1 else -1
            if pair in parts:
                alone = parts[group.parts[1][0]].rest
                each = [*_units_in(group)][1:]
                found.rest[each] = np.minimum(found.rest[each], max(0.0, parts[pair].rest - alone))
        return CostedUnits(found, layouts, cut_further=known.cut_further, degrees=known.degrees)

    def with_recomputation(self, known: CostedUnits) -> CostedUnits:
        """Return the costs with recomputed cells in the units that then save less. Raise MspcError if no unit does."""
        if self.network.is_folded:
            raise MspcError("layers that are one graph choose their recomputation themselves")
        units, costs = self.network.units, known.costs
        every = tuple(name for unit in units for name in unit.cells)
        _, again, _ = self._compiled(replace(known.layouts, recompute=every), schedule="")
        less = again.saved <= LESS * costs.saved
        if not less.any():
            raise MspcError("no unit saves less with recomputed cells")
        changed = ("forward", "backward", "saved", "resident", "work", "sent")
        mixed = {name: np.where(less, getattr(again, name), getattr(costs, name)) for name in changed}
        cells = tuple(name for unit, is_less in zip(units, less, strict=True) if is_less for name in unit.cells)
        layouts = replace(known.layouts, recompute=tuple(together(dict.fromkeys(cells, 0))))
        return CostedUnits(replace(costs, **mixed), layouts, cut_further=known.cut_further, degrees=known.degrees)

    @property
    def _groups(self) -> list[_Group]:
        return _groups(self.network.units, self.network.is_folded)

    def _common(self, plan: PlanFile) -> PlanFile:
        """Return the plan with equal layouts of equal units."""
        like = [group.model for group in self._groups for _ in _units_in(group)]
        return common_plan(plan, self.network.units, like)

    def _compiled(
        self, layouts: PlanFile | None = None, schedule: str = ZERO_BUBBLE_H1, tensor: int = 0
    ) -> tuple[Compiled, UnitCosts, dict[int, _Costs]]:
        """Return the program of all kinds of units, the costs of the units, and those of the compiled stages."""
        groups, network = self._groups, self.network
        plan = _plan_of_parts(groups, network.units, self.micro_batches)
        compiled = network.compiled(self.stages, plan, schedule, layouts, tensor)
        parts = {
            part: _costs(compiled, part, self.machine, network, self.memory)
            for group in groups for part, own in group.parts
            if own == 1 or network.is_folded or (self.memory and (part, own) == group.parts[2])
        }  # fmt: skip
        return compiled, _of_units(network, groups, parts, self.machine), parts


def _shared_by(compiled: Compiled) -> Degrees:
    """Return the degrees of stages that are compiled for their costs, without the size of a step."""
    return replace(degrees_of(compiled), operations=0.0, samples=0)


def _plan_of_parts(groups: Sequence[_Group], units: Sequence[Unit], micro_batches: int) -> StagePlan:
    """Return a plan with every kind of unit as a separate stage."""
    count = sum(len(group.parts) for group in groups)
    cells: dict[str, int] = {}
    for group in groups:
        at = group.first
        for part, own in group.parts:
            cells |= {name: part for unit in units[at : at + own] for name in unit.cells}
            at += own
    return StagePlan(max(2, count), ONE_FORWARD_ONE_BACKWARD, micro_batches, 1, together(cells), tries=True)


def _groups(units: Sequence[Unit], folded: bool = False) -> list[_Group]:
    found: list[_Group] = []
    first = part = 0
    for _, alike in groupby(units, lambda unit: unit.kind):
        count = len([*alike])
        sizes = (1,) * count if count <= 3 else (1, 1, *_between(count - 3, folded), 1)
        found.append(_Group(first, count, tuple((part + i, size) for i, size in enumerate(sizes))))
        first, part = first + count, part + len(sizes)
    return found


def _between(count: int, folded: bool) -> tuple[int, ...]:
    """Return the sizes of the parts of the units in between; two sizes give the memory per unit."""
    some = max(2, count // 3) if folded else 2
    return (some, count - some) if count - some > (some if folded else 0) else (count,)


def _costs(compiled: Compiled, part: int, machine: Machine, network: StagedNetwork, memory: bool) -> _Costs:
    """Return the costs of one compiled stage."""
    graph = compiled.rank_graph(part * compiled.config.ranks)
    times = predicted_times(graph, machine)
    forward, inputs, of_weights = (times.mean(part, kind) for kind in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT))
    inputs += times.mean(part, BACKWARD)  # for schedules with both gradients in one action
    own = [node for node in graph.nodes if WORK in node.attrs and node.attrs[MICRO_BATCH] == 0]
    saved, late, between = saved_bytes(own)
    stored, totals = persistent_bytes(graph)
    resident = stored + totals
    work = 0.0
    if memory:
        count = 1 + max(int(node.attrs[MICRO_BATCH]) for node in graph.nodes if WORK in node.attrs)
        during = saved_micro_batches(chosen_schedule(compiled.graph.attrs, count), part)[:, :, 0]
        most = (during @ np.array([saved - late, late, between, totals])).max()
        work = max(0.0, memory_of(graph, compiled.config.device) - stored - most)
    leaves = 0.0
    if memory and not network.is_folded and has_device_memory(compiled.config.device):
        leaves = values_of(graph, [name for unit in network.units for name in unit.cells])
    onward = [time for (chunk, reader, _), time in times.messages.items() if reader > chunk]
    sent_forward, sent_back = (
        sum(sent_bytes(n) for n in graph.nodes if isinstance(n.op, SendToStage) and (n.op.stage > part) == is_later)
        for is_later in (True, False)
    )
    return _Costs(
        forward, inputs, of_weights, times.after, saved, resident, work, max(onward, default=0.0),
        bytes_of(graph) - sent_forward - sent_back, sent_forward, sent_back, totals, late, between, leaves,
    )  # fmt: skip


def bytes_of(graph: Graph) -> float:
    """Return the bytes that a rank sends in a step."""
    return sum(sent_bytes(node) * times.count for node, times in nodes_with_times(graph))


def _of_units(
    network: StagedNetwork, groups: Sequence[_Group], found: dict[int, _Costs], machine: Machine
) -> UnitCosts:  # fmt: skip
    count, folded = len(network.units), network.is_folded

    def numbers(name: str) -> np.ndarray:
        return np.array([getattr(found[group.part_of(u)], name) for group in groups for u in _units_in(group)])

    separate = {name: numbers(name) for name in OF_UNITS}
    joint = {name: each.copy() for name, each in separate.items()} if folded else separate
    entry = np.zeros(count)
    for group in groups:
        several = [(found[part], size) for part, size in group.parts[2:-1] if part in found and (folded or size > 1)]
        if several:
            alone, units = found[group.parts[1][0]], slice(group.first, group.first + group.count)
            if folded:
                each, least = _of_loops(several)
            else:  # of inlined units, memory only
                pair = several[0][0]
                saved = {"resident": alone.resident, "saved": pair.saved - alone.saved}
                each, least = _with_memory(saved, [(alone, 1), (pair, 2)])
            for name, value in each.items():
                joint[name][units] += value - getattr(alone, name)
            joint["work"][units] = np.maximum(joint["work"][units] - alone.work, 0) + least
            first, size = several[0] if folded else (alone, 1)
            entry[units] = max(0.0, first.saved - size * each["saved"])
    entry[0] = 0.0  # nothing is sent to it
    own = SeparateCosts(
        separate["forward"], separate["saved"], separate["resident"], separate["work"], separate["sent"],
        numbers("late"), numbers("between"),
    )  # fmt: skip
    return UnitCosts(
        joint["forward"], joint["inputs"] + joint["weights"], separate["inputs"], separate["weights"], numbers("rest"),
        joint["saved"], joint["resident"], joint["work"], numbers("message")[: count - 1], joint["sent"], entry,
        numbers("sent_forward"), numbers("sent_back"), numbers("totals"), own,
        tuple((group.first, group.count) for group in groups if folded and group.count > 1),
        host_bytes(numbers("leaves"), machine),
    )  # fmt: skip


def _of_loops(several: Sequence[tuple[_Costs, int]]) -> tuple[dict[str, float], float]:
    """Return (costs of each folded unit, bytes of buffers of all units), from loops over the units."""
    more, many = several[-1]
    less, few = several[0] if len(several) > 1 else (_NOTHING, 0)
    each = {name: (getattr(more, name) - getattr(less, name)) / (many - few) for name in OF_UNITS if name != "work"}
    return _with_memory(each, [pair for pair in ((less, few), (more, many)) if pair[1]])


def _with_memory(each: dict[str, float], known: Sequence[tuple[_Costs, int]]) -> tuple[dict[str, float], float]:
    """Return the costs with the resident bytes per unit, and the bytes of buffers of all units. The former are the
    growth per unit if it exceeds the sum of known bytes."""
    if len(known) > 1:
        (less, few), (more, many) = known
        each["resident"] = max(each["resident"], (more.always - less.always) / (many - few))
    return each, max(0.0, *(costs.always - count * each["resident"] for costs, count in known))


def _units_in(group: _Group) -> range:
    return range(group.first, group.first + group.count)


@dataclass(frozen=True)
class TimedRow:
    """Times and bytes of a row of the table. ranks: of all stages. cells: number of units per chunk. step: seconds
    until the last stage has finished its updates. idle: mean share of the step that stages wait. nbytes: sent by the
    busiest rank. memory: peak bytes of the fullest rank. foreseen: predicted seconds, 0 if not predicted. compiled:
    number of stages that were compiled; the others are equal to them. note: a remark."""

    name: str
    ranks: int
    stages: int
    schedule: str
    micro_batches: int
    cells: tuple[int, ...]
    step: float
    idle: float
    nbytes: float
    memory: int
    foreseen: float = 0.0
    compiled: int = 0
    note: str = ""


@dataclass(frozen=True)
class StageRow(TimedRow):
    """Row of the table. mesh: of the ranks of one stage, used for the search of layouts; "" for any. cut_further:
    number of parameters stored in smaller slices than operators read. recompute: recomputed cells, runs of equal ones
    as one. degrees: of a stage's ranks. on_host: maximum bytes of host memory of a rank; 0 if not compiled. offload:
    cells whose values saved for gradients are offloaded, runs of equal ones as one. offload_states: optimizer states
    are offloaded. missing_rates: rates replaced by those of another element type, () if not compiled."""

    mesh: str = ""
    cut_further: int = 0
    recompute: tuple[str, ...] = ()
    degrees: Degrees = Degrees()
    on_host: int = 0
    offload: tuple[str, ...] = ()
    offload_states: bool = False
    missing_rates: tuple[MissingRate, ...] = ()

    @property
    def content(self) -> dict[str, Any]:
        """Content for `--json`."""
        return asdict(self)


def compiled_row(
    name: str, network: StagedNetwork, way: Way, boundaries: Boundaries, machine: Machine, layouts: PlanFile
) -> tuple[StageRow, PlanFile]:  # fmt: skip
    """Return a compiled row and its plan's file. layouts: of operators. Raise MspcError if it does not compile."""
    plan = plan_of(network.units, way, boundaries)
    compiled = network.compiled(way.stages, plan, layouts=layouts)
    walk = walk_of(way.order)
    parts = [group.part_of(unit) for group in _groups(network.units) for unit in _units_in(group)]
    edges = (0, *boundaries, len(network.units))
    chunks = [tuple(parts[first:end]) for first, end in pairwise(edges)]
    stages = [tuple(chunks[chunk] for chunk in walk.schedule.chunks_of(stage)) for stage in range(way.stages)]
    on_host = {name for names in layouts.offload for name in each_of_cells(names)}
    copying = [any(on_host.intersection(u.cells) for u in network.units[first:end]) for first, end in pairwise(edges)]
    for stage, own in enumerate(stages):  # host copies depend on the position in the schedule
        if any(copying[chunk] for chunk in walk.schedule.chunks_of(stage)):
            stages[stage] = (*own, (stage,))
    alike = [
        min((o for o in range(way.stages) if stages[o] == own), key=lambda o: -walk.max_saved(o)) for own in stages
    ]
    graphs = {stage: compiled.rank_graph(stage * compiled.config.ranks) for stage in sorted(set(alike))}
    known = {stage: predicted_times(graph, machine) for stage, graph in graphs.items()}
    chunks_of, placement = walk.schedule.chunks_of, walk.schedule.placement
    of_stages = [  # a stage does the same work on its own chunks as the one that it is like
        known[like].like(dict(zip(chunks_of(like), chunks_of(stage), strict=True)), like, stage, placement)
        for stage, like in enumerate(alike)
    ]
    times = timeline_of(compiled.graph.attrs, of_stages)
    row = StageRow(
        name, network.config.ranks, way.stages, way.name, way.micro_batches,
        tuple(map(len, chunks)),
        times.makespan,
        sum(map(times.idle_share, range(way.stages))) / way.stages,
        max_bytes_sent(compiled, graphs, machine),
        max(memory_of(graph, compiled.config.device) for graph in graphs.values()),
        compiled=len(graphs), mesh=_mesh(network, way), cut_further=count_of(compiled.strategies.parameters),
        recompute=tuple(compiled.strategies.recomputed),
        degrees=degrees_of(compiled),
        on_host=max(map(on_host_of, graphs.values())),
        offload=tuple(compiled.strategies.offloaded), offload_states=compiled.strategies.states_offloaded,
        missing_rates=missing_rates(graphs.values(), machine),
    )  # fmt: skip
    return row, _file(compiled, plan)


def step_seconds(compiled: Compiled, machine: Machine) -> float:
    """Return the seconds of a step of a pipelined program, until the last stage has finished its updates. Raise
    MspcError if they are unknown."""
    return stage_times(graphs_of_stages(compiled), machine).makespan


def graphs_of_stages(compiled: Compiled) -> list[Graph]:
    """Return the program of the first rank of every stage."""
    config = compiled.config
    return [compiled.rank_graph(stage * config.ranks) for stage in range(config.pipeline_stages)]


def compiled_plan_file(network: StagedNetwork, layouts: PlanFile) -> PlanFile:
    """Compile a plan and return its file, including the layouts of loop carries. layouts: of operators, with the
    stages. Raise MspcError if it does not compile."""
    assert layouts.stages is not None
    plan = layouts.stages
    return _file(network.compiled(plan.count, plan, layouts=replace(layouts, stages=None)), plan)


def _file(compiled: Compiled, plan: StagePlan) -> PlanFile:
    return replace(compiled.strategies.plan(compiled.config.ranks), stages=replace(plan, tries=False))


def predicted_row(
    name: str, network: StagedNetwork, known: CostedUnits, way: Way, boundaries: Boundaries,
    layouts: PlanFile | None = None,
) -> StageRow:  # fmt: skip
    """Return a row predicted from the costs of its units, without compiling. layouts: None for those of the costs."""
    costs = known.of(way)
    layouts = layouts or known.layouts
    walk, row = walk_of(way.order), np.array([boundaries], dtype=int).reshape(1, -1)
    without = "" if costs.under(way).work.any() else "; its memory is without buffers, which --memory looks at"
    seconds = float(walk.seconds(costs, row)[0])
    return StageRow(
        name, network.config.ranks, way.stages, way.name, way.micro_batches,
        tuple(b - a for a, b in pairwise((0, *boundaries, costs.count))), seconds, float(walk.idle(costs, row)[0]),
        float(walk.max_bytes_sent(costs, row)[0]), int(walk.memory(costs, row)[0]), seconds, 0,
        "is foreseen by its units, of which each kind was compiled as a stage: its program has "
        f"{network.operators(way.splits_gradients, way.parts)} forward operators{without}",
        _mesh(network, way), count_of(known.cut_further), layouts.recompute, known.degrees,
        offload=layouts.offload, offload_states=layouts.offload_states,
    )  # fmt: skip


def _mesh(network: StagedNetwork, way: Way) -> str:
    """Return the mesh of a way's searched layouts; "" for any mesh, or if the layouts were not searched."""
    return "" if way.tensor else network.config.search_terms.mesh
