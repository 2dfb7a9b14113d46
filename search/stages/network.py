"""Compiles one network in stages as a search wants it, with the layouts that the search for these ranks finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, TracedCall, compile_traced, trace_call
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.regions import body_of, runs_layers
from mspc.passes.lib.stage_placement import micro_batch_loop
from mspc.plans.files.plan_file import PlanFile
from mspc.plans.files.stage_table import StagePlan, together
from mspc.plans.operator_names import layer_nodes
from mspc.search.plans.alternatives import WAYS
from mspc.search.plans.megatron import shard_in_pairs
from mspc.search.plans.regions import refuse_regions
from mspc.search.stages.problem import Borders, Way
from mspc.search.stages.units import Unit, units_of

SEARCHED = WAYS[0].settings


@dataclass(frozen=True)
class StagedNetwork:
    """A launch that is searched in stages. config: of all ranks in one stage, with what the search reckons with. free:
    leave out the strategies and the stages of the script."""

    captured: CapturedCall
    config: Config
    free: bool = False

    def traced(self, plan: StagePlan | None, stages: int, micro_batches: int = 0) -> TracedCall:
        """The network read for so many stages. plan: None for the script's own. Raises MspcError."""
        config = replace(self.config, ranks=self.config.ranks // stages, pipeline_stages=stages)
        config = config if plan is None else config.in_stages(plan)
        captured = self.captured
        return trace_call(captured.target, describe_call(captured.args, []), config, captured.global_types)

    @cached_property
    def loop(self) -> Node:
        """The loop over micro-batches, read without stages. Raises MspcError where the network has none, is not
        trained, or has loops and branches that the search does not weigh."""
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
        """Whether the script has sharded operators itself."""
        return any(node.in_strategy is not None for node in (*self.body.nodes, *layer_nodes(self.body)))

    @cached_property
    def micro_batches(self) -> int:
        """How many the script cuts."""
        return self.loop.op.turns  # type: ignore[attr-defined]  # a Scan

    @cached_property
    def rows(self) -> int:
        """The rows of the batch, 0 where they are not known."""
        scanned = [self.loop.inputs[i] for i in self.loop.op.scanned_operands]  # type: ignore[attr-defined]  # a Scan
        return scanned[0].tensor_type.shape[0] * scanned[0].tensor_type.shape[1] if scanned else 0

    @cached_property
    def body(self) -> Graph:
        """The graph of one micro-batch."""
        return body_of(self.loop)

    @cached_property
    def units(self) -> list[Unit]:
        """What stages are made of, in order."""
        return units_of(self.loop, self.free)

    @cached_property
    def is_folded(self) -> bool:
        """Whether equal layers are one graph."""
        return any(runs_layers(node) for node in self.body.nodes)

    def operators(self, one_by_one: bool, parts: int = 1) -> int:
        """Forward operators of a micro-batch in a program. one_by_one: equal layers are no one graph. parts: of which
        each has a graph of its layers."""
        nodes = [node for node in self.body.nodes if node.phase == "forward"]
        folded = [(node, len(node.regions[-1].nodes)) for node in nodes if runs_layers(node)]
        turns = sum((node.op.turns if one_by_one else min(node.op.turns, parts)) * count for node, count in folded)  # type: ignore[attr-defined]  # operators that run layers
        return len(nodes) + turns

    def compiled(
        self, stages: int, plan: StagePlan, schedule: str = "", layouts: PlanFile | None = None, tensor: int = 0
    ) -> Compiled:  # fmt: skip
        """The program by a plan for so many stages of `config.ranks`, which it may have more of. schedule: in place of
        the plan's, for the graphs that it makes. layouts: of operators, None for what the search finds. tensor: ranks
        that share a product in pairs of products instead, 0 for none. Raises MspcError."""
        call = self.traced(plan, stages)
        graph = call.traced.graph
        if self.free or tensor:
            for each in graph.graphs():
                for node in each.nodes:
                    node.in_strategy = node.out_strategy = None
        settings = {**SEARCHED, "search_mode": ""} if tensor else SEARCHED
        config = replace(call.config, **settings, pipeline_scheduler=schedule or call.config.pipeline_scheduler)
        if tensor:
            shard_in_pairs(graph, config.ranks, tensor)
        return compile_traced(TracedCall(config, call.traced, call.fed), plans=True, plan=layouts)


def plan_of(units: Sequence[Unit], way: Way, borders: Borders, tries: bool = True) -> StagePlan:
    """What a plan says of a way and its borders."""
    cells: dict[str, int] = {}
    for chunk, (first, end) in enumerate(zip((0, *borders), (*borders, len(units)), strict=True)):
        cells |= {name: chunk for unit in units[first:end] for name in unit.cells}
    return StagePlan(way.stages, way.scheduler, way.micro_batches, way.chunks, together(cells), tries)
