"""fuse_moves: random graphs compute the same bits, and what stays as it is."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import moves_elements
from mspc.ops.fused.elementwise import FusedElementwise, has_moves
from mspc.passes.fusion.fusion_groups import FARTHEST
from tests.executors import parse_passes, plan_memory, run_passes
from tests.graphs import FLOAT16, Builder, Graph, Node, Value
from tests.ops.cuda.cuda_chains import Case
from tests.ops.cuda.random_moves import moving
from tests.ops.cuda.test_cuda_elementwise import check
from tests.passes.fusion.test_fuse_elementwise import fused, names, new_graph, op, run
from tests.shares import share_of

PASSES = "execute,fuse_rows,fuse_elementwise,recompute_elementwise,fuse_moves,fuse_updates,execute"
UNARY = ("Neg", "Abs", "Square", "Tanh")


def part(value: Value, axis: int, begin: int, end: int) -> Any:
    shape = value.shape
    first = tuple(begin if d == axis else 0 for d in range(len(shape)))
    last = tuple(end if d == axis else n for d, n in enumerate(shape))
    return op("StridedSlice", begin=first, end=last, strides=(1,) * len(shape))


def random_graph(seed: int) -> Graph:
    """Operators that move elements between elementwise ones, products and sums, over parameters that change."""
    draw = random.Random(seed)
    graph, b, (x, w, v) = new_graph(x=("input", (4, 6)), w=("parameter", (4, 6)), v=("parameter", (4, 6)))
    values: list[Value] = [x, w, v]
    for _ in range(draw.randint(6, 24)):
        b.phase = draw.choice(("forward", "backward")) if draw.random() < 0.2 else b.phase
        value = draw.choice(values[-5:])
        kind = draw.randrange(12)
        if kind < 3 and value.tensor_type.size < 500:
            values.append(b.emit(moving(draw, value.shape), value))
        elif kind < 6:
            values.append(b.emit(op(draw.choice(UNARY)), value))
        elif kind == 6:
            alike = [other for other in values if other.shape == value.shape]
            values.append(b.emit(op(draw.choice(("Add", "Mul"))), value, draw.choice(alike)))
        elif kind == 7 and value.tensor_type.size < 500:
            alike = [other for other in values if other.shape == value.shape]
            values.append(b.emit(op("Concat", axis=draw.randrange(len(value.shape))), value, draw.choice(alike)))
        elif kind == 8 and value.shape[0] % 2 == 0:
            whole = b.emit(op("Split", axis=0, output_num=2), value)
            values += [b.emit(TupleGetItem(i), whole) for i in (0, 1)]
        elif kind == 9:
            axis = draw.randrange(len(value.shape))
            values.append(b.emit(op("ReduceSum", axis=(axis,), keep_dims=True), value))
        elif kind == 10:
            rows = value.shape[0]
            values.append(b.emit(op("Reshape", shape=(rows, value.tensor_type.size // rows)), value))
        else:
            alike = [other for other in values if other.shape == (4, 6)]
            b.emit(op(draw.choice(("AssignAdd", "Assign"))), draw.choice((w, v)), draw.choice(alike))
    graph.results = [values[-1], draw.choice(values[3:] or values), draw.choice(values)]
    return graph


def test_random_graphs_compute_the_same_bits() -> None:
    count = taken = 0
    for seed in range(share_of(400)):
        plain, made = random_graph(seed), fused(random_graph(seed), PASSES)
        for one, other in zip(run(plain), run(made), strict=True):
            np.testing.assert_array_equal(one, other)
        count += 1
        taken += any(isinstance(node.op, FusedElementwise) and has_moves(node.op) for node in made.nodes)
    assert taken > count / 3


def test_kernels_of_random_graphs_equal_numpy(tmp_path: Path) -> None:
    cases = [
        Case(node.op, tuple(value.tensor_type for value in node.inputs))
        for seed in range(share_of(200))
        for node in fused(random_graph(seed), PASSES).nodes
        if isinstance(node.op, FusedElementwise) and has_moves(node.op)
    ]
    assert len(cases) > 20
    check(cases, tmp_path)


def moved(graph: Graph) -> Graph:
    return run_passes(graph, parse_passes("fuse_moves"))


def joined() -> tuple[Graph, Builder, list[Any], Node]:
    """A join of two inputs, and a third input of its shape."""
    graph, b, values = new_graph(x=("input", (64, 32)), y=("input", (64, 32)), z=("input", (64, 64)))
    return graph, b, list(values), b.emit(op("Concat", axis=1), *values[:2])


def test_a_join_that_kernels_alone_read_is_not_stored() -> None:
    graph, b, (_, _, z), join = joined()
    graph.results = [b.emit(op("Add"), join, z), b.emit(op("Mul"), join, z)]
    assert names(moved(graph)) == ["FusedElementwise"] * 2


def test_a_join_that_others_read_stays() -> None:
    for reader in ("MatMul", "returned"):
        graph, b, (_, _, z), join = joined()
        graph.results = [b.emit(op("Add"), join, z), b.emit(op("MatMul"), join, z) if reader == "MatMul" else join]
        assert names(moved(graph))[:2] == ["Concat", "Add"]


def test_a_slice_of_what_changes_in_between_stays() -> None:
    graph, b, (x, w) = new_graph(x=("input", (64, 64)), w=("parameter", (64, 64)))
    taken = b.emit(part(w, 0, 0, 32), w)
    b.emit(op("Assign"), w, x)
    graph.results = [b.emit(op("Exp"), taken)]
    assert names(moved(graph)) == ["StridedSlice", "Assign", "Exp"]


def far(parts: int) -> Graph:
    """This number of parts of eight of a product, which are read far after it."""
    graph, b, (x,) = new_graph(x=("input", (64, 64)))
    whole = b.emit(op("MatMul"), x, x)
    taken = [b.emit(part(whole, 0, 8 * i, 8 * i + 8), whole) for i in range(parts)]
    value: Value = x
    for _ in range(FARTHEST + 1):
        value = b.emit(op("MatMul"), value, x)
    graph.results = [value, *(b.emit(op("Exp"), each) for each in taken)]
    return graph


def test_a_tensor_is_not_stored_for_a_part_of_it() -> None:
    assert names(moved(far(1))).count("StridedSlice") == 1
    assert names(moved(far(4))).count("StridedSlice") == 4
    assert names(moved(far(8))).count("StridedSlice") == 0  # together they are all of it


def test_conversions_of_parameters_stay() -> None:
    """An optimizer may write them (`shadow_weights`)."""
    graph, b, (w, v) = new_graph(w=("parameter", (64, 64)), v=("parameter", (64, 64)))
    halves = [b.emit(op("Cast", dst_type=FLOAT16), value) for value in (w, v)]
    graph.results = [b.emit(op("Neg"), b.emit(op("Concat", axis=0), *halves))]
    assert names(moved(graph)) == ["Cast", "Cast", "FusedElementwise"]


def test_updates_of_parameters_read_slices_that_are_stored() -> None:
    graph, b, (x, w) = new_graph(x=("input", (64, 64)), w=("parameter", (32, 64)))
    taken = b.emit(part(x, 0, 0, 32), x)
    b.phase = "update"
    b.emit(op("Assign"), w, b.emit(op("Sub"), w, taken))
    graph.results = [w]
    assert "StridedSlice" in names(moved(graph))


def test_results_that_become_one_line_stay_two() -> None:
    graph, b, (x, y) = new_graph(x=("input", (64, 64)), y=("input", (32, 64)))
    ways = [b.emit(part(x, 0, 0, 32), x), b.emit(TupleGetItem(0), b.emit(op("Split", axis=0, output_num=2), x))]
    results = [b.emit(op("Mul"), b.emit(op("Neg"), way), y) for way in ways]
    graph.results = [*results, b.emit(op("Add"), *results)]
    plain = run(graph)
    made = run_passes(graph, parse_passes("fuse_rows,fuse_elementwise,fuse_moves"))
    assert any(isinstance(node.op, FusedElementwise) and has_moves(node.op) for node in made.nodes)
    for one, other in zip(plain, run(made), strict=True):
        np.testing.assert_array_equal(one, other)


def test_slices_of_a_redistribution_stay() -> None:
    """They are others on every rank, and one run of the pass serves all ranks."""
    graph, b, (x,) = new_graph(x=("input", (64, 64)))
    taken = b.emit(part(x, 0, 0, 32), x)
    taken.attrs["reason"] = "input x is replicated, input 0 of Neg must be sharded"
    graph.results = [b.emit(op("Neg"), taken)]
    assert names(moved(graph)) == ["StridedSlice", "Neg"]


def test_a_transpose_against_the_order_of_memory_stays() -> None:
    """Its own kernel goes through tiles; a line that reads columns would load 16 times as much."""
    for perm, stays in (((1, 0, 2), False), ((0, 2, 1), True)):
        graph, b, (x,) = new_graph(x=("input", (256, 256, 64)))
        graph.results = [b.emit(op("Neg"), b.emit(op("Transpose", perm=perm), x))]
        assert any(moves_elements(node.op) for node in moved(graph).nodes) is stays


@pytest.mark.parametrize("turns", [False, True])
def test_no_result_overwrites_what_is_read_at_other_places(turns: bool) -> None:
    graph, b, (x,) = new_graph(x=("input", (64, 64)))
    value = b.emit(op("MatMul"), x, x)
    moves = op("ReverseV2", axis=(0,)) if turns else op("Abs")
    other = b.emit(moves, value)
    made = b.emit(op("Add"), value, other)
    graph.results = [b.emit(op("MatMul"), made, x)]
    again = run_passes(graph, parse_passes("fuse_rows,fuse_elementwise,fuse_moves"))
    (kernel,) = [node for node in again.nodes if isinstance(node.op, FusedElementwise)]
    assert has_moves(kernel.op) is turns  # type: ignore[arg-type]
    plan = plan_memory(again)
    places = [plan.places[node][0].offset for node in (kernel.inputs[0], kernel)]
    assert (places[0] == places[1]) is not turns
