"""Reads rank tables: the JSON files in which MindSpore's users list servers, devices and ranks.

Two forms are read. Version "1.0" has `server_list`, each server with its `device` list; the older one has `group_list`
with `instance_list`, an entry for every rank. All numbers are strings there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mspc.engine.ranks.hosts import Host, is_host
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of
from mspc.ir.files.parsing import parsed_json
from mspc.ir.files.regular import read_bytes

_NUMBER = re.compile(r"[0-9]{1,9}")


def read_rank_table(path: Path) -> list[Host]:
    """Runs of ranks that are on one host one after the other, in the order of ranks, with their devices.

    Raises:
        MspcError: it cannot be read or is no rank table; ranks are there twice or are missing.
    """
    name = str(path)
    try:
        table = parsed_json(read_bytes(path))
    except OSError as error:
        raise MspcError(f"cannot read the rank table {name!r}: {reason_of(error)}") from None
    except ValueError as error:
        raise MspcError(f"the rank table {name!r} is no JSON: {error}") from None
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
    """(server, device, rank) of all entries of a table."""
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
