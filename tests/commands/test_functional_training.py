"""The functional form: a launch hands gradients to the script, which hands them to the optimizer in another launch.

Losses and parameters are one device's, however parameters are sharded and whatever the script does with the gradients.
"""

from pathlib import Path

import numpy as np
import pytest

from mspc.commands.run import run_script
from tests.serving import SERVED, succeed
from tests.shares import is_taken
from tests.texts import IMPORTS

SCRIPT = """
import sys
import numpy as np
import mindspore as ms
from mindspore import amp, nn, ops, Parameter, Tensor
from mindspore.communication import get_group_size, get_rank, init
from mindspore.parallel.auto_parallel import AutoParallel

out, mode, strategy, optimizer, between = sys.argv[1:]
init()
rank, size = get_rank(), get_group_size()
own = size > 1 and strategy != "full_batch"
more = {"enable_parallel_optimizer": True} if mode.endswith("+") else {}
if more:
    more["parallel_optimizer_config"] = {"parallel_optimizer_threshold": 0}
if size > 1 and mode != "wrapped":
    data = ((size, 1), (size, 1)) if strategy == "tuples" else strategy
    ms.set_auto_parallel_context(parallel_mode=mode.rstrip("+"), dataset_strategy=data, **more)


def drawn(seed, *shape):
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 0.3)


class Net(nn.Cell):
    # One parameter has as many rows as the batch, another is as large as the batch.
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(16, 32, drawn(1, 32, 16), drawn(2, 32))
        self.second = nn.Dense(32, 16, drawn(3, 16, 32), drawn(4, 16))
        self.scale = Parameter(drawn(5, 16, 16), "scale")

    def construct(self, x):
        return self.second(ops.relu(self.first(x))) * self.scale


net = Net()
if size > 1:
    net.first.shard(in_strategy=((1, size),), parameter_plan={"self.weight": (size, 1)})
loss_fn = nn.MSELoss()
# Adam with its own eps makes steps of full length of gradients that are rounding alone.
more = {"Momentum": {"momentum": 0.9}, "Adam": {"eps": 1e-3}}.get(optimizer, {})
opt = getattr(nn, optimizer)(net.trainable_params(), 0.1, **more)


def forward(x, y):
    logits = net(x)
    return loss_fn(logits, y), logits


grad_fn = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)
step = AutoParallel(lambda x, y: grad_fn(x, y), parallel_mode="semi_auto") if mode == "wrapped" else grad_fn
total = None


def changed(grads):
    global total
    if between == "looks" and rank == 0:
        print([float(np.linalg.norm(g.asnumpy())) for g in grads])
    if between == "numpy":
        return tuple(Tensor(np.clip(g.asnumpy(), -0.01, 0.01)) for g in grads)
    if between == "methods":
        return [g.clip(-0.01, 0.01) * 2 for g in grads]
    if between == "norm":
        return ops.clip_by_global_norm(grads, 0.05)
    if between == "compiled":
        return ms.jit(lambda g: ops.clip_by_global_norm(g, 0.05))(grads)
    if between == "scaled":
        return amp.StaticLossScaler(4.0).unscale(grads)
    if between == "summed":
        total = grads if total is None else tuple(a + g for a, g in zip(total, grads))
        return total
    if between == "decayed":
        return tuple(g + 0.1 * p for g, p in zip(grads, opt.parameters))
    return grads


def update(grads):
    return opt(grads)


losses = []
for number in range(3):
    x, y = drawn(10 + number, 16, 16), drawn(20 + number, 16, 16)
    part = slice(rank * (16 // size), (rank + 1) * (16 // size)) if own else slice(None)
    (loss, logits), grads = step(Tensor(x.asnumpy()[part]), Tensor(y.asnumpy()[part]))
    assert logits.shape == (16 if strategy == "tuples" or not own else 16 // size, 16), logits.shape
    assert [g.shape for g in grads] == [p.shape for p in opt.parameters]
    (ms.jit(update) if between in ("in a function", "decayed") else opt)(changed(grads))
    losses.append(float(loss))
found = {p.name: p.asnumpy() for p in opt.get_parameters()}
if rank == 0:
    np.savez(out, losses=losses, **found)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "functional.py"
    path.write_text(SCRIPT)
    return path


def _trained(script: Path, ranks: int, *arguments: str, simulate: bool = True) -> dict[str, np.ndarray]:
    out = script.parent / f"{ranks}.npz"
    given = (str(out), *arguments)
    if simulate:
        run_script(script, ranks, True, script_arguments=given)
    else:
        succeed(*SERVED, "run", str(script), "--ranks", str(ranks), "--", *given)
    with np.load(out) as found:
        return dict(found)


_ALONE: dict[tuple[bool | str, ...], dict[str, np.ndarray]] = {}
"""The results of one device, for which the script sets neither a mode nor a strategy."""


def _compare(script: Path, ranks: int, *arguments: str, simulate: bool = True) -> None:
    mode, _, *more = arguments
    key = (mode == "wrapped", *more)
    if key not in _ALONE:
        _ALONE[key] = _trained(script, 1, *arguments)
    expected = _ALONE[key]
    found = _trained(script, ranks, *arguments, simulate=simulate)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


MODES = ["semi_auto_parallel", "auto_parallel", "semi_auto_parallel+", "auto_parallel+", "wrapped"]
OF_MODES = [(mode, name) for place, mode in enumerate(MODES) for turn, name in enumerate(["Momentum", "Adam", "Lamb"])
            if is_taken(place + turn, 3)]  # fmt: skip
"""Every mode with one optimizer, under `--thorough` with all of them."""


@pytest.mark.parametrize(("mode", "optimizer"), OF_MODES)
def test_gradients_go_through_the_script_to_the_optimizer(script: Path, mode: str, optimizer: str) -> None:
    _compare(script, 4, mode, "data_parallel", optimizer, "nothing")


@pytest.mark.parametrize("strategy", ["full_batch", "tuples"])
@pytest.mark.parametrize("between", ["nothing", "in a function"])
def test_however_data_arrive(script: Path, strategy: str, between: str) -> None:
    _compare(script, 2, "semi_auto_parallel", strategy, "Momentum", between)


@pytest.mark.parametrize(
    "between",
    ["looks", "numpy", "methods", "norm", "compiled", "scaled", "summed", "in a function", "decayed"],
)
def test_what_the_script_does_with_gradients_in_between(script: Path, between: str) -> None:
    _compare(script, 4, "semi_auto_parallel", "data_parallel", "Momentum", between)


def test_under_mpirun(script: Path) -> None:
    _compare(script, 4, "semi_auto_parallel+", "data_parallel", "Momentum", "norm", simulate=False)


APART = IMPORTS + """
from mindspore.communication import get_rank, init
init()
ms.set_auto_parallel_context(parallel_mode="data_parallel")
net = nn.Dense(4, 2)
opt = nn.SGD(net.trainable_params(), 0.1)
loss, grads = ms.value_and_grad(lambda x: ops.reduce_mean(net(x)), None, opt.parameters)(Tensor(np.ones((2, 4), np.float32)))
for _ in range(2):
    opt(grads)
"""  # noqa: E501


def test_data_parallel_mode_says_that_it_does_not_add_such_gradients(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(APART)
    run_script(script, 2, True)
    said = capsys.readouterr().err
    assert said.count("warning: SGD is called with gradients in mode data_parallel: they are each rank's own") == 1
    run_script(script, 1, True)
    assert "SGD is called" not in capsys.readouterr().err
