"""What `benchmarks/pipelines/predicted.py` gives the timeline of a step: times of nodes, of simulated ranks here."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.pipelines.node_times import NodeTimes, Ran, graphs_of_folder
from benchmarks.pipelines.predicted import PREPARING, SCRIPT, Case, Found, Ratios, Step, read_run, undisturbed
from mspc.ir.builder import Builder
from mspc.ir.graph import WORK, Graph, Parameter
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.collective.stage_messages import ReceiveFromStage
from mspc.ops.nn.activation import Tanh
from mspc.ops.tensor.reshape import Reshape
from tests.serving import SERVED

CASE = Case((2, 4), 4, 16, 8, 5)
Runs = Callable[[str], tuple[list[Graph], Found]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """(programs, steps) of a run by a schedule."""

    @cache
    def run(schedule: str) -> tuple[list[Graph], Found]:
        folder = tmp_path_factory.mktemp(schedule)
        script = [str(SCRIPT), "--ranks", "2"]
        arguments = ["--", *CASE.arguments(folder, schedule)]
        timed = ["--simulate", "--profile", str(folder / "trace.json"), "--profile-steps", str(CASE.steps)]
        subprocess.run([*SERVED, "run", *script, *timed, *arguments], check=True, capture_output=True)
        subprocess.run([*SERVED, "compile", *script, "--out", str(folder / "out"), "--quiet", *arguments], check=True)
        return graphs_of_folder(folder / "out", 2), Found(read_run(CASE, folder))

    return run


def test_nodes_of_all_stages_are_timed(runs: Runs) -> None:
    graphs, found = runs("1f1b")
    assert len(found.steps) == CASE.steps - 2
    assert all(one.behind is not other.before for one, other in pairwise(found.steps))
    assert found.steps[0].behind is found.steps[2].before
    times = NodeTimes.of(graphs, found.steps[0].before, [True])
    assert times.message_bytes() == {4 * 16 * 8, 4}  # rows between layers, and the loss
    timeline = times.timeline(lambda nbytes: 0.0)
    assert timeline.schedule.name == "1f1b"
    works = [sum(times.seconds[node] for node in graph.nodes if WORK in node.attrs) for graph in times.graphs]
    assert all(0 < work <= timeline.busy(stage) for stage, work in enumerate(works))
    assert max(works) <= timeline.makespan <= sum(map(timeline.busy, range(2)))
    slow = times.timeline(lambda nbytes: 1.0)
    assert 2 <= slow.makespan - timeline.makespan <= 8


def test_a_step_is_predicted_by_those_before_and_behind_it(runs: Runs) -> None:
    graphs, found = runs("1f1b")
    ratios: list[float] = []
    for step in found.steps:
        lines = [NodeTimes.of(graphs, each, [True]).timeline(lambda nbytes: 0.0) for each in (step.before, step.behind)]
        assert [line.makespan for line in step.predicted(graphs, lambda nbytes: 0.0)] == [a.makespan for a in lines]
        ratios.append(sum(line.makespan for line in lines) / 2 / step.seconds)
    assert found.ratios(graphs, lambda nbytes: 0.0) == Ratios.of(ratios)
    assert 0 < Ratios.of(ratios).own == sorted(ratios)[1]


def test_what_a_median_may_be_off_by_itself_falls_with_the_steps() -> None:
    few, many = Ratios.of([0.9, 1.0, 1.1, 1.2]), Ratios.of([0.9, 1.0, 1.1, 1.2] * 100)
    assert few.own == many.own == pytest.approx(1.05)
    assert 0 < many.error < few.error / 9
    assert Ratios.of([1.25]) == Ratios(1.25, 0.0)


def test_calm_steps_count_where_there_are_some() -> None:
    steps = [Step(1.0, number % 2 == 0, [], []) for number in range(10)]
    assert Found(steps).counted == steps[::2]
    assert Found(steps[:9]).counted == steps[:9:2]
    assert Found(steps[:7]).counted == steps[:7]


def test_a_trace_has_the_nodes_of_the_program(runs: Runs) -> None:
    graphs, found = runs("1f1b")
    for step in found.steps:
        for graph, own in zip(graphs, step.before, strict=True):
            ran = {each.index for each in own[0]}
            assert {n for n, node in enumerate(graph.nodes) if not node.op.is_view} <= ran <= {*range(len(graph.nodes))}


def test_a_node_takes_what_lies_between_its_begin_and_the_next_ones() -> None:
    """What waits for a message is not counted, and views belong to the node before them."""
    graph = Graph("main")
    b = Builder(graph)
    x = Parameter("x", TensorType(FLOAT32, (4,)))
    graph.parameters.append(x)
    first = b.emit(Tanh(), x)
    b.emit(Reshape((2, 2)), first)
    b.emit(ReceiveFromStage(1, -1, 0, (4,), FLOAT32, 0))
    last = b.emit(Tanh(), first)
    step = [Ran(0, 0.0, 1.0), Ran(1, 1.5, 0.25), Ran(2, 2.0, 5.0), Ran(3, 7.5, 1.0)]
    times = NodeTimes.of([graph], [[step, [Ran(0, 0.0, 9.0)]]], [True, False])
    assert times.seconds == {first: 2.0, last: 1.0}


def test_times_of_one_schedule_are_those_of_another_with_the_same_actions(runs: Runs) -> None:
    times = {
        name: NodeTimes.of(graphs, found.steps[0].before, [True])
        for name in ("1f1b", "gpipe", "zero_bubble_h1")
        for graphs, found in [runs(name)]
    }
    assert times["1f1b"].actions() == times["gpipe"].actions() != times["zero_bubble_h1"].actions()
    made = times["1f1b"].timeline(lambda nbytes: 0.0, times["gpipe"].graphs[0].attrs)
    assert made.schedule.name == "gpipe"
    assert made.busy(0) == pytest.approx(times["1f1b"].timeline(lambda nbytes: 0.0).busy(0))


@pytest.mark.parametrize("schedule", ["interleaved", "zero_bubble_v", "dual_pipe_v"])
def test_stages_of_two_chunks_have_as_many_layers(schedule: str, tmp_path: Path) -> None:
    assert CASE.arguments(tmp_path, schedule)[1:3] == [schedule, "1,2"]
    assert CASE.arguments(tmp_path, "gpipe")[1:3] == ["gpipe", "2,4"]
    assert CASE.arguments(tmp_path, "gpipe")[-1] == str(PREPARING + CASE.steps)


def test_steps_count_in_which_every_rank_has_its_core() -> None:
    """Begin, end and time with a core, of two ranks and three steps."""
    one = [(0.0, 1.0, 1.0), (2.0, 3.0, 0.5), (4.0, 6.0, 1.99)]
    other = [(0.0, 1.0, 0.97), (2.0, 3.0, 1.0), (4.0, 6.0, 1.2)]
    assert undisturbed(np.array([one, other])) == [True, False, False]
