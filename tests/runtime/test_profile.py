"""The content of a profile of a step, on NumPy and as text."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ops.collective.one_rank import OneRank
from mspc.ops.control.regions import Scan
from mspc.ops.math.arithmetic import Add, Mul
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.executor import Executor
from mspc.runtime.profile import NodeTiming, costs, nodes_of, sums, trace
from tests.gpu.programs import compiled
from tests.runtime.region_graphs import executor, floats, graph, run_graphs


def test_timed_step_equals_the_ordinary_one() -> None:
    graph, values, feeds = compiled("feed_forward")
    one, other = (Executor(graph, NumPyBackend(OneRank()), {k: v.copy() for k, v in values.items()}) for _ in range(2))
    assert one.run_timed(feeds)[1] == []
    other.run(feeds)
    results, times = one.run_timed(feeds)
    assert np.array_equal(results[0], other.run(feeds)[0])
    assert [t.index for t in times] == list(range(len(graph.nodes)))
    assert all(t.duration >= 0 for t in times)
    assert [t.begin for t in times] == sorted(t.begin for t in times)
    assert np.array_equal(one.run(feeds)[0], other.run(feeds)[0])


def test_most_expensive_nodes_come_first() -> None:
    graph, _, _ = compiled("feed_forward")
    steps = [
        [NodeTiming(0, "compute", 0, 1), NodeTiming(1, "compute", 1, 5), NodeTiming(2, "communication", 6, 2)]
        for _ in range(2)
    ]
    found = costs(steps, graph)[:2]
    assert [(c.label, c.stream, c.seconds, c.share) for c in found] == [
        (graph.nodes[1].label, "compute", 0.005, 0.625),
        (graph.nodes[2].label, "communication", 0.002, 0.25),
    ]
    assert "programs.py:" in costs(steps, graph)[0].line


def test_a_stall_in_one_step_changes_nothing() -> None:
    graph, _, _ = compiled("feed_forward")
    steps = [[NodeTiming(0, "compute", 0, 1), NodeTiming(1, "compute", 1, 5)] for _ in range(3)]
    stalled = [*steps[:2], [NodeTiming(0, "compute", 0, 80), NodeTiming(1, "compute", 80, 5)]]
    assert costs(stalled, graph) == costs(steps, graph)
    assert sums(stalled, graph) == sums(steps, graph) == (0.006, 0.0, 0.006)
    assert sums([], graph) == (0.0, 0.0, 0.0)


def test_trace_is_chromes() -> None:
    graph, _, _ = compiled("feed_forward")
    steps = {r: [[NodeTiming(0, "compute", 0.5, 1.25)], [NodeTiming(2, "communication", 0, 2)]] for r in (1, 0)}
    text = json.loads(json.dumps(trace(steps, dict.fromkeys((0, 1), graph))))
    spans = [event for event in text["traceEvents"] if event["ph"] == "X"]
    assert [(e["pid"], e["tid"], e["ts"], e["dur"], e["args"]["step"]) for e in spans] == [
        (0, 0, 500, 1250, 0), (0, 1, 1750, 2000, 1), (1, 0, 500, 1250, 0), (1, 1, 1750, 2000, 1),
    ]  # fmt: skip
    assert spans[0]["name"] == graph.nodes[0].label
    names = [e["args"]["name"] for e in text["traceEvents"] if e["ph"] == "M"]
    streams = ["compute", "communication", "reduction", "messages"]
    assert names == ["rank 0", *streams, "rank 1", *streams]


def test_nodes_inside_of_loops_have_times_of_their_own() -> None:
    inner = graph("scan_1_body", [floats(8), floats(8)], lambda b, x, y: [b.emit(Add(), b.emit(Mul(), x, y), y)])
    body = graph("scan_2_body", [floats(8)] * 2, lambda b, *v: run_graphs(b, Scan(turns=3, carried=1), v, inner))

    def main(b: Builder, x: Value, y: Value) -> list[Value]:
        return run_graphs(b, Scan(turns=4, carried=1), [b.emit(Add(), x, y), y], body)

    program = graph("main", [floats(8)] * 2, main)
    run, feeds = executor(program), [np.ones(8, np.float32)] * 2
    wanted = run.run(feeds)
    results, times = run.run_timed(feeds)
    np.testing.assert_array_equal(results, wanted)
    np.testing.assert_array_equal(run.run(feeds), wanted)
    names = [node.label for node, _ in nodes_of(program)]
    assert [(names[t.index], t.runs) for t in times] == [
        ("Add", 1), ("Scan", 1), ("Mul", 12), ("Add", 12), ("Scan", 4), ("TupleGetItem", 4), ("TupleGetItem", 1),
    ]  # fmt: skip
    loop, inside = times[1], times[2:6]
    assert sum(t.own for t in inside) == pytest.approx(loop.inside)
    assert all(loop.begin <= t.begin <= loop.begin + loop.duration for t in inside)
    assert all(t.own >= 0 for t in times)
    found = costs([times, times], program)
    assert sum(c.share for c in found) == pytest.approx(1)
    assert {(c.label, c.runs) for c in found} >= {("Mul", 12), ("Scan", 4), ("Scan", 1)}
    spans = [event for event in trace({0: [times]}, {0: program})["traceEvents"] if event["ph"] == "X"]
    assert [(e["args"]["node"], e["args"].get("region"), e["args"].get("runs")) for e in spans] == [
        (0, None, None), (1, None, None), (0, "scan_1_body", 12), (1, "scan_1_body", 12), (0, "scan_2_body", 4),
        (1, "scan_2_body", 4), (2, None, None),
    ]  # fmt: skip
