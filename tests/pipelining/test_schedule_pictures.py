"""Pictures of timelines, as text and as SVG: what is in them, how wide it is, and that it can be read."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from mspc.output.schedule_pictures import (
    COLOURS,
    LEFT,
    READABLE,
    WHITE,
    WIDEST,
    contrast,
    schedule_svg,
    schedule_text,
    time_text,
)
from mspc.passes.lib.schedules import SCHEDULES, named_schedule, parts_of
from mspc.passes.lib.timeline import ScheduleTimeline, equal_durations, timeline

SVG = "{http://www.w3.org/2000/svg}"
BLACK, DARK_PAGE = (0, 0, 0), (0x14, 0x17, 0x1B)


def made(name: str, stages: int, micro_batches: int, message: float = 0) -> ScheduleTimeline:
    schedule = named_schedule(name, stages, micro_batches)
    return timeline(schedule, equal_durations(schedule), message)


def test_text() -> None:
    assert schedule_text(made("1f1b", 2, 3)).splitlines() == [
        "1f1b: 2 stages, 3 micro-batches, a step takes 12 s, idle 25.0%",
        "stage 0  F0 F1 ......B0    F2 B1    ...B2      idle 25.0%, keeps 2",
        "stage 1     F0 B0    F1 B1    F2 B2            idle 25.0%, keeps 1",
    ]


def test_text_of_several_chunks() -> None:
    """Both numbers of a step are told where they differ."""
    assert schedule_text(made("zero_bubble_v", 2, 3)).splitlines() == [
        "zero_bubble_v: 2 stages, 4 chunks, 3 micro-batches, a step takes 19 s, idle 5.3%; if stages begin the next "
        "one by themselves 18 s, idle 0.0%",
        "stage 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 0I1 0W1 0I2 3W2 0W2       idle 5.3%, keeps 4",
        "stage 1      1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 1F2 2F2 2I1 1I1 2I2 1I2 2W1 1W1 2W2 1W2   idle 5.3%, keeps 4",
    ]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_label_is_in_the_text(name: str) -> None:
    """Unless there is no room, where kinds are left."""
    shown = made(name, 4, 12)
    text = schedule_text(shown)
    for spans in shown.spans:
        for span in spans:
            for part in parts_of(span.entry):
                several = shown.schedule.chunks > 4
                assert (str(part) if several else f"{part.kind}{part.micro_batch}") in text
    narrow = schedule_text(shown, 60).splitlines()[1:]
    assert {len(row.partition("  idle")[0]) for row in narrow} == {len("stage 0  ") + 60}


def blocks(tree: ElementTree.Element) -> list[ElementTree.Element]:
    return [group for group in tree.iter(f"{SVG}g") if group.find(f"{SVG}rect") is not None]


@pytest.mark.parametrize("name", SCHEDULES)
def test_svg_has_every_action(name: str) -> None:
    shown = made(name, 4, 9, message=0.25)
    tree = ElementTree.fromstring(schedule_svg(shown))
    entries = [span for spans in shown.spans for span in spans]
    assert len(blocks(tree)) == len(entries)
    for group, span in zip(blocks(tree), entries, strict=True):
        rectangles = group.findall(f"{SVG}rect")
        parts = parts_of(span.entry)
        assert len(rectangles) == len(parts)
        assert [text.text for text in group.findall(f"{SVG}text")] == [str(part.micro_batch) for part in parts]
        title = group.find(f"{SVG}title")
        assert title is not None
        assert title.text is not None
        assert all(f"micro-batch {part.micro_batch} on chunk {part.chunk}" in title.text for part in parts)


def test_updates_are_shown_and_what_they_wait_for() -> None:
    schedule = named_schedule("1f1b", 2, 3)
    shown = timeline(schedule, equal_durations(schedule), behind={0: 1, 1: 2}, awaited={1: {(0, None)}})
    assert schedule_text(shown).splitlines() == [
        "1f1b: 2 stages, 3 micro-batches, a step takes 14 s, idle 25.0%; if stages begin the next one by themselves "
        "13 s, idle 19.2%",
        "stage 0  F0 F1 ......B0    F2 B1    ...B2    U       idle 28.6%, keeps 2",
        "stage 1     F0 B0    F1 B1    F2 B2    ......U       idle 21.4%, keeps 1",
    ]
    tree = ElementTree.fromstring(schedule_svg(shown))
    tails = [each for each in tree.iter(f"{SVG}rect") if each.get("class") == "tail"]
    legend, *own = tails
    assert legend.get("width") == "14"
    assert [each.findtext(f"{SVG}title") for each in own] == [
        f"updates, and other work of no micro-batch: {times}" for times in ("12 s to 13 s", "12 s to 14 s")
    ]
    titles = [each.text for each in tree.iter(f"{SVG}title")]
    assert titles.count("waits 2 s for other stages to end") == 1


def test_blocks_are_where_and_as_wide_as_they_take_time() -> None:
    shown = made("1f1b", 2, 3)
    tree = ElementTree.fromstring(schedule_svg(shown))
    scale = 900 / shown.makespan
    for group, span in zip(blocks(tree), [span for spans in shown.spans for span in spans], strict=True):
        rectangle = group.find(f"{SVG}rect")
        assert rectangle is not None
        assert float(rectangle.attrib["x"]) == pytest.approx(LEFT + span.start * scale + 0.5, abs=0.02)
        assert float(rectangle.attrib["width"]) == pytest.approx((span.end - span.start) * scale - 1, abs=0.02)


def frame(rectangle: ElementTree.Element) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a rectangle."""
    x, y, width, height = (float(rectangle.attrib[name]) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "dual_pipe_v"])
