"""Graphs whose text says all of them, and those whose text does not.

Files that mspc wrote are split into what the grammar splits them into.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from mspc.ir.diagnostics import Location
from mspc.ir.graph import Constant, Graph, Node, Parameter
from mspc.ir.layout import Layout
from mspc.ir.opaque import OpaqueOp
from mspc.ir.text.fragments import parse_text
from mspc.ir.text.own_lines import own_items
from mspc.ir.text.printer import print_graph
from mspc.ir.text.values import has_exact_text
from mspc.ir.types import FLOAT32, TensorType
from tests.ir.graphs import SMALL_TEXT, graphs, programs, small_graph
from tests.shares import share_of

TYPE = TensorType(FLOAT32, (2,))


def graph_of(op: dict[str, Any], node: dict[str, Any], frame: Location) -> Graph:
    graph = Graph("one")
    graph.parameters = [Parameter("x", TYPE)]
    made = Node(OpaqueOp("Of", op), graph.parameters, TYPE, frames=(frame,))
    made.attrs = node
    graph.nodes = graph.results = [made]
    return graph


PLAIN = Location("a (1).py", 3, 1, 4, "x = of(y)")


def test_graphs_of_usual_values() -> None:
    assert has_exact_text(small_graph())
    values = {"a": (1, (2.5, "b"), None), "t": FLOAT32, "of": TYPE, "layout": Layout.of((2,), [(0,)])}
    assert has_exact_text(graph_of(values, {"reason": "none"}, PLAIN))


@pytest.mark.parametrize("value", [[1, 2], np.float32(0.5), np.ones(2), (1, [2]), type("Text", (str,), {})("name")])
def test_values_that_are_read_back_as_others(value: Any) -> None:
    assert not has_exact_text(graph_of({"a": value}, {}, PLAIN))
    assert not has_exact_text(graph_of({}, {"a": value}, PLAIN))


@pytest.mark.parametrize(
    "frame",
    [
        Location("run(2)/train.py", 3, 1, 4, "x = 1"),
        Location("train.py", 3, 1, 4, "x = \\\n 1"),
        Location("train.py", 3, 0, 0, "x = 8/ 3~4"),
    ],
)
def test_spans_that_are_read_back_as_others(frame: Location) -> None:
    assert not has_exact_text(graph_of({}, {}, frame))


def plain(item: Any) -> Any:
    """An item as what can be compared, tokens with their kind and place."""
    if getattr(item, "data", "") == "attribute_line":
        return plain(item.children[0])
    if isinstance(item, list):
        return [plain(each) for each in item]
    if isinstance(item, Constant):
        return item.type, item.value.tobytes()
    return (item.type, str(item), item.start_pos) if hasattr(item, "start_pos") else item


def assert_as_by_grammar(text: str) -> None:
    found = own_items(text)
    assert found is not None
    assert plain(found) == plain(parse_text(text, "module").children)


@settings(max_examples=share_of(100), deadline=None)
@given(graphs())
def test_random_graphs_are_split_as_by_the_grammar(graph: Graph) -> None:
    text = print_graph(graph)
    found = own_items(text)
    assert found is None or plain(found) == plain(parse_text(text, "module").children)


@settings(max_examples=share_of(50), deadline=None)
@given(programs())
def test_random_graphs_with_regions_are_split_as_by_the_grammar(graph: Graph) -> None:
    text = print_graph(graph)
    found = own_items(text)
    assert found is None or plain(found) == plain(parse_text(text, "module").children)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  %1 = ", "  %1 "), ("Return(", "Return (("), ("subgraph @", "subgraph"), ("}\n", "\n"), (" -> (", " => ("),
        ("has_default", "has_no_default"), ("primitive_attrs: {", "primitive_attrs: {{"), ("%para1", "%para"),
        ("shape=[]", "shape=[x]"),
    ],
)  # fmt: skip
def test_other_lines_are_left_to_the_grammar(old: str, new: str) -> None:
    assert_as_by_grammar(SMALL_TEXT)
    assert old in SMALL_TEXT
    assert own_items(SMALL_TEXT.replace(old, new, 1)) is None


def test_files_of_mindspore_are_left_to_the_grammar() -> None:
    assert own_items(SMALL_TEXT + "\njit config {\n}\n") is None
