"""Schedules have every action once, in an order that runs to its end, for any numbers; names that are none are told."""

from __future__ import annotations

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.passes.lib.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    SCHEDULES,
    THERE_AND_BACK,
    WEIGHT_GRADIENT,
    WITH_SPLIT_GRADIENTS,
    Schedule,
    check_name,
    groups_of,
    named_schedule,
)  # fmt: skip  # fmt: skip
from mspc.passes.lib.timeline import check_schedule

STAGES = (1, 2, 3, 4, 8)
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
        for stages in STAGES
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
