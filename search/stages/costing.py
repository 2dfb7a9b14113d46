"""Costs of a network's units. Each kind of unit is compiled as a separate stage, all in one program.

In a row of equal units, the first and the last are measured by themselves, because operators of no unit may belong to
them; the second represents all units in between. Equal units that are one graph (a loop over layers) take longer than
inlined ones. If the schedule lets layers be one graph, the cost of one iteration of the loop is used.

Ways to lower memory are compiled likewise, with the same layouts: parameters stored in slices, and recomputed cells. A
unit is recomputed only if it then saves at most half of the bytes that it saved before.
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
    """Return the plan with the entries of unit like[i] copied to unit i. Loops are left out, because those of other
    plans have other iterations and carry more; so are operators of no unit that read partial sums of micro-batches."""
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
    """Yield the new names of an entry of the plan. A name in a cell that represents others becomes the names in all
    of them; a name in one of the others becomes none."""
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
    """Return the prefix of the names of a cell's parameters, made of the names of the lists and of the cell itself."""
    found: list[str] = []
    for part in reversed(scope.split("/")):
        name, _, kind = part.rpartition("-")
        found.insert(0, name)
        if not (len(found) == 1 and name.isdigit()) and kind not in ("CellList", "SequentialCell"):
            break
    return ".".join(found)


def held_bytes(graph: Graph) -> tuple[float, float]:
    """Return the bytes that a rank holds from the first micro-batch to the last: (parameters, their states, and
    values computed from them that all micro-batches read, such as gathered and converted ones; sums of gradients)."""
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
    """Return whether a call reads a result of another call of the same graph."""
    source = value.inputs[0] if taken_elements(value.op) is not None else None
    return isinstance(source, Node) and source.regions == call.regions


def kept_bytes(work: Sequence[Node]) -> tuple[float, float, float]:
    """Return three numbers of bytes of one micro-batch: those of its forward work, or received from other stages for
    it, that gradients read; the part of them that gradients of weights read, if these are separate; and the bytes
    that gradients of weights read of the gradients of inputs, or of values received for those."""
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
    """Return the kind of work that made a value, or for which it was received from another stage; "" if it belongs
    to no micro-batch. came: the values that forward work reads."""
    if not isinstance(value, Node):
        return ""
    if isinstance(value.op, ReceiveFromStage):
        return FORWARD if value in came else INPUT_GRADIENT
    return kinds.get(value.inputs[0], "") if taken_elements(value.op) is not None else ""


LESS = 1 / 2
"""Largest share of a unit's saved bytes that it may still save if its cells are recomputed."""


@dataclass(frozen=True)
class CostedUnits:
    """Costs of a network's units on the ranks of one stage, and their layouts, equal in equal units. slices:
    replicated parameters, with layouts that shard them over the ranks with replicas. cut_further: the parameters
    stored that way. degrees: of a stage's ranks."""

    costs: UnitCosts
    layouts: PlanFile
    slices: Mapping[str, Layout] = field(default_factory=dict[str, Layout])
    cut_further: tuple[str, ...] = ()
    degrees: Degrees = Degrees()

    def of(self, way: Way) -> UnitCosts:
        """Return the costs of a way; values stay on the device unless the way moves them to the host."""
        return self.costs if way.values else replace(self.costs, host=None)


@dataclass(frozen=True)
class _Group:
    """Equal units in a row. first, count: of the units. parts: the stages compiled for them, each with its number of
    units: the first unit, the second, those in between (in two parts if there are enough), and the last; fewer parts
    if there are fewer units."""

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
        """The unit that gives all of them their layouts; it is compiled by itself."""
        return self.first + min(1, self.count - 1)


@dataclass(frozen=True)
class _Costs:
    """Costs of one of these stages; fields as in `UnitCosts`."""

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
        """Bytes without those that micro-batches save."""
        return self.held + self.work


_NOTHING = _Costs(*[0.0] * 14)
OF_UNITS = ("forward", "inputs", "weights", "kept", "held", "work", "sent")
"""Costs that change if equal units are one graph."""


