"""Training, inference and early results of networks in stages: each has the numbers of one stage."""

import re
from pathlib import Path

import numpy as np
import pytest

import mspc
from mspc import Parameter, Tensor, nn, ops
from mspc.analysis.cost.machine import H200
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import WORK, Graph
from mspc.mindspore_api import context
from mspc.nn import PipelineGradReducer
from mspc.ops.collective.point_to_point import SendToStage
from mspc.output.stage_times import predicted_times
from mspc.passes.lib.schedules import Action
from tests.compiled_scripts import Config, compile_call, run_script
from tests.pipelining.drawn_network import WAYS, DrawnNetwork
from tests.pipelining.staged_script import printed, same_as_one_stage
from tests.sharded_beside_one import run
from tests.shares import share_of

# Networks that are not trained.

TIED = """
class Embedding(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Parameter(Tensor(drawn.randn(16, 8)), name="table")

    def construct(self, x):
        return ops.gather(self.table, x, 0), self.table.value()


class Head(nn.Cell):
    def construct(self, x, table):
        return ops.matmul(x, table.T)


class Tied(nn.Cell):
    @ms.lazy_inline
    def __init__(self):
        super().__init__()
        self.embedding, self.first, self.last, self.head = Embedding(), Layer(), Layer(), Head()

    def construct(self, x):
        x, table = self.embedding(x)
        return self.head(self.last(self.first(x)), table)


class Parts(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def construct(self, x):
        rows = x.shape[0] // 4
        return ops.concat([self.network(x[i * rows : (i + 1) * rows]) for i in range(4)])


net = Tied()
if STAGES > 1:
    net.embedding.pipeline_stage, net.first.pipeline_stage = 0, {stages}[0]
    net.last.pipeline_stage, net.head.pipeline_stage = {stages}[1], 1
x = Tensor(np.arange(8) * 3 % 16, ms.int32)
"""


@pytest.mark.parametrize("broadcast", [False, True])
def test_parts_of_a_batch_and_a_table_that_two_stages_read(tmp_path: Path, broadcast: bool) -> None:
    same_as_one_stage(tmp_path, TIED.format(stages=(0, 1)) + f"""
network = AutoParallel(Parts(net).set_train(False), "semi_auto")
network.dataset_strategy("full_batch")
network.pipeline(STAGES, output_broadcast={broadcast})
network.compile(x)
ms.sync_pipeline_shared_parameters(network)
print("%.10e" % np.abs(network(x).asnumpy()).sum())
""")  # fmt: skip


@pytest.mark.parametrize("more", ["pipeline_segments=2", "pipeline_config={'pipeline_interleave': True}"])
def test_values_come_back_where_stages_have_several_parts(tmp_path: Path, more: str) -> None:
    same_as_one_stage(tmp_path, TIED.format(stages=(1, 0)) + f"""
settings(**(dict({more}) if STAGES > 1 else {{}}))
print("%.10e" % np.abs(ms.train.Model(net).predict(x).asnumpy()).sum())
""")  # fmt: skip


def test_values_do_not_come_back_otherwise(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match="values flow forward"):
        printed(tmp_path, TIED.format(stages=(1, 0)) + "settings()\nms.train.Model(net).predict(x)\n")


# Results of no stage: parts of a loss of parameters alone, or of data alone, equal those of one device.

LOSS = """
settings()
class Lossy(Net):
    def __init__(self):
        super().__init__()
        self.other = Parameter(Tensor(np.ones((4, 4))), name="other")

    def construct(self, x, y):
        loss = super().construct(x, y)
        return {result}

Net = Lossy
net = staged()
cell = nn.PipelineCell(net, 2)
step = nn.TrainOneStepCell(cell, nn.Momentum(net.trainable_params(), 0.1, 0.9)).set_train()
for _ in range(2):
    print("%.10e" % float(step(*batch()).asnumpy()))
print('\\n'.join(sums(net)))
"""


@pytest.mark.parametrize(
    "result",
    ["loss + 0.0 * self.other.sum()", "loss + ops.square(self.other).sum() + y.mean()",
     "0.5 * ops.square(self.other).sum()"],
    ids=["no share of the loss", "of parameters and of data", "of nothing else"],
)  # fmt: skip
def test_a_loss_of_what_is_of_no_stage(tmp_path: Path, result: str) -> None:
    same_as_one_stage(tmp_path, LOSS.format(result=result))


