"""fuse_elementwise and fuse_updates: random graphs compute the same bits, and what is too much for one group."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mspc.analysis.aliasing import aliased_operands
from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value
from mspc.passes.fusion.fuse_updates import HELD, MAX_MEMBERS
from mspc.passes.fusion.fusion_groups import FARTHEST, MAX_LINES, MAX_OPERANDS
from tests.executors import Executor, NumPyBackend, World, parse_passes, run_passes
from tests.graphs import FLOAT16, FLOAT32, REGISTRY, Op, TensorType, difference, dtype_of, parse, print_graph
from tests.grouped import each
from tests.shares import share_of

UNARY = ("Neg", "Abs", "Square", "Tanh", "ReLU", "GeLU", "Identity")
BINARY = ("Add", "Sub", "Mul", "Maximum")
SIZE = 6


def new_graph(**parameters: tuple[str, tuple[int, ...]]) -> tuple[Graph, Builder, list[Parameter]]:
    graph = Graph("g")
    graph.attrs = {"mode": "stand_alone", "ranks": 1, "rank": 0}
    graph.returns_tuple = True
    for name, (kind, shape) in parameters.items():
        graph.parameters.append(Parameter(name, TensorType(FLOAT32, shape), kind))
    return graph, Builder(graph), graph.parameters


def op(name: str, *args: Any, **fields: Any) -> Any:
    return REGISTRY[name](*args, **fields)


def random_graph(seed: int) -> Graph:
    """Products, sums, views, broadcasts and elementwise operators over parameters that change on the way."""
    draw = random.Random(seed)
    square = (SIZE, SIZE)
    graph, b, parameters = new_graph(
        x=("input", square), w=("parameter", square), v=("parameter", square), u=("parameter", (SIZE,))
    )
    squares: list[Value] = [p for p in parameters if p.shape == square]
    rows: list[Value] = [parameters[3]]
    scalars: list[Value] = [Constant(0.5, FLOAT32)]
    for _ in range(draw.randint(5, 30)):
        b.phase = draw.choice(("forward", "backward")) if draw.random() < 0.2 else b.phase
        recent = draw.choice(squares[-4:])
        kind = draw.randrange(15)
        if kind < 3:
            squares.append(b.emit(op(draw.choice(UNARY)), recent))
        elif kind < 8:
            other = draw.choice((draw.choice(squares), draw.choice(rows), draw.choice(scalars)))
            pair = [recent, other]
            draw.shuffle(pair)
            squares.append(b.emit(op(draw.choice(BINARY)), *pair))
        elif kind == 8:
            squares.append(b.emit(op("MatMul"), recent, draw.choice(squares)))
        elif kind == 9:
            name = draw.choice(("ReduceSum", "ReduceMean", "ReduceMax"))
            rows.append(b.emit(op(name, axis=(draw.choice((0, 1)),)), recent))
        elif kind == 10:
            scalars.append(b.emit(op("ReduceMean", axis=()), recent))
        elif kind == 11:
            squares.append(b.emit(op("Reshape", shape=square), recent))
        elif kind == 12:
            squares.append(b.emit(op("BroadcastTo", shape=square), draw.choice((*rows, *scalars))))
        elif kind == 13:
            other = draw.choice(((SIZE * SIZE,), (SIZE, 2, SIZE // 2), (4, 9)))
            apart = b.emit(op(draw.choice(UNARY)), b.emit(op("Reshape", shape=other), recent))
            squares.append(b.emit(op("Reshape", shape=square), apart))
        else:
            name = draw.choice(("AssignAdd", "Assign"))
            for target in draw.sample(parameters[1:], draw.randint(1, 3)):
                value = draw.choice(rows if target.shape == (SIZE,) else squares)
                if value is not target:
                    b.emit(op(name), target, value)
    graph.results = [draw.choice(squares), draw.choice(rows), squares[-1]]
    return graph


def run(graph: Graph, steps: int = 2) -> list[np.ndarray]:
    """Results of every step, and the parameters after the last."""
    generator = np.random.default_rng(1)
    feeds = {p.name: generator.standard_normal(p.shape).astype(np.float32) / SIZE for p in graph.parameters}

    def main(comm: Any) -> list[np.ndarray]:
        executor = Executor(graph, NumPyBackend(comm), {k: v.copy() for k, v in feeds.items()})
        found: list[np.ndarray] = []
        for _ in range(steps):
            found += [np.array(a) for a in executor.run([feeds[p.name] for p in executor.inputs])]
        return [*found, *(np.array(executor.parameter(p.name)) for p in graph.parameters if p.kind == "parameter")]

    (result,) = World(1).run(main)
    return result


def fused(graph: Graph, passes: str = "execute,fuse_elementwise,fuse_updates,execute") -> Graph:
    result = run_passes(graph, parse_passes(passes))
    result.verify()
    for node in result.nodes:
        assert isinstance(node.op, Op)
        if node.op.name in ("FusedElementwise", "GroupedUpdate"):
            assert node.op.infer(*(v.type for v in node.inputs)) == node.type
    again = parse(print_graph(result), REGISTRY).main
    assert difference(again, result) == ""
    return result


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes if node.op.name != "TupleGetItem"]


def test_a_view_of_what_no_member_makes_stays_a_view() -> None:
    """A copy of it would cost time, and its sums would be of other bits than those of what is laid out otherwise."""
    graph, b, (x, u) = new_graph(x=("input", (SIZE, SIZE)), u=("input", (SIZE,)))
    view = b.emit(op("Identity"), b.emit(op("BroadcastTo", shape=(SIZE, SIZE)), u))
    inner = b.emit(op("Identity"), b.emit(op("Neg"), x))
    graph.results = [b.emit(op("ReduceMean", axis=()), view), b.emit(op("Add"), b.emit(op("ReLU"), view), inner)]
    made = fused(graph)
    assert [node.op.name for node in made.nodes][:2] == ["BroadcastTo", "Identity"]
    assert "Identity(t" in print_graph(made)
    for expected, found in zip(run(fused(graph, "execute")), run(made), strict=True):
        np.testing.assert_array_equal(expected, found)


@settings(max_examples=share_of(150), deadline=None)
@given(st.integers(0, 1 << 40))
@example(173791)
def test_random_graphs_compute_the_same_bits(seed: int) -> None:
    expected = run(fused(random_graph(seed), "execute"))
    found = run(fused(random_graph(seed)))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=share_of(100), deadline=None)
@example(2618)  # two equal operators, one before and one behind an update of what they read
@example(64)  # an identity Reshape of a parameter that is updated before the result is read
@given(st.integers(0, 1 << 40))
def test_cleaning_keeps_what_random_graphs_compute(seed: int) -> None:
    computes_the_same(seed, "execute")


@settings(max_examples=share_of(100), deadline=None)
@given(st.integers(0, 1 << 40))
def test_random_graphs_that_nobody_has_cleaned_compute_the_same(seed: int) -> None:
    """But for rounding: a product of a broadcast tensor and one of its copy need not take the same way."""
    computes_the_same(seed, "fuse_elementwise,fuse_updates")


def computes_the_same(seed: int, passes: str) -> None:
    """Whether a random graph gives the same numbers with and without the passes, up to rounding."""
    expected = run(random_graph(seed))
    found = run(fused(random_graph(seed), passes))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_most_random_graphs_are_fused() -> None:
    counts = [names(fused(random_graph(seed))) for seed in range(50)]
    assert sum("FusedElementwise" in found for found in counts) > 40
    assert sum("GroupedUpdate" in found for found in counts) > 10


def test_views_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write files

    def check(name: str, index: int) -> None:
        cls = REGISTRY[name]
        sample = cls.samples[index]
        types, operands = operands_of(sample)
        member = cls(**sample.fields)
        inputs = [Parameter(f"x{i}", type) for i, type in enumerate(types)]
        known = set(aliased_operands(Node(member, inputs, member.infer(*types))))
        with np.errstate(all="ignore"):
            result = member.run(NumPyBackend(None), *operands)
        for part in result if isinstance(result, tuple) else (result,):
            seen = {i for i, operand in enumerate(operands) if np.shares_memory(part, operand)}
            assert seen <= known

    each(check, [(name, index) for name, cls in sorted(REGISTRY.items()) for index in range(len(cls.samples))])


def operands_of(sample: Any) -> tuple[list[TensorType], list[np.ndarray]]:
    generator = np.random.default_rng(0)
    dtypes = [dtype_of(name) for name in sample.dtypes or ("Float64",) * len(sample.shapes)]
    types = [TensorType(dtype, shape) for dtype, shape in zip(dtypes, sample.shapes, strict=True)]
    operands = [
        np.array(
            generator.uniform(sample.low, sample.high, t.shape)
            if t.dtype.is_float
            else generator.integers(max(0, int(sample.low)), max(1, int(sample.high)), t.shape)
        ).astype(t.dtype.numpy)
        for t in types
    ]
    return types, operands


def chain(length: int, between: int = 0) -> Graph:
    """Negations of x, with products between the first and the others."""
    graph, b, (x,) = new_graph(x=("input", (SIZE, SIZE)))
    first = value = b.emit(op("Neg"), x)
    product: Value = x
    for _ in range(between):
        product = b.emit(op("MatMul"), product, x)
    for _ in range(length - 1):
        value = b.emit(op("Neg"), value)
    graph.results = [value, product, first]
    return graph


def lines(graph: Graph) -> list[int]:
    return [len(node.op.attributes()["body"]) for node in graph.nodes if node.op.name == "FusedElementwise"]


def test_group_has_at_most_so_many_lines() -> None:
    assert lines(fused(chain(MAX_LINES))) == [MAX_LINES]
    assert lines(fused(chain(MAX_LINES + 2))) == [MAX_LINES, 2]


def test_group_has_at_most_so_many_operands() -> None:
    count = MAX_OPERANDS + 1
    graph, b, inputs = new_graph(**{f"x{i}": ("input", (4,)) for i in range(count)})
    value: Value = inputs[0]
    for other in inputs[1:]:
        value = b.emit(op("Add"), value, other)
    graph.results = [value]
    result = fused(graph)
    assert names(result) == ["FusedElementwise", "Add"]
    assert [len(node.inputs) for node in result.nodes] == [MAX_OPERANDS, 2]


def test_members_do_not_move_far() -> None:
    assert lines(fused(chain(2, between=FARTHEST - 1))) == [2]
    assert lines(fused(chain(2, between=FARTHEST))) == []


@pytest.mark.parametrize("rows", [4, 9])
def test_a_tensor_of_one_number_is_that_number(rows: int) -> None:
    graph, b, (x,) = new_graph(x=("input", (4, 4)))
    zeros = b.emit(op("Fill", FLOAT32, (rows, 4), 0))
    if rows > 4:
        zeros = b.emit(op("StridedSlice", begin=(2, 0), end=(6, 4), strides=(1, 1)), zeros)
    graph.results = [b.emit(op("Maximum"), b.emit(op("Neg"), x), zeros)]
    result = fused(graph)
    assert names(result) == ["FusedElementwise"]
    assert result.nodes[0].inputs[1].shape == ()


def test_shapes_that_do_not_fit_together_are_not_fused() -> None:
    graph, b, (x, row, column) = new_graph(x=("input", (4, 9)), row=("input", (9,)), column=("input", (4,)))
    flat = b.emit(op("Reshape", shape=(9, 4)), b.emit(op("Add"), x, row))
    graph.results = [b.emit(op("Neg"), b.emit(op("Mul"), flat, column))]
    assert names(fused(graph)) == ["Add", "Reshape", "FusedElementwise"]


def test_phases_do_not_mix() -> None:
    graph, b, (x,) = new_graph(x=("input", (4,)))
    forward = b.emit(op("Tanh"), x)
    b.phase = "backward"
    slope = b.emit(op("TanhGrad"), forward, x)
    b.phase = "update"
    graph.results = [forward, b.emit(op("Neg"), slope)]
    result = fused(graph)
    assert [(node.op.name, node.phase) for node in result.nodes] == [
        ("Tanh", "forward"), ("FusedElementwise", "update"),
    ]  # fmt: skip


def test_fused_node_tells_its_members() -> None:
    graph, b, (x,) = new_graph(x=("input", (4,)))
    made = b.emit(op("Neg"), x)
    last = b.emit(op("ReLU"), made, instance="relu")
    made.attrs["note"] = 3
    b.phase = "backward"
    graph.results = [last]
    node: Node = fused(graph).nodes[0]
    assert node.attrs == {"fused": ("Neg", "ReLU 'relu'"), "note": (3, None)}
    assert node.label == "FusedElementwise of Neg, ReLU 'relu'"


def test_operator_that_aligns_its_operands_otherwise_is_not_fused() -> None:
    graph, b, (x, weight) = new_graph(x=("input", (4, 3, 3)), weight=("parameter", (3,)))
    graph.results = [b.emit(op("Neg"), b.emit(op("PReLU"), x, weight))]
    assert names(fused(graph)) == ["PReLU", "Neg"]


def test_scattered_reduction_stays_alone() -> None:
    graph, b, (x,) = new_graph(x=("input", (2, 3, 4)))
    graph.results = [b.emit(op("ReduceSum", axis=(1,)), b.emit(op("Neg"), x))]
    assert names(fused(graph)) == ["Neg", "ReduceSum"]


def updates(count: int, shape: tuple[int, ...] = (4,), scaled: bool = False) -> Graph:
    """AssignAdds of as many parameters by one input, each scaled just before where wanted."""
    graph, b, (x, *targets) = new_graph(x=("input", shape), **{f"w{i}": ("parameter", shape) for i in range(count)})
    b.phase = "update"
    for target in targets:
        b.emit(op("AssignAdd"), target, b.emit(op("MatMul"), x, x) if scaled else x)
    return graph


def test_group_has_at_most_so_many_members() -> None:
    result = fused(updates(MAX_MEMBERS + 2))
    assert [node.op.attributes()["count"] for node in result.nodes] == [MAX_MEMBERS, 2]


def test_gradients_do_not_pile_up() -> None:
    shape = (1 << 11, 1 << 11)  # 16 MB each, of which the first may die before the group is done
    assert shape[0] * shape[1] * 4 * 4 == HELD
    result = run_passes(updates(7, shape, scaled=True), parse_passes("fuse_updates"))
    assert [node.op.attributes().get("count") for node in result.nodes if node.op.has_side_effect] == [5, 2]


def test_result_of_a_member_is_an_element() -> None:
    graph, b, (w, v, x) = new_graph(w=("parameter", (4,)), v=("parameter", (4,)), x=("input", (4,)))
    first, second = b.emit(op("AssignAdd"), w, x), b.emit(op("AssignAdd"), v, x)
    graph.results = [b.emit(op("Sub"), second, first)]
    result = fused(graph)
    assert names(result) == ["GroupedUpdate", "Sub"]
    assert [node.op.attributes()["index"] for node in result.nodes if node.op.name == "TupleGetItem"] == [0, 1]


@pytest.mark.parametrize(("uses", "expected"), [(1, ["GroupedUpdate"]), (2, ["ApplyMomentum"] * 2)])
def test_cast_is_taken_in_where_nobody_else_reads_it(uses: int, expected: list[str]) -> None:
    graph, b, (w, v) = new_graph(w=("parameter", (4,)), v=("parameter", (4,)))
    rate = Constant(0.5, FLOAT32)
    b.phase = "update"
    for target in (w, v):
        state = Parameter(f"moments.{target.name}", target.type, "parameter")
        half = Parameter(f"half.{target.name}", TensorType(FLOAT16, (4,)))
        graph.parameters += [state, half]
        b.emit(op("ApplyMomentum"), target, state, rate, b.emit(op("Cast", dst_type=FLOAT32), half), rate)
    if uses == 2:
        graph.results = [b.emit(op("Neg"), graph.nodes[0])]
    result = fused(graph)
    assert [name for name in names(result) if name.endswith(("Update", "Momentum"))] == expected
    read = [v.type.dtype for node in result.nodes for v in node.inputs if node.op.name == "GroupedUpdate"]
    assert (FLOAT16 in read) == (uses == 1)


def test_reasons_of_members_are_one_text_that_is_read_back() -> None:
    graph, b, (x,) = new_graph(x=("input", (4, 4)))
    nodes = [x]
    for reason in ("", "a mean", "", "a mean", "another"):
        nodes.append(b.emit(op("Tanh"), nodes[-1]))
        if reason:
            nodes[-1].attrs["reason"] = reason
    graph.results = [nodes[-1]]
    run_passes(graph, parse_passes("fuse_elementwise"))
    (fused,) = graph.nodes
    assert fused.attrs["reason"] == "a mean; another"
    text = print_graph(graph)
    assert print_graph(parse(text, REGISTRY).main) == text


def test_a_switch_of_one_member_is_the_group_s_and_is_read_back() -> None:
    graph, b, (x,) = new_graph(x=("input", (4, 4)))
    first = b.emit(op("Tanh"), x)
    second = b.emit(op("Neg"), first)
    second.attrs["gathers_again"] = True
    graph.results = [second]
    run_passes(graph, parse_passes("fuse_elementwise"))
    (fused,) = graph.nodes
    assert fused.attrs["gathers_again"] is True
    text = print_graph(graph)
    assert print_graph(parse(text, REGISTRY).main) == text


def test_values_of_fewer_elements_have_a_kernel_of_their_own() -> None:
    graph, b, (x, y) = new_graph(x=("input", (4,)), y=("input", (2, 4)))
    small = b.emit(op("Tanh"), b.emit(op("Exp"), x))
    graph.results = [b.emit(op("Tanh"), b.emit(op("Add"), small, y))]
    result = fused(graph)
    assert [node.shape for node in result.nodes] == [(4,), (2, 4)]
    assert names(result) == ["FusedElementwise"] * 2
