"""The remarks of `simplify` on its own work."""

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import pytest

from mspc.ir.graph import Builder, Constant, Graph, Parameter, Value, copied_region
from mspc.ir.varying import Looks, RankField, Varying
from mspc.ops.control.regions import For, If, Loop, While
from mspc.ops.control.structural import Gradient, TupleGetItem
from mspc.ops.math.arithmetic import Add, Less, Mul, Neg
from mspc.ops.tensor.reshape import BroadcastTo, Cast, ReduceSum, Reshape
from mspc.passes.autodiff.grad import Grad
from mspc.passes.base import PassManager
from mspc.passes.cleanup import hoist_invariants
from mspc.passes.cleanup.hoist_invariants import HoistInvariants
from mspc.passes.cleanup.hoist_joined import HoistJoined
from mspc.passes.cleanup.simplify import Simplify, remove_dead
from mspc.passes.fusion.fuse_attention import FuseAttention
from tests.graphs import FLOAT32, FLOAT64, INT64, Op, TensorType, print_graph
from tests.operators import AssignAdd, Dropout, Gather, MatMul, Print, Range, Receive, Stack, Tanh, Transpose
from tests.passes.autodiff.differentiated import COUNT, checked, floats, graph, region, run, with_gradients
from tests.random_regions import RandomRegions


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_it_has_changed_something_where_nodes_are_gone(dead: int) -> None:
    graph = Graph("simplify")
    x = Parameter("x", TensorType(FLOAT32, (2,)))
    graph.parameters = [x]
    b = Builder(graph)
    graph.results = [b.emit(Neg(), x)]
    for _ in range(dead):
        b.emit(Neg(), graph.nodes[-1])
    assert Simplify().run(graph) is (dead > 0)
    assert len(graph.nodes) == 1


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("cleaned", [Simplify().run, remove_dead, FuseAttention().run])
def test_marks_and_constants_that_are_gone_are_changes(cleaned: Callable[[Graph], bool], shown: bool) -> None:
    graph = Graph("marks")
    x, unread = (Parameter(name, TensorType(FLOAT32, (2,))) for name in ("x", "unread"))
    unread.kind = "constant"
    graph.parameters = [x] if shown else [x, unread]
    b = Builder(graph)
    graph.results = [b.emit(Neg(), x)]
    if shown:
        b.emit(Neg(), x).in_strategy = ((1,),)
    before = print_graph(graph)
    assert cleaned(graph)
    assert print_graph(graph) != before
    assert not cleaned(graph)
    assert len(graph.nodes) == 1 + shown


@pytest.mark.parametrize(
    ("op", "phase", "kept"),
    [(Neg(), "forward", 2), (Neg(), "backward", 1), (Receive(src_rank=1, shape=(2,)), "backward", 2)],
    ids=["as the script has them", "of gradients", "what other ranks see"],
)
def test_equal_operators_of_gradients_are_one_where_nothing_else_sees_them(op: Op, phase: str, kept: int) -> None:
    graph = Graph("twice")
    x = Parameter("x", TensorType(FLOAT32, (2,)))
    graph.parameters = [x]
    b = Builder(graph)
    b.phase = phase
    graph.results = [b.emit(Add(), b.emit(op, x), b.emit(op, x))]
    Simplify().run(graph)
    assert [node.op for node in graph.nodes].count(op) == kept


@pytest.mark.parametrize(("shape", "kept"), [((4, 2), 1), ((2, 4), 2)])
def test_an_operator_that_ranks_have_with_other_numbers_equals_what_one_rank_shows(
    shape: tuple[int, ...], kept: int
) -> None:
    graph = Graph("ranks")
    x = Parameter("x", TensorType(FLOAT32, (8,)))
    graph.parameters = [x]
    b = Builder(graph)
    b.phase = "backward"
    stands_in = b.emit(Reshape((4, 2)), x)
    stands_in.op = Reshape(cast("tuple[int, ...]", Varying(RankField(0, 0, "shape"), (4, 2), Looks())))
    graph.results = [stands_in, b.emit(Reshape(shape), x)]
    graph.returns_tuple = True
    Simplify().run(graph)
    assert len(graph.nodes) == kept


@pytest.mark.parametrize(("mode", "stays"), [("data_parallel", True), ("semi_auto_parallel", False)])
def test_what_names_a_gradient_that_ranks_still_add_stays(mode: str, stays: bool) -> None:
    graph = Graph("gradient")
    graph.attrs["mode"] = mode
    x = Parameter("x", TensorType(FLOAT32, (2,)))
    graph.parameters = [x]
    b = Builder(graph)
    b.phase = "backward"
    same = b.emit(Reshape((2,)), x)
    same.attrs["gradient_for"] = "w"
    graph.results = [same]
    Simplify().run(graph)
    assert graph.results == ([same] if stays else [x])


