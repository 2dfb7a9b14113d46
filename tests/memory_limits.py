"""Limits of memory in `mspc search` beside the plans there are.

Operators of small random networks are cut in several ways, which are compiled for their peak of memory and their time;
then the search is asked for plans within limits between the smallest peak and the largest. A limit that is refused
though a compiled plan keeps it is a false refusal; a plan that takes longer than a compiled one within the limit is
slower than it need be.
"""

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

from mspc import Parameter, nn, ops
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.common.initializer import initializer
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import DumpPoint, compile_traced, trace_call
from mspc.engine.capture import CapturedCall
from mspc.mindspore_api.context import freeze
from mspc.passes.lib.choices import ShardingChoice
from mspc.passes.sharding.propagate_sharding import begun
from mspc.plans.operator_names import CONFIGURED
from mspc.runtime.memory_plan import plan_memory
from mspc.search.calibration.machine_file import machine_of
from mspc.search.layouts.cheapest import mesh_of
from mspc.search.model.model import CostModel
from mspc.search.plans.alternatives import WAYS, PlanRequest
from mspc.search.plans.row import SEARCH, PlanResult
from mspc.search.plans.table import plans_for
from tests.graphs import FLOAT32, Graph, MspcError, TensorType

RANKS = (2, 4, 4, 8)
SIZES = (256, 1024, 2048, 8192)
SHARES = (0.0, 0.1, 0.5)
"""Where limits lie between the smallest peak and the largest."""
SLOWER = 1.001
"""How many times the time of the quickest is still as quick."""


class Drawn(nn.Cell):
    """One to four operators on a matrix, with parameters between them; `shape` is what it takes."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.shape = (rng.choice(SIZES), rng.choice(SIZES))
        rows, width = self.shape
        self.steps: list[tuple[str, Any, int]] = []
        for i in range(rng.randint(2, 4)):
            kind = rng.choice(["MatMul", "MatMul", "ReduceSum", "Mul", "ReLU", "Softmax", "Transpose", "Add", "Norm"])
            made: Any = None
            if kind == "MatMul":
                wider = rng.choice(SIZES)
                setattr(self, f"weight{i}", Parameter(initializer("normal", [width, wider])))
                width = wider
            elif kind == "Mul":
                setattr(self, f"weight{i}", Parameter(initializer("normal", [rng.choice([1, rows]), width])))
            elif kind == "ReduceSum":
                made = rng.choice([0, 1])
                rows, width = (1, width) if made == 0 else (rows, 1)
            elif kind == "Transpose":
                rows, width = width, rows
            elif kind == "Norm":
                made = nn.LayerNorm((width,))
                setattr(self, f"norm{i}", made)
            self.steps.append((kind, made, i))

    def construct(self, x: Any) -> Any:
        before = x
        for kind, made, i in self.steps:
            after = x
            if kind == "MatMul":
                x = ops.matmul(x, getattr(self, f"weight{i}"))
            elif kind == "Mul":
                x = x * getattr(self, f"weight{i}")
            elif kind == "ReduceSum":
                x = ops.ReduceSum(keep_dims=True)(x, made)
            elif kind == "Transpose":
                x = ops.transpose(x, (1, 0))
            elif kind == "Norm":
                x = made(x)
            elif kind == "Add" and before.shape == x.shape:
                x = x + before
            elif kind == "Softmax":
                x = ops.softmax(x, -1)
            else:
                x = ops.relu(x)
            before = after
        return x


class Mean(nn.Cell):
    """The mean of what a network computes, to train it."""

    def __init__(self, network: Drawn) -> None:
        super().__init__()
        self.network = network

    def construct(self, x: Any) -> Any:
        return ops.reduce_mean(self.network(x))


@dataclass(frozen=True)
class Case:
    """One network as `mspc search` has it."""

    seed: int
    captured: CapturedCall
    asked: PlanRequest

    @property
    def config(self) -> Config:
        return self.asked.config(self.captured)


def case_of(seed: int) -> Case:
    """The network of a seed: called forward, or trained."""
    rng = random.Random(seed)
    network = Drawn(rng)
    shape = network.shape
    target: nn.Cell = network
    if rng.random() < 0.5 and network.trainable_params():
        optimizer = rng.choice([nn.Momentum, nn.Adam, nn.SGD])
        keywords = {"momentum": 0.9} if optimizer is nn.Momentum else {}
        target = nn.TrainOneStepCell(Mean(network), optimizer(network.trainable_params(), 0.1, **keywords))
    captured = CapturedCall(target, (TensorType(FLOAT32, shape),), freeze(target), Path("drawn.py"), global_types=True)
    return Case(seed, captured, PlanRequest(rng.choice(RANKS), machine_of("")))


@dataclass(frozen=True)
class Known:
    """One plan that was compiled: its peak of memory, and seconds of its step."""

    memory: int
    step: float


class _Read(Exception):  # it ends a compile that has told enough
    pass


def known_plans(case: Case, count: int) -> list[Known]:
    """Plans of a case, compiled: all ways to cut its operators on the search's mesh, or so many that are drawn."""
    ways: list[list[ShardingChoice]] = []

    def read(stage: DumpPoint) -> None:
        if stage.name == CONFIGURED:
            search, _ = begun(stage.graph)
            model = CostModel(search, mesh_of(search))
            ways.extend(list(model.variables[model.of[node]].choices) for node in model.nodes)
            raise _Read

    try:
        _compiled(case, read)
    except _Read:
        pass
    found = [_known(case, plan) for plan in islice(_drawn(ways, count, case.seed), count)]
    return [each for each in found if each is not None]


