"""Messages of stages: rings of keys, values along residuals, and joined matmuls."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import mspc
from mspc import Parameter, Tensor, nn, ops
from mspc.commands.compile import CompileOptions, compile_target
from mspc.ir.graph import MICRO_BATCH, WORK, Graph
from mspc.mindspore_api import context
from mspc.passes.lib.schedules import Action, named_schedule
from mspc.runtime.memory_plan import peak_of
from mspc.runtime.program import load_program
from tests.compiled_scripts import QUIET, Config, compile_call, run_directory, verify_target
from tests.operators import Call, ReceiveFromStage, Scan, SendToStage
from tests.texts import IMPORTS

# Ranks meet in their exchanges of keys in one order if gradients of weights are apart.

RINGS = IMPORTS + """
from mindspore.ops.operations.nn_ops import FlashAttentionScore

ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=2,
    pipeline_config={{"pipeline_scheduler": "{schedule}"}},
)
WIDTH = 8
layout = Layout((1, 2), ("data", "context"))
draw = np.random.RandomState(0)


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (
            Parameter(Tensor(draw.randn(WIDTH, WIDTH) * 0.3, ms.float32), name=name) for name in "qkvo"
        )
        self.attention = FlashAttentionScore(2, scale_value=0.5, input_layout="BSH", sparse_mode=2)
        rows = layout("data", "context", "None")
        self.attention.shard((rows, rows, rows, layout("None", "None")))
        self.attention.add_prim_attr("enable_ring_attention", True)
        self.mask = Tensor(np.triu(np.ones((2048, 2048), np.uint8), 1))

    def construct(self, x):
        query, key, value = (ops.matmul(x, weight) for weight in (self.query, self.key, self.value))
        found = self.attention(query, key, value, None, None, None, self.mask, None)[3]
        return x + ops.matmul(found, self.out)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Attention() for _ in range(4)])
        for number, layer in enumerate(self.layers):
            layer.pipeline_stage = {stages}[number]
        self.layers[1].recompute()
        self.layers[3].recompute()

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return ops.square(x).mean()


cell = nn.PipelineCell(Net(), 2)
step = nn.TrainOneStepCell(cell, nn.SGD(cell.trainable_params(), 0.1))
step(Tensor(draw.randn(4, 8, WIDTH), ms.float32))
"""


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("schedule", "stages"),
    [("zero_bubble_2p", (0, 0, 1, 1)), ("zero_bubble_v", (0, 1, 1, 0))],
)
def test_computing_again_sends_in_the_order_of_all_ranks(
    schedule: str, stages: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "net.py"
    script.write_text(RINGS.format(schedule=schedule, stages=stages))
    verify_target(str(script), CompileOptions(ranks=4, loudness=QUIET), seed=0)
    assert capsys.readouterr().out.startswith("equal: ")


# Along residuals stages send one tensor per border and micro-batch, both ways.

STAGES, PARTS, ROWS, WIDTH = 4, 8, 4, 8


class Layer(nn.Cell):
    def __init__(self, stage: int) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((WIDTH, WIDTH), np.float32)), name="weight")
        self.pipeline_stage = stage

    def construct(self, x: Tensor) -> Tensor:
        return x + ops.tanh(ops.matmul(x, self.weight))


class Net(nn.Cell):
    def __init__(self, places: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.CellList([Layer(stage) for stage in places])

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return ((x - y) ** 2).mean()


@contextmanager
def compiled_stages(schedule: str, stages: int, net: nn.Cell, parts: int, batch: tuple[int, int]) -> Iterator[Any]:
    """Compile a step of a network of stages on two batches of ones."""
    settings = {"pipeline_stages": stages, "pipeline_config": {"pipeline_scheduler": schedule}}
    mspc.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True, **settings)
    try:
        cell = nn.PipelineCell(net, parts)
        step = nn.TrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.1, 0.9))
        rows = Tensor(np.ones(batch, np.float32))
        yield compile_call(step, (rows, rows), Config.from_context(context.freeze(step), stages))
    finally:
        mspc.reset_auto_parallel_context()


def sent(schedule: str, places: tuple[int, ...]) -> Counter[tuple[int, int]]:
    """How many messages of micro-batches go from each stage to each other one."""
    with compiled_stages(schedule, STAGES, Net(places), PARTS, (ROWS * PARTS, WIDTH)) as compiled:
        found: Counter[tuple[int, int]] = Counter()
        for rank in range(STAGES):
            ops_of_rank = [node.op for node in compiled.rank_graph(rank).nodes]
            found.update((rank, op.stage) for op in ops_of_rank if isinstance(op, SendToStage) and op.micro_batch >= 0)
        return found


@pytest.mark.parametrize(("schedule", "places"), [
    ("1f1b", (0, 1, 2, 3)), ("gpipe", (0, 0, 1, 2, 3, 3)), ("zero_bubble_h1", (0, 1, 2, 3)),
])  # fmt: skip
def test_neighbours_alone_send_to_each_other(schedule: str, places: tuple[int, ...]) -> None:
    borders = [(stage, stage + 1) for stage in range(STAGES - 1)]
    there_and_back = [*borders, *((b, a) for a, b in borders)]
    assert sent(schedule, places) == dict.fromkeys(there_and_back, PARTS)


def test_chunks_there_and_back_send_as_often() -> None:
    """The middle one of the eight chunks' seven borders is within the last stage."""
    found = sent("zero_bubble_v", (0, 1, 2, 3, 3, 2, 1, 0))
    assert sum(found.values()) == 2 * 6 * PARTS
    assert all(abs(a - b) == 1 for a, b in found)


