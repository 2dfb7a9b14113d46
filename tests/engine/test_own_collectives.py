"""Collectives that a script calls outside of a network: ranks that do not call the same, and compiles without ranks."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mspc.engine.job import ALIKE, JOINT_NOTES
from mspc.ir.diagnostics import MspcError
from mspc.ops.collective.one_rank import EqualRanks
from tests.compiled_scripts import CompileOptions, compile_target, run_script
from tests.errors import error_of
from tests.serving import SERVED, run_process

pytestmark = pytest.mark.usefixtures("own_folder")
START = """
import numpy as np
import mspc as ms
from mspc import Tensor, nn, ops
from mspc.communication import create_group, get_rank, init
init()
rank = get_rank()
create_group("pair", [0, 1])
create_group("turned", [0, 2, 1] if rank else [0, 1, 2])
x = Tensor(np.ones(4, np.float32))

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.all_reduce = ops.AllReduce()
    def construct(self, x):
        return self.all_reduce(x)

"""
ORDER = """
both = [ops.AllReduce(), ops.AllReduce(group="pair")]
for op in both[::-1] if rank == 1 else both if rank == 0 else both[:1]:
    op(x)
"""
SUM, MAX = (f"AllReduce{{op: {op}}} of <Tensor[Float32], (4)>" for op in ("sum", "max"))
DIFFERENT = {
    "operations": ('ops.AllReduce("max" if rank else "sum")(x)',
                   f"the ranks call different collectives: rank 0 {SUM}, rank 1 {MAX}"),
    "shapes": ("ops.AllReduce()(Tensor(np.ones(4 + rank // 2, np.float32)))",
               f"the ranks call different collectives: rank 0 {SUM}, rank 2 {SUM.replace('4', '5')}"),
    "kinds": ("(ops.AllGather() if rank else ops.AllReduce())(x)",
              f"rank 0 {SUM}, rank 1 AllGather{{axis: 0}} of <Tensor[Float32], (4)>"),
    "orders of a group": ('ops.AllGather("turned")(x)',
                          "(4)>, rank 1 AllGather{axis: 0} of <Tensor[Float32], (4)> in the order 0, 2, 1"),
    "more calls": (
        "rank or ops.AllReduce()(x)", "rank 0 calls AllReduce at net.py:19 with ranks 0-2, but rank 1 has ended"),
    "orders": (
        ORDER, "rank 0 calls AllReduce at net.py:22 with ranks 0-2, but rank 1 calls AllReduce at net.py:22 with "
                      "ranks 0-1"),
    "a network": ("(Net() if rank else ops.AllReduce())(x)",
                  "rank 0 calls AllReduce at net.py:19 with ranks 0-2, but rank 1 calls Net at net.py:19"),
    "shapes of a message": ("ops.Receive(1, 0, [5], ms.float32)() if rank == 1 else rank or ops.Send(1, 1)(x)",
                            "Receive: rank 0 sends <Tensor[Float32], (4)> and rank 1 expects <Tensor[Float32], (5)>"),
    "a message that is not sent": ("rank or ops.Receive(1, 1, [5], ms.float32)()",
                                   "rank 0 calls Receive at net.py:19 with ranks 0-1, but rank 1 has ended"),
    "shapes of an exchange": ("n = 4 - rank // 2\nops.NeighborExchange([(rank + 1) % 3], [(rank - 1) % 3], ((n,),), "
                              "((4,),), ms.float32)((x,))",
                              "NeighborExchange: rank 1 sends <Tensor[Float32], (4)> and rank 2 expects "
                              "<Tensor[Float32], (3)>"),
}  # fmt: skip


@pytest.mark.parametrize("case", DIFFERENT)
def test_ranks_that_do_not_call_the_same(case: str, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    text, message = DIFFERENT[case]
    script.write_text(START + text)
    assert message in error_of(run_script, script, 3, simulate=True).render()


def test_a_compile_plays_the_other_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No other rank runs there: a collective gives what it would if all brought the same, and a warning says so
    once."""
    calls = "print(ops.AllReduce()(x).asnumpy().tolist(), ops.AllGather()(x).shape)\nNet()(x)\n"
    (tmp_path / "net.py").write_text(START + calls)
    compile_target(str(tmp_path / "net.py"), CompileOptions(ranks=3))
    said = capsys.readouterr()
    assert said.out.startswith("[3.0, 3.0, 3.0, 3.0] (12,)\n")
    assert said.err.count("warning: AllReduce is called outside a network, and no other rank runs") == 1


