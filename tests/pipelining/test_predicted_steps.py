"""What `benchmarks/pipelines/predicted.py` gives the timeline of a step: times of nodes that ran in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.pipelines.node_times import NodeTimes, Ran, graphs_of, steps_of, steps_of_trace
from benchmarks.pipelines.predicted import Case, simulated, undisturbed
from mspc.ir.builder import Builder
from mspc.ir.graph import WORK, Graph, Parameter
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.collective.stage_messages import ReceiveFromStage
from mspc.ops.nn.activation import Tanh
from mspc.ops.tensor.reshape import Reshape


def test_nodes_of_all_stages_are_timed_in_one_process(tmp_path: Path) -> None:
    case = Case((2, 4), 4, 16, 8, 3)
    gathered, counted = simulated(case, "1f1b", tmp_path)
    assert len(counted) == 3
    graphs = graphs_of(gathered, 2)
    times = NodeTimes.of(graphs, steps_of(gathered, graphs), [True] * 3)
    assert times.message_bytes() == {4 * 16 * 8, 4}  # rows between layers, and the loss
    timeline = times.timeline(lambda nbytes: 0.0)
    assert timeline.schedule.name == "1f1b"
    works = [
        sum(times.seconds[node] for node in graph.nodes if WORK in node.attrs) for graph in times.graphs
    ]
    assert all(0 < work <= timeline.busy(stage) for stage, work in enumerate(works))
    assert max(works) <= timeline.makespan <= sum(map(timeline.busy, range(2)))
    slow = times.timeline(lambda nbytes: 1.0)
    assert 2 <= slow.makespan - timeline.makespan <= 8


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


def test_a_trace_has_the_nodes_of_every_rank(tmp_path: Path) -> None:
    case = Case((2, 4), 4, 16, 8, 3)
    gathered, _ = simulated(case, "1f1b", tmp_path)
    graphs = graphs_of(gathered, 2)
    own = steps_of(gathered, graphs)
    read = steps_of_trace(tmp_path / "trace.json", 2)
    for ours, theirs in zip(own, read, strict=True):
        assert [[ran.index for ran in step] for step in ours] == [[ran.index for ran in step] for step in theirs]
        np.testing.assert_allclose([r.seconds for r in theirs[0]], [r.seconds for r in ours[0]], atol=1e-6)


def test_times_of_one_schedule_are_those_of_another_with_the_same_actions(tmp_path: Path) -> None:
    case = Case((2, 4), 4, 16, 8, 3)
    times = {}
    for schedule in ("1f1b", "gpipe", "zero_bubble_h1"):
        gathered, _ = simulated(case, schedule, tmp_path)
        graphs = graphs_of(gathered, 2)
        times[schedule] = NodeTimes.of(graphs, steps_of(gathered, graphs), [True] * 3)
    assert times["1f1b"].actions() == times["gpipe"].actions() != times["zero_bubble_h1"].actions()
    made = times["1f1b"].timeline(lambda nbytes: 0.0, times["gpipe"].graphs[0].attrs)
    assert made.schedule.name == "gpipe"
    assert made.busy(0) == pytest.approx(times["1f1b"].timeline(lambda nbytes: 0.0).busy(0))


def test_stages_of_two_chunks_have_as_many_layers(tmp_path: Path) -> None:
    case = Case((2, 4), 4, 16, 8, 3)
    assert case.arguments(tmp_path, "interleaved")[1:3] == ["interleaved", "1,2"]
    assert case.arguments(tmp_path, "gpipe")[1:3] == ["gpipe", "2,4"]


def test_steps_count_in_which_every_rank_has_its_core() -> None:
    """Begin, end and time with a core, of two ranks and three steps."""
    one = [(0.0, 1.0, 1.0), (2.0, 3.0, 0.5), (4.0, 6.0, 1.99)]
    other = [(0.0, 1.0, 0.97), (2.0, 3.0, 1.0), (4.0, 6.0, 1.2)]
    assert undisturbed(np.array([one, other])) == [True, False, False]
