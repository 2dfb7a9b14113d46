"""Every operator that looks places up says how many there are, and inputs are followed to it."""

from __future__ import annotations

import pytest

from mspc.analysis.integer_ranges import index_limits
from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.control.regions import Scan, emit_regions
from mspc.ops.math.arithmetic import Add
from mspc.ops.op import Op, Sample, load_operators
from mspc.ops.tensor.embedding import Gather
from mspc.ops.tensor.reshape import Reshape

MIXED = [
    (operator, sample)
    for operator in load_operators().values()
    for sample in operator.samples
    if {"i", "f"} == {dtype_of(name).kind for name in sample.dtypes}
]

NUMBERS = {
    "Bounded": {1}, "ExpertOuter": {2}, "ExpertProduct": {2}, "ExpertRows": {2}, "ExpertSums": {1},
}
"""Operands of integers that are numbers to be read or ordered, and no places."""


@pytest.mark.parametrize(("operator", "sample"), MIXED, ids=lambda x: getattr(x, "__name__", ""))
def test_integers_beside_floats_have_limits(operator: type[Op], sample: Sample) -> None:
    types = [TensorType(dtype_of(name), shape) for name, shape in zip(sample.dtypes, sample.shapes, strict=True)]
    limits = operator(**sample.fields).index_limits(*types)
    places = {i for i, type in enumerate(types) if type.dtype.is_integer} - NUMBERS.get(operator.__name__, set())
    assert set(limits) == places
    assert all(limit > 0 for limit in limits.values())
    assert min(limits.values(), default=0) <= sample.high


def test_the_smallest_table_counts_through_what_moves() -> None:
    ids = Parameter("ids", TensorType(dtype_of("Int32"), (2, 4)), "input")
    shifted = Parameter("shifted", TensorType(dtype_of("Int32"), (8,)), "input")
    tables = [Parameter(f"t{n}", TensorType(dtype_of("Float32"), (n, 2)), "parameter") for n in (16, 9, 7)]
    flat = Node(Reshape((8,)), [ids], shifted.type)
    more = Node(Add(), [flat, shifted], shifted.type)
    rows = [
        Node(Gather(), [table, index], TensorType(dtype_of("Float32"), (8, 2)))
        for table, index in zip(tables, (flat, flat, more), strict=True)
    ]
    graph = Graph("net")
    graph.parameters, graph.nodes, graph.results = [ids, shifted, *tables], [flat, more, *rows], list(rows)
    assert index_limits(graph) == {ids: 9}
    assert index_limits(graph, computed=True) == {ids: 7, shifted: 7}


def test_graphs_that_nodes_run_are_looked_into() -> None:
    inner = [Parameter("row", TensorType(dtype_of("Int32"), (4,)), "input"),
             Parameter("table", TensorType(dtype_of("Float32"), (9, 2)), "input")]  # fmt: skip
    body = Graph("body")
    body.returns_tuple = True
    body.parameters = inner
    body.nodes = [Node(Gather(), [inner[1], inner[0]], TensorType(dtype_of("Float32"), (4, 2)))]
    body.results = [body.nodes[0]]
    outer = [Parameter("ids", TensorType(dtype_of("Int32"), (3, 4)), "input"),
             Parameter("table", inner[1].type, "parameter")]  # fmt: skip
    b = Builder(Graph("net"))
    b.graph.parameters = outer
    emit_regions(b, Scan(scanned=1, stacked=1, turns=3), outer, (body,))
    assert index_limits(b.graph) == {outer[0]: 9}
