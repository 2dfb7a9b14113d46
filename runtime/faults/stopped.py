"""Judges of a job's ranks, from their records and from /proc: ranks that are stopped, idle, deadlocked or orphaned, and
ranks for which a GPU waits in a collective.

On systems without /proc no rank counts as stopped or idle.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import shown_ranks
from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.base import Collective
from mspc.runtime.faults.call_log import CallLog, Meeting
from mspc.runtime.faults.record import (
    CALLS,
    ENDED,
    GRAPH,
    MARK,
    MEETING,
    MEMBERS,
    NODE,
    PID,
    RANKS,
    RUNNING,
    STATE,
    STEP,
    WAITS,
    count,
    group_of,
    members,
    messages_of,
    received,
    sent,
    slot,
    write_members,
)

# For ranks whose mpirun has ended before them: nobody else would remove the files that Open MPI has made for the job.


_SESSION = re.compile(r"(ompi|prte)\.\S+")
_SEGMENT = re.compile(r"(?:^|/)sm_segment\.\S+$")
DAEMONS = ("prted", "orted")
"""Programs of mpirun that run ranks on hosts other than its own."""
LAST_WORDS = re.compile(rb"rank (\d+) ends (.*): (?:mpirun|prted|orted)\b")
"""Pattern of the text of `orphaned` in a rank's output: the rank, and its place."""
MAPS = "/proc/self/maps"


def name_of(pid: int) -> str:
    """Return the name of a process's program, or "" if it is unknown."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def orphaned(parent: str, rank: int, place: str) -> str:
    """Return the message about a rank whose parent, a program of this name, has ended: mpirun, or its part on another
    host. A rank cannot know the reason."""
    if parent in DAEMONS:
        return f"rank {rank} ends {place}: {parent}, mpirun's part on this host, was killed or has lost mpirun's host"
    return f"rank {rank} ends {place}: mpirun was killed or has lost a host"


def remove_files_of_job(session: str) -> None:
    """Remove the session folder of this rank's mpirun, and the shared memory that this rank has mapped with others.

    All ranks do this at once; files that are already gone are no error.
    """
    if _SESSION.fullmatch(os.path.basename(session)):
        shutil.rmtree(session, ignore_errors=True)
    for path in shared_segments():
        try:
            os.unlink(path)
        except OSError:
            continue


def shared_segments(maps: str = MAPS) -> list[str]:
    """Return the files through which this process shares memory with ranks of this host, by Open MPI's names."""
    try:
        with open(maps, encoding="utf-8", errors="replace") as file:
            mapped = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if line.count("/")}
    except (OSError, IndexError):
        return []
    return sorted(path for path in mapped if _SEGMENT.search(path))


# Finds ranks whose GPUs wait in a collective for a rank that does not come: the waiting rank, its place, and the
# missing ranks.
#
# A GPU leaves a mark before every collective and at the end of every step. Nothing else can be seen of a step that is
# replayed. Everything here works on these marks and on the ranks' graphs.


PATIENCE = 60.0
"""Seconds without any movement after which an awaited rank counts as missing, and for which a rank may be stopped."""
ENDED_PATIENCE = 2.5
"""The same seconds if a rank has ended."""

_INDEX_BITS, _STEP_BITS = 24, 32
END = (1 << _INDEX_BITS) - 1
"""Index that means that the step is over."""
GRAPHS = 128
"""Graphs are distinguished by their number modulo this."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Last known place of a GPU: graph, step from 1, index of a collective's node or `END`."""

    graph: int
    step: int
    index: int

    @property
    def over(self) -> bool:
        return self.index == END


def packed(graph: int, step: int, index: int) -> int:
    """Return a mark as one number, not 0; a kernel adds the step, shifted by `STEP_SHIFT`."""
    return (graph % GRAPHS) << (_INDEX_BITS + _STEP_BITS) | step << _INDEX_BITS | index


STEP_SHIFT = _INDEX_BITS


def unpacked(word: int) -> Mark | None:
    """Return the mark in a number, or None for 0: there was none yet."""
    if not word:
        return None
    step = word >> _INDEX_BITS & ((1 << _STEP_BITS) - 1)
    return Mark(word >> (_INDEX_BITS + _STEP_BITS), step, word & END)


@dataclass(frozen=True, slots=True)
class WaitingNode:
    """Node at which a rank's GPU waits for others.

    what: its name in messages. ranks: the ranks that must come. kind: only meetings of one kind count against each
    other.
    """

    index: int
    what: str
    ranks: tuple[int, ...]
    kind: Any


