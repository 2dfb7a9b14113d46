"""Records of a job that hangs: the collectives that each rank issued last, whatever file they come from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LIBRARY = re.compile(r"(?:^|[/\\])(?:torch[/\\]|typing_extensions\.py)|[/\\]site-packages[/\\]|^<")
"""Files whose frames are not the user's."""
NUMBER = re.compile(r"\d+")


class RecordedCall(NamedTuple):
    """A collective, send or receive that a rank issued.

    group: name of its process group, "" if it is unknown. number: in the group, from 1 on; of sends and receives among
    these. kind: as `all_reduce`, or `send 0->1`. sizes: shapes of its operands and results. dtypes: of both. stack:
    lines of the user's files, innermost first. created, ended: in nanoseconds, 0 if unknown. role: number of the group
    among those of its rank. is_retired: the job no longer waits for it, because it ended or failed.
    """

    group: str
    number: int
    kind: str
    sizes: tuple[Any, ...] = ()
    dtypes: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()
    is_message: bool = False
    is_over: bool = False
    created: int = 0
    ended: int = 0
    role: int = 0
    is_retired: bool = False

    @property
    def place(self) -> str:
        """`file:line` of the user's call, or "" if the record has no frames."""
        return self.stack[0] if self.stack else ""


class RankEnd(NamedTuple):
    """The end of a rank's process. said: "raised ValueError: ... at FILE:LINE", or the signal. stack: lines of the
    user's files, innermost first. moment: in nanoseconds, 0 if unknown. certain: how certain it is a reason and no
    effect of the failure of others. is_first: the launcher has seen it before others. file: the rank's error file."""

    said: str
    stack: tuple[str, ...] = ()
    moment: int = 0
    certain: float = 1.0
    is_first: bool = False
    file: str = ""


class Record(NamedTuple):
    """The record of one rank. calls: in the order in which they were issued. dropped: how many older ones the buffer no
    longer has. members: ranks of groups, as far as the record has them. notes: facts for the user, as the process. end:
    of the rank, if it is known; a record can have an end alone."""

    rank: int
    path: Path
    calls: tuple[RecordedCall, ...]
    dropped: int
    members: Mapping[str, tuple[int, ...]]
    notes: tuple[str, ...] = ()
    end: RankEnd | None = None


def last_numbers(calls: Sequence[RecordedCall]) -> dict[str, int]:
    """Return the number of the last collective of each group."""
    last: dict[str, int] = {}
    for call in calls:
        if not call.is_message and call.group:
            last[call.group] = max(last.get(call.group, 0), call.number)
    return last


def world_of(records: Sequence[Record], least: int) -> int:
    """Return the number of ranks of a job: at least so many, and all that have a record or are in a group."""
    members = (rank for record in records for ranks in record.members.values() for rank in ranks)
    return 1 + max([least - 1, *(record.rank for record in records), *members])
