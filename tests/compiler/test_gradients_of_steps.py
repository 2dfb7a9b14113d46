"""Data parallel mode: which gradients are added over the ranks, where a step takes several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn, ops
from mspc.commands.compile import CompileOptions
from mspc.commands.run import run_script
from mspc.commands.verify import verify_target
from mspc.ir.diagnostics import ExecutionError
from tests.mindspore_api.nn.training import Training, floats

X, Y, W, V = floats(1, 4, 3), floats(2, 4, 1), floats(3, 3, 1), floats(4, 1, 1)


def _error(w: Any, x: Any, y: Any) -> Any:
    return ops.square(ops.matmul(x, w) - y).mean()


_inner = ops.grad(_error, 0)


class Learner(nn.Cell):
    """The error after one step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(W), "w")

    def construct(self, x: Any, y: Any) -> Any:
        step = ops.stop_gradient(_inner(self.w, x, y))
        return _error(self.w - 0.1 * step, x, y)


def test_the_gradient_of_an_inner_step_is_each_ranks_own() -> None:
    def slope(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x.T @ (x @ w - y) * 2 / len(x)

    net = Learner()
    training = Training(
        nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.5)), [X.shape, Y.shape], 2, "data_parallel",
        gradients_mean=True,
    )  # fmt: skip
    training.run([(X, Y)])
    of_ranks = [slope(W - 0.1 * slope(W, X[i : i + 2], Y[i : i + 2]), X[i : i + 2], Y[i : i + 2]) for i in (0, 2)]
    np.testing.assert_allclose(training.states[0]["w"], W - 0.5 * sum(of_ranks) / 2, rtol=1e-5)
    assert training.names().count("AllReduce") == 1


class Made(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(W), "w")
        self.v = Parameter(Tensor(V), "v")

    def construct(self, x: Any) -> Any:
        return ops.matmul(x, self.w)


class MakesLoss(nn.Cell):
    def __init__(self, made: Made) -> None:
        super().__init__(auto_prefix=False)
        self.made = made

    def construct(self, x: Any, y: Any) -> Any:
        return ops.square(ops.matmul(self.made(x), self.made.v) - 1.0).mean()


class JudgesLoss(MakesLoss):
    def construct(self, x: Any, y: Any) -> Any:
        shown = ops.stop_gradient(self.made(x))
        return ops.square(ops.matmul(shown, self.made.v)).mean() + ops.square(ops.matmul(y, self.made.v) - 1.0).mean()


class Adversaries(nn.Cell):
    """Two steps in one graph, the second after the first one's update."""

    def __init__(self) -> None:
        super().__init__()
        made = Made()
        self.first = nn.TrainOneStepCell(MakesLoss(made), nn.SGD([made.w], 0.1))
        self.second = nn.TrainOneStepCell(JudgesLoss(made), nn.Adam([made.v], 0.1))

    def construct(self, x: Any, y: Any) -> Any:
        return self.first(x, y), self.second(x, y)


def test_two_optimizers_in_one_graph() -> None:
    batches, shapes = [(X, Y), (X, Y)], [X.shape, Y.shape]
    alone = Training(Adversaries(), shapes)
    sharded = Training(Adversaries(), shapes, 2, "data_parallel", gradients_mean=True)
    alone.run(batches)
    sharded.run(batches)
    for name, expected in alone.states[1].items():
        np.testing.assert_allclose(sharded.states[1][name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


CONTRAST = """
import numpy as np, mindspore as ms
from mindspore import Tensor, Parameter, nn, ops
from mindspore.communication import get_group_size, get_rank, init
init()
rank, size = get_rank(), get_group_size()
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.eye(3, dtype=np.float32)), "w")
        self.gather = ops.AllGather()
    def construct(self, x):
        z = ops.matmul(x, self.w)
        every = self.gather(z) if size > 1 else z
        n = z.shape[0]
        return ops.cross_entropy(ops.matmul(z, every.T), ops.arange(0, n).astype(ms.int32) + rank * n)
net = Net()
step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
rows = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
for _ in range(2):
    step(Tensor(rows[rank * 4 // size : (rank + 1) * 4 // size]))
print("sum", *np.round(net.w.asnumpy().ravel(), 4))
"""


def test_ranks_hold_graphs_with_their_own_numbers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(CONTRAST)
    printed = []
    for ranks in (1, 2):
        run_script(tmp_path / "net.py", ranks, simulate=True)
        printed += [line for line in capfd.readouterr().out.splitlines() if line.startswith("sum")]
    assert len(printed) == 3
    found = [np.array(line.split()[1:], np.float64) for line in printed]
    np.testing.assert_allclose(found[1:], [found[0]] * 2, atol=2e-4)


CLIPPED = """
import numpy as np, mindspore as ms
from mindspore import Tensor, Parameter, nn, ops
from mindspore.communication import init
init()
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=False)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((3, 2), np.float32)), "w")
    def construct(self, x):
        return ops.square(ops.matmul(x, self.w)).mean()
class Step(nn.TrainOneStepCell):
    def construct(self, x):
        loss = self.network(x)
        grads = self.grad(self.network, self.weights)(x, ops.ones_like(loss))
        grads = FIRST(THEN(grads))
        return ops.depend(loss, self.optimizer(grads))
net = Net()
Step(net, nn.SGD(net.trainable_params(), 0.1))(Tensor(np.ones((4, 3), np.float32)))
"""


def test_verify_leaves_gradients_to_the_scripts_own_sums(tmp_path: Path) -> None:
    """Clipped sums are those of one device with the global batch; sums of what every rank has clipped are not."""
    script = tmp_path / "net.py"
    reduce, clip = "self.grad_reducer", "(lambda them: ops.clip_by_global_norm(them, 0.5))"
    script.write_text(CLIPPED.replace("FIRST", clip).replace("THEN", reduce))
    verify_target(str(script), CompileOptions(ranks=2), seed=1)
    script.write_text(CLIPPED.replace("FIRST", reduce).replace("THEN", clip))
    with pytest.raises(ExecutionError, match="2 of 8 values differ between one device and 2 ranks"):
        verify_target(str(script), CompileOptions(ranks=2), seed=1)
