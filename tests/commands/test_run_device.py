"""`mspc run --device`: what is chosen, and that parameters on a device are where the script looks for them."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from mspc.commands.report.profile import show_profile
from mspc.engine.job import Job
from mspc.engine.profile import StepProfiler
from mspc.engine.profile_options import ProfileOptions, profile_options
from mspc.engine.run_program import Options, check_program, run_rank
from mspc.ir.diagnostics import ExecutionError
from mspc.runtime.device_choice import DeviceOptions, Hardware
from mspc.runtime.profile import NodeTiming
from tests.commands.played_gpu import Machine, PlayedCuda
from tests.commands.test_run_script import NETWORK, TRAIN
from tests.compiled_scripts import CompileOptions, compile_target, run_directory, run_script
from tests.errors import error_of, message_of
from tests.executors import OneRank, World
from tests.gpu.programs import compiled
from tests.serving import SERVED, run_process, serve
from tests.texts import IMPORTS

WISHES = DeviceOptions("gpu", deterministic=True)
TWO_GRAPHS = (
    NETWORK
    + """
x, y = rows(0)
print("before", net(x).asnumpy()[0])
print(step(x, y))
print(step(x, y), "lost")
print("w", net.w.asnumpy()[0])
print("after", net(x).asnumpy()[0])
net.w.set_data(Tensor(np.ones((8, 4), np.float32)))
print("ones", net(x).asnumpy()[0])
step(x, y)
print("w", net.w.asnumpy()[0], net.w.asnumpy().sum())
"""
)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PlayedCuda:
    monkeypatch.chdir(tmp_path)
    played = PlayedCuda()
    monkeypatch.setattr("mspc.runtime.device_choice.Cuda", lambda: played)
    monkeypatch.setattr("mspc.runtime.device_choice.Probe", Machine)
    return played


def run(text: str, wishes: DeviceOptions, **options: Any) -> None:
    Path("train.py").write_text(text)
    run_script(Path("train.py"), 1, wishes=wishes, **options)


def test_two_graphs_share_the_parameters_on_the_device(cuda: PlayedCuda, capsys: pytest.CaptureFixture[str]) -> None:
    run(TWO_GRAPHS, DeviceOptions("cpu"))
    wanted = capsys.readouterr()
    assert cuda.log == []
    run(TWO_GRAPHS, WISHES)
    assert capsys.readouterr() == wanted
    assert cuda.log == [
        ("open", 0, True),
        ("groups", True),
        ("executor", 0, False, ["parameter"]),
        ("groups", True),
        ("executor", 1, False, ["parameter"]),
    ]


SHAPES = (
    NETWORK
    + """
import gc
import weakref
from mspc.mindspore_api import call_handler
x, y = rows(0)
graphs = []
for size in (1, 2, 3, 1):
    print(net(x[:size]).asnumpy()[0])
    graphs.append(weakref.ref(list(call_handler.current().compiled_calls.values())[-1].executor))