def _drawn(ways: Sequence[Sequence[ShardingChoice]], count: int, seed: int) -> Iterator[tuple[ShardingChoice, ...]]:
    if math.prod(map(len, ways)) <= count:
        yield from product(*ways)
        return
    rng = random.Random(seed)
    while True:
        yield tuple(rng.choice(own) for own in ways)


def _known(case: Case, plan: Sequence[ShardingChoice]) -> Known | None:
    """A plan as it is compiled; None where it takes partial sums that nothing makes."""

    def cut(stage: DumpPoint) -> None:
        if stage.name == CONFIGURED:
            search, _ = begun(stage.graph)
            nodes = CostModel(search, mesh_of(search)).nodes
            _cut(stage.graph, dict(zip(nodes, plan, strict=True)))

    try:
        compiled = _compiled(case, cut)
    except _Illegal:
        return None
    graph = compiled.rank_graph(0)
    return Known(plan_memory(graph).peak, StreamTimeline(graph, case.asked.machine).total)


class _Illegal(Exception):
    pass


def _cut(graph: Graph, plan: dict[Any, ShardingChoice]) -> None:
    for node, choice in plan.items():
        if node.in_layouts is None:
            node.in_layouts, node.layout = choice.inputs, choice.layout(node.type)
            node.attrs["strategy_from"] = "plan"
    for node in plan:
        for value, layout in zip(node.inputs, node.in_layouts, strict=True):
            if layout.partial and (value not in plan or value.layout != layout):
                raise _Illegal


def _compiled(case: Case, look: Any) -> Any:
    config = replace(case.config, mode="auto_parallel", search_mode="")
    call = trace_call(case.captured.target, describe_call(case.captured.args, []), config, case.captured.global_types)
    return compile_traced(call, look)


@dataclass
class Found:
    """The results of limits. lines: of those that went wrong."""

    limits: int = 0
    refused: int = 0
    slower: int = 0
    worst: float = 0.0
    plans: int = 0
    seconds: float = 0.0


def hold(case: Case, known: Sequence[Known], found: Found, shares: Sequence[float] = SHARES) -> Iterator[str]:
    """Ask the search for plans within limits; lines of what goes wrong."""
    least, most = min(each.memory for each in known), max(each.memory for each in known)
    found.plans += len(known)
    for limit in dict.fromkeys(math.ceil(least + share * (most - least)) for share in shares):
        found.limits += 1
        best = min((each for each in known if each.memory <= limit), key=lambda each: each.step)
        begin = time.process_time()
        plan = searched(case, limit)
        found.seconds += time.process_time() - begin
        if isinstance(plan, str):
            found.refused += 1
            yield f"seed {case.seed}, {limit} bytes: refused, and {best.memory} is possible: {plan}"
            continue
        assert plan.memory <= limit, f"seed {case.seed}: {plan.memory} bytes within {limit}"
        if plan.step > best.step * SLOWER:
            found.slower += 1
            found.worst = max(found.worst, plan.step / best.step - 1)
            yield f"seed {case.seed}, {limit} bytes: {plan.step * 1e6:.1f} us for {best.step * 1e6:.1f}"


def searched(case: Case, limit: int) -> PlanResult | str:
    """The search's plan within a limit, or why there is none."""
    try:
        plans = plans_for(case.captured, replace(case.asked, memory=limit), ways=WAYS).plans
    except MspcError as error:
        return error.message
    return next(plan for plan in plans if plan.name == SEARCH)
