"""Tables of schedules are read as they were written; what is wrong in them is told with line, column and remedy."""

import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mspc.ir.diagnostics import Location, MspcError
from mspc.ir.graph import STAGES
from mspc.passes.lib import schedule_tables
from mspc.passes.lib.schedule_tables import ScheduleTable, read_table, text_of_table, write_table
from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    SCHEDULES,
    THERE_AND_BACK,
    WEIGHT_GRADIENT,
    WITH_SPLIT_GRADIENTS,
    Action,
    Schedule,
    check_name,
    groups_of,
    named_schedule,
)  # fmt: skip  # fmt: skip
from mspc.passes.lib.stage_placement import SCHEDULER, TABLE, placement_of
from mspc.passes.lib.timeline import check_schedule, equal_durations, require_schedule, timeline
from tests.errors import error_of
from tests.random_schedules import SCHEDULE_FAULTS, exchanged, random_schedule, runs
from tests.shares import share_of


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_read_as_it_was_written(name: str) -> None:
    for stages, micro_batches in ((1, 1), (2, 3), (4, 9)):
        schedule = named_schedule(name, stages, micro_batches)
        read = read_table(write_table(schedule), "mine.csv").schedule
        assert (read.micro_batches, read.placement, read.entries) == (
            schedule.micro_batches, schedule.placement, schedule.entries,
        )  # fmt: skip


def read_table_file(path: Path) -> ScheduleTable:
    return read_table(text_of_table(path), path.name)


def test_spaces_and_empty_cells_are_nothing() -> None:
    made = read_table("0F0, ,0B0 ,\r\n,  1F0,1B0\r\n\r\n", "mine.csv")
    assert write_table(made.schedule) == "0F0,0B0\n1F0,1B0\n"
    assert [str(place) for places in made.lines for place in places] == [
        "mine.csv:1:1", "mine.csv:1:7", "mine.csv:2:4", "mine.csv:2:8",
    ]  # fmt: skip
    assert check_schedule(made.schedule) == []


def test_a_pair_may_begin_with_the_backward() -> None:
    text = "0F0,1F0,0F1,(1B0;0F2)OVERLAP_F_B,0B0,1F1,1B1,0B1,1F2,1B2,0B2\n"
    schedule = read_table(text, "mine.csv").schedule
    assert write_table(schedule) == "0F0,1F0,0F1,0F2,1B0,0B0,1F1,1B1,0B1,1F2,1B2,0B2\n"
    assert check_schedule(schedule) == []


def test_a_wrong_cell_is_shown() -> None:
    with pytest.raises(ValueError, match="is no action") as caught:
        read_table("0F0,0b0\n1F0,1B0\n", "mine.csv")
    assert str(caught.value) == (
        "mine.csv:1:5: error: '0b0' is no action\n"
        "    0F0,0b0\n"
        "        ^^^\n"
        "  note: did you mean '0B0'?\n"
        "  note: an action is chunk, kind and micro-batch, such as '0F0'; kinds are F (forward), B (backward), "
        "I (gradient for inputs), W (gradient for weights)"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0\nF0,B0\n", "did you mean '1F0'"),
        ("0F0,0SEND_F0,0B0\n", "a table has no messages"),
        ("0F0,0B\n", "such as '0F0'"),
        ("0F0;0B0\n", "'0F0;0B0' is no action"),
        ("0F0,(0F1;0W0)OVERLAP_F_B\n", "not a forward and a gradient for weights"),
        ("0F0,(0F1;0Q0)OVERLAP_F_B\n", "'0Q0' is no action"),
        ("0F0,0B99999999999\n", "'0B99999999999' is no action"),
        ("", "mine.csv:1: error: the table of a schedule is empty"),
        ("\n\n", "is empty"),
        ("0F0,0B0\n , \n1F0,1B0\n", "mine.csv:2: error: stage 1 has no action"),
        ("0F0,0B0\n1F0,0B1,1B0\n", "0B1 is on stage 1, but chunk 0 is on stage 0\n.*\n.*\n.*stage 0, at mine.csv:1:1"),
        ("0F0,0B0\n2F0,2B0\n", "no stage has an action of chunk 1, but there is one of chunk 2"),
        ("0F0,0B0,0F5,0B5\n", "no stage has an action of micro-batch 1, but there is one of micro-batch 5"),
        ("0F0,0B0,0F999999999,0B999999999\n", "action of micro-batch 1, but"),
        ("999999999F0,999999999B0\n", "no stage has an action of chunk 0, but"),
    ],
)
def test_what_is_wrong_is_told(text: str, message: str) -> None:
    with pytest.raises(MspcError, match=message):
        read_table(text, "mine.csv")


def test_a_cell_is_not_meant_to_be_itself() -> None:
    error = error_of(read_table, "0F0,0B99999999999\n", "mine.csv")
    assert [note.split(",")[0] for note in error.notes] == ["an action is chunk"]


