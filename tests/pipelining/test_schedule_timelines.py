"""Idle time and memory of schedules are those of their papers' formulas, for equal stages."""

from __future__ import annotations

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.passes.lib.schedules import FORWARD, Action, Overlapped, Schedule, named_schedule
from mspc.passes.lib.timeline import ScheduleTimeline, equal_durations, timeline

STAGES = (2, 3, 4, 8)
TIMES = [(1, 1, 1), (2, 2, 2), (3, 4, 2), (5, 5, 1), (2, 3, 2)]
"""Of a forward, a gradient for inputs and a gradient for weights of one chunk."""


def of_equal_stages(
    schedule: Schedule, times: tuple[int, int, int] = (1, 1, 1), overlap: float = 0
) -> ScheduleTimeline:
    return timeline(schedule, equal_durations(schedule, *times), overlap=overlap)


def idle(made: ScheduleTimeline, *, postponed: bool = False) -> set[float]:
    """The idle times of all stages."""
    return {made.idle(stage, postponed=postponed) for stage in range(made.schedule.stages)}


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_idle_time_of_whole_stages(name: str, stages: int, times: tuple[int, int, int]) -> None:
    """(p - 1) (F + B)."""
    for micro_batches in range(stages, 17):
        made = of_equal_stages(named_schedule(name, stages, micro_batches), times)
        assert idle(made) == {(stages - 1) * sum(times)}


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("name", ["gpipe", "interleaved"])
def test_idle_time_of_several_chunks(name: str, stages: int, chunks: int, times: tuple[int, int, int]) -> None:
    """(p - 1) (F + B) / v, where F and B are of all chunks of a stage: here they are of one. For numbers of
    micro-batches that the stages do not divide, too."""
    for micro_batches in range(stages, 17):
        made = of_equal_stages(named_schedule(name, stages, micro_batches, chunks), times)
        assert idle(made) == {(stages - 1) * sum(times)}


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("stages", STAGES)
def test_idle_time_of_zero_bubble_h1(stages: int, times: tuple[int, int, int]) -> None:
    """(p - 1) (F + I - W), a third of 1F1B's where F = I = W."""
    forward, input_gradient, weight_gradient = times
    for micro_batches in range(stages, 17):
        made = of_equal_stages(named_schedule("zero_bubble_h1", stages, micro_batches), times)
        assert idle(made) == {(stages - 1) * (forward + input_gradient - weight_gradient)}


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("name", ["zero_bubble_2p", "zero_bubble_v"])
def test_no_idle_time(name: str, stages: int) -> None:
    """For m of 2 p - 1 and more: with fewer, a stage has not as many forwards as the first gradient takes time."""
    for micro_batches in range(2 * stages - 1, 2 * stages + 17):
        assert idle(of_equal_stages(named_schedule(name, stages, micro_batches)), postponed=True) == {0}
    for micro_batches in range(1, stages):
        assert max(idle(of_equal_stages(named_schedule(name, stages, micro_batches)), postponed=True)) > 0


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("stages", STAGES)
def test_idle_time_of_dual_pipe_v(stages: int, times: tuple[int, int, int]) -> None:
    """(p - 1) (F&B + B - 3 W), for 2 p - 1 micro-batches and more."""
    forward, backward, weight_gradient = times[0], times[1] + times[2], times[2]
    for micro_batches in range(2 * stages - 1, 2 * stages + 9):
        made = of_equal_stages(named_schedule("dual_pipe_v", stages, micro_batches), times)
        assert idle(made) == {(stages - 1) * (forward + backward + backward - 3 * weight_gradient)}


@pytest.mark.parametrize("overlap", [0.25, 0.5, 1])
@pytest.mark.parametrize("stages", STAGES)
def test_idle_time_of_dual_pipe_v_with_overlap(stages: int, overlap: float) -> None:
    """The same formula with what pairs really take, for the last stage but one. Every stage has a pair more than the
    one before it, so it works for that much less of a step that is as long for all."""
    for micro_batches in range(2 * stages - 1, 2 * stages + 9):
        made = of_equal_stages(named_schedule("dual_pipe_v", stages, micro_batches), overlap=overlap)
        last_but_one = (stages - 1) * ((3 - overlap) + 2 - 3)
        assert [made.idle(stage) for stage in range(stages)] == [
            last_but_one + (stage - (stages - 2)) * overlap for stage in range(stages)
        ]


