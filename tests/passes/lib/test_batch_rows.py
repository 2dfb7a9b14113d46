"""Rows of the batch: notes of a gradient's rows, and the rows of drawn values."""

from __future__ import annotations

from typing import Any

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Graph, Node, Parameter, Value
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.control.structural import Gradient, TupleGetItem
from mspc.ops.op import REGISTRY, load_operators
from mspc.ops.tensor.reshape import ReduceSum
from mspc.passes.base import parse_passes, run_passes
from mspc.passes.lib.batch_rows import FIRST, ROWS, FedRows

# The note of a gradient's rows in a text: read by passes, dropped on a rank, refused where it fits nothing.


SHARED = "grad,simplify,propagate_sharding,insert_redistribution,lower_redistribution"


def _graph() -> Graph:
    """The gradient of a sum of rows: ones, which no rule leads back to the rows."""
    graph = Graph("g")
    graph.attrs = {"mode": "semi_auto_parallel", "ranks": 2, "outputs": "batch"}
    x = Parameter("x", TensorType(FLOAT32, (4, 2)), layout=Layout.of((2,), [(0,), ()]))
    graph.parameters.append(x)
    b = Builder(graph)
    total = b.emit(ReduceSum(axis=(0, 1)), x)
    graph.results = [b.emit(TupleGetItem(0), b.emit(Gradient(), total, x))]
    return graph


def test_the_note_counts_until_a_rank_has_its_slice() -> None:
    shared = run_passes(_graph(), parse_passes(SHARED))
    assert [node.attrs[ROWS] for node in shared.nodes if ROWS in node.attrs] == ["(2) [0, -]"]
    local = run_passes(shared, parse_passes("slice_to_rank{rank=1}"))
    assert local.results[0].shape == (2, 2)
    assert not any(ROWS in node.attrs for node in local.nodes)


@pytest.mark.parametrize(
    "note", ["", "rows", 3, "(2) [0]", "(3) [0, -]", "(4) [0, -]", "(2) [0, -]; (2) [0, -]", "(2) [5, -]", None]
)
def test_a_note_that_fits_nothing_is_refused(note: object) -> None:
    graph = run_passes(_graph(), parse_passes("grad,simplify"))
    for node in graph.nodes:
        if ROWS in node.attrs:
            node.attrs[ROWS] = note
    with pytest.raises(MspcError, match=r"BroadcastTo: rows is .* which is no layout of"):
        run_passes(graph, parse_passes("propagate_sharding"))


# Where rows of the batch are: what operands tell of a drawn value, and what they do not.


load_operators()


class Drawing:
    """x [4, 3] is fed in rows, w [4, 3] is a parameter, and numbers are drawn."""

    def __init__(self) -> None:
        self.graph = Graph("g")
        self.b = Builder(self.graph)
        self.x, self.w = (
            Parameter(n, TensorType(FLOAT32, (4, 3)), kind=k) for n, k in (("x", "input"), ("w", "parameter"))
        )

    def emit(self, name: str, *inputs: Value, **attributes: Any) -> Node:
        return self.b.emit(REGISTRY[name](**attributes), *inputs)

    def drawn(self) -> Node:
        return self.emit("UniformReal", shape=(4, 3), seed=1)

    def rows(self, **given: Value) -> FedRows:
        return FedRows(self.graph, dict.fromkeys([self.x, *given.values()], FIRST))


def test_what_is_added_to_fed_rows_has_rows() -> None:
    d = Drawing()
    drawn = d.drawn()
    d.emit("Add", d.x, drawn)
    assert d.rows().of(drawn) == FIRST


def test_what_is_multiplied_with_fed_rows_over_these_has_rows() -> None:
    """The product has none."""
    d = Drawing()
    drawn = d.drawn()
    product = d.emit("MatMul", d.x, drawn, transpose_a=True)
    rows = d.rows()
    assert (rows.of(product), rows.of(drawn)) == (None, FIRST)


def test_rows_of_a_result_alone_are_those_of_what_was_drawn() -> None:
    d = Drawing()
    drawn = d.drawn()
    assert d.rows(pinned=d.emit("Neg", drawn)).of(drawn) == FIRST


def test_a_reader_without_rows_tells_nothing() -> None:
    d = Drawing()
    drawn = d.drawn()
    d.emit("Add", d.x, drawn)
    d.emit("Depend", drawn, d.w)
    assert d.rows().of(drawn) == FIRST


def test_an_element_tells_nothing_of_the_other_ones() -> None:
    d = Drawing()
    pair = d.emit("MakeTuple", d.x, d.w)
    d.emit("TupleGetItem", pair, index=0)
    assert d.rows().places[pair] == (FIRST, None)


def test_a_collective_has_no_rows() -> None:
    d = Drawing()
    total = d.emit("AllReduce", d.x)
    assert d.rows().of(total) is None


def test_a_dimension_of_a_parameter_is_not_the_batch() -> None:
    """The rows of a value that is computed on the way, too."""
    for other in ("w", "negative"):
        d = Drawing()
        drawn = d.drawn()
        d.emit("Add", drawn, d.w if other == "w" else d.emit("Neg", d.w))
        assert not d.rows().may_be_rows(drawn)
    d = Drawing()
    drawn = d.drawn()
    d.emit("Neg", drawn)
    assert d.rows().may_be_rows(drawn)
