"""`mspc verify --scale` of folders whose programs do not fit together."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.report.verbosity import Loudness
from mspc.commands.verify import verify_scale
from mspc.ir.diagnostics import ExecutionError, MspcError

QUIET = Loudness(quiet=True)
NETWORK = """
import mindspore as ms, numpy as np
from mindspore import nn, ops, Tensor
ms.set_auto_parallel_context(parallel_mode='semi_auto_parallel', full_batch=True)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(16, 32, has_bias=False), nn.Dense(32, 16, has_bias=False)
        self.first.matmul.shard(((1, 1), (2, 1)))
        self.second.matmul.shard(((1, 2), (1, 2)))
    def construct(self, x):
        return ops.reduce_mean(self.second(ops.relu(self.first(x))))
net = Net()
step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
step(Tensor(np.ones((8, 16), np.float32)))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "net.py").write_text(NETWORK)
    options = CompileOptions(ranks=2, out=folder / "out", loudness=QUIET, weights=True)
    compile_target(str(folder / "net.py"), options)
    return folder / "out"


@pytest.fixture
def copied(compiled: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A folder, and the file of its rank 1."""
    shutil.copytree(compiled, tmp_path / "out")
    (path,) = (tmp_path / "out" / "rank_1").glob("*_execute_*.ir")
    return tmp_path / "out", path


def refused(folder: Path) -> MspcError:
    with pytest.raises(MspcError) as caught:
        verify_scale(str(folder), CompileOptions(loudness=QUIET), 0)
    assert not isinstance(caught.value, ExecutionError)
    return caught.value


def test_a_file_is_missing(copied: tuple[Path, Path]) -> None:
    folder, path = copied
    path.unlink()
    expected = f"there is no graph of rank 1, which program.json names {str(path)!r}"
    assert refused(folder).message == expected


def test_a_rank_has_another_parameter(copied: tuple[Path, Path]) -> None:
    folder, path = copied
    path.write_text(path.read_text().replace("first.weight", "third.weight"))
    error = refused(folder)
    assert error.message == f"{path}: rank 1 has the parameter 'third.weight', and the network has no such one"
    assert error.notes == ("it has 'first.weight', 'moments.first.weight', which this rank lacks",)


def test_a_rank_has_a_parameter_of_another_size(copied: tuple[Path, Path]) -> None:
    folder, path = copied
    path.write_text(re.sub(r"\(16, 16\)", "(8, 16)", path.read_text()))
    wanted = "<Tensor[Float32], (8, 16)> at (2) [0, -] is no slice of <Tensor[Float32], (32, 16)>"
    assert refused(folder).message == f"parameter 'first.weight': {wanted}"


def test_ranks_that_say_different_things_do_not_meet(copied: tuple[Path, Path]) -> None:
    folder, path = copied
    path.write_text(path.read_text().replace('op: "sum"', 'op: "max"', 1))
    with pytest.raises(ExecutionError, match=r"rank 0 calls AllReduce\{op: sum\} .* and rank 1 AllReduce\{op: max\}"):
        verify_scale(str(folder), CompileOptions(loudness=QUIET), 0)


def test_uneven_slices_are_proved_at_their_sizes(tmp_path: Path) -> None:
    text = NETWORK.replace("(16, 32", "(16, 14").replace("(32, 16", "(14, 16")
    both = "h = self.first(x)\n        return h[:, :3].sum() + h[:, 3:].mean() + ops"
    text = text.replace("return ops", both)
    (tmp_path / "net.py").write_text(text)
    verify_scale(str(tmp_path / "net.py"), CompileOptions(ranks=2, loudness=QUIET), 0)


@pytest.mark.parametrize("mode", ["data_parallel", "semi_auto_parallel"])
def test_ranks_go_different_ways_as_the_data_say(mode: str, tmp_path: Path) -> None:
    more = "" if mode == "data_parallel" else ", full_batch=True"
    (tmp_path / "net.py").write_text(
        "import mindspore as ms, numpy as np\nfrom mindspore import nn, ops, Tensor, Parameter\n"
        f"ms.set_auto_parallel_context(parallel_mode='{mode}'{more})\n"
        "class Net(nn.Cell):\n    def __init__(self):\n        super().__init__()\n"
        "        self.w = Parameter(Tensor(np.eye(8), ms.float32) * 2)\n"
        "    def construct(self, x):\n        y = x\n        while ops.reduce_sum(ops.abs(y)) < 100:\n"
        "            y = ops.matmul(y, self.w) + 1\n"
        "        if ops.reduce_mean(x) > 0:\n            y = y * 2\n        return ops.reduce_mean(y)\n"
        "Net()(Tensor(np.ones((4, 8), np.float32)))\n"
    )
    verify_scale(str(tmp_path / "net.py"), CompileOptions(ranks=4, loudness=QUIET), 0)
