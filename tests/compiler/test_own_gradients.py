"""Modes that run the script's own collectives alone: gradients that none of them reduces are named once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.verify_folder import verify_folder
from mspc.compiler.driver import DumpPoint
from mspc.mindspore_api.common.api import _cell_graph_executor
from tests.compiled_scripts import compiled_script, run_script, verify_scale, verify_target, verify_text
from tests.errors import error_of
from tests.graphs import Collective, MspcError
from tests.texts import IMPORTS

pytestmark = pytest.mark.usefixtures("own_folder")
NETWORK = IMPORTS + """
from mindspore.communication import init, get_rank
init()
ms.set_auto_parallel_context(parallel_mode="{mode}")

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(np.ones((8, 4), np.float32), "w")
        self.b = Parameter(np.ones((4,), np.float32), "b"{flag})
        self.matmul = ops.MatMul()
        self.all_reduce = ops.AllReduce()
    def construct(self, x):
        return self.matmul(x, self.w) + self.b

net = Net()
optimizer = nn.SGD(net.trainable_params(), 0.1)
loss_of = nn.WithLossCell(net, nn.MSELoss())
all_reduce, all_gather = ops.AllReduce(), ops.AllGather()
x = Tensor(np.full((4, 8), 1.0 + get_rank()), ms.float32)
y = Tensor(np.ones((4, 4)), ms.float32)
"""
MODEL = "nn.TrainOneStepCell(loss_of, optimizer)(x, y)"
FUNCTION = """
grad_fn = ms.value_and_grad({forward}, None, optimizer.parameters)
@ms.jit
def step(x, y):
    loss, grads = grad_fn(x, y)
    {reduce}
    optimizer(grads)
    return loss
step(x, y)
"""
RETURNED = """
loss, grads = ms.value_and_grad(loss_of, None, optimizer.parameters)(x, y)
optimizer(grads)
"""
FOUND = (
    "warning: hybrid_parallel mode runs the script's own collectives only, and none of them reduces the gradients of "
)


def function(reduce: str = "pass", forward: str = "loss_of") -> str:
    return FUNCTION.format(reduce=reduce, forward=forward)


CASES = {
    "a training step, which reduces": (MODEL, "", ""),
    "a training step, which leaves what differs by intent": (MODEL, ", layerwise_parallel=True", ""),
    "a training step whose reducer was taken out": (
        f"step = {MODEL.replace('(x, y)', '')}\nstep.grad_reducer = nn.Identity()\nstep(x, y)", "", "w, b",
    ),
    "a step written out": (function(), "", "w, b"),
    "all gradients reduced": (function("grads = (all_reduce(grads[0]), all_reduce(grads[1]))"), "", ""),
    "means of gradients": (function("grads = (all_reduce(grads[0]) / 2, all_reduce(grads[1]) * 0.5)"), "", ""),
    "one gradient reduced": (function("grads = (all_reduce(grads[0]), grads[1])"), "", "b"),
    "gathered and added": (
        function("grads = (all_gather(grads[0]).reshape((-1, 8, 4)).sum(0), all_reduce(grads[1]))"), "", "",
    ),
    "a loss that is reduced, which reduces no gradient": (
        function(forward="lambda x, y: all_reduce(loss_of(x, y))"), "", "w, b",
    ),
    "a reducer": (
        "reducer = nn.DistributedGradReducer(optimizer.parameters)\n" + function("grads = reducer(grads)"), "", "",
    ),
    "a reducer, which leaves what differs by intent": (
        "reducer = nn.DistributedGradReducer(optimizer.parameters)\n" + function("grads = reducer(grads)"),
        ", layerwise_parallel=True", "",
    ),
    "gradients that leave the graph": (RETURNED, "", "w, b"),
}  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize("case", CASES)
def test_gradients_that_nobody_reduces_are_named_once(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, flag, names = CASES[case]
    script = tmp_path / "net.py"
    script.write_text(NETWORK.format(mode="hybrid_parallel", flag=flag) + text)
    compile_target(str(tmp_path / "net.py"), CompileOptions(ranks=2))
    compiled = capsys.readouterr().err
    assert compiled == "" if not names else compiled.startswith(f"{FOUND}{names}: they will differ between ranks; use")
    run_script(script, 2, simulate=True)
    assert capsys.readouterr().err == compiled
    run_script(script, 1, simulate=True)
    assert capsys.readouterr().err == ""


EQUAL_LAYERS = """
class Layer(nn.Cell):
    @ms.lazy_inline
    def __init__(self):
        super().__init__()
        self.v = Parameter(np.eye(4, dtype=np.float32), "v")

    def construct(self, x):
        return ops.tanh(ops.matmul(x, self.v))


