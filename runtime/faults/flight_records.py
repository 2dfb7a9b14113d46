"""Flight records: the collectives that each rank of a PyTorch job issued last, as `TORCH_FR_BUFFER_SIZE` keeps them.

A record is a pickle or JSON of dictionaries, lists, texts and numbers. Pickles are decoded here, without Python's
`pickle`: an opcode that could call or import something is an error, and so is a count that the file cannot hold.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mspc.ir.diagnostics import MspcError

VERSIONS = ("2.", "1.")
"""Beginnings of the versions whose fields are known."""
LARGE, LAST = 64 << 20, 64
"""Bytes of all records from which on only the last calls of each are read, and how many these are."""
LIBRARY = re.compile(r"[/\\]torch[/\\]|[/\\]site-packages[/\\]mspc[/\\]|^<frozen ")
"""Files whose frames are not the user's."""
RANK = re.compile(r"\d+")


class RecordedCall(NamedTuple):
    """A collective, send or receive that a rank issued.

    group: name of its process group. number: in the group, from 1 on; of sends and receives among these. kind: as
    `all_reduce`, or `send 0->1`. sizes: shapes of its operands and results. dtypes: of both. stack: lines of the user's
    files, innermost first. created, ended: in nanoseconds, 0 if unknown.
    """

    group: str
    number: int
    kind: str
    sizes: tuple[Any, ...]
    dtypes: tuple[str, ...]
    stack: tuple[str, ...]
    is_message: bool
    is_over: bool
    created: int
    ended: int

    @property
    def place(self) -> str:
        """`file:line` of the user's call, or "" if the record has no frames."""
        return self.stack[0] if self.stack else ""


class Record(NamedTuple):
    """The record of one rank. calls: in the order in which they were issued. dropped: how many older ones the buffer no
    longer has. members: ranks of groups, as far as the record has them."""

    rank: int
    path: Path
    calls: tuple[RecordedCall, ...]
    dropped: int
    members: Mapping[str, tuple[int, ...]]


def read_records(paths: Sequence[Path]) -> tuple[list[Record], list[str]]:
    """Return the records in files and folders, by rank, and why others cannot be read. The rank is the last number in a
    file's name. Only the last calls of large records are read.

    Raises:
        MspcError: no file can be read, or two are of one rank.
    """
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else (path,))]
    files = [file for file in files if file.is_file() and not file.name.startswith(".")]
    if not files:
        raise MspcError(f"{paths[0]} holds no records" if paths else "no records are given", code="E0101")
    last = LAST if sum(file.stat().st_size for file in files) > LARGE else 0
    found: dict[int, Record] = {}
    wrong: list[str] = []
    for file in files:
        try:
            record = read_record(file, last)
        except MspcError as error:
            wrong.append(error.message)
            continue
        if record.rank in found:
            raise MspcError(f"{file} and {found[record.rank].path} are both of rank {record.rank}")
        found[record.rank] = record
    if not found:
        raise MspcError(wrong[0], notes=wrong[1:])
    return [found[rank] for rank in sorted(found)], wrong


