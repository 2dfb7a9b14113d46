"""Ways to shard a network that a search's table compares, and their programs, made from one traced graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from mspc.analysis.cost.machine import PRODUCTS, Machine
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, Decide, OnStage, TracedCall, compile_traced, trace_call
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.families import are_cells
from mspc.ir.types import FLOAT16, FLOAT32
from mspc.ops.control.regions import For, Loop, MakeStack, Scan, runs_known_times, runs_layers, runs_micro_batches
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.op import Op
from mspc.output.programs import config_of
from mspc.passes.autodiff.recompute_cells import ASKED as RECOMPUTE_CELLS
from mspc.passes.lib.choices import OPERATIONS, Terms, rule_of
from mspc.plans.operator_names import layer_nodes
from mspc.search.plans.degrees import WeightValues
from mspc.search.plans.row import DATA_PARALLEL, SEARCH


def folded_layer_count(graph: Graph) -> int:
    """Return the number of layers that share one graph, and so one decision."""
    loops = [node.op for node in graph.nodes if node.phase == "forward" and runs_layers(node)]
    return sum(op.turns for op in loops if isinstance(op, For | Scan))


def has_only_layer_loops(graph: Graph) -> bool:
    """Return whether all nodes with regions are loops over layers, with one name per operator for all iterations."""
    for node in graph.nodes:
        if node.regions and not runs_layers(node):
            return False
        for inner in node.regions[-1].nodes if node.regions else ():
            is_named = are_cells(inner.scope.removeprefix(node.scope))
            if inner.regions or (inner.phase == "forward" and rule_of(inner) is not None and not is_named):
                return False
    return True


def refuse_regions(graph: Graph) -> None:
    """Raise MspcError at the line of a branch, or of a loop whose iterations only a run counts."""
    for node in graph.nodes:
        if node.regions and not runs_known_times(node):
            raise node.error(
                f"{node.label}: the search does not weigh values that only a run knows: iteration counts and "
                "branches",
                notes=["compile it with strategies, or let propagation choose them: mspc compile --ranks N"],
            )


LARGE = 1 << 24
"""Bytes at which a machine's bandwidth is read for the search, which uses one bandwidth."""
MANY = 1e12
"""Operations at which a machine's rate of matmuls is read."""


def terms_for(machine: Machine) -> Terms:
    """Return the rates of a machine for a search, relative to a byte sent within a host."""
    bandwidth = machine.link.bandwidth.at(LARGE)
    network = machine.network if machine.ranks_per_host else None
    return Terms(
        latency=int(machine.link.latency * bandwidth),
        touch=int(1000 * bandwidth / machine.memory.at(LARGE)),
        compute=int(bandwidth * machine.work_seconds(PRODUCTS, FLOAT32, MANY) * OPERATIONS / MANY),
        compute_half=int(bandwidth * machine.work_seconds(PRODUCTS, FLOAT16, MANY) * OPERATIONS / MANY),
        hosts=machine.ranks_per_host,
        network=0 if network is None else int(1000 * bandwidth / (network.bandwidth.at(LARGE) * machine.card_share)),
    )


# Pairs of matmuls: the first weight is sharded by columns, the second by rows, so that one sum over ranks follows the
# pair (Shoeybi et al., "Megatron-LM", 2019); the remaining ranks share the batch.


MAX_TENSOR_RANKS = 8
"""Maximum number of ranks that share a matmul if the size of hosts is unknown."""


def tensor_sizes(ranks: int, per_host: int) -> list[int]:
    """Return the possible numbers of ranks that share a matmul: powers of two that divide `ranks`, within a host."""
    most = min(ranks, per_host or MAX_TENSOR_RANKS)
    return [size for size in (2, 4, 8, 16) if size <= most and ranks % size == 0]