Schedule = Callable[[int, int], Sequence[WaitingNode]]
"""Function from (rank, number of the graph) to the meetings of a step, in their order."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Finding that `rank` waits in `mark` at `at` for the ranks `missing`, ascending, which have not come there.
    circle: because they wait too."""

    rank: int
    mark: Mark
    at: WaitingNode
    missing: tuple[int, ...]
    circle: bool = False


def meetings(graph: Graph, rank: int) -> list[WaitingNode]:
    """Return the nodes at which the GPU of `rank` meets others."""
    found: list[WaitingNode] = []
    for index, node in enumerate(graph.nodes):
        partners = node.op.partners(rank) if isinstance(node.op, Collective) else ()
        if isinstance(node.op, Collective) and partners:
            found.append(WaitingNode(index, node.label, tuple(sorted({*partners, rank})), node.op.channel(rank)))
    return found


def find(marks: Mapping[int, Mark | None], schedule: Schedule) -> Verdict | None:
    """Return the first rank that waits for one that is not waiting itself; the first of all if they wait in a circle;
    None if no rank is awaited."""
    waiting = {rank: found for rank in sorted(marks) if (found := _waits(rank, marks, schedule)) is not None}
    for verdict in waiting.values():
        missing = tuple(m for m in verdict.missing if m not in waiting)
        if missing:
            return replace(verdict, missing=missing)
    return next((replace(verdict, circle=True) for verdict in waiting.values()), None)


def _waits(rank: int, marks: Mapping[int, Mark | None], schedule: Schedule) -> Verdict | None:
    mark = marks[rank]
    if mark is None or mark.over:
        return None
    at = next((meeting for meeting in schedule(rank, mark.graph) if meeting.index == mark.index), None)
    if at is None:
        return None
    missing = tuple(m for m in at.ranks if m != rank and not _came(rank, m, marks, at.kind, schedule))
    return Verdict(rank, mark, at, missing) if missing else None


def _came(rank: int, member: int, marks: Mapping[int, Mark | None], kind: Any, schedule: Schedule) -> bool:
    """Return whether `member` has come to the meeting of `kind` at which `rank` is."""
    other, own = marks.get(member), marks[rank]
    if other is None or own is None or other.graph != own.graph:
        return False
    return _count(other, schedule(member, other.graph), kind, rank) >= _count(
        own, schedule(rank, own.graph), kind, member
    )


def _count(mark: Mark, schedule: Sequence[WaitingNode], kind: Any, other: int) -> int:
    """Return how often a rank has come to a meeting of `kind` with `other`."""
    places = [meeting.index for meeting in schedule if meeting.kind == kind and other in meeting.ranks]
    return (mark.step - 1) * len(places) + sum(index <= mark.index for index in places)


def _progress(record: Any) -> list[int]:
    """Return the words of a record that change while its rank moves."""
    return [record[word] for word in (CALLS, GRAPH, MARK, NODE, STATE, STEP)]


class Stalled:
    """Detector of a job that does not move, from the ranks' records."""

    def __init__(self, records: Sequence[Any], patience: float) -> None:
        self._records = records
        self.patience = patience
        self._seen: Any = None
        self._since = 0.0
        self._said = False

    def look(self, now: float) -> bool:
        """Return whether nothing has moved for too long, with work under way on a GPU; True once for every standstill.
        `now` is in seconds."""
        seen = [_progress(record) for record in self._records]
        if seen != self._seen:
            self._seen, self._since, self._said = seen, now, False
            return False
        ended = any(record[STATE] == ENDED for record in self._records)
        patience = min(ENDED_PATIENCE, self.patience) if ended else self.patience
        if self._said or now - self._since < patience:
            return False
        marks = [unpacked(record[MARK]) for record in self._records if record[STATE] == RUNNING]
        self._said = any(mark is not None and not mark.over for mark in marks)
        return self._said


