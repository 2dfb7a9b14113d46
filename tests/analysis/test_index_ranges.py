"""Every operator that looks places up says how many there are, and inputs are followed to it.

Bounds of integers: what operators and loops show of them, and that runs stay within them.
How long values are needed.
"""

import math
import random
from typing import Any

import numpy as np
import pytest

from mspc.analysis.aliasing import results_over
from mspc.analysis.integer_ranges import BOUNDS, IntegerRange, bounds_of, index_limits, note_bounds, refused_indices
from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value
from mspc.ir.types import BOOL, FLOAT32, INT8, INT32, INT64, TensorType, dtype_of
from mspc.ops.control.regions import For, Scan, While, emit_regions
from mspc.ops.op import REGISTRY, Op, Sample, load_operators
from mspc.passes.fusion.attention_masks import every_row_holds
from tests.executors import NumPyBackend, OneRank
from tests.operators import Add, EmbeddingLookup, Gather, Mul, Reshape
from tests.ops.simulate import arrays_of, types_of

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


@pytest.mark.parametrize(("operator", "sample"), MIXED, ids=lambda x: getattr(x, "__name__", ""))
def test_an_index_is_an_error_on_cpus_if_the_operator_refuses_it(operator: type[Op], sample: Sample) -> None:
    if operator.launch is Op.launch or {"Uint8"} & {*sample.dtypes}:
        return
    op, types = operator(**sample.fields), types_of(sample)
    refused = op.refused_indices(*types)
    for place, limit in op.index_limits(*types).items():
        for outside in (limit, -limit - 1) if types[place].dtype.kind == "i" and types[place].size else ():
            inputs = arrays_of(operator.__name__, sample, types)
            inputs[place].flat[0] = outside
            if place in refused:
                with pytest.raises(IndexError):
                    op.kernel(NumPyBackend(OneRank()))(*inputs)


def test_inputs_have_the_least_limit_of_the_operators_that_refuse_others() -> None:
    ids = Parameter("ids", TensorType(dtype_of("Int32"), (4,)), "input")
    table = Parameter("table", TensorType(dtype_of("Float32"), (9, 2)), "parameter")
    rows = TensorType(dtype_of("Float32"), (4, 2))
    nodes = [
        Node(EmbeddingLookup(), [table, ids], rows), Node(Gather(), [table, ids], rows),
        Node(Gather(offset=9, total=18), [table, ids], rows),
    ]  # fmt: skip
    graph = Graph("net")
    graph.parameters, graph.nodes = [ids, table], nodes
    assert refused_indices(graph) == {ids: (9, nodes[1])}
    graph.nodes = [nodes[0], nodes[2]]
    assert refused_indices(graph) == {ids: (18, nodes[2])}


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


COUNT = TensorType(INT32, ())


def number(value: int, dtype: Any = INT32) -> Constant:
    return Constant(np.array(value, dtype.numpy), dtype)


def counting(begin: Value, limit: Value, by: int = 1, compare: str = "Less", both: bool = False) -> Graph:
    """`while i < limit: i += by`, from `begin`; the graph returns i and what `While` has as its body."""
    main = Graph("main")
    condition, body = Graph("while_1_condition"), Graph("while_1_body")
    for graph in (condition, body):
        graph.parameters = [Parameter("i", COUNT), Parameter("limit", COUNT)]
        graph.returns_tuple = True
    inner = Builder(condition)
    holds = inner.emit(REGISTRY[compare](), *condition.parameters)
    if both:
        holds = inner.emit(REGISTRY["LogicalAnd"](), inner.emit(REGISTRY["Fill"](BOOL, (), True)), holds)
    condition.results = [holds]
    body.results = [Builder(body).emit(REGISTRY["Add"](), body.parameters[0], number(by))]
    main.results = [emit_regions(Builder(main), While(carried=1), [begin, limit], [condition, body])]
    return main


@pytest.mark.parametrize(
    ("by", "compare", "found"),
    [(1, "Less", (3, 255)), (2, "LessEqual", (3, 256)), (1, "NotEqual", None), (-1, "Less", None)],
)
def test_a_counter_is_bounded_by_its_begin_and_the_condition(by: int, compare: str, found: Any) -> None:
    for both in (False, True):
        main = counting(number(3), number(256), by, compare, both)
        note_bounds(main)
        assert main.nodes[-1].regions[1].parameters[0].attrs.get(BOUNDS) == found
        assert main.nodes[-1].regions[1].parameters[1].attrs[BOUNDS] == (256, 256)


