"""`mspc run --device`: what is chosen, and that parameters on a device are where the script looks for them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.run import run_directory, run_script
from mspc.engine.job import Job
from mspc.engine.run_program import Options, check_program, run_rank
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.runtime.comm.local import World
from mspc.runtime.device_choice import DeviceOptions, Hardware
from tests.commands.played_gpu import Machine, PlayedCuda
from tests.commands.test_run_script import NETWORK, TRAIN
from tests.conftest import HANG
from tests.serving import SERVED

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
    done = subprocess.run([*command, "--device", "gpu"], capture_output=True, text=True, env=hidden, check=False)
    assert done.returncode == 2
    assert "--device gpu asks for a GPU, but " in done.stderr
    assert "note: or run it on the CPU with mspc run --device cpu" in done.stderr
    assert "Traceback" not in done.stderr
    done = subprocess.run([*command, "--device", "tpu"], capture_output=True, text=True, env=hidden, check=False)
    assert done.returncode == 2
    assert "tpu" in done.stderr


def test_ranks_of_mpirun_get_the_flag_and_one_speaks_for_all(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = [*SERVED, "run", str(script), "--ranks", "2", "--device", "gpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    if done.returncode == 0:
        pytest.skip("this machine has GPUs")
    assert done.returncode == 2
    assert done.stderr.count("--device gpu asks for a GPU, but ") == 1


def test_a_script_on_the_gpu_that_is_not_there_names_its_line_of_context(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN.replace("init()", 'ms.set_context(device_target="GPU"); init()'))
    with pytest.raises(MspcError) as caught:
        run_script(script, 1, wishes=DeviceOptions())
    assert caught.value.message.startswith('device_target="GPU" asks for a GPU, but ')
