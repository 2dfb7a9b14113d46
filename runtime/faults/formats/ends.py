"""Ends of ranks: torchrun's error files, and the lines in which launchers and ranks report an end.

A rank that raises, or is killed, often leaves no record of its calls. A rank that fails in a collective fails because
another one has: its end tells no more than that.
"""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.runtime.faults.recorded_calls import LIBRARY, RankEnd, Record

LOG = re.compile(r"exitcode *:|Traceback \(most recent call last\)|terminate called|exited\s+on\s+signal|task \d+: ")
"""Lines of a log with the end of a rank."""
PREFIX = re.compile(r"(?:\[\d+,(\d+)\]<std\w+>: ?)?(?:\[default(\d+)\]: ?)?(?:\[rank(\d+)\]: ?)?")
"""Before a line of a rank, by mpirun and torchrun: its number in the job, on its host, and in the job."""
OWN_FILE = re.compile(r"(?:rank|worker)[_-]?(\d+)")
"""Part of the name of a file of one rank."""
STATUS = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
SIGNAL = re.compile(r"process\s+rank\s+(\d+)\s+with\s+PID\s+\d+\s+on\s+node\s+\S+\s+exited\s+on\s+signal\s+(\d+)")
TASK = re.compile(r"task (\d+): (?:Exited with exit code (\d+)|Killed)")
ROOT, FAILED = "Root Cause (first observed failure)", re.compile(r"rank +: (\d+) \(local_rank: \d+\)")
FIELD = re.compile(r"(exitcode|error_file|traceback) *: (.*)")
FRAME = re.compile(r'File "([^"]+)", line (\d+)')
TRACEBACK = "Traceback (most recent call last):"
ABORTED = re.compile(r"terminate called.*\n\s*what\(\): +(.*)")
OF_OTHERS = re.compile(
    r"gloo/|NCCL|c10d|Connection (?:closed|reset|refused)|Broken pipe|Socket Timeout|SignalException|SIGTERM"
    r"|Dist(?:Backend|Network|Store)Error|mismatch between collectives|KeyboardInterrupt"
)
"""Parts of exceptions that a rank has because another one has failed or the launcher ends it."""
UNCLEAR = 0.5
"""How certain a status is the reason of a hang: a rank aborts, or exits, also after others have failed."""
RAISED, MAX_MESSAGE = "raised ", 200


def record_of(path: Path, content: Mapping[str, Any]) -> Record:
    """Return the record with the content of an error file of torchrun."""
    about = content["message"]
    about = about if isinstance(about, dict) else {"message": about}
    extra = about.get("extraInfo") or {}
    end = _raised(f"{extra.get('py_callstack') or ''}\n{about['message']}")
    rank = _rank_of(path)
    if rank < 0:
        raise MspcError(f"{path}: its name does not have the number of a rank, as error_rank_3.json, nor its folder")
    return _record(rank, path, end._replace(moment=int(extra.get("timestamp") or 0) * 1_000_000_000))


def records_of_log(path: Path, text: str) -> list[Record]:
    """Return a record for each rank whose end a log has. Raise MspcError if there is none."""
    found: dict[int, RankEnd] = dict(_statuses(text))
    lines: dict[int, list[str]] = defaultdict(list)
    own = _rank_of(path)
    for line in text.splitlines():
        prefix = PREFIX.match(line)
        number = prefix and (prefix[3] or prefix[1] or prefix[2])
        lines[int(number[:9]) if number else own].append(line[prefix.end() if prefix and number else 0 :])
    for rank, each in lines.items():
        said = "\n".join(each)
        if rank >= 0 and (TRACEBACK in said or ABORTED.search(said)) and ROOT not in said:
            found[rank] = later_end(found.get(rank), _raised(said))
    if not found:
        raise MspcError(f"{path} names no rank that has ended")
    return [_record(rank, path, end) for rank, end in sorted(found.items())]


def later_end(one: RankEnd | None, other: RankEnd | None) -> RankEnd | None:
    """Return the end that tells more about a rank: an exception, or the later one."""
    if one is None or other is None:
        return one or other
    best = max(one, other, key=lambda end: (end.said.startswith(RAISED), end.moment, end.certain))
    return best._replace(is_first=one.is_first or other.is_first, file=one.file or other.file)


def _record(rank: int, path: Path, end: RankEnd) -> Record:
    return Record(rank, path, (), 0, {}, (), end)


def _rank_of(path: Path) -> int:
    """Return the number in the name of a rank's file, or that is the name of its folder; -1 if there is none."""
    number = OWN_FILE.search(path.name) or re.fullmatch(r"(\d+)", path.parent.name)
    return int(number[1][:9]) if number is not None else -1


def _raised(text: str) -> RankEnd:
    """Return the end of a rank from its traceback: of the first exception of a chain that no other rank has caused."""
    ends = [_end_of_traceback(part) for part in text.split(TRACEBACK)[1:]]
    if not ends:
        aborted = ABORTED.search(text)
        said = text.strip().splitlines()[-1:] if aborted is None else [aborted[1]]
        ends = [_end_of_traceback("\n".join(said))]
    return next((end for end in ends if end.certain), ends[-1])


def _end_of_traceback(text: str) -> RankEnd:
    """Return the end with an exception: the first line without indentation after the frames."""
    frames = FRAME.findall(text)
    rest = text[[*FRAME.finditer(text)][-1].end() :].splitlines()[1:] if frames else text.splitlines()
    said = next((line for line in rest if line.strip() and not line.startswith(" ")), "an exception")[:MAX_MESSAGE]
    stack = tuple(f"{file}:{int(line)}" for file, line in reversed(frames) if not LIBRARY.search(file))
    at = f" at {stack[0]}" if stack else ""
    return RankEnd(f"{RAISED}{said}{at}", stack, certain=0.0 if OF_OTHERS.search(said) else 1.0)


def _statuses(text: str) -> Iterator[tuple[int, RankEnd]]:
    """Yield the ranks that a launcher reports, and their ends; the last report of a rank counts."""
    for status, rank in (*STATUS.findall(text), *((f"-{number}", rank) for rank, number in SIGNAL.findall(text))):
        yield int(rank), _end_of_status(int(status))._replace(is_first=True)
    for rank, status in TASK.findall(text):
        yield int(rank), _end_of_status(int(status) if status else -int(signal.SIGKILL))
    for part, is_first in ((part, i > 0) for i, part in enumerate(text.split(ROOT))):
        starts = [*FAILED.finditer(part)]
        for at, start in enumerate(starts):
            own = part[start.end() : starts[at + 1].start() if at + 1 < len(starts) else len(part)]
            fields = dict(FIELD.findall(own))
            end = _end_of_status(int(re.findall(r"-?\d+", fields.get("exitcode", "0"))[0]))
            if TRACEBACK in own:
                end = _raised(re.sub(r"(?m)^  ", "", own))
            file = fields.get("error_file", "").strip()
            yield int(start[1]), end._replace(is_first=is_first, file="" if file == "<N/A>" else file)


def _end_of_status(status: int) -> RankEnd:
    if status >= 0:
        return RankEnd(f"exited with status {status}", certain=UNCLEAR)
    number = -status
    name = signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"
    certain = {signal.SIGTERM: 0.0, signal.SIGINT: 0.0, signal.SIGABRT: UNCLEAR}.get(number, 1.0)
    return RankEnd(f"was killed by {name}", certain=certain)
