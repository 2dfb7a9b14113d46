"""Ranks that train together and do not begin alike are told what differs, and those that may differ are not."""

import linecache
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.run import run_script
from tests.errors import error_of
from tests.texts import IMPORTS

TEXT = IMPORTS + """
from mindspore.communication import get_rank, init
from mindspore.train import Model
import mindspore.dataset as ds

init()
rank, size = get_rank(), 2
ms.set_seed(SEED)
ms.set_auto_parallel_context(parallel_mode="MODE", dataset_strategy="data_parallel" MORE)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.asarray(np.ones((8, 4)) + VALUES, np.float32)), name="w")
        self.dense = nn.Dense(4, 4)
        self.large = Tensor(np.arange(4096, dtype=np.float32).reshape(1024, 4) + LARGE)
        self.sum = ops.ReduceSum().shard(((1, 1),))
        self.product = ops.MatMul().shard(((1, 1), (1, CUT)))

    def construct(self, x):
        return self.dense(self.product(x, self.w)) + self.sum(self.large, 0) CONSTANT


class Growing(nn.LearningRateSchedule):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def construct(self, step):
        return self.rate * ops.cast(step + 1, ms.float32)


class Plain(nn.Optimizer):
    def __init__(self, parameters, rate):
        super().__init__(0.1, parameters)
        self.factor = rate

    def construct(self, gradients):
        for parameter, gradient in zip(self.parameters, gradients):
            ops.assign_sub(parameter, self.factor * gradient)
        return True


net = Net()
LOADED
optimizer = nn.OPTIMIZER
rows = np.ones((8, 8), np.float32) * (1 + rank * DATA), np.ones((8, 4), np.float32)
data = ds.NumpySlicesDataset(rows, ["x", "y"], shuffle=False).batch(4)
if rank == 0:
    print("only rank 0 says this")
Model(net, nn.MSELoss(), optimizer).train(1, data)
print("done", rank)
"""
PLAIN = {
    "MODE": "semi_auto_parallel", "SEED": "1", "MORE": "", "VALUES": "0", "LARGE": "0", "CUT": "1", "CONSTANT": "",
    "LOADED": "", "OPTIMIZER": "Momentum(net.trainable_params(), 0.1, 0.9)", "DATA": "0",
    "RATE": "0.2 if rank else 0.1",
}  # fmt: skip
RATE = "0.2 if rank else 0.1"
SPOILED = "np.eye(8, 4, dtype=np.float32)[::-1] * rank"
ELEMENT = "parameter 'w' begins with other values on rank 1 than on rank 0, which hold the same part of it: element "
LOADING = (
    "ms.save_checkpoint([{'name': 'w', 'data': Tensor(np.full((8, 4), 1 + rank, np.float32))}], f'{rank}.ckpt')\n"
    "ms.load_param_into_net(net, ms.load_checkpoint(f'{rank}.ckpt'))"
)
BOTH = {
    "a rate": (
        {"OPTIMIZER": f"Momentum(net.trainable_params(), {RATE}, 0.9)"},
        "learning_rate of Momentum differs between ranks: 0.1 on rank 0; 0.2 on rank 1",
    ),
    "rates": (
        {"OPTIMIZER": f"SGD(net.trainable_params(), [0.3] * 9 + [{RATE}])"},
        "learning_rate of SGD differs between ranks: [0.3, 0.3, 0.3, 0.3, ...] (10 numbers, ",
    ),
    "a schedule": (
        {"OPTIMIZER": f"Adam(net.trainable_params(), nn.CosineDecayLR(0.01, {RATE}, 9))"},
        "max_lr of CosineDecayLR differs between ranks: 0.1 on rank 0; 0.2 on rank 1",
    ),
    "a weight decay": (
        {"OPTIMIZER": f"AdamWeightDecay(net.trainable_params(), 0.1, weight_decay={RATE})"},
        "weight_decay of AdamWeightDecay differs between ranks: 0.1 on rank 0; 0.2 on rank 1",
    ),
    "beta1": (
        {"OPTIMIZER": f"Adam(net.trainable_params(), 0.1, beta1={RATE})"},
        "beta1 of Adam differs between ranks: ",
    ),
    "values": ({"VALUES": SPOILED}, f"{ELEMENT}[4, 3] is 2.0 there and 1.0 on rank 0"),
    "not a number": ({"VALUES": "(np.nan if rank else 0)"}, f"{ELEMENT}[0, 0] is nan there and 1.0 on rank 0"),
    "a schedule of the script": (
        {"OPTIMIZER": f"Momentum(net.trainable_params(), Growing({RATE}), 0.9)"}, "Mul(",
    ),
    "a parameter of a schedule": (
        {"OPTIMIZER": "Momentum(net.trainable_params(), Growing(Parameter(RATE, requires_grad=False, name='r')), 0.9)"},
        "parameter 'r' begins with other values on rank 1 than on rank 0, which hold the same part of it: its value is",
    ),
    "an optimizer of the script": (
        {"OPTIMIZER": f"SGD(net.trainable_params(), 0.1)\noptimizer = Plain(net.trainable_params(), {RATE})"},
        "Mul(",
    ),
    "a checkpoint": ({"LOADED": LOADING}, f"{ELEMENT}[0, 0] is 2.0 there and 1.0 on rank 0"),
    "seeds": ({"SEED": "rank + 1"}, "begins with other values on rank 1 than on rank 0"),
}  # fmt: skip
SHARDED = {
    "a large constant": (
        {"LARGE": "rank"}, "begins with other values on rank 1 than on rank 0, which hold the same part of it: element "
    ),
    "a small constant": (
        {"CONSTANT": "* (1 + rank)"}, "they differ first where rank 0 has `",
    ),
}  # fmt: skip
FINE = {
    "data": {"DATA": "1", "MODE": "data_parallel"},
    "a constant of the rank": {"CONSTANT": "* (1 + rank)", "MODE": "data_parallel"},
    "a large constant of the rank": {"LARGE": "rank", "MODE": "data_parallel"},
    "values on purpose": {"VALUES": "rank", "MODE": "data_parallel", "MORE": ", parameter_broadcast=False"},
    "updates on purpose": {
        "OPTIMIZER": f"Momentum(net.trainable_params(), Growing({RATE}), 0.9)",
        "MODE": "data_parallel", "MORE": ", parameter_broadcast=False",
    },
    "what is done before gradients meet": {
        "CONSTANT": "* (2 if rank else 1)", "MODE": "data_parallel",
        "OPTIMIZER": "SGD(net.trainable_params(), 0.1)\noptimizer = Plain(net.trainable_params(), 0.1)",
    },
    "values of rank 0": {"VALUES": "rank", "MORE": ", parameter_broadcast=True"},
    "slices of each rank": {"CUT": "2", "VALUES": "np.arange(4) // 2 * rank"},
    "the same by other expressions": {"VALUES": "(np.ones(4) if rank else 1)"},
}


