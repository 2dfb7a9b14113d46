"""Graphs as networkx and Graphviz."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from mspc.ir.diagnostics import Location
from mspc.ir.export import find_cycle, to_dot, to_networkx
from mspc.ir.graph import Node
from mspc.ir.opaque import OpaqueOp
from mspc.ir.text.parser import parse
from mspc.ops.op import REGISTRY, load_operators
from tests.conftest import HANG
from tests.ir.graphs import small_graph
from tests.ir.regions import LOOP
from tests.serving import SERVED


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


def test_dot_shows_operators_shapes_and_collectives() -> None:
    graph = small_graph()
    product = graph.nodes[0]
    graph.nodes = [product, Node(OpaqueOp("AllReduce", {"rank_list": (0, 1)}), [product], product.type)]
    graph.results = [graph.nodes[1]]
    graph.parameters = graph.parameters[:2]
    product.in_strategy = ((2, 1), (1, 4))
    product.frames = (Location("mspc/nn/basic.py", 3), Location("net.py", 7))
    product.scope, graph.nodes[1].scope = "Default/network-Net/layer-Dense", "Default/network-Net"
    graph.nodes[1].attrs |= {
        "reason": "the result of Product 'matmul' is sharded (2, 1), the caller receives result 0 replicated",
        "fused": ("Neg", "Add 'add'"),
    }
    assert to_dot(graph) == (
        'digraph "net" {\n'
        "  rankdir=TB;\n"
        '  node [fontname="monospace"];\n'
        '  para1 [label="x\\nFloat32 (8, 32)\\n(2, 4) [0, -]", '
        'shape=box, style=filled, fillcolor="#f0f0f0"];\n'
        '  para2 [label="net.w\\nFloat32 (32, 16)", shape=box, style=filled, fillcolor="#f0f0f0"];\n'
        "  subgraph cluster_0 {\n"
        '    label="Default/network-Net"; color="#a0a0a0"; fontname="monospace";\n'
        '    n1 [label="%1 AllReduce\\nFloat32 (8, 16)\\ngroup (0, 1)\\nfused: Neg, Add \'add\'\\n'
        "the result of Product 'matmul' is sharded\\n(2, 1), the caller receives result 0\\nreplicated\", "
        'shape=hexagon, style=filled, fillcolor="#f7b267"];\n'
        "    subgraph cluster_1 {\n"
        '      label="layer-Dense"; color="#a0a0a0"; fontname="monospace";\n'
        '      n0 [label="%0 Product matmul\\nFloat32 (8, 16)\\n(2, 4) [0, -] sum[1]\\n'
        'in_strategy: ((2, 1), (1, 4))\\nnet.py:7", shape=ellipse, style=filled, fillcolor="#ffffff"];\n'
        "    }\n"
        "  }\n"
        "  para1 -> n0;\n"
        "  para2 -> n0;\n"
        "  n0 -> n1;\n"
        '  out0 [label="result 0", shape=plaintext];\n'
        "  n1 -> out0;\n"
        "}\n"
    )


def test_dot_draws_a_frame_for_every_cell_and_each_vertex_once(quickstart_dot: str) -> None:
    """A vertex lies in the innermost frame of its scope; edges stand outside of all frames."""
    declared = re.findall(r"^ *(n\d+|para\d+) \[label=", quickstart_dot, re.MULTILINE)
    assert len(declared) == len(set(declared)) > 20
    assert quickstart_dot.count("{") == quickstart_dot.count("}")
    frames = re.findall(r'^ *label="([^"]*)"; color', quickstart_dot, re.MULTILINE)
    assert frames[:3] == ["Default", "network-WithLossCell", "_backbone-Net"]
    assert re.search(r"ReduceScatter\\nFloat32 \(8, 4\)\\ngroup \(0, 1, 2, 3\)\\nthe result of MatMul", quickstart_dot)
    assert "fused: Sub, Square, ReduceMean 'reduce_mean'" in quickstart_dot
    assert "MatMul matmul\\nFloat32 (8, 16)\\nin_strategy: ((2, 4), (4, 1))\\nnet.py:38" in quickstart_dot
    edges = [line for line in quickstart_dot.splitlines() if " -> " in line and "label" not in line]
    assert all(line.startswith("  ") and not line.startswith("   ") for line in edges)


@pytest.fixture(scope="module")
def quickstart_dot(root: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The last drawing of rank 0."""
    folder = tmp_path_factory.mktemp("drawn") / "out"
    script = root / "samples/quickstart/net.py"
    command = [*SERVED, "compile", str(script), "--ranks", "8", "--rank", "0", "--level", "3"]
    subprocess.run([*command, "--out", str(folder), "-q"], check=True, timeout=HANG, cwd=folder.parent)
    (drawn,) = (folder / "rank_0").glob("*_execute_*.dot")
    return drawn.read_text()


def test_dot_frames_the_graphs_of_nodes() -> None:
    load_operators()
    text = to_dot(parse(LOOP, REGISTRY).main)
    begins = re.findall(r"subgraph cluster_g(\d) \{\n    label=(\S+);", text)
    names = ("@while_1_condition", "@while_1_body", "@if_2_then", "@if_2_else")
    assert begins == [(str(number), f'"{name}"') for number, name in enumerate(names, 1)]
    assert re.findall(r"(\S+) -> (g\d) \[style=dashed\];", text) == [
        ("n0", "g1"), ("n0", "g2"), ("g2_n2", "g3"), ("g2_n2", "g4"),
    ]  # fmt: skip
    assert "g2_para8 -> g2_n0;" in text
    assert "g4_para15 -> g4_out0;" in text
    assert text.count("{") == text.count("}")
