"""Gradient accumulation: micro-batches one after the other, their gradients added before they are reduced.

Gradients that a network takes within itself, or stops there: sharded over ranks all is as on one device.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Model, Parameter, Tensor, nn, ops
from mspc.compiler.call import describe_call
from mspc.compiler.driver import compile_traced, trace_call
from mspc.ir.iterative import iterative
from mspc.mindspore_api.nn import (
    Cell,
    CellList,
    GradAccumulationCell,
    Momentum,
    PipelineCell,
    ReLU,
    TrainOneStepCell,
    wrap,
)
from mspc.verify.scale.program_sizes import Divisors
from tests.compiled_scripts import CompileOptions, Config, compiled_script, verify_target
from tests.errors import error_of
from tests.graphs import FLOAT32, REGISTRY, Node, TensorType, parse, print_graph
from tests.mindspore_api.nn.training import Training, floats
from tests.texts import IMPORTS

SCRIPT = IMPORTS + """
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, full_batch=True)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("normal", [16, 8]), "w")
        self.matmul = ops.MatMul().shard(((4, 1), (1, 1)))
    def construct(self, x):
        return self.matmul(x, self.w)
net = Net()
loss = nn.{cell}(nn.WithLossCell(net, nn.MSELoss()), {parts})
step = nn.TrainOneStepCell(loss, nn.Momentum(net.trainable_params(), 0.1, 0.9))
step(Tensor(np.random.rand(32, 16), ms.float32), Tensor(np.random.rand(32, 8), ms.float32))
"""


@pytest.mark.parametrize("cell", ["GradAccumulationCell", "PipelineCell"])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_parts_are_computed_apart_and_reduced_once(tmp_path: Path, parts: int, cell: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(parts=parts, cell=cell))
    graph = compiled_script(script, 4).rank_graph(0)
    assert sum(node.instance == "matmul" and node.phase == "forward" for node in graph.nodes) == parts
    reduced: list[Node] = [node for node in graph.nodes if "mirror_user_id" in node.attrs]
    assert [(node.op.name, node.attrs["mirror_user_id"]) for node in reduced] == [("AllReduce", "w")]
    verify_target(str(script), CompileOptions(ranks=4), seed=1)


def test_several_results_are_added_up_one_by_one() -> None:
    class Two(Cell):
        def construct(self, x: Any) -> Any:
            return x.sum(), [(x * x).sum(), x]

    total, (squares, rows) = GradAccumulationCell(Two(), 2)(Tensor(np.arange(4.0)))
    assert (total.asnumpy(), squares.asnumpy()) == (6, 14)
    np.testing.assert_array_equal(rows.asnumpy(), [2, 4])


def test_stages_are_given_to_cells_by_their_names() -> None:
    cells = CellList([ReLU(), ReLU()])
    assert PipelineCell(cells, 2, {"0": 0, "1": 1}).micro_size == 2
    assert [cell.pipeline_stage for cell in cells] == [0, 1]
    error = error_of(PipelineCell, cells, 2, {"00": 1})
    assert error.message == "PipelineCell: stage_config names '00', and CellList has no such cell"
    assert error.notes == ("did you mean '0'?",)
    assert isinstance(error, KeyError)


def test_a_step_has_mindspores_private_name_too() -> None:
    step = wrap.__dict__["_TrainGradAccuStepCell"]
    assert issubclass(step, TrainOneStepCell)
    weight = Parameter(Tensor(np.ones(2, np.float32)), "w")

    class Net(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = weight

        def construct(self, x: Any) -> Any:
            return (x * self.w).sum()

    net = GradAccumulationCell(Net(), 2)
    loss = step(net, Momentum(net.trainable_params(), 0.5, 0.0))(Tensor(np.ones((4, 2), np.float32)))
    assert loss.asnumpy() == 8
    np.testing.assert_array_equal(weight.asnumpy(), np.full(2, -1.0, np.float32))


def test_what_accumulates_predicts_nothing() -> None:
    model = Model(GradAccumulationCell(ReLU(), 2))
    with pytest.raises(RuntimeError, match="GradAccumulationCell adds up the losses of parts of a batch and predicts"):
        model.predict(Tensor(np.ones((4, 2), np.float32)))


X, W = floats(0, 10, 4), floats(1, 4, 4)


def inner(p: Any, q: Any) -> Any:
    return (ops.tanh(p) @ q).sum()


def held(x: Any, w: Any) -> Any:
    dx, dw = ms.grad(inner, (0, 1))(x, w)
    return (ops.stop_gradient(dx) * x).sum() + (ops.stop_gradient(ops.stop_gradient(dw)) * dw).sum()


def ordered(x: Any, w: Any) -> Any:
    dx, dw = ms.grad(inner, (0, 1))(x, w)
    pair = (ops.depend(dw, dx), dx)
    return ((x @ pair[0]) * pair[1]).sum()


def step_of_held(x: Any, w: Any) -> Any:
    return ms.value_and_grad(held, (0, 1))(x, w)


def step_of_ordered(x: Any, w: Any) -> Any:
    return ms.value_and_grad(ordered, (0, 1))(x, w)


@pytest.mark.parametrize("step", [step_of_held, step_of_ordered])
@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (5, {"mode": "semi_auto_parallel"}),
        (4, {"mode": "auto_parallel"}),
        (10, {"mode": "auto_parallel", "search_mode": "dynamic_programming"}),
    ],
)
def test_a_gradient_within_a_network(step: Any, ranks: int, settings: dict[str, str]) -> None:
    def run(ranks: int, **settings: Any) -> list[np.ndarray]:
        loss, grads = Training(step, [X.shape, W.shape], ranks, **settings).run([(X, W)])[0]
        return [loss, *grads]

    for found, alone in zip(run(ranks, **settings), run(1), strict=True):
        np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("search_mode", ["dynamic_programming", "recursive_programming"])
def test_partial_sums_end_where_gradients_do(search_mode: str) -> None:
    def network(x: Any, w: Any) -> Any:
        return ops.stop_gradient(ops.matmul(x, w)) * 0.5

    x, w = floats(2, 2, 12), floats(3, 12, 20)
    found = Training(network, [x.shape, w.shape], 6, "auto_parallel", search_mode=search_mode).run([(x, w)])[0]
    np.testing.assert_allclose(found, x @ w * 0.5, rtol=1e-5, atol=1e-5)


LENGTH = 160
CALLS = 120
"""How deep calls may nest; a compile of a short network needs less than a hundred."""


@contextmanager
def few_calls() -> Generator[None]:
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + CALLS)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def terms(x: Any) -> Any:
    total = x
    for i in range(LENGTH):
        total = total + ops.sin(x * (i + 0.5))
    return total


def elements(x: Any) -> Any:
    for _ in range(LENGTH):
        x = ops.sin(x) * 1.5
    return x


def residuals(x: Any) -> Any:
    for _ in range(LENGTH // 4):
        x = x + ops.matmul(ops.tanh(x), x) * 0.1
    return x


def views(x: Any) -> Any:
    for _ in range(LENGTH // 4):
        x = ops.transpose(x.reshape(2, 8), (1, 0)).reshape(4, 4)
    return ops.matmul(x, x)


def casts(x: Any) -> Any:
    for _ in range(LENGTH // 2):
        x = (x.astype(ms.float16) * 0.5).astype(ms.float32)
    return x


def integers(x: Any) -> Any:
    place = ops.zeros((4,), ms.int32)
    for i in range(LENGTH):
        place = place + i % 2
    masked = place < 10_000
    for _ in range(LENGTH // 2):
        masked = ops.logical_not(masked)
    return ops.where(masked, x + place.astype(ms.float32), x)


def doubles(x: Any) -> Any:
    """Few values, and very many paths between them."""
    for _ in range(40):
        x = x * 0.5
        x = x + x
    for _ in range(40):
        x = x * x
    return ops.softmax(x + x)


def means(x: Any) -> Any:
    for _ in range(LENGTH // 4):
        x = x - x.mean(-1, keep_dims=True) + ops.softmax(x)
    return x


KINDS = [terms, elements, residuals, views, casts, integers, doubles, means]
LONG_X = floats(3, 4, 4, scale=0.5)


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_is_compiled_and_run(kind: Any) -> None:
    def gradient(x: Any) -> Any:
        return ms.grad(lambda x: kind(x).sum())(x)

    class Net(nn.Cell):
        def construct(self, x: Any) -> Any:
            return kind(x), gradient(x)

    with few_calls():
        alone = Training(Net(), [LONG_X.shape])
        read = parse(print_graph(alone.compiled.graph), REGISTRY).graphs[0]
        found = alone.run([(LONG_X,)])[0]
        ranks = Training(Net(), [LONG_X.shape], 2, "semi_auto_parallel").run([(LONG_X,)])[0]
        call = trace_call(Net(), describe_call([TensorType(FLOAT32, LONG_X.shape)], []), Config(device="GPU"))
        assert compile_traced(call).rank_graph(0).nodes
    assert len(read.nodes) == len(alone.compiled.graph.nodes)
    for one, many in zip(found, ranks, strict=True):
        np.testing.assert_allclose(many, one, rtol=1e-4, atol=1e-4)
    if kind is terms:
        np.testing.assert_allclose(
            found[0], LONG_X + sum(np.sin(LONG_X * np.float32(i + 0.5)) for i in range(LENGTH)), atol=1e-2
        )


def test_sizes_that_follow_from_one_another() -> None:
    divisors = Divisors()
    unknowns = [divisors.new() for _ in range(5000)]
    for one, next_one in pairwise(unknowns):
        divisors.equal(one, next_one)
    assert divisors.resolved((*unknowns[0], *unknowns[7])) == unknowns[-1] * 2


def test_an_iterative_function_makes_a_call_once_and_hands_out_its_result() -> None:
    calls = []

    @iterative
    def total(value: Any, by: int) -> Generator[Any, int, int]:
        calls.append(value)
        if isinstance(value, int):
            return value * by
        found = 0
        for inner in value:
            found += yield inner, by
        return found

    nested: Any = (1, 2)
    for _ in range(3000):
        nested = (nested, nested)
    assert total(nested, 3) == 9 * 2**3000
    assert len(calls) == 3003