gc.collect()
print([graph() is not None for graph in graphs], len(call_handler.current().job.hardware.memory.executors))
"""
)


def test_graphs_that_are_given_up_leave_the_device(
    cuda: PlayedCuda, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(SHAPES, WISHES)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "[True, True, True, True] 3"
    monkeypatch.setenv("MSPC_KEPT_GRAPHS", "1")
    run(SHAPES, WISHES)
    assert capsys.readouterr().out.splitlines() == [*printed[:-1], "[False, False, False, True] 1"]


@pytest.mark.parametrize(
    ("line", "wishes", "on_gpu"),
    [
        ("", DeviceOptions(), True),
        ('ms.set_context(device_target="CPU")', DeviceOptions(), False),
        ('init("nccl")', DeviceOptions("cpu"), False),
        ('ms.set_context(device_target="CPU"); init("nccl")', DeviceOptions(), False),
        ('ms.set_context(device_target="CPU")', WISHES, True),
        ('ms.set_context(deterministic="ON", device_target="Ascend", device_id=2)', DeviceOptions(), True),
    ],
)
def test_the_device_of_a_script(cuda: PlayedCuda, line: str, wishes: DeviceOptions, on_gpu: bool) -> None:
    run(TRAIN.replace("init()", f"init(); {line}"), wishes)
    assert bool(cuda.log) == on_gpu
    if on_gpu:
        index = 2 if "device_id" in line else 0
        assert cuda.log[0] == ("open", index, wishes.deterministic or "deterministic" in line)


def test_a_failure_of_a_step_under_way_is_not_lost(cuda: PlayedCuda, capsys: pytest.CaptureFixture[str]) -> None:
    bad = "step(x, Tensor(np.full((8, 4), np.nan, np.float32)))"
    text = NETWORK + f"\nx, y = rows(0)\n{bad}\nprint('not known yet')\n"
    with pytest.raises(ExecutionError, match="the loss of step 1 is NaN on rank 0"):
        run(text, WISHES)
    assert capsys.readouterr().out == "not known yet\n"


def test_a_script_waits_for_the_gpu_and_asks_for_its_memory(
    cuda: PlayedCuda, capsys: pytest.CaptureFixture[str]
) -> None:
    asks = "print(ms.runtime.max_memory_allocated())"
    bad = "step(x, Tensor(np.full((8, 4), np.nan, np.float32)))"
    text = f"{NETWORK}\nms.runtime.synchronize()\n{asks}\nx, y = rows(0)\nstep(x, y)\n{asks}\n{bad}\n"
    with pytest.raises(ExecutionError, match="the loss of step 2 is NaN on rank 0"):
        run(f"{text}ms.runtime.synchronize()\nprint('never')\n", WISHES)
    assert capsys.readouterr().out == "0\n4096\n"
    run(text.replace(bad, ""), DeviceOptions("cpu"))
    assert capsys.readouterr().out == "0\n0\n"


def test_a_simulation_says_that_it_runs_on_the_cpu(cuda: PlayedCuda, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(TRAIN.replace("init()", 'init("nccl")'))
    run_script(Path("train.py"), 2, simulate=True)
    err = capsys.readouterr().err
    assert err == 'warning: --simulate runs all ranks on the CPU; init("nccl") does not count\n'
    assert cuda.log == []


def test_a_compile_needs_no_device(own_folder: Path) -> None:
    Path("train.py").write_text(TRAIN.replace("init()", 'init("nccl"); ms.set_context(device_target="GPU")'))
    compile_target("train.py", CompileOptions(ranks=2, out=Path("out"), json=Path("table.json")))
    assert (own_folder / "out" / "program.json").is_file()


def compiled_program(line: str = "") -> Options:
    """The training step, compiled for two ranks by a script that holds `line`, and its data."""
    Path("train.py").write_text(TRAIN.replace("init()", f"init(); {line}") if line else TRAIN)
    compile_target("train.py", CompileOptions(ranks=2, out=Path("out"), json=Path("table.json")))
    data = Path("data.npz")
    rng = np.random.default_rng(3)
    np.savez(data, inputs0=rng.random((24, 8), np.float32), inputs1=rng.random((24, 4), np.float32))
    return Options(Path("out"), data=data)


def run_on_played_gpus(options: Options, wishes: DeviceOptions) -> list[list[Any]]:
    """The work of each of two ranks with its GPU."""
    program = check_program(options, 2)
    played = [PlayedCuda(), PlayedCuda()]

    def body(comm: Any) -> None:
        hardware = Hardware(wishes, comm.rank, 2, probe=Machine(), cuda=played[comm.rank])
        run_rank(options, Job(comm, comm, None, hardware), program)

    World(2).run(body)
    return [p.log for p in played]


def test_a_compiled_program_runs_on_the_device_of_every_rank(
    cuda: PlayedCuda, capsys: pytest.CaptureFixture[str]
) -> None:
    options = compiled_program()
    capsys.readouterr()
    run_directory(options.folder, data=options.data, simulate=True, save=Path("cpu.safetensors"))
    wanted = capsys.readouterr().out
    logs = run_on_played_gpus(replace(options, save=Path("gpu.safetensors")), DeviceOptions())
    assert capsys.readouterr().out == wanted
    assert [log[0] for log in logs] == [("open", 0, False), ("open", 1, False)]
    cpu, gpu = load_file("cpu.safetensors"), load_file("gpu.safetensors")
    assert cpu.keys() == gpu.keys()
    assert all(np.array_equal(cpu[name], gpu[name]) for name in cpu)


TF32 = 'ms.set_context(gpu_config={"matmul_allow_tf32": True})'
DETERMINISTIC = 'ms.set_context(deterministic="ON")'


@pytest.mark.parametrize(
    ("line", "entry", "wishes", "tf32", "deterministic"),
    [
        (TF32, {"matmul_allow_tf32": True}, DeviceOptions(), True, False),
        (DETERMINISTIC, {"deterministic": "ON"}, DeviceOptions(), False, True),
        (f"{TF32}; {DETERMINISTIC}", {"matmul_allow_tf32": True, "deterministic": "ON"}, DeviceOptions(), True, True),
        (TF32, {"matmul_allow_tf32": True}, DeviceOptions(deterministic=True), True, True),
        (
            'ms.set_context(gpu_config={"matmul_allow_tf32": False}, deterministic="OFF")',
            None,
            DeviceOptions(),
            False,
            False,
        ),
    ],
)
def test_a_compiled_program_follows_the_settings_of_its_script(
    cuda: PlayedCuda, line: str, entry: Any, wishes: DeviceOptions, tf32: bool, deterministic: bool
) -> None:
    options = compiled_program(line)
    facts = json.loads((options.folder / "program.json").read_text())
    assert facts.get("settings") == entry
    for rank, log in enumerate(run_on_played_gpus(options, wishes)):
        assert log[0] == ("open", rank, deterministic)
        assert [one[2] for one in log if one[0] == "executor"] == [tf32]


def test_settings_change_nothing_else_in_a_compiled_program(cuda: PlayedCuda) -> None:
    """But for the header of its graphs, by which times are estimated, and for what tells its files apart."""

    def files() -> tuple[dict[str, Any], dict[str, bytes]]:
        facts = json.loads(Path("out/program.json").read_text())
        name, facts["network"] = facts.pop("compile_id").encode(), facts["network"].replace(line, "")
        found = {str(p.relative_to("out")): p.read_bytes() for p in Path("out").rglob("*") if p.is_file()}
        del found["program.json"], facts["digests"]
        return facts, {path: text.replace(name, b"") for path, text in found.items()}

    line = "matmul_allow_tf32 : true\n"
    compiled_program(TF32)
    facts, with_settings = files()
    compiled_program(TF32.replace("True", "False"))
    others, without = files()
    assert list(facts).index("settings") == list(facts).index("training") + 1
    del facts["settings"]
    assert facts == others
    said = {path for path, text in with_settings.items() if line.encode() in text}
    assert said == {path for path in without if path.endswith(".ir")}
    assert {path: text.replace(line.encode(), b"") for path, text in with_settings.items()} == without


def test_no_gpu_is_an_error_of_status_2(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = [*SERVED, "run", str(script)]
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}
    done = run_process(*command, "--device", "gpu", env=hidden, status=2)
    assert "--device gpu asks for a GPU, but " in done.stderr
    assert "note: or run it on the CPU with mspc run --device cpu" in done.stderr
    assert "Traceback" not in done.stderr
    done = run_process(*command, "--device", "tpu", env=hidden, status=2)
    assert "tpu" in done.stderr


def test_ranks_of_mpirun_get_the_flag_and_one_speaks_for_all(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    done = run_process(*SERVED, "run", str(script), "--ranks", "2", "--device", "gpu")
    if done.returncode == 0:
        pytest.skip("this machine has GPUs")
    assert done.returncode == 2
    assert done.stderr.count("--device gpu asks for a GPU, but ") == 1


def test_a_script_on_the_gpu_that_is_not_there_names_its_line_of_context(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN.replace("init()", 'ms.set_context(device_target="GPU"); init()'))
    error = error_of(run_script, script, 1, wishes=DeviceOptions())
    assert error.message.startswith('device_target="GPU" asks for a GPU, but ')


NINE = TRAIN.replace("range(3)", "range(9)")
HEAD = ["node", "nodes", "stream", "time", "share", "cell,", "line,", "result,", "rate"]
EACH_ITS_OWN = IMPORTS + """
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
    plain = serve("run", "train.py", "--ranks", "2")
    done = serve("run", "train.py", "--ranks", "2", "--profile", "trace.json", status=0)
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
    done = serve("run", "out", "--synthetic", "--steps", "4", "--profile", "trace.json", status=0)
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
        done = serve("run", "train.py", *arguments)
        assert (done.returncode, done.stdout, message_of(done.stderr)) == (2, "", wanted)
    done = serve("run", "train.py", "--profile", "trace.json", "--profile-steps", "0", status=2)
    assert "--profile-steps" in done.stderr
    assert not Path("trace.json").exists()


def test_a_folder_that_vanishes_ends_the_run(script: Path) -> None:
    script.write_text(NINE.replace("for i", "import os\nos.rmdir('gone')\nfor i"))
    Path("gone").mkdir()
    error = error_of(run_script, script, 1, profile=ProfileOptions(Path("gone/trace.json")))
    assert (error.message, error.exit_status) == (
        "cannot write gone/trace.json: No such file or directory", 2,
    )  # fmt: skip


def test_options_and_the_ranks_arguments() -> None:
    assert profile_options(None, None) is None
    found = profile_options(Path("a.json"), None)
    assert found is not None
    assert found.arguments() == ["--profile", "a.json", "--profile-steps", "5"]
    assert profile_options(Path("a.json"), 2) == ProfileOptions(Path("a.json"), 2)
