"""The remarks of `simplify` on its own work."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from mspc.ir.graph import Builder, Graph, Parameter
from mspc.ir.text.printer import print_graph
from mspc.ir.types import FLOAT32, TensorType
from mspc.ir.varying import Looks, RankField, Varying
from mspc.ops.collective.point_to_point import Receive
from mspc.ops.math.arithmetic import Add, Neg
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Reshape
from mspc.passes.cleanup.simplify import Simplify, remove_dead
from mspc.passes.fusion.fuse_attention import FuseAttention


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
