"""XLA's messages about a rendezvous that does not come about, in logs of JAX, TensorFlow and PyTorch/XLA.

A message names the device that waits, and often all devices that should come. Devices of that list without a message
have not come. Operations of one list of devices are calls of one group, so that devices in different ones are found.
"""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

from mspc.ir.diagnostics import MspcError
from mspc.runtime.faults.recorded_calls import Record, RecordedCall

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
MOST_DEVICES = 1 << 16


def is_log(text: str) -> bool:
    """Return whether a text has such a message."""
    return WAITS.search(text) is not None


def records_of(path: Path, text: str) -> list[Record]:
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
        count = min(int(next(filter(None, expected.groups()))) if expected is not None else 0, MOST_DEVICES)
        devices = tuple(map(int, re.findall(r"\d+", named[1]))) if named is not None else tuple(range(count))
        rank = _device(line, devices)
        operation, run, name = OPERATION.search(key[1]), RUN.search(key[1]), NAME.search(key[1])
        kind = (name[1] if name is not None else key[1].partition("{")[0][:40].strip()).replace(" ", "_")
        if operation is not None:
            kind += f" op {next(filter(None, operation.groups()))}"
        group = f"devices {list(devices)}" + (f" run {run[1]}" if run is not None else "")
        if rank in devices:
            members[group] = devices
            calls[rank] = RecordedCall(group, 1, kind, (), (), (), False, False, _moment(line), 0)
    if not calls:
        raise MspcError(f"{path} names no device that waits in a rendezvous")
    ranks: dict[int, list[RecordedCall]] = defaultdict(list)
    for devices in members.values():
        for rank in devices:
            ranks[rank] += []
    for rank, call in calls.items():
        ranks[rank].append(call)
    return [Record(rank, path, tuple(found), 0, members) for rank, found in sorted(ranks.items())]


def _device(line: str, devices: tuple[int, ...]) -> int:
    """The device that waits, or -1 if a line does not name it."""
    device, place = DEVICE.search(line), PLACE.search(line)
    if device is not None:
        return int(device[1][:9])
    at = int((place[1] or place[2])[:9]) if place is not None else len(devices)
    return devices[at] if at < len(devices) else -1


def _moment(line: str) -> int:
    """The time of a line in nanoseconds, in this year if it has none; 0 if it has no time."""
    found = CLOCK.search(line)
    if found is None:
        return 0
    text = found[1] or f"{datetime.now(UTC).year}-{found[2]}-{found[3]} {found[4]}"
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000_000
    except ValueError:
        return 0
