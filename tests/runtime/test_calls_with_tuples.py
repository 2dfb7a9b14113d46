"""Tuples that calls hand to each other: the program runs, is read back, loses what nobody reads, and overwrites
none."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.ir.compare import difference
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph
from mspc.ops.control.regions import Call, type_by_regions
from mspc.ops.control.structural import TupleGetItems
from mspc.ops.op import REGISTRY
from mspc.ops.optim.optimizer import AssignAdd
from mspc.passes.cleanup.simplify import Simplify
from tests.runtime.region_graphs import calls_with_tuples, executor, numbers

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