@pytest.fixture(autouse=True)
def _at(own_folder: Path) -> None:
    linecache.clearcache()


def run(folder: Path, changes: dict[str, str], capsys: Any) -> str:
    text = TEXT
    for name, value in {**PLAIN, **changes}.items():
        text = text.replace(name, value)
    (folder / "train.py").write_text(text)
    run_script(folder / "train.py", 2, simulate=True)
    return str(capsys.readouterr().out)


@pytest.mark.parametrize("mode", ["data_parallel", "semi_auto_parallel"])
@pytest.mark.parametrize("name", BOTH)
def test_what_differs_is_named(name: str, mode: str, tmp_path: Path, capsys: Any) -> None:
    changes, message = BOTH[name]
    error = error_of(run, tmp_path, {**changes, "MODE": mode}, capsys)
    assert message in error.render()
    assert "done" not in capsys.readouterr().out
    assert error.exit_status == 2


@pytest.mark.parametrize("name", SHARDED)
def test_constants_of_a_sharded_network_are_compared(name: str, tmp_path: Path, capsys: Any) -> None:
    changes, message = SHARDED[name]
    assert message in error_of(run, tmp_path, changes, capsys).render()


@pytest.mark.parametrize("name", FINE)
def test_what_may_differ_is_not_refused(name: str, tmp_path: Path, capsys: Any) -> None:
    said = run(tmp_path, FINE[name], capsys)
    assert "done 0" in said
    assert "done 1" in said


def test_an_update_is_named_with_its_line(tmp_path: Path, capsys: Any) -> None:
    for name, factor in (("a schedule of the script", "self.rate *"), ("an optimizer of the script", "self.factor *")):
        error = error_of(run, tmp_path, {**BOTH[name][0], "MODE": "data_parallel"}, capsys)
        source = (tmp_path / "train.py").read_text().splitlines()
        line = next(i for i, text in enumerate(source, 1) if factor in text and " = " not in text)
        said = error.message
        assert said.startswith("the update of parameter 'w' differs between ranks: rank 0 has `Mul(0.1, %")
        assert said.count(f" (train.py:{line}:") == 2


def test_a_slice_that_two_of_four_ranks_hold(tmp_path: Path, capsys: Any) -> None:
    """Ranks 0 and 2 hold one half of the columns, 1 and 3 the other."""
    text = TEXT.replace("((1, 1), (1, CUT))", "((2, 1), (1, 2))")
    for name, value in {**PLAIN, "VALUES": "(rank == 3) * np.eye(8, 4, 2, dtype=np.float32)"}.items():
        text = text.replace(name, value)
    (tmp_path / "train.py").write_text(text)
    error = error_of(run_script, tmp_path / "train.py", 4, simulate=True)
    wanted = "parameter 'w' begins with other values on rank 3 than on rank 1, which hold the same part of it: element "
    assert error.message == f"{wanted}[0, 0] is 2.0 there and 1.0 on rank 1"
