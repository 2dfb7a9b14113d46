"""`mspc verify --scale` of networks in which every rank feeds rows of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.report.verbosity import Loudness
from mspc.commands.verify import verify_target
from mspc.commands.verify_scale import of_folder, of_script
from mspc.ops.control.structural import TupleGetItem
from mspc.verify.scale.proof import ScaleProof

QUIET = Loudness(quiet=True)
NETWORK = """
import mindspore as ms, numpy as np
from mindspore import nn, ops, Tensor
ms.set_auto_parallel_context(parallel_mode='data_parallel', gradients_mean=True)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Dense(64, 256), nn.BatchNorm1d(256), nn.Dense(256, 64)
        self.drop = nn.Dropout(p=0.3)
    def construct(self, x):
        return ops.reduce_mean(ops.square(self.down(self.drop(ops.gelu(self.norm(self.up(x)))))))
net = Net()
step = nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 1e-3)).set_train()
step(Tensor(np.ones((32, 64), np.float32)))
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own_rows") / "net.py"
    path.write_text(NETWORK)
    return path


def test_all_ranks_are_those_of_one_device_on_their_rows(script: Path) -> None:
    found = of_script(str(script), CompileOptions(ranks=512, loudness=QUIET)).proved(0)
    assert (found.same, found.ranks, found.kinds, len(found.rows)) == (True, 512, 1, 50)
    assert found.sizes["up.weight"] == ((256, 64), (4, 2))


CHANGES = {
    "a mean": (r"value=0\.25\)", "value=0.5)", "Mul"),
    "gradients among some ranks": (r"rank_list: \(0, 1, 2, 3\)(.*mirror_user_id)", r"rank_list: (0, 1)\1", "AllReduce"),
    "the largest gradient": (r'op: "sum"(.*mirror_user_id)', r'op: "max"\1', "Mul"),
    "the rows of another rank's mask": (r"begin: \((32|64|96), 0\)", "begin: (0, 0)", "Dropout"),
    "the seed of a mask": ("Seed0: 0", "Seed0: 5", "Dropout"),
    "how many rows statistics are of": ("count: 128", "count: 32", "BatchNormApply"),
    "statistics of some ranks": (r"rank_list: \(0, 1, 2, 3\)", "rank_list: (0, 1)", "AllReduce"),
}


def edited(script: Path, folder: Path, old: str, new: str) -> ScaleProof:
    compile_target(str(script), CompileOptions(ranks=4, out=folder, loudness=QUIET, weights=True))
    for rank in range(4):
        (path,) = (folder / f"rank_{rank}").glob("*_execute_*.ir")
        path.write_text(re.sub(old, new, path.read_text(), count=1))
    return of_folder(folder, CompileOptions(loudness=QUIET)).proved(0)


@pytest.mark.parametrize("what", CHANGES)
def test_changes_are_found(what: str, script: Path, tmp_path: Path) -> None:
    old, new, label = CHANGES[what]
    found = edited(script, tmp_path / "out", old, new)
    assert not found.same
    node = found.failed[1] if found.failed is not None else found.first and found.first.node
    assert node is not None
    assert label in (node.inputs[0] if isinstance(node.op, TupleGetItem) else node).label


def test_one_row_of_every_rank(tmp_path: Path) -> None:
    text = NETWORK.replace("(32, 64)", "(1, 64)").replace("BatchNorm1d(256)", "LayerNorm((256,))")
    (tmp_path / "net.py").write_text(text)
    options = CompileOptions(ranks=4, loudness=QUIET)
    assert of_script(str(tmp_path / "net.py"), options).proved(0).same
    verify_target(str(tmp_path / "net.py"), options, 0)


def test_a_folder_is_right(script: Path, tmp_path: Path) -> None:
    assert edited(script, tmp_path / "out", "nothing", "").same
