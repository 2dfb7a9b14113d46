"""`mspc verify --scale` of folders whose programs do not fit together."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mspc.ops.collective.collectives import AllReduce
from tests.compiled_scripts import QUIET, CompileOptions, compile_target, verify_scale
from tests.errors import error_of
from tests.graphs import ExecutionError, Graph, MspcError, Node
from tests.shares import share_of
from tests.verify.scale.planted_changes import PLANS, Plan

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
    error = error_of(verify_scale, str(folder), CompileOptions(loudness=QUIET), 0)
    assert not isinstance(error, ExecutionError)
    return error


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


SCRIPT = Path(__file__).parent / "float8_layers.py"
NETWORKS = [(0, 4, "tensorwise"), (1, 8, "tensorwise"), (2, 4, "delayed"), (3, 8, "delayed"), (4, 8, "tensorwise")]
"""Seeds, numbers of ranks and recipes."""
CHANGES = ("group of another axis", "left out", "sum", "one rank left out")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Plan]:
    found: dict[int, Plan] = {}
    for seed, ranks, recipe in NETWORKS[: share_of(len(NETWORKS))]:
        name = f"float8_{seed}"
        PLANS[name] = (str(SCRIPT), ranks, (str(seed), str(ranks), recipe))
        found[seed] = Plan(name, tmp_path_factory.mktemp(name))
        del PLANS[name]
    return found


def maxima(graph: Graph) -> list[Node]:
    """The collectives that give a scale its magnitude."""
    return [node for node in graph.nodes if isinstance(node.op, AllReduce) and node.op.op == "max"]


def other_group(ranks: Sequence[int], rank: int, count: int) -> tuple[int, ...]:
    """A group that the rank has in a mesh of two axes, other than this one."""
    step = next(n for n in (1, 2, 4) if tuple(ranks) != (pair := tuple(sorted((rank, rank ^ n)))) and max(pair) < count)
    return tuple(sorted((rank, rank ^ step)))


def plant(change: str, graphs: Sequence[Graph], number: int) -> None:
    """Change one of the collectives on all of its ranks."""
    for rank, graph in enumerate(graphs):
        found = maxima(graph)
        node = found[number % len(found)]
        op: Any = node.op
        if change == "left out" or (change == "one rank left out" and rank == op.rank_list[-1]):
            graph.replace({node: node.inputs[0]})
            graph.nodes.remove(node)
        elif change == "sum":
            node.op = replace(op, op="sum")
        else:
            alone = change == "one rank left out"
            ranks = op.rank_list[:-1] if alone else other_group(op.rank_list, rank, len(graphs))
            node.op = replace(op, rank_list=ranks, group=f"of {ranks}")


@pytest.mark.parametrize("change", CHANGES)
def test_a_wrong_group_is_found(change: str, plans: dict[int, Plan]) -> None:
    for seed, plan in plans.items():
        graphs = plan.graphs()
        plant(change, graphs, seed + CHANGES.index(change))
        assert not plan.proof(graphs).same, f"{plan.name}: {change}"
        assert plan.differs(graphs), f"{plan.name}: {change}"


def test_nothing_is_found_without_a_change(plans: dict[int, Plan]) -> None:
    for plan in plans.values():
        assert plan.proof(plan.graphs()).same, plan.name
        assert plan.differs(plan.graphs()) == "", plan.name
