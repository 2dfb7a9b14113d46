"""Lists the ways to shard a network that a search's table compares, and makes their programs from one traced graph."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from mspc.analysis.cost.machine import Machine
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, Decide, OnStage, TracedCall, compile_traced, trace_call
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ops.op import Op
from mspc.output.programs import config_of
from mspc.passes.autodiff.recompute_cells import ASKED as RECOMPUTE_CELLS
from mspc.passes.lib.choices import rule_of
from mspc.plans.operator_names import layer_nodes
from mspc.search.plans.machine_terms import terms_for
from mspc.search.plans.megatron import shard_in_pairs, tensor_sizes
from mspc.search.plans.regions import are_weighed, refuse_regions
from mspc.search.plans.row import DATA_PARALLEL, SEARCH

MEGATRON = "Megatron-style"
FOLDED = 16
"""Ranks up to which equal layers are decided on together: programs with loops have more kinds of ranks, of which each
is compiled by itself, so that for many ranks that takes longer than inlined layers do."""
AUTOMATIC, SEMI = {"mode": "auto_parallel"}, {"mode": "semi_auto_parallel"}


@dataclass(frozen=True)
class Alternative:
    """One way to shard a network. settings: what is otherwise in `Config`. free: without the strategies of the script.
    tensor: ranks that share a product in pairs of products, 0 for none. replicated: nothing is sharded. again:
    cells are computed again for gradients."""

    name: str
    settings: dict[str, Any]
    free: bool = False
    tensor: int = 0
    replicated: bool = False
    again: bool = False


WAYS = (
    Alternative(SEARCH, {**AUTOMATIC, "search_mode": "dynamic_programming"}),
    Alternative("sharding propagation", {**AUTOMATIC, "search_mode": ""}),
    Alternative(DATA_PARALLEL, {**SEMI, "parallel_optimizer": False}, free=True),
    Alternative("optimizer parallel", {**SEMI, "parallel_optimizer": True}, free=True),
)
CONFIGURED = Alternative("as configured", {})
REPLICATED = Alternative("replicated", SEMI, free=True, replicated=True)


@dataclass(frozen=True)
class PlanRequest:
    """What plans are wanted for. ranks: how many there are. machine: times are estimated for it. device: what programs
    are made for, "" for the script's. free: leave out the strategies of the script. memory: bytes that a rank has, 0
    for any. mesh: that the search shards for, as "8x4"; "" for any. seconds: for one search, 0 for any number."""

    ranks: int
    machine: Machine
    device: str = ""
    free: bool = False
    memory: int = 0
    mesh: str = ""
    seconds: float = 0

    def config(self, captured: CapturedCall) -> Config:
        """How a launch is compiled in every way. Raises MspcError for one of several stages."""
        own = config_of(captured, self.ranks)
        if own.pipeline_stages > 1:
            raise MspcError(
                f"the network has {own.pipeline_stages} stages, and layouts are explained for networks of one stage",
                own.place_of("pipeline_stages"),
                ["ask without pipeline_stages, for the ranks of one stage"],
            )  # fmt: skip
        base = own if own.mode != "stand_alone" else replace(own, dataset_strategy="full_batch")
        rates = terms_for(self.machine.under(base.header()))
        terms = replace(rates, mesh=self.mesh, milliseconds=math.ceil(self.seconds * 1000))
        return replace(base, search_terms=terms, device=self.device or own.device)


@dataclass(frozen=True)
class PlannedNetwork:
    """What plans are made of: a launch, how it is compiled in every way, and its graph, which is read once. free: all
    ways leave out the strategies of the script."""

    captured: CapturedCall
    config: Config
    call: TracedCall
    free: bool = False

    @classmethod
    def read(
        cls, captured: CapturedCall, config: Config, free: bool = False, limited: bool = False
    ) -> PlannedNetwork:
        """Read a launch; `config` is of any way. limited: memory counts, for which layers are looked at one by one.
        Raises MspcError."""
        settings, arguments = replace(config, **WAYS[0].settings), describe_call(captured.args, [])
        # Optimizer parallelism gathers weights of layers that are one graph another way than their plan says yet.
        one_by_one = limited or config.ranks > FOLDED or config.parallel_optimizer
        call = trace_call(captured.target, arguments, settings, captured.global_types, unrolled=one_by_one)
        if not are_weighed(call.traced.graph):
            call = trace_call(captured.target, arguments, settings, captured.global_types, unrolled=True)
        refuse_regions(call.traced.graph)
        return cls(captured, config, call, free)

    @classmethod
    def read_folded(cls, captured: CapturedCall, config: Config, free: bool) -> PlannedNetwork | None:
        """The same with equal layers as one graph, whatever plans say of them; None where there are none. Raises
        MspcError."""
        settings, arguments = replace(config, **WAYS[0].settings), describe_call(captured.args, [])
        call = trace_call(captured.target, arguments, settings, captured.global_types)
        graph = call.traced.graph
        if not any(node.regions for node in graph.nodes) or not are_weighed(graph):
            return None
        return cls(captured, config, call, free)

    def compiled(
        self, way: Alternative, config: Config | None = None, on_stage: OnStage | None = None,
        decide: Decide | None = None,
    ) -> Compiled:  # fmt: skip
        """The program that a way makes. config: in place of the network's. decide: see `compile_traced`. Raises
        MspcError."""
        config = replace(config or self.config, **way.settings)
        is_free = self.free or way.free
        call = self.call.again(replace(config, strategies_from="") if is_free else config)
        graph = call.traced.graph
        if way.again:
            graph.attrs[RECOMPUTE_CELLS] = True
        if is_free:
            for each in graph.graphs():
                for node in each.nodes:
                    node.in_strategy = node.out_strategy = None
        if way.replicated:
            _replicate(graph)
        if way.tensor:
            shard_in_pairs(graph, config.ranks, way.tensor)
        return compile_traced(call, on_stage, decide=decide, plans=True)


def all_ways(captured: CapturedCall, asked: PlanRequest) -> Iterator[Alternative]:
    """All ways of a launch, the search first."""
    yield from WAYS
    for size in tensor_sizes(asked.ranks, asked.machine.ranks_per_host):
        settings = {**AUTOMATIC, "search_mode": ""}
        yield Alternative(f"{MEGATRON}, {asked.ranks // size} x {size}", settings, free=True, tensor=size)
    if config_of(captured, asked.ranks).sharded and not asked.free:
        yield CONFIGURED


def _replicate(graph: Graph) -> None:
    """Give the operators of a graph, read but not compiled yet, strategies that shard nothing: for small networks the
    quickest, since nothing is sent."""
    for node in (*graph.nodes, *layer_nodes(graph)):
        rule = rule_of(node)
        if rule is not None:
            dims = cast(Op, node.op).strategy_dims(rule)
            node.in_strategy = tuple(tuple(1 for _ in dim) for dim in dims)