@pytest.mark.parametrize(("stages", "place"), [(3, "2:1: error: this is the last line, of stage 1"),
                                               (1, "2:1: error: this line is of stage 1")])  # fmt: skip
def test_a_table_has_a_line_for_every_stage(stages: int, place: str) -> None:
    attrs = {STAGES: stages, SCHEDULER: "mine.csv", TABLE: "0F0,0B0\n1F0,1B0\n"}
    with pytest.raises(MspcError, match=f"mine.csv:{place}, and pipeline_stages is {stages}"):
        placement_of(attrs)


def test_all_wrong_cells_are_told_together() -> None:
    with pytest.raises(MspcError, match=r"(?s)1:5: .*2:1: .*2 errors"):
        read_table("0F0,0X0\n1Y0,1B0\n", "mine.csv")


def test_what_is_wrong_with_the_order_is_told_at_its_line() -> None:
    made = read_table("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "mine.csv")
    assert str(error_of(require_schedule, made.schedule, made.lines)) == (
        "mine.csv:1:5: error: stages 0 and 1 wait for each other\n"
        "    0F0,0B0,0F1,0B1\n"
        "        ^^^\n"
        "  note: stage 0 receives 'gradient of chunk 1' of micro-batch 0 from stage 1, and stage 1 sends it later, at "
        "mine.csv:1:5\n"
        "  note: stage 1 receives 'activation of chunk 0' of micro-batch 1 from stage 0, and stage 0 sends it later, "
        "at mine.csv:2:1"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0,0B0\n1F0,1B0\n", "1:9: error: stage 0: .*twice\n.*\n.*\n.*note: 0B0 on stage 0, at mine.csv:1:5"),
        ("0F0\n1F0,1B0\n", r"stage 0: the backward of micro-batch 0 on chunk 0 \(0B0\) is missing, or both gradients"),
        ("0F0,0I0\n1F0,1B0\n", r"1:5: error: stage 0: .* for weights .* is missing\n(.*\n)*.*0I0 .* mine.csv:1:5"),
        ("0F0,0B0,0W0\n1F0,1B0\n", "0W0.* is there beside the backward"),
        ("0F0,0B0\n1B0,1F0\n", "2:1: error: stage 1 runs 1B0 before 'activation of chunk 1' .*\n.*\n.*\n.*2:5"),
        ("0F0,0W0,0I0\n1F0,1B0\n", "1:5: error: stage 0 runs 0W0 before 'gradient of chunk 0' of micro-batch 0"),
    ],
)
def test_wrong_schedules_are_refused(text: str, message: str) -> None:
    made = read_table(text, "mine.csv")
    with pytest.raises(MspcError, match=message):
        require_schedule(made.schedule, made.lines)


def test_a_number_of_micro_batches_that_is_given() -> None:
    made = read_table("0F0,0B0,0F2,0B2\n", "mine.csv", 2)
    error = error_of(require_schedule, made.schedule, made.lines)
    assert "there are micro-batches 0 to 1" in str(error)
    assert "the forward of micro-batch 1 on chunk 0 (0F1) is missing" in str(error)


def test_large_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_tables, "LARGEST", 7)
    (tmp_path / "mine.csv").write_text("0F0,0B0\n")
    with pytest.raises(MspcError, match="has 8 bytes; a file of text may have 7"):
        read_table_file(tmp_path / "mine.csv")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    with pytest.raises(MspcError, match="there is no schedule"):
        read_table_file(path)
    path.write_bytes(b"\xef\xbb\xbf0F0,0B0\r\n")
    assert write_table(read_table_file(path).schedule) == "0F0,0B0\n"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(MspcError, match="no text in UTF-8"):
        read_table_file(path)
    with pytest.raises(MspcError, match="cannot read "):
        read_table_file(tmp_path)


@pytest.fixture(scope="module")
def pytorch() -> Any:
    """PyTorch's schedules: every process that collects tests would take two seconds to load them."""
    return pytest.importorskip("torch.distributed.pipelining.schedules")


@pytest.mark.share(3)
@pytest.mark.parametrize("name", SCHEDULES)
def test_cells_mean_the_same(name: str, pytorch: Any) -> None:
    schedule = named_schedule(name, 4, 8)
    rows = [row.split(",") for row in write_table(schedule).splitlines()]
    read = [[pytorch._Action.from_str(cell) for cell in row] for row in rows]
    assert read_table("\n".join(",".join(map(str, row)) for row in read), name).schedule == schedule
    for actions, entries in zip(read, schedule.entries, strict=True):
        for action, entry in zip(actions, entries, strict=True):
            parts = action.sub_actions or (action,)
            ours = (entry.forward, entry.backward) if action.sub_actions else (entry,)
            assert [(part.stage_index, part.computation_type.value, part.microbatch_index) for part in parts] == [
                (part.chunk, part.kind, part.micro_batch) for part in ours
            ]