# Results for other stages are sent as soon as they are known.


class Layer(nn.Cell):
    def __init__(self, stage: int) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.eye(4, dtype=np.float32)))
        self.pipeline_stage = stage

    def construct(self, x: Tensor) -> Tensor:
        return ops.tanh(ops.matmul(x, self.w))


class Net(nn.Cell):
    def __init__(self, places: tuple[int, ...], wide: bool) -> None:
        super().__init__()
        self.layers, self.wide = nn.CellList([Layer(stage) for stage in places]), wide

    def construct(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return ops.broadcast_to(x.sum(), (64, 64)) * 1.0 if self.wide else x.sum()


def graphs(scheduler: str, places: tuple[int, ...], wide: bool = False) -> list[Graph]:
    mspc.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=2,
        pipeline_config={"pipeline_interleave": len(places) > 2, "pipeline_scheduler": scheduler},
    )  # fmt: skip
    try:
        cell = nn.PipelineCell(Net(places, wide), 4)
        step = nn.TrainOneStepCell(cell, nn.SGD(cell.trainable_params(), 0.1))
        config = Config.from_context(context.freeze(step), 2)
        found = compile_call(step, (Tensor(np.ones((8, 4), np.float32)),), config)
        return [found.rank_graph(rank) for rank in range(2)]
    finally:
        mspc.reset_auto_parallel_context()


@pytest.mark.parametrize(
    ("scheduler", "places", "stage", "chunk"),
    [("zero_bubble_v", (0, 1, 1, 0), 0, 3), ("1f1b", (0, 1), 1, 1), ("gpipe", (0, 1), 1, 1),
     ("1f1b", (0, 1, 0, 1), 1, 3)],
)  # fmt: skip
def test_a_loss_is_sent_behind_the_forward_that_makes_it(
    scheduler: str, places: tuple[int, ...], stage: int, chunk: int
) -> None:
    found = graphs(scheduler, places)
    nodes = found[stage].nodes
    calls = [number for number, node in enumerate(nodes) if WORK in node.attrs]
    sent = [n for n, node in enumerate(nodes) if isinstance(node.op, SendToStage) and node.op.micro_batch < 0]
    last = next(
        n
        for n in calls
        if (nodes[n].attrs[WORK], nodes[n].attrs["micro_batch"], nodes[n].attrs["chunk"]) == ("F", 3, chunk)
    )
    assert len(sent) == 1
    assert [n for n in calls if last < n < sent[0]] == []
    assert any(n > sent[0] for n in calls), "gradients come behind it"
    programs = [predicted_times(graph, H200) for graph in found]
    ((source, tag),) = programs[1 - stage].awaited
    assert (source, programs[source].results[1 - stage, tag]) == (stage, Action("F", chunk, 3))


def test_what_is_large_is_sent_behind_the_work() -> None:
    nodes = graphs("1f1b", (0, 1), wide=True)[1].nodes
    last = max(number for number, node in enumerate(nodes) if WORK in node.attrs)
    sent = [n for n, node in enumerate(nodes) if isinstance(node.op, SendToStage) and node.op.micro_batch < 0]
    assert sent
    assert min(sent) > last


# Ways in which scripts train networks of several stages: each has the numbers of one stage.

SHOWN = "print('\\n'.join(sums(net)))\n"
FUNCTIONAL = """
settings({more})
net = staged()
cell = nn.PipelineCell(net, 4).set_train()
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
reducer = nn.PipelineGradReducer(optimizer.parameters{scale})
gradient = ops.value_and_grad(lambda x, y: cell(x, y) * {factor}, None, optimizer.parameters)

@ms.jit
def step(x, y):
    loss, gradients = gradient(x, y)
    gradients = reducer(gradients)
    optimizer(gradients)
    return loss, gradients

for _ in range(3):
    loss, gradients = step(*batch())
    print("loss %.10e" % (float(loss.asnumpy()) / {factor}), ["%.10e" % abs(g.asnumpy()).sum() for g in gradients])
"""