def test_nothing_lies_on_anything_else(name: str) -> None:
    """Blocks lie in the row of their stage, whose name stands beside it, side by side; rows lie one below the other,
    with space between them, and all lies in the picture. Numbers stand in their blocks."""
    tree = ElementTree.fromstring(schedule_svg(made(name, 4, 9, message=0.25)))
    rows = [frame(each) for each in tree.iter(f"{SVG}rect") if each.get("class") == "row"]
    names = [each for each in tree.iter(f"{SVG}text") if (each.text or "").startswith("stage ")]
    assert [each.text for each in names] == [f"stage {stage}" for stage in range(4)]
    assert len(rows) == 4
    assert all(row[1] < float(text.attrib["y"]) < row[3] for row, text in zip(rows, names, strict=True))
    assert all(one[3] + 4 <= other[1] for one, other in pairwise(rows))
    assert rows[-1][3] + 20 <= float(tree.attrib["height"])
    assert rows[0][2] + 100 <= float(tree.attrib["width"])
    before: tuple[float, float] = (-1, 0)
    for group in blocks(tree):
        frames = [frame(each) for each in group.findall(f"{SVG}rect")]
        row = next(row for row in rows if row[1] <= frames[0][1] < row[3])
        assert frames[0][1] == row[1]
        assert frames[-1][3] == row[3]
        assert all(one[3] == other[1] for one, other in pairwise(frames))
        assert row[0] <= frames[0][0] < frames[0][2] <= row[2]
        assert before[0] != row[1] or before[1] < frames[0][0]
        before = row[1], frames[0][2]
        for text, (left, top, right, bottom) in zip(group.findall(f"{SVG}text"), frames, strict=True):
            half = 3.5 * len(text.text or "")
            assert left <= float(text.attrib["x"]) - half
            assert float(text.attrib["x"]) + half <= right
            assert top < float(text.attrib["y"]) < bottom


@pytest.mark.parametrize(
    ("unit", "labels"),
    [
        (1, ["0 s", "2 s", "4 s", "6 s", "8 s", "10 s", "12 s"]),
        (2.5e-3, ["0 s", "5 ms", "10 ms", "15 ms", "20 ms", "25 ms", "30 ms"]),
        (1e-6, ["0 s", "2 us", "4 us", "6 us", "8 us", "10 us", "12 us"]),
        (0.7, ["0 s", "1 s", "2 s", "3 s", "4 s", "5 s", "6 s", "7 s", "8 s"]),
    ],
)
def test_the_axis_has_round_times_at_their_places(unit: float, labels: list[str]) -> None:
    """A step takes 12 units."""
    schedule = named_schedule("1f1b", 2, 3)
    tree = ElementTree.fromstring(schedule_svg(timeline(schedule, equal_durations(schedule, unit, unit, unit))))
    ticks = [each for each in tree.iter(f"{SVG}text") if each.get("class") == "quiet end"]
    assert [each.text for each in ticks] == labels
    scale = {"s": 1, "ms": 1e-3, "us": 1e-6}
    for tick in ticks:
        number, _, name = (tick.text or "").partition(" ")
        time = float(number) * scale[name]
        assert float(tick.attrib["x"]) == pytest.approx(LEFT + time / (12 * unit) * 900, abs=0.02)


