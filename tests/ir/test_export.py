"""Graphs as networkx."""

from __future__ import annotations

from mspc.ir.export import find_cycle, to_networkx
from tests.ir.graphs import small_graph


def test_networkx_has_an_edge_per_reading() -> None:
    graph = small_graph()
    graph.nodes[2].inputs.append(graph.nodes[0])
    found = to_networkx(graph)
    assert list(found.nodes) == [*graph.parameters, *graph.nodes]
    edges = [(*pair, tuple(found.edges[pair]["operands"])) for pair in found.edges]
    x, w, _ = graph.parameters
    product, pair, total = graph.nodes
    assert edges == [(x, product, (0,)), (w, product, (1,)), (product, pair, (0,)), (product, total, (0, 1))]


def test_cycle_is_found() -> None:
    graph = small_graph()
    assert find_cycle(graph) == []
    graph.nodes[0].inputs.append(graph.nodes[2])
    assert find_cycle(graph) == [graph.nodes[0], graph.nodes[2]]
