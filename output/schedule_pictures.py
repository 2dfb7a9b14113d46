"""The timeline of a schedule as text, as a picture in SVG, and the words both use."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import floor, log10

from mspc.passes.lib.schedule_checks import name_of
from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    KINDS,
    WEIGHT_GRADIENT,
    Action,
    Entry,
    Schedule,
    parts_of,
)  # fmt: skip
from mspc.passes.lib.timeline import ScheduleTimeline, Span, StepTail


def heading(timeline: ScheduleTimeline) -> str:
    """Return the first line of a picture: the schedule, its sizes, and the time of a step."""
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


def stage_text(timeline: ScheduleTimeline, stage: int) -> str:
    """Return the idle share of a stage, and the most micro-batches saved for backward at once, as text."""
    return f"idle {timeline.idle_share(stage):.1%}, keeps {timeline.kept(stage)}"


def label(entry: Entry, schedule: Schedule) -> str:
    """Return a short text for an entry: kind and micro-batch, with the chunk if stages have several."""
    several = schedule.chunks > schedule.stages
    return "+".join(str(part) if several else f"{part.kind}{part.micro_batch}" for part in parts_of(entry))


def span_text(span: Span) -> str:
    """Describe an entry and its times in one line."""
    what = " and ".join(
        f"{KINDS[part.kind]} of micro-batch {part.micro_batch} on chunk {part.chunk}" for part in parts_of(span.entry)
    )
    return f"{what}: {time_text(span.start)} to {time_text(span.end)}"


def tail_text(tail: StepTail) -> str:
    """Describe the tail of a stage, after its last action, in one line."""
    return f"updates, and other work of no micro-batch: {time_text(tail.start)} to {time_text(tail.end)}"


def tail_wait_text(tail: StepTail, begin: float) -> str:
    """Describe the wait of a stage before its tail, from `begin` on."""
    return f"waits {time_text(tail.start - begin)} for other stages to end"


def wait_text(span: Span, begin: float) -> str:
    """Describe the wait of a stage before an entry, from `begin` on."""
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
MOST_COLUMNS = 2000
"""Most columns for the actions: a file may be wider than a terminal."""


def schedule_text(timeline: ScheduleTimeline, columns: int = MOST_COLUMNS) -> str:
    """Return the heading and a row for every stage; dots are waits of a stage between its actions.

    columns: the most columns for the actions. Labels that do not fit are shortened to kinds.
    """
    rows = [heading(timeline)]
    scale = _text_scale(timeline, columns)
    names = [f"stage {stage}" for stage in range(timeline.schedule.stages)]
    for stage, name in enumerate(names):
        drawn = _row(timeline, stage, scale).ljust(round(timeline.makespan * scale))
        rows.append(f"{name:{max(map(len, names))}}  {drawn}  {stage_text(timeline, stage)}")
    return "\n".join(rows) + "\n"


def _text_scale(timeline: ScheduleTimeline, columns: int) -> float:
    """Return the columns per unit of time: enough for every label and a space after it, if `columns` allow that."""
    needed = [
        (len(label(span.entry, timeline.schedule)) + 1) / (span.end - span.start)
        for spans in timeline.spans
        for span in spans
        if span.end > span.start
    ]
    longest = timeline.makespan
    return min(max(needed, default=1), columns / longest) if longest else 1


def _row(timeline: ScheduleTimeline, stage: int, scale: float) -> str:
    drawn = ""
    for place, span in enumerate(timeline.spans[stage]):
        start, end = round(span.start * scale), round(span.end * scale)
        drawn = drawn.ljust(start, WAITS if place else " ")
        drawn += _block(span.entry, timeline.schedule, end - start)
    tail = timeline.tails.get(stage)
    if tail is not None:
        start, end = round(tail.start * scale), round(tail.end * scale)
        drawn = drawn.ljust(start, WAITS) + UPDATES[: end - start].ljust(end - start)
    return drawn


def _block(entry: Entry, schedule: Schedule, width: int) -> str:
    """Return the label of an entry padded to `width` columns, or its kinds if the label does not fit."""
    text = label(entry, schedule)
    if len(text) >= width:  # it would run into the next one
        text = "".join(part.kind for part in parts_of(entry))[:width]
    return text.ljust(width)


COLOURS = {
    FORWARD: (0, 112, 180),
    BACKWARD: (0, 126, 95),
    INPUT_GRADIENT: (145, 84, 165),
    WEIGHT_GRADIENT: (184, 84, 0),
}
"""Red, green and blue of each kind, from 0 to 255. They are dark enough for white numbers (a contrast of at least 4.5,
which WCAG 2 asks of text) and light enough for dark pages (at least 3, which it asks of graphics)."""
WHITE = (255, 255, 255)
READABLE = 4.5
"""The least contrast of numbers; black has it if white has not."""
LIGHTEST = 0.62
"""The share of white in the colours of a stage's last chunk, if it has several."""
LEFT, RIGHT, TOP, ROW, GAP, BELOW = 76, 180, 64, 26, 6, 30
"""Pixels: left and right of the rows, above them, of a row, between two rows, and below for the axis."""
NARROWEST, WIDEST = 900, 4800
"""Least and most pixels of a row's width."""
DIGIT, NUMBER_SPACE = 7, 6
"""Pixels of a digit, and of the space around a number."""
THINNEST = 0.5
"""Least pixels of a wait: less is rounding, or too small to be seen."""
TICKS = 10
_STYLE = """
text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: #1b1f24 }
.page { fill: #ffffff } .row { fill: #eef0f3 } .axis { stroke: #5b6470 } .quiet { fill: #5b6470 }
.hatch { stroke: #8a93a0 } .tail { fill: #5b6470 }
.number { text-anchor: middle; font-size: 11px } .title { font-size: 14px }
.end { text-anchor: middle }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ee } .page { fill: #14171b } .row { fill: #22272e } .axis { stroke: #9aa4b2 }
  .quiet { fill: #9aa4b2 } .hatch { stroke: #7a8491 } .tail { fill: #9aa4b2 }
}
.on-dark { fill: #ffffff } .on-light { fill: #000000 }
"""


