"""This module finds ranks whose GPUs wait in a collective for one that does not come: who waits, where, and for whom.

A GPU leaves a mark before every collective and at the end of every step; nothing else can be seen of a step that is
replayed. Everything here works on these marks and on the ranks' graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.base import Collective
from mspc.runtime.faults.record import CALLS, ENDED, GRAPH, MARK, NODE, RUNNING, STATE, STEP, WAITS

PATIENCE = 60.0
"""Seconds for which no rank may move before a rank that is waited for counts as missing, and for which one may be
stopped."""
ENDED_PATIENCE = 2.5
"""The same where a rank has ended."""

_INDEX_BITS, _STEP_BITS = 24, 32
END = (1 << _INDEX_BITS) - 1
"""In place of a node: the step is over."""
GRAPHS = 128
"""Graphs are told apart by their number modulo this."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The place at which a GPU was last seen: graph, step from 1, index of a collective's node or `END`."""

    graph: int
    step: int
    index: int

    @property
    def over(self) -> bool:
        return self.index == END


def packed(graph: int, step: int, index: int) -> int:
    """A mark as one number, not 0; a kernel adds the step, shifted by `STEP_SHIFT`."""
    return (graph % GRAPHS) << (_INDEX_BITS + _STEP_BITS) | step << _INDEX_BITS | index


STEP_SHIFT = _INDEX_BITS


def unpacked(word: int) -> Mark | None:
    """The mark in a number; None for 0: there was none yet."""
    if not word:
        return None
    step = word >> _INDEX_BITS & ((1 << _STEP_BITS) - 1)
    return Mark(word >> (_INDEX_BITS + _STEP_BITS), step, word & END)


@dataclass(frozen=True, slots=True)
class WaitingNode:
    """A node at which a rank's GPU waits for others.

    what: for messages. ranks: who must come. kind: only meetings of one kind count against each other.
    """

    index: int
    what: str
    ranks: tuple[int, ...]
    kind: Any


Schedule = Callable[[int, int], Sequence[WaitingNode]]
"""(rank, number of the graph) to the meetings of a step, in their order."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`rank` waits in `mark` at `at` for the ranks `missing`, ascending, which have not come there. circle: because
    they wait too."""

    rank: int
    mark: Mark
    at: WaitingNode
    missing: tuple[int, ...]
    circle: bool = False


def meetings(graph: Graph, rank: int) -> list[WaitingNode]:
    """The nodes at which the GPU of `rank` meets others."""
    found: list[WaitingNode] = []
    for index, node in enumerate(graph.nodes):
        partners = node.op.partners(rank) if isinstance(node.op, Collective) else ()
        if isinstance(node.op, Collective) and partners:
            found.append(WaitingNode(index, node.label, tuple(sorted({*partners, rank})), node.op.channel(rank)))
    return found


def find(marks: Mapping[int, Mark | None], schedule: Schedule) -> Verdict | None:
    """The first rank that waits for one that is not waiting itself; where all wait in a circle, the first of them. None
    where no rank is waited for."""
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
    """Whether `member` has come to the meeting of `kind` where `rank` is."""
    other, own = marks.get(member), marks[rank]
    if other is None or own is None or other.graph != own.graph:
        return False
    return _count(other, schedule(member, other.graph), kind, rank) >= _count(
        own, schedule(rank, own.graph), kind, member
    )


def _count(mark: Mark, schedule: Sequence[WaitingNode], kind: Any, other: int) -> int:
    """How often a rank has come to a meeting of `kind` with `other`."""
    places = [meeting.index for meeting in schedule if meeting.kind == kind and other in meeting.ranks]
    return (mark.step - 1) * len(places) + sum(index <= mark.index for index in places)


class Stalled:
    """Looks at the ranks' records for a job that does not move."""

    def __init__(self, records: Sequence[Any], patience: float) -> None:
        self._records = records
        self.patience = patience
        self._seen: Any = None
        self._since = 0.0
        self._said = False

    def look(self, now: float) -> bool:
        """Whether nothing has moved for too long, with work under way on a GPU; once for every standstill. `now` is in
        seconds."""
        words = (MARK, NODE, STEP, CALLS, GRAPH, STATE)
        seen = [[record[word] for word in words] for record in self._records]
        if seen != self._seen:
            self._seen, self._since, self._said = seen, now, False
            return False
        ended = any(record[STATE] == ENDED for record in self._records)
        patience = min(ENDED_PATIENCE, self.patience) if ended else self.patience
        if self._said or now - self._since < patience or not self._under_way():
            return False
        self._said = True
        return True

    def _under_way(self) -> bool:
        marks = [unpacked(record[MARK]) for record in self._records if record[STATE] == RUNNING]
        return any(mark is not None and not mark.over for mark in marks)


def shown_ranks(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 0-3" or "ranks 0, 2"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return "ranks " + ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")


def behind(verdict: Verdict, member: int, mark: Mark | None, record: Any, schedule: Schedule) -> str:
    """The reason why a rank is missing, as the end of "rank 0, which ..."."""
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
