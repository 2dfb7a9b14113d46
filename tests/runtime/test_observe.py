"""The values by which runs are compared: a fused graph shows those of the operators that it is made of."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Graph, Node, Parameter
from mspc.ir.types import FLOAT16, FLOAT32, TensorType
from mspc.ops.control.regions import Scan
from mspc.ops.math.arithmetic import Add, Mul
from mspc.ops.math.elementwise import Square
from mspc.ops.optim.optimizer import Adam, ApplyMomentum
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.ops.tensor.reshape import Cast
from mspc.passes.base import parse_passes, run_passes
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import World
from mspc.runtime.faults.record import NodeFailure
from mspc.runtime.observe import observe
from tests.runtime.graphs import WHERE, Broken
from tests.runtime.region_graphs import executor, floats, graph, numbers, run_graphs

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