def schedule_svg(timeline: ScheduleTimeline) -> str:
    """Return the picture as one SVG file that loads no other file."""
    return "\n".join(_Picture(timeline).lines()) + "\n"


class _Picture:
    """A picture as it is drawn. scale: pixels per unit of time."""

    def __init__(self, timeline: ScheduleTimeline) -> None:
        self.timeline, self.schedule = timeline, timeline.schedule
        self.scale = _scale(timeline)
        self.width = max(1, round(timeline.makespan * self.scale))
        self.height = TOP + self.schedule.stages * (ROW + GAP) + BELOW
        self.ranks = {
            chunk: place / max(1, len(self.schedule.chunks_of(stage)) - 1)
            for stage in range(self.schedule.stages)
            for place, chunk in enumerate(self.schedule.chunks_of(stage))
        }
        """Position of a chunk among those of its stage, from 0 to 1."""

    def lines(self) -> Iterator[str]:
        width = LEFT + self.width + RIGHT
        title = escape(heading(self.timeline))
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{title}" width="{width}" '
            f'height="{self.height}" viewBox="0 0 {width} {self.height}">'
        )
        yield f"<style>{_STYLE}</style>"
        yield (
            '<defs><pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><path class="hatch" d="M0 0V6" stroke-width="2"/></pattern></defs>'
        )
        yield f'<rect class="page" width="{width}" height="{self.height}"/>'
        yield f'<text class="title" x="12" y="24">{title}</text>'
        yield from self._legend()
        for stage in range(self.schedule.stages):
            yield from self._row(stage)
        yield from self._axis()
        yield "</svg>"

    def _legend(self) -> Iterator[str]:
        there = {part.kind for spans in self.timeline.spans for span in spans for part in parts_of(span.entry)}
        x = LEFT
        for kind, name in KINDS.items():
            if kind in there:
                yield f'<rect x="{x}" y="38" width="14" height="14" rx="2" fill="{_hex(COLOURS[kind])}"/>'
                yield f'<text x="{x + 20}" y="49">{name}</text>'
                x += 44 + DIGIT * len(name)
        yield f'<rect x="{x}" y="38" width="14" height="14" rx="2" fill="url(#wait)"/>'
        yield f'<text x="{x + 20}" y="49">waits</text>'
        if self.timeline.tails:
            yield f'<rect class="tail" x="{x + 80}" y="38" width="14" height="14" rx="2"/>'
            yield f'<text x="{x + 100}" y="49">updates</text>'
            x += 100
        if self.schedule.chunks > self.schedule.stages:
            yield f'<text class="quiet" x="{x + 80}" y="49">lighter: later chunks of a stage</text>'

    def _row(self, stage: int) -> Iterator[str]:
        y = TOP + stage * (ROW + GAP)
        middle = y + ROW / 2 + 4
        yield f'<text x="12" y="{middle:g}">stage {stage}</text>'
        yield f'<rect class="row" x="{LEFT}" y="{y}" width="{self.width}" height="{ROW}"/>'
        spans = self.timeline.spans[stage]
        for place, span in enumerate(spans):
            if place and (span.start - spans[place - 1].end) * self.scale >= THINNEST:
                yield self._wait(y, spans[place - 1].end, span.start, wait_text(span, spans[place - 1].end))
            yield from self._block(y, span)
        if stage in self.timeline.tails:
            yield from self._tail(y, spans[-1].end if spans else 0, self.timeline.tails[stage])
        text = stage_text(self.timeline, stage)
        yield f'<text class="quiet" x="{LEFT + self.width + 12}" y="{middle:g}">{text}</text>'

    def _x(self, time: float) -> float:
        return round(LEFT + time * self.scale, 2)

    def _wait(self, y: float, begin: float, end: float, text: str) -> str:
        x = self._x(begin)
        shape = f'x="{x:g}" y="{y}" width="{self._x(end) - x:g}" height="{ROW}"'
        return f'<rect {shape} fill="url(#wait)"><title>{escape(text)}</title></rect>'

    def _tail(self, y: float, begin: float, tail: StepTail) -> Iterator[str]:
        """Yield the shapes of the tail after the last action, which ends at `begin`."""
        x, end = self._x(tail.start), self._x(tail.end)
        if (tail.start - begin) * self.scale >= THINNEST:
            yield self._wait(y, begin, tail.start, tail_wait_text(tail, begin))
        shape = f'x="{x + 0.5:g}" y="{y}" width="{max(THINNEST, end - x - 1):g}" height="{ROW}"'
        yield f'<rect class="tail" {shape} rx="2"><title>{escape(tail_text(tail))}</title></rect>'

    def _block(self, y: float, span: Span) -> Iterator[str]:
        """Yield the blocks of an entry and their numbers. Two actions at once are drawn one above the other."""
        x, end = self._x(span.start), self._x(span.end)
        parts = parts_of(span.entry)
        height = ROW / len(parts)
        yield f"<g><title>{escape(span_text(span))}</title>"
        for place, part in enumerate(parts):
            top = y + place * height
            colour = self._colour(part)
            shape = f'x="{x + 0.5:g}" y="{top:g}" width="{max(THINNEST, end - x - 1):g}" height="{height:g}"'
            yield f'<rect {shape} rx="2" fill="{_hex(colour)}"/>'
            number = str(part.micro_batch)
            if end - x >= DIGIT * len(number) + NUMBER_SPACE:
                style = "on-dark" if contrast(colour, WHITE) >= READABLE else "on-light"
                place_text = f'x="{(x + end) / 2:g}" y="{top + height / 2 + 4:g}"'
                yield f'<text class="number {style}" {place_text}>{number}</text>'
        yield "</g>"

    def _colour(self, part: Action) -> tuple[int, int, int]:
        share = LIGHTEST * self.ranks[part.chunk]
        red, green, blue = (round(each + (255 - each) * share) for each in COLOURS[part.kind])
        return red, green, blue

    def _axis(self) -> Iterator[str]:
        y = TOP + self.schedule.stages * (ROW + GAP)
        yield f'<path class="axis" d="M{LEFT} {y}H{LEFT + self.width}"/>'
        step = _step(self.timeline.makespan)
        for tick in range(floor(self.timeline.makespan / step + 1e-9) + 1 if step else 1):
            x = self._x(tick * step)
            yield f'<path class="axis" d="M{x:g} {y}v4"/>'
            yield f'<text class="quiet end" x="{x:g}" y="{y + 18}">{time_text(tick * step)}</text>'


