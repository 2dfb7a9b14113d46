"""Running a user's script: as plain Python would, with errors that show the user's own lines only."""

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mspc.engine.script import ScriptError, read_script, run_script_as
from mspc.engine.simulate import UserState
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api import state
from mspc.runtime import buffers
from mspc.runtime.faults.record import PID, RUNNING, STATE, WORDS
from mspc.runtime.faults.stopped import Stopped, name_of, orphaned
from mspc.runtime.faults.watch import JobWatch
from tests.compiled_scripts import CompileOptions, compile_target, run_script
from tests.errors import error_of
from tests.serving import HANG, SERVED, invoke, run_process

Write = Callable[[str], Path]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes `train.py`; what running it changes is undone afterwards."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def write(text: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write


def test_error_shows_the_users_frames_only(script: Write) -> None:
    path = script(
        """
        import json

        def read():
            return json.loads("{")

        read()
        """
    )
    with pytest.raises(ScriptError) as raised:
        run_script_as("__main__", path, [])
    assert str(raised.value) == textwrap.dedent(
        f"""\
        Traceback (most recent call last):
          File "{path}", line 7, in <module>
            read()
          File "{path}", line 5, in read
            return json.loads("{{")
                   ^^^^^^^^^^^^^^^
        json.decoder.JSONDecodeError: """
    ) + ("Expecting property name enclosed in double quotes: line 1 column 2 (char 1)")
    assert raised.value.exit_status == 2


def test_error_keeps_its_cause(script: Write) -> None:
    path = script(
        """
        try:
            1 / 0
        except ZeroDivisionError as error:
            raise ValueError("no rate") from error
        """
    )
    with pytest.raises(ScriptError) as raised:
        run_script_as("__main__", path, [])
    text = str(raised.value)
    assert "ZeroDivisionError: division by zero" in text
    assert text.endswith("ValueError: no rate")
    assert "script.py" not in text


def test_missing_script(tmp_path: Path) -> None:
    assert str(error_of(read_script, tmp_path / "no.py")) == f"error: there is no script '{tmp_path}/no.py'"


def test_folder_is_no_script(tmp_path: Path) -> None:
    assert str(error_of(read_script, tmp_path)) == f"error: cannot read {tmp_path}: Is a directory"


def test_syntax_error_has_its_place(script: Write) -> None:
    path = script("x = 1\ny = (x +\n")
    error = error_of(read_script, path)
    assert (
        str(error) == f"{path}:2:5: error: not Python: '(' was never closed\n    y = (x +\n        ^"
    )


