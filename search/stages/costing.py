"""The costs of a network's units: each kind of them is compiled as a stage of its own, all at once.

Of equal units in a row the first and the last are looked at by themselves, as operators of no unit may belong to them,
and the second for all between. Where they are one graph, that takes longer for each than inlined ones: what a turn of
the loop costs counts then, where schedules let layers be one graph.

What ranks may do to hold less is compiled in the same way, with the same layouts: parameters that are stored in slices,
and cells that are computed again. Of these only units count that keep less by it, half of what they kept at most.
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
from mspc.ops.control.structural import MakeTuple, taken_elements
from mspc.output.stage_times import StageTimes, predicted_times, stage_times, timeline_of
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
from mspc.runtime.memory_plan import peak_of
from mspc.search.plans.degrees import Degrees, degrees_of
from mspc.search.plans.figures import count_of, most_sent, on_host_of, workspace
from mspc.search.plans.limited import has_host_apart
from mspc.search.stages.network import StagedNetwork, Unit, plan_of
from mspc.search.stages.problem import (
    ApartCosts,
    Borders,
    UnitCosts,
    Walk,
    Way,
    host_bytes,
    kept_during,
    values_of,
    walk_of,
)


def common_plan(plan: PlanFile, units: Sequence[Unit], like: Sequence[int]) -> PlanFile:
    """The plan with what it says of unit like[i] said of unit i. Loops are left out, as others turn and carry more, and
    with them what takes partial sums of micro-batches."""
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
    """What a name of the plan becomes: of a cell that others are like the names in all of them, nothing in those."""
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
    """The beginning of the names of a cell's parameters, by the names of the lists and of the cell itself."""
    found: list[str] = []
    for part in reversed(scope.split("/")):
        name, _, kind = part.rpartition("-")
        found.insert(0, name)
        if not (len(found) == 1 and name.isdigit()) and kind not in ("CellList", "SequentialCell"):
            break
    return ".".join(found)


def held_bytes(graph: Graph) -> tuple[float, float]:
    """Bytes that a rank has from the first micro-batch to the last (of parameters and their states, and of what all
    micro-batches read that was made of them, as gathered and converted ones; of sums of gradients)."""
    stored = [p for p in graph.parameters if p.kind == "parameter" and OFFLOAD not in p.attrs]
    work = [node for node in graph.nodes if WORK in node.attrs]
    calls = [[node for node in work if node.attrs[MICRO_BATCH] == number] for number in (0, 1)]
    of_parameters: set[Value] = set(stored)
    for node in graph.nodes:
        read = [value for value in node.inputs if not isinstance(value, Constant)]
        if read and WORK not in node.attrs and of_parameters.issuperset(read):
            of_parameters.add(node)
    given = {part for node in calls[0] for value in node.inputs for part in _parts_of(value)}
    made = [v for v in given if isinstance(v, Node) and v in of_parameters and not _shows(v)]
    sums = [v for node in calls[1] for v in node.inputs if isinstance(v, Node) and _goes_on(v, node)]
    if not calls[1]:
        sums = [p for p in stored if p.trainable]
    return float(sum(v.type.nbytes for v in (*stored, *made))), float(sum(v.type.nbytes for v in sums))


def _parts_of(value: Value) -> Sequence[Value]:
    return value.inputs if isinstance(value, Node) and isinstance(value.op, MakeTuple) else [value]


def _shows(node: Node) -> bool:
    return node.op.is_view or isinstance(node.op, MakeStack)


def _goes_on(value: Node, call: Node) -> bool:
    """Whether a call is given what another call of its graph has made."""
    source = value.inputs[0] if taken_elements(value.op) is not None else None
    return isinstance(source, Node) and source.regions == call.regions


