"""Text form of the timeline of a schedule, and its wording, which `mspc view` also uses."""

from __future__ import annotations

from mspc.passes.lib.schedules import Action, Schedule
from mspc.passes.lib.timeline import ScheduleTimeline, Span, StepTail, name_of


def heading(timeline: ScheduleTimeline) -> str:
    """Return the first line: the schedule, its sizes, and the time of a step."""
    schedule = timeline.schedule
    counts = [_count(schedule.stages, "stage"), _count(schedule.micro_batches, "micro-batch", "es")]
    if schedule.chunks > schedule.stages:
        counts.insert(1, f"{schedule.chunks} chunks")
    text = f"{schedule.name}: {', '.join(counts)}, a step takes {time_text(timeline.makespan)}, "
    text += f"idle {_mean_idle(timeline, postponed=False):.1%}"
    if timeline.period < timeline.makespan:
        alone = f"{time_text(timeline.period)}, idle {_mean_idle(timeline, postponed=True):.1%}"
        text += f"; if stages begin the next one by themselves {alone}"
    return text


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{'' if number == 1 else plural}"


def _mean_idle(timeline: ScheduleTimeline, *, postponed: bool) -> float:
    stages = range(timeline.schedule.stages)
    return sum(timeline.idle_share(stage, postponed=postponed) for stage in stages) / len(stages)


def label(action: Action, schedule: Schedule) -> str:
    """Return a short text for an action: kind and micro-batch, with the chunk if stages have several."""
    return str(action) if schedule.chunks > schedule.stages else f"{action.kind}{action.micro_batch}"


def tail_text(tail: StepTail) -> str:
    """Describe the tail of a stage, after its last action, in one line."""
    return f"updates, and other work of no micro-batch: {time_text(tail.start)} to {time_text(tail.end)}"


def tail_wait_text(tail: StepTail, begin: float) -> str:
    """Describe the wait of a stage before its tail, from `begin` on."""
    return f"waits {time_text(tail.start - begin)} for other stages to end"


def wait_text(span: Span, begin: float) -> str:
    """Describe the wait of a stage before an action, from `begin` on."""
    text = f"waits {time_text(span.start - begin)}"
    if span.awaited is None:
        return text
    name, micro_batch = name_of(span.awaited)
    return f"{text} for the {name} of micro-batch {micro_batch}"


def time_text(seconds: float) -> str:
    """Return a time as text in the unit that fits: s, ms or us."""
    for unit, scale in (("s", 1), ("ms", 1e-3)):
        if seconds >= scale or (unit == "s" and seconds == 0):
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-6:.4g} us"


WAITS, UPDATES = ".", "U"
MAX_COLUMNS = 2000
"""Maximum number of columns for the actions: a file may be wider than a terminal."""


def schedule_text(timeline: ScheduleTimeline, columns: int = MAX_COLUMNS) -> str:
    """Return the heading and a row for every stage; dots are waits between actions. columns: maximum number of columns
    for the actions. Labels that do not fit are shortened to kinds."""
    rows = [heading(timeline)]
    # The columns per unit of time are enough for every label and a space, within `columns`.
    needed = [
        (len(label(span.action, timeline.schedule)) + 1) / (span.end - span.start)
        for spans in timeline.spans
        for span in spans
        if span.end > span.start
    ]
    longest = timeline.makespan
    scale = min(max(needed, default=1), columns / longest) if longest else 1
    names = [f"stage {stage}" for stage in range(timeline.schedule.stages)]
    for stage, name in enumerate(names):
        drawn = _row(timeline, stage, scale).ljust(round(timeline.makespan * scale))
        # It keeps micro-batches for their backward work.
        told = f"idle {timeline.idle_share(stage):.1%}, keeps {timeline.kept(stage)}"
        rows.append(f"{name:{max(map(len, names))}}  {drawn}  {told}")
    return "\n".join(rows) + "\n"


def _row(timeline: ScheduleTimeline, stage: int, scale: float) -> str:
    drawn = ""
    for place, span in enumerate(timeline.spans[stage]):
        start, end = round(span.start * scale), round(span.end * scale)
        drawn = drawn.ljust(start, WAITS if place else " ")
        drawn += _block(span.action, timeline.schedule, end - start)
    tail = timeline.tails.get(stage)
    if tail is not None:
        start, end = round(tail.start * scale), round(tail.end * scale)
        drawn = drawn.ljust(start, WAITS) + UPDATES[: end - start].ljust(end - start)
    return drawn


def _block(action: Action, schedule: Schedule, width: int) -> str:
    """Return the label of an action padded to `width` columns, or its kind if the label does not fit."""
    text = label(action, schedule)
    if len(text) >= width:  # no space before the next block
        text = action.kind[:width]
    return text.ljust(width)
