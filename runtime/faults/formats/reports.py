"""Texts about jobs that wait: reports of NCCL's RAS, and XLA's logs of a rendezvous that does not come about.

A RAS report, text or JSON of `ncclras`, has counts and no calls: each count becomes the last call of a rank in a group
of that operation. Text lists only the ranks that differ from most; the others have the count of most. Ranks are those
of the largest communicator. A message of XLA names the device that waits, and often all devices that should come; those
without a message have not come. Operations of one list of devices are calls of one group.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from mspc.ir.diagnostics import MspcError
from mspc.runtime.faults.recorded_calls import Record, RecordedCall

REPORT = re.compile(r"^\s*(Job summary|Communicators\.\.\.)", re.M)
COMMUNICATOR = re.compile(r"^\s*#(\d+)-\d+ \(([0-9a-f]+)\) (\w+)")
ROW = re.compile(r"^\s*(\d+)\s+\d+\s+[\d-]+\s+[\d-]+\s+(\d+)\s+\d+\s+[A-Z]")
COUNTS = re.compile(r"Communicator ranks have different (\w+) operation counts")
MANY = re.compile(r"^\s*(\d+) ranks have (?:launched up to operation (\d+)|not launched any operations)")
ONE = re.compile(r"^\s*Rank (\d+) has (?:launched up to operation (\d+)|not launched any operations)(?: -- (.*))?")
MEMBER = re.compile(r"^\s*Rank (\d+) -- (.*)")
MISSING = re.compile(r"The missing ranks?: ([\d, -]+)")
MAX_RANKS = 1 << 20
WAITS = re.compile(r"This thread has been waiting for |Termination timeout (?:for|of) ")
QUOTED = re.compile(r"(?:waiting for|[Tt]imeout (?:for|of)) `([^`]*)`")
KEY = re.compile(r"waiting for \d+ms .*?participant (.*)")
DEVICE = re.compile(r"device[_ ]ordinal[= ](\d+)")
PLACE = re.compile(r"\[rank=(\d+)\]|for rank (\d+)\b")
"""Place of a device in the list of devices."""
DEVICES = re.compile(r"(?:global_devices|devices)=(?:\d+:)?\[([\d, ]*)\]")
OPERATION = re.compile(r"op[_ ]id[=: ](\d+)|collective operation (\d+)")
NAME = re.compile(r"(AllReduce|AllGather|AllToAll|ReduceScatter|CollectivePermute|Initialize clique|acquire clique"
                  r"|initialize clique|(?:all|reduce|collective)[ -][a-z]+)")  # fmt: skip
RUN = re.compile(r"run_id=(?:RunId: )?(-?\d+)")
EXPECTED = re.compile(r"Expected (\d+) threads|[Aa]ll (\d+) threads|num_local_participants=(\d+)")
CLOCK = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)|[EFW](\d\d)(\d\d) (\d\d:\d\d:\d\d)")
MAX_DEVICES = 1 << 16


class RasCommunicator(NamedTuple):
    """size: number of ranks. counts: launched operations of each kind of those ranks that differ from most. usual: the
    count of most. missing: ranks that do not answer. processes: of ranks, as text."""

    name: str
    size: int
    counts: dict[str, dict[int, int]]
    usual: dict[str, int]
    missing: set[int]
    processes: dict[int, str]


def records_of_text(path: Path, text: str) -> list[Record]:
    """Return the records in a text report. Raise MspcError if it is damaged."""
    sizes: dict[str, int] = {}
    found: dict[str, RasCommunicator] = {}
    current: RasCommunicator | None = None
    kind, shared = "", -1
    for line in text.splitlines():
        if (row := ROW.match(line)) is not None:
            sizes[row[1]] = int(row[2])
        elif (header := COMMUNICATOR.match(line)) is not None:
            size = sizes.get(header[1], 0)
            if not 0 < size <= MAX_RANKS:
                raise MspcError(f"{path} is damaged: communicator #{header[1]} has no row with its ranks")
            current = found.setdefault(header[2], RasCommunicator(header[2], size, {}, {}, set(), {}))
            kind = ""
        elif current is None:
            continue
        elif (missing := MISSING.search(line)) is not None:
            current.missing.update(_listed(path, missing[1], current.size))
        elif (counts := COUNTS.search(line)) is not None:
            kind, shared = counts[1], -1
        elif kind and (many := MANY.match(line)) is not None:
            shared = int(many[2] or 0)
            current.usual.setdefault(kind, shared)  # the largest group comes first
        elif kind and (one := ONE.match(line)) is not None:
            _enter(path, current, kind, int(one[1]), int(one[2] or 0), one[3] or "")
        elif kind and shared >= 0 and (member := MEMBER.match(line)) is not None:
            _enter(path, current, kind, int(member[1]), shared, member[2])
    if not found and not sizes:
        raise MspcError(f"{path} is damaged: a report of RAS without communicators")
    return _records(path, found.values(), max(sizes.values(), default=0))


def records_of_json(path: Path, content: Mapping[str, Any]) -> list[Record]:
    """Return the records in a JSON report."""
    found: list[RasCommunicator] = []
    for each in content["communicators"]:
        current = RasCommunicator(str(each["hash"]), int(each["size"]), {}, {}, set(), {})
        if not 0 < current.size <= MAX_RANKS:
            raise ValueError(f"{current.size} ranks")
        for rank in each["ranks"]:
            process = f"GPU {rank['cuda_dev']} managed by process {rank['pid']} on node {rank['host']}"
            for kind, count in rank["collective_counts"].items():
                _enter(path, current, str(kind), int(rank["rank"]), int(count), process)
        current.missing.update(int(rank["rank"]) for rank in each.get("missing_ranks", ()))
        found.append(current)
    return _records(path, found, max((each.size for each in found), default=0))


def _listed(path: Path, text: str, size: int) -> Iterable[int]:
    for part in text.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if not first or int(last or first) >= size:
            raise MspcError(f"{path} is damaged: missing ranks {text.strip()} of a communicator of {size}")
        yield from range(int(first), int(last or first) + 1)


def _enter(path: Path, current: RasCommunicator, kind: str, rank: int, count: int, process: str) -> None:
    if not 0 <= rank < current.size or count < 0:
        raise MspcError(f"{path} is damaged: rank {rank} launched {count} operations, of {current.size} ranks")
    current.counts.setdefault(kind, {})[rank] = count
    if process:
        current.processes[rank] = process


def _records(path: Path, communicators: Iterable[RasCommunicator], world: int) -> list[Record]:
    """Return the records of all ranks that answer. Ranks of a smaller communicator are those of the largest if their
    processes tell so. The last call of a rank is of the kind with most different counts."""
    every = sorted(communicators, key=lambda each: -each.size)
    ranks = {process: rank for each in every if each.size == world for rank, process in each.processes.items()}
    calls: dict[int, list[RecordedCall]] = defaultdict(list)
    notes: dict[int, str] = {}
    members: dict[str, tuple[int, ...]] = {}
    away: set[int] = set()
    for each in every:
        number = {rank: ranks.get(each.processes.get(rank, ""), rank) for rank in range(each.size)}
        away.update(number[rank] for rank in each.missing)
        notes.update((number[rank], process) for rank, process in each.processes.items())
        kinds = {*each.counts, *each.usual}
        for kind in sorted(kinds, key=lambda kind: (len({*each.counts.get(kind, {}).values()}), kind)):
            group = f"{each.name} {kind}"
            members[group] = tuple(sorted(number.values()))
            for rank in set(range(each.size)) - each.missing:
                count = each.counts.get(kind, {}).get(rank, each.usual.get(kind, 0))
                if count:
                    calls[number[rank]].append(RecordedCall(group, count, kind))
        if each.missing and not each.counts and not each.usual:
            group = members.setdefault(each.name, tuple(sorted(number.values()))) and each.name
            for rank in set(range(each.size)) - each.missing:
                calls[number[rank]].append(RecordedCall(group, 1, "collective"))
    return [
        Record(rank, path, tuple(calls[rank]), 0, members, (notes[rank],) if rank in notes else ())
        for rank in range(world) if rank not in away
    ]  # fmt: skip


def records_of_log(path: Path, text: str) -> list[Record]:
    """Return a record for each device of the messages. Raise MspcError if no message names a device."""
    calls: dict[int, RecordedCall] = {}
    members: dict[str, tuple[int, ...]] = {}
    for line in text.splitlines():
        if WAITS.search(line) is None or "joined the rendezvous" in line:
            continue
        key = QUOTED.search(line) or KEY.search(line)
        if key is None:
            continue
        named = DEVICES.search(key[1])
        expected = EXPECTED.search(line)
        count = min(int(next(filter(None, expected.groups()))) if expected is not None else 0, MAX_DEVICES)
        devices = tuple(map(int, re.findall(r"\d+", named[1]))) if named is not None else tuple(range(count))
        rank = _device(line, devices)
        operation, run, name = OPERATION.search(key[1]), RUN.search(key[1]), NAME.search(key[1])
        kind = (name[1] if name is not None else key[1].partition("{")[0][:40].strip()).replace(" ", "_")
        if operation is not None:
            kind += f" op {next(filter(None, operation.groups()))}"
        group = f"devices {list(devices)}" + (f" run {run[1]}" if run is not None else "")
        if rank in devices:
            members[group] = devices
            calls[rank] = RecordedCall(group, 1, kind, created=_moment(line))
    if not calls:
        raise MspcError(f"{path} names no device that waits in a rendezvous")
    ranks = sorted({rank for devices in members.values() for rank in devices})
    return [Record(rank, path, (calls[rank],) if rank in calls else (), 0, members) for rank in ranks]


def _device(line: str, devices: tuple[int, ...]) -> int:
    """Return the device that waits, or -1 if a line does not name it."""
    device, place = DEVICE.search(line), PLACE.search(line)
    if device is not None:
        return int(device[1][:9])
    at = int((place[1] or place[2])[:9]) if place is not None else len(devices)
    return devices[at] if at < len(devices) else -1


def _moment(line: str) -> int:
    """Return the time of a line in nanoseconds, in this year if it has none; 0 if it has no time."""
    found = CLOCK.search(line)
    if found is None:
        return 0
    text = found[1] or f"{datetime.now(UTC).year}-{found[2]}-{found[3]} {found[4]}"
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000_000
    except ValueError:
        return 0