def read_record(path: Path, last: int = 0) -> Record:
    """Return the record in a file. Raise MspcError if it is none, is damaged, or is of another version.

    last: how many calls are enough, 0 for all of them.
    """
    numbers = RANK.findall(path.stem)
    if not numbers:
        raise MspcError(f"{path}: its name does not end in the number of a rank, as trace_rank_3")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MspcError(f"cannot read {path}: {error.strerror}") from None
    try:
        if data[:1] == b"\x80":
            content = last_entries(data, last) if last else plain_pickle(data)
        else:
            content = json.loads(data)
    except RecursionError:
        raise MspcError(f"{path} is damaged: it is nested too deeply") from None
    except ValueError as error:
        raise MspcError(f"{path} is no flight record, or damaged: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("entries"), list):
        raise MspcError(f"{path} is no flight record: it has no list `entries`")
    version = str(content.get("version", ""))
    if not version.startswith(VERSIONS):
        raise MspcError(f"{path} is a flight record of version {version or 'unknown'}; versions 1 and 2 are known")
    try:
        entries = sorted(content["entries"], key=lambda entry: int(entry["record_id"]))[-last:]
        shared: dict[Any, Any] = {}
        calls = tuple(_call(entry, shared) for entry in entries)
        dropped = int(entries[0]["record_id"]) if entries else 0
        return Record(int(numbers[-1]), path, calls, dropped, _members(content))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MspcError(f"{path} is damaged: an entry lacks a field, or it is malformed: {error!r:.100}") from None


def _call(entry: Mapping[str, Any], shared: dict[Any, Any]) -> RecordedCall:
    """Return an entry's call. shared: equal parts of other entries, which are kept once."""
    group, _ = entry["process_group"]
    message = bool(entry["is_p2p"])
    sizes = (_sizes(entry["input_sizes"]), _sizes(entry["output_sizes"]))
    dtypes = (*map(str, entry["input_dtypes"]), *map(str, entry["output_dtypes"]))
    frames = entry.get("frames", ())
    stack = tuple(f"{f['filename']}:{int(f['line'])}" for f in frames if not LIBRARY.search(f["filename"]))
    kind = str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])
    ended = int(entry.get("time_discovered_completed_ns") or 0)
    is_over = entry["state"] == "completed" or bool(ended)
    parts = (sizes, dtypes, stack)
    sizes, dtypes, stack = shared.setdefault(parts, parts)
    number = int(entry["p2p_seq_id" if message else "collective_seq_id"])
    created = int(entry["time_created_ns"] or 0)
    return RecordedCall(str(group), number, kind, sizes, dtypes, stack, message, is_over, created, ended)


def _sizes(sizes: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, size)) for size in sizes)


