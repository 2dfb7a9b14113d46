"""Hosts of a job: from a host file, a list on the command line, or a rank table.

A host file has a line per host in Open MPI's format: `NAME slots=N`, where N defaults to 1; `#` starts a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import Location, MspcError, listed
from mspc.ir.files.parsing import parsed_json, reading
from mspc.ir.files.regular import read_bytes, read_text
from mspc.ir.late_dataclass import dataclass

_SLOTS = re.compile(r"(?<![\w-])slots\s*=\s*(\S+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:%-]{0,254}")
SHOWN = 20
"""Maximum number of hosts in a message."""
_COUNT = re.compile(r"0{0,9}[1-9][0-9]{0,5}")
"""A number of slots; more than a million ranks are a typing error."""


@dataclass(frozen=True)
class Host:
    """A host. slots: number of its ranks. devices: device numbers in the order of its ranks; () to count from 0."""

    name: str
    slots: int = 1
    devices: tuple[int, ...] = ()


def read_host_file(path: Path) -> list[Host]:
    """Return the hosts of a file in order. Raise MspcError if the file cannot be read, or a line is not valid; the
    message names the line."""
    with reading(path, "host file", "is no text"):
        lines = read_text(path).splitlines()
    found: dict[str, Host] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        where = Location(str(path), number, text=line)
        name, *rest = text.split(maxsplit=1)
        slots = _SLOTS.search(rest[0]) if rest else None
        if not is_host(name) or (rest and slots is None):
            raise MspcError("a line of a host file is NAME slots=N", where)
        count = slots[1] if slots else "1"
        if not _COUNT.fullmatch(count):
            raise MspcError(f"slots={count:.40} of host {name!r} must be 1 or more, and below a million", where)
        if name in found:
            raise MspcError(f"host {name!r} is twice in the host file", where)
        found[name] = Host(name, int(count))
    if not found:
        raise MspcError(f"the host file {str(path)!r} names no host", notes=["a line is NAME slots=N"])
    return list(found.values())


def read_hosts(text: str) -> list[Host]:
    """Return the hosts of `NAME:SLOTS,NAME:SLOTS`. Raise MspcError for other text."""
    found: dict[str, Host] = {}
    for part in text.split(","):
        name, colon, slots = part.strip().rpartition(":")
        if not colon:
            name, slots = slots, "1"
        if not is_host(name) or not _COUNT.fullmatch(slots):
            raise MspcError(f"--host {text!r:.200}: {part!r:.100} is no NAME or NAME:SLOTS")
        if name in found:
            raise MspcError(f"--host {text!r:.200}: {name!r} is there twice")
        found[name] = Host(name, int(slots))
    return list(found.values())


def is_host(name: str) -> bool:
    """Return whether a text can be a host name or address."""
    return _NAME.fullmatch(name) is not None


def check_slots(hosts: Sequence[Host], ranks: int) -> None:
    """Raise MspcError if the hosts have fewer slots than ranks."""
    slots = sum(host.slots for host in hosts)
    if ranks > slots:
        names = [f"{host.name} {host.slots}" for host in hosts]
        raise MspcError(
            f"{ranks} ranks, but the hosts have {slots} slot{'s' * (slots != 1)}: {listed(names, SHOWN)}",
            notes=["give a host more slots, or start fewer ranks"],
        )


# Rank tables: the JSON files in which MindSpore's users list servers, devices and ranks.
#
# Two forms are read. Version "1.0" has `server_list`, each server with its `device` list; the older one has
# `group_list` with `instance_list`, an entry for every rank. All numbers are strings there.


_NUMBER = re.compile(r"[0-9]{1,9}")


def read_rank_table(path: Path) -> list[Host]:
    """Return the hosts of consecutive ranks with their devices, in rank order. Raise MspcError if the file cannot be
    read or is not a rank table; ranks are duplicated or missing."""
    name = str(path)
    with reading(path, "rank table", "is no JSON"):
        table = parsed_json(read_bytes(path))
    by_rank: dict[int, tuple[str, int]] = {}
    taken: set[tuple[str, int]] = set()
    try:
        for server, device, rank in _entries(table):
            if rank in by_rank:
                raise MspcError(f"the rank table {name!r} has rank {rank} twice: on server {by_rank[rank][0]!r} and on "
                                f"{server!r}")  # fmt: skip
            if (server, device) in taken:
                raise MspcError(f"the rank table {name!r} has device {device} of server {server!r} twice")
            by_rank[rank] = server, device
            taken.add((server, device))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else f"is none: {error!s:.200}"
        raise MspcError(
            f"the rank table {name!r} {what}",
            notes=["a rank table has server_list with server_id and device, each device with device_id and rank_id"],
        ) from None
    missing = [rank for rank in range(len(by_rank)) if rank not in by_rank]
    if not by_rank or missing:
        said = f"has no rank {missing[0]}, but rank {max(by_rank)}" if missing else "names no rank"
        raise MspcError(f"the rank table {name!r} {said}", notes=["ranks are numbered from 0, without a gap"])
    return list(_runs([by_rank[rank] for rank in range(len(by_rank))]))


def _entries(table: Any) -> Iterator[tuple[str, int, int]]:
    if "server_list" in table:
        for server in table["server_list"]:
            for device in server["device"]:
                yield _text(server["server_id"]), _number(device, "device_id"), _number(device, "rank_id")
        return
    for group in table["group_list"]:
        for instance in group["instance_list"]:
            device = instance["devices"][0]
            yield _text(instance["server_id"]), _number(device, "device_id"), _number(instance, "rank_id")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not is_host(value):
        raise ValueError(f"{value!r} is no server_id")
    return value


def _number(entry: Any, key: str) -> int:
    value = str(entry[key])
    if not _NUMBER.fullmatch(value):
        raise ValueError(f"{key} is {entry[key]!r}, not a number")
    return int(value)


def _runs(places: list[tuple[str, int]]) -> Iterator[Host]:
    server, devices = places[0][0], [places[0][1]]
    for host, device in places[1:]:
        if host == server:
            devices.append(device)
            continue
        yield Host(server, len(devices), tuple(devices))
        server, devices = host, [device]
    yield Host(server, len(devices), tuple(devices))
