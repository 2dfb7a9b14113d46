"""A network compiled in stages for a search, with the layouts found for the ranks of a stage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby, takewhile
from typing import Any

from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, TracedCall, compile_traced, trace_call
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError, listed
from mspc.ir.graph import OFFLOAD, STAGE, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.families import CELLS, each_of_cells
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.wrap import GradAccumulationCell, PipelineCell, TrainOneStepCell
from mspc.ops.control.regions import body_of, runs_layers
from mspc.ops.control.structural import TupleGetItem
from mspc.passes.lib.stage_placement import micro_batch_loop
from mspc.plans.files.plan_file import PlanFile, StagePlan, together
from mspc.plans.operator_names import layer_nodes
from mspc.search.plans.alternatives import WAYS, refuse_regions, shard_in_pairs
from mspc.search.stages.problem import IN_ROUNDS, ONE_CHUNK, Boundaries, Way

# A unit is a part of the network whose inputs and outputs are few values. Cells are split into their child cells until
# they are next to cells of the same class, like equal layers, or have no child cells; lists of cells are always split.
# Operators outside all units belong to the preceding unit, because `assign_stages` assigns them to the stage of their
# last operand. Folded layers are as many units as the loop has iterations.


FEW = 4
"""Maximum number of values that may cross the boundary between two units."""
MARKS = ("recompute", "keeps_communication", "gathers_again", "strategy_gen_mode")
"""Attributes with the script's settings for an operator's cell."""
CONTAINERS = ("CellList", "SequentialCell")
"""Cells whose operators all belong to child cells."""


@dataclass(frozen=True)
class Unit:
    """Cells that stay on one stage, by their scopes. kind: equal for units with equal operators, settings and trained
    parameters."""

    cells: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class _Part:
    """Consecutive operators of a body. scopes: of its cells. first, end: range of its operators."""

    scopes: tuple[str, ...]
    first: int
    end: int


def units_of(loop: Node, free: bool = False) -> list[Unit]:
    """Return the units of a loop over micro-batches that is traced but not compiled. free: ignore the script's
    strategies."""
    body = body_of(loop)
    given = zip(body.parameters, loop.inputs, strict=True)
    frozen = {inside for inside, p in given if isinstance(p, Parameter) and p.kind == "parameter" and not p.trainable}
    nodes = [node for node in body.nodes if node.phase == "forward"]
    places = [scope_of_node(node) for node in nodes]
    # The calls of a cell that is called again, and all parts in between, are one unit.
    parts: list[_Part] = []
    for part in _parts(places, 0, len(nodes), _root(places)):
        same = next((i for i, each in enumerate(parts) if set(each.scopes) & set(part.scopes)), None)
        if same is None:
            parts.append(part)
        else:
            parts[same:] = [_join([*parts[same:], part])]
    parts = _joined_by_crossings(parts, nodes)
    units: list[Unit] = []
    for part in parts:
        own = nodes[part.first : part.end]
        kind = repr([(node.op, [(str(v.type), v in frozen) for v in node.inputs], _asked(node, free)) for node in own])
        cells = [tuple(each_of_cells(scope)) for scope in part.scopes]
        if len(part.scopes) == 1 and len(cells[0]) > 1:
            units += [Unit((cell,), kind) for cell in cells[0]]
        else:
            units.append(Unit(tuple(name for each in cells for name in each), kind))
    return units


def _asked(node: Node, free: bool) -> list[Any]:
    """Return the script's settings for an operator and the operators inside it: strategies, and marks without cell
    names."""
    marks = {key: bool(node.attrs[key]) for key in MARKS if key in node.attrs}
    marks |= {OFFLOAD: str(node.attrs[OFFLOAD]).partition(", ")[2]} if OFFLOAD in node.attrs else {}
    strategies = () if free else (node.in_strategy, node.out_strategy)
    return [marks, strategies, [_asked(inner, free) for region in node.regions for inner in region.nodes]]


def scope_of_node(node: Node) -> str:
    """Return the scope of an operator; for a loop over layers, that of the layers."""
    if not runs_layers(node):
        return node.scope
    scopes = [inner.scope for inner in node.regions[-1].nodes if CELLS.search(inner.scope)]
    if not scopes:
        return node.scope
    found = CELLS.search(scopes[0])
    assert found is not None
    return scopes[0][: found.end()] + scopes[0][found.end() :].partition("/")[0]


def _root(places: Sequence[str]) -> str:
    """Return the longest scope that contains all operators."""
    common = [*places[0].split("/")] if places else []
    for place in places:
        own = place.split("/")
        common = [a for a, b in takewhile(lambda pair: pair[0] == pair[1], zip(common, own, strict=False))]
    return "/".join(common)


def _child(place: str, scope: str) -> str:
    """Return the child cell of `scope` that contains a scope; "" if none does."""
    inside = place[len(scope) + 1 :] if place.startswith(f"{scope}/") else ""
    return f"{scope}/{inside.partition('/')[0]}" if inside else ""


def _parts(places: Sequence[str], first: int, end: int, scope: str) -> Iterator[_Part]:
    """Yield the child cells of the cell with operators `first` to `end`, or the cell itself."""
    runs: list[tuple[str, int, int]] = []
    at = first
    for child, group in groupby(places[first:end], lambda place: _child(place, scope)):
        count = len([*group])
        if child:
            runs.append((child, at, at + count))
        at += count
    alike = Counter(_class(child) for child in dict.fromkeys(child for child, *_ in runs))
    if not runs:
        yield _Part((scope,), first, end)
    for child, start, stop in runs:
        if _class(child) not in CONTAINERS and alike[_class(child)] > 1:
            yield _Part((child,), start, stop)
        else:
            yield from _parts(places, start, stop, child)


def _class(scope: str) -> str:
    """Return the class of a cell, the last part of its scope."""
    return scope.rpartition("-")[2].rpartition("/")[2]


def _joined_by_crossings(parts: Sequence[_Part], nodes: Sequence[Node]) -> list[_Part]:
    """Merge units if too many values cross between them."""
    place: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for i, node in enumerate(nodes):
        for value in node.inputs:
            while isinstance(value, Node) and isinstance(value.op, TupleGetItem):
                value = value.inputs[0]
            if value in place:
                last[value] = i
        place[node] = i
    found: list[_Part] = []
    for part in parts:
        crossing = sum(place[value] < part.first <= end for value, end in last.items())
        if found and crossing > FEW:
            found[-1] = _join([found[-1], part])
        else:
            found.append(part)
    return found


def _join(parts: Sequence[_Part]) -> _Part:
    scopes = dict.fromkeys(scope for part in parts for scope in part.scopes)
    return _Part(tuple(scopes), parts[0].first, parts[-1].end)


SEARCHED = WAYS[0].settings


@dataclass(frozen=True)
class StagedNetwork:
    """Launch that is searched with stages. config: of all ranks in one stage, with the settings of the search. free:
    ignore the strategies and stages of the script."""

    captured: CapturedCall
    config: Config
    free: bool = False

    def traced(self, plan: StagePlan | None, stages: int, micro_batches: int = 0) -> TracedCall:
        """Return the network traced for `stages` stages. plan: None for the script's. Raise MspcError if it cannot be
        traced."""
        config = replace(self.config, ranks=self.config.ranks // stages, pipeline_stages=stages)
        config = config if plan is None else config.in_stages(plan)
        captured = self.captured
        try:
            return trace_call(captured.target, describe_call(captured.args, []), config, captured.global_types)
        except MspcError as error:
            if plan is not None and plan.micro_batches:
                count = plan.micro_batches
                error.notes += (f"with {count} micro-batches: a shape that states the rows of the batch must use -1",)
            raise

    @cached_property
    def loop(self) -> Node:
        """The loop over micro-batches, traced without stages. Raise MspcError if the network has none, is not trained,
        or has loops and branches that the search does not support."""
        graph = self.traced(StagePlan(2, "1f1b", 0, tries=True), 1).traced.graph
        loop = micro_batch_loop(graph)
        if loop is None or not any(node.phase == "update" for node in graph.nodes):
            raise MspcError(
                "stages are searched for networks that are trained in micro-batches, and there are none",
                notes=["wrap the network, before the training step: PipelineCell(network, micro_size)"],
                kind=RuntimeError,
            )
        refuse_regions(body_of(loop))
        return loop

    @cached_property
    def is_configured(self) -> bool:
        """Whether the script shards operators itself."""
        return any(node.in_strategy is not None for node in (*self.body.nodes, *layer_nodes(self.body)))

    @cached_property
    def micro_batches(self) -> int:
        """The script's number of micro-batches."""
        return self.loop.op.turns  # type: ignore[attr-defined]  # a Scan

    @cached_property
    def rows(self) -> int:
        """The rows of the batch, 0 if they are unknown."""
        scanned = [self.loop.inputs[i] for i in self.loop.op.scanned_operands]  # type: ignore[attr-defined]  # a Scan
        return scanned[0].tensor_type.shape[0] * scanned[0].tensor_type.shape[1] if scanned else 0

    @cached_property
    def body(self) -> Graph:
        """Graph of one micro-batch."""
        return body_of(self.loop)

    @cached_property
    def units(self) -> list[Unit]:
        """The units of the stages, in order."""
        return units_of(self.loop, self.free)

    @cached_property
    def is_folded(self) -> bool:
        """Whether equal layers share one graph."""
        return any(runs_layers(node) for node in self.body.nodes)

    def operators(self, one_by_one: bool, parts: int = 1) -> int:
        """Return the number of forward operators of a micro-batch in a program. one_by_one: equal layers are inlined.
        parts: number of chunks, each with its own graph of its layers."""
        nodes = [node for node in self.body.nodes if node.phase == "forward"]
        folded = [(node, len(node.regions[-1].nodes)) for node in nodes if runs_layers(node)]
        turns = sum((node.op.turns if one_by_one else min(node.op.turns, parts)) * count for node, count in folded)  # type: ignore[attr-defined]  # operators that run layers
        return len(nodes) + turns

    def compiled(
        self, stages: int, plan: StagePlan, schedule: str = "", layouts: PlanFile | None = None, tensor: int = 0
    ) -> Compiled:  # fmt: skip
        """Return the program of a plan for `stages` stages of the ranks in `config`; the plan may have more stages.
        schedule: overrides the plan's. layouts: of operators, None to search them. tensor: ranks that share a matmul in
        pairs of matmuls instead, 0 for none. Raise MspcError if it does not compile."""
        call = self.traced(plan, stages)
        graph = call.traced.graph
        if self.free or tensor:
            graph.clear_strategies()
        settings = {**SEARCHED, "search_mode": ""} if tensor else SEARCHED
        config = replace(call.config, **settings, pipeline_scheduler=schedule or call.config.pipeline_scheduler)
        if tensor:
            shard_in_pairs(graph, config.ranks, tensor)
        return compile_traced(TracedCall(config, call.traced, call.fed), plans=True, plan=layouts)