def kept_bytes(work: Sequence[Node]) -> tuple[float, float, float]:
    """Bytes that the gradients of a micro-batch read of its forward work, and of what came from other stages for that;
    of them what the gradients of weights read, where they are apart; what these read of the gradients of inputs, and of
    what came for those."""
    kinds: dict[Value, str] = {node: str(node.attrs[WORK]) for node in work}
    came = {value for node in work if kinds[node] == FORWARD for value in node.inputs}
    kept: set[Value] = set()
    late: set[Value] = set()
    between: set[Value] = set()
    for node in work:
        for value in node.inputs:
            made = _kind_of(value, kinds, came)
            if kinds[node] != FORWARD and made == FORWARD:
                kept.add(value)
            if kinds[node] == WEIGHT_GRADIENT and made in (FORWARD, INPUT_GRADIENT):
                (late if made == FORWARD else between).add(value)
    of_kept, of_late, of_between = (float(sum(v.type.nbytes for v in each)) for each in (kept, late, between))
    return of_kept, of_late, of_between


def _kind_of(value: Value, kinds: Mapping[Value, str], came: Collection[Value]) -> str:
    """The kind of work that a value is handed on by, or came from another stage for; "" of what is of no micro-batch.
    came: what forward work reads."""
    if not isinstance(value, Node):
        return ""
    if isinstance(value.op, ReceiveFromStage):
        return FORWARD if value in came else INPUT_GRADIENT
    return kinds.get(value.inputs[0], "") if taken_elements(value.op) is not None else ""


LESS = 1 / 2
"""The share of what a unit keeps that it may keep at most where its cells are computed again."""


@dataclass(frozen=True)
class CostedUnits:
    """The costs of a network's units on the ranks of one stage, and the layouts that they are of, equal in equal units.
    slices: parameters that ranks hold alike, with how they could be stored in slices over these. cut_further: those
    that are."""

    costs: UnitCosts
    layouts: PlanFile
    slices: Mapping[str, Layout] = field(default_factory=dict[str, Layout])
    cut_further: tuple[str, ...] = ()

    def of(self, way: Way) -> UnitCosts:
        """The costs of a way: values stay on the device where it says nothing else."""
        return self.costs if way.values else replace(self.costs, host=None)


@dataclass(frozen=True)
class _Group:
    """Equal units in a row. first, count: of them. parts: the stages that they are compiled as, each with how many it
    has: the first, the second, those between, in two parts where they are enough, the last; fewer where there are
    fewer units."""

    first: int
    count: int
    parts: tuple[tuple[int, int], ...]

    def part_of(self, unit: int) -> int:
        """The stage that stands for a unit."""
        place = unit - self.first
        if place == self.count - 1:
            return self.parts[-1][0]
        return self.parts[min(place, 1)][0]

    @property
    def model(self) -> int:
        """The unit whose layouts all of them have, one that is compiled by itself."""
        return self.first + min(1, self.count - 1)


@dataclass(frozen=True)
class _Costs:
    """Of one of these stages, as of `UnitCosts`."""

    forward: float
    inputs: float
    weights: float
    rest: float
    kept: float
    held: float
    work: float
    message: float
    sent: float
    there: float
    back: float
    totals: float
    late: float
    between: float
    leaves: float = 0.0

    @property
    def always(self) -> float:
        """Bytes beside what micro-batches keep."""
        return self.held + self.work


_NOTHING = _Costs(*[0.0] * 14)
OF_UNITS = ("forward", "inputs", "weights", "kept", "held", "work", "sent")
"""Costs that are others where equal units are one graph."""


def parts_of_units(units: Sequence[Unit]) -> list[int]:
    """Of every unit what it is like: equal numbers for equal units that stand alike among their neighbours."""
    return [group.part_of(unit) for group in _groups(units) for unit in _each(group)]


def unit_costs(
    network: StagedNetwork, stages: int, micro_batches: int, machine: Machine, memory: bool = False, tensor: int = 0
) -> CostedUnits:
    """The costs of a network's units on the ranks of one of so many stages. memory: buffers count. tensor: as of `Way`.
    Raises MspcError."""
    units = network.units
    groups = _groups(units, network.is_folded)
    plan = _plan_of_parts(groups, units, micro_batches)
    compiled = network.compiled(stages, plan, ZERO_BUBBLE_H1, tensor=tensor)
    found = _of_units(network, groups, _of_parts(compiled, groups, machine, network, memory), machine)
    like = [group.model for group in groups for _ in _each(group)]
    layouts = common_plan(compiled.strategies.plan(compiled.config.ranks), units, like)
    slices = {p.name: layout for p, layout in sharded_further(compiled.graph) if layout != p.layout}
    return CostedUnits(found, layouts, slices)


