"""Finds out why a job of `mspc launch` has ended, from what mpirun and the ranks have printed: the cause first."""

from __future__ import annotations

import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mspc.engine.ranks.hosts import Host
from mspc.ir.late_dataclass import dataclass
from mspc.runtime.faults.orphaned import LAST_WORDS

LAST_LINES = 20
"""Lines of a failed rank's log that are shown."""
WAIT = 3.0
"""Seconds for the ranks of a lost mpirun to say where they were."""
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
"""Finds what a rank, or MPI in it, prints where mpirun or another rank has left it: the cause is printed before
that."""


@dataclass(frozen=True)
class Ended:
    """A job that has ended.

    status: mpirun's, negative for a signal. said: what mpirun has printed. scheduler_log: where that is. logs: of all
    ranks, where they are on this host. begins: bytes of each that are of earlier starts. printed: whether the lines of
    a rank have been printed. hosts: of the job; () for this one.
    """

    status: int
    said: bytes
    scheduler_log: Path
    logs: Sequence[Path]
    begins: Mapping[int, int]
    printed: Callable[[int], bool]
    hosts: Sequence[Host] = ()

    def explain(self) -> None:
        """Say on stderr which host was lost, or which rank failed first, with where it was and its last lines."""
        lost, rank = lost_host(self.said), failed_rank(self.said)
        if lost is not None:
            complain(f"error: the host {lost[1]} is lost: mpirun's part there does not answer any more"
                     f"{self._ranks_of(*lost)}{self._place()}")  # fmt: skip
        elif rank is not None:
            self._explain_rank(rank)
        elif self.status < 0:
            name = signal.Signals(-self.status).name
            complain(f"error: mpirun was ended by {name}, and its ranks with it{self._place()}")
        else:
            complain(f"error: the job ended with status {self.status}; {self.scheduler_log} says why")
            complain(_last_lines(self.said))

    def _explain_rank(self, rank: int) -> None:
        path, own = self.logs[rank], self._printed_by(rank)
        others = None if b"error: " in own else self._of_others(rank)
        if others is not None:
            complain(others)
        mark = "note" if others is not None else "error"
        if self.printed(rank):
            complain(f"{mark}: rank {rank} ended the job with status {self.status}; its output is in {path}")
            return
        complain(f"{mark}: rank {rank} ended the job with status {self.status}; the end of {path}:")
        complain(_last_lines(own) if path.exists() else "  (it is on another host)")

    def _of_others(self, rank: int) -> str | None:
        """What another rank, whose lines have not been printed, says of one that could not say it itself."""
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
        """Where a rank of this host was that mpirun has left; "" where none says so."""
        limit = time.monotonic() + WAIT
        while time.monotonic() < limit:
            for rank in range(len(self.logs)):
                found = LAST_WORDS.search(self._printed_by(rank))
                if found is not None:
                    return f"; rank {int(found[1])} was {found[2].decode(errors='replace')}"
            time.sleep(0.1)
        return ""

    def _ranks_of(self, number: int, name: str) -> str:
        """The ranks of a lost host, by its name or by the number of mpirun's part there: mpirun itself is 0, and the
        hosts that it is not on follow in their order."""
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
    """(number of mpirun's part there, 0 where mpirun does not say it; name) of a host that mpirun says it has lost."""
    found = [match for pattern in _LOST for match in pattern.finditer(said)]
    if not found:
        return None
    last = max(found, key=lambda match: match.start())
    return int(last["number"] or 0), last["name"].decode(errors="replace")


def failed_rank(said: bytes) -> int | None:
    """The rank that failed first, by what mpirun printed; None where it names none."""
    found = [(match.start(), int(match[1])) for pattern in _FAILED for match in [pattern.search(said)] if match]
    return min(found)[1] if found else None


def _is_here(name: str) -> bool:
    """Whether a name or address is this host's: what listens can have it."""
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


def complain(text: str) -> None:
    """Print a line or several to stderr."""
    print(text, file=sys.stderr, flush=True)
