"""A rank's log of its last collectives and messages, written as its fault record if the watch stops the job.

A fault record has the form of PyTorch's flight records, so that `mspc explain-hang` and other tools read it.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mspc.ir.diagnostics import OWN_FILES
from mspc.ir.files.atomic_writing import write_atomically
from mspc.ir.graph import Graph, Node
from mspc.ir.types import TensorType
from mspc.ops.collective.base import Collective
from mspc.runtime.faults.record import GRAPH, NODE, STEP
from mspc.runtime.faults.recorded_calls import RankEnd, RecordedCall

MAX_CALLS = 2000
VARIABLE, FOLDER = "MSPC_HANG_RECORDS", "hang_records"
"""Environment variable with the folder of fault records, and its default."""
FILE = re.compile(r"rank_\d+\.json")
SAID = re.compile(r"(?:calls )?(.+?)(?: at (\S+):(\d+).*)?")
TYPE = re.compile(r"Tensor\[(\w+)\], \(([\d, ]*)\)")
"""Pattern of the type of a tensor in an announcement."""
AGREEMENT = "agreement"
"""Kind of a call by which ranks agree, for example on a network that they are about to run."""


class Meeting(NamedTuple):
    """The ranks of a call. messages: it is of messages, sent to the ranks `to` and received from the ranks `of`.
    channel: calls of one channel and group have one order."""

    ranks: tuple[int, ...]
    channel: int
    messages: bool = False
    to: tuple[int, ...] = ()
    of: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        ranks = ", ".join(map(str, self.ranks[:8])) + ", ..." * (len(self.ranks) > 8)
        return f"{'messages of ' * self.messages}ranks {ranks} on channel {self.channel}"


class CallLog:
    """The last calls of a rank. own: its record in shared memory."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self._entries: deque[list[Any]] = deque(maxlen=MAX_CALLS)
        self._counts: Counter[Meeting] = Counter()
        self._begun = 0
        self._text = ""
        self._announced: list[Any] | None = None

    def say(self, text: str) -> None:
        """Announce the next call, "" if there is none: all its meetings in one group are one call in the log."""
        self._text, self._announced = text, None

    def begin(self, meeting: Meeting) -> list[Any]:
        """Note that a call begins; the caller sets item 1 of the entry to the time in nanoseconds at which it ends."""
        own, entry = self._own, self._announced
        if entry is not None and entry[2] == meeting:
            entry[1] = 0
            return entry
        self._forget()
        self._counts[meeting] += 1
        entry = [time.time_ns(), 0, meeting, self._counts[meeting], own[GRAPH], own[STEP], own[NODE], self._text]
        self._announced = entry if self._text else None
        self._entries.append(entry)
        self._begun += 1
        return entry

    def _forget(self) -> None:
        """Remove the last call if it was an agreement that has come about: only the first steps have these."""
        if self._entries and self._entries[-1][1] and not _has_name(self._entries[-1]):
            self._entries.pop()
            self._begun -= 1

    def write(
        self, path: Path, graph_of: Callable[[int], Graph] | None, place: str, end: RankEnd | None = None
    ) -> None:
        """Write the record. graph_of: the graph of a number. place: of the rank, as the end of "rank 0 is"."""
        self._forget()
        if self._announced is not None:  # its ranks have met, and disagree
            self._announced[1] = 0
        entries = [*self._entries]
        meetings = {entry[2] for entry in entries}
        roles = {name: i for i, name in enumerate(sorted(meeting.name for meeting in meetings))}
        first = self._begun - len(entries)
        content = {
            "version": "2.10",
            "comm_lib_version": "mspc",
            "mspc": {"place": place, "end": [end.said, end.stack, end.moment] if end is not None else None},
            "pg_config": {m.name: {"name": m.name, "desc": "", "ranks": str([*m.ranks])} for m in meetings},
            "entries": [_entry(first + i, entry, roles, graph_of) for i, entry in enumerate(entries)],
        }
        data = json.dumps(content, sort_keys=True).encode()
        write_atomically(path, lambda file: file.write(data), one_of_many=True)


def remove_records(folder: Path) -> None:
    """Remove the fault records of an earlier job."""
    with suppress(OSError):
        for path in folder.iterdir():
            if FILE.fullmatch(path.name):
                path.unlink()


def planned_call(node: Node, rank: int) -> RecordedCall:
    """Return the call of a collective's node. The kind of a message has the numbers of both ranks."""
    kind, is_message = _kind_of(node.op.name), False
    if isinstance(node.op, Collective) and (ends := node.op.channel(rank))[1] >= 0:
        (source, target), is_message = ends[0], True
        kind = f"send {source}->{target}" if source == rank else f"recv {target}<-{source}"
    own = [f"{frame.file}:{frame.line}" for frame in node.frames if not frame.file.startswith(OWN_FILES)]
    types = [value.type for value in node.inputs if isinstance(value.type, TensorType)]
    sizes, dtypes = tuple(tuple(map(int, each.shape)) for each in types), tuple(str(each.dtype) for each in types)
    return RecordedCall("", 0, kind, (sizes, ()), dtypes, tuple(own), is_message)


def _kind_of(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])| ", "_", name).lower()


def _has_name(entry: list[Any]) -> bool:
    """Return whether a call is of a node, or announced; others are agreements."""
    return (entry[6] >= 0 and entry[5] > 0) or bool(entry[7])


def _entry(index: int, entry: list[Any], roles: dict[str, int], graph_of: Any) -> dict[str, Any]:
    created, ended, meeting, number, graph, step, at, text = entry
    kind, frames, sizes, dtypes = AGREEMENT, [], [], []
    if at >= 0 and step > 0 and graph_of is not None:
        call = planned_call(graph_of(graph).nodes[at], meeting.ranks[0])
        kind, sizes, dtypes = call.kind, call.sizes[0], call.dtypes
        lines = [place.rpartition(":") for place in call.stack]
        frames = [{"name": "", "filename": file, "line": int(line)} for file, _, line in lines]
    elif text and (said := SAID.fullmatch(text.partition("\n")[0])) is not None:
        kind = _kind_of(said[1])
        sizes = [[*map(int, re.findall(r"\d+", shape))] for _, shape in TYPE.findall(text)]
        dtypes = [dtype for dtype, _ in TYPE.findall(text)]
        frames = [{"name": "", "filename": said[2], "line": int(said[3])}] if said[2] else []
    if meeting.messages and len(meeting.to) + len(meeting.of) == 1:
        kind = f"send 0->{meeting.ranks.index(meeting.to[0])}" if meeting.to else (
            f"recv 0<-{meeting.ranks.index(meeting.of[0])}"
        )  # fmt: skip
    is_message = meeting.messages
    return {
        "record_id": index, "pg_id": roles[meeting.name], "process_group": [meeting.name, ""], "op_id": number,
        "collective_seq_id": 0 if is_message else number, "p2p_seq_id": number if is_message else 0,
        "profiling_name": f"mspc:{kind}", "frames": frames, "is_p2p": is_message, "time_created_ns": created,
        "time_discovered_completed_ns": ended, "state": "completed" if ended else "scheduled", "retired": bool(ended),
        "input_sizes": sizes, "input_dtypes": dtypes, "output_sizes": [], "output_dtypes": [],
    }  # fmt: skip