# On GPUs the matmuls of query, key and value are one in every stage, forward, backward and for the weights.

PROJECTIONS = """\
import sys
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Parameter, Tensor
from mindspore.communication import init
ms.set_context(device_target="GPU")
init()
scheduler, stages = sys.argv[1], int(sys.argv[2])
places = {"zero_bubble_v": [0, 1, 1, 0], "interleaved": [0, 1, 0, 1]}.get(scheduler, [0, 0, 1, 1])
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=stages,
    pipeline_config={"pipeline_interleave": places[1:3] == [1, 0],
                     "pipeline_scheduler": scheduler.replace("interleaved", "1f1b")})
draw = np.random.RandomState(3).randn
class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (
            Parameter(Tensor((0.1 * draw(16, 16)).astype(np.float32))) for _ in range(4))
    def heads(self, x, weight):
        return ops.transpose(ops.reshape(ops.matmul(ops.reshape(x, (-1, 16)), weight), (-1, 6, 2, 8)), (0, 2, 1, 3))
    def construct(self, x):
        scores = ops.matmul(self.heads(x, self.query), ops.transpose(self.heads(x, self.key), (0, 1, 3, 2)))
        mixed = ops.matmul(ops.softmax(scores * 0.5, axis=-1), self.heads(x, self.value))
        return x + ops.reshape(ops.matmul(ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (-1, 16)), self.out), x.shape)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(4)])
        if stages > 1:
            for layer, stage in zip(self.layers, places):
                layer.pipeline_stage = stage
    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return ops.square(x).mean()
cell = nn.PipelineCell(Net(), 4)
step = nn.TrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.1, 0.9))
step(Tensor(draw(8, 6, 16).astype(np.float32)))
"""


def trained(folder: Path, scheduler: str, stages: int) -> tuple[Path, dict[str, np.ndarray]]:
    """The folder of a compile for GPUs, and the parameters behind two steps of it on the CPU."""
    script = folder / "net.py"
    script.write_text(PROJECTIONS)
    out = folder / f"{scheduler}_{stages}"
    arguments = scheduler, str(stages)
    compile_target(str(script), CompileOptions(stages, out=out, loudness=QUIET, script_arguments=arguments))
    run_directory(out, synthetic=True, steps=2, save=out / "after.safetensors", simulate=True)
    return out, load_file(out / "after.safetensors")


def counts(graph: Graph, name: str) -> int:
    return sum(node.op.name == name for node in graph.nodes)


@pytest.mark.share(2)
@pytest.mark.parametrize("scheduler", ["interleaved", "zero_bubble_v"])
def test_each_stage_joins_its_own_products(scheduler: str, tmp_path: Path) -> None:
    _, alone = trained(tmp_path, scheduler, 1)
    folder, found = trained(tmp_path, scheduler, 2)
    program = load_program(folder)
    for rank in range(2):
        graph = program.graph(rank, program.text(rank))
        assert counts(graph, "Concat") == 2  # of a layer's three weights, once for all micro-batches
        others = graph.graphs()[1:]
        assert not any(counts(each, "Concat") for each in others)
        # A layer has two products forward, two for its operand, which the first one has no gradient for, two for its
        # weights.
        assert sum(counts(each, "MatMul") + counts(each, "FusedMatMul") for each in others) == 2 * 6 - (rank == 0)
    for name, value in alone.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-6 * np.abs(value).max(), err_msg=name)


MEMORY_STAGES, MEMORY_ROWS, MEMORY_WIDTH, LAYERS = 4, 64, 64, 8
ACTIVATION = WEIGHT = 4 * MEMORY_ROWS * MEMORY_WIDTH
"""Bytes; as many rows as columns make them equal."""


class MemoryLayer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((MEMORY_WIDTH, MEMORY_WIDTH), np.float32)), name="weight")
        self.norm = nn.LayerNorm((MEMORY_WIDTH,))

    def construct(self, x: Tensor) -> Tensor:
        return x + ops.tanh(ops.matmul(self.norm(x), self.weight))