def plan_of(units: Sequence[Unit], way: Way, boundaries: Boundaries, tries: bool = True) -> StagePlan:
    """Return the plan of a way and its boundaries."""
    cells: dict[str, int] = {}
    for chunk, (first, end) in enumerate(zip((0, *boundaries), (*boundaries, len(units)), strict=True)):
        cells |= {name: chunk for unit in units[first:end] for name in unit.cells}
    return StagePlan(way.stages, way.scheduler, way.micro_batches, way.chunks, together(cells), tries)


def cuts_batch(captured: CapturedCall) -> bool:
    """Return whether a launched cell contains one that splits the batch into micro-batches."""
    target = captured.target
    cells = [cell for _, cell in target.cells_and_names()] if isinstance(target, Cell) else []
    return any(isinstance(cell, GradAccumulationCell) and cell.in_parts.cuts_batch for cell in cells)


def wrap_network(captured: CapturedCall) -> None:
    """Make the launched training step compute its loss in a PipelineCell. Raise MspcError if no training step was
    launched."""
    target: Any = captured.target
    while isinstance(target, Cell) and hasattr(target, "parallel_settings"):
        target = target.network
    if not isinstance(target, TrainOneStepCell):
        raise MspcError(
            "the script has no micro-batches, and it launches no training step that could be searched as if it "
            "had",
            notes=["wrap the network: PipelineCell(network, micro_size)"], kind=RuntimeError,
        )  # fmt: skip
    target.network = PipelineCell(target.network, 1)


