"""Tables of schedules are read as they were written; what is wrong in them is told with line, column and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import STAGES
from mspc.passes.lib import schedule_tables
from mspc.passes.lib.schedule_tables import ScheduleTable, read_table, text_of_table, write_table
from mspc.passes.lib.schedules import SCHEDULES, named_schedule
from mspc.passes.lib.stage_placement import SCHEDULER, TABLE, placement_of
from mspc.passes.lib.timeline import check_schedule, require_schedule


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
    with pytest.raises(MspcError) as caught:
        read_table("0F0,0B99999999999\n", "mine.csv")
    assert [note.split(",")[0] for note in caught.value.notes] == ["an action is chunk"]


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
    with pytest.raises(MspcError) as caught:
        require_schedule(made.schedule, made.lines)
    assert str(caught.value) == (
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
    with pytest.raises(MspcError) as caught:
        require_schedule(made.schedule, made.lines)
    assert "there are micro-batches 0 to 1" in str(caught.value)
    assert "the forward of micro-batch 1 on chunk 0 (0F1) is missing" in str(caught.value)


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