@pytest.mark.parametrize("stages", STAGES)
def test_memory_is_within_its_bound(stages: int) -> None:
    """In micro-batches of one chunk. The bounds are reached with so many micro-batches."""
    bounds = {
        "1f1b": [stages - stage for stage in range(stages)],
        "zero_bubble_h1": [stages] * stages,
        "zero_bubble_2p": [2 * stages - 1] * stages,
        "zero_bubble_v": [2 * stages] * stages,
        "dual_pipe_v": [2 * stages + 1] * stages,
    }
    for name, bound in bounds.items():
        for micro_batches in range(1, 17):
            made = of_equal_stages(named_schedule(name, stages, micro_batches))
            kept = [made.kept(stage) for stage in range(stages)]
            assert all(each <= most for each, most in zip(kept, bound, strict=True))
            assert kept == bound or micro_batches <= 2 * stages


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_memory_of_rounds(stages: int, chunks: int) -> None:
    """GPipe keeps all; interleaved 1F1B p (1 + (p - 1) / (p v)) of a stage, where p divides m."""
    for micro_batches in range(stages, 17, stages):
        made = of_equal_stages(named_schedule("gpipe", stages, micro_batches, chunks))
        assert {made.kept(stage) for stage in range(stages)} == {micro_batches * chunks}
        made = of_equal_stages(named_schedule("interleaved", stages, micro_batches, chunks))
        bound = (chunks - 1) * stages + 2 * stages - 1
        assert made.kept(0) == min(bound, micro_batches * chunks)
        assert made.kept(0) <= stages * chunks * (1 + (stages - 1) / (stages * chunks))


def test_bytes_are_those_of_chunks() -> None:
    made = of_equal_stages(named_schedule("zero_bubble_v", 2, 4))
    assert made.kept_bytes(0, [10, 0, 0, 1]) <= 4 * 10
    assert made.kept_bytes(1, [0, 5, 5, 0]) == 5 * made.kept(1)


def test_messages_take_time() -> None:
    """The first micro-batch of two stages: F, a message, F, B, a message, B."""
    schedule = named_schedule("1f1b", 2, 1)
    made = timeline(schedule, equal_durations(schedule), message=0.5)
    assert [(span.start, span.end) for span in made.spans[0]] == [(0, 1), (5, 7)]
    assert [(span.start, span.end) for span in made.spans[1]] == [(1.5, 2.5), (2.5, 4.5)]
    assert made.makespan == 7
    assert made.idle_share(0) == pytest.approx(4 / 7)


def test_messages_take_time_by_their_chunks() -> None:
    """Of three stages the border behind chunk 0 is slow forward, the one behind chunk 1 backward."""
    schedule = named_schedule("gpipe", 3, 1)
    made = timeline(schedule, equal_durations(schedule), {(0, 1): 10, (2, 1): 20})
    assert [span.start for span in made.spans[1]] == [11, 11 + 4 + 20]
    assert [span.start for span in made.spans[2]] == [12, 13]
    assert made.spans[0][1].start == 37
    alike = {(chunk, chunk + each): 0.5 for chunk in range(3) for each in (1, -1)}
    assert timeline(schedule, equal_durations(schedule), alike) == timeline(schedule, equal_durations(schedule), 0.5)


def test_updates_follow_the_last_action() -> None:
    """They count as work; those that need something of another stage wait for its last action."""
    schedule = named_schedule("1f1b", 2, 1)
    made = timeline(schedule, equal_durations(schedule), behind={0: 3, 1: 4})
    assert [(tail.start, tail.end) for tail in made.tails.values()] == [(6, 9), (4, 8)]
    assert (made.makespan, made.period, made.busy(0), made.idle(1)) == (9, 9, 6, 9 - 3 - 4)
    made = timeline(schedule, equal_durations(schedule), behind={0: 3, 1: 4}, awaited={1: {(0, None)}})
    assert [(tail.start, tail.end) for tail in made.tails.values()] == [(6, 9), (6, 10)]
    assert (made.makespan, made.end(0), made.end(1)) == (10, 9, 10)


def test_chunks_of_one_stage_send_no_messages() -> None:
    """The bottom of the V."""
    schedule = named_schedule("zero_bubble_v", 1, 1)
    made = timeline(schedule, equal_durations(schedule), message=5)
    assert made.makespan == 6


@pytest.mark.parametrize(("overlap", "pair"), [(0, 9), (0.5, 8), (1, 7)])
def test_overlap_saves_of_the_shorter_one(overlap: float, pair: float) -> None:
    """A forward of 2 and a backward of 7."""
    made = of_equal_stages(named_schedule("dual_pipe_v", 2, 4), (2, 3, 4), overlap)
    pairs = [span for spans in made.spans for span in spans if isinstance(span.entry, Overlapped)]
    assert {span.end - span.start for span in pairs} == {pair}
    assert len(pairs) > 2


def test_uneven_stages() -> None:
    """The slow stage works nearly always: 8 micro-batches of 3 + 6, a forward before them, a backward behind."""
    schedule = named_schedule("1f1b", 2, 8)
    durations = equal_durations(schedule) | {(1, "F"): 3, (1, "B"): 6}
    made = timeline(schedule, durations)
    assert made.makespan == 1 + 8 * 9 + 2
    assert made.idle(1) == 3
    assert made.idle(0) == made.makespan - 8 * 3


def test_what_does_not_run_has_no_times() -> None:
    schedule = Schedule("mine", 1, (0, 1), ((), (Action(FORWARD, 1, 0),)))
    with pytest.raises(MspcError, match="is missing"):
        timeline(schedule, equal_durations(schedule))