@dataclass(frozen=True)
class AskedStages:
    """Requested numbers. stages: () for all divisors of the ranks with at least one unit and one micro-batch per stage.
    micro_batches: () for the script's. top: number of rows shown. mesh: of the ranks of one stage, such as "8x4"; ""
    for any."""

    stages: tuple[int, ...]
    micro_batches: tuple[int, ...] = ()
    top: int = 5
    mesh: str = ""

    def wants(self, stages: int, ranks: int) -> bool:
        """Return whether a number of stages is requested for a total number of ranks."""
        return (not self.stages or stages in self.stages) and self.fits(stages, ranks)

    def fits(self, stages: int, ranks: int) -> bool:
        """Return whether the mesh has as many ranks as one of `stages` stages."""
        return not self.mesh or stages * size_of_mesh(self.mesh) == ranks

    def numbers(self, network: StagedNetwork) -> tuple[list[int], list[int]]:
        """Return (numbers of stages, numbers of micro-batches) for a network. Raise MspcError if some are
        impossible."""
        ranks, units = network.config.ranks, len(network.units)
        counts = list(self.micro_batches or [network.micro_batches])
        rows = network.rows
        for count in self.micro_batches if rows else ():
            if rows % count:
                legal = [each for each in range(1, min(rows, 4 * max(counts)) + 1) if rows % each == 0]
                raise MspcError(
                    f"--micro-batches {count} does not divide the {rows} rows of the batch",
                    notes=[f"they can be cut into {listed(legal)}"], kind=ValueError,
                )  # fmt: skip
        if not self.stages:
            most = min(units, max(counts), ranks)
            found = [s for s in range(1, most + 1) if ranks % s == 0 and self.fits(s, ranks)]
            if not found:
                raise self.no_fit(ranks, f"up to {most}")
            return found, counts
        found = [stages for stages in self.stages if self.fits(stages, ranks)]
        if not found:
            raise self.no_fit(ranks, listed(self.stages))
        for stages in found:
            check_divides(stages, ranks)
            if stages > units:
                raise MspcError(
                    f"--stages {stages} is more than the network has units, which are {units}",
                    notes=[f"a stage has a cell at least; the first is {network.units[0].cells[0]}"], kind=ValueError,
                )  # fmt: skip
            if min(found) > max(counts):
                raise MspcError(
                    f"--stages {stages} is more than there are micro-batches, which are {max(counts)}",
                    notes=[f"such stages would never all work: give --micro-batches {stages} or more"], kind=ValueError,
                )  # fmt: skip
        return found, counts

    def no_fit(self, ranks: int, stages: str) -> MspcError:
        """Return the error that no number of stages has as many ranks per stage as the mesh."""
        size = size_of_mesh(self.mesh)
        whole, rest = divmod(ranks, size)
        legal = f"{ranks} ranks are {whole} stages of so many" if not rest else f"{size} does not divide {ranks} ranks"
        return MspcError(
            f"--mesh {self.mesh} is of the {size} ranks of one stage, and --stages is {stages} of {ranks} ranks",
            notes=[legal], kind=ValueError,
        )  # fmt: skip


