"""`mspc run --profile`: the trace of all ranks and the table of rank 0; what is timed, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.report.profile import show_profile
from mspc.commands.run import run_directory, run_script
from mspc.engine.job import Job
from mspc.engine.profile import StepProfiler
from mspc.engine.profile_options import ProfileOptions, profile_options
from mspc.ir.diagnostics import MspcError
from mspc.ops.collective.one_rank import OneRank
from mspc.runtime.profile import NodeTiming
from tests.commands.test_run_script import NETWORK, TRAIN
from tests.conftest import HANG
from tests.explained import message_of
from tests.gpu.programs import compiled
from tests.serving import SERVED

NINE = TRAIN.replace("range(3)", "range(9)")
HEAD = ["node", "nodes", "stream", "time", "share", "cell,", "line,", "result,", "rate"]
EACH_ITS_OWN = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor
from mindspore.communication import init, get_rank

init()
ms.set_auto_parallel_context(parallel_mode="stand_alone")


class Net(nn.Cell):
    def construct(self, x):
        return ops.exp(x) if get_rank() else ops.tanh(ops.matmul(x, x))


net = Net()
for _ in range(3 + get_rank()):
    net(Tensor(np.ones((4, 4), np.float32)))
"""


@pytest.fixture
def script(own_folder: Path) -> Path:
    return own_folder / "train.py"


def mspc(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*SERVED, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)


def spans(path: str = "trace.json") -> list[dict[str, Any]]:
    """The nodes' runs in a trace."""
    content = json.loads(Path(path).read_text())
    assert content["displayTimeUnit"] == "ms"
    return [event for event in content["traceEvents"] if event["ph"] == "X"]


def table(out: str) -> list[str]:
    """The lines from the table's title on, to the line that names the trace; ranks may print in between."""
    lines = [line for line in out.splitlines() if not line.startswith("rank ")]
    begin = next(i for i, line in enumerate(lines) if line.startswith("profile of "))
    end = next(i for i, line in enumerate(lines) if line.startswith("trace in "))
    return lines[begin : end + 1]


def test_script_under_mpirun(script: Path) -> None:
    script.write_text(NINE)
    plain = mspc("run", "train.py", "--ranks", "2")
    done = mspc("run", "train.py", "--ranks", "2", "--profile", "trace.json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    wanted, got = (
        sorted(line for line in one.stdout.splitlines() if line.startswith("rank ")) for one in (plain, done)
    )
    assert got == wanted
    assert len(got) == 18
    found = spans()
    assert {(e["pid"], e["tid"]) for e in found} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert {e["args"]["step"] for e in found} == {3, 4, 5, 6, 7}
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in found)
    each = {(e["pid"], e["args"]["step"], e["args"]["node"]) for e in found}
    assert len(each) == len(found) == 2 * 5 * (1 + max(e["args"]["node"] for e in found))
    assert any(e["name"] == "MatMul 'matmul'" and "train.py:" in e["args"]["line"] for e in found)
    lines = table(done.stdout)
    assert lines[0] == (
        "profile of TrainOneStepCell_construct (the first graph that trains), rank 0, median of steps 3 to 7"
    )
    assert [word for line in lines[1:3] for word in line.split()] == HEAD
    assert any(re.fullmatch(r"    .*, train\.py:\d+, Float32 \(.*\), [\d.]+ [GT]FLOP/s", line) for line in lines)
    shares = [float(line.rpartition(" %")[0].split()[-1]) for line in lines if line.endswith(" %")]
    assert len(shares) == 10
    assert shares == sorted(shares, reverse=True)
    assert 90 < sum(shares) <= 100.5
    words = lines[-4].replace(",", "").split()
    assert words[::3] == ["compute", "communication", "step"]
    assert float(words[1]) + float(words[4]) <= float(words[7]) * 1.01
    assert re.fullmatch(
        r"memory: planned peak [\d.]+ (B|KiB), kernels at most [\d.]+ (B|KiB) beside it; "
        r"this process used [\d.]+ MiB at most, with Python, the script and all its ranks here",
        lines[-3],
    )
    assert re.fullmatch(r"note: \d+ nodes ran; the table has the most expensive ones, and the trace has all", lines[-2])
    assert lines[-1] == "trace in trace.json; ui.perfetto.dev shows it"
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["trace.json", "train.py"]


