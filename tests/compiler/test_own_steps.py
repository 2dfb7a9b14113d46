"""Training steps that scripts write themselves, as for BERT: scaled losses, reduced and clipped gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

import mspc as ms
from mspc import nn
from mspc.commands.run import run_script
from mspc.communication import init
from mspc.ir.diagnostics import MspcError

pytestmark = pytest.mark.usefixtures("own_folder")
SCRIPT = """
import numpy as np
import mindspore as ms
import mindspore.common.dtype as mstype
from mindspore import Parameter, Tensor, context, nn
from mindspore.communication import get_group_size, get_rank, init
from mindspore.context import ParallelMode
from mindspore.nn.wrap.grad_reducer import DistributedGradReducer
from mindspore.ops import composite as C
from mindspore.ops import functional as F
from mindspore.ops import operations as P
from mindspore.parallel._utils import _get_device_num, _get_gradients_mean, _get_parallel_mode

init()
MODE = "{mode}"
context.set_auto_parallel_context(parallel_mode=MODE)

clip_grad = C.MultitypeFuncGraph("clip_grad")
@clip_grad.register("Number", "Number", "Tensor")
def _clip_grad(clip_type, clip_value, grad):
    if clip_type not in (0, 1):
        return grad
    dt = F.dtype(grad)
    if clip_type == 0:
        low, high = F.cast(F.tuple_to_array((-clip_value,)), dt), F.cast(F.tuple_to_array((clip_value,)), dt)
        return C.clip_by_value(grad, low, high)
    return nn.ClipByNorm()(grad, F.cast(F.tuple_to_array((clip_value,)), dt))

grad_scale = C.MultitypeFuncGraph("grad_scale")
reciprocal = P.Reciprocal()
@grad_scale.register("Tensor", "Tensor")
def tensor_grad_scale(scale, grad):
    return grad * F.cast(reciprocal(scale), F.dtype(grad))

_grad_overflow = C.MultitypeFuncGraph("_grad_overflow")
@_grad_overflow.register("Tensor")
def _tensor_grad_overflow(grad):
    return P.FloatStatus()(grad)

class Step(nn.Cell):
    def __init__(self, network, optimizer, scale_update_cell):
        super().__init__(auto_prefix=False)
        self.network = network
        self.network.add_flags(defer_inline=True)
        self.weights = optimizer.parameters
        self.optimizer = optimizer
        self.grad = C.GradOperation(get_by_list=True, sens_param=True)
        self.grad_reducer = F.identity
        self.degree = 1
        if _get_parallel_mode() in (ParallelMode.DATA_PARALLEL, ParallelMode.HYBRID_PARALLEL):
            self.degree = _get_device_num()
            self.grad_reducer = DistributedGradReducer(optimizer.parameters, _get_gradients_mean(), self.degree)
        self.is_distributed = _get_parallel_mode() != ParallelMode.STAND_ALONE
        self.cast = P.Cast()
        self.base = Tensor(1, mstype.float32)
        self.less_equal = P.LessEqual()
        self.reduce_sum = P.ReduceSum(keep_dims=False)
        self.hyper_map = C.HyperMap()
        self.loss_scale = Parameter(Tensor(scale_update_cell.get_loss_scale(), dtype=mstype.float32), name="loss_scale")
        self.loss_scaling_manager = scale_update_cell

    def construct(self, x, y, sens=None):
        weights = self.weights
        loss = self.network(x, y)
        scaling_sens = self.loss_scale if sens is None else sens
        sensitivity = self.cast(F.tuple_to_array((1.0,)) * scaling_sens, mstype.float32)  # of shape (1,)
        grads = self.grad(self.network, weights)(x, y, sensitivity)
        grads = self.grad_reducer(grads)
        grads = self.hyper_map(F.partial(grad_scale, scaling_sens * self.degree), grads)
        grads = self.hyper_map(P.Partial()(clip_grad, {clip}), grads)
        flag_sum = self.reduce_sum(P.AddN()(self.hyper_map(F.partial(_grad_overflow), grads)), (0,))
        cond = self.less_equal(self.base, flag_sum)
        overflow = self.loss_scaling_manager(self.loss_scale, cond)
        if overflow:
            succ = False
        else:
            succ = self.optimizer(grads)
        return F.depend(loss, succ), cond, scaling_sens.value()

rng = np.random.default_rng(0)
data = [(rng.standard_normal((8, 4)).astype(np.float32), rng.standard_normal((8, 3)).astype(np.float32)) for _ in "123"]
net = nn.WithLossCell(nn.Dense(4, 3, Tensor(rng.standard_normal((3, 4)), ms.float32), "zeros"), nn.MSELoss())
net.set_train()
step = Step(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), nn.DynamicLossScaleUpdateCell(2.0**10, 2, 2))
rows = 8 // get_group_size()
for x, y in data:
    part = slice(get_rank() * rows, (get_rank() + 1) * rows)
    loss, cond, scale = step(Tensor(x[part]), Tensor(y[part]))
    assert not cond.asnumpy()
print(np.concatenate([p.asnumpy().ravel() for p in net.trainable_params()]).tolist(), float(scale.asnumpy()))
"""


def trained(
    mode: str, ranks: int, clip: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[list[str], str]:
    (folder / "step.py").write_text(SCRIPT.replace("{mode}", mode).replace("{clip}", clip))
    run_script(folder / "step.py", ranks, simulate=True)
    said = capsys.readouterr()
    return said.out.splitlines(), said.err


@pytest.mark.parametrize("clip", ["1, 0.5", "0, 0.1"])
@pytest.mark.parametrize("mode", ["data_parallel", "hybrid_parallel", "semi_auto_parallel"])
def test_a_step_of_a_script_s_own_trains_as_one_device(
    mode: str, clip: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the gradients that the script adds up are clipped before they are used."""
    (expected,), _ = trained("stand_alone", 1, clip, tmp_path, capsys)
    found, said = trained(mode, 2, clip, tmp_path, capsys)
    assert len(found) == 2
    assert said == ""
    for line in found:
        mine, theirs = numbers(line), numbers(expected)
        assert mine == pytest.approx(theirs, rel=1e-5, abs=1e-6)
    assert numbers(expected)[-1] == 2048.0


