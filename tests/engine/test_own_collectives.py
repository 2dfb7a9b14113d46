"""Collectives that a script calls outside of a network: ranks that do not call the same, and compiles without ranks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.run import run_script
from mspc.engine.own_collectives import Alike
from mspc.engine.ranks.mpirun import find_mpirun, mpirun_environment
from mspc.ir.diagnostics import MspcError
from tests.conftest import HANG
from tests.serving import SERVED

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
def test_ranks_that_do_not_call_the_same(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "net.py"
    text, message = DIFFERENT[case]
    script.write_text(START + text)
    with pytest.raises(MspcError) as refused:
        run_script(script, 3, simulate=True)
    assert message in refused.value.render()


def test_another_order_under_mpirun(tmp_path: Path) -> None:
    """The job ends, and names both."""
    script = tmp_path / "net.py"
    script.write_text(START + ORDER + "print('went on')")
    line = [find_mpirun(), "-n", "3", "--oversubscribe", "--bind-to", "none", *SERVED, "run"]
    done = subprocess.run(
        [*line, str(script)], env=mpirun_environment(), capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 1
    assert "net.py:22 with ranks 0-2, but rank 1 calls AllReduce at" in done.stderr
    assert "Traceback" not in done.stderr
    assert "went on" not in done.stdout


def test_a_compile_plays_the_other_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No other rank runs there: a collective gives what it would if all brought the same, and a warning says so
    once."""
    monkeypatch.chdir(tmp_path)
    calls = "print(ops.AllReduce()(x).asnumpy().tolist(), ops.AllGather()(x).shape)\nNet()(x)\n"
    (tmp_path / "net.py").write_text(START + calls)
    compile_target(str(tmp_path / "net.py"), CompileOptions(ranks=3))
    said = capsys.readouterr()
    assert said.out.startswith("[3.0, 3.0, 3.0, 3.0] (12,)\n")
    assert said.err.count("warning: AllReduce is called outside of a network, where no other rank runs") == 1


def test_what_a_played_rank_brings() -> None:
    comm, x, ranks = Alike(1, 2), np.array([[2.0, 3.0], [4.0, 5.0]]), (1, 0)
    np.testing.assert_array_equal(comm.all_reduce(x, "sum", ranks), 2 * x)
    np.testing.assert_array_equal(comm.all_reduce(x, "prod", ranks), x**2)
    np.testing.assert_array_equal(comm.all_reduce(x, "max", ranks), x)
    np.testing.assert_array_equal(comm.all_gather(x, ranks, 1), np.hstack([x, x]))
    np.testing.assert_array_equal(comm.reduce_scatter(x, "sum", ranks, 0), 2 * x[:1])
    np.testing.assert_array_equal(comm.all_to_all(x, ranks, 1, 0), [[2.0], [4.0], [2.0], [4.0]])
    np.testing.assert_array_equal(comm.broadcast(x, 0, ranks), x)
    np.testing.assert_array_equal(comm.exchange([(0, x)], [(0, (3,), np.int32)])[0], [0, 0, 0])
    assert comm.receive(0, 1, (2,), np.float16).dtype == np.float16
