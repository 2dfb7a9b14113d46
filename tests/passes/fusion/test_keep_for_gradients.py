"""keep_for_gradients: random graphs compute the same bits in no more memory, and what is kept and what is not."""

import random

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mspc.analysis.aliasing import last_reads, viewed_operands
from mspc.passes.base import parse_passes, run_passes
from mspc.passes.fusion.keep_for_gradients import UNBOUNDED, join_recomputed, nearest_cut
from tests.graphs import FLOAT16, FLOAT32, Graph, Node, Value, element_types
from tests.operators import FusedElementwise, TupleGetItem
from tests.passes.fusion.test_fuse_elementwise import fused, new_graph, op, run
from tests.shares import share_of

SIZE = (8, 16)
PASSES = "execute,fuse_rows,fuse_elementwise,recompute_elementwise"


def most_alive(graph: Graph) -> int:
    """Most bytes of nodes' results alive at once, counted node by node."""
    last = last_reads(graph, viewed_operands)
    most = 0
    for number in range(len(graph.nodes)):
        made = [n for n in graph.nodes[: number + 1] if last.get(n, -1) >= number and not n.op.is_view]
        most = max(most, sum(t.nbytes for n in made for t in element_types(n.type)))
    return most


def layers(count: int, change: bool = False, narrow: bool = True) -> Graph:
    """Layers whose gradient reads, in a product, the conversion of a product of halves to which a bias is added.

    change: whether the bias is updated ahead of the gradients. narrow: whether the products are of halves.
    """
    graph, b, (x, w, bias) = new_graph(x=("input", (64, 64)), w=("parameter", (64, 64)), bias=("parameter", (64,)))
    small = FLOAT16 if narrow else FLOAT32
    waiting: list[Node] = []
    value: Value = x
    for _ in range(count):
        half = b.emit(op("MatMul"), *(b.emit(op("Cast", dst_type=small), v) for v in (value, w)))
        wide = b.emit(op("Add"), b.emit(op("Cast", dst_type=FLOAT32), half), bias)
        waiting.append(wide)
        value = b.emit(op("MatMul"), b.emit(op("Tanh"), wide), w)
    b.phase = "backward"
    if change:
        b.emit(op("Assign"), bias, b.emit(op("Neg"), bias))
    for wide in reversed(waiting):
        value = b.emit(op("MatMul", transpose_a=True), wide, value)
    graph.results = [value]
    return graph


def random_steps(seed: int) -> Graph:
    """Products, elementwise operators, softmaxes, joins and views; the gradients read some of what is ahead of them."""
    draw = random.Random(seed)
    graph, b, (x, w, c) = new_graph(x=("input", SIZE), w=("parameter", (SIZE[1], SIZE[1])), c=("parameter", (SIZE[1],)))
    values: list[Value] = [x]

    def full(value: Value) -> Value:
        return value if value.tensor_type.dtype is FLOAT32 else b.emit(op("Cast", dst_type=FLOAT32), value)

    def one() -> Value:
        value, kind = draw.choice(values[-4:]), draw.randrange(8)
        if kind == 0:
            return b.emit(op("MatMul"), full(value), w)
        if kind == 1:
            return b.emit(op("Cast", dst_type=FLOAT16), full(value))
        if kind == 2:
            return b.emit(op("Softmax"), full(value))
        if kind == 3:
            joined = b.emit(op("Concat", axis=1), full(value), full(draw.choice(values)))
            part = op("StridedSlice", begin=(0, 5), end=(SIZE[0], 5 + SIZE[1]), strides=(1, 1))
            return b.emit(part, joined)
        if kind == 4:
            flat = b.emit(op("Tanh"), b.emit(op("Reshape", shape=(SIZE[1], SIZE[0])), value))
            return b.emit(op("Reshape", shape=SIZE), flat)
        if kind == 5:
            return b.emit(op("Add"), full(value), full(draw.choice((c, *values))))
        if kind == 6 and draw.random() < 0.3:
            b.emit(op("Assign"), c, b.emit(op("Neg"), c))
        return b.emit(op(draw.choice(("Tanh", "Neg", "Sigmoid"))), value)

    for _ in range(draw.randint(6, 24)):
        values.append(one())
    b.phase = "backward"
    total = full(values[-1])
    for value in reversed(values):
        if draw.random() < 0.6:
            total = b.emit(op("MatMul"), b.emit(op("Mul"), total, full(value)), w)
        if draw.random() < 0.4:
            total = b.emit(op("Add"), total, b.emit(op("MatMul"), full(value), w))
    graph.results = [total]
    return graph