net.layers = nn.CellList([Layer() for _ in range(3)])


def deep(x, y):
    x = net(x)
    for layer in net.layers:
        x = layer(x)
    return ((x - y) ** 2).mean()


optimizer = nn.SGD(net.trainable_params(), 0.1)
reducer = nn.DistributedGradReducer(optimizer.parameters)
"""


@pytest.mark.parametrize("reduces", [True, False])
def test_gradients_of_equal_layers_are_named_too(
    reduces: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = function("grads = reducer(grads)" if reduces else "pass", "deep")
    (tmp_path / "net.py").write_text(NETWORK.format(mode="hybrid_parallel", flag="") + EQUAL_LAYERS + step)
    compile_target(str(tmp_path / "net.py"), CompileOptions(ranks=2))
    names = "w, b, layers.0.v, layers.1.v, layers.2.v"
    said = capsys.readouterr().err
    assert said == "" if reduces else said.startswith(f"{FOUND}{names}: they will differ between ranks; use")


def test_other_modes_need_no_such_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("data_parallel", "stand_alone", "semi_auto_parallel"):
        (tmp_path / "net.py").write_text(NETWORK.format(mode=mode, flag="") + MODEL)
        compile_target(str(tmp_path / "net.py"), CompileOptions(ranks=2))
        assert capsys.readouterr().err == ""


def test_in_stand_alone_mode_a_graph_that_meets_others_is_named_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that meets nobody is trained by a rank of its own."""
    loss = function(forward="lambda x, y: all_reduce(loss_of(x, y))")
    for text, names in ((loss, "w, b"), (function(), ""), (CASES["a reducer"][0], "")):
        (tmp_path / "net.py").write_text(NETWORK.format(mode="stand_alone", flag="") + text)
        compile_target(str(tmp_path / "net.py"), CompileOptions(ranks=2))
        said = capsys.readouterr().err
        expected = FOUND.replace("hybrid_parallel", "stand_alone")
        assert said.startswith(f"{expected}{names}: they will differ") if names else said == ""


REDUCER = """
def gradients(dtype):
    return tuple(Tensor(np.full(3, get_rank() + 1.0), dtype) for _ in range(2))
pair = [Parameter(np.ones(3, np.float32), "p"), Parameter(np.ones(3, np.float32), "q", layerwise_parallel=True)]
for reducer in (nn.DistributedGradReducer(pair), nn.DistributedGradReducer(pair, mean=True, degree=4)):
    for dtype in (ms.float32, ms.float16):
        found = reducer(gradients(dtype))
        assert all(each.dtype == dtype for each in found)
        print([float(each.asnumpy()[0]) for each in found])
"""


def test_a_reducer_adds_up_what_is_not_by_intent_a_rank_s_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(NETWORK.format(mode="hybrid_parallel", flag="") + REDUCER)
    run_script(tmp_path / "net.py", 2, simulate=True)
    lines = capsys.readouterr().out.splitlines()
    expected = [f"[{first}, {own}]" for own in (1.0, 2.0) for first in (3.0, 3.0, 0.75, 0.75)]
    assert sorted(lines) == sorted(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("[], mean=2", "DistributedGradReducer: mean must be True or False or None, not 2"),
        ("[], degree=0", "DistributedGradReducer: degree must be a number from 1 on, not 0"),
        ('[], group="x"', "there is no group 'x'; known are hccl_world_group"),
    ],
)
def test_what_a_reducer_refuses(arguments: str, message: str, tmp_path: Path) -> None:
    text = f"nn.DistributedGradReducer({arguments})\n"
    (tmp_path / "net.py").write_text(NETWORK.format(mode="hybrid_parallel", flag="") + text)
    assert error_of(run_script, tmp_path / "net.py", 1, simulate=True).message == message


def test_the_scripts_own_collectives_keep_the_ranks_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reduced = function("grads = (all_reduce(grads[0]) / 2, all_reduce(grads[1]) / 2)")
    shown = "print(float(net.w.asnumpy().sum()), float(net.b.asnumpy().sum()))\n"
    script = tmp_path / "net.py"
    script.write_text(NETWORK.format(mode="hybrid_parallel", flag="") + reduced + shown)
    run_script(script, 2, simulate=True)
    said = capsys.readouterr()
    assert said.err == ""
    assert len(set(said.out.splitlines())) == 1