def parts_of_units(units: Sequence[Unit]) -> list[int]:
    """For every unit, return the number of its kind: equal for equal units that have the same kind of neighbours."""
    return [group.part_of(unit) for group in _groups(units) for unit in _each(group)]


def unit_costs(
    network: StagedNetwork, stages: int, micro_batches: int, machine: Machine, memory: bool = False, tensor: int = 0
) -> CostedUnits:
    """Return the costs of a network's units on the ranks of one of `stages` stages. memory: buffers count. tensor:
    as in `Way`. Raise MspcError if it does not compile."""
    units = network.units
    groups = _groups(units, network.is_folded)
    plan = _plan_of_parts(groups, units, micro_batches)
    compiled = network.compiled(stages, plan, ZERO_BUBBLE_H1, tensor=tensor)
    found = _of_units(network, groups, _of_parts(compiled, groups, machine, network, memory), machine)
    like = [group.model for group in groups for _ in _each(group)]
    layouts = common_plan(compiled.strategies.plan(compiled.config.ranks), units, like)
    slices = {p.name: layout for p, layout in sharded_further(compiled.graph) if layout != p.layout}
    return CostedUnits(found, layouts, slices, degrees=_shared_by(compiled))


def costs_of_slices(
    network: StagedNetwork, stages: int, micro_batches: int, machine: Machine, known: CostedUnits, memory: bool = False
) -> CostedUnits:  # fmt: skip
    """Return the same costs with replicated parameters stored in slices. Raise MspcError if it does not compile."""
    units = network.units
    groups = _groups(units, network.is_folded)
    like = [group.model for group in groups for _ in _each(group)]
    stored = replace(known.layouts, parameters={**known.layouts.parameters, **known.slices})
    layouts = common_plan(stored, units, like)
    plan = _plan_of_parts(groups, units, micro_batches)
    compiled = network.compiled(stages, plan, ZERO_BUBBLE_H1, layouts)
    found = _of_units(network, groups, _of_parts(compiled, groups, machine, network, memory), machine)
    return CostedUnits(found, layouts, cut_further=tuple(known.slices), degrees=_shared_by(compiled))


def costs_of_states(
    network: StagedNetwork, stages: int, micro_batches: int, machine: Machine, known: CostedUnits, memory: bool = False
) -> CostedUnits:  # fmt: skip
    """Return the same costs with optimizer states in the host's memory. Raise MspcError if there are none."""
    units = network.units
    groups = _groups(units, network.is_folded)
    layouts = replace(known.layouts, offload_states=True)
    plan = _plan_of_parts(groups, units, micro_batches)
    compiled = network.compiled(stages, plan, ZERO_BUBBLE_H1, layouts)
    parts = _of_parts(compiled, groups, machine, network, memory)
    found = _of_units(network, groups, parts, machine)
    for group in groups:  # copies of several units overlap: one's come back while another's leave
        pair = group.parts[2][0] if len(group.parts) > 2 and group.parts[2][1] > 1 else -1
        if pair in parts:
            alone = parts[group.parts[1][0]].rest
            each = [*_each(group)][1:]
            found.rest[each] = np.minimum(found.rest[each], max(0.0, parts[pair].rest - alone))
    return CostedUnits(found, layouts, cut_further=known.cut_further, degrees=known.degrees)


