"""The planned memory of a stage does not grow with micro-batches where the schedule bounds those alive, and its compile
stays one graph of each kind."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import mspc
from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ir.graph import MICRO_BATCH, WORK, Graph
from mspc.mindspore_api import context
from mspc.ops.collective.point_to_point import ReceiveFromStage
from mspc.ops.control.regions import Call, Scan
from mspc.passes.lib.schedules import Action, named_schedule
from mspc.runtime.memory_plan import peak_of

STAGES, ROWS, WIDTH, LAYERS = 4, 64, 64, 8
ACTIVATION = WEIGHT = 4 * ROWS * WIDTH
"""Bytes; as many rows as columns make them equal."""


class Layer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((WIDTH, WIDTH), np.float32)), name="weight")
        self.norm = nn.LayerNorm((WIDTH,))

    def construct(self, x: Tensor) -> Tensor:
        return x + ops.tanh(ops.matmul(self.norm(x), self.weight))


class Net(nn.Cell):
    def __init__(self, layer: type[Layer]) -> None:
        super().__init__()
        cells = [layer() for _ in range(LAYERS)]
        cells[0].pipeline_stage = 0
        for i, cell in enumerate(cells[1:], 1):
            cell.pipeline_stage = i * STAGES // LAYERS
        self.layers = nn.CellList(cells)

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return ((x - y) ** 2).mean()


class Deep(Layer):
    """A layer that keeps more, and has more parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Layer()

    def construct(self, x: Tensor) -> Tensor:
        return super().construct(self.inner(x))


class Folded(Layer):
    """A layer of which equal ones become one graph."""

    @mspc.lazy_inline
    def __init__(self) -> None:
        super().__init__()


@cache
def graphs(schedule: str, parts: int, layer: type[Layer] = Layer, behind: str = "execute") -> list[Graph]:
    """The graphs of the stages' ranks for so many micro-batches of ROWS rows, behind a pass."""
    settings = {"pipeline_stages": STAGES, "pipeline_config": {"pipeline_scheduler": schedule}}
    mspc.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True, **settings)
    try:
        cell = nn.PipelineCell(Net(layer), parts)
        step = nn.TrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.1, 0.9))
        batch = Tensor(np.ones((ROWS * parts, WIDTH), np.float32))
        compiled = compile_call(step, (batch, batch), Config.from_context(context.freeze(step), STAGES))
        found: list[Graph] = []
        for rank in range(STAGES):
            compiled.rank_graph(rank, lambda stage: found.append(stage.graph), (behind,))
        return found
    finally:
        mspc.reset_auto_parallel_context()


def planned(graph: Graph) -> int:
    """Bytes at the peak beside parameters and the batch."""
    return peak_of(graph) - sum(parameter.type.nbytes for parameter in graph.parameters)


@pytest.mark.parametrize("stage", range(STAGES))
def test_as_many_micro_batches_are_held_as_the_schedule_has_alive(stage: int) -> None:
    """With more micro-batches than stages the sums of the gradients, which begin with the first of them, are held
    beside as many others; more than that is not."""
    few, some, many = (planned(graphs("1f1b", parts)[stage]) for parts in (STAGES, 2 * STAGES, 4 * STAGES))
    stacks = (256 + 4) * 4 * STAGES  # the losses, each in a place of its own, and their stack
    assert many <= some + stacks
    assert many <= few + LAYERS // STAGES * WEIGHT + 2 * ACTIVATION + stacks


def test_gpipe_holds_all() -> None:
    few, many = (planned(graphs("gpipe", parts)[1]) for parts in (STAGES, 4 * STAGES))
    assert many - few >= 3 * STAGES * 2 * LAYERS // STAGES * ACTIVATION


def test_a_stage_has_one_graph_of_each_kind() -> None:
    for parts in (STAGES, 4 * STAGES):
        for graph in graphs("1f1b", parts):
            calls = [node for node in graph.nodes if isinstance(node.op, Call)]
            assert len(calls) == 2 * parts
            assert len({region for node in calls for region in node.regions}) == 2


@pytest.mark.share(2)
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble_h1"])
def test_a_micro_batch_adds_as_many_nodes_whatever_is_kept_of_it(schedule: str) -> None:
    """Calls hand tuples to each other, each of them one operand."""
    for stage in range(STAGES):
        plain, deep = (
            [len(graphs(schedule, parts, layer)[stage].nodes) for parts in (STAGES, 4 * STAGES)]
            for layer in (Layer, Deep)
        )
        assert deep[0] > plain[0]  # updates
        assert deep[1] - deep[0] == plain[1] - plain[0]


def test_passes_see_one_micro_batch() -> None:
    """But for the last two."""
    few, many = (graphs("zero_bubble_h1", parts, behind="schedule_communication") for parts in (STAGES, 4 * STAGES))
    for one, other in zip(few, many, strict=True):
        assert [len(each.nodes) for each in one.graphs()] == [len(each.nodes) for each in other.graphs()]
        assert [node.op.turns for node in other.nodes if isinstance(node.op, Scan)] == [4 * STAGES]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero_bubble_h1", "zero_bubble_2p"])
def test_a_stage_works_in_the_order_of_its_schedule(schedule: str) -> None:
    """And waits for a message only where its next work reads it."""
    known = named_schedule(schedule, STAGES, 2 * STAGES)
    for stage, graph in enumerate(graphs(schedule, 2 * STAGES)):
        work = [node for node in graph.nodes if WORK in node.attrs]
        actions = [Action(*(node.attrs[name] for name in (WORK, "chunk", MICRO_BATCH))) for node in work]
        there = {(action.kind, action.chunk) for action in actions}
        assert actions == [each for each in known.entries[stage] if (each.kind, each.chunk) in there]
        left = iter(work)
        following = next(left)
        for node in graph.nodes:
            following = next(left, node) if node is following else following
            if isinstance(node.op, ReceiveFromStage) and node.op.micro_batch >= 0:
                assert node in following.inputs


def test_equal_layers_of_a_stage_are_one_graph_whichever_line_gives_the_stage() -> None:
    for graph in graphs("1f1b", STAGES, Folded):
        loops = [node for each in graph.graphs() for node in each.nodes if isinstance(node.op, Scan)]
        assert {node.op.turns for node in loops} == {LAYERS // STAGES}
