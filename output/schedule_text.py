"""The timeline of a schedule as text: a row for every stage, its actions as wide as they take time, `U` updates.

    stage 0  F0F1......B0  F2B1  B2    idle 40.0%, keeps 2
    stage 1    F0B0  F1B1  F2B2        idle 40.0%, keeps 1
"""

from __future__ import annotations

from mspc.output.schedule_words import heading, label, stage_text
from mspc.passes.lib.schedules import Entry, Schedule, parts_of
from mspc.passes.lib.timeline import ScheduleTimeline

WAITS, UPDATES = ".", "U"
WIDEST = 2000
"""Columns of the actions at most: a file may be wider than a terminal."""


def schedule_text(timeline: ScheduleTimeline, columns: int = WIDEST) -> str:
    """The heading and a row for every stage; dots are times in which a stage waits between its actions.

    columns: for the actions, at most. Where labels do not fit in so many, they are shortened to kinds.
    """
    rows = [heading(timeline)]
    scale = _scale(timeline, columns)
    names = [f"stage {stage}" for stage in range(timeline.schedule.stages)]
    for stage, name in enumerate(names):
        drawn = _row(timeline, stage, scale).ljust(_column(timeline.makespan, scale))
        rows.append(f"{name:{max(map(len, names))}}  {drawn}  {stage_text(timeline, stage)}")
    return "\n".join(rows) + "\n"


def _scale(timeline: ScheduleTimeline, columns: int) -> float:
    """Columns of a unit of time: every label has its place and a space behind it, if all have."""
    needed = [
        (len(label(span.entry, timeline.schedule)) + 1) / (span.end - span.start)
        for spans in timeline.spans
        for span in spans
        if span.end > span.start
    ]
    longest = timeline.makespan
    return min(max(needed, default=1), columns / longest) if longest else 1


def _column(time: float, scale: float) -> int:
    return round(time * scale)


def _row(timeline: ScheduleTimeline, stage: int, scale: float) -> str:
    drawn = ""
    for place, span in enumerate(timeline.spans[stage]):
        start, end = _column(span.start, scale), _column(span.end, scale)
        drawn = drawn.ljust(start, WAITS if place else " ")
        drawn += _block(span.entry, timeline.schedule, end - start)
    tail = timeline.tails.get(stage)
    if tail is not None:
        start, end = _column(tail.start, scale), _column(tail.end, scale)
        drawn = drawn.ljust(start, WAITS) + UPDATES[: end - start].ljust(end - start)
    return drawn


def _block(entry: Entry, schedule: Schedule, width: int) -> str:
    """The label of an entry in so many columns, or its kinds where that does not fit."""
    text = label(entry, schedule)
    if len(text) >= width:  # it would run into the next one
        text = "".join(part.kind for part in parts_of(entry))[:width]
    return text.ljust(width)