def test_simulated_script_times_the_graph_that_trains(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = "for i in range(5):\n    net(rows(0)[0])\n    print('loss', step(*rows(i)))\n    net(rows(0)[0])\n"
    script.write_text(NETWORK + loop + "sys.exit(0)\n")
    run_script(script, 2, simulate=True)
    plain = capsys.readouterr().out
    run_script(script, 2, simulate=True, profile=ProfileOptions(Path("trace.json"), 2))
    out = capsys.readouterr().out
    lines = table(out)
    assert "TrainOneStepCell_construct (the first graph that trains), rank 0, median of steps 3 to 4" in lines[0]
    assert lines[-2] == "note: simulated ranks take turns: the time of a collective holds work of the other ranks"
    assert [line for line in out.splitlines() if line not in lines] == plain.splitlines()
    found = spans()
    assert {(e["pid"], e["tid"], e["args"]["step"]) for e in found} == {
        (rank, stream, step) for rank in (0, 1) for stream in (0, 1) for step in (3, 4)
    }
    assert any(e["name"].startswith("ApplyMomentum") for e in found)


def test_a_graph_that_does_not_train_is_written_at_the_end(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(NETWORK + "for i in range(4):\n    net(rows(0)[0])\nprint('end')\n")
    run_script(script, 1, profile=ProfileOptions(Path("trace.json"), 1))
    out = capsys.readouterr().out
    assert out.startswith("end\nprofile of Net_construct (the first graph; none trains), rank 0, median of step 3\n")
    assert {e["args"]["step"] for e in spans()} == {3}


def test_ranks_with_graphs_of_their_own(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(EACH_ITS_OWN)
    run_script(script, 2, simulate=True, profile=ProfileOptions(Path("trace.json")))
    assert [(e["pid"], e["name"], e["args"]["step"]) for e in spans() if "train.py" in e["args"]["line"]] == [
        (0, "MatMul", 3), (0, "Tanh", 3), (1, "Exp", 3), (1, "Exp", 4),
    ]  # fmt: skip
    assert "median of step 3\n" in capsys.readouterr().out


@pytest.fixture
def program(script: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    script.write_text(TRAIN)
    compile_target(str(script), CompileOptions(ranks=2, out=Path("out"), json=Path("table.json")))
    capsys.readouterr()
    return Path("out")


def test_compiled_program(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_directory(program, synthetic=True, steps=4, simulate=True)
    plain = capsys.readouterr().out
    done = mspc("run", "out", "--synthetic", "--steps", "4", "--profile", "trace.json")
    assert done.returncode == 0, done.stderr
    lines = table(done.stdout)
    assert [line for line in done.stdout.splitlines() if line not in lines] == plain.splitlines()
    assert lines[0].endswith("(the first graph that trains), rank 0, median of steps 3 to 4")
    assert any(re.fullmatch(r"    .*, train\.py:\d+, Float32 \(.*\), [\d.]+ [GT]FLOP/s", line) for line in lines)
    found = spans()
    assert {(e["pid"], e["tid"], e["args"]["step"]) for e in found} == {
        (rank, stream, step) for rank in (0, 1) for stream in (0, 1) for step in (3, 4)
    }
    assert any("the result of MatMul 'matmul' is unsharded" in e["args"].get("reason", "") for e in found)


def test_short_runs_time_what_they_have(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ProfileOptions(Path("trace.json"))
    run_directory(program, synthetic=True, steps=2, simulate=True, profile=options)
    lines = table(capsys.readouterr().out)
    assert lines[0].endswith("rank 0, median of step 2")
    assert lines[-3] == "note: step 2 may still prepare; a run of 3 steps or more gives better times"
    assert {e["args"]["step"] for e in spans()} == {2}
    run_directory(program, synthetic=True, steps=1, simulate=True, profile=options)
    said = capsys.readouterr()
    assert said.err == (
        "warning: trace.json holds no times of rank 0: a first step on the CPU prepares, run 2 or more\n"
    )
    assert said.out.startswith("step: 1, loss is ")
    assert said.out.count("\n") == 1
    assert spans() == []


def test_a_script_without_a_network(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("print(1)\n")
    run_script(script, None, profile=ProfileOptions(Path("trace.json")))
    assert capsys.readouterr() == ("1\n", "warning: trace.json holds no times of rank 0: the script ran no network\n")
    assert spans() == []


def test_a_gpus_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The times, and a GPU's memory, are given: every character of the table is known."""
    graph, _, _ = compiled("feed_forward")

    class Executor:
        def __init__(self) -> None:
            self.graph, self.rank, self.step, self.trains = graph, 0, 0, True
            self.plan = SimpleNamespace(inputs=64, constants=8)
            self.device = SimpleNamespace(
                index=3, name="NVIDIA H200", memory_rate=4.8e12, pool=SimpleNamespace(used_bytes=lambda: 5_000)
            )

        def memory(self) -> dict[str, int]:
            held = {"parameters and optimizer states": 1024, "inputs and constants": 72}
            return held | {"the step's values (planned peak)": 2048, "scratch": 512}

        def run_timed(self, inputs: Any, origins: Any) -> Any:
            self.step += 1
            return self.step, [NodeTiming(0, "compute", 0, 3), NodeTiming(1, "compute", 3, 0.5 * self.step, True)]

        def run(self, inputs: Any, origins: Any) -> Any:
            self.step += 1
            return -self.step

    executor, job = Executor(), Job(OneRank(), OneRank())
    job.profile = StepProfiler(ProfileOptions(tmp_path / "trace.json", 2), sys.stdout, show_profile)
    results = []
    for _ in range(6):
        results.append(job.run(executor, []))
        job.step_done()
    assert results == [1, 2, 3, 4, -5, -6]
    lines = capsys.readouterr().out.splitlines()
    nodes = [graph.nodes[0], graph.nodes[1]]
    shown = [line for line in lines if line.endswith(" %")]
    assert [line.split("  ")[0] for line in shown] == [node.label for node in nodes]
    assert ["3.000 ms  63.2 %" in shown[0], "1.750 ms  36.8 %" in shown[1]] == [True, True]
    assert lines[lines.index("compute 4.750 ms, communication 0.000 ms, step 4.750 ms") :] == [
        "compute 4.750 ms, communication 0.000 ms, step 4.750 ms",
        "device memory",
        "for                                 bytes",
        "parameters and optimizer states   1.0 KiB",
        "inputs and constants                 72 B",
        "the step's values (planned peak)  2.0 KiB",
        "scratch                             512 B",
        "planned together                  3.6 KiB",
        "in use on GPU 3 (by all graphs)   4.9 KiB",
        "note: the memory of NVIDIA H200 moves at most 4,800 GB/s; estimates assume 50 TFLOP/s for matmuls of Float32",
        "note: 1 nodes have no kernel of their own for GPUs; they take 1.750 ms",
        f"trace in {tmp_path}/trace.json; ui.perfetto.dev shows it",
    ]
    assert [e["args"].get("plain") for e in spans(str(tmp_path / "trace.json"))] == [None, True] * 2


def test_bad_use_is_status_2(script: Path) -> None:
    script.write_text(TRAIN)
    Path("folder").mkdir()
    for arguments, wanted in (
        (["--profile", "no/trace.json"], "error: cannot write no/trace.json: there is no folder 'no'\n"),
        (["--profile", "folder"], "error: cannot write folder: it is a folder\n  note: --profile names a file\n"),
        (
            ["--profile-steps", "3"],
            "error: --profile-steps 3 says how many steps --profile times, which is not there\n"
            "  note: add --profile FILE.json\n",
        ),
    ):
        done = mspc("run", "train.py", *arguments)
        assert (done.returncode, done.stdout, message_of(done.stderr)) == (2, "", wanted)
    done = mspc("run", "train.py", "--profile", "trace.json", "--profile-steps", "0")
    assert done.returncode == 2
    assert "--profile-steps" in done.stderr
    assert not Path("trace.json").exists()


def test_a_folder_that_vanishes_ends_the_run(script: Path) -> None:
    script.write_text(NINE.replace("for i", "import os\nos.rmdir('gone')\nfor i"))
    Path("gone").mkdir()
    with pytest.raises(MspcError) as caught:
        run_script(script, 1, profile=ProfileOptions(Path("gone/trace.json")))
    assert (caught.value.message, caught.value.exit_status) == (
        "cannot write gone/trace.json: No such file or directory", 2,
    )  # fmt: skip


def test_options_and_the_ranks_arguments() -> None:
    assert profile_options(None, None) is None
    found = profile_options(Path("a.json"), None)
    assert found is not None
    assert found.arguments() == ["--profile", "a.json", "--profile-steps", "5"]
    assert profile_options(Path("a.json"), 2) == ProfileOptions(Path("a.json"), 2)
