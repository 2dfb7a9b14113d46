"""A served command says, writes and returns what one of its own process does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from mspc.engine.ranks.mpirun import find_mpirun, mpirun_environment
from tests.conftest import HANG
from tests.serving import SERVED
from tests.serving.client import SERVER, reach

SCRIPT = """
import os, sys
import mspc as ms
print(sys.argv[1:], os.environ.get("GIVEN"), sorted(os.listdir(".")), sys.stdin.read(), __name__)
sys.stderr.write("aside\\n")
raise SystemExit(3)
"""
RANKS = """
import os, sys, tempfile
from mindspore.communication import get_group_size, get_rank, init
init()
served = "socket" in os.environ["MSPC_TEST_SERVER"] and sys.executable.startswith(tempfile.gettempdir())
sys.stdout.write(f"{get_rank()} of {get_group_size()}, served: {served}\\n")
"""
SLEEPS = """
import os, time
with open("made", "w") as file:
    file.write(str(os.getpid()))
os.rename("made", "number")
time.sleep(600)
"""


@pytest.mark.parametrize("arguments", [
    ["--version"], ["compile", "missing.py"], ["ops", "MatMul"], ["run", "script.py", "--", "one"],
])  # fmt: skip
def test_it_is_as_a_command_of_its_own(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    found = []
    for command in (SERVED, [sys.executable, "-m", "mspc"]):
        done = subprocess.run([*command, *arguments], cwd=tmp_path, env={**os.environ, "GIVEN": "this"}, input="typed",
                              capture_output=True, text=True, check=False)  # fmt: skip
        found.append((done.returncode, done.stdout, done.stderr))
    assert found[0] == found[1]
    assert found[0][0] == {"--version": 0, "compile": 2, "ops": 0, "run": 3}[arguments[0]]


def test_ranks_under_mpirun_are_served(tmp_path: Path) -> None:
    """They are ranks of one job, in processes of the server."""
    (tmp_path / "script.py").write_text(RANKS)
    for command in ([*SERVED, "run", "script.py", "--ranks", "3"],
                    [find_mpirun(), "-n", "3", "--oversubscribe", *SERVED, "run", "script.py"]):  # fmt: skip
        done = subprocess.run(command, cwd=tmp_path, env=mpirun_environment(), capture_output=True, text=True,
                              timeout=HANG, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.split("\n")) == ["", *(f"{rank} of 3, served: True" for rank in range(3))]


def test_a_command_ends_with_its_client(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SLEEPS)
    client = subprocess.Popen([*SERVED, "run", "script.py"], cwd=tmp_path)
    number = tmp_path / "number"
    assert within(HANG, number.exists)
    client.kill()
    client.wait()
    command = Path(f"/proc/{number.read_text()}/cmdline")
    assert within(HANG, lambda: not command.exists() or not command.read_bytes())


def within(seconds: float, happens: Callable[[], bool]) -> bool:
    """Whether something happens in so many seconds."""
    end = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_a_program_of_pytorch_has_it_loaded(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text("import sys; assert 'torch' in sys.modules; import beside; raise SystemExit('stopped')")
    (tmp_path / "beside.py").write_text("import sys\nprint(sys.argv[1:])")
    done = subprocess.run([*SERVED, "--torch", str(script), "one"], capture_output=True, text=True, timeout=HANG)
    assert (done.returncode, done.stdout, done.stderr) == (1, "['one']\n", "stopped\n")


@pytest.mark.parametrize("said", [b"", (1000).to_bytes(8, "big"), (1000).to_bytes(8, "big") + b"{"])
def test_a_client_that_ends_before_it_has_said_what_it_wants_leaves_nothing_behind(said: bytes) -> None:
    """As a rank does that mpirun ends while it starts."""
    path = os.environ[SERVER]

    def processes() -> int:
        found = 0
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                found += file.read_bytes().split(b"\0")[-2:-1] == [os.fsencode(path)]
        return found

    before = processes()  # PyTorch's server is one, too
    with socket.socket(socket.AF_UNIX) as client:
        reach(client, path)
        client.sendall(said)
    served = subprocess.run([*SERVED, "--version"], capture_output=True, check=False)  # taken behind the call above
    assert served.returncode == 0
    limit = time.monotonic() + HANG
    while processes() > before:
        assert time.monotonic() < limit
        time.sleep(0.1)
