"""Ways in which scripts train networks of several stages: each has the numbers of one stage."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from mspc import Parameter, Tensor
from mspc.ir.diagnostics import MspcError
from mspc.nn import PipelineGradReducer
from tests.pipelining.staged_script import printed, same_as_one_stage

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


@pytest.mark.parametrize("more", ["", "enable_parallel_optimizer=True"])
def test_functions_of_gradients(tmp_path: Path, more: str) -> None:
    assert len(same_as_one_stage(tmp_path, FUNCTIONAL.format(more=more, scale="", factor=1) + SHOWN)) == 6


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
from mspc.train import LossMonitor, Model
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
    same_as_one_stage(tmp_path, """
from mspc.train import Model
settings()
net = staged()
model = Model(nn.PipelineCell(net, 2), optimizer=nn.AdamWeightDecay(net.trainable_params(), 0.01))
data = ms.dataset.NumpySlicesDataset((drawn.randn(16, 8), drawn.randn(16, 8)), ["x", "y"], shuffle=False)
model.train(2, data.batch(8), dataset_sink_mode=False)
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


def test_an_overflow_anywhere_stops_the_updates_of_all_stages(tmp_path: Path) -> None:
    found = same_as_one_stage(tmp_path, OVERFLOWS.format(power=120, factor=1e4))
    assert found[0].startswith("True")
    assert found[-1] == "[True, True, True]"
    assert same_as_one_stage(tmp_path, OVERFLOWS.format(power=4, factor=1))[0].startswith("False")


def test_an_overflow_on_the_first_stage_alone(tmp_path: Path) -> None:
    """What is added to the first layer's result is 0, and its gradient as large as the largest input."""
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