def costs_of_slices(
    network: StagedNetwork, stages: int, micro_batches: int, machine: Machine, known: CostedUnits, memory: bool = False
) -> CostedUnits:  # fmt: skip
    """The same where parameters are stored in slices. Raises MspcError."""
    units = network.units
    groups = _groups(units, network.is_folded)
    like = [group.model for group in groups for _ in _each(group)]
    stored = replace(known.layouts, parameters={**known.layouts.parameters, **known.slices})
    layouts = common_plan(stored, units, like)
    plan = _plan_of_parts(groups, units, micro_batches)
    compiled = network.compiled(stages, plan, ZERO_BUBBLE_H1, layouts)
    found = _of_units(network, groups, _of_parts(compiled, groups, machine, network, memory), machine)
    return CostedUnits(found, layouts, cut_further=tuple(known.slices))


def costs_of_states(
    network: StagedNetwork, stages: int, micro_batches: int, machine: Machine, known: CostedUnits, memory: bool = False
) -> CostedUnits:  # fmt: skip
    """The same where states of optimizers live in the host's memory. Raises MspcError where there are none."""
    units = network.units
    groups = _groups(units, network.is_folded)
    layouts = replace(known.layouts, offload_states=True)
    plan = _plan_of_parts(groups, units, micro_batches)
    compiled = network.compiled(stages, plan, ZERO_BUBBLE_H1, layouts)
    parts = _of_parts(compiled, groups, machine, network, memory)
    found = _of_units(network, groups, parts, machine)
    for group in groups:  # of several units copies run at once: one's come back while another's leave
        pair = group.parts[2][0] if len(group.parts) > 2 and group.parts[2][1] > 1 else -1
        if pair in parts:
            alone = parts[group.parts[1][0]].rest
            each = [*_each(group)][1:]
            found.rest[each] = np.minimum(found.rest[each], max(0.0, parts[pair].rest - alone))
    return CostedUnits(found, layouts, cut_further=known.cut_further)


def costs_of_cells_again(
    network: StagedNetwork, stages: int, micro_batches: int, machine: Machine, known: CostedUnits, memory: bool = False
) -> CostedUnits:  # fmt: skip
    """The same where the cells of units are computed again for gradients, as far as they keep less then. Raises
    MspcError where none do."""
    units = network.units
    groups = _groups(units, network.is_folded)
    if network.is_folded:
        raise MspcError("layers that are one graph decide themselves what they compute again")
    plan = _plan_of_parts(groups, units, micro_batches)
    every = tuple(name for unit in units for name in unit.cells)
    compiled = network.compiled(stages, plan, layouts=replace(known.layouts, recompute=every))
    again = _of_units(network, groups, _of_parts(compiled, groups, machine, network, memory), machine)
    costs = known.costs
    less = again.kept <= LESS * costs.kept
    if not less.any():
        raise MspcError("no unit keeps less where its cells are computed again")
    mixed = replace(
        costs,
        **{
            name: np.where(less, getattr(again, name), getattr(costs, name))
            for name in ("forward", "backward", "kept", "held", "work", "sent")
        },
    )
    cells = tuple(name for unit, is_less in zip(units, less, strict=True) if is_less for name in unit.cells)
    layouts = replace(known.layouts, recompute=tuple(together(dict.fromkeys(cells, 0))))
    return CostedUnits(mixed, layouts, cut_further=known.cut_further)


def _plan_of_parts(groups: Sequence[_Group], units: Sequence[Unit], micro_batches: int) -> StagePlan:
    """Every kind of units as a stage of its own."""
    count = sum(len(group.parts) for group in groups)
    cells: dict[str, int] = {}
    for group in groups:
        at = group.first
        for part, own in group.parts:
            cells |= {name: part for unit in units[at : at + own] for name in unit.cells}
            at += own
    return StagePlan(max(2, count), ONE_FORWARD_ONE_BACKWARD, micro_batches, 1, together(cells), tries=True)


