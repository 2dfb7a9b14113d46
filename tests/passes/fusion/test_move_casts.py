"""move_casts: drawn networks of casts and of operators that move elements give the same bits, and move fewer bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT8, TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.convolution.resizing import ResizeNearestNeighbor
from mspc.ops.math.arithmetic import Neg
from mspc.ops.op import load_operators
from mspc.ops.optim.optimizer import Assign
from mspc.ops.tensor.broadcast import BroadcastTo
from mspc.ops.tensor.moving import Concat, Split, Stack, Transpose
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.fusion.move_casts import MoveCasts
from tests.interpret import random_feeds, run_global
from tests.passes.fusion.written import graph_of

load_operators()

KINDS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)


def moved_bytes(graph: Graph) -> int:
    """The bytes that all nodes read and write that are no views."""
    nodes = [node for node in graph.nodes if not node.op.is_view]
    return sum(t.nbytes for node in nodes for v in (node, *node.inputs) for t in element_types(v.type))


def drawn_graph(seed: int) -> Graph:
    draw = random.Random(seed)
    graph, b, given = graph_of(*(TensorType(draw.choice(KINDS), (4, 6)) for _ in range(3)), kind="input")
    graph.returns_tuple = True
    values: list[Value] = [*given]
    for _ in range(14):
        x = draw.choice(values[-5:])
        shape = x.shape
        kind = draw.randrange(9)
        if kind < 3:
            values.append(b.emit(Cast(draw.choice(KINDS)), x))
        elif kind == 3 and shape:
            values.append(b.emit(Transpose(tuple(draw.sample(range(len(shape)), len(shape)))), x))
        elif kind == 4:
            values.append(b.emit(Reshape(draw.choice([(-1,), (x.tensor_type.size, 1), (1, *shape[::-1])])), x))
        elif kind == 5 and shape[0] % 2 == 0:
            parts = b.emit(Split(0, 2), x)
            values += [b.emit(TupleGetItem(i), parts) for i in range(draw.choice([1, 2]))]
        elif kind == 6:
            same = [v for v in values if v.type == x.type]
            values.append(b.emit(draw.choice([Concat(0), Stack(0)]), x, draw.choice(same)))
        elif kind == 7:
            values.append(b.emit(StridedSlice(begin=(0,) * len(shape), end=shape, strides=(2,) * len(shape)), x))
        elif kind == 8:
            values.append(b.emit(draw.choice([Neg(), BroadcastTo((2, *shape))]), x))
    graph.results = [v for v in values[-5:] if isinstance(v, Node)]
    return graph


@pytest.mark.parametrize("seed", range(60))
def test_numbers_stay_and_no_more_bytes_move(seed: int) -> None:
    graph = drawn_graph(seed)
    feeds = random_feeds(graph)
    expected = run_global(graph, feeds)
    MoveCasts().run(drawn := drawn_graph(seed))
    drawn.verify()
    for got, want in zip(run_global(drawn, feeds), expected, strict=True):
        assert got.dtype == want.dtype
        assert np.array_equal(got, want)
    kernels = sum(not isinstance(node.op, Cast) and not node.op.is_view for node in drawn.nodes)
    assert kernels <= sum(not isinstance(node.op, Cast) and not node.op.is_view for node in graph.nodes)


def test_a_cast_stays_where_its_numbers_are_read_and_where_it_converts_fewer() -> None:
    graph, b, (x, y) = graph_of(TensorType(FLOAT32, (8, 8)), TensorType(BFLOAT16, (8, 8)))
    part = b.emit(StridedSlice(begin=(0, 0), end=(2, 8), strides=(1, 1)), x)
    wide = b.emit(Cast(FLOAT32), y)
    graph.results = [b.emit(Cast(BFLOAT16), part), b.emit(Transpose((1, 0)), wide), b.emit(Neg(), wide)]
    graph.returns_tuple = True
    before = moved_bytes(graph)
    assert not MoveCasts().run(graph)
    assert moved_bytes(graph) == before


def test_what_is_widened_is_read_before_it_is_updated() -> None:
    graph, b, (w, x) = graph_of(TensorType(BFLOAT16, (4, 6)), TensorType(BFLOAT16, (4, 6)))
    wide = b.emit(Cast(FLOAT32), w)
    update = b.emit(Assign(), w, x)
    graph.results = [b.emit(Transpose((1, 0)), wide), update]
    graph.returns_tuple = True
    feeds = random_feeds(graph)
    MoveCasts().run(graph)
    graph.verify()
    assert np.array_equal(run_global(graph, feeds)[0], feeds["x0"].astype(np.float32).T)


def test_an_image_is_resized_while_it_is_narrow_but_not_as_integers() -> None:
    """Whose nearest places the operator does not look for."""
    image = TensorType(FLOAT32, (2, 3, 4, 5))
    for kind, before, after in ((BFLOAT16, "ResizeNearestNeighbor Cast", "Cast ResizeNearestNeighbor"),
                                (INT8, "ResizeNearestNeighbor Cast", "ResizeNearestNeighbor Cast")):  # fmt: skip
        graph, b, (given,) = graph_of(image)
        graph.results = [b.emit(Cast(kind), b.emit(ResizeNearestNeighbor(size=(8, 10)), given))]
        feeds = random_feeds(graph)
        expected = run_global(graph, feeds)[0]
        assert " ".join(node.op.name for node in graph.nodes) == before
        MoveCasts().run(graph)
        graph.verify()
        assert " ".join(node.op.name for node in graph.nodes) == after
        assert np.array_equal(run_global(graph, feeds)[0], expected)
    graph, b, (given,) = graph_of(TensorType(INT8, (2, 3, 4, 5)))
    wide = b.emit(Cast(FLOAT32), given)
    graph.results = [b.emit(ResizeNearestNeighbor(size=(2, 2)), wide)]
    assert not MoveCasts().run(graph)