def _members(content: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The ranks of groups; gloo's records have none."""
    found: dict[str, tuple[int, ...]] = {}
    for name, config in content.get("pg_config", {}).items():
        if ranks := RANK.findall(str(config.get("ranks", ""))):
            found[str(name)] = tuple(map(int, ranks))
    return found


def last_numbers(calls: Sequence[RecordedCall]) -> dict[str, int]:
    """The number of the last collective of each group. `pg_status` of a record is not read: gloo's has other names."""
    last: dict[str, int] = {}
    for call in calls:
        if not call.is_message:
            last[call.group] = max(last.get(call.group, 0), call.number)
    return last


# Pickles


MARK = object()
_SHORT: dict[int, Any] = {ord("N"): None, 0x88: True, 0x89: False}


FRAMES = b"X\x06\x00\x00\x00framesq"


def last_entries(data: bytes, last: int) -> Any:
    """Return the content of a record's pickle without most entries before the last ones.

    Entries refer by number to texts and stacks of earlier ones, which are numbered in the order of their use: of the
    entries in the middle those are decoded that have something new.

    Raises:
        ValueError: see `plain_pickle`.
    """
    at = data.find(FRAMES) + len(FRAMES)
    begin = b"}(h" + data[at : at + 1]  # an entry: an empty dictionary, a mark, and its first key
    second, start = data.find(begin, at), len(data)
    if data.count(begin) < last + 2:
        return plain_pickle(data)
    for _ in range(last):
        start = data.rfind(begin, 0, start)
    decoder = PlainDecoder(data)
    try:
        decoder.run(0, second)
        at = second
        while (at := data.find(_put(len(decoder.memo)), at, start)) >= 0:
            entry, following = data.rfind(begin, 0, at), data.find(begin, at)
            decoder.run(entry, following)
            at = following
        return decoder.run(start)
    except ValueError:  # bytes in the middle that look like another opcode
        return plain_pickle(data)


def _put(number: int) -> bytes:
    """The opcode that gives the value on top of the stack a number."""
    return b"q" + bytes([number]) if number < 256 else b"r" + number.to_bytes(4, "little")


def plain_pickle(data: bytes) -> Any:
    """Return the dictionaries, lists, tuples, texts and numbers of a pickle.

    Raises:
        ValueError: it has an opcode for anything else, or is damaged.
    """
    return PlainDecoder(data).run(0)


class PlainDecoder:
    """A pickle's stack and the values that it refers to by number."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, at: int, end: int = 0) -> Any:
        """Decode from a position to another one, or to the end, whose value is returned.

        Raises:
            ValueError: see `plain_pickle`.
        """
        data, stack, memo = self.data, self.stack, self.memo
        until = end or len(data)
        try:
            while at < until:
                code = data[at]
                at += 1
                if code == 0x68:  # BINGET
                    stack.append(memo[data[at]])
                    at += 1
                elif code == 0x6A:  # LONG_BINGET
                    stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
                    at += 4
                elif code in _NUMBERS:
                    size, read = _NUMBERS[code]
                    stack.append(read(data, at)[0])
                    at += size
                elif code == 0x71:  # BINPUT
                    memo[data[at]] = stack[-1]
                    at += 1
                elif code == 0x72:  # LONG_BINPUT
                    memo[int.from_bytes(data[at : at + 4], "little")] = stack[-1]
                    at += 4
                elif code in _TEXTS:
                    width = _TEXTS[code]
                    size = int.from_bytes(data[at : at + width], "little")
                    at += width
                    if size > len(data) - at:
                        raise ValueError(f"a text of {size} bytes at byte {at} is longer than the file")
                    stack.append(data[at : at + size].decode())
                    at += size
                elif code in _SHORT:
                    stack.append(_SHORT[code])
                elif code == 0x8A:  # LONG1
                    size = data[at]
                    stack.append(int.from_bytes(data[at + 1 : at + 1 + size], "little", signed=True))
                    at += 1 + size
                elif code == 0x80:  # PROTO
                    at += 1
                elif code == 0x95:  # FRAME
                    at += 8
                elif code == 0x94:  # MEMOIZE
                    memo[len(memo)] = stack[-1]
                elif code in _BUILDERS:
                    _BUILDERS[code](stack)
                elif code == 0x2E:  # STOP
                    return stack.pop()
                else:
                    raise ValueError(f"opcode {code:#04x} at byte {at - 1} is not one of plain data, and is not run")
        except (KeyError, IndexError, struct.error, TypeError, AttributeError) as error:
            raise ValueError(f"damaged before byte {at}: {type(error).__name__}") from None
        if not end:
            raise ValueError(f"cut off after {until} bytes")
        return None


def _since_mark(stack: list[Any]) -> list[Any]:
    at = len(stack) - 1
    while stack[at] is not MARK:
        at -= 1
        if at < 0:
            raise IndexError
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _extend(stack: list[Any]) -> None:
    items = _since_mark(stack)
    stack[-1].extend(items)


def _update(stack: list[Any]) -> None:
    items = _since_mark(stack)
    stack[-1].update(zip(items[::2], items[1::2], strict=True))


def _append(stack: list[Any]) -> None:
    item = stack.pop()
    stack[-1].append(item)


def _set(stack: list[Any]) -> None:
    value, key = stack.pop(), stack.pop()
    stack[-1][key] = value


def _tuple_of(size: int) -> Callable[[list[Any]], None]:
    def build(stack: list[Any]) -> None:
        items = tuple(stack[len(stack) - size :])
        if len(items) < size or MARK in items:
            raise IndexError
        del stack[len(stack) - size :]
        stack.append(items)

    return build


_TEXTS = {0x58: 4, 0x8C: 1, 0x8D: 8}
_NUMBERS: dict[int, tuple[int, Callable[[bytes, int], tuple[Any, ...]]]] = {
    code: (struct.calcsize(form), struct.Struct(form).unpack_from)
    for code, form in ((0x4B, "<B"), (0x4D, "<H"), (0x4A, "<i"), (0x47, ">d"))
}
_BUILDERS: dict[int, Callable[[list[Any]], None]] = {
    0x28: lambda stack: stack.append(MARK), 0x7D: lambda stack: stack.append({}), 0x5D: lambda stack: stack.append([]),
    0x29: lambda stack: stack.append(()), 0x74: lambda stack: stack.append(tuple(_since_mark(stack))),
    0x65: _extend, 0x75: _update, 0x61: _append, 0x73: _set,
    0x85: _tuple_of(1), 0x86: _tuple_of(2), 0x87: _tuple_of(3),
}  # fmt: skip