def _of_parts(
    compiled: Compiled, groups: Sequence[_Group], machine: Machine, network: StagedNetwork, memory: bool
) -> dict[int, _Costs]:
    """The costs of the stages of `_plan_of_parts`."""
    return {
        part: _costs(compiled, part, machine, network, memory)
        for group in groups for part, own in group.parts
        if own == 1 or network.is_folded or (memory and (part, own) == group.parts[2])
    }  # fmt: skip


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
    """Into how many units each those between are cut: of two numbers each unit's share of memory follows."""
    some = max(2, count // 3) if folded else 2
    return (some, count - some) if count - some > (some if folded else 0) else (count,)


def _costs(compiled: Compiled, part: int, machine: Machine, network: StagedNetwork, memory: bool) -> _Costs:
    """The costs of what is compiled as one stage."""
    graph = compiled.rank_graph(part * compiled.config.ranks)
    times = predicted_times(graph, machine)
    forward, inputs, of_weights = (times.mean(part, kind) for kind in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT))
    inputs += times.mean(part, BACKWARD)  # where both are in one
    own = [node for node in graph.nodes if WORK in node.attrs and node.attrs[MICRO_BATCH] == 0]
    kept, late, between = kept_bytes(own)
    stored, totals = held_bytes(graph)
    held = stored + totals
    work = 0.0
    if memory:
        count = 1 + max(int(node.attrs[MICRO_BATCH]) for node in graph.nodes if WORK in node.attrs)
        during = kept_during(chosen_schedule(compiled.graph.attrs, count), part)[:, :, 0]
        most = (during @ np.array([kept - late, late, between, totals])).max()
        work = max(0.0, memory_of(graph, network, compiled) - stored - most)
    leaves = 0.0
    if memory and not network.is_folded and has_host_apart(compiled.config.device):
        leaves = values_of(graph, [name for unit in network.units for name in unit.cells])
    onward = [time for (chunk, reader, _), time in times.messages.items() if reader > chunk]
    there, back = (
        sum(sent_bytes(n) for n in graph.nodes if isinstance(n.op, SendToStage) and (n.op.stage > part) == is_later)
        for is_later in (True, False)
    )
    return _Costs(
        forward, inputs, of_weights, times.behind, kept, held, work, max(onward, default=0.0),
        bytes_of(graph) - there - back, there, back, totals, late, between, leaves,
    )  # fmt: skip


def bytes_of(graph: Graph) -> float:
    """Bytes that a rank sends in a step."""
    return sum(sent_bytes(node) * times.count for node, times in nodes_with_times(graph))


def memory_of(graph: Graph, network: StagedNetwork, compiled: Compiled) -> int:
    """Bytes of a rank at its peak, with what its device takes beside the memory plan."""
    return peak_of(graph) + workspace(graph, network.captured, compiled.config.device)


def _of_units(
    network: StagedNetwork, groups: Sequence[_Group], found: dict[int, _Costs], machine: Machine
) -> UnitCosts:  # fmt: skip
    count, folded = len(network.units), network.is_folded

    def numbers(name: str) -> np.ndarray:
        return np.array([getattr(found[group.part_of(u)], name) for group in groups for u in _each(group)])

    apart = {name: numbers(name) for name in OF_UNITS}
    joint = {name: each.copy() for name, each in apart.items()} if folded else apart
    entry = np.zeros(count)
    for group in groups:
        several = [(found[part], size) for part, size in group.parts[2:-1] if part in found and (folded or size > 1)]
        if several:
            alone, units = found[group.parts[1][0]], slice(group.first, group.first + group.count)
            each, least = _of_loops(several) if folded else _of_pair(alone, several[0][0])
            for name, value in each.items():
                joint[name][units] += value - getattr(alone, name)
            joint["work"][units] = np.maximum(joint["work"][units] - alone.work, 0) + least
            first, size = several[0] if folded else (alone, 1)
            entry[units] = max(0.0, first.kept - size * each["kept"])
    entry[0] = 0.0  # nothing is sent to it
    own = ApartCosts(
        apart["forward"], apart["kept"], apart["held"], apart["work"], apart["sent"], numbers("late"),
        numbers("between"),
    )  # fmt: skip
    return UnitCosts(
        joint["forward"], joint["inputs"] + joint["weights"], apart["inputs"], apart["weights"], numbers("rest"),
        joint["kept"], joint["held"], joint["work"], numbers("message")[: count - 1], joint["sent"], entry,
        numbers("there"), numbers("back"), numbers("totals"), own,
        tuple((group.first, group.count) for group in groups if folded and group.count > 1),
        host_bytes(numbers("leaves"), machine),
    )  # fmt: skip


