"""Traces of PyTorch's profiler (Kineto) and of its execution trace observer (Chakra), JSON with an entry per operator.

NCCL's collectives are `record_param_comms` entries with their group; gloo's are `c10d::` entries without one, which are
compared and give no waits. The duration of an entry is the time to issue the call: whether it has ended is unknown.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mspc.runtime.faults.recorded_calls import LIBRARY, Record, RecordedCall

COMMS = "record_param_comms"
NO_COLLECTIVES = ("", "wait", "init")
BACKEND = re.compile(r"c10d::(\w+?)_?")
FRAME = re.compile(r"(.*)\((\d+)\): ")
GROUPS = "## process_group:init ##"

Event = tuple[float, Mapping[str, Any], float, tuple[str, ...]]
"""Time in microseconds, arguments, duration (-1: none), stack."""


def record_of_kineto(rank: int, path: Path, content: Mapping[str, Any]) -> Record:
    """Return the record of a profile."""
    about = content.get("distributedInfo") or {}
    base = int(content.get("baseTimeNanoseconds") or 0)
    groups = {str(each["pg_name"]): tuple(map(int, each["ranks"])) for each in about.get("pg_config") or ()}
    events = [each for each in content["traceEvents"] if isinstance(each, dict) and "ts" in each]
    stacks = _Stacks(events)
    found: list[Event] = []
    has_groups = any(each.get("name") == COMMS for each in events)
    for each in events:
        backend = BACKEND.fullmatch(str(each.get("name", "")))
        if each.get("name") == COMMS:
            arguments = each.get("args") or {}
        elif backend is not None and not has_groups:
            sizes = each.get("args", {}).get("Input Dims", [])
            types = each.get("args", {}).get("Input type", [])
            arguments = {"Collective name": backend[1], "sizes": sizes, "dtype": str(types)}
        else:
            continue
        moment = float(each["ts"])
        found.append((moment, arguments, float(each.get("dur", -1)), stacks.at(each.get("tid"), moment)))
    return Record(int(about.get("rank", rank)), path, _calls(found, base), 0, groups)


def record_of_chakra(rank: int, path: Path, content: Mapping[str, Any]) -> Record:
    """Return the record of an execution trace."""
    found: list[Event] = []
    groups: dict[str, tuple[int, ...]] = {}
    nodes = sorted(content["nodes"], key=lambda node: int(node["id"]))
    has_groups = any(node["name"] == COMMS for node in nodes)
    for node in nodes:
        attributes = {each["name"]: each.get("value") for each in node.get("attrs", ())}
        backend = BACKEND.fullmatch(str(node["name"]))
        if node["name"] == GROUPS:
            groups |= _groups(node["inputs"]["values"][0])
        elif node["name"] == COMMS:
            names = {"Collective name": "collective_name", "Process Group Name": "pg_name", "dtype": "dtype",
                     "In msg nelems": "in_msg_nelems", "Out msg nelems": "out_msg_nelems"}  # fmt: skip
            found.append((int(node["id"]), {name: attributes.get(old) for name, old in names.items()}, 0, ()))
        elif backend is not None and not has_groups:
            inputs = node["inputs"]
            arguments = {"Collective name": backend[1], "sizes": inputs["shapes"], "dtype": str(inputs["types"])}
            found.append((int(node["id"]), arguments, 0, ()))
    return Record(rank, path, _calls(found, 0), 0, groups)


def _groups(text: str) -> dict[str, tuple[int, ...]]:
    """Return the ranks of groups in the text of their node; the group of all ranks lists none."""
    found: dict[str, tuple[int, ...]] = {}
    for each in json.loads(text):
        ranks = tuple(map(int, each["ranks"])) or tuple(range(min(int(each["group_size"]), 1 << 20)))
        found[str(each["pg_name"])] = ranks
    return found


def _calls(events: Sequence[Event], base: int) -> tuple[RecordedCall, ...]:
    counts: Counter[tuple[str, bool]] = Counter()
    found: list[RecordedCall] = []
    for moment, arguments, duration, stack in sorted(events, key=lambda event: event[0]):
        kind = str(arguments.get("Collective name") or "")
        if kind in NO_COLLECTIVES:
            continue
        group = str(arguments.get("Process Group Name") or "")
        sizes = tuple((str(arguments.get(f"{way} msg nelems")),) for way in ("In", "Out"))
        if "sizes" in arguments:
            sizes = (tuple(map(str, arguments["sizes"])),)
        message = kind.startswith(("send", "recv"))
        counts[group, message] += 1
        number = int(arguments.get("Seq") or counts[group, message])
        created = base + int(moment * 1000)
        dtypes = (str(arguments.get("dtype") or ""),)
        retired = duration >= 0
        found.append(RecordedCall(group, number, kind, sizes, dtypes, stack, message, False, created, 0, 0, retired))
    return tuple(found)


class _Stacks:
    """The user's frames around a moment, from the profile's events of Python functions."""

    def __init__(self, events: Sequence[Mapping[str, Any]]) -> None:
        self._frames: dict[Any, list[tuple[float, float, str]]] = defaultdict(list)
        for each in events:
            frame = FRAME.match(str(each.get("name", ""))) if each.get("cat") == "python_function" else None
            if frame is not None and not LIBRARY.search(frame[1]):
                begin, place = float(each["ts"]), f"{frame[1]}:{frame[2]}"
                self._frames[each.get("tid")].append((begin, begin + float(each.get("dur", 0)), place))
        for frames in self._frames.values():
            frames.sort()

    def at(self, thread: Any, moment: float) -> tuple[str, ...]:
        frames = self._frames.get(thread, [])
        before = bisect_right(frames, moment, key=lambda frame: frame[0])
        return tuple([place for _, end, place in reversed(frames[:before]) if end >= moment])