def behind(verdict: Verdict, member: int, mark: Mark | None, record: Any, schedule: Schedule) -> str:
    """Return the reason why a rank is missing, as the end of "rank 0, which ..."."""
    wanted = verdict.mark
    if record[STATE] == ENDED:
        return "has ended"
    if record[WAITS]:
        return "waits for other ranks outside of a network"
    if mark is not None and not mark.over:
        at = next((m for m in schedule(member, mark.graph) if m.index == mark.index), None)
        step = "" if (mark.graph, mark.step) == (wanted.graph, wanted.step) else f"in step {mark.step} "
        other = "" if mark.graph == wanted.graph else "of another network "
        where = f"at {at.what} ({shown_ranks(at.ranks)})" if at is not None else f"at node {mark.index}"
        return f"{'waits' if verdict.circle else 'was last seen'} {step}{other}{where}"
    begun = record[STEP] if record[GRAPH] % GRAPHS == wanted.graph else 0
    if begun >= wanted.step:
        return "has not come to a collective in that step"
    return "has not begun the step"


CERTAIN_AFTER = 1.5
"""Seconds for which ranks must have been seen waiting in vain."""

OWN_PAUSE = 1.0
"""Seconds between two looks after which the observer itself must have been stopped, and knows nothing of that time."""


class Waiting:
    """Context of a rank that waits for others; one object for all calls of one kind.

    Args:
        own: the rank's record. ranks: the ranks it waits for. meeting: as in the record. counted: the identities that
        its calls count, see `record.identity`. log: notes the calls of `called`; None for a log of its own.
    """

    def __init__(
        self, own: Any, ranks: tuple[int, ...], meeting: int, counted: Iterable[int], log: CallLog | None,
        called: Meeting,
    ) -> None:  # fmt: skip
        self._own = own
        self._log, self._called = log or CallLog(own), called
        self._count, self._members, self._end = write_members(ranks)
        found = [slot(own, what) for what in counted]
        known = None not in found and self._count >= 0
        self._slots = tuple(at for at in found if at is not None)
        self._meeting = meeting if known else 0

    def __enter__(self) -> None:
        own = self._own
        own[MEMBERS] = self._count
        if self._members is not None:
            own[RANKS : self._end] = self._members
        own[MEETING] = self._meeting
        for at in self._slots:
            own[at] += 1
        self._entry = self._log.begin(self._called)
        own[WAITS] = 1

    def __exit__(self, *_: object) -> None:
        own = self._own
        self._entry[1] = time.time_ns()
        own[WAITS] = 0
        own[CALLS] += 1


def in_group(own: Any, ranks: tuple[int, ...], channel: int, log: CallLog | None = None) -> Waiting:
    """Return the context of a rank in a collective: all of `ranks` call the same ones in the same order."""
    group = group_of(channel, ranks)
    return Waiting(own, ranks, group, (group,), log, Meeting(ranks, channel))


def for_messages(
    own: Any, rank: int, to: tuple[int, ...], of: tuple[int, ...], channel: int,
    log: CallLog | None = None,
) -> Waiting:  # fmt: skip
    """Return the context in which `rank` waits for one message to each of `to` and one from each of `of` to be over."""
    counted = [sent(channel, rank, target) for target in to] + [received(channel, source, rank) for source in of]
    called = Meeting((rank, *sorted({*of, *to} - {rank})), channel, True, to, of)
    return Waiting(own, tuple(dict.fromkeys([*of, *to])), messages_of(channel), counted, log, called)


def blockers(rank: int, records: Sequence[Any]) -> list[int]:
    """Return the ranks that have not come yet to the meeting in which `rank` waits for them."""
    own = records[rank]
    meeting = own[MEETING]
    others = [member for member in members(own) if member != rank]
    if meeting >= 0:
        calls = count(own, meeting) if meeting else 0
        return [other for other in others if count(records[other], meeting) < calls]
    channel = -1 - meeting

    def owes(other: int) -> bool:
        heard, said = received(channel, other, rank), sent(channel, rank, other)
        return count(records[other], sent(channel, other, rank)) < count(own, heard) or count(
            records[other], received(channel, rank, other)
        ) < count(own, said)

    return [other for other in others if owes(other)]


class Start:
    """Timer of a wait in a collective that every rank of this host has begun.

    Before the first step no data travels, so that only a broken connection can delay such a collective. Ranks of other
    hosts have no record here; they leave MPI's start at the same time.
    """

    def __init__(self, rank: int, records: Sequence[Any]) -> None:
        self._rank = rank
        self._records = records
        self._seen: list[int] = []
        self._since = self._last = 0.0

    def look(self, now: float, stopped: Collection[int] = ()) -> float:
        """Return the seconds for which nothing has moved; 0 while some rank has still to come."""
        records, own = self._records, self._records[self._rank]
        calls = [record[CALLS] for record in records]
        paused = now - self._last > OWN_PAUSE
        self._last = now
        comes = stopped or not own[WAITS] or any(records[other][PID] for other in blockers(self._rank, records))
        if comes or paused or calls != self._seen:
            self._seen, self._since = calls, now
        return now - self._since


