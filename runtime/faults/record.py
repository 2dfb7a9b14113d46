"""A rank writes a record for the others of its host: its position, the ranks it waits for, and counts of its meetings.

A job's ranks map one file of 64-bit words with a record for each rank. A rank writes only its own record and reads all.
There are no locks, so a reader trusts only values that it reads twice.
"""

from __future__ import annotations

import array
import fcntl
import hashlib
import mmap
import os
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import ExecutionError, Frames, MspcError, shown
from mspc.ir.files.atomic_writing import is_at, remove_left_over
from mspc.ir.graph import Graph, Node

PID, NODE, STEP, STATE, WAITS, CALLS, GRAPH, MEETING, MARK, LOOPS, TURNS = range(11)
MAX_LOOPS = 4
MEMBERS = TURNS + MAX_LOOPS
RANKS = MEMBERS + 1
"""Words of a record: process, node index (-1: none), step, state, whether it waits, how often it has waited, graph, the
meeting it waits in (identity of a group, or of messages: `messages_of`; 0: nothing that can be judged), the last known
mark of its GPU (`stopped.packed`, 0: none), number of loops around the node, the iteration numbers of the outermost of
them, number of ranks it waits for (-1: more than fit), these ranks."""

LOOPS_AT, TURNS_AT, PLACE_WORDS = LOOPS - NODE, TURNS - NODE, MEMBERS - NODE
"""Offsets of the loop words among the words from `NODE` on, which an executor writes, and their number."""

ABSENT, RUNNING, ENDED, FAILED = range(4)
"""States of a rank."""

_HEAD = 256
_TEXT = 129
_SLOTS = 1024
_COUNTS = _HEAD + _TEXT
WORDS = _COUNTS + 2 * _SLOTS
"""64-bit words of a record: head, text, and a table of counts."""

MAX_MEMBERS = 2 * (_HEAD - RANKS)
MAX_TEXT = 8 * (_TEXT - 1)


def shown_turns(turns: Iterable[int]) -> str:
    """Return iterations for the end of a message: ", in turn 3, there in turn 0"."""
    return "".join(f", {'there ' if i else ''}in turn {turn}" for i, turn in enumerate(turns))


def write_members(ranks: tuple[int, ...]) -> tuple[int, memoryview | None, int]:
    """Return (the word for `MEMBERS`, the words from `RANKS` on, their end) for a rank that waits for `ranks`."""
    if len(ranks) > MAX_MEMBERS:
        return -1, None, RANKS
    members = array.array("i", ranks)
    if len(members) % 2:
        members.append(-1)
    words = memoryview(members).cast("B").cast("q") if members else None
    return len(ranks), words, RANKS + len(members) // 2


