"""Reads the records of a job from files of any known format, and checks that they are of one job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.runtime.faults.formats import ends, flight_recorder, reports, traces
from mspc.runtime.faults.recorded_calls import NUMBER, Record

LARGE, LAST = 64 << 20, 50
"""Bytes of all records from which on only the last calls of each are read, and how many these are."""
HOUR = 3_600_000_000_000
"""Least nanoseconds between the records of different jobs: of a job that hangs all records end at about one time."""
KNOWN = "flight records of PyTorch or mspc, traces of PyTorch's profiler, reports of NCCL RAS, logs of XLA, error "
KNOWN += "files and logs of torchrun"
JSON = re.compile(rb'\s*(\{|\[(?!\d+,\d+\]<)\s*(["\[{\]]|-?\d+\s*[,\]]))')
"""Beginning of JSON; lines of logs can begin with `[` too."""


def read_records(paths: Sequence[Path]) -> tuple[list[Record], list[str]]:
    """Return the records in files and folders, by rank, and why others cannot be read. Only the last calls of large
    records are read; other logs in inner folders are no error. Raise MspcError if no file can be read, two are of one
    rank, or they are of different jobs."""
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else (path,))]
    files = [file for file in files if not file.name.startswith(".") and not file.is_dir()]
    if not files:
        raise MspcError(f"{paths[0]} holds no records" if paths else "no records are given", code="E0101")
    last = LAST if sum(file.stat().st_size for file in files if file.is_file()) > LARGE else 0
    read: list[Record] = []
    wrong: list[str] = []
    for file in files:
        try:
            read += read_record_file(file, last)
        except MspcError as error:
            if file in paths or file.parent in paths or file.suffix != ".log":
                wrong.append(error.message)
    # Error files are in folders with the numbers of ranks on their host; the launcher's log has their ranks in the job.
    ranks = {Path(record.end.file).parts[-4:]: record.rank for record in read if record.end and record.end.file}
    found: dict[int, Record] = {}
    for record in read:
        if record.end is not None and not record.end.file:
            record = record._replace(rank=ranks.get(record.path.parts[-4:], record.rank))
        found[record.rank] = _joined(found.get(record.rank, record), record)
    if not found:
        raise MspcError(wrong[0] if wrong else f"{paths[0]} holds no records", notes=wrong[1:4])
    records = [found[rank] for rank in sorted(found)]
    _check_one_job(records)
    return records, wrong


def read_record_file(path: Path, last: int = 0) -> list[Record]:
    """Return the records in a file. The rank of a file of one rank is the last number in its name.

    last: how many calls of a flight record are enough, 0 for all of them.

    Raises:
        MspcError: the file has none of the known formats, or is damaged.
    """
    if not path.is_file():
        raise MspcError(f"{path} is no file" if path.exists() else f"cannot read {path}: no such file", code="E0101")
    try:
        return _records(path, path.read_bytes(), last)
    except OSError as error:
        raise MspcError(f"cannot read {path}: {error.strerror}") from None
    except RecursionError:
        raise MspcError(f"{path} is damaged: it is nested too deeply") from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = str(error) if isinstance(error, ValueError) else f"a part is missing or malformed: {error!r}"
        raise MspcError(f"{path} is no record, or damaged: {what:.200}") from None


def _records(path: Path, data: bytes, last: int) -> list[Record]:
    """Return the records in the data of a file. Raise MspcError or an error of Python's if they are none, or
    damaged."""
    if not data:
        raise MspcError(f"{path} is empty: expected {KNOWN}")
    if data[:1] != b"\x80" and JSON.match(data) is None:
        text = data.decode(errors="replace")
        if reports.REPORT.search(text):
            return reports.records_of_text(path, text)
        if reports.WAITS.search(text):
            return reports.records_of_log(path, text)
        if ends.LOG.search(text):
            return ends.records_of_log(path, text)
        raise MspcError(f"{path} is no record of a job: expected {KNOWN}")
    content = flight_recorder.content_of(data, last)
    if not isinstance(content, dict):
        raise MspcError(f"{path} is no flight record: it has no list `entries`")
    if "communicators" in content:
        return reports.records_of_json(path, content)
    if "message" in content and "entries" not in content:
        return [ends.record_of(path, content)]
    return [_of_json(path, content, last)]


def _of_json(path: Path, content: dict[str, Any], last: int) -> Record:
    numbers = re.findall(NUMBER, path.name.removesuffix(".json"))
    about = content.get("distributedInfo")
    if not numbers and not (isinstance(about, dict) and "rank" in about):
        raise MspcError(f"{path}: its name does not end in the number of a rank, as trace_rank_3")
    rank = int(numbers[-1][:9]) if numbers else 0
    if "traceEvents" in content:
        return traces.record_of_kineto(rank, path, content)
    if "nodes" in content and "schema" in content:
        return traces.record_of_chakra(rank, path, content)
    return flight_recorder.record_of(rank, path, content, last)


def _joined(one: Record, other: Record) -> Record:
    """Return one record for a rank of two files, if one has calls alone: logs of several hosts name all devices."""
    if one.calls and other.calls and one is not other:
        raise MspcError(f"{other.path} and {one.path} are both of rank {one.rank}")
    return (one if one.calls else other)._replace(end=ends.later_end(one.end, other.end))


def _check_one_job(records: Sequence[Record]) -> None:
    """Raise MspcError if records disagree about a group, or end long before others begin."""
    groups: dict[str, tuple[tuple[int, ...], Record]] = {}
    for record in records:
        for name, ranks in record.members.items():
            known, first = groups.setdefault(name, (ranks, record))
            if known != ranks:
                what = f"group {name} has ranks {str(list(known))[:60]} in one, {str(list(ranks))[:60]} in the other"
                raise MspcError(f"{first.path} and {record.path} are of different jobs: {what}")
    timed = [record for record in records if record.calls and record.calls[0].created]
    if timed:
        latest = max(timed, key=lambda record: record.calls[0].created)
        earliest = min(timed, key=lambda record: record.calls[-1].created)
        if latest.calls[0].created - earliest.calls[-1].created > HOUR:
            hours = (latest.calls[0].created - earliest.calls[-1].created) / HOUR
            raise MspcError(f"{earliest.path} and {latest.path} are of different jobs: {hours:.0f} h lie between them")