def check_divides(stages: int, ranks: int) -> None:
    """Raise MspcError if the number of stages does not divide the number of ranks."""
    if ranks % stages:
        legal = listed([s for s in range(1, ranks + 1) if ranks % s == 0])
        raise MspcError(
            f"--stages {stages} does not divide {ranks} ranks: every stage has as many as the others",
            notes=[f"{ranks} ranks can be in {legal} stages"], kind=ValueError,
        )  # fmt: skip


def size_of_mesh(mesh: str) -> int:
    """Return the number of ranks of a mesh such as "8x4"."""
    return math.prod(map(int, mesh.split("x")))


def script_boundaries(network: StagedNetwork, stages: int) -> Boundaries | None:
    """Return the boundaries between chunks from the stages that the script sets for cells; None if it sets none. Raise
    MspcError if a unit has cells of several stages, or a stage has none."""
    loop = micro_batch_loop(network.traced(None, stages).traced.graph)
    assert loop is not None
    given: dict[str, int] = {}
    for node in body_of(loop).nodes:
        if node.phase == "forward" and STAGE in node.attrs:
            for scope in each_of_cells(scope_of_node(node)):
                given.setdefault(scope, int(node.attrs[STAGE]))
    if not given:
        return None
    found: list[int] = []
    for unit in network.units:
        own = {stage for scope, stage in given.items() for cell in unit.cells if f"{scope}/".startswith(f"{cell}/")}
        if len(own) > 1:
            raise MspcError(
                f"the cells of {unit.cells[0]} are of stages {', '.join(map(str, sorted(own)))}, and between them many "
                "values pass", notes=["--free searches without the stages of the script"],
            )  # fmt: skip
        found.append(own.pop() if own else found[-1] if found else 0)
    edges = [i for i in range(1, len(found)) if found[i] != found[i - 1]]
    runs = [found[i] for i in (0, *edges)]
    if runs != [chunk % stages for chunk in range(len(runs))] or len(runs) % stages:
        raise MspcError(
            f"cells in a row are of stages {', '.join(map(str, runs))}, which the search does not keep for {stages}",
            notes=["it keeps stages in a row, and rounds of them; --free searches without the script's"],
            kind=ValueError,
        )  # fmt: skip
    return tuple(edges)


def script_ways(
    stages: int, micro_batches: int, boundaries: Boundaries, tensor: int = 0, slices: bool = False,
    recompute: bool = False, states: bool = False,
) -> list[Way]:  # fmt: skip
    """Return the ways to run the script's chunks: interleaved if a stage has several."""
    chunks = len(boundaries) + 1
    if chunks == stages:
        found = [Way(stages, name, micro_batches, 1, tensor, slices, recompute, states) for name in ONE_CHUNK]
        return [way for way in found if not (recompute and way.splits_gradients)]
    return [Way(stages, IN_ROUNDS, micro_batches, chunks // stages, tensor, slices, recompute, states)]
