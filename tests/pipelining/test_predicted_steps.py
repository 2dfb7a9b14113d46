"""What `benchmarks/pipelines/predicted.py` gives the timeline of a step: times of nodes that ran in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.pipelines.predicted import Case, NodeTimes, simulated, undisturbed
from mspc.ir.graph import WORK


def test_nodes_of_all_stages_are_timed_in_one_process(tmp_path: Path) -> None:
    case = Case((2, 4), 4, 16, 8, 3)
    gathered, counted = simulated(case, "1f1b", tmp_path)
    assert len(counted) == 3
    times = NodeTimes.read(case, gathered, [True] * 3)
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


def test_stages_of_two_chunks_have_as_many_layers(tmp_path: Path) -> None:
    case = Case((2, 4), 4, 16, 8, 3)
    assert case.arguments(tmp_path, "interleaved")[1:3] == ["interleaved", "1,2"]
    assert case.arguments(tmp_path, "gpipe")[1:3] == ["gpipe", "2,4"]


def test_steps_count_in_which_every_rank_has_its_core() -> None:
    """Begin, end and time with a core, of two ranks and three steps."""
    one = [(0.0, 1.0, 1.0), (2.0, 3.0, 0.5), (4.0, 6.0, 1.99)]
    other = [(0.0, 1.0, 0.97), (2.0, 3.0, 1.0), (4.0, 6.0, 1.2)]
    assert undisturbed(np.array([one, other])) == [True, False, False]