def test_what_a_played_rank_brings() -> None:
    comm, x, ranks = EqualRanks(1, 2), np.array([[2.0, 3.0], [4.0, 5.0]]), (1, 0)
    np.testing.assert_array_equal(comm.all_reduce(x, "sum", ranks), 2 * x)
    np.testing.assert_array_equal(comm.all_reduce(x, "prod", ranks), x**2)
    np.testing.assert_array_equal(comm.all_reduce(x, "max", ranks), x)
    np.testing.assert_array_equal(comm.all_gather(x, ranks, 1), np.hstack([x, x]))
    np.testing.assert_array_equal(comm.reduce_scatter(x, "sum", ranks, 0), 2 * x[:1])
    np.testing.assert_array_equal(comm.all_to_all(x, ranks, 1, 0), [[2.0], [4.0], [2.0], [4.0]])
    np.testing.assert_array_equal(comm.broadcast(x, 0, ranks), x)
    np.testing.assert_array_equal(comm.exchange([(0, x)], [(0, (3,), np.int32)])[0], [0, 0, 0])
    assert comm.receive(0, 1, (2,), np.float16).dtype == np.float16


# Ranks that come to a point at which they need the others, who never come: the rank, the line and the remedy are
# named, in a simulation and under mpirun.


POINTS_START = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor
from mindspore.communication import init, get_rank

init()
rank = get_rank()
"""
SHARDED = POINTS_START + """
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = ms.Parameter(np.ones((4, 4), np.float32), name="w")
        self.matmul = ops.MatMul().shard(((1, 1), (1, 2)))

    def construct(self, x):
        return self.matmul(x, self.w)

net = Net()
net(Tensor(np.ones((2, 4), np.float32)))
if rank == 0:
    LINE
"""
STEPS = POINTS_START + """
ms.set_auto_parallel_context(MODE)
net = nn.Dense(4, 3)
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
for rows in BATCHES[rank]:
    step(Tensor(np.ones((rows, 4), np.float32)), Tensor(np.ones((rows, 3), np.float32)))
"""
MODES = ('parallel_mode="data_parallel"', 'parallel_mode="semi_auto_parallel", dataset_strategy="data_parallel"')
CALL = "step(Tensor(np.ones((rows, 4), np.float32)), Tensor(np.ones((rows, 3), np.float32)))"


def line_of(text: str, line: str) -> int:
    return next(number for number, own in enumerate(text.splitlines(), 1) if own.strip() == line)


def simulated(script: Path, text: str) -> MspcError:
    script.write_text(text)
    return error_of(run_script, script, 2, simulate=True)


def under_mpirun(script: Path, text: str) -> str:
    """The stderr of ranks that mpirun has started, without Open MPI's own words and those of its event library."""
    script.write_text(text)
    done = run_process(*SERVED, "run", str(script), "--ranks", "2")
    assert done.returncode != 0
    own = done.stderr.partition("\n---")[0]
    others = ("[warn] ", "note: mspc explain-hang")
    lines = (line for line in own.splitlines() if "PMIX ERROR" not in line and not line.startswith(others))
    return "\n".join(lines)


@pytest.mark.parametrize("line", [
    "ms.save_checkpoint(net, 'net.ckpt')", "net.w.asnumpy()", "print(net.w + 1)", "net.w.value().sum()",
])  # fmt: skip
def test_one_rank_reads_a_sharded_parameter(script, line):
    text = SHARDED.replace("LINE", line)
    found = simulated(script, text)
    where = f"net.py:{line_of(text, line)}"
    assert found.message == f"rank 0 reads the sharded parameter 'w' at {where}, but rank 1 has ended"
    assert found.notes == (f"the line is {line}", JOINT_NOTES)
    assert found.exit_status == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("before", ["", "4, "])
def test_the_ranks_have_different_short_batches(script, mode, before):
    batches = f"([{before}2], [{before}3])"
    found = simulated(script, STEPS.replace("MODE", mode).replace("BATCHES", batches))
    assert found.message == (
        "the ranks call TrainOneStepCell with different tensors: rank 0 with Float32 (2, 4), Float32 (2, 3); "
        "rank 1 with Float32 (3, 4), Float32 (3, 3)"
    )
    assert found.notes == (ALIKE,)
    assert found.location is not None
    assert found.location.text.strip() == CALL
    assert found.exit_status == 2


