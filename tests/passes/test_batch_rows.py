"""The note of a gradient's rows in a text: read by passes, dropped on a rank, refused where it fits nothing."""

from __future__ import annotations

import pytest

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Parameter
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.control.structural import Gradient, TupleGetItem
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.passes.base import parse_passes, run_passes
from mspc.passes.lib.batch_rows import ROWS

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