class DeadlockDetector:
    """Detector of ranks that wait and can never continue: for one that has ended, or for one another.

    A rank counts as awaited in vain only if it has not begun the awaited call. A rank that pauses for a while in a call
    that others have left delays nobody.
    """

    def __init__(self, records: Sequence[Any]) -> None:
        self._records = records
        self._since: dict[int, tuple[int, float]] = {}
        self._last = 0.0

    def look(self, now: float, stopped: Collection[int] = ()) -> tuple[int, int] | None:
        """Return (rank, the rank it waits for in vain) once it is certain, else None. now: in seconds. stopped: ranks
        whose processes do not run, of which nothing is known."""
        if now - self._last > OWN_PAUSE:
            self._since.clear()
        self._last = now
        records = self._records
        waiting = {
            rank: found
            for rank, record in enumerate(records)
            if rank not in stopped and record[STATE] == RUNNING and record[WAITS] and (found := blockers(rank, records))
        }
        doomed = self._in_vain(waiting)
        self._since = {rank: self._seen(rank, now) for rank in doomed}
        certain = self._in_vain({r: waiting[r] for r in doomed if now - self._since[r][1] >= CERTAIN_AFTER})
        for rank in certain:
            ended = [other for other in waiting[rank] if records[other][STATE] == ENDED]
            if ended:
                return rank, ended[0]
        return next(((rank, next(o for o in waiting[rank] if o in certain)) for rank in certain), None)

    def _seen(self, rank: int, now: float) -> tuple[int, float]:
        calls = self._records[rank][CALLS]
        before = self._since.get(rank, (calls, now))
        return before if before[0] == calls else (calls, now)

    def _in_vain(self, waiting: dict[int, list[int]]) -> list[int]:
        """Return those of the waiting ranks that can never continue, ascending."""
        found = set(waiting)
        while True:
            left = {
                rank for rank in found if any(o in found or self._records[o][STATE] == ENDED for o in waiting[rank])
            }
            if left == found:
                return sorted(found)
            found = left


NAMED = 3.0
"""Seconds after which a stopped rank is named."""
ASKED_EVERY = 1.0
"""Seconds between two looks for ranks that have no record yet."""
STOPPED, TRACED = "T", "t"