def test_a_reducer_divides_by_the_scale_of_the_loss(tmp_path: Path) -> None:
    plain = same_as_one_stage(tmp_path, FUNCTIONAL.format(more="", scale="", factor=1))
    assert same_as_one_stage(tmp_path, FUNCTIONAL.format(more="", scale=", 8.0", factor=8)) == plain


@pytest.mark.parametrize(("arguments", "kind", "message"), [
    (("w",), TypeError, "parameters must be a tuple or a list, not 'w'"),
    (([1],), TypeError, "parameters must be Parameters"),
    (([], "1"), TypeError, "scale_sense must be a number, not '1'"),
    (([], 0), ValueError, "scale_sense must not be 0"),
    (([], 1.0, 2), TypeError, "opt_shard must be True or False or None, not 2"),
])  # fmt: skip
def test_arguments_of_a_reducer(arguments: tuple[object, ...], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as refused:
        PipelineGradReducer(*arguments)  # type: ignore[arg-type]
    assert isinstance(refused.value, MspcError)


def test_a_reducer_needs_a_gradient_for_each_parameter() -> None:
    reducer = PipelineGradReducer([Parameter(Tensor(np.ones(2)), name="w")])
    with pytest.raises(ValueError, match="one gradient for each parameter"):
        reducer(())


def test_models_and_settings_around_a_network(tmp_path: Path) -> None:
    same_as_one_stage(tmp_path, """
from mspc.parallel.nn import Pipeline
net = staged(None, None, None)
cell = nn.WithLossCell(nn.SequentialCell(net.first, net.second, net.last), nn.MSELoss())
if STAGES > 1:
    cell = Pipeline(cell, 4, stage_config={"_backbone.0": 0, "_backbone.1": 1, "_backbone.2": 1})
else:
    cell = Pipeline(cell, 4)
optimizer = nn.Adam(cell.trainable_params(), 0.01)
wrapped = AutoParallel(nn.TrainOneStepCell(cell, optimizer).set_train(), "semi_auto")
wrapped.dataset_strategy("full_batch")
wrapped.pipeline(STAGES, scheduler="gpipe")
for _ in range(2):
    print("%.10e" % float(wrapped(*batch()).asnumpy()))
""" + SHOWN)  # fmt: skip


OVERFLOWS = """
settings()
net = staged()
for p in net.trainable_params():
    p.set_dtype(ms.float32)
cell = nn.PipelineCell(net, 4)
manager = nn.DynamicLossScaleUpdateCell(2.0**{power}, 2, 2)
step = nn.TrainOneStepWithLossScaleCell(cell, nn.Momentum(net.trainable_params(), 0.01, 0.9), manager).set_train()
for _ in range(4):
    x, y = batch()
    loss, overflow, scale = step(x.astype(ms.float32), y.astype(ms.float32) * {factor})
    print(bool(overflow.asnumpy()), float(scale.asnumpy()))
print([bool(np.isfinite(p.asnumpy()).all()) for p in net.trainable_params()])
"""


def test_an_overflow_on_the_first_stage_alone(tmp_path: Path) -> None:
    """The value added to the first layer's result is 0, and its gradient as large as the largest input."""
    text = OVERFLOWS.format(power=10, factor=1).replace("net = staged()\n", """
class Added(Layer):
    def construct(self, x):
        total = self.w.sum()
        return super().construct(x) + (total - ops.stop_gradient(total)) * x.max()

net = Net()
net.first = Added()
net.first.pipeline_stage, net.last.pipeline_stage = 0, STAGES - 1
""").replace("step(x.astype(ms.float32)", "step(x.astype(ms.float32) * (1e37 if _ == 1 else 1)")  # fmt: skip
    found = same_as_one_stage(tmp_path, text)
    assert [line.split()[0] for line in found[:4]] == ["False", "True", "False", "False"]
    assert found[-1] == "[True, True, True]"


def test_parts_of_parts_are_micro_batches(tmp_path: Path) -> None:
    text = """
settings()
net = staged()
cell = {cell}
step = nn.TrainOneStepCell(cell, nn.Momentum(net.trainable_params(), 0.1, 0.9)).set_train()
print("%.10e" % float(step(*batch(16)).asnumpy()))
"""
    cells = (
        "nn.PipelineCell(net, 4)", "nn.GradAccumulationCell(net, 4)",
        "nn.GradAccumulationCell(nn.PipelineCell(net, 2), 2)", "nn.PipelineCell(nn.GradAccumulationCell(net, 2), 2)",
    )  # fmt: skip
    found = [same_as_one_stage(tmp_path, text.format(cell=cell) + SHOWN) for cell in cells]
    assert all(each == found[0] for each in found)


def test_sums_that_nobody_adds_to_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match=re.escape("reads 'accu_grads.first.w', to which nothing adds gradients here")):
        printed(tmp_path, """
settings()
net = staged()
cell = nn.PipelineCell(net, 4).set_train()
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
kept = optimizer.parameters.clone(prefix="accu_grads", init="zeros")
gradient = ops.value_and_grad(cell, None, optimizer.parameters)

@ms.jit
def step(x, y):
    loss, gradients = gradient(x, y)
    optimizer(kept)
    return ops.depend(loss, gradients)

step(*batch())
""")  # fmt: skip