def test_numbers_that_do_not_fit_are_left_out() -> None:
    """Blocks of the picture's largest width, which many micro-batches share."""
    tree = ElementTree.fromstring(schedule_svg(made("1f1b", 2, 600)))
    groups = blocks(tree)
    assert len(groups) == 2 * 2 * 600
    assert not any(group.findall(f"{SVG}text") for group in groups)


def test_short_actions_widen_the_picture() -> None:
    """So that the shortest of them has its number."""
    schedule = named_schedule("1f1b", 2, 12)
    durations = equal_durations(schedule) | {(0, "F"): 0.25}
    tree = ElementTree.fromstring(schedule_svg(timeline(schedule, durations)))
    assert all(group.findall(f"{SVG}text") for group in blocks(tree))
    assert 2000 < float(tree.attrib["width"]) < 4000


def test_waits_are_hatched_and_told() -> None:
    tree = ElementTree.fromstring(schedule_svg(made("1f1b", 2, 3, message=0.5)))
    waits = [each for each in tree.iter(f"{SVG}rect") if each.get("fill") == "url(#wait)"][1:]  # behind the legend's
    titles = ["".join(each.itertext()) for each in waits]
    assert titles[0] == "waits 3 s for the gradient of chunk 1 of micro-batch 0"
    assert len(titles) == sum(
        span.awaited is not None for spans in made("1f1b", 2, 3, message=0.5).spans for span in spans[1:]
    )


def test_one_stage_never_waits() -> None:
    assert schedule_svg(made("gpipe", 1, 3)).count("url(#wait)") == 1  # the legend's


def test_idle_time_is_told_for_every_stage() -> None:
    text = schedule_svg(made("1f1b", 2, 3))
    assert text.count(">idle 25.0%, keeps ") == 2


def test_names_are_text() -> None:
    shown = made("1f1b", 2, 2)
    shown = replace(shown, schedule=replace(shown.schedule, name='<b a="&">'))
    tree = ElementTree.fromstring(schedule_svg(shown))
    assert tree.attrib["aria-label"].startswith('<b a="&">: 2 stages')


def test_large_pictures_stay_within_their_width() -> None:
    tree = ElementTree.fromstring(schedule_svg(made("zero_bubble_v", 8, 100)))
    assert float(tree.attrib["width"]) < WIDEST + 300


def test_numbers_can_be_read_on_every_colour() -> None:
    """WCAG 2 asks for a contrast of 4.5 of text and for 3 of graphics. Lighter blocks lie beside darker ones on light
    pages, and are told from the page by less."""
    assert contrast(WHITE, BLACK) == pytest.approx(21)
    for colour in COLOURS.values():
        assert contrast(colour, WHITE) >= READABLE
        assert contrast(colour, DARK_PAGE) >= 3
    for name in SCHEDULES:
        tree = ElementTree.fromstring(schedule_svg(made(name, 3, 6)))
        for group in blocks(tree):
            for rectangle, text in zip(group.findall(f"{SVG}rect"), group.findall(f"{SVG}text"), strict=True):
                code = rectangle.attrib["fill"]
                colour = int(code[1:3], 16), int(code[3:5], 16), int(code[5:7], 16)
                assert contrast(colour, WHITE if "on-dark" in text.attrib["class"] else BLACK) >= READABLE


def test_nothing_takes_no_time() -> None:
    schedule = named_schedule("gpipe", 2, 2)
    shown = timeline(schedule, equal_durations(schedule, 0, 0, 0))
    assert ElementTree.fromstring(schedule_svg(shown)).tag == f"{SVG}svg"
    assert schedule_text(shown).startswith("gpipe: 2 stages, 2 micro-batches, a step takes 0 s, idle 0.0%\n")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (12, "12 s"), (1.23456, "1.235 s"), (0.0123, "12.3 ms"), (4.5e-6, "4.5 us")]
)
def test_times(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
