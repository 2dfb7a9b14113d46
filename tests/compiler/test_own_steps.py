"""Training steps that scripts write themselves, as for BERT: scaled losses, reduced and clipped gradients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.communication import init
from mspc.ops.collective.collectives import Collective
from tests.compiled_scripts import CompileOptions, Config, compile_call, run_script, verify_target
from tests.graphs import REGISTRY, ExecutionError, MspcError, parse, print_graph
from tests.mindspore_api.nn.training import Training, floats

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


X = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
signed = ops.MultitypeFuncGraph("signed")


@signed.register("Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "Bool", "Bool")
def _update(
    beta1: Any, beta2: Any, rate: Any, decay: Any, parameter: Any, moment: Any, gradient: Any, decays: Any, own: Any
) -> Any:
    if not own:
        return gradient
    value = parameter * (1 - rate * decay) if decays else parameter
    value = value - rate * ops.sign(beta1 * moment + (1 - beta1) * gradient)
    value = ops.depend(value, ops.assign(parameter, value))
    return ops.depend(value, ops.assign(moment, beta2 * moment + (1 - beta2) * gradient))


class Signed(nn.Optimizer):
    """Steps by the sign of a running mean, spelled as public code spells its optimizers."""

    def __init__(self, params: Any, learning_rate: Any, weight_decay: Any = 0.0, loss_scale: float = 1.0) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        self.betas = Tensor([0.9], ms.float32), Tensor([0.99], ms.float32)
        self.moments = self._parameters.clone(prefix="moment", init="zeros")

    def construct(self, gradients: Any) -> Any:
        gradients = self.scale_grad(self.gradients_centralization(self.flatten_gradients(gradients)))
        decay, rate = self.get_weight_decay(), self.get_lr()
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        rest = (self._parameters, self.moments, gradients, self.decay_flags, self.optim_filter)
        if not self.is_group:
            result = self.hyper_map(ops.partial(signed, *self.betas, rate, decay), *rest)
        elif self.is_group_lr:
            result = self.hyper_map(ops.partial(signed, *self.betas), rate, decay, *rest)
        else:
            result = self.hyper_map(ops.partial(signed, *self.betas, rate), decay, *rest)
        if self.use_parallel:
            self.broadcast_params(result)
        return result


class Rolling(nn.Optimizer):
    """Momentum, as the tutorials write it."""

    def __init__(self, params: Any, learning_rate: Any, weight_decay: float = 0.0, loss_scale: float = 1.0) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        self.moments = self.parameters.clone(prefix="moments", init="zeros")

    def construct(self, gradients: Any) -> Any:
        gradients = self.scale_grad(self.decay_weight(gradients))
        rate = self.get_lr()
        for i in range(len(self.parameters)):
            ops.assign(self.moments[i], self.moments[i] * 0.9 + gradients[i])
            ops.assign(self.parameters[i], self.parameters[i] - self.moments[i] * rate)
        return self.parameters


class Decay(nn.Cell):
    def construct(self, step: Any) -> Any:
        return Tensor(0.1, ms.float32)


def grouped(params: list[Any], **settings: Any) -> list[dict[str, Any]]:
    return [{"params": params[:2], **settings}, {"params": params[2:]}]


SCHEDULE = nn.ExponentialDecayLR(0.1, 0.5, 2)
CASES: list[tuple[Callable[[list[Any]], Any], list[float]]] = [
    (lambda p: Signed(p, SCHEDULE, 0.05, 2.0), [0.05905, -4.5229, 0.05216, 1.16567, -2.61342, 0.17566]),
    (lambda p: Signed(grouped(p, weight_decay=0.2), 0.01, 0.05),
     [0.26326, -4.49492, 0.47275, 0.98283, -2.24082, 0.32108]),
    (lambda p: Signed(grouped(p, lr=0.1), 0.01, 0.05), [0.2609, -4.45451, 0.51274, 0.98283, -2.18083, 0.34108]),
    (lambda p: Signed(p, 0.01, Decay(), 2.0), [0.26326, -4.49492, 0.47358, 0.98424, -2.23111, 0.31946]),
    (lambda p: Rolling(p, [0.05, 0.01, 0.02], 0.0, 2.0), [0.26485, -4.522, 0.46857, 1.13837, -2.36382, 0.22986]),
    (lambda p: Rolling(grouped(p, weight_decay=0.2), 0.05, 0.1, 2.0),
     [0.25012, -4.27048, 0.45356, 1.10949, -2.30104, 0.22092]),
]  # fmt: skip


@pytest.mark.parametrize(("make", "sums"), CASES)
def test_own_optimizers_step_as_in_mindspore(make: Callable[[list[Any]], Any], sums: list[float]) -> None:
    net = nn.SequentialCell(nn.Dense(3, 4), nn.LayerNorm((4,)), nn.Dense(4, 2))
    rng = np.random.default_rng(0)
    for parameter in net.get_parameters():
        parameter.set_data(Tensor(rng.standard_normal(parameter.shape).astype(np.float32)))
    optimizer = make(net.trainable_params())
    forward = ms.value_and_grad(lambda x: ops.square(net(x)).mean(), None, optimizer.parameters)
    for _ in range(3):
        _, gradients = forward(Tensor(X))
        optimizer(gradients)
    np.testing.assert_allclose([p.asnumpy().sum() for p in net.get_parameters()], sums, atol=2e-5)


def test_what_an_optimizer_knows_of_itself() -> None:
    net = nn.Dense(2, 2)
    plain = Rolling(net.trainable_params(), 0.1, 0.5, 4.0)
    assert (plain.is_group, plain.is_group_lr, plain.dynamic_lr, plain.need_scale) == (False, False, False, True)
    assert (plain.weight_decay.item(), plain.decay_flags, plain.param_length) == (2.0, (True, True), 2)
    groups = [{"params": [net.weight], "lr": [0.1, 0.2]}, {"params": [net.bias], "weight_decay": 0.0}]
    some = Rolling(groups, 0.1, 0.5)
    assert (some.is_group, some.is_group_lr, some.dynamic_lr, some.need_scale) == (True, True, True, False)
    assert (some.decay_flags, some.exec_weight_decay, some.dynamic_weight_decay) == ((True, False), True, False)


def test_an_optimizer_that_lars_drives_scales_and_decays_nothing_itself() -> None:
    inner = Rolling(nn.Dense(2, 2).trainable_params(), 0.1, 0.5, 4.0)
    assert (inner.need_scale, inner.exec_weight_decay) == (True, True)
    outer = nn.LARS(inner)
    assert (inner.need_scale, inner.loss_scale, inner.exec_weight_decay) == (False, 1.0, False)
    assert (outer.loss_scale, set(outer.weight_decays)) == (4.0, {0.5})


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
@pytest.mark.parametrize("strategy", ["data_parallel", "full_batch", ((4, 1), (4, 1))])
@pytest.mark.parametrize("parallel", [False, True])
def test_optimizer_parallel_cuts_what_is_updated(mode: str, strategy: object, parallel: bool) -> None:
    net = nn.Dense(8, 16)
    optimizer = nn.Adam(net.trainable_params(), 0.1)
    gradients = tuple(Tensor(np.ones(p.shape, np.float32)) for p in optimizer.parameters)
    config = Config(
        ranks=4, mode=mode, dataset_strategy=strategy, parallel_optimizer=parallel, parallel_optimizer_threshold=0
    )  # type: ignore[arg-type]  # a str or a tuple
    compiled = compile_call(optimizer, (gradients,), config)
    graph = compiled.rank_graph(0)
    shapes = {p.name: p.shape for p in graph.parameters if p.shape}
    rows = 4 if parallel else 16
    assert shapes["gradients0"] == (16, 8)
    assert shapes["weight"] == shapes["moment1.weight"] == shapes["moment2.weight"] == (rows, 8)
    assert shapes["bias"] == shapes["moment1.bias"] == (rows,)
    assert not any(isinstance(node.op, Collective) for node in graph.nodes)
    assert graph.results == [] == parse(print_graph(graph), REGISTRY).graphs[0].results
    assert compiled.traced.rebuild([]) == ((True, True, True), (True, True, True))


def test_what_an_optimizer_computes_besides_its_updates_is_handed_out() -> None:
    class Telling(nn.SGD):
        def construct(self, gradients: Any) -> Any:
            norm = ops.sqrt(ops.reduce_sum(ops.square(gradients[0])))
            return norm, super().construct(gradients)

    net = nn.Dense(2, 3)
    optimizer = Telling(net.trainable_params(), 0.1)
    gradients = tuple(Tensor(np.ones(p.shape, np.float32)) for p in optimizer.parameters)
    compiled = compile_call(optimizer, (gradients,), Config())
    assert [value.shape for value in compiled.graph.results] == [()]
    assert compiled.traced.rebuild([1.5]) == (1.5, (True, True))


GRADIENT_X, Y, W, V = floats(1, 4, 3), floats(2, 4, 1), floats(3, 3, 1), floats(4, 1, 1)


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
        nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.5)), [GRADIENT_X.shape, Y.shape], 2, "data_parallel",
        gradients_mean=True,
    )  # fmt: skip
    training.run([(GRADIENT_X, Y)])
    of_ranks = [
        slope(W - 0.1 * slope(W, GRADIENT_X[i : i + 2], Y[i : i + 2]), GRADIENT_X[i : i + 2], Y[i : i + 2])
        for i in (0, 2)
    ]
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
    batches, shapes = [(GRADIENT_X, Y), (GRADIENT_X, Y)], [GRADIENT_X.shape, Y.shape]
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