@settings(max_examples=share_of(120), deadline=None)
@given(st.integers(0, 1 << 40))
def test_random_steps_have_the_same_bits_and_take_no_more_memory(seed: int) -> None:
    before = run_passes(random_steps(seed), parse_passes(PASSES))
    after = run_passes(random_steps(seed), parse_passes(f"{PASSES},keep_for_gradients"))
    assert most_alive(after) <= most_alive(before)
    for a, b in zip(run(before), run(after), strict=True):
        np.testing.assert_array_equal(a, b)


def test_halves_wait_in_place_of_their_conversions() -> None:
    before, after = (run_passes(layers(6), parse_passes(PASSES + more)) for more in ("", ",keep_for_gradients"))
    again = [node for node in after.nodes if node.attrs.get("recomputed")]
    assert len(again) >= 4
    assert most_alive(after) < 0.75 * most_alive(before)
    for node in again:  # right before what reads it
        assert node in after.nodes[after.nodes.index(node) + 1].inputs
    for a, b in zip(run(before), run(after), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("kind", "again"), [("Neg", True), ("Erf", False)])
def test_what_takes_long_to_compute_waits(kind: str, again: bool) -> None:
    """Beside a value that waits for another reader, one made of it costs a pass over memory, or the instructions of six
    functions, in the time of which more than three times its bytes are moved."""
    graph, b, (x, w) = new_graph(x=("input", (64, 64)), w=("parameter", (64, 64)))
    waiting: list[tuple[Node, Node]] = []
    value: Value = x
    for _ in range(6):
        made = b.emit(op("MatMul"), value, w)
        behind = made
        for _ in range(6):
            behind = b.emit(op(kind), behind)
        waiting.append((made, behind))
        value = b.emit(op("MatMul"), behind, w)
    b.phase = "backward"
    for both in reversed(waiting):
        for one in both:
            value = b.emit(op("MatMul", transpose_a=True), one, value)
    graph.results = [value]
    found = run_passes(graph, parse_passes(f"{PASSES},keep_for_gradients"))
    assert any(node.attrs.get("recomputed") for node in found.nodes) is again


@pytest.mark.parametrize("options", [{"change": True}, {"narrow": False}], ids=str)
def test_what_is_read_has_changed_or_is_not_smaller(options: dict[str, bool]) -> None:
    graph = run_passes(layers(6, **options), parse_passes(f"{PASSES},keep_for_gradients"))
    assert not [node for node in graph.nodes if node.attrs.get("recomputed")]


def test_a_graph_without_gradients_stays() -> None:
    graph = layers(3)
    for node in graph.nodes:
        node.phase = "forward"
    changed = parse_passes("keep_for_gradients")[0].run(graph)
    assert not changed
    assert fused(graph, "keep_for_gradients") is graph


# A value that is made again for the gradients comes out of a kernel that reads the same, where its readers wait for it.


SHAPE = (64, 64)


def gated(layers: int) -> Graph:
    """Layers sigmoid(x w) * (x u), and their gradients: of a weight behind by the gated values, then of both parts."""
    graph, b, (x, w, u) = new_graph(x=("input", SHAPE), w=("parameter", SHAPE), u=("parameter", SHAPE))
    parts: list[tuple[Value, Value, Value]] = []
    value: Value = x
    for _ in range(layers):
        gate, up = b.emit(op("MatMul"), value, w), b.emit(op("MatMul"), value, u)
        made = b.emit(op("Mul"), b.emit(op("Sigmoid"), gate), up)
        parts.append((gate, up, made))
        value = b.emit(op("MatMul"), made, w)
    b.phase = "backward"
    results: list[Value] = []
    for gate, up, made in reversed(parts):
        results.append(b.emit(op("MatMul", transpose_a=True), made, value))
        grad = b.emit(op("MatMul", transpose_b=True), value, w)
        own = b.emit(op("Mul"), b.emit(op("Tanh"), gate), b.emit(op("Mul"), grad, up))
        value = b.emit(op("MatMul", transpose_b=True), own, w)
    graph.results = [*results, value]
    return graph