def costs_of_cells_again(
    network: StagedNetwork, stages: int, micro_batches: int, machine: Machine, known: CostedUnits, memory: bool = False
) -> CostedUnits:  # fmt: skip
    """Return the same costs with the cells of those units recomputed for gradients that then save less. Raise
    MspcError if no unit does."""
    units = network.units
    groups = _groups(units, network.is_folded)
    if network.is_folded:
        raise MspcError("layers that are one graph choose their recomputation themselves")
    plan = _plan_of_parts(groups, units, micro_batches)
    every = tuple(name for unit in units for name in unit.cells)
    compiled = network.compiled(stages, plan, layouts=replace(known.layouts, recompute=every))
    again = _of_units(network, groups, _of_parts(compiled, groups, machine, network, memory), machine)
    costs = known.costs
    less = again.kept <= LESS * costs.kept
    if not less.any():
        raise MspcError("no unit saves less with recomputed cells")
    mixed = replace(
        costs,
        **{
            name: np.where(less, getattr(again, name), getattr(costs, name))
            for name in ("forward", "backward", "kept", "held", "work", "sent")
        },
    )
    cells = tuple(name for unit, is_less in zip(units, less, strict=True) if is_less for name in unit.cells)
    layouts = replace(known.layouts, recompute=tuple(together(dict.fromkeys(cells, 0))))
    return CostedUnits(mixed, layouts, cut_further=known.cut_further, degrees=known.degrees)


def _shared_by(compiled: Compiled) -> Degrees:
    """Return the degrees of stages that are compiled for their costs; the size of a whole step is unknown."""
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


def _of_parts(
    compiled: Compiled, groups: Sequence[_Group], machine: Machine, network: StagedNetwork, memory: bool
) -> dict[int, _Costs]:
    """Return the costs of the stages of `_plan_of_parts`."""
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
    """Return the sizes of the parts of the units in between; two sizes give the share of memory of each unit."""
    some = max(2, count // 3) if folded else 2
    return (some, count - some) if count - some > (some if folded else 0) else (count,)


def _costs(compiled: Compiled, part: int, machine: Machine, network: StagedNetwork, memory: bool) -> _Costs:
    """Return the costs of one compiled stage."""
    graph = compiled.rank_graph(part * compiled.config.ranks)
    times = predicted_times(graph, machine)
    forward, inputs, of_weights = (times.mean(part, kind) for kind in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT))
    inputs += times.mean(part, BACKWARD)  # if both gradients are one action
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
        forward, inputs, of_weights, times.after, kept, held, work, max(onward, default=0.0),
        bytes_of(graph) - there - back, there, back, totals, late, between, leaves,
    )  # fmt: skip


def bytes_of(graph: Graph) -> float:
    """Return the bytes that a rank sends in a step."""
    return sum(sent_bytes(node) * times.count for node, times in nodes_with_times(graph))


def memory_of(graph: Graph, network: StagedNetwork, compiled: Compiled) -> int:
    """Return the bytes of a rank at its peak, including those that its device needs besides the memory plan."""
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
    """Return (costs of each unit of one graph, bytes of buffers of all of them), from loops over the units."""
    more, many = several[-1]
    less, few = several[0] if len(several) > 1 else (_NOTHING, 0)
    each = {name: (getattr(more, name) - getattr(less, name)) / (many - few) for name in OF_UNITS if name != "work"}
    return _with_memory(each, [pair for pair in ((less, few), (more, many)) if pair[1]])


def _of_pair(alone: _Costs, pair: _Costs) -> tuple[dict[str, float], float]:
    """Return the same for memory only, from units that run one by one."""
    return _with_memory({"held": alone.held, "kept": pair.kept - alone.kept}, [(alone, 1), (pair, 2)])


def _with_memory(each: dict[str, float], known: Sequence[tuple[_Costs, int]]) -> tuple[dict[str, float], float]:
    """Return the costs with the bytes held by each unit, and the bytes of buffers of all. The former are the growth
    per unit if it exceeds the sum of known bytes."""
    if len(known) > 1:
        (less, few), (more, many) = known
        each["held"] = max(each["held"], (more.always - less.always) / (many - few))
    return each, max(0.0, *(costs.always - count * each["held"] for costs, count in known))


def _each(group: _Group) -> range:
    return range(group.first, group.first + group.count)