@pytest.mark.parametrize("mode", ["hybrid_parallel", "stand_alone"])
def test_there_is_nothing_to_verify(mode: str, tmp_path: Path) -> None:
    """A sum over ranks that one device alone would wait for."""
    script, folder = tmp_path / "net.py", tmp_path / "out"
    script.write_text(NETWORK.format(mode=mode, flag="") + function(forward="lambda x, y: all_reduce(loss_of(x, y))"))
    for verify in (verify_target, verify_scale):
        with pytest.raises(MspcError, match=f"in {mode} mode the script's own collectives decide"):
            verify(str(script), CompileOptions(ranks=2), 0)
    compile_target(str(script), CompileOptions(ranks=2, out=folder))
    with pytest.raises(MspcError, match="does not say what one device computes"):
        verify_folder(folder, CompileOptions(), 0)


def test_ranks_that_do_not_meet_are_verified(tmp_path: Path) -> None:
    verify_text(tmp_path, NETWORK.format(mode="stand_alone", flag="") + MODEL, CompileOptions(ranks=2), seed=0)


SCALED = """
step = nn.TrainOneStepWithLossScaleCell(loss_of, optimizer, nn.DynamicLossScaleUpdateCell(4.0, 2, 9))
step(x, Tensor(np.full((4, 4), np.inf if get_rank() else 1.0), ms.float32))
print(step.scale_sense.asnumpy())
"""