def _of_loops(several: Sequence[tuple[_Costs, int]]) -> tuple[dict[str, float], float]:
    """(costs of each of the units that one graph is of, bytes of buffers of all together), by loops over them."""
    more, many = several[-1]
    less, few = several[0] if len(several) > 1 else (_NOTHING, 0)
    each = {name: (getattr(more, name) - getattr(less, name)) / (many - few) for name in OF_UNITS if name != "work"}
    return _with_memory(each, [pair for pair in ((less, few), (more, many)) if pair[1]])


def _of_pair(alone: _Costs, pair: _Costs) -> tuple[dict[str, float], float]:
    """The same of memory, of units one by one."""
    return _with_memory({"held": alone.held, "kept": pair.kept - alone.kept}, [(alone, 1), (pair, 2)])


def _with_memory(each: dict[str, float], known: Sequence[tuple[_Costs, int]]) -> tuple[dict[str, float], float]:
    """What each unit holds, which is what grows with their number where that is more than what was added up, and the
    buffers of all."""
    if len(known) > 1:
        (less, few), (more, many) = known
        each["held"] = max(each["held"], (more.always - less.always) / (many - few))
    return each, max(0.0, *(costs.always - count * each["held"] for costs, count in known))


def _each(group: _Group) -> range:
    return range(group.first, group.first + group.count)


@dataclass(frozen=True)
class TimedRow:
    """What a row of the table says of times and bytes. ranks: of all stages. cells: of each chunk, how many units.
    step: seconds until the last stage has ended its updates. idle: the share of it in which stages wait, in the mean.
    nbytes: that the busiest rank sends; memory: bytes of the fullest, at its peak. foreseen: seconds that the choice
    has reckoned with, 0 where it has not. compiled: stages whose programs were made, others being equal to them. note:
    what there is to say of it."""

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
    """A row of the table. mesh: of the ranks of one stage, that layouts were searched for; "" for any.
    cut_further: parameters that are stored in smaller slices than operators read. recompute: cells that are computed
    again for gradients, equal ones in a row as one. degrees: of a stage's ranks, None of what is not compiled. on_host:
    bytes of the host's memory, of the rank that has most there; 0 of what is not compiled. offload: cells of which what
    gradients read is there, equal ones in a row as one; offload_states: states of optimizers are. missing_rates: what
    its times take rates of another element type for, () of what is not compiled."""

    mesh: str = ""
    cut_further: int = 0
    recompute: tuple[str, ...] = ()
    degrees: Degrees | None = None
    on_host: int = 0
    offload: tuple[str, ...] = ()
    offload_states: bool = False
    missing_rates: tuple[MissingRate, ...] = ()

    @property
    def content(self) -> dict[str, Any]:
        """As `--json` has it."""
        return asdict(self)


