"""`mspc run SCRIPT --simulate`: every rank runs the script from the top with its own state, in turns."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mspc.cli import app
from mspc.ir.diagnostics import MspcError
from tests.compiled_scripts import CompileOptions, compile_target, run_script
from tests.errors import error_of, failure_of
from tests.serving import SERVED, run_process, serve

NETWORK = """
import sys
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter
from mindspore.communication import init, get_rank, get_group_size

init()
rank, size = get_rank(), get_group_size()
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="data_parallel")


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        start = np.random.default_rng(7).standard_normal((8, 4)).astype(np.float32)
        self.w = Parameter(Tensor(start), "w")
        self.matmul = ops.MatMul()
        if size > 1:
            self.matmul.shard(((1, size), (size, 1)))

    def construct(self, x):
        return self.matmul(x, self.w)


class WithLoss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.loss = nn.MSELoss()

    def construct(self, x, y):
        return self.loss(self.net(x), y)


net = Net()
step = nn.TrainOneStepCell(WithLoss(net), nn.Momentum(net.trainable_params(), 0.1, 0.9))
step.set_train()


def rows(number):
    # A global batch of 8 rows; every rank takes its own.
    rng = np.random.default_rng(number)
    x, y = rng.random((8, 8), dtype=np.float32), rng.random((8, 4), dtype=np.float32)
    part = slice(rank * (8 // size), (rank + 1) * (8 // size))
    return Tensor(x[part]), Tensor(y[part])
"""

TRAIN = (
    NETWORK
    + """
for i in range(3):
    print(f"rank {rank} step {i} loss {step(*rows(i))}")
"""
)


@pytest.fixture
def script(own_folder: Path) -> Path:
    return own_folder / "train.py"


def simulated(script: Path, text: str, ranks: int | None = 2, arguments: Sequence[str] = (), **options: int) -> None:
    script.write_text(text)
    run_script(script, ranks, simulate=True, script_arguments=arguments, **options)  # type: ignore[arg-type]


def losses(out: str) -> list[float]:
    return [float(line.split("loss ")[1]) for line in out.splitlines() if "loss" in line]


def test_losses_equal_one_ranks_and_lines_come_in_rank_order(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated(script, TRAIN, ranks=4)
    out = capsys.readouterr().out
    assert [line.split(" loss")[0] for line in out.splitlines()] == [
        f"rank {rank} step {step}" for step in range(3) for rank in range(4)
    ]
    found = np.array(losses(out)).reshape(3, 4)
    assert (found == found[:, :1]).all()
    simulated(script, TRAIN, ranks=1)
    alone = losses(capsys.readouterr().out)
    np.testing.assert_allclose(found[:, 0], alone, rtol=1e-5)
    assert alone[2] < alone[0]


def test_ranks_have_their_own_modules_and_random_numbers(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (script.parent / "own.py").write_text("count = 0\n")
    simulated(
        script,
        NETWORK
        + """
import random
import own
np.random.seed(rank)
random.seed(rank)
first = np.random.rand()
for i in range(2):
    own.count += 1
    step(*rows(i))
other = np.random.RandomState(rank)
assert first == other.rand() and np.random.rand() == other.rand()
assert random.random() == random.Random(rank).random()
print(own.count, step.training)
""",
    )
    assert capsys.readouterr().out == "2 True\n" * 2
    assert "own" not in sys.modules
    assert __name__ in sys.modules


def test_the_script_sees_what_it_sees_under_python(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "import os, sys\nprint(__name__, sys.argv, os.getcwd() == sys.path[0], sys.modules['__main__'].__file__)\n"
    before = list(sys.argv), list(sys.path), sys.modules["__main__"]
    simulated(script, text, arguments=("--fast", "3"))
    assert capsys.readouterr().out == f"__main__ ['{script}', '--fast', '3'] True {script}\n" * 2
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


def test_only_one_ranks_output(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated(script, TRAIN, only_rank=1)
    assert [line[:13] for line in capsys.readouterr().out.splitlines()] == [f"rank 1 step {i}" for i in range(3)]
    with pytest.raises(MspcError, match="--only-rank 2: the ranks are 0 to 1"):
        simulated(script, TRAIN, only_rank=2)


def test_a_global_parameter_is_read_and_may_be_replaced(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated(
        script,
        NETWORK
        + """
before = net.w.asnumpy()
step(*rows(0))
after = net.w.asnumpy()
assert after.shape == (8, 4) and (before != after).any()
first = step(*rows(1))
net.w.set_data(Tensor(after))
print(np.abs(net.w.asnumpy() - after).max(), after.sum())
""",
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0] == lines[1]
    assert lines[0].startswith("0.0 ")


def test_another_network_of_the_same_parameters_sees_their_newest_values(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        NETWORK
        + """
for i in range(2):
    step(*rows(i))
    out = net(Tensor(np.eye(8, dtype=np.float32)[:8 // size]))
    w = net.w.asnumpy()
    print(np.abs(out.asnumpy() - w[:8 // size]).max())
"""
    )
    simulated(script, text)
    assert capsys.readouterr().out == "0.0\n" * 4


def test_a_rank_that_raises_is_named_with_its_line(script: Path) -> None:
    text = NETWORK + "step(*rows(0))\nif rank == 1:\n    raise ValueError('mine')\nstep(*rows(1))\n"
    error = error_of(simulated, script, text)
    line = text.splitlines().index("    raise ValueError('mine')") + 1
    assert error.exit_status == 2
    assert error.render() == (
        f'rank 1 failed:\nTraceback (most recent call last):\n  File "{script}", line {line}, in <module>\n'
        "    raise ValueError('mine')\nValueError: mine"
    )


def test_a_rank_that_ends_early_is_named(script: Path) -> None:
    error = failure_of(simulated, script, NETWORK + "step(*rows(0))\nif rank == 1:\n    sys.exit(0)\nstep(*rows(1))\n")
    assert "rank 0 would wait for ever" in error.message
    assert "rank 1 has ended" in error.notes
    assert error.location is not None
    assert error.location.file == "train.py"


def test_the_scripts_exit_status_is_the_runs(script: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        simulated(script, "import sys\nsys.exit(5)\n")
    assert caught.value.code == 5


def test_a_nan_in_the_loss_is_reported_with_step_rank_and_node(script: Path) -> None:
    text = (
        NETWORK
        + """
step(*rows(0))
x, y = rows(1)
step(Tensor(np.full(x.shape, np.inf, np.float32)) if rank == 1 else x, y)
"""
    )
    error = failure_of(simulated, script, text)
    assert error.exit_status == 1
    assert error.message == (
        "the loss of step 2 is NaN on rank 1; argument 'inputs0' held such a value before the step; "
        f"the first to read it is {error.message.rpartition('is ')[2]}"
    )
    assert error.location is not None


def test_device_num_counts_where_ranks_are_not_given(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = TRAIN.replace("dataset_strategy=", "device_num=2, dataset_strategy=").replace(
        "init()\n", "init()\nprint('once per rank')\n", 1
    )
    simulated(script, text, ranks=None)
    out = capsys.readouterr().out
    assert len(losses(out)) == 6
    assert out.count("once per rank") == 2


def test_strategies_that_do_not_count_are_named_once(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = TRAIN.replace("semi_auto_parallel", "data_parallel")
    simulated(script, text)
    said = capsys.readouterr()
    assert said.err == "warning: 1 strategies set with shard() do not count in mode data_parallel\n"
    assert len(losses(said.out)) == 6


def test_a_missing_script() -> None:
    with pytest.raises(MspcError, match=r"there is no script 'nowhere.py'"):
        run_script(Path("nowhere.py"), 2, True)


def test_a_mistake_of_the_network_is_reported_once(script: Path) -> None:
    error = error_of(simulated, script, NETWORK.replace("(1, size), (size, 1)", "(1, 3), (3, 1)") + "step(*rows(0))\n")
    assert error.exit_status == 2
    assert error.render().count("MatMul 'matmul'") == 1


def test_mpirun_gives_the_simulations_losses(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated(script, TRAIN)
    wanted = capsys.readouterr().out
    done = serve("run", "train.py", "--ranks", "2", status=0)
    assert sorted(done.stdout.splitlines()) == sorted(wanted.splitlines())


def test_a_killed_rank_is_named_by_the_others(script: Path) -> None:
    script.write_text(
        NETWORK
        + """
import os
for i in range(100):
    if rank == 1 and i == 5:
        os.kill(os.getpid(), 9)
    step(*rows(i))
"""
    )
    done = serve("run", "train.py", "--ranks", "2")
    assert done.returncode != 0
    assert "rank 1 was killed or left without a word after step 5" in done.stderr


def test_a_wrong_number_of_ranks_under_mpirun(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script.write_text(TRAIN)
    monkeypatch.setitem(os.environ, "OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(MspcError, match="--ranks 4, but mpirun started 2 ranks"):
        run_script(script, 4)
    with pytest.raises(MspcError, match="--simulate runs all ranks in one process, but mpirun started 2"):
        run_script(script, None, simulate=True)


ODD_NETWORK = """
import mindspore as ms, numpy as np
from mindspore import nn, Tensor
class Net(nn.Cell):
    def construct(self, x):
        return x * 2.0
"""
CALL = "Net()(Tensor(np.ones((4, 2)), ms.float32))\n"
CHANGES = {
    "its folder": "import os; os.makedirs('sub', exist_ok=True); os.chdir('sub')",
    "the path of modules": "import sys; sys.path[:] = []",
    "its arguments": "import sys; sys.argv.clear()",
    "no stdout": "import sys; sys.stdout = None",
    "another stdout": "import sys; sys.stdout = sys.stderr = open('log', 'w')",
    "its own file": "import os; os.remove(__file__)",
    "much output": "for _ in range(20_000): print('y' * 100)",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("named", [False, True])
def test_what_a_script_changes_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: str, named: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    Path("net.py").write_text(ODD_NETWORK + change + "\n" + ("" if named else CALL))
    target, inputs = ("net.py:Net()", ("float32[4,2]",)) if named else ("net.py", ())
    compile_target(target, CompileOptions(ranks=2, inputs=inputs))
    assert Path.cwd() == tmp_path
    assert (tmp_path / "saved_graph/rank_1").is_dir()
    assert not (tmp_path / "sub/saved_graph").exists()
    assert ", 2 ranks, compile " in capsys.readouterr().out


def test_threads_that_never_end_are_not_waited_for(tmp_path: Path) -> None:
    thread = "import threading, time\nthreading.Thread(target=lambda: time.sleep(3600)).start()\n"
    (tmp_path / "net.py").write_text(ODD_NETWORK + thread + CALL)
    for command, status in (("compile", 0), ("verify", 0)):
        done = run_process(*SERVED, command, "net.py", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (status, "")
        assert done.stdout.splitlines()[-1].startswith("memory: " if command == "compile" else "equal: ")


MISTAKES = {
    "nothing": ("", "error: net.py ends without calling a network, so there is nothing to compile\n"
                    "  note: call Model.train, a train step or a cell at the end of the script\n"
                    "  note: or name the network: mspc compile 'net.py:Net()' --input 'float32[16,32]'"),
    "no Python": ("x = (1,\n", "net.py:1:5: error: not Python: '(' was never closed\n    x = (1,\n        ^"),
    "a null byte": ("x\0", "error: net.py is not Python: source code string cannot contain null bytes"),
    "sums in sums": (
        "x = 1" + "+1" * 30_000, "error: net.py is not Python: expressions are nested too deep",
    ),
    "an exit": ("import sys; sys.exit(3)", "error: net.py exited with 3 before it called a network"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES)
def test_scripts_that_launch_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    Path("net.py").write_text(text)
    error = error_of(compile_target, "net.py", CompileOptions())
    assert (str(error), error.exit_status) == (message, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["net.py"]


CALLED = """
import threading
from typer.testing import CliRunner
from mspc.cli import app

done = threading.Event()
threading.Thread(target=done.wait).start()
result = CliRunner().invoke(app, ["verify", "missing.py", "--ranks", "2"])
print("still here after", result.exit_code)
done.set()
"""


def test_a_program_that_calls_the_commands_keeps_its_threads(tmp_path: Path) -> None:
    """It does not end with a command that ends for a mistake."""
    done = run_process(sys.executable, "-c", CALLED, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("still here after 2\n", 0)


def test_a_name_that_is_no_utf8(own_folder: Path) -> None:
    """As older systems wrote umlauts: texts have an escape in its place."""
    script, out = os.fsdecode(b"gr\xf6sse.py"), os.fsdecode(b"gr\xf6sse")
    Path(script).write_text(
        "import numpy as np\nfrom mindspore import Tensor, ops\n"
        "from mindspore import nn\nclass Net(nn.Cell):\n    def construct(self, x):\n        return ops.relu(x)\n"
        "Net()(Tensor(np.ones(4, np.float32)))\n"
    )
    for arguments in (("compile", script, "--out", out, "-q"), ("view", out, "-q"), ("diff", out, out, "--json", "-")):
        done = CliRunner().invoke(app, [*arguments])
        assert done.exit_code == 0, done.output
    (file,) = Path(out).glob("rank_0/*.ir")
    assert r"# In file gr\udcf6sse.py(6)" in file.read_text()
    assert r"gr\udcf6sse" in Path(f"{out}.view.html").read_text()


@pytest.mark.parametrize(("method", "used"), [
    ("def __getattr__(self, name): return getattr(self, name)", "Odd().value"),
    ("def __len__(self): return len(self)", "len(Odd())"),
], ids=["attribute", "length"])  # fmt: skip
@pytest.mark.parametrize("threaded", [False, True])
def test_an_objects_recursion_through_c_is_a_mistake(tmp_path: Path, method: str, used: str, threaded: bool) -> None:
    """Each call takes stack of C's, of which a process has less than Python's recursion limit allows meanwhile."""
    call = "Net()(Tensor(np.ones((4, 2)), ms.float32))"
    start = f"import threading\nthread = threading.Thread(target=lambda: {call})\nthread.start()\nthread.join()"
    odd = ODD_NETWORK.replace("class Net", f"class Odd:\n    {method}\nclass Net").replace("x * 2.0", f"x * {used}")
    (tmp_path / "net.py").write_text(odd + (start if threaded else call) + "\n")
    done = run_process(*SERVED, "compile", "net.py", cwd=tmp_path, status=2)
    assert "recursion depth exceeded" in done.stderr