def members(record: Any) -> list[int]:
    """Return the ranks that a rank waits for; none if they did not fit."""
    count = record[MEMBERS]
    words = record[RANKS : RANKS + (max(0, count) + 1) // 2].tolist()
    return array.array("i", array.array("q", words).tobytes()).tolist()[: max(0, count)]


# Counts


@lru_cache(maxsize=65536)
def identity(text: str) -> int:
    """Return a positive number as the identity of something that ranks count, the same on all of them."""
    return 1 + (int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 2)


def group_of(channel: int, ranks: tuple[int, ...]) -> int:
    """Return the identity of a group's collectives; the order of the ranks matters."""
    return identity(f"group {channel}: {ranks}")


def messages_of(channel: int) -> int:
    """Return the meeting of a rank that waits for messages of a channel."""
    return -1 - channel


def sent(channel: int, source: int, target: int) -> int:
    """Return the identity under which `source` counts its messages to `target`."""
    return identity(f"sent {channel}: {source} {target}")


def received(channel: int, source: int, target: int) -> int:
    """Return the identity under which `target` counts its messages from `source`."""
    return identity(f"received {channel}: {source} {target}")


def slot(record: Any, what: int) -> int | None:
    """Return the word of a record in which its rank counts this identity from now on, or None if the table is full."""
    for step in range(_SLOTS):
        at = _COUNTS + 2 * ((what + step) % _SLOTS)
        if record[at] == 0:
            record[at] = what
        if record[at] == what:
            return at + 1
    return None


def count(record: Any, what: int) -> int:
    """Return how often a rank has begun the call of this identity."""
    for step in range(_SLOTS):
        at = _COUNTS + 2 * ((what + step) % _SLOTS)
        if record[at] in (0, what):
            return record[at + 1] if record[at] else 0
    return 0


# Text


def write_text(record: Any, text: str) -> None:
    """Write a text for readers, "" for none; a text that is too long is cut off."""
    data = text.encode()[:MAX_TEXT]
    record[_HEAD] = 0
    words = array.array("q", data.ljust(-(-len(data) // 8) * 8, b"\0"))
    record[_HEAD + 1 : _HEAD + 1 + len(words)] = memoryview(words).cast("B").cast("q") if words else words
    record[_HEAD] = len(data)


def read_text(record: Any) -> str:
    """Return the text that a rank has written."""
    length = min(max(0, record[_HEAD]), MAX_TEXT)
    words = record[_HEAD + 1 : _HEAD + _TEXT].tolist()
    return array.array("q", words).tobytes()[:length].decode(errors="ignore")


# Opens the small file that the ranks of a job on one host map as shared memory.
#
# Every rank must find it by its name, which others can guess, in a folder that everybody may write to. So a file is
# only used if it is a plain file of this user that nobody else can open, and symbolic links are not followed. Each rank
# holds a shared `flock` on it while it lives: a file without a lock is left over from a job that was killed while it
# started, and the next job removes it.


_TRIES = 1000
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class JobFile:
    """File of a job, filled with zeros when the first rank opens it.

    Args:
        name: the job's own name, the same on all its ranks. length: in bytes.

    Raises:
        ExecutionError: there is no memory for it, or another user has a file of this name.
    """

    def __init__(self, name: str, length: int) -> None:
        folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
        safe = "".join(c if c.isalnum() or c in "-." else "-" for c in name)
        self.path = os.path.join(folder, f"mspc-{os.getuid()}-{safe}")
        self._is_ours = False
        try:
            self.descriptor = self._locked(length)
            self.memory = mmap.mmap(self.descriptor, length)
        except OSError as error:
            self.remove()
            raise ExecutionError(
                f"ranks cannot share memory in {self.path}: {error.strerror}",
                notes=[f"every rank maps this file, which takes {length} bytes of {folder}"],
            ) from None

    def remove(self) -> None:
        """Remove the name; ranks that have opened the file can still use it."""
        if self._is_ours:
            with suppress(OSError):  # another rank was first
                os.unlink(self.path)

    def _locked(self, length: int) -> int:
        """Open the file, create it if it is missing or left over, and hold a shared lock. The first rank removes this
        user's files of other jobs that no rank has open any more."""
        folder, own = os.path.split(self.path)

        def is_of_another(name: str) -> bool:
            return name.startswith(f"mspc-{os.getuid()}-") and name != own

        for _ in range(_TRIES):
            descriptor = _opened(self.path)
            first = descriptor is not None and _has_no_owner(descriptor)
            if descriptor is None:
                continue
            if not first:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            if not is_at(Path(self.path), descriptor):  # removed between opening and locking
                os.close(descriptor)
                continue
            self._is_ours = True
            if first:
                os.ftruncate(descriptor, 0)
                # Unlike ftruncate this fails if memory is short; later a rank would die by SIGBUS.
                os.posix_fallocate(descriptor, 0, length)
                remove_left_over(Path(folder), is_of_another)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            return descriptor
        raise OSError(0, "other processes keep removing it")


def _opened(path: str) -> int | None:
    """Create the file or open the one that is there; None if it disappears meanwhile."""
    try:
        return os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None
    if _is_own(os.fstat(descriptor)):
        return descriptor
    os.close(descriptor)
    raise OSError(0, "somebody else has made a file of this name; remove it")


def _is_own(status: os.stat_result) -> bool:
    """Return whether a file is plain, accessible only to this user, and has no second name that writing would
    damage."""
    private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
    return stat.S_ISREG(status.st_mode) and private and status.st_nlink <= 1


def _has_no_owner(descriptor: int) -> bool:
    """Return whether no rank holds a lock; in that case the exclusive lock is taken."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# Failures of a run that know their node, the silent failure of a rank for which another reports, and announcements of a
# rank's meetings with others, for the message if they never come.


class NodeFailure(ExecutionError):
    """Failure of a node, or a value that is not finite. `index` is the node's place in the run order (-1: none), in the
    region of this name if it is given."""

    class_code = "E0807"

    def __init__(
        self, message: str, notes: Iterable[str] = (), frames: Frames = (), index: int = -1, region: str = ""
    ) -> None:
        super().__init__(message, notes=notes, frames=frames)
        self.index = index
        self.region = region

    @staticmethod
    def of(node: Node, index: int, error: Exception, where: str) -> NodeFailure:
        """Return the failure for an error of the node at `index`, or of a node in its regions. where: rank and step."""
        turns, region = "", ""
        if isinstance(error, RegionFailure):
            node, turns, region, index, error = error.node, error.where, error.region, error.index, error.cause
        operands = ", ".join(str(value.type) for value in node.inputs)
        what = error.message if isinstance(error, MspcError) else f"{type(error).__name__}: {error}"
        notes = error.notes if isinstance(error, MspcError) else ()
        return NodeFailure(
            f"{node.label} failed on {where}{turns}: {what}",
            [*notes, f"its operands are ({operands}), its result {node.type}"], node.frames, index, region,
        )  # fmt: skip

    def at(self, frames: Frames) -> NodeFailure:
        """Return the same failure with the source lines of its node."""
        return NodeFailure(self.message, self.notes, frames, self.index, self.region)


class RegionFailure(Exception):
    """Failure of a node inside of a region, on its way to the executor, which knows rank and step.

    turns: for the loops around the node, the innermost first: the label of the loop, and the iteration, from 0.
    """

    def __init__(self, graph: Graph, index: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.region = graph.name
        self.index = index
        self.node: Node = graph.nodes[index]
        self.cause = cause
        self.turns: list[tuple[str, int]] = []

    @property
    def where(self) -> str:
        """The iterations, for the middle of a message."""
        return "".join(f" in turn {turn} of {loop}" for loop, turn in self.turns)


class StoppedByOther(ExecutionError):
    """Failure that another rank reports; this one only ends."""

    class_code = "E0806"


def missed(rank: int, said: str, other: int, where: str, frames: Frames = ()) -> ExecutionError:
    """Return the error of a rank that waits for one that is elsewhere. said: the rank's action and place, then one note
    a line. frames: of its node."""
    what, *notes = said.split("\n")
    return ExecutionError(f"rank {rank} {what}, but rank {other} {where}", notes=notes, frames=frames, code="E0806")


def first_line(said: str) -> str:
    return said.partition("\n")[0]


def tell(text: str) -> None:
    """Print to stderr at once, in any state of the process."""
    data = (shown(text.rstrip("\n"), lines=True) + "\n").encode(errors="replace")
    try:
        os.write(2, data)
    except OSError:
        pass