PARTS, ROWS, WIDTH = 4, 3, 64
SCRIPT = """
import numpy as np
import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.communication import get_rank, init

init()
ms.set_seed(3)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=2,
                             pipeline_config={{"pipeline_scheduler": "{schedule}"}})


class Dropped(nn.Cell):
    def __init__(self):
        super().__init__()
        self.scale = Parameter(Tensor(np.ones({width})), name="scale")
        self.dropout = nn.Dropout(p=0.5)

    def construct(self, x):
        return self.dropout(x * self.scale)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.last = Dropped(), Dropped()
        self.first.pipeline_stage, self.last.pipeline_stage = 0, 1

    def construct(self, x, y):
        first, last = self.first(x), self.last(y)
        return ((first * first).sum() + (last * last).sum()) / 2


net = Net()
if {again}:
    net.first.recompute()
    net.last.recompute()
cell = nn.PipelineCell(net, {parts}).set_train()
grad = ms.jit(ops.value_and_grad(cell, (0, 1), None))
x = Tensor(np.ones(({parts} * {rows}, {width})))
found = [grad(x, x) for _ in range(2)]
np.savez({folder!r} + f"/rank_{{get_rank()}}.npz", losses=[loss.asnumpy() for loss, _ in found],
         gradients=[[each.asnumpy() for each in gradients] for _, gradients in found])
"""


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero_bubble_v"])
def test_masks_are_those_of_their_micro_batch(schedule: str, again: bool, tmp_path: Path) -> None:
    """A gradient is 4 where both masks keep an element. Were they others the loss, 2 for each that the forward one
    keeps, would be more than half of all gradients."""
    script = tmp_path / "net.py"
    script.write_text(
        SCRIPT.format(schedule=schedule, again=again, parts=PARTS, rows=ROWS, width=WIDTH, folder=str(tmp_path)),
        encoding="utf-8",
    )
    run_script(script, 2, simulate=True)
    for rank in range(2):
        with np.load(tmp_path / f"rank_{rank}.npz") as found:
            losses, gradients = found["losses"], found["gradients"]
        assert set(np.unique(gradients)) == {0.0, 4.0}
        np.testing.assert_array_equal(losses, gradients.sum((1, 2, 3)) / 2)
        masks = gradients.reshape(2 * 2 * PARTS, -1)  # of two steps, two layers
        assert len(np.unique(masks, axis=0)) == len(masks), "two micro-batches, layers or steps have one mask"
        kept = (masks > 0).mean()
        assert 0.4 < kept < 0.6


TRAINED = tuple(way for way in WAYS if way != "inference")


@pytest.mark.parametrize("seed", range(8000, 8000 + share_of(12)))
def test_schedules_have_the_same_bits(seed: int, tmp_path: Path) -> None:
    networks = [
        DrawnNetwork(seed, only=TRAINED, schedule=name)
        for name in ("1f1b", "gpipe", "zero_bubble_h1", "zero_bubble_2p")
    ]
    first, *others = [run(network.sharded(str(tmp_path)), network.ranks, tmp_path) for network in networks]
    for network, other in zip(networks[1:], others, strict=True):
        for rank, (own, known) in enumerate(zip(other, first, strict=True)):
            assert own.keys() == known.keys()
            for name in own:
                np.testing.assert_array_equal(own[name], known[name], f"{name} of rank {rank}: {network.about}")
