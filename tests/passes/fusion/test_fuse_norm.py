"""fuse_norm: what the golden case does not show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mspc.ir.graph import Graph, Node
from mspc.ir.text.parser import parse
from mspc.ir.types import FLOAT16, FLOAT32, TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.norms import FusedLayerNormGrad
from mspc.ops.math.arithmetic import Add, AddN, Mul
from mspc.ops.nn.batch_norm import BatchNorm, BatchNormGrad
from mspc.ops.nn.norm import LayerNorm, LayerNormGammaGrad, LayerNormGrad
from mspc.ops.op import REGISTRY, Op, load_operators
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.ops.tensor.reshape import Cast
from mspc.passes.fusion.fuse_norm import FuseNorm
from mspc.passes.fusion.split_batch_norm import SplitBatchNorm
from tests.interpret import left_behind, random_feeds, run_global, same
from tests.passes.fusion.written import graph_of

SHAPES = ((4, 32), (32,), (32,))
CASE = Path(__file__).parent / "fuse_norm" / "residual.ir"

load_operators()


def residual() -> Graph:
    return parse(CASE.read_text(encoding="utf-8"), REGISTRY, file=CASE.name).main


def test_norm_whose_result_is_taken_out_twice() -> None:
    graph = residual()
    first = next(n for n in graph.nodes if n.op == TupleGetItem(0) and n.inputs[0].op.name == "LayerNorm")  # type: ignore[attr-defined]
    again = Node(first.op, first.inputs, first.type, "again")
    graph.nodes.insert(graph.nodes.index(first) + 1, again)
    graph.results.append(again)
    graph.returns_tuple = True
    left_behind(FuseNorm(), graph)


def test_unused_norm_of_a_sum_that_others_read() -> None:
    """A norm that only shows how it is sharded goes later, and would take the sum with it."""
    for unused in (False, True):
        graph = residual()
        total = next(n for n in graph.nodes if n.op.name == "Add")
        norm = [n for n in graph.nodes if n.op.name == "LayerNorm"][-1]
        cast = norm.inputs[0]
        assert isinstance(cast, Node)
        cast.inputs = [total]
        if unused:
            norm.attrs["unused"] = True
        FuseNorm().run(graph)
        graph.verify()
        assert (norm in graph.nodes, total in graph.nodes) == (unused, unused)


MIXED = *[TensorType(FLOAT16, (4, 32))] * 2, *[TensorType(FLOAT32, (32,))] * 2


def test_a_sum_that_stands_before_the_parameters_of_its_norm_is_not_joined() -> None:
    """Under O3 the parameters are cast between the two."""
    graph, b, (x, y, gamma, beta) = graph_of(*MIXED)
    total = b.emit(Add(), x, y)
    casts = [b.emit(Cast(dst_type=FLOAT16), p) for p in (gamma, beta)]
    norm = b.emit(LayerNorm(-1, -1), total, *casts)
    graph.results.append(b.emit(Add(), b.emit(TupleGetItem(0), norm), total))
    left_behind(FuseNorm(), graph)


def test_a_norm_of_halves_with_parameters_of_float32_gives_halves() -> None:
    graph, b, (x, y, gamma, beta) = graph_of(*MIXED)
    graph.results.append(b.emit(TupleGetItem(0), b.emit(LayerNorm(-1, -1), b.emit(Add(), x, y), gamma, beta)))
    assert FuseNorm().run(graph)
    graph.verify()
    assert graph.nodes[0].op.name == "FusedLayerNorm"
    assert graph.results[0].tensor_type.dtype == FLOAT16


def test_a_norm_without_a_sum_or_a_conversion_beside_it_stays() -> None:
    graph, b, (x, gamma, beta) = graph_of(*(TensorType(FLOAT32, shape) for shape in SHAPES))
    norm = b.emit(LayerNorm(-1, -1), x, gamma, beta)
    graph.results.append(b.emit(TupleGetItem(0), norm))
    assert not FuseNorm().run(graph)
    assert norm in graph.nodes


@pytest.mark.parametrize("read_again", [False, True], ids=["by the norm alone", "by others"])
@pytest.mark.parametrize("narrow", [False, True], ids=["Float32", "a term in Float16"])
def test_a_gradient_that_is_a_sum_of_two_is_read_as_two(narrow: bool, read_again: bool) -> None:
    kind = FLOAT16 if narrow else FLOAT32
    types = [TensorType(FLOAT32, (4, 32)), TensorType(kind, (4, 32)), TensorType(FLOAT32, (4, 32))]
    types += [TensorType(FLOAT32, (4, 1))] * 2 + [TensorType(FLOAT32, (32,))]
    graph, b, (first, second, x, mean, variance, gamma) = graph_of(*types)
    dout = b.emit(AddN(), first, b.emit(Cast(FLOAT32), second) if narrow else second)
    scale = b.emit(LayerNormGammaGrad(-1, -1, 1e-5), dout, x, mean, variance)
    shift = b.emit(ReduceSum(False, (0,)), dout)
    gradient = b.emit(LayerNormGrad(-1, 1e-5), dout, x, mean, variance, gamma)
    graph.results = [b.emit(Mul(), gradient, x), b.emit(Add(), scale, shift), *([dout] if read_again else [])]
    graph.returns_tuple = True
    left_behind(FuseNorm(), graph)
    [made] = [node for node in graph.nodes if isinstance(node.op, FusedLayerNormGrad)]
    assert isinstance(made.op, FusedLayerNormGrad)
    assert made.op.joins != read_again
    assert made.inputs[0] is (dout if read_again else first)
    assert ("AddN" in made.attrs["fused"]) != read_again
    if not read_again:
        assert made.inputs[-1] is second


# split_batch_norm: batches of any number of values of a channel, also of one.


load_operators()
IMAGE_SHAPES = ((1, 3), (1, 3, 1, 1), (2, 3), (1, 3, 2, 1), (4, 3, 2, 2))


@pytest.mark.parametrize("shape", IMAGE_SHAPES, ids=str)
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("kind", [BatchNorm, BatchNormGrad])
def test_the_parts_compute_what_the_operator_does(kind: type[Op], trains: bool, shape: tuple[int, ...]) -> None:
    op = kind(is_training=trains)
    images = 1 if kind is BatchNorm else 2
    shapes = [shape] * images + [shape[1:2]] * (5 - images)
    graph, b, parameters = graph_of(*(TensorType(FLOAT32, shape) for shape in shapes))
    graph.results = [b.emit(op, *parameters)]
    feeds = {name: np.abs(value) + 0.5 for name, value in random_feeds(graph).items()}
    expected = run_global(graph, feeds)
    assert SplitBatchNorm().run(graph)
    graph.verify()
    assert not any(isinstance(node.op, kind) for node in graph.nodes)
    same(run_global(graph, feeds), expected)