def _scale(timeline: ScheduleTimeline) -> float:
    """Return the pixels per unit of time: numbers fit into the shortest blocks unless the picture gets too wide."""
    longest = timeline.makespan
    if not longest:
        return 1
    shortest = min(span.end - span.start for spans in timeline.spans for span in spans if span.end > span.start)
    digits = len(str(timeline.schedule.micro_batches - 1))
    wanted = longest / shortest * (DIGIT * digits + NUMBER_SPACE + 1)
    return min(max(wanted, NARROWEST), WIDEST) / longest


def _step(longest: float) -> float:
    """Return the time between two ticks of the axis: 1, 2 or 5 times a power of ten, for at most `TICKS` ticks."""
    if not longest:
        return 0
    power = 10 ** floor(log10(longest / TICKS))
    return next(each * power for each in (1, 2, 5, 10) if each * power * TICKS >= longest)


def _hex(colour: tuple[int, int, int]) -> str:
    return "#" + "".join(f"{each:02x}" for each in colour)


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    """Return the contrast of two colours, 1 to 21 (WCAG 2, "contrast ratio")."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: tuple[int, int, int]) -> float:
    """Return the relative luminance of a colour (WCAG 2)."""
    linear = [each / 255 / 12.92 if each <= 10 else ((each / 255 + 0.055) / 1.055) ** 2.4 for each in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