def test_a_kernel_makes_what_it_has_the_operands_of() -> None:
    before, after = (run_passes(gated(6), parse_passes(PASSES + more)) for more in ("", ",keep_for_gradients"))
    again = [node for node in after.nodes if node.attrs.get("recomputed")]
    assert len(again) >= 4
    for node in again:
        assert isinstance(node.op, TupleGetItem)
        kernel = node.inputs[0]
        assert isinstance(kernel, Node)
        assert isinstance(kernel.op, FusedElementwise)
        assert len(kernel.op.returns) == 2
    assert most_alive(after) < most_alive(before)
    for a, b in zip(run(before), run(after), strict=True):
        np.testing.assert_array_equal(a, b)


def beside(between: str) -> tuple[Graph, Node, Node]:
    """A value made again of a product, its reader, and a kernel behind both that reads the product, too."""
    graph, b, (x, w, c) = new_graph(x=("input", SHAPE), w=("parameter", SHAPE), c=("parameter", SHAPE))
    product = b.emit(op("MatMul"), x, w)
    b.phase = "backward"
    copy = b.emit(op("Tanh"), product)
    copy.attrs["recomputed"] = True
    value = reader = b.emit(op("MatMul"), copy, c if between == "update" else w)
    if between == "update":
        b.emit(op("Assign"), c, w)
    if between == "many":
        for _ in range(8):
            value = b.emit(op("MatMul"), value, w)
    kernel = b.emit(op("Mul"), product, value if between == "reader" else b.emit(op("MatMul"), x, product))
    graph.results = [value, kernel]
    return graph, copy, reader


def test_readers_move_behind_the_kernel() -> None:
    graph, copy, reader = beside("")
    expected = run(graph)
    assert join_recomputed(graph) == copy.tensor_type.nbytes
    assert [node.op.name for node in graph.nodes[2:]] == ["FusedElementwise", "TupleGetItem", "TupleGetItem", "MatMul"]
    assert graph.nodes[-1] is reader
    for a, b in zip(expected, run(graph), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("between", ["update", "many", "reader"])
def test_readers_that_cannot_wait_keep_their_pass(between: str) -> None:
    """One reads a parameter that is updated ahead of the kernel; too many would move; the kernel waits for them."""
    graph, _, _ = beside(between)
    nodes = list(graph.nodes)
    assert join_recomputed(graph) == 0
    assert graph.nodes == nodes


def test_several_results_that_are_made_again_keep_their_kernel() -> None:
    graph, b, (x, w) = new_graph(x=("input", SHAPE), w=("parameter", SHAPE))
    product = b.emit(op("MatMul"), x, w)
    b.phase = "backward"
    copy = b.emit(FusedElementwise(("Tanh(x0)", "Sigmoid(x0)"), (0, 1)), product)
    copy.attrs["recomputed"] = True
    parts = [b.emit(TupleGetItem(i), copy) for i in range(2)]
    graph.results = [*(b.emit(op("MatMul"), part, w) for part in parts), b.emit(op("Mul"), product, product)]
    nodes = list(graph.nodes)
    assert join_recomputed(graph) == 0
    assert graph.nodes == nodes


# Minimum cuts are those of networkx, nearest to the sink.


def network(seed: int) -> dict[tuple[int, int], int]:
    """Edges in both directions between some of ten places; some are unbounded, but for those to the sink 9."""
    draw = random.Random(seed)
    edges: dict[tuple[int, int], int] = {}
    for _ in range(draw.randrange(5, 40)):
        start, stop = draw.sample(range(10), 2)
        edges[start, stop] = UNBOUNDED if stop != 9 and draw.random() < 0.2 else draw.randrange(4)
    return edges


@pytest.mark.parametrize("seed", range(50))
def test_cuts_are_those_of_networkx(seed: int) -> None:
    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_nodes_from((0, 9))
    for (start, stop), capacity in network(seed).items():
        graph.add_edge(start, stop, capacity=capacity)
    _, (_, far) = networkx.minimum_cut(graph, 0, 9)
    assert nearest_cut(network(seed), 0, 9) == far
