"""Tables of schedules, as users write them: a line for every stage, and in it the stage's actions in order.

A cell is `0F3`: chunk, kind (F, B, I, W: see `schedules.py`) and micro-batch; `(0F3;7B1)OVERLAP_F_B` is a forward and
a backward, which run one after the other; an empty cell is nothing. The form is that of PyTorch's
`torch.distributed.pipelining`, which reads tables of actions without messages, too. Which stage has a chunk follows
from the line that it is in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mspc.ir.diagnostics import Location, MspcError, did_you_mean, raise_all
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.files.parsing import reading
from mspc.ir.files.regular import check_regular
from mspc.ir.late_dataclass import dataclass
from mspc.passes.lib.schedules import BACKWARD, FORWARD, KINDS, Action, Schedule

LARGEST = 64 << 20
"""Bytes of a table at most: 405B in 16 stages has some 20,000 cells."""
_ACTION = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})", re.ASCII)
_OVERLAPPED = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
_LIKE_ACTION = re.compile(r"(\d*)([A-Za-z_]+)(\d*)", re.ASCII)
_MESSAGES = ("SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD")
"""Kinds of PyTorch's tables with messages."""


@dataclass(frozen=True)
class ScheduleTable:
    """A schedule, and the place of each entry of each stage."""

    schedule: Schedule
    lines: tuple[tuple[Location, ...], ...]


def write_table(schedule: Schedule) -> str:
    """Return the table of a schedule."""
    return "".join(",".join(map(str, entries)) + "\n" for entries in schedule.entries)


def text_of_table(path: Path) -> str:
    """Return the text of the file of a table. Raise MspcError if it cannot be read."""
    shown = shown_path(path)
    with reading(path, "schedule", "is no text in UTF-8", "E0504", ValueError):
        check_regular(path, LARGEST)
        text = path.read_bytes().decode("utf-8-sig")
    if not text.strip():
        raise _empty(shown)
    return text


def _empty(file: str) -> MspcError:
    return MspcError("the table of a schedule is empty", Location(file, 1), kind=ValueError)


def read_table(text: str, file: str, micro_batches: int | None = None) -> ScheduleTable:
    """Return the schedule of a table. `check_schedule` finds missing actions and wrong orders.

    file: the name of the table, for messages. micro_batches: how many there are; None: as many as the table has.

    Raise MspcError if a cell is no action, or chunks have no stage, or two.
    """
    rows = [row.rstrip("\r") for row in text.split("\n")]
    while rows and not rows[-1].strip():
        rows.pop()
    errors: list[MspcError] = []
    stages: list[tuple[Action, ...]] = []
    lines: list[tuple[Location, ...]] = []
    for stage, row in enumerate(rows):
        entries: list[Action] = []
        places: list[Location] = []
        for cell, place in _cells(row, file, stage + 1):
            try:
                actions = _actions(cell, place, stage)
                entries += actions
                places += [place] * len(actions)
            except MspcError as error:
                errors.append(error)
        if not row.strip(" ,\t"):
            errors.append(MspcError(f"stage {stage} has no action", Location(file, stage + 1), kind=ValueError))
        stages.append(tuple(entries))
        lines.append(tuple(places))
    if not rows:
        errors.append(_empty(file))
    raise_all(errors)
    placement = _placement(stages, lines, file)
    if micro_batches is None:
        numbers = {action.micro_batch for entries in stages for action in entries}
        micro_batches = _count("micro-batch", numbers, file)
    return ScheduleTable(Schedule(file, micro_batches, placement, tuple(stages)), tuple(lines))


def _cells(row: str, file: str, line: int) -> Iterator[tuple[str, Location]]:
    """Yield the cells of a line that are not empty, stripped, each with its columns."""
    start = 0
    for cell in row.split(","):
        text = cell.strip()
        if text:
            column = start + len(cell) - len(cell.lstrip()) + 1
            yield text, Location(file, line, column, column + len(text), row)
        start += len(cell) + 1


def _actions(cell: str, place: Location, stage: int) -> list[Action]:
    pair = _OVERLAPPED.fullmatch(cell)
    if pair is None:
        return [_action(cell, place, stage)]
    first, second = (_action(text.strip(), place, stage) for text in pair.groups())
    if (first.kind, second.kind) == (BACKWARD, FORWARD):
        first, second = second, first
    if (first.kind, second.kind) != (FORWARD, BACKWARD):
        kinds = f"{KINDS[first.kind]} and a {KINDS[second.kind]}"
        raise MspcError(f"a forward and a backward run at once, not a {kinds}", place, kind=ValueError)
    return [first, second]


def _action(cell: str, place: Location, stage: int) -> Action:
    found = _ACTION.fullmatch(cell)
    if found is None:
        raise MspcError(f"{cell!r} is no action", place, _notes(cell, stage), kind=ValueError)
    chunk, kind, number = found.groups()
    return Action(kind, int(chunk), int(number))


def _notes(cell: str, stage: int) -> list[str]:
    form = f"an action is chunk, kind and micro-batch, such as '{stage}F0'; kinds are " + ", ".join(
        f"{kind} ({name})" for kind, name in KINDS.items()
    )
    like = _LIKE_ACTION.fullmatch(cell)
    if like is None:
        return [form]
    chunk, kind, number = like.groups()
    if kind in _MESSAGES:
        return ["a table has no messages: mspc sends and receives the values that the actions read", form]
    near = [kind] if kind in KINDS else [each for each in KINDS if each.casefold() == kind.casefold()]
    meant = [text for each in near if number and _ACTION.fullmatch(text := f"{chunk or stage}{each}{number}")]
    return [*(did_you_mean(meant[0], meant) if meant else []), form]


def _placement(stages: list[tuple[Action, ...]], lines: list[tuple[Location, ...]], file: str) -> tuple[int, ...]:
    errors: list[MspcError] = []
    found: dict[int, tuple[int, Location]] = {}
    for stage, (entries, places) in enumerate(zip(stages, lines, strict=True)):
        for action, place in zip(entries, places, strict=True):
            first, line = found.setdefault(action.chunk, (stage, place))
            if first != stage:
                notes = [f"its first action is on stage {first}, at {line}"]
                message = f"{action} is on stage {stage}, but chunk {action.chunk} is on stage {first}"
                errors.append(MspcError(message, place, notes, kind=ValueError))
    raise_all(errors)
    return tuple(found[chunk][0] for chunk in range(_count("chunk", set(found), file)))


def _count(what: str, numbers: set[int], file: str) -> int:
    """Return the number of chunks or micro-batches. Raise MspcError if their numbers leave one out."""
    absent = next((number for number in range(len(numbers)) if number not in numbers), None)
    if absent is not None:
        message = f"no stage has an action of {what} {absent}, but there is one of {what} {max(numbers)}"
        raise MspcError(message, Location(file, 1), kind=ValueError)
    return len(numbers)