def test_a_limit_that_nobody_knows_bounds_nothing_from_above() -> None:
    main = counting(number(3), Parameter("n", COUNT, "input"))
    note_bounds(main)
    # i + 1 might leave Int32, for all that is known here.
    assert BOUNDS not in main.nodes[-1].regions[1].parameters[0].attrs


def test_a_begin_that_nobody_knows() -> None:
    main = counting(Parameter("n", COUNT, "input"), number(9))
    note_bounds(main)
    assert BOUNDS not in main.nodes[-1].regions[1].parameters[0].attrs


def test_the_number_of_a_turn() -> None:
    main, body = Graph("main"), Graph("for_1_body")
    body.parameters, body.returns_tuple = [Parameter("turn", TensorType(INT64, ()))], True
    body.results = [body.parameters[0]]
    emit_regions(Builder(main), For(turns=7, stacked=1), [], [body])
    note_bounds(main)
    assert body.parameters[0].attrs[BOUNDS] == (0, 6)


def test_what_may_leave_the_type_is_unknown() -> None:
    b = Builder(Graph("main"))
    x = Parameter("x", TensorType(INT8, (2,)))
    x.attrs[BOUNDS] = (0, 100)
    assert bounds_of(b.emit(REGISTRY["Add"](), x, number(27, INT8))) == IntegerRange(27, 127)
    assert bounds_of(b.emit(REGISTRY["Add"](), x, number(28, INT8))) is None


@pytest.mark.parametrize("seed", range(30))
def test_numbers_lie_within_their_bounds(seed: int) -> None:
    draw = random.Random(seed)
    graph = Graph("main")
    b = Builder(graph)
    values: dict[Value, Any] = {}
    for _ in range(3):
        low = draw.randint(-9, 9)
        high = low + draw.randint(0, 5)
        parameter = Parameter(f"p{len(values)}", TensorType(INT32, (3,)))
        parameter.attrs[BOUNDS] = (low, high)
        values[parameter] = np.array([draw.randint(low, high) for _ in range(3)], np.int32)
    made: list[Value] = list(values)
    for _ in range(12):
        kind = draw.choice(("Add", "Sub", "Mul", "Minimum", "Maximum", "Reshape", "Range", "Concat"))
        if kind == "Range":
            node = b.emit(REGISTRY[kind](start=draw.randint(-3, 3), limit=20, delta=9, dtype=INT32))
        elif kind == "Reshape":
            node = b.emit(REGISTRY[kind]((3,)), draw.choice(made))
        else:
            x, y = draw.choice(made), draw.choice(made)
            node = b.emit(REGISTRY["Concat"](), x, y) if kind == "Concat" else b.emit(REGISTRY[kind](), x, y)
        values[node] = node.op.kernel(NumPyBackend(OneRank()))(*[values[v] for v in node.inputs])  # type: ignore[union-attr]  # an operator
        if node.shape == (3,):
            made.append(node)
        found = bounds_of(node)
        if found is not None:
            assert found.low <= values[node].min()
            assert values[node].max() <= found.high
    assert any(bounds_of(node) is not None for node in graph.nodes)


@pytest.mark.parametrize(
    ("compare", "reverse", "wanted", "holds"),
    [
        ("Greater", False, False, True), ("Greater", False, True, False), ("LessEqual", False, True, True),
        ("Less", True, False, True), ("GreaterEqual", True, True, True), ("GreaterEqual", False, False, False),
    ],
)  # fmt: skip
def test_a_key_is_seen_at_every_place_of_a_counter(compare: str, reverse: bool, wanted: bool, holds: bool) -> None:
    b = Builder(Graph("main"))
    place = Parameter("place", TensorType(INT64, (4, 1)))
    keys = b.emit(REGISTRY["Range"](limit=16))
    assert not every_row_holds(b.emit(REGISTRY["Greater"](), keys, place), False)
    place.attrs[BOUNDS] = (0, 40)
    operands = (place, keys) if reverse else (keys, place)
    assert every_row_holds(b.emit(REGISTRY[compare](), *operands), wanted) is holds
    assert math.isinf(IntegerRange().high)


def test_results_are_over_behind_their_last_readers() -> None:
    graph = Graph("main")
    graph.parameters = [Parameter("x", TensorType(FLOAT32, (2,)))]
    b = Builder(graph)
    first = b.emit(Add(), *graph.parameters * 2)
    second = b.emit(Mul(), first, first)
    unread = b.emit(Mul(), second, graph.parameters[0])
    shown = b.emit(Add(), first, graph.parameters[0])
    b.emit(Add(), shown, shown)
    graph.results = [shown]
    assert results_over(graph) == [[], [], [second, unread], [first], [graph.nodes[4]]]
