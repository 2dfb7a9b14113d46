"""`mspc verify` in data parallel mode: all ranks together beside one device on the global batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.report.verbosity import Loudness
from mspc.commands.verify import verify_target
from mspc.ir.diagnostics import ExecutionError
from mspc.ops.random import words as random_rows
from mspc.passes.communication import reduce_gradients
from mspc.passes.communication.share_statistics import ShareStatistics
from mspc.passes.sharding.draw_rows import DrawRows
from tests.compiled_scripts import verify_text

SCRIPT = '''
import mindspore as ms
import numpy as np
from mindspore import nn, ops, Tensor
ms.communication.init()
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean={mean})
ms.set_seed(1)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Dense(8, 6), {norm}, nn.Dense(6, 4)
        self.drop = nn.Dropout(p=0.5)

    def construct(self, x):
        return self.last(self.drop(ops.relu(self.norm(self.first(x)))))


class Loss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x, y):
        wrong = (self.net(x) - y) ** 2
        return {loss}


net = Net()
net.set_train()
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
step = {step}
step(Tensor(np.ones((4, 8)), ms.float32), Tensor(np.ones((4, 4)), ms.float32))
'''
STEP = "nn.TrainOneStepCell(Loss(net), optimizer)"


@pytest.fixture
def verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(ranks: int = 2, quiet: bool = False, **how: Any) -> str:
        values = {"mean": True, "norm": "nn.BatchNorm1d(6)", "loss": "wrong.mean()", "step": STEP} | how
        script = tmp_path / "net.py"
        script.write_text(SCRIPT.format(**values))
        verify_target(str(script), CompileOptions(ranks=ranks, loudness=Loudness(quiet=quiet), all_rows=True), seed=0)
        return capsys.readouterr().out

    return run


GIVEN = ", as one device was given them"


@pytest.mark.parametrize(
    ("mean", "loss", "output", "times"),
    [
        (True, "wrong.mean()", "the mean of", ""),
        (False, "wrong.mean()", "the mean of", f" times 2{GIVEN}"),
        (True, "wrong.sum()", "the sum of", f" times 0.5{GIVEN}"),
        (False, "wrong.sum()", "the sum of", ""),
        (False, "wrong.sum() / x.shape[0]", "the mean of", f" times 2{GIVEN}"),
        (True, "wrong.mean() + self.net.last.weight.sum() * 0.1", "the mean of", ""),
    ],
)
def test_sums_and_means_are_those_of_the_global_batch(
    verify: Callable[..., str], mean: bool, loss: str, output: str, times: str
) -> None:
    said = verify(mean=mean, loss=loss)
    assert f"output 0 of one device on the global batch is {output} the ranks'\n" in said
    assert f"updates read the gradients of one device on the global batch{times}\n" in said
    verdict = said.splitlines()[-1]
    assert verdict.startswith("equal: ")
    assert "of one device with the global batch" in verdict
    assert "global parameter  net.first.weight" in said


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"loss": "ops.sqrt(wrong.mean())"}, "is neither the sum nor the mean of those of the ranks' rows"),
        ({"loss": "wrong.sum() + self.net.last.weight.sum()", "mean": False},
         "the gradient of net.last.weight of the global batch is neither the sum nor the mean"),
        ({"loss": "wrong.reshape(4, 4).mean()"}, "the network does not take it: "),
        ({"norm": "nn.SyncBatchNorm(6, process_groups=[[0], [1]])"},
         "the first of its values that has no such tie is"),
        ({"loss": "ops.matmul(wrong, ops.AllGather()(wrong).T).mean()"},
         "AllGather is of the script, and one device has nothing like it"),
    ],
    ids=["root", "sum with decay", "fixed size", "own statistics", "gathered rows"],
)  # fmt: skip
def test_what_cannot_be_compared_is_not_called_equal(verify: Callable[..., str], how: dict[str, Any], why: str) -> None:
    said = verify(quiet=True, **how)
    assert said.startswith("not compared with one device on the global batch: ")
    assert why in said
    verdict = said.splitlines()[-1]
    assert verdict.startswith("each rank's own rows alone, not the global batch: ")


def wrong_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DrawRows, "run", lambda self, graph: False)


def wrong_place(monkeypatch: pytest.MonkeyPatch) -> None:
    right = random_rows.place_of_rows
    monkeypatch.setattr(
        "mspc.ops.random.dropout.place_of_rows", lambda shape, rows, rank, ranks: right(shape, rows, 1 - rank, ranks)
    )


def lost_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    right = reduce_gradients.summed_gradients

    def lost(graph: Any) -> Any:
        return {node for node in right(graph) if node.attrs["gradient_for"] != "net.last.bias"}

    for module in ("mspc.passes.communication.reduce_gradients", "mspc.verify.one_device", "mspc.verify.global_batch"):
        monkeypatch.setattr(f"{module}.summed_gradients", lost)


def own_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShareStatistics, "run", lambda self, graph: False)


@pytest.mark.parametrize("plant", [wrong_draws, wrong_place, lost_gradient, own_statistics])
def test_an_error_that_all_ranks_share_is_found(
    verify: Callable[..., str], monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(ExecutionError, match="values differ between one device and 2 ranks"):
        verify(quiet=True)


REDUCED = '''nn.Cell()


class Own(nn.Cell):
    def __init__(self):
        super().__init__()
        self.loss, self.grad = Loss(net), ops.value_and_grad(Loss(net), None, optimizer.parameters)
        self.reduce = REDUCE
        self.optimizer = optimizer

    def construct(self, x, y):
        loss, grads = self.grad(x, y)
        self.optimizer(self.reduce(grads))
        return loss


step = Own()'''


@pytest.mark.parametrize(
    ("mean", "loss"), [(True, "wrong.mean()"), (False, "wrong.mean()"), (True, "wrong.sum()"), (False, "wrong.sum()")]
)
def test_reductions_of_the_script_count(verify: Callable[..., str], mean: bool, loss: str) -> None:
    reducer = f"nn.DistributedGradReducer(optimizer.parameters, {mean}, 2)"
    said = verify(loss=loss, mean=False, step=REDUCED.replace("REDUCE", reducer))
    assert said.splitlines()[-1].startswith("equal: ")
    assert "global parameter  loss.net.first.weight" in said


ATTENTION = '''
import mindspore as ms
import numpy as np
from mindspore import nn, ops, Tensor
ms.set_context(device_target="GPU")
ms.communication.init()
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
ms.set_seed(1)


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.projected, self.drop = nn.Dense(8, 24), nn.Dropout(p={rate})

    def construct(self, x):
        q, k, v = (y.{split} for y in ops.split(self.projected(x), 8, axis=2))
        weights = ops.softmax(ops.matmul(q, k.swapaxes(-1, -2)) / 2.0, axis=-1)
        return (ops.matmul(self.drop(weights), v).{merged} ** 2).mean()


net = Attention()
step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1)).set_train()
step(Tensor(np.ones((2, 6, 8)), ms.float32))
'''
HEADS = {"split": "reshape(-1, 6, 2, 4).transpose(0, 2, 1, 3)", "merged": "transpose(0, 2, 1, 3)"}


PLAIN = {"split": "reshape(-1, 6, 8)", "merged": "reshape(-1, 6, 8)"}


@pytest.mark.parametrize("form", [{"rate": 0.0, **HEADS}, {"rate": 0.3, **HEADS}, {"rate": 0.3, **PLAIN}])
def test_attention_that_a_pass_has_joined(
    form: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One operator drops the elements that the ranks' operators drop of the global batch."""
    verify_text(tmp_path, ATTENTION.format(**form), CompileOptions(ranks=2, all_rows=True), seed=0)
    said = capsys.readouterr().out
    assert "differs" not in said
    assert said.splitlines()[-1].startswith("equal: ")
    assert "of one device with the global batch" in said.splitlines()[-1]
