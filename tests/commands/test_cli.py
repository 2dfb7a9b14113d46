"""The command line itself: it starts fast and answers mistakes with text and a status, no traceback."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

import mspc
from mspc.__main__ import main
from mspc.passes.base import pass_names
from tests.conftest import LOADED
from tests.errors import message_of
from tests.printed_lines import lines_until
from tests.serving import HANG, run_process, serve, succeed

HELP_SECONDS = 0.3 * LOADED
TRIES = 5
HEAVY = ("numpy", "networkx", "lark", "rich", "safetensors", "mpi4py")
PASSES = f"  note: passes are grad, {', '.join(name for name in pass_names() if name != 'grad')}\n"


def mspc_command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_process(sys.executable, "-m", "mspc", *arguments, cwd=cwd)


def test_ctrl_c_while_the_command_line_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loading(ModuleType):
        def __getattr__(self, name: str) -> NoReturn:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "mspc.cli", Loading("mspc.cli"))
    with pytest.raises(SystemExit) as raised:
        main()
    assert raised.value.code == 130


def imported(*arguments: str) -> list[str]:
    """Modules that a command imports, in the order in which Python says so."""
    done = succeed(sys.executable, "-X", "importtime", "-m", "mspc", *arguments)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return [line.rpartition("|")[2].strip() for line in lines]


def test_help_is_fast(tmp_path: Path) -> None:
    times: list[float] = []
    for _ in range(TRIES):
        start = time.perf_counter()
        done = mspc_command("--help", cwd=tmp_path)
        times.append(time.perf_counter() - start)
        assert done.returncode == 0
    assert min(times) < HELP_SECONDS


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("compile", "--help"), ("run", "--help")])
def test_help_imports_nothing_heavy(arguments: Sequence[str]) -> None:
    modules = imported(*arguments)
    assert "mspc.cli" in modules or any(m.startswith("typer") for m in modules)
    assert [m for m in modules if m.split(".")[0] in HEAVY] == []


def test_help_names_every_command() -> None:
    done = mspc_command("--help")
    for command in ("compile", "run", "verify", "opt", "ops"):
        assert f"\n  {command} " in done.stdout


def test_version() -> None:
    done = mspc_command("--version")
    assert (done.returncode, done.stdout) == (0, f"mspc {mspc.__version__}\n")


def test_console_script_is_installed() -> None:
    command = Path(sys.executable).with_name("mspc")
    done = succeed(command, "--version")
    assert done.stdout == f"mspc {mspc.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compile", "no.py"), "error: there is no script 'no.py'\n"),
        (("run", "no.py"), "error: there is no script 'no.py'\n"),
        (("opt", "no.ir"), "error: there is no file or folder 'no.ir'\n"),
        (("opt", "-p", "gard", "no.ir"), f"error: there is no pass 'gard'\n  note: did you mean 'grad'?\n{PASSES}"),
        (
            ("opt", "-p", "slice_to_rank{rnk=2}", "no.ir"),
            "error: pass slice_to_rank has no option 'rnk'; it takes rank\n  note: did you mean 'rank'?\n",
        ),
        (
            ("opt", "-p", "slice_to_rank{rank=x}", "no.ir"),
            "error: pass slice_to_rank: option rank takes a whole number, not 'x'\n",
        ),
        (
            ("compile", "."),
            "error: cannot read .: Is a directory\n",
        ),
        (("run", "nowhere"), "error: there is no script or folder of a compile 'nowhere'\n"),
        (("ops", "Xyzzy"), "error: there is no operator 'Xyzzy'\n  note: mspc ops lists them all\n"),
        (("ops", "Matmul"), "error: there is no operator 'Matmul'\n  note: did you mean 'MatMul'?\n"),
        (
            ("run", "no.py", "--steps", "3"),
            "error: no.py is no compiled program; --data, --synthetic, --steps and --save... are for these\n"
            "  note: a compiled program is the folder that `mspc compile` writes\n",
        ),
        (
            ("run", ".", "--only-rank", "0"),
            "error: . is a folder, so a compiled program\n"
            "  note: script arguments, --only-rank and --strategies are for scripts\n",
        ),
    ],
)
def test_mistake_is_one_message(tmp_path: Path, arguments: Sequence[str], message: str) -> None:
    done = serve(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, message_of(done.stderr)) == (2, "", message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [("compile",), ("compile", "a.py", "--ranks", "0"), ("frobnicate",), ("run", "-x")]
)
def test_wrong_usage_has_status_2(arguments: Sequence[str]) -> None:
    done = serve(*arguments, status=2)
    assert "Traceback" not in done.stderr
    assert done.stderr


def test_operators_are_listed_with_their_rules() -> None:
    done = mspc_command("ops", "MatMul", "Assign")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["operator", "rule", "gradient", "attributes"]
    assert [line.split()[0] for line in lines[2:]] == ["Assign", "MatMul"]
    assert "m k, k n -> m n  yes" in lines[3]


def test_operators_as_json() -> None:
    import json

    done = serve("ops", "MatMul", "--json", "-")
    found = json.loads(done.stdout)
    assert list(found) == ["version", "command", "status", "operators"]
    assert (found["version"], found["command"], found["status"]) == (1, "ops", 0)
    (row,) = found["operators"]
    assert row["name"] == "MatMul"
    assert row["rule"] == "m k, k n -> m n"
    assert row["attributes"] == ["transpose_a", "transpose_b"]
    assert row["gradient"] == "yes"


def test_interrupt_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint('running', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "mspc", "compile", "slow.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which a job in the background ignores
    ) as job:  # fmt: skip
        assert lines_until(job, bool) == ["running\n"]
        job.send_signal(signal.SIGINT)
        _, complaint = job.communicate(timeout=HANG)
    assert (job.returncode, complaint) == (130, "")


def test_closed_pipe_is_no_error() -> None:
    command = [sys.executable, "-m", "mspc", "ops"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        job.stdout.close()
        _, complaint = job.communicate(timeout=HANG)
    assert "Traceback" not in complaint


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("run", "net.py", "--rank", "4"), "--ranks"), (("verify", "net.py", "--device_num=4"), "--ranks"),
        (("compile", "net.py", "--world-size", "4"), "--ranks"), (("launch", "--ranks", "4", "net.py"), "--worker_num"),
        (("calibrate", "--rank", "4"), "--ranks"), (("doctor", "--josn", "x", "net.py"), "--json"),
    ],
)  # fmt: skip
def test_an_option_that_a_command_lacks_is_answered_with_what_was_meant(arguments: Sequence[str], meant: str) -> None:
    done = serve(*arguments, status=2)
    assert done.stderr.endswith(f" (Possible options: {meant})\n")


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e400"])
@pytest.mark.parametrize("command", [("run", "net.py", "--timeout"), ("calibrate", "--out", "m.toml", "--time-limit")])
def test_seconds_are_a_number(tmp_path: Path, command: tuple[str, ...], seconds: str) -> None:
    done = mspc_command(*command, seconds, cwd=tmp_path)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert message_of(done.stderr) == f"error: {command[-1]} is {float(seconds)}, not a number of seconds\n"