def test_binary_file_is_no_script(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_bytes(b"x = 1\0")
    with pytest.raises(MspcError, match="not Python: source code string cannot contain null bytes"):
        read_script(path)


# Every mistake is reported at the script's line, also if the operator that finds it is in one of mspc's files.


HEAD = '''import numpy as np
import mindspore as ms
from mindspore import nn, Tensor, Parameter
from mindspore.train import Model, ModelCheckpoint
import mindspore.dataset as ds
def gen(n=2, d=8, o=2, dt=np.float32, rows=4):
    for _ in range(n): yield np.ones((rows, d), dt), np.ones((rows, o), np.float32)
def data(**k): return ds.GeneratorDataset(lambda: gen(**k), ["x", "y"], shuffle=False)
net, loss = nn.Dense(8, 2), nn.MSELoss()
opt = nn.SGD(net.trainable_params(), 0.1)
model = Model(net, loss, opt, metrics={"mse"})
step = nn.TrainOneStepCell(nn.WithLossCell(net, loss), opt)
x = Tensor(np.ones((4, 8), np.float32))
'''
AT = HEAD.count("\n") + 1
MISTAKES = """
model.train(1, data(d=9))
model.train(1, data(o=3))
model.train(1, data(dt=np.float64))
model.fit(1, data(), data(d=9))
model.eval(data(d=7))
model.eval(data(o=5))
model.predict()
model.predict(Tensor(np.ones((4, 7), np.float32)))
model.train(1, data(rows=0))
Model(net, loss, opt, eval_indexes=[0, 1, 9], eval_network=net, metrics={"mse"}).eval(data())
Model(net, None, opt).train(1, data())
Model(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True), opt).train(1, data())
Model(net, nn.SoftmaxCrossEntropyWithLogits(), opt).train(1, data(o=3))
Model(net, lambda a: a, opt).train(1, data())
Model(net, nn.CrossEntropyLoss(), opt).train(1, data(o=3))
Model(net, nn.BCELoss(), opt).train(1, data(o=3))
ds.MnistDataset("nowhere")
ds.ImageFolderDataset("nowhere")
ms.load_checkpoint("nowhere.ckpt")
ms.load_param_into_net(net, {"a": 5})
model.train(1, data(), ModelCheckpoint(directory="/proc/nope"))
nn.TrainOneStepCell(net, opt)(5)
step(x)
step(x, Tensor(np.ones((4, 3), np.float32)))
nn.WithLossCell(net, loss)(1, 2)
ms.value_and_grad(net, 3)(x)
ms.grad(net)(5)
ms.grad(net)()
net(x, 3)
net()
net("a")
""".strip().splitlines()


@pytest.fixture
def mistake_script(own_folder: Path) -> Path:
    return Path("net.py")


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_mistakes_are_reported_at_the_scripts_line(mistake_script: Path) -> None:
    place = re.compile(rf"net\.py:{AT}:\d+: error: .*\n    (.*)\n    +\^+")
    elsewhere: list[str] = []
    for text in MISTAKES:
        mistake_script.write_text(f"{HEAD}{text}\n")
        error = error_of(run_script, mistake_script, 1)
        found = place.match(str(error))
        if found is None or found[1] != text:
            elsewhere.append(f"{text}: {error}")
    assert not elsewhere, "\n".join(elsewhere)


def test_the_way_through_mspcs_files_is_named_below(mistake_script: Path) -> None:
    mistake_script.write_text(f"{HEAD}model.train(1, data(d=9))\n")
    lines = str(error_of(run_script, mistake_script, 1)).splitlines()
    assert lines[:3] == [
        f"net.py:{AT}:1: error: MatMul 'matmul': dimension 1 of input 1 is 8, but dimension 1 of input 0 says 9",
        "    model.train(1, data(d=9))",
        "    ^^^^^^^^^^^^^^^^^^^^^^^^^",
    ]
    assert [re.sub(r"mspc/mindspore_api/nn/(\w+).py:\d+:\d+", r"\1", line) for line in lines[3:]] == [
        "  in wrap: loss = self.network(*inputs)",
        "  in wrap: out = self._backbone(data)",
        "  in basic: x = self.matmul(x, self.weight)",
        "  note: the shapes are (4, 9), (2, 8)",
    ]


def test_a_mistake_that_is_met_twice_is_one_error(mistake_script: Path) -> None:
    mistake_script.write_text(f"{HEAD}step(x)\n")
    error = error_of(run_script, mistake_script, 1)
    assert str(error).count("construct() misses the argument 'label'") == 1
    assert "errors" not in str(error)


@pytest.mark.parametrize("command", ["compile", "verify", "search"])
def test_compiles_report_them_there_too(command: str, mistake_script: Path) -> None:
    mistake_script.write_text(f"{HEAD}model.train(1, data(o=3))\n")
    done = invoke(command, "net.py", "--ranks", "2", status=2)
    assert f"net.py:{AT}:1: error: Sub: dimension 1 of input 1 is 3" in done.output


@pytest.mark.parametrize("text", ['nn.Dense("a", 3)', "ms.Model(nn.Dense(3, 2)).predict(ms.Tensor([[1.0]]))"])
def test_plain_python_ends_with_the_text_and_the_status(text: str, mistake_script: Path) -> None:
    mistake_script.write_text(f"import mspc as ms\nfrom mspc import nn\n{text}\n")
    done = run_process(sys.executable, "net.py", status=2)
    assert done.stderr.startswith("net.py:3:1: error: ")
    assert "Traceback" not in done.stderr


# State that a simulated rank has of its own.


class Late(ModuleType):
    """A module of a library that imports others as soon as it is asked for anything."""

    def __getattribute__(self, name: str) -> Any:
        sys.modules.setdefault("imported_by_late", ModuleType("imported_by_late"))
        return super().__getattribute__(name)


def test_modules_may_appear_while_a_ranks_are_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = set(sys.modules)
    user = UserState(state.Session.of_rank(0, 1), False, shared)
    user.enter()
    monkeypatch.setitem(sys.modules, "late", Late("late"))
    monkeypatch.delitem(sys.modules, "imported_by_late", raising=False)
    user.leave()
    assert sys.modules.pop("imported_by_late").__name__ == "imported_by_late"


MESSAGES = """
import mspc as ms
from mspc import ops
from mspc.communication import get_rank, init
init()
ops.Receive(0, 1 - get_rank(), [4], ms.float32)()
"""


def test_ranks_that_only_receive_are_not_told_of_collectives(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MESSAGES)
    done = run_process(*SERVED, "run", str(tmp_path / "net.py"), "--ranks", "2", status=1)
    assert "each Receive(src_rank, sr_tag) needs a Send(dest_rank, sr_tag) of that rank" in done.stderr
    assert "must call the same collectives" not in done.stderr


LARGE = """
import numpy as np
from mspc import Parameter, Tensor, nn, ops
from mspc.common.initializer import initializer


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("ones", (8, 64)), name="w")

    def construct(self, x):
        product = ops.matmul(x, self.w)
        return ops.reduce_sum(ops.exp(product), 1)


print(Net()(Tensor(np.ones((4096, 8), np.float32))))
"""


def test_a_result_for_which_there_is_no_memory_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = buffers._aligned

    def full(size: int) -> Any:
        if size >= 4096 * 64 * 4:
            raise MemoryError
        return ordinary(size)

    monkeypatch.setattr(buffers, "_aligned", full)
    (tmp_path / "net.py").write_text(LARGE)
    text = error_of(run_script, tmp_path / "net.py", 1, simulate=True).render()
    assert "net.py:13:19: error: out of memory: MatMul" in text
    assert "product = ops.matmul(x, self.w)" in text
    assert "needs 1.0 MiB (1,048,576 bytes) for its result <Tensor[Float32], (4096, 64)>" in text


def test_a_parameter_for_which_there_is_no_memory_is_named(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(LARGE.replace("(8, 64)", "(8, 1 << 44)"))
    with pytest.raises(MspcError, match="there is no memory for parameter 'w', <") as raised:
        run_script(tmp_path / "net.py", 1, simulate=True)
    assert "on rank 0" in raised.value.message


def test_a_stage_changes_nothing_only_where_the_network_is_launched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = LARGE.replace("print(Net()", "net = Net()\nnet.pipeline_stage = 1\nMORE\nprint(net")
    (tmp_path / "net.py").write_text(before.replace("MORE", ""))
    run_script(tmp_path / "net.py", 1, simulate=True)
    said = "net.py:18:1: Cell.pipeline_stage = 1 changes nothing here: there is one pipeline stage"
    assert said in capsys.readouterr().err
    (tmp_path / "net.py").write_text(
        before.replace("MORE", "import mspc\nmspc.set_auto_parallel_context(pipeline_stages=2)")
    )
    with pytest.raises(MspcError, match="pipeline_stages is 2, and the mode is stand_alone"):
        compile_target(str(tmp_path / "net.py"), CompileOptions(ranks=2))
    assert "changes nothing" not in capsys.readouterr().err


def test_who_started_a_rank_is_named_as_it_is() -> None:
    of_this_host = "rank 2 ends in step 3: mpirun was killed or has lost a host"
    assert orphaned("mpirun", 2, "in step 3") == orphaned("prterun", 2, "in step 3") == of_this_host
    of_another_host = "rank 2 ends in step 3: prted, mpirun's part on this host, was killed or has lost mpirun's host"
    assert orphaned("prted", 2, "in step 3") == of_another_host
    assert name_of(os.getpid()) == Path("/proc/self/comm").read_text().strip() != ""
    assert name_of(2**30) == ""


class Watched:
    """The parts of a watch that `judge_stopped` needs: of two ranks the first runs, the other is a stopped process."""

    rank, size, patience = 0, 2, 15.0

    def __init__(self, pid: int) -> None:
        self.records = [np.zeros(WORDS, np.int64) for _ in range(2)]
        self.records[1][PID] = pid
        for record in self.records:
            record[STATE] = RUNNING
        self.failed = ""

    def record(self, rank: int) -> Any:
        return self.records[rank]

    def place(self, rank: int) -> MspcError:
        return MspcError("before its first step")

    def said(self, rank: int) -> str:
        return ""

    def end_job(self, rank: int, what: str, notes: Sequence[str]) -> None:
        self.failed = what


@pytest.fixture
def stopped_process() -> Iterator[int]:
    child = subprocess.Popen(["sh", "-c", "kill -STOP $$; exit"])
    limit = time.monotonic() + HANG
    while (state := Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]) != "T":
        assert time.monotonic() < limit, state
    yield child.pid
    child.kill()
    child.wait()


def test_a_stopped_rank_has_the_seconds_that_it_was_promised(stopped_process: int) -> None:
    watch: Any = Watched(stopped_process)
    watch._halted = Stopped(watch.records)
    JobWatch.judge_stopped(watch, {1: 14.9})
    assert watch.failed == ""
    JobWatch.judge_stopped(watch, {1: 15.1})
    assert "rank 1 has been stopped for 15 s before its first step" in watch.failed


def test_a_traceback_that_was_shown_is_not_shown_again(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def fails():\n    raise ValueError('once')\n\n\nfails()\n")
    command = [*SERVED, "launch", "--worker_num", "2", "--log_dir", "logs", "--join", "True", "net.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 2
    assert (done.stdout + done.stderr).count("ValueError: once") == 1
    first = next(rank for rank in (0, 1) if f"rank {rank} ended the job" in done.stderr)
    assert f"; its output is in {tmp_path}/logs/worker_{first}.log" in done.stderr