def state_of(pid: int) -> str:
    """Return a process's state as Linux's letter for it, or "" if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


class Stopped:
    """Detector of stopped ranks and of the time since when they are.

    Args:
        records: of all ranks. siblings: processes of ranks that may not have a record yet, by rank.
    """

    def __init__(self, records: Sequence[Any], siblings: Callable[[], Mapping[int, int]] | None = None) -> None:
        self._records = records
        self._siblings = siblings
        self._seen: dict[int, list[int]] = {}
        self._since: dict[int, float] = {}
        self._named: set[int] = set()
        self._early: Mapping[int, int] = {}
        self._asked = self._last = 0.0

    def look(self, now: float) -> dict[int, float]:
        """Return the seconds for which each rank has been seen stopped. A rank whose record changes is not examined."""
        if not self._last or now - self._last > OWN_PAUSE:
            self._since.clear()
            self._asked = now
        self._last = now
        self._ask(now)
        states = {rank: self._state(rank, record) for rank, record in enumerate(self._records)}
        self._since = {rank: self._since.get(rank, now) for rank, state in states.items() if state in (STOPPED, TRACED)}
        self._named &= self._since.keys()
        return {rank: now - since for rank, since in self._since.items()}

    def to_name(self, seconds: Mapping[int, float]) -> list[int]:
        """Return the ranks of a look that have been stopped for long enough to be named, each once per stop."""
        found = [rank for rank, for_seconds in seconds.items() if for_seconds >= NAMED and rank not in self._named]
        self._named.update(found)
        return found

    def pid(self, rank: int) -> int:
        """Return the process of a rank, or 0 if it is unknown."""
        return self._records[rank][PID] or self._early.get(rank, 0)

    def complete(self) -> None:
        """Note that all ranks have come up: those without a record here are on other hosts, so none of them is searched
        for."""
        self._siblings = None

    def _ask(self, now: float) -> None:
        """Request once in a while the processes of ranks that have no record yet, which needs a look at all
        processes."""
        if self._siblings is None or now - self._asked <= ASKED_EVERY:
            return
        self._asked = now
        self._early = self._siblings() if any(not record[PID] for record in self._records) else {}

    def _state(self, rank: int, record: Any) -> str:
        pid, words, before = self.pid(rank), _progress(record), self._seen.get(rank)
        self._seen[rank] = words
        return state_of(pid) if pid and words == before else ""


# Finds ranks that others wait for and that do nothing: asleep, blocked on something outside of the job, or deadlocked.
#
# A rank works while its process or one of its children uses a core or moves data, however long it computes; else it is
# idle. Everything here is read from /proc; on other systems no rank counts as idle.


IDLE_NAMED = 6.0
"""Seconds after which an idle rank is named."""
EVERY = 1.0
"""Seconds between two looks at the processes."""
BUSY = 0.03
"""Seconds of a core between two such looks that count as work; the thread that watches takes less."""
WORKING = ("R", "D")
"""States of a process that wants a core, which others may hold, or waits for a disk."""


@dataclass(frozen=True)
class Wait:
    """Wait of `rank` for `idle`, which has done nothing for `seconds`."""

    rank: int
    idle: int
    seconds: float


@dataclass
class _Seen:
    words: list[int]
    core: float
    moved: int
    since: float


class Idle:
    """Detector of awaited ranks that are idle. records: of all ranks."""

    def __init__(self, records: Sequence[Any]) -> None:
        self._records = records
        self._seen: dict[int, _Seen] = {}
        self._named: set[int] = set()
        self._last = self._looked = 0.0
        self._found: list[Wait] = []

    def look(self, now: float, stopped: Collection[int] = ()) -> list[Wait]:
        """Return a wait for every idle rank. now: in seconds. stopped: ranks that are handled elsewhere."""
        if now - self._last > OWN_PAUSE + EVERY:
            self._seen.clear()
        self._last = now
        if now - self._looked < EVERY:
            return self._found
        self._looked = now
        waited_for = self._waited_for(stopped)
        self._seen = {rank: self._state(rank, now) for rank in waited_for}
        self._named &= waited_for.keys()
        self._found = [Wait(waited_for[rank], rank, now - seen.since) for rank, seen in self._seen.items()]
        return self._found

    def to_name(self, waits: Sequence[Wait]) -> list[Wait]:
        """Return the waits that are long enough to be named, each once while it lasts."""
        found = [wait for wait in waits if wait.seconds >= IDLE_NAMED and wait.idle not in self._named]
        self._named.update(wait.idle for wait in found)
        self._named -= {wait.idle for wait in waits if wait.seconds < IDLE_NAMED}
        return found

    def _waited_for(self, stopped: Collection[int]) -> Mapping[int, int]:
        """Return the first rank that waits for each rank which runs and does not wait itself."""
        found: dict[int, int] = {}
        for rank, record in enumerate(self._records):
            if rank in stopped or record[STATE] != RUNNING or not record[WAITS]:
                continue
            for other in blockers(rank, self._records):
                entry = self._records[other]
                if other not in stopped and entry[STATE] == RUNNING and entry[PID] and not entry[WAITS]:
                    found.setdefault(other, rank)
        return found

    def _state(self, rank: int, now: float) -> _Seen:
        record = self._records[rank]
        core, moved = work_of(record[PID])
        seen = _Seen(_progress(record), core, moved, now)
        before = self._seen.get(rank)
        if before is None or seen.words != before.words or moved != before.moved or core - before.core >= BUSY:
            return seen
        if state_of(record[PID]) in WORKING:
            return seen
        return _Seen(seen.words, core, moved, before.since)


def work_of(pid: int) -> tuple[float, int]:
    """Return the seconds of cores that a process and its descendants have used, and the bytes that they have read and
    written."""
    core, moved = 0.0, 0
    waiting = [pid]
    while waiting:
        process = f"/proc/{waiting.pop()}"
        try:
            with open(f"{process}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            core += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            with open(f"{process}/io", "rb") as file:
                moved += sum(int(line.split()[1]) for line in file if line.startswith((b"read_bytes", b"write_bytes")))
            for task in os.listdir(f"{process}/task"):
                with open(f"{process}/task/{task}/children", "rb") as file:
                    waiting += map(int, file.read().split())
        except (OSError, ValueError, IndexError):
            continue
    return core, moved