def numbers(line: str) -> list[float]:
    weights, scale = line.rsplit(" ", 1)
    return [float(number) for number in weights.strip("[]").split(",")] + [float(scale)]


BUILT_IN = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn
from mindspore.communication import get_group_size, get_rank, init

init()
ms.set_auto_parallel_context(parallel_mode="{mode}", gradients_mean=True)

class Clipped(nn.{base}):
    def construct(self, x, y):
        loss = self.network(x, y)
        grads = self.grad(self.network, self.weights)(x, y{sens})
        grads = self.grad_reducer(grads)
        self.optimizer(grads)
        return loss

net = nn.WithLossCell(nn.Dense(4, 3, "ones", "zeros"), nn.MSELoss())
step = Clipped(net, nn.SGD(net.trainable_params(), 0.1){scale})
assert step.reducer_flag == (get_group_size() > 1), step.reducer_flag
assert step.degree == get_group_size()
rows = 8 // get_group_size()
x = np.arange(32, dtype=np.float32).reshape(8, 4)[get_rank() * rows : (get_rank() + 1) * rows] / 10
for _ in range(2):
    step(Tensor(x), Tensor(x[:, :3] * 2))
print(net.trainable_params()[0].asnumpy().ravel().tolist(), 0.0)
"""


@pytest.mark.parametrize(
    ("base", "sens", "scale"),
    [
        ("TrainOneStepCell", ", ms.ops.fill(loss.dtype, loss.shape, self.sens)", ""),
        ("TrainOneStepWithLossScaleCell", ", self.cast_sens()", ", Tensor(1.0, ms.float32)"),
    ],
)
def test_a_cell_made_of_a_training_step_has_its_reducer(
    base: str, sens: str, scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found: dict[str, list[str]] = {}
    for mode, ranks in (("stand_alone", 1), ("data_parallel", 2), ("hybrid_parallel", 2)):
        text = BUILT_IN.format(mode=mode, base=base, sens=sens.replace("self.cast_sens()", "self.scale_sense"),
                               scale=scale)  # fmt: skip
        (tmp_path / "step.py").write_text(text)
        run_script(tmp_path / "step.py", ranks, simulate=True)
        found[mode] = capsys.readouterr().out.splitlines()
    (expected,) = found["stand_alone"]
    for line in found["data_parallel"] + found["hybrid_parallel"]:
        assert numbers(line) == pytest.approx(numbers(expected), rel=1e-5)


def test_a_reducer_has_no_place_where_gradients_are_complete() -> None:
    init()
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
    reducer = nn.DistributedGradReducer([])
    with pytest.raises(RuntimeError, match="gradients are those of all ranks already in this parallel mode"):
        reducer(())


def test_a_status_word_says_that_it_finds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(
        "from mindspore import ops\nstatus = ops.NPUAllocFloatStatus()()\n"
        "print(ops.NPUGetFloatStatus()(status).shape, ops.NPUClearFloatStatus()(status).asnumpy().sum())\n"
    )
    run_script(tmp_path / "net.py", 1, simulate=True)
    said = capsys.readouterr()
    assert said.out == "(8,) 0.0\n"
    assert said.err.startswith("warning: net.py:2:10: NPUAllocFloatStatus finds no overflow here: no device notes them")
    assert said.err.count("\n") == 1


def test_a_partial_function_of_the_graph_is_called_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import numpy as np\nimport mindspore as ms\nfrom mindspore import Tensor, ops\n"
        "def times(a, b):\n    return a * b\n"
        "@ms.jit\ndef call(x):\n    return ops.Partial()(times, x)()\n"
        "call(Tensor(np.ones(2, np.float32)))\n"
    )
    with pytest.raises(MspcError, match=r"times\(\) misses the argument 'b'"):
        run_script(tmp_path / "net.py", 1, simulate=True)


def test_what_branches_leave_otherwise_decides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "import numpy as np\nimport mindspore as ms\nfrom mindspore import Parameter, Tensor, ops\n"
        'p = Parameter(np.ones(2, np.float32), "p")\n'
        "@ms.jit\ndef call(x):\n"
        "    if x.sum() > 1.0:\n        done = ops.assign(p, x)\n    else:\n        done = False\n"
        "    return {}\n"
        "print(call(Tensor(np.ones(2, np.float32))), p.asnumpy())\n"
    )
    (tmp_path / "net.py").write_text(text.format("ops.depend(x, done)"))
    run_script(tmp_path / "net.py", 1, simulate=True)
    capsys.readouterr()
    for use, result in (
        ("x + done", "[2. 2.]"), ("done", "[1. 1.]"), ("-x if isinstance(done, bool) else x", "[1. 1.]")
    ):  # fmt: skip
        (tmp_path / "net.py").write_text(text.format(use))
        run_script(tmp_path / "net.py", 1, simulate=True)
        assert capsys.readouterr().out == f"{result} [1. 1.]\n"
    for use in (
        "x if done else -x", "x if done is False else -x", "x if done == 1 else -x", "ops.stack((x, done))", "done[0]",
        "not done",
    ):  # fmt: skip
        (tmp_path / "net.py").write_text(text.format(use))
        with pytest.raises(MspcError, match=r"False, depending on the contents of a tensor|False has no elements"):
            run_script(tmp_path / "net.py", 1, simulate=True)