@pytest.mark.parametrize("mode", ["data_parallel", "hybrid_parallel"])
def test_a_rank_s_own_gradient_that_overflows_is_everybody_s_overflow(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = NETWORK.replace('(np.ones((8, 4), np.float32), "w")', '(np.ones((8, 4), np.float32), "w"{flag})')
    (tmp_path / "net.py").write_text(own.format(mode=mode, flag=", layerwise_parallel=True") + SCALED)
    run_script(tmp_path / "net.py", 2, simulate=True)
    assert capsys.readouterr().out.split() == ["2.0", "2.0"]


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("mode", ["data_parallel", "hybrid_parallel"])
def test_a_step_leaves_a_rank_its_own_parameters(
    mode: str, mean: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = NETWORK.replace('"{mode}"', f'"{mode}", gradients_mean={mean}')
    shown = "\nprint(float(net.w.asnumpy().sum()), float(net.b.asnumpy().sum()))\n"
    sums: dict[str, list[set[str]]] = {}
    for flag in ("", ", layerwise_parallel=True"):
        (tmp_path / "net.py").write_text(network.format(flag=flag) + MODEL + shown)
        run_script(tmp_path / "net.py", 2, simulate=True)
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        sums[flag] = [set(column) for column in zip(*lines, strict=True)]
    everyone, own = sums.values()
    assert [len(found) for found in everyone] == [1, 1]
    assert [len(found) for found in own] == [1, 2]
    assert own[0] == everyone[0]
    assert float(*own[0]) == pytest.approx(0.0 if mean else -32.0, abs=1e-4)  # gradients of 4 and 16 at a rate of 0.1


def _grads(cell: nn.Cell, *args: Tensor) -> list[np.ndarray]:
    found = ms.grad(cell, tuple(range(len(args))))(*args)
    return [grad.asnumpy() for grad in (found if isinstance(found, tuple) else (found,))]


class Doubled(nn.Cell):
    def construct(self, x, y):
        return x * y, x - y

    def bprop(self, x, y, out, dout):
        return dout[0] * 2 + out[0], dout[1] * 3


class Around(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Doubled()

    def construct(self, x):
        product, difference = self.inner(x, x * x)
        return (product**2).sum() + (difference * x).sum()


def test_the_gradient_of_a_cell_is_its_own() -> None:
    x = np.array([1.0, 2.0, -0.5], np.float32)
    product, dproduct, ddifference = x**3, 2 * x**3, x
    expected = 2 * dproduct + product + 3 * ddifference * 2 * x + (x - x * x)
    np.testing.assert_allclose(_grads(Around(), Tensor(x))[0], expected, rtol=1e-6)
    np.testing.assert_allclose(Around()(Tensor(x)).asnumpy(), (x**6).sum() + ((x - x * x) * x).sum(), rtol=1e-6)


def test_a_gradient_that_is_given_is_differentiated_again() -> None:
    class Cubed(nn.Cell):
        def construct(self, x):
            return x * x * x

        def bprop(self, x, out, dout):
            return dout * 4 * x * x

    x = Tensor(np.array([1.0, 2.0], np.float32))
    np.testing.assert_allclose(ms.grad(ms.grad(Cubed()))(x).asnumpy(), [8.0, 16.0])


def test_no_operator_of_a_gradient_is_left_where_none_is_taken() -> None:
    phase, _ = _cell_graph_executor.compile(Around(), Tensor(np.ones(3, np.float32)))
    names = [name.partition("-")[0] for name in _cell_graph_executor.get_parallel_graph_info(phase)["@graph_0"]]
    assert not {"OwnGradient", "GradientPlaceholder"} & {*names}
    assert names.count("Mul") == 3  # x * x, x * y, difference * x


X = Tensor(np.array([1, 2], np.float32))


def of(run: Any) -> list[float]:
    return ms.grad(run)(X).asnumpy().tolist()


@ms._no_grad()
def constant(x):
    return x * x


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = ms.Parameter(Tensor([2.0, 3.0]), name="w")
        self.average = ms.Parameter(Tensor([0.0, 0.0]), name="average", requires_grad=False)

    def construct(self, x):
        y = x * self.w
        with ms._no_grad():
            self.average = self.average * 0.5 + y
            scale = 1 / self.average
        return (y * scale).sum()

    @ms._no_grad()
    def frozen(self, x):
        return x * self.w


def test_values_computed_inside_have_no_gradient() -> None:
    def with_context(x):
        with ms._no_grad():
            y = x * x
            z = [y * 2, x]
        return (z[0] * z[1]).sum()

    def returned(x):
        with ms._no_grad():
            return (x * x).sum()

    def in_loop(x):
        i = Tensor(0)
        total = x
        while i < 2:
            with ms._no_grad():
                factor = total * 2 if total.sum() > 0 else total
            total = total + x * factor
            i += 1
        return total.sum()

    assert of(with_context) == [2, 8]
    assert of(returned) == [0, 0]
    assert of(lambda x: (constant(x) + x * 3).sum()) == [3, 3]
    assert of(lambda x: (ops.relu(x) * x + constant(x)).sum()) == [2, 4]
    # total: x, then x + 2 x², then that and x (2 x + 4 x²)
    assert of(in_loop) == [1 + 2 + 6, 1 + 4 + 20]


def test_calls_inside_and_outside_are_apart() -> None:
    def square(x):
        return (x * x).sum()

    def run(x):
        with ms._no_grad():
            first = square(x)
        return square(x) * 3 + first

    assert of(run) == [6, 12]


def test_cells_and_methods() -> None:
    net = Net()
    of_input, of_weight = ms.grad(net, 0, net.w)(X)
    assert of_input.asnumpy().tolist() == [1, 0.5]
    assert of_weight.asnumpy().tolist() == [0.5, np.float32(1 / 3)]
    assert net.average.asnumpy().tolist() == [2, 6]
    assert of(lambda x: (net.frozen(x) * x).sum()) == [2, 6]
    assert net.frozen(X).asnumpy().tolist() == [2, 6]


def test_gradients_are_refused_inside() -> None:
    def run(x):
        return (x * x).sum()

    def inner(x):
        with ms._no_grad():
            return ms.grad(run)(x)

    with pytest.raises(MspcError, match=r"grad\(\) is called inside _no_grad\(\)"), ms._no_grad():
        ms.grad(run)(X)
    with pytest.raises(MspcError, match=r"grad\(\) is called inside _no_grad\(\)"):
        ms.jit(inner)(X)
    assert of(run) == [2, 4]
    assert ms.common._no_grad is ms._no_grad


SCRIPT = IMPORTS + """
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, full_batch=True)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("normal", [32, 16]), "w")
        self.matmul = ops.MatMul().shard(((2, 4), (4, 1)))
        self.relu = ops.ReLU().shard(((2, 4),))
        self.add = ops.Add().shard(((4, 2), (4, 2)))
    def construct(self, x, y):
        return self.add(self.relu(self.matmul(x, self.w)), y)
class Gradients(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.grad = ops.GradOperation(get_all=True)
    def construct(self, x, y):
        return self.grad(self.net)(x, y)
Gradients(Net())(Tensor(np.ones([16, 32]), ms.float32), Tensor(np.ones([16, 16]), ms.float32))
"""


def test_unused_operators_are_shown_but_not_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    names: dict[str, list[str]] = {}

    def note(stage: DumpPoint) -> None:
        names[stage.name] = [node.instance for node in stage.graph.nodes if node.instance]

    compiled = compiled_script(script, 8, look=note)
    graph = compiled.rank_graph(0, note)
    assert names["step_parallel_begin"] == ["matmul", "relu", "add"]
    assert names["slice_to_rank"] == ["matmul", "relu", "add"]
    assert names["execute"] == ["matmul", "relu"]
    needed = [node for node in graph.nodes if isinstance(node.op, Collective) and "'add'" in node.attrs["reason"]]
    assert needed == []
