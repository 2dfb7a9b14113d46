"""The costs of a network's units: each kind of them is compiled as a stage of its own, all at once.

Of equal units in a row the first and the last are looked at by themselves, as operators of no unit may belong to them,
and the second for all between. Where they are one graph, that takes longer for each than inlined ones: what a turn of
the loop costs counts then, where schedules let layers be one graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.nodes import sent_bytes
from mspc.compiler.driver import Compiled
from mspc.ir.graph import WORK, Graph, Node
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.stage_messages import ReceiveFromStage
from mspc.ops.control.structural import taken_elements
from mspc.ops.control.times import nodes_with_times
from mspc.output.stage_times import predicted_times
from mspc.passes.pipelining.schedules import zero_bubble_h1
from mspc.passes.pipelining.schedules.action import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from mspc.passes.pipelining.stage_program import MICRO_BATCH
from mspc.plans.files.plan_file import PlanFile
from mspc.plans.files.stage_table import StagePlan, together
from mspc.runtime.memory_plan import peak_of
from mspc.search.plans.figures import workspace
from mspc.search.stages.common_plan import common_plan
from mspc.search.stages.network import StagedNetwork
from mspc.search.stages.problem import UnitCosts, Way
from mspc.search.stages.units import Unit
from mspc.search.stages.walk import Walk


@dataclass(frozen=True)
class _Group:
    """Equal units in a row. first, count: of them. parts: the stages that they are compiled as, each with how many it
    has: the first, the second, those between, the last; fewer where there are fewer units."""

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


def parts_of_units(units: Sequence[Unit]) -> list[int]:
    """Of every unit what it is like: equal numbers for equal units that stand alike among their neighbours."""
    return [group.part_of(unit) for group in _groups(units) for unit in _each(group)]


def unit_costs(
    network: StagedNetwork, stages: int, micro_batches: int, machine: Machine, memory: bool = False, tensor: int = 0
) -> tuple[UnitCosts, PlanFile]:
    """The costs of a network's units on the ranks of one of so many stages, and the layouts that they are of, equal in
    equal units. memory: buffers count. tensor: as of `Way`. Raises MspcError."""
    units = network.units
    groups = _groups(units)
    count = sum(len(group.parts) for group in groups)
    cells: dict[str, int] = {}
    for group in groups:
        at = group.first
        for part, own in group.parts:
            cells |= {name: part for unit in units[at : at + own] for name in unit.cells}
            at += own
    plan = StagePlan(max(2, count), "1f1b", micro_batches, 1, together(cells), tries=True)
    compiled = network.compiled(stages, plan, zero_bubble_h1.NAME, tensor=tensor)
    walk = Walk(Way(max(2, count), zero_bubble_h1.NAME, _turns(compiled)))
    found: dict[int, _Costs] = {}
    for group in groups:
        for part, own in group.parts:
            if own == 1 or network.is_folded:
                found[part] = _costs(compiled, part, walk.kept(part), machine, network, memory)
    like = [group.model for group in groups for _ in _each(group)]
    layouts = common_plan(compiled.strategies.plan(compiled.config.ranks), units, like)
    return _of_units(groups, found, len(units)), layouts


def _groups(units: Sequence[Unit]) -> list[_Group]:
    found: list[_Group] = []
    first = part = 0
    for _, alike in groupby(units, lambda unit: unit.kind):
        count = len([*alike])
        sizes = (1,) * count if count <= 3 else (1, 1, count - 3, 1)
        found.append(_Group(first, count, tuple((part + i, size) for i, size in enumerate(sizes))))
        first, part = first + count, part + len(sizes)
    return found


def _turns(compiled: Compiled) -> int:
    from mspc.passes.pipelining.micro_batches import micro_batch_loop

    loop = micro_batch_loop(compiled.graph)
    assert loop is not None
    return loop.op.turns  # type: ignore[attr-defined]  # a Scan


def _costs(
    compiled: Compiled, part: int, kept_at_once: int, machine: Machine, network: StagedNetwork, memory: bool
) -> _Costs:
    """The costs of what is compiled as one stage."""
    graph = compiled.rank_graph(part * compiled.config.ranks)
    times = predicted_times(graph, machine)
    forward, inputs, of_weights = (times.mean(part, kind) for kind in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT))
    own = [node for node in graph.nodes if WORK in node.attrs and node.attrs[MICRO_BATCH] == 0]
    kept = float(sum(value.type.nbytes for value in _kept(own)))
    weights = [p for p in graph.parameters if p.kind == "parameter"]
    stored = sum(p.type.nbytes for p in weights)
    held = float(stored + sum(p.type.nbytes for p in weights if p.trainable))
    work = 0.0
    if memory:
        work = max(0.0, memory_of(graph, network, compiled) - held - kept * kept_at_once)
    onward = [time for (chunk, reader, _), time in times.messages.items() if reader > chunk]
    return _Costs(
        forward, inputs, of_weights, times.behind, kept, held, work, max(onward, default=0.0), bytes_of(graph)
    )  # fmt: skip


def bytes_of(graph: Graph) -> float:
    """Bytes that a rank sends in a step."""
    return sum(sent_bytes(node) * times.count for node, times in nodes_with_times(graph))


def memory_of(graph: Graph, network: StagedNetwork, compiled: Compiled) -> int:
    """Bytes of a rank at its peak, with what its device takes beside the memory plan."""
    return peak_of(graph) + workspace(graph, network.captured, compiled.config.device)


def _kept(work: Sequence[Node]) -> set[Node]:
    """What the gradients of a micro-batch read of its forward work, and of what came from other stages for that."""
    forward = {node for node in work if node.attrs[WORK] == FORWARD}
    received = {value for node in forward for value in node.inputs if isinstance(value, Node)}
    found: set[Node] = set()
    for node in work:
        for value in node.inputs if node not in forward else ():
            if isinstance(value, Node) and taken_elements(value.op) is not None and value.inputs[0] in forward:
                found.add(value)
            elif isinstance(value, Node) and isinstance(value.op, ReceiveFromStage) and value in received:
                found.add(value)
    return found


def _of_units(groups: Sequence[_Group], found: dict[int, _Costs], count: int) -> UnitCosts:
    def numbers(name: str) -> np.ndarray:
        return np.array([getattr(found[group.part_of(u)], name) for group in groups for u in _each(group)])

    forward, inputs, weights = numbers("forward"), numbers("inputs"), numbers("weights")
    joint, backward = forward.copy(), inputs + weights
    kept, work = numbers("kept"), numbers("work")
    for group in groups:
        between = next((part for part in group.parts if part[1] > 1), None)
        if between is None or between[0] not in found:
            continue
        loop, alone = found[between[0]], found[group.parts[1][0]]
        units = slice(group.first, group.first + group.count)
        joint[units] += loop.forward / between[1] - alone.forward
        kept[units] += loop.kept / between[1] - alone.kept
        work[units] = np.maximum(work[units] - alone.work, 0) + loop.work
        backward[units] += (loop.inputs + loop.weights) / between[1] - alone.inputs - alone.weights
    return UnitCosts(
        joint, backward, inputs, weights, numbers("rest"), kept, numbers("held"), work,
        numbers("message")[: count - 1], forward, numbers("kept"), numbers("work"), numbers("sent"),
    )  # fmt: skip


def _each(group: _Group) -> range:
    return range(group.first, group.first + group.count)
