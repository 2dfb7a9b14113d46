"""Graphs as networkx and Graphviz."""

from __future__ import annotations

from mspc.ir.export import critical_path, find_cycle, to_dot, to_networkx
from mspc.ir.graph import Graph, Node
from mspc.ir.opaque import OpaqueOp
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


def test_critical_path_follows_the_costliest_chain() -> None:
    graph = small_graph()
    product, pair, total = graph.nodes
    assert critical_path(graph) == (2.0, [product, pair])
    assert critical_path(graph, lambda node: 5.0 if node is total else 1.0) == (6.0, [product, total])
    assert critical_path(Graph("empty")) == (0.0, [])


def test_cycle_is_found() -> None:
    graph = small_graph()
    assert find_cycle(graph) == []
    graph.nodes[0].inputs.append(graph.nodes[2])
    assert find_cycle(graph) == [graph.nodes[0], graph.nodes[2]]


def test_dot_shows_operators_shapes_and_collectives() -> None:
    graph = small_graph()
    product = graph.nodes[0]
    graph.nodes = [product, Node(OpaqueOp("AllReduce", {"rank_list": (0, 1)}), [product], product.type)]
    graph.results = [graph.nodes[1]]
    graph.parameters = graph.parameters[:2]
    assert to_dot(graph) == (
        'digraph "net" {\n'
        "  rankdir=TB;\n"
        '  node [fontname="monospace"];\n'
        '  para1 [label="x\\nFloat32 (8, 32)\\n(2, 4) [0, -]", '
        'shape=box, style=filled, fillcolor="#f0f0f0"];\n'
        '  para2 [label="net.w\\nFloat32 (32, 16)", shape=box, style=filled, fillcolor="#f0f0f0"];\n'
        '  n0 [label="%0 Product matmul\\nFloat32 (8, 16)\\n(2, 4) [0, -] sum[1]", '
        'shape=ellipse, style=filled, fillcolor="#ffffff"];\n'
        "  para1 -> n0;\n"
        "  para2 -> n0;\n"
        '  n1 [label="%1 AllReduce\\nFloat32 (8, 16)", shape=hexagon, style=filled, fillcolor="#f7b267"];\n'
        "  n0 -> n1;\n"
        '  out0 [label="result 0", shape=plaintext];\n'
        "  n1 -> out0;\n"
        "}\n"
    )