class MemoryNet(nn.Cell):
    def __init__(self, layer: type[MemoryLayer]) -> None:
        super().__init__()
        cells = [layer() for _ in range(LAYERS)]
        cells[0].pipeline_stage = 0
        for i, cell in enumerate(cells[1:], 1):
            cell.pipeline_stage = i * MEMORY_STAGES // LAYERS
        self.layers = nn.CellList(cells)

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return ((x - y) ** 2).mean()


class Deep(MemoryLayer):
    """A layer that keeps more, and has more parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MemoryLayer()

    def construct(self, x: Tensor) -> Tensor:
        return super().construct(self.inner(x))


class Folded(MemoryLayer):
    """A layer of which equal ones become one graph."""

    @mspc.lazy_inline
    def __init__(self) -> None:
        super().__init__()


@cache
def graphs(schedule: str, parts: int, layer: type[MemoryLayer] = MemoryLayer, behind: str = "execute") -> list[Graph]:
    """The graphs of the stages' ranks for so many micro-batches of ROWS rows, behind a pass."""
    batch = MEMORY_ROWS * parts, MEMORY_WIDTH
    with compiled_stages(schedule, MEMORY_STAGES, MemoryNet(layer), parts, batch) as compiled:
        found: list[Graph] = []
        for rank in range(MEMORY_STAGES):
            compiled.rank_graph(rank, lambda stage: found.append(stage.graph), (behind,))
        return found


def planned(graph: Graph) -> int:
    """Bytes at the peak beside parameters and the batch."""
    return peak_of(graph) - sum(parameter.type.nbytes for parameter in graph.parameters)


@pytest.mark.parametrize("stage", range(MEMORY_STAGES))
def test_as_many_micro_batches_are_held_as_the_schedule_has_alive(stage: int) -> None:
    """With more micro-batches than stages the sums of the gradients, which begin with the first of them, are held
    beside as many others; more than that is not."""
    few, some, many = (
        planned(graphs("1f1b", parts)[stage]) for parts in (MEMORY_STAGES, 2 * MEMORY_STAGES, 4 * MEMORY_STAGES)
    )
    stacks = (256 + 4) * 4 * MEMORY_STAGES  # the losses, each in a place of its own, and their stack
    assert many <= some + stacks
    assert many <= few + LAYERS // MEMORY_STAGES * WEIGHT + 2 * ACTIVATION + stacks


def test_gpipe_holds_all() -> None:
    few, many = (planned(graphs("gpipe", parts)[1]) for parts in (MEMORY_STAGES, 4 * MEMORY_STAGES))
    assert many - few >= 3 * MEMORY_STAGES * 2 * LAYERS // MEMORY_STAGES * ACTIVATION


def test_a_stage_has_one_graph_of_each_kind() -> None:
    for parts in (MEMORY_STAGES, 4 * MEMORY_STAGES):
        for graph in graphs("1f1b", parts):
            calls = [node for node in graph.nodes if isinstance(node.op, Call)]
            assert len(calls) == 2 * parts
            assert len({region for node in calls for region in node.regions}) == 2


@pytest.mark.share(2)
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble_h1"])
def test_a_micro_batch_adds_as_many_nodes_whatever_is_kept_of_it(schedule: str) -> None:
    """Calls hand tuples to each other, each of them one operand."""
    for stage in range(MEMORY_STAGES):
        plain, deep = (
            [len(graphs(schedule, parts, layer)[stage].nodes) for parts in (MEMORY_STAGES, 4 * MEMORY_STAGES)]
            for layer in (MemoryLayer, Deep)
        )
        assert deep[0] > plain[0]  # updates
        assert deep[1] - deep[0] == plain[1] - plain[0]


def test_passes_see_one_micro_batch() -> None:
    """But for the last two."""
    few, many = (
        graphs("zero_bubble_h1", parts, behind="schedule_communication") for parts in (MEMORY_STAGES, 4 * MEMORY_STAGES)
    )
    for one, other in zip(few, many, strict=True):
        assert [len(each.nodes) for each in one.graphs()] == [len(each.nodes) for each in other.graphs()]
        assert [node.op.turns for node in other.nodes if isinstance(node.op, Scan)] == [4 * MEMORY_STAGES]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero_bubble_h1", "zero_bubble_2p"])
def test_a_stage_works_in_the_order_of_its_schedule(schedule: str) -> None:
    """And waits for a message only where its next work reads it."""
    known = named_schedule(schedule, MEMORY_STAGES, 2 * MEMORY_STAGES)
    for stage, graph in enumerate(graphs(schedule, 2 * MEMORY_STAGES)):
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
    for graph in graphs("1f1b", MEMORY_STAGES, Folded):
        loops = [node for node in graph.all_nodes() if isinstance(node.op, Scan)]
        assert {node.op.turns for node in loops} == {LAYERS // MEMORY_STAGES}
