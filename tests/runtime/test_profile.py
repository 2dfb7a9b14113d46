"""The content of a profile of a step, on NumPy and as text.

The values by which runs are compared: a fused graph shows those of the operators that it is made of.
Tuples that calls hand to each other: the program runs, is read back, loses what nobody reads, and overwrites
none.
"""

import json

import numpy as np
import pytest

from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value
from mspc.ops.control.regions import Call, Scan, type_by_regions
from mspc.runtime.faults.record import NodeFailure
from mspc.runtime.observe import observe
from mspc.runtime.profile import NodeTiming, costs, nodes_of, sums, trace
from tests.executors import Executor, NumPyBackend, OneRank, Simplify, World, parse_passes, run_passes
from tests.gpu.programs import compiled
from tests.graphs import FLOAT16, FLOAT32, REGISTRY, MspcError, TensorType, difference, parse, print_graph
from tests.operators import Adam, Add, ApplyMomentum, AssignAdd, Cast, Mul, ReduceSum, Square, TupleGetItems
from tests.runtime.graphs import WHERE, Broken
from tests.runtime.region_graphs import calls_with_tuples, executor, floats, graph, numbers, run_graphs


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


FUSED = ["FusedElementwise", "GroupedUpdate", "GroupedUpdate"]


def marked_graph() -> Graph:
    """A chain with a sum, updates with casts of halves, updates with several results; every node is numbered."""
    graph = Graph("g")
    graph.attrs = {"mode": "stand_alone", "ranks": 1, "rank": 0}

    def new(name: str, kind: str = "parameter", shape: tuple[int, ...] = (4,)) -> Parameter:
        graph.parameters.append(Parameter(name, TensorType(FLOAT16 if "half" in name else FLOAT32, shape), kind))
        return graph.parameters[-1]

    b = Builder(graph)
    x = new("x", "input")
    total = b.emit(ReduceSum(axis=(0,)), b.emit(Square(), b.emit(Add(), x, x)))
    b.phase = "update"
    rate = Constant(0.5, FLOAT32)
    for name in ("w", "v"):
        gradient = b.emit(Cast(dst_type=FLOAT32), new(f"half.{name}", "input"))
        b.emit(ApplyMomentum(), new(name), new(f"m.{name}"), rate, gradient, rate)
    for name in ("a", "b"):
        b.emit(Adam(), new(name), new(f"m.{name}"), new(f"v.{name}"), *[rate] * 6, x)
    graph.results = [total]
    for number, node in enumerate(graph.nodes):
        node.attrs["number"] = number
    return graph


def test_members_of_fused_nodes_are_seen() -> None:
    found = []
    for passes in ("execute", "fuse_elementwise,fuse_updates,execute"):
        graph = run_passes(marked_graph(), parse_passes(passes))
        generator = np.random.default_rng(0)
        values = {p: generator.random(p.shape).astype(p.tensor_type.dtype.numpy) for p in graph.parameters}

        def main(comm, graph=graph, values=values):
            return observe(graph, NumPyBackend(comm), values, "number")

        found += World(1).run(main)
    assert [node.op.name for node in graph.nodes] == FUSED
    assert set(found[0]) == set(found[1])
    assert {0, 1, 2, 3, 4, 5, 6} <= set(found[1])
    for key, value in found[0].items():
        np.testing.assert_array_equal(found[1][key], value)


def test_nodes_that_run_graphs_are_computed() -> None:
    body = graph("scan_1_body", [floats(2), floats(2)], lambda b, x, y: [b.emit(Mul(), b.emit(Add(), x, y), y)])
    main = graph("main", [floats(2)] * 2, lambda b, *v: run_graphs(b, Scan(turns=3, carried=1), v, body))
    x, y = numbers(1, 2), numbers(3, 4)
    given = dict(zip(main.parameters, (x, y), strict=True))
    (found,) = World(1).run(lambda comm: observe(main, NumPyBackend(comm), given, "number"))
    np.testing.assert_array_equal(found["result", 0], executor(main).run([x, y])[0])
    main.nodes[0].frames = WHERE
    body.nodes.append(Node(Broken(), [body.parameters[0]], floats(2), frames=WHERE))
    with pytest.raises(NodeFailure) as caught:
        World(1).run(lambda comm: observe(main, NumPyBackend(comm), given, "number"))
    assert caught.value.message == "Broken failed on rank 0 in turn 0 of Scan: ValueError: the kernel is broken"
    assert (caught.value.region, caught.value.index) == ("scan_1_body", 2)


X, Z, FIRST, LAST = numbers(1, 2, 3, 4), numbers(-1, 0, 1, 2), numbers(0.5, 0.25, -1, 2), numbers(3, 2, 1, 0)


def wanted() -> list[np.ndarray]:
    """By NumPy."""
    results, first, second = [], X, Z
    for given in (X, Z):
        y = given * FIRST
        results.append(y)
        first, second = first + np.tanh(y) * FIRST, second + y * LAST * y
    return [*results, first, second]


def check(graph: Graph) -> None:
    found = executor(graph, {"first": FIRST, "last": LAST}).run([X, Z])
    for one, other in zip(found, wanted(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def calls(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if isinstance(node.op, Call)]


def test_elements_are_the_parameters_of_the_graph() -> None:
    check(calls_with_tuples())


def test_a_text_is_read_back() -> None:
    graph = calls_with_tuples()
    again = parse(print_graph(graph), REGISTRY).main
    assert difference(graph, again) == ""
    check(again)


def test_what_no_graph_reads_is_computed_no_more() -> None:
    graph = calls_with_tuples()
    Simplify().run(graph)
    graph.verify()
    forward, backward = (calls(graph)[place].regions[0] for place in (0, 1))
    assert [node.op.name for node in forward.nodes] == ["Mul", "Tanh", "Mul"]
    assert [parameter.name for parameter in backward.parameters] == ["p0", "p1", "p3", "p4", "p5", "p7"]
    kept = [node.op.indices for node in graph.nodes if isinstance(node.op, TupleGetItems)]
    assert kept == [(1, 2), (0, 1), (1, 2), (0, 1)]
    check(graph)


def test_a_tuple_that_others_read_stays_whole() -> None:
    graph = calls_with_tuples()
    kept = next(node for node in graph.nodes if isinstance(node.op, TupleGetItems))
    graph.results.append(kept)
    Simplify().run(graph)
    assert len(calls(graph)[0].regions[0].results) == 4
    assert len(calls(graph)[1].regions[0].parameters) == 7  # the weight alone is gone


def test_an_element_is_not_overwritten() -> None:
    graph = calls_with_tuples()
    call = calls(graph)[0]
    region = call.regions[0]
    region.nodes.append(Node(AssignAdd(), [region.parameters[1], region.parameters[0]], region.parameters[1].type))
    with pytest.raises(MspcError, match=r"overwrite operands \(1,\), of which one is a tuple"):
        type_by_regions(call)
