"""The costs of a network's units: each kind of them is compiled as a stage of its own, all at once.

Of equal units in a row the first and the last are looked at by themselves, as operators of no unit may belong to them,
and the second for all between. Where they are one graph, that takes longer for each than inlined ones: what a turn of
the loop costs counts then, where schedules let layers be one graph.

What ranks may do to hold less is compiled in the same way, with the same layouts: parameters that are stored in slices,
and cells that are computed again. Of these only units count that keep less by it, half of what they kept at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import groupby

import numpy as np

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.nodes import sent_bytes
from mspc.compiler.driver import Compiled
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import MICRO_BATCH, WORK, Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.collective.point_to_point import SendToStage
from mspc.ops.control.regions import nodes_with_times
from mspc.output.stage_times import predicted_times
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
from mspc.plans.files.plan_file import PlanFile
from mspc.plans.files.stage_table import StagePlan, together
from mspc.runtime.memory_plan import peak_of
from mspc.search.plans.figures import workspace
from mspc.search.plans.host_room import has_host_apart
from mspc.search.stages.common_plan import common_plan
from mspc.search.stages.held_bytes import held_bytes, kept_bytes
from mspc.search.stages.host_bytes import host_bytes, values_of
from mspc.search.stages.network import StagedNetwork
from mspc.search.stages.problem import ApartCosts, UnitCosts, Way
from mspc.search.stages.units import Unit
from mspc.search.stages.walk import kept_during

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
