"""Flight records: the collectives that each rank of a PyTorch job issued last, as `TORCH_FR_BUFFER_SIZE` keeps them.

A record is a pickle or JSON of dictionaries, lists, texts and numbers. mspc writes its own fault records in this form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.runtime.faults.formats.plain_pickle import last_entries, plain_pickle
from mspc.runtime.faults.recorded_calls import LIBRARY, NUMBER, RankEnd, Record, RecordedCall

VERSIONS = ("2.", "1.")
"""Beginnings of the versions whose fields are known."""
MAX_PARTS = 65536
"""Most sizes, types or frames of an entry; a hostile file can refer to one list many times."""
ENTRY = b'{"collective_seq_id"'
"""Beginning of an entry in JSON as PyTorch writes it."""


def content_of(data: bytes, last: int = 0) -> Any:
    """Return the plain data of a record. last: how many entries are enough, 0 for all of them.

    Raises:
        ValueError: the data are damaged, or hold anything but plain data.
    """
    if data[:1] == b"\x80":
        return last_entries(data, last) if last else plain_pickle(data)
    first, start = data.find(ENTRY), len(data)
    if last and first >= 0 and data.count(ENTRY) > last:
        for _ in range(last):
            start = data.rfind(ENTRY, 0, start)
        try:
            return json.loads(data[:first] + data[start:])
        except ValueError:  # a text that contains the beginning of an entry
            pass
    return json.loads(data)


def record_of(rank: int, path: Path, content: Mapping[str, Any], last: int = 0) -> Record:
    """Return the record with a content as PyTorch writes it. Raise MspcError if it is no flight record, is damaged, or
    is of another version."""
    if not isinstance(content.get("entries"), list):
        raise MspcError(f"{path} is no flight record: it has no list `entries`")
    version = str(content.get("version", ""))[:20]
    if not version.startswith(VERSIONS):
        raise MspcError(f"{path} is a flight record of version {version or 'unknown'}; versions 1 and 2 are known")
    entries = sorted(content["entries"], key=lambda entry: int(entry["record_id"]))[-last:]
    shared: dict[Any, Any] = {}
    calls = tuple([_call(entry, shared) for entry in entries])
    dropped = int(entries[0]["record_id"]) if entries else 0
    if dropped < 0:
        raise ValueError(f"record_id {dropped}")
    own = content.get("mspc", {})
    place, end = own.get("place", ""), own.get("end")
    if end is not None:
        end = RankEnd(_text(end[0]), tuple(map(_text, _few(end[1]))), int(end[2]))
    return Record(rank, path, calls, dropped, _members(content), (_text(place),) if place else (), end)


def _call(entry: Mapping[str, Any], shared: dict[Any, Any]) -> RecordedCall:
    """Return an entry's call. shared: equal parts of other entries, which are kept once."""
    group, _ = entry["process_group"]
    message = bool(entry["is_p2p"])
    sizes = (_sizes(entry["input_sizes"]), _sizes(entry["output_sizes"]))
    dtypes = tuple(map(_text, (*_few(entry["input_dtypes"]), *_few(entry["output_dtypes"]))))
    frames = _few(entry.get("frames", ()))
    stack = tuple([f"{f['filename']}:{int(f['line'])}" for f in frames if not LIBRARY.search(f["filename"])])
    name = _text(entry["profiling_name"])
    ended = int(entry.get("time_discovered_completed_ns") or 0)
    is_over = entry["state"] == "completed" or bool(ended)
    kind, group = name.partition(":")[2] or name, _text(group)
    parts = (group, kind, sizes, dtypes, stack)
    group, kind, sizes, dtypes, stack = shared.setdefault(parts, parts)
    number = int(entry["p2p_seq_id" if message else "collective_seq_id"])
    created = int(entry["time_created_ns"] or 0)
    role = int(entry.get("pg_id") or 0)
    retired = bool(entry.get("retired"))
    return RecordedCall(group, number, kind, sizes, dtypes, stack, message, is_over, created, ended, role, retired)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of a text")
    return value


def _few(values: Any) -> Any:
    if not isinstance(values, list | tuple) or len(values) > MAX_PARTS:
        raise ValueError("a list of too many parts, or no list")
    return values


def _sizes(sizes: Any) -> tuple[tuple[int, ...], ...]:
    if sum(len(_few(size)) for size in _few(sizes)) > MAX_PARTS:
        raise ValueError("sizes of too many parts")
    return tuple([tuple(map(int, size)) for size in sizes])


def _members(content: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the ranks of groups; gloo's records have none."""
    found: dict[str, tuple[int, ...]] = {}
    for name, config in content.get("pg_config", {}).items():
        if ranks := re.findall(NUMBER, _text(config.get("ranks", ""))):
            found[_text(name)] = tuple(map(int, ranks))
    return found