def test_of_two_equal_gradients_one_names_both_parameters() -> None:
    graph = Graph("gradients")
    graph.attrs["mode"] = "data_parallel"
    x = Parameter("x", TensorType(FLOAT32, (2,)))
    graph.parameters = [x]
    b = Builder(graph)
    b.phase = "backward"
    for name in ("w", "v"):
        graph.results.append(b.emit(Neg(), x))
        graph.nodes[-1].attrs["gradient_for"] = name
    graph.returns_tuple = True
    Simplify().run(graph)
    assert [node.attrs["gradient_for"] for node in graph.nodes] == ["w,v"]


ROWS, SQUARE = floats(2, 3), floats(3, 3)
NARROW = TensorType(FLOAT32, (3, 3))
Turn = Callable[[Builder, Value, Value], Value]


def names(made: Graph) -> list[str]:
    return [node.op.name for node in made.nodes]


def counted(turn: Turn, op: Loop, weight: TensorType = SQUARE) -> Graph:
    """`x = turn(x, w)` in a loop; x is the first parameter, w the second, the number of turns the third."""
    if isinstance(op, While):
        types = [COUNT, ROWS, COUNT, weight]
        condition = graph("condition", types, lambda b, i, x, n, w: [b.emit(Less(), i, n)])
        body = graph("body", types, lambda b, i, x, n, w: [b.emit(Add(), i, Constant(1, INT64)), turn(b, x, w)])
        made = lambda b, x, w, n: region(b, op, [Constant(0, INT64), x, n, w], condition, body)[1:]  # noqa: E731
    else:
        body = graph("body", [COUNT, ROWS, weight], lambda b, i, x, w: [turn(b, x, w)])
        lead = [] if op.known_iterations([]) >= 0 else [2]
        made = lambda b, *v: region(b, op, [*(v[i] for i in lead), v[0], v[1]], body)  # noqa: E731
    return graph("main", [ROWS, weight, COUNT], made)


def hoisted(made: Graph, arrays: Sequence[np.ndarray]) -> Graph:
    """The graph behind the pass, which computes the same."""
    wanted = run(copied_region(made), arrays)
    changed = HoistInvariants().run(made)
    checked(made)
    for found, value in zip(run(made, arrays), wanted, strict=True):
        np.testing.assert_array_equal(found, value)
    assert not HoistInvariants().run(made)
    assert changed == (made.nodes[0].regions == () and made.nodes[0].op.name != "AssignAdd")
    return made


def arrays(weight: TensorType = SQUARE, turns: int = 3) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.random(ROWS.shape), generator.random(weight.shape).astype(weight.dtype.numpy), np.array(turns)]


LOOPS = [For(turns=3, carried=1), For(carried=1), While(carried=2)]


def converted(b: Builder, x: Value, w: Value) -> Value:
    turned = b.emit(Reshape((3, 3)), b.emit(Transpose((1, 0)), b.emit(Cast(FLOAT64), w)))
    return b.emit(Tanh(), b.emit(MatMul(), x, turned))


@pytest.mark.parametrize("op", LOOPS)
@pytest.mark.parametrize("turns", [3, 0])
def test_a_converted_and_turned_weight(op: Loop, turns: int) -> None:
    made = hoisted(counted(converted, op, NARROW), arrays(NARROW, turns))
    assert names(made)[:4] == ["Cast", "Transpose", "Reshape", op.name]
    assert names(made.nodes[3].regions[-1])[-2:] == ["MatMul", "Tanh"]
    assert len(made.nodes[3].inputs) == len(counted(converted, op, NARROW).nodes[0].inputs) + 1


def test_the_gradient_of_what_is_moved_is_taken_once() -> None:
    def make() -> Graph:
        made = counted(converted, For(turns=3, carried=1))
        return graph("main", [ROWS, SQUARE], lambda b, x, w: [b.emit(ReduceSum(), region(
            b, For(turns=3, carried=1), [x, w], made.nodes[0].regions[0])[0])])  # fmt: skip

    feeds = arrays()[:2]
    found: list[list[np.ndarray]] = []
    for passes in ([Grad(), Simplify()], [HoistInvariants(), Grad(), Simplify()]):
        made = with_gradients(make, [0, 1])
        PassManager().run(made, passes)
        found.append(run(checked(made), feeds))
    assert names(made).count("Transpose") == 2
    assert not any("Transpose" in names(each) for each in made.graphs()[1:])
    for plain, moved in zip(*found, strict=True):
        np.testing.assert_allclose(moved, plain, rtol=1e-12)


def test_out_of_loops_in_loops() -> None:
    inner = graph("inner", [COUNT, ROWS, SQUARE], lambda b, i, x, w: [converted(b, x, w)])
    outer = graph("outer", [COUNT, ROWS, SQUARE], lambda b, i, x, w: region(b, For(turns=2, carried=1), [x, w], inner))
    made = graph("main", [ROWS, SQUARE, COUNT], lambda b, x, w, n: region(b, For(turns=2, carried=1), [x, w], outer))
    hoisted(made, arrays())
    assert names(made)[:2] == ["Cast", "Transpose"] or names(made)[:1] == ["Transpose"]
    assert names(outer) == ["For", "TupleGetItem"]


