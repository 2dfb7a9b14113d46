"""Where rows of the batch are: what operands tell of a drawn value, and what they do not."""

from __future__ import annotations

from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.op import REGISTRY, load_operators
from mspc.passes.lib.batch_rows import FIRST, FedRows

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
    """Of one that is computed on the way, too."""
    for other in ("w", "negative"):
        d = Drawing()
        drawn = d.drawn()
        d.emit("Add", drawn, d.w if other == "w" else d.emit("Neg", d.w))
        assert not d.rows().may_be_rows(drawn)
    d = Drawing()
    drawn = d.drawn()
    d.emit("Neg", drawn)
    assert d.rows().may_be_rows(drawn)