def test_under_mpirun_one_rank_has_a_shorter_batch(script):
    text = STEPS.replace("MODE", MODES[0]).replace("BATCHES", "([4, 4], [4, 3])")
    assert under_mpirun(script, text) == (
        f"error: rank 1 calls TrainOneStepCell at net.py:{line_of(text, CALL)} with Float32 (3, 4), "
        "Float32 (3, 3), for which it has no graph, but rank 0 is in step 2, at AllReduce\n"
        f"  note: the line is {CALL}\n  note: before, it was called with Float32 (4, 4), Float32 (4, 3)\n"
        f"  note: {ALIKE}"
    )


# Ranks that are not there, that cannot meet or that run another mspc: refused with status 2 and a way out.


SCRIPT = """
import mspc as ms
from mspc import nn
from mspc.communication import init
ms.set_auto_parallel_context(parallel_mode="data_parallel")
init()
print(nn.ReLU()(ms.Tensor([1.0, -1.0])))
"""
TEST = """
import mindspore as ms, numpy as np, pytest
from mindspore import nn, ops, Tensor
class Net(nn.Cell):
    def __init__(self, strategy):
        super().__init__()
        self.matmul, self.w = ops.MatMul().shard(strategy), ms.Parameter(Tensor(np.ones((32, 64)), ms.float32), "w")
    def construct(self, x):
        return self.matmul(x, self.w)
x, y = np.ones((16, 32), np.float32), np.ones((16, 64), np.float32)
def test_alone():
    ms.set_auto_parallel_context(device_num=8, global_rank=0)
    assert nn.ReLU()(Tensor([1.0, -1.0])).asnumpy().tolist() == [1, 0]
def test_sharded():
    ms.set_auto_parallel_context(device_num=8, global_rank=0, parallel_mode="semi_auto_parallel", full_batch=True)
    out = Net(((2, 4), (4, 1)))(Tensor(x))
    assert (out.shape, out.dtype) == ((16, 64), ms.float32)
    with pytest.raises(RuntimeError, match=r"Net has no values: the test compiled it for 8 ranks in memory"):
        out.asnumpy()
    with pytest.raises(RuntimeError, match="the strategy .* needs 16 ranks, but there are 8"):
        Net(((2, 8), (8, 1)))(Tensor(x))
def test_trained():
    net = Net(((2, 4), (4, 1)))
    data = ms.dataset.NumpySlicesDataset((x[None].repeat(2, 0), y[None].repeat(2, 0)), ["x", "y"])
    ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9)).train(1, data, dataset_sink_mode=False)
    assert net.w.asnumpy().max() == 1, "no rank ran"
"""


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, *arguments, **variables)


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_process(*command, env=os.environ | variables)


def test_rank_size_without_a_launcher(tmp_path: Path) -> None:
    Path("net.py").write_text(SCRIPT)
    for command in ([sys.executable, "net.py"], [*SERVED, "run", "net.py"]):
        done = run(*command, RANK_SIZE="4", RANK_ID="1")
        assert done.returncode == 2
        assert done.stderr.startswith("net.py:6:1: error: init: RANK_SIZE is 4, but no launcher has started the ranks")
        assert "mspc run SCRIPT --ranks 4, mspc launch, or mpirun -n 4" in done.stderr
        assert done.stdout == ""
    assert run(*SERVED, "run", "net.py", "--ranks", "1", RANK_SIZE="4").returncode == 0


def test_device_num_without_ranks(tmp_path: Path) -> None:
    Path("net.py").write_text(SCRIPT.replace('"data_parallel"', '"data_parallel", device_num=4'))
    done = python("net.py")
    assert done.returncode == 2
    assert "net.py:5:1: error: the script sets device_num=4, but runs on one rank\n" in done.stderr
    assert "note: start it with mspc run SCRIPT --ranks 4, or under mpirun -n 4" in done.stderr


def test_tests_that_ask_for_ranks_compile_in_memory(tmp_path: Path) -> None:
    Path("test_it.py").write_text(TEST)
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