def measured(
    name: str, network: StagedNetwork, way: Way, borders: Borders, machine: Machine, layouts: PlanFile
) -> tuple[StageRow, PlanFile]:  # fmt: skip
    """A row, compiled, and its plan's file. layouts: of operators. Raises MspcError where it does not compile."""
    plan = plan_of(network.units, way, borders)
    compiled = network.compiled(way.stages, plan, layouts=layouts)
    walk = walk_of(way.order)
    parts = parts_of_units(network.units)
    edges = (0, *borders, len(network.units))
    chunks = [tuple(parts[first:end]) for first, end in pairwise(edges)]
    stages = [tuple(chunks[chunk] for chunk in walk.schedule.chunks_of(stage)) for stage in range(way.stages)]
    on_host = {name for names in layouts.offload for name in each_of_cells(names)}
    copying = [any(on_host.intersection(u.cells) for u in network.units[first:end]) for first, end in pairwise(edges)]
    for stage, own in enumerate(stages):  # copies depend on the place in the schedule
        if any(copying[chunk] for chunk in walk.schedule.chunks_of(stage)):
            stages[stage] = (*own, (stage,))
    alike = [min((o for o in range(way.stages) if stages[o] == own), key=lambda o: -walk.kept(o)) for own in stages]
    graphs = {stage: compiled.rank_graph(stage * compiled.config.ranks) for stage in sorted(set(alike))}
    known = {stage: predicted_times(graph, machine) for stage, graph in graphs.items()}
    of_stages = [_of_chunks(known[like], walk, like, stage) for stage, like in enumerate(alike)]
    times = timeline_of(compiled.graph.attrs, of_stages)
    row = StageRow(
        name, network.config.ranks, way.stages, way.name, way.micro_batches,
        tuple(map(len, chunks)),
        times.makespan,
        sum(map(times.idle_share, range(way.stages))) / way.stages,
        most_sent(compiled, graphs, machine),
        max(memory_of(graph, network, compiled) for graph in graphs.values()),
        compiled=len(graphs), mesh=_mesh(network, way), cut_further=count_of(compiled.strategies.parameters),
        recompute=tuple(compiled.strategies.recomputed),
        degrees=degrees_of(compiled),
        on_host=max(map(on_host_of, graphs.values())),
        offload=tuple(compiled.strategies.offloaded), offload_states=compiled.strategies.states_offloaded,
        missing_rates=missing_rates(graphs.values(), machine),
    )  # fmt: skip
    return row, _file(compiled, plan)


def step_seconds(compiled: Compiled, machine: Machine) -> float:
    """The step of a program in stages, until the last one has ended its updates. Raises MspcError."""
    return stage_times(graphs_of_stages(compiled), machine).makespan


def graphs_of_stages(compiled: Compiled) -> list[Graph]:
    """The program of the first rank of every stage."""
    config = compiled.config
    return [compiled.rank_graph(stage * config.ranks) for stage in range(config.pipeline_stages)]


def planned(network: StagedNetwork, layouts: PlanFile) -> PlanFile:
    """The file of a plan, which says what loops carry, too; layouts: of operators, with the stages. Raises MspcError
    where it does not compile."""
    assert layouts.stages is not None
    plan = layouts.stages
    return _file(network.compiled(plan.count, plan, layouts=replace(layouts, stages=None)), plan)


def _file(compiled: Compiled, plan: StagePlan) -> PlanFile:
    return replace(compiled.strategies.plan(compiled.config.ranks), stages=replace(plan, tries=False))


def foreseen(
    name: str, network: StagedNetwork, known: CostedUnits, way: Way, borders: Borders, layouts: PlanFile | None = None
) -> StageRow:  # fmt: skip
    """A row of what is not compiled, by the costs of its units. layouts: None for those that costs are of."""
    costs = known.of(way)
    layouts = layouts or known.layouts
    walk, row = walk_of(way.order), np.array([borders], dtype=int).reshape(1, -1)
    without = "" if costs.work_of(way).any() else "; its memory is without buffers, which --memory looks at"
    seconds = float(walk.seconds(costs, row)[0])
    return StageRow(
        name, network.config.ranks, way.stages, way.name, way.micro_batches,
        tuple(b - a for a, b in pairwise((0, *borders, costs.count))), seconds, float(walk.idle(costs, row)[0]),
        float(walk.most_sent(costs, row)[0]), int(walk.memory(costs, row)[0]), seconds, 0,
        "is foreseen by its units, of which each kind was compiled as a stage: its program has "
        f"{network.operators(way.is_apart, way.parts)} forward operators{without}",
        _mesh(network, way), count_of(known.cut_further), layouts.recompute,
        offload=layouts.offload, offload_states=layouts.offload_states,
    )  # fmt: skip


def _mesh(network: StagedNetwork, way: Way) -> str:
    """The mesh that the layouts of a way were searched for; "" for any, and for layouts that were not."""
    return "" if way.tensor else network.config.search_terms.mesh


def _of_chunks(times: StageTimes, walk: Walk, like: int, stage: int) -> StageTimes:
    """The times of a stage by those of one that does the same to chunks of its own."""
    own = dict(zip(walk.schedule.chunks_of(like), walk.schedule.chunks_of(stage), strict=True))
    return times.like(own, like, stage, walk.schedule.placement)