@dataclass(frozen=True)
class TimedRow:
    """Times and bytes of a row of the table. ranks: of all stages. cells: of each chunk, its number of units. step:
    seconds until the last stage has ended its updates. idle: average share of the step in which stages wait. nbytes:
    sent by the busiest rank. memory: bytes of the fullest rank, at its peak. foreseen: seconds predicted by the
    choice, 0 if it was not predicted. compiled: number of stages with programs that were made; the others are equal
    to them. note: a remark."""

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
    """Row of the table. mesh: of the ranks of one stage, for which layouts were searched; "" for any. cut_further:
    parameters that are stored in smaller slices than operators read. recompute: cells recomputed for gradients,
    equal ones in a row as one. degrees: of a stage's ranks. on_host: bytes of the
    host's memory, of the rank with the most; 0 if it was not compiled. offload: cells for which values that
    gradients read are on the host, equal ones in a row as one. offload_states: optimizer states are on the host.
    missing_rates: rates that its times take from another element type, () if it was not compiled."""

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


def measured(
    name: str, network: StagedNetwork, way: Way, borders: Borders, machine: Machine, layouts: PlanFile
) -> tuple[StageRow, PlanFile]:  # fmt: skip
    """Return a compiled row and its plan's file. layouts: of operators. Raise MspcError if it does not compile."""
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
    """Return the seconds of a step of a program in stages, until the last one has ended its updates. Raise MspcError
    if they are unknown."""
    return stage_times(graphs_of_stages(compiled), machine).makespan


def graphs_of_stages(compiled: Compiled) -> list[Graph]:
    """Return the program of the first rank of every stage."""
    config = compiled.config
    return [compiled.rank_graph(stage * config.ranks) for stage in range(config.pipeline_stages)]


def planned(network: StagedNetwork, layouts: PlanFile) -> PlanFile:
    """Return the file of a plan, including the layouts of loop carries. layouts: of operators, with the stages.
    Raise MspcError if it does not compile."""
    assert layouts.stages is not None
    plan = layouts.stages
    return _file(network.compiled(plan.count, plan, layouts=replace(layouts, stages=None)), plan)


def _file(compiled: Compiled, plan: StagePlan) -> PlanFile:
    return replace(compiled.strategies.plan(compiled.config.ranks), stages=replace(plan, tries=False))


def foreseen(
    name: str, network: StagedNetwork, known: CostedUnits, way: Way, borders: Borders, layouts: PlanFile | None = None
) -> StageRow:  # fmt: skip
    """Return a row predicted from the costs of its units, without compiling it. layouts: None for those of the
    costs."""
    costs = known.of(way)
    layouts = layouts or known.layouts
    walk, row = walk_of(way.order), np.array([borders], dtype=int).reshape(1, -1)
    without = "" if costs.under(way).work.any() else "; its memory is without buffers, which --memory looks at"
    seconds = float(walk.seconds(costs, row)[0])
    return StageRow(
        name, network.config.ranks, way.stages, way.name, way.micro_batches,
        tuple(b - a for a, b in pairwise((0, *borders, costs.count))), seconds, float(walk.idle(costs, row)[0]),
        float(walk.most_sent(costs, row)[0]), int(walk.memory(costs, row)[0]), seconds, 0,
        "is foreseen by its units, of which each kind was compiled as a stage: its program has "
        f"{network.operators(way.is_apart, way.parts)} forward operators{without}",
        _mesh(network, way), count_of(known.cut_further), layouts.recompute, known.degrees,
        offload=layouts.offload, offload_states=layouts.offload_states,
    )  # fmt: skip


def _mesh(network: StagedNetwork, way: Way) -> str:
    """Return the mesh for which the layouts of a way were searched; "" for any, and for layouts that were not
    searched."""
    return "" if way.tensor else network.config.search_terms.mesh


def _of_chunks(times: StageTimes, walk: Walk, like: int, stage: int) -> StageTimes:
    """Return the times of a stage, given those of one that does the same work on its own chunks."""
    own = dict(zip(walk.schedule.chunks_of(like), walk.schedule.chunks_of(stage), strict=True))
    return times.like(own, like, stage, walk.schedule.placement)
