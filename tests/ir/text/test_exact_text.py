"""Graphs whose text says all of them, and those whose text does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc.ir.diagnostics import Location
from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.layout import Layout
from mspc.ir.opaque import OpaqueOp
from mspc.ir.text.values import has_exact_text
from mspc.ir.types import FLOAT32, TensorType
from tests.ir.graphs import small_graph

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