def shard_in_pairs(graph: Graph, ranks: int, tensor: int) -> None:
    """Shard the matmuls of a traced graph in pairs, by columns and then by rows, each over `tensor` ranks. Raise
    MspcError if no matmul follows another, a dimension is not divisible, or a weight would be sharded both by rows and
    by columns."""
    pairs = _Pairs(ranks // tensor, tensor)
    pairs.shard(graph, {})
    if not pairs.count:
        raise MspcError("no product of a weight follows on another")


class _Pairs:
    """Sharding of pairs of matmuls. data, tensor: ranks that share the rows, and the columns or the contracted
    dimension. count: number of pairs found. opened: results of first matmuls, and values computed from them."""

    def __init__(self, data: int, tensor: int) -> None:
        self.data, self.tensor = data, tensor
        self.opened: set[Value] = set()
        self.weights = WeightValues()
        self.by_rows: dict[Value, bool] = {}
        self.count = 0

    def shard(self, graph: Graph, outside: Mapping[Value, Value]) -> None:
        """Shard the matmuls of a graph and of equal layers in it. outside: the arguments of region parameters. Raise
        MspcError if that is not possible."""
        for node in graph.nodes:
            self.weights.add([node], outside)
            comes_open = any(outside.get(value, value) in self.opened for value in node.inputs)
            if runs_layers(node) or runs_micro_batches(node):
                self.shard(node.regions[-1], {**outside, **_region_arguments(node, outside)})
            weight = self._weight(node, outside)
            if weight is None:
                if comes_open:
                    self.opened.add(node)
                continue
            self.count += comes_open
            if self.by_rows.setdefault(weight, comes_open) != comes_open:
                raise MspcError(f"pairs shard {weight.name} by columns for one product and by rows for another")
            _shard(node, self.data, self.tensor, by_rows=comes_open)
            if not comes_open:
                self.opened.add(node)

    def _weight(self, node: Node, outside: Mapping[Value, Value]) -> Parameter | None:
        """Return the trained weight of a matmul; None for other nodes and for matmuls of activations."""
        if not isinstance(node.op, MatMul | BatchMatMul) or len(node.inputs) != 2:
            return None
        x, matrix = node.inputs
        weight = self.weights.of(matrix, outside)
        if weight is None or not weight.trainable or len(matrix.tensor_type.shape) != 2:
            return None
        return weight if self.weights.of(x, outside) is None else None


def _region_arguments(node: Node, outside: Mapping[Value, Value]) -> dict[Value, Value]:
    """Return the arguments of the parameters of a layer or a micro-batch; for a stack of weights, its first entry.
    outside: the same for the enclosing graph."""
    op, body = node.op, node.regions[-1]
    assert isinstance(op, Loop)
    found: dict[Value, Value] = {}
    for number, value in enumerate(node.inputs):
        place = op.inside(0, number)
        if place is not None:
            is_stack = isinstance(value, Node) and isinstance(value.op, MakeStack)
            found[body.parameters[place]] = value.inputs[0] if is_stack else outside.get(value, value)
    return found


def _shard(node: Node, data: int, tensor: int, by_rows: bool) -> None:
    """Set the strategy of one matmul. Raise MspcError if a dimension is not divisible by its number of shards."""
    op, (x, weight) = node.op, node.inputs
    assert isinstance(op, MatMul | BatchMatMul)
    shape = x.tensor_type.shape
    left, right = [1] * len(shape), [1, 1]
    rows, inner = (len(shape) - 1, len(shape) - 2) if op.transpose_a else (0, len(shape) - 1)
    left[rows] = data
    if by_rows:
        left[inner] = tensor
        right[1 if op.transpose_b else 0] = tensor
    else:
        right[0 if op.transpose_b else 1] = tensor
    for value, shards in ((x, left), (weight, right)):
        for size, count in zip(value.tensor_type.shape, shards, strict=True):
            if size % count:
                raise MspcError(f"{node.label} has a dimension of {size}, which {count} ranks cannot share")
    node.in_strategy = (tuple(left), tuple(right))


MEGATRON = "Megatron-style"
FOLDED = 16
"""Maximum number of ranks for which equal layers are decided together. Programs with loops have more kinds of ranks,
each compiled by itself, so that for more ranks inlined layers compile faster."""
AUTOMATIC, SEMI = {"mode": "auto_parallel"}, {"mode": "semi_auto_parallel"}


@dataclass(frozen=True)
class Alternative:
    """One way to shard a network. settings: changed settings of `Config`. free: ignore the strategies of the script.
    tensor: ranks that share a matmul in pairs of matmuls, 0 for none. replicated: shard nothing. recompute: recompute
    cells for gradients."""

    name: str
    settings: dict[str, Any]
    free: bool = False
    tensor: int = 0
    replicated: bool = False
    recompute: bool = False


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
    """Request for plans. ranks: number of ranks. machine: for time estimates. device: target of the programs, "" for
    the script's. free: ignore the strategies of the script. memory: bytes per rank, 0 for no limit. mesh: of the
    search, such as "8x4"; "" for any. seconds: time limit of one search, 0 for none."""

    ranks: int
    machine: Machine
    device: str = ""
    free: bool = False
    memory: int = 0
    mesh: str = ""
    seconds: float = 0

    def config(self, captured: CapturedCall) -> Config:
        """Return the configuration of a launch that all ways share. Raise MspcError if it has several stages."""
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
    """Source of plans: a launch, the configuration of all ways, and its graph, traced once. free: all ways ignore the
    strategies of the script."""

    captured: CapturedCall
    config: Config
    call: TracedCall
    free: bool = False

    @classmethod
    def read(cls, captured: CapturedCall, config: Config, free: bool = False, limited: bool = False) -> PlannedNetwork:
        """Trace a launch. config: shared by all ways. limited: memory is limited, so that layers are decided
        separately. Raise MspcError if it cannot be traced."""
        settings, arguments = replace(config, **WAYS[0].settings), describe_call(captured.args, [])
        # Plans do not describe how optimizer parallelism gathers the weights of folded layers.
        one_by_one = limited or config.ranks > FOLDED or config.parallel_optimizer
        call = trace_call(captured.target, arguments, settings, captured.global_types, unrolled=one_by_one)
        if not has_only_layer_loops(call.traced.graph):
            call = trace_call(captured.target, arguments, settings, captured.global_types, unrolled=True)
        refuse_regions(call.traced.graph)
        return cls(captured, config, call, free)

    @classmethod
    def read_folded(cls, captured: CapturedCall, config: Config, free: bool) -> PlannedNetwork | None:
        """Trace a launch with equal layers folded into one graph, even if their plans differ; None if no layers are
        equal. Raise MspcError if it cannot be traced."""
        settings, arguments = replace(config, **WAYS[0].settings), describe_call(captured.args, [])
        call = trace_call(captured.target, arguments, settings, captured.global_types)
        graph = call.traced.graph
        if not any(node.regions for node in graph.nodes) or not has_only_layer_loops(graph):
            return None
        return cls(captured, config, call, free)

    def compiled(
        self, way: Alternative, config: Config | None = None, on_stage: OnStage | None = None,
        decide: Decide | None = None,
    ) -> Compiled:  # fmt: skip
        """Return the program of a way. config: overrides the network's. decide: see `compile_traced`. Raise MspcError
        if it does not compile."""
        config = replace(config or self.config, **way.settings)
        is_free = self.free or way.free
        call = self.call.again(replace(config, strategies_from="") if is_free else config)
        graph = call.traced.graph
        if way.recompute:
            graph.attrs[RECOMPUTE_CELLS] = True
        if is_free:
            graph.clear_strategies()
        if way.replicated:  # small networks run fastest this way, because nothing is sent
            for node in (*graph.nodes, *layer_nodes(graph)):
                if (rule := rule_of(node)) is not None:
                    node.in_strategy = tuple((1,) * len(dim) for dim in cast(Op, node.op).strategy_dims(rule))
        if way.tensor:
            shard_in_pairs(graph, config.ranks, way.tensor)
        return compile_traced(call, on_stage, decide=decide, plans=True)


def all_ways(captured: CapturedCall, asked: PlanRequest) -> Iterator[Alternative]:
    """Yield all ways to shard a launch, the search first."""
    yield from WAYS
    for size in tensor_sizes(asked.ranks, asked.machine.ranks_per_host):
        settings = {**AUTOMATIC, "search_mode": ""}
        yield Alternative(f"{MEGATRON}, {asked.ranks // size} x {size}", settings, free=True, tensor=size)
    if config_of(captured, asked.ranks).sharded and not asked.free:
        yield CONFIGURED