SCHEDULE_STAGES = (1, 2, 3, 4, 8)
MICRO_BATCHES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17)


def chunks_of(name: str) -> tuple[int, ...]:
    """Numbers of chunks a stage that a schedule may have."""
    if name in THERE_AND_BACK:
        return (2,)
    return (1, 2, 3) if name in ("gpipe", "interleaved") else (1,)


def every_schedule(name: str) -> list[Schedule]:
    """A schedule for several numbers of stages, of chunks and of micro-batches."""
    return [
        named_schedule(name, stages, micro_batches, chunks)
        for stages in SCHEDULE_STAGES
        for chunks in chunks_of(name)
        for micro_batches in MICRO_BATCHES
    ]


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_run_to_their_end(name: str) -> None:
    """With fewer micro-batches than stages, too, and with numbers that the stages do not divide."""
    for schedule in every_schedule(name):
        assert check_schedule(schedule) == []


@pytest.mark.parametrize("name", SCHEDULES)
def test_gradients_are_summed_in_one_order(name: str) -> None:
    """So that all schedules give the same sums, bit for bit."""
    for schedule in every_schedule(name):
        order: dict[int, list[int]] = {}
        for entries in schedule.entries:
            for action in entries:
                if action.kind in (BACKWARD, WEIGHT_GRADIENT):
                    order.setdefault(action.chunk, []).append(action.micro_batch)
        assert order == {chunk: list(range(schedule.micro_batches)) for chunk in range(schedule.chunks)}


@pytest.mark.parametrize("name", SCHEDULES)
def test_kinds_are_those_that_are_said(name: str) -> None:
    kinds = {action.kind for entries in named_schedule(name, 4, 8).entries for action in entries}
    assert (INPUT_GRADIENT in kinds) == (WEIGHT_GRADIENT in kinds) == (name in WITH_SPLIT_GRADIENTS)
    assert FORWARD in kinds


def test_one_forward_one_backward_is_that_of_the_paper() -> None:
    shown = [" ".join(map(str, entries)) for entries in named_schedule("1f1b", 2, 3).entries]
    assert shown == ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"]


def test_interleaved_passes_groups_through_all_chunks() -> None:
    """The order of forwards on stage 0 of figure 4 in arXiv 2104.04473: 4 stages, 8 micro-batches, 2 chunks."""
    first = named_schedule("1f1b", 4, 8, interleave=True).entries[0]
    forward = [str(action) for action in first if action.kind == FORWARD]
    assert forward[:8] == ["0F0", "0F1", "0F2", "0F3", "4F0", "4F1", "4F2", "4F3"]
    assert [str(action) for action in first[10:14]] == ["0F6", "4B0", "0F7", "4B1"]


@pytest.mark.parametrize(
    ("micro_batches", "stages", "sizes"), [(8, 4, [4, 4]), (9, 4, [5, 4]), (7, 4, [7]), (3, 4, [3]), (11, 3, [4, 4, 3])]
)
def test_groups_are_of_nearly_one_size(micro_batches: int, stages: int, sizes: list[int]) -> None:
    groups = groups_of(micro_batches, stages)
    assert [len(group) for group in groups] == sizes
    assert [number for group in groups for number in group] == list(range(micro_batches))


def test_chunks_there_and_back() -> None:
    assert named_schedule("zero_bubble_v", 3, 3).placement == (0, 1, 2, 2, 1, 0)
    assert named_schedule("interleaved", 3, 3, 2).placement == (0, 1, 2, 0, 1, 2)
    assert named_schedule("zero_bubble_v", 3, 3).chunks_of(1) == [1, 4]


@pytest.mark.parametrize(
    ("name", "interleave", "chunks"),
    [("gpipe", False, 1), ("gpipe", True, 2), ("1f1b", False, 1), ("1f1b", True, 2), ("zero_bubble_v", True, 2),
     ("zero_bubble_v", False, 2)],
)  # fmt: skip
def test_names_of_mindspore(name: str, interleave: bool, chunks: int) -> None:
    schedule = named_schedule(name, 2, 4, interleave=interleave)
    assert schedule.chunks == 2 * chunks
    assert schedule.name == ("interleaved" if (name, interleave) == ("1f1b", True) else name)


@pytest.mark.parametrize("name", ["seqpipe", "seqvpp", "seqsmartvpp"])
def test_cuts_along_the_sequence_are_refused(name: str) -> None:
    with pytest.raises(MspcError, match="cuts micro-batches along the sequence"):
        check_name(name)