def branch(b: Builder, x: Value, w: Value) -> Value:
    """A branch that most turns do not take."""
    holds = b.emit(Less(), b.emit(ReduceSum(), x), b.emit(ReduceSum(), b.emit(Mul(), x, x)))
    then = graph("then", [ROWS, SQUARE], lambda b, x, w: [converted(b, x, w)])
    otherwise = graph("else", [ROWS, SQUARE], lambda b, x, w: [b.emit(Tanh(), x)])
    return region(b, If(), [holds, x, w], then, otherwise)[0]


def expanded(b: Builder, x: Value, w: Value) -> Value:
    wide = b.emit(BroadcastTo((64, 3, 3)), w)
    return b.emit(Mul(), x, b.emit(ReduceSum(), b.emit(Mul(), wide, b.emit(ReduceSum(), x))))


def drawn(b: Builder, x: Value, w: Value) -> Value:
    return b.emit(MatMul(), x, b.emit(TupleGetItem(0), b.emit(Dropout(0.5, 1, 2), w)))


def printed(b: Builder, x: Value, w: Value) -> Value:
    b.emit(Print(("{}",)), w)
    return b.emit(Tanh(), x)


def updated(b: Builder, x: Value, w: Value) -> Value:
    b.emit(AssignAdd(), w, w)
    return b.emit(MatMul(), x, b.emit(Transpose((1, 0)), w))


def differentiated(b: Builder, x: Value, w: Value) -> Value:
    loss = b.emit(ReduceSum(), b.emit(MatMul(), x, b.emit(Transpose((1, 0)), w)))
    request = b.emit(Gradient(), loss, w)
    return b.emit(MatMul(), x, b.emit(TupleGetItem(0), request))


def looked_up(b: Builder, x: Value, w: Value) -> Value:
    rows = b.emit(Gather(axis=0), w, Constant([0, 1], INT64))
    return b.emit(Add(), x, rows)


@pytest.mark.parametrize("turn", [branch, expanded, drawn, printed, updated])
def test_what_stays(turn: Turn) -> None:
    for op in LOOPS:
        made = hoisted(counted(turn, op), arrays())
        assert names(made)[0] == op.name


def test_nothing_leaves_a_graph_that_asks_for_gradients() -> None:
    assert not HoistInvariants().run(counted(differentiated, For(turns=3, carried=1)))


def test_what_may_fail_leaves_only_what_runs() -> None:
    assert names(hoisted(counted(looked_up, For(turns=3, carried=1)), arrays()))[0] == "Gather"
    for op in LOOPS[1:]:
        assert names(hoisted(counted(looked_up, op), arrays()))[0] == op.name


def test_a_parameter_that_is_handed_in_twice_and_overwritten() -> None:
    def body(b: Builder, _: Value, x: Value, w: Value, same: Value) -> list[Value]:
        b.emit(AssignAdd(), w, same)
        return [b.emit(MatMul(), x, b.emit(Transpose((1, 0)), same))]

    inner = graph("body", [COUNT, ROWS, SQUARE, SQUARE], body)
    made = graph("main", [ROWS, SQUARE], lambda b, x, w: region(b, For(turns=2, carried=1), [x, w, w], inner), 1)
    assert not HoistInvariants().run(made)


def test_what_constants_make_is_moved_out_of_a_ranks_own_graph() -> None:
    def turn(b: Builder, x: Value, w: Value) -> Value:
        return b.emit(Add(), x, b.emit(Reshape((1, 3)), b.emit(Range(limit=3.0, dtype=FLOAT64))))

    made = hoisted(counted(turn, While(carried=2)), arrays())
    assert names(made)[0] == "While"
    assert HoistJoined().run(made)
    assert names(made)[:2] == ["Range", "Reshape"]


def test_joined_weights_are_moved() -> None:
    def turn(b: Builder, x: Value, w: Value) -> Value:
        both = b.emit(Stack(axis=0), w, w)
        return b.emit(Tanh(), b.emit(MatMul(), x, b.emit(ReduceSum(axis=(0,), keep_dims=False), both)))

    assert names(hoisted(counted(turn, While(carried=2)), arrays()))[:2] == ["Stack", "ReduceSum"]


def test_a_loop_holds_no_more_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hoist_invariants, "MAX_KEPT", 3 * 3 * 8 - 1)
    assert names(hoisted(counted(converted, While(carried=2)), arrays()))[0] == "While"


@pytest.mark.parametrize("seed", range(24))
def test_random_graphs_compute_the_same(seed: int) -> None:
    made = RandomRegions(seed).graph
    feeds = [np.random.default_rng(seed).random(p.shape).astype(p.tensor_type.dtype.numpy) for p in made.parameters]
    wanted = run(copied_region(made), feeds)
    HoistInvariants().run(made)
    for found, value in zip(run(checked(made), feeds), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-12)
