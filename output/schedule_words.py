"""What pictures of a schedule say in words: its heading, its stages, its actions and the times of both."""

from __future__ import annotations

from mspc.passes.lib.schedule_checks import name_of
from mspc.passes.lib.schedules import KINDS, Action, Entry, Schedule, parts_of
from mspc.passes.lib.timeline import ScheduleTimeline, Span, StepTail


def heading(timeline: ScheduleTimeline) -> str:
    """The first line of a picture: what is shown, and how long a step takes."""
    schedule = timeline.schedule
    counts = [_count(schedule.stages, "stage"), _count(schedule.micro_batches, "micro-batch", "es")]
    if schedule.chunks > schedule.stages:
        counts.insert(1, f"{schedule.chunks} chunks")
    text = f"{schedule.name}: {', '.join(counts)}, a step takes {time_text(timeline.makespan)}, "
    text += f"idle {_mean_idle(timeline, postponed=False):.1%}"
    if timeline.period < timeline.makespan:
        alone = f"{time_text(timeline.period)}, idle {_mean_idle(timeline, postponed=True):.1%}"
        text += f"; where stages begin the next one by themselves {alone}"
    return text


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{'' if number == 1 else plural}"


def _mean_idle(timeline: ScheduleTimeline, *, postponed: bool) -> float:
    stages = range(timeline.schedule.stages)
    return sum(timeline.idle_share(stage, postponed=postponed) for stage in stages) / len(stages)


def stage_text(timeline: ScheduleTimeline, stage: int) -> str:
    """How long a stage is idle, and how many micro-batches of its chunks it keeps at most."""
    return f"idle {timeline.idle_share(stage):.1%}, keeps {timeline.kept(stage)}"


def label(entry: Entry, schedule: Schedule) -> str:
    """A short text for an entry: kind and micro-batch, behind the chunk where a stage has several."""
    several = schedule.chunks > schedule.stages
    return "+".join(str(part) if several else f"{part.kind}{part.micro_batch}" for part in parts_of(entry))


def span_text(span: Span) -> str:
    """All about an entry, in one line."""
    what = " and ".join(map(_action_text, parts_of(span.entry)))
    return f"{what}: {time_text(span.start)} to {time_text(span.end)}"


def tail_text(tail: StepTail) -> str:
    """All about what a stage does behind its last action."""
    return f"updates, and what else is of no micro-batch: {time_text(tail.start)} to {time_text(tail.end)}"


def tail_wait_text(tail: StepTail, begin: float) -> str:
    """What a stage waits for before that, from a time on."""
    return f"waits {time_text(tail.start - begin)} for other stages to end"


def wait_text(span: Span, begin: float) -> str:
    """What a stage waits for before an entry, from a time on."""
    text = f"waits {time_text(span.start - begin)}"
    if span.awaited is None:
        return text
    name, micro_batch = name_of(span.awaited)
    return f"{text} for the {name} of micro-batch {micro_batch}"


def _action_text(action: Action) -> str:
    return f"{KINDS[action.kind]} of micro-batch {action.micro_batch} on chunk {action.chunk}"


def time_text(seconds: float) -> str:
    """A time in the unit that fits: s, ms or us."""
    for unit, scale in (("s", 1), ("ms", 1e-3)):
        if seconds >= scale or (unit == "s" and seconds == 0):
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-6:.4g} us"
