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
from mspc.ir.graph import Graph
from mspc.ir.types import TensorType
from mspc.runtime.faults.record import GRAPH, NODE, STEP

MOST_CALLS = 2000
VARIABLE, FOLDER = "MSPC_HANG_RECORDS", "hang_records"
"""Environment variable with the folder of fault records, and its default."""
FILE = re.compile(r"rank_\d+\.json")
SAID = re.compile(r"(?:calls )?(.+?)(?: at (\S+):(\d+).*)?")
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
    """The last calls of a rank. own: its record in shared memory. text: its announcement of the next call."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self._entries: deque[list[Any]] = deque(maxlen=MOST_CALLS)
        self._counts: Counter[Meeting] = Counter()
        self._begun = 0
        self.text = ""

    def begin(self, meeting: Meeting) -> list[Any]:
        """Note that a call begins; the caller sets item 1 of the entry to the time in nanoseconds at which it ends."""
        own = self._own
        self._counts[meeting] += 1
        entry = [time.time_ns(), 0, meeting, self._counts[meeting], own[GRAPH], own[STEP], own[NODE], self.text]
        self._entries.append(entry)
        self._begun += 1
        return entry

    def write(self, path: Path, graph_of: Callable[[int], Graph] | None, place: str) -> None:
        """Write the record. graph_of: the graph of a number. place: of the rank, as the end of "rank 0 is"."""
        entries = [*self._entries]
        meetings = {entry[2] for entry in entries}
        roles = {name: i for i, name in enumerate(sorted(meeting.name for meeting in meetings))}
        first = self._begun - len(entries)
        content = {
            "version": "2.10",
            "comm_lib_version": "mspc",
            "mspc": {"place": place},
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


def _entry(index: int, entry: list[Any], roles: dict[str, int], graph_of: Any) -> dict[str, Any]:
    created, ended, meeting, number, graph, step, at, text = entry
    kind, frames, sizes, dtypes = AGREEMENT, [], [], []
    if at >= 0 and step > 0 and graph_of is not None:
        node = graph_of(graph).nodes[at]
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.op.name).lower()
        own = [frame for frame in node.frames if not frame.file.startswith(OWN_FILES)]
        frames = [{"name": "", "filename": frame.file, "line": frame.line} for frame in own]
        types = [value.type for value in node.inputs if isinstance(value.type, TensorType)]
        sizes, dtypes = [[*map(int, each.shape)] for each in types], [str(each.dtype) for each in types]
    elif text and (said := SAID.fullmatch(text.partition("\n")[0])) is not None:
        kind = said[1].lower().replace(" ", "_")
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