def test_names_that_there_are_not() -> None:
    with pytest.raises(MspcError, match=r"no schedule 'zero_buble_v'\n.*did you mean 'zero_bubble_v'"):
        named_schedule("zero_buble_v", 2, 4)


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("1f1b", (2, 4, 2), "'1f1b' has 1 chunk a stage, not 2\n.*'interleaved' is 1F1B with several"),
        ("zero_bubble_v", (2, 4, 1), "'zero_bubble_v' has 2 chunks a stage, not 1"),
        ("gpipe", (0, 4, 1), "at least one of stages, not for 0"),
        ("zero_bubble_v", (2, 0, 2), "at least one of micro-batches, not for 0"),
        ("interleaved", (2, 4, 0), "at least one of chunks a stage, not for 0"),
    ],
)
def test_numbers_that_a_schedule_is_not_for(name: str, numbers: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        named_schedule(name, *numbers)


DRAWN = share_of(800)
MISSING, DOUBLED = "is missing", "is there (twice|beside)"
UNKNOWN, WRONG_STAGE = "no kind|is of no", "but its chunk is on"
TOO_EARLY, CYCLE = "^stage .* before .* is there$", "^stages .* wait for each other$"
FOUND = {
    "drop_action": (MISSING,),
    "double_action": (DOUBLED, WRONG_STAGE),
    "exchange_actions": (TOO_EARLY, CYCLE),
    "exchange_over_stages": (TOO_EARLY, CYCLE),
    "change_micro_batch": (UNKNOWN, DOUBLED, MISSING),
    "change_chunk": (UNKNOWN, WRONG_STAGE, DOUBLED, MISSING),
    "change_kind": (DOUBLED, MISSING),
}
"""Patterns of the messages of each fault, one of which there must be."""


def test_right_schedules_are_not_refused() -> None:
    """They have times, too, and are read as they were written."""
    for number in range(DRAWN):
        schedule = random_schedule(Random(number))
        assert check_schedule(schedule) == [], number
        made = timeline(schedule, equal_durations(schedule), message=0.5)
        assert [len(spans) for spans in made.spans] == [len(entries) for entries in schedule.entries]
        assert read_table(write_table(schedule), "random").schedule.entries == schedule.entries


@pytest.mark.parametrize("fault", SCHEDULE_FAULTS, ids=lambda fault: fault.__name__)
def test_faults_of_schedules_are_refused(fault: Callable[[Random, Schedule], Schedule]) -> None:
    for number in range(DRAWN):
        draw = Random(number)
        found = check_schedule(fault(draw, random_schedule(draw)))
        assert any(re.search("|".join(FOUND[fault.__name__]), error.message) for error in found), number


def test_exchanges_are_refused_where_the_judge_says_so() -> None:
    told = {True: 0, False: 0}
    for number in range(DRAWN):
        draw = Random(number)
        schedule = exchanged(draw, random_schedule(draw))
        assert (check_schedule(schedule) == []) == runs(schedule), number
        told[runs(schedule)] += 1
    assert min(told.values()) > DRAWN // 20


def test_stages_that_wait_for_each_other_are_among_them() -> None:
    """At least two actions can be exchanged so in one of five schedules."""
    fault = next(fault for fault in SCHEDULE_FAULTS if fault.__name__ == "exchange_over_stages")
    circles = 0
    for number in range(DRAWN):
        draw = Random(number)
        found = check_schedule(fault(draw, random_schedule(draw)))
        circles += bool(found) and all(re.search(CYCLE, error.message) for error in found)
    assert circles > DRAWN // 5


def three_stages(*orders: str) -> Schedule:
    """Return a schedule of one micro-batch from the texts of its stages' actions, such as `0F 0B`."""
    entries = tuple(tuple(Action(each[1], int(each[0]), 0) for each in order.split()) for order in orders)
    return Schedule("mine", 1, (0, 1, 2), entries)


def test_stages_of_a_circle_are_named() -> None:
    """The stages 1 and 2 wait for each other; stage 0, which waits for them, is not in the circle."""
    schedule = three_stages("0F 0B", "1B 1F", "2F 2B")
    places = [[Location("mine.csv", stage) for _ in order] for stage, order in enumerate(schedule.entries)]
    early, circle = check_schedule(schedule, places)
    assert str(early) == (
        "mine.csv:1: error: stage 1 runs 1B0 before 'activation of chunk 1' of micro-batch 0 is there\n"
        "  note: stage 1 runs 1F0, at mine.csv:1"
    )
    assert str(circle) == (
        "mine.csv:1: error: stages 1 and 2 wait for each other\n"
        "  note: stage 1 receives 'gradient of chunk 2' of micro-batch 0 from stage 2, and stage 2 sends it later, at "
        "mine.csv:1\n"
        "  note: stage 2 receives 'activation of chunk 1' of micro-batch 0 from stage 1, and stage 1 sends it later, "
        "at mine.csv:2"
    )
