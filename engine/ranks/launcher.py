"""Jobs of `mspc launch`: ranks under mpirun, each with a log of its own, started again where that is asked for."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mspc.engine.ranks.hosts import Host
from mspc.engine.ranks.mpirun import end_with_parent, forwarding, mpirun_command, mpirun_environment
from mspc.ir.diagnostics import MspcError

WORKER = Path(__file__).with_name("worker.py")
SCHEDULER_LOG = "scheduler.log"
LAST_LINES = 20
"""Lines of a failed rank's log that are shown."""
RESTARTS = "MSPC_RESTARTS"
"""The variable that tells ranks how often their job has been started again."""
LOOK = 0.2
"""Seconds between two looks at the ranks' logs."""
_FORWARDED = ("PATH", "PYTHONPATH", "PYTHONHASHSEED", "VIRTUAL_ENV", "DATA_PATH")
_FAILED = (
    re.compile(rb"Process name: \[[^\]]*,(\d+)\]"),
    re.compile(rb"process rank (\d+) with PID"),
    re.compile(rb"MPI_ABORT was invoked on rank (\d+)"),
)
_LOST = re.compile(rb"Remote daemon: \[[^\]]*\] on node (\S+)")


@dataclass(frozen=True)
class LaunchJob:
    """What is started, and where.

    command: of every rank. ranks: how many. hosts: where; () for this one. folder: of the logs. log_name: of a rank's,
    with `{rank}` and `{local_rank}`. cores: see `worker`. variables: names that other hosts get too. shown: ranks whose
    logs are printed while they grow; None for all. start_within: seconds for the hosts to come up.
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
        """The log of a rank, where it is on this host."""
        local = rank
        for host in self.hosts:
            if local < host.slots:
                break
            local -= host.slots
        return self.folder / self.log_name.format(rank=rank, local_rank=local)

    def mpirun(self) -> list[str]:
        """The command line of mpirun."""
        worker = [sys.executable, str(WORKER), str(self.folder), self.log_name, self.cores, *self.command]
        found = mpirun_command(self.ranks, worker, self.hosts, self.variables)
        if self.hosts:
            found[1:1] = ["--prtemca", "prte_startup_timeout", str(self.start_within)]
        return found


def launch(job: LaunchJob, restarts: int) -> int:
    """Run the job to its end and return its status; 0 where all ranks ended well. Where one fails, the first one's last
    lines are printed, and the job starts again up to `restarts` times. Ctrl-C and SIGTERM end it."""
    for number in range(restarts + 1):
        status, ended_by = _run(job, number)
        if not status:
            return 0
        _explain(job, status)
        if ended_by is not None or number == restarts:
            return status
        print(f"note: restart {number + 1} of {restarts}", file=sys.stderr, flush=True)
    return 1


def _run(job: LaunchJob, number: int) -> tuple[int, int | None]:
    """(exit status, the signal that this process got) of one start."""
    environment = {**mpirun_environment(), RESTARTS: str(number)}
    for rank in range(job.ranks if not number else 0):  # what a rank of an earlier job said is not this one's
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
            status = _follow(job, child, again=number > 0)
    if ended_by:
        return 128 + ended_by[0], ended_by[0]
    if not status and _LOST.search(_said(job)):
        status = 1  # mpirun has ended the ranks then, and is content with that
    return (128 - status if status < 0 else status), None


def _follow(job: LaunchJob, child: subprocess.Popen[bytes], again: bool) -> int:
    """Print what the shown ranks write until mpirun has ended; its status. again: earlier starts wrote to the logs."""
    ranks = range(job.ranks) if job.shown is None else job.shown
    places = {rank: _size(job.log(rank)) if again else 0 for rank in ranks}
    while True:
        status = child.poll()
        for rank in ranks:
            places[rank] += _show(job.log(rank), places[rank])
        if status is not None:
            return status
        time.sleep(LOOK)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _show(path: Path, begin: int) -> int:
    """Print whole lines of a log from a byte on; how many bytes they are."""
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            data = file.read()
    except OSError:
        return 0
    data = data[: data.rfind(b"\n") + 1]
    if data:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    return len(data)


def _explain(job: LaunchJob, status: int) -> None:
    """Say on stderr which host was lost, or which rank failed first, with its last lines."""
    said = _said(job)
    lost = _LOST.findall(said)
    if lost:
        name = lost[-1].decode(errors="replace")
        _complain(f"error: the host {name} is lost: it does not answer any more{_ranks_on(job, name)}")
        return
    rank = failed_rank(said)
    if rank is None:
        _complain(f"error: the job ended with status {status}; {job.folder / SCHEDULER_LOG} says why")
        _complain("\n".join(f"  {line}" for line in _last_lines(said)))
        return
    path = job.log(rank)
    if job.shown is None or rank in job.shown:  # its lines have been printed
        _complain(f"error: rank {rank} ended the job with status {status}; what it said is in {path}")
        return
    _complain(f"error: rank {rank} ended the job with status {status}; the end of {path}:")
    try:
        lines = _last_lines(path.read_bytes())
    except OSError:
        lines = ["(it is on another host)"]
    _complain("\n".join(f"  {line}" for line in lines))


def failed_rank(said: bytes) -> int | None:
    """The rank that failed first, by what mpirun printed; None where it names none."""
    found = [(match.start(), int(match[1])) for pattern in _FAILED for match in [pattern.search(said)] if match]
    return min(found)[1] if found else None


def _said(job: LaunchJob) -> bytes:
    """What mpirun has printed."""
    try:
        return (job.folder / SCHEDULER_LOG).read_bytes()
    except OSError:
        return b""


def _ranks_on(job: LaunchJob, name: str) -> str:
    first = 0
    for host in job.hosts:
        if host.name == name:
            return f" (ranks {first} to {first + host.slots - 1})"
        first += host.slots
    return ""


def _last_lines(data: bytes) -> list[str]:
    return data.decode(errors="replace").rstrip("\n").split("\n")[-LAST_LINES:]


def _complain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def exported(environment: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Names of the variables that ranks on other hosts get: those asked for, and what Python and mspc read."""
    found = {name for name in environment if name.startswith(("MSPC_", "MS_")) or name in _FORWARDED}
    yield from sorted({*names, *found, RESTARTS})
