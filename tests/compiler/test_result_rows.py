"""A called network returns, where every rank feeds its own rows, its rows of results that have rows, the rest
replicated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn, ops, value_and_grad
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType, dtype_of
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.executor import Executor

ROWS = 8
Results = Callable[[Any, Any, Any, Any], Any]
X = np.random.default_rng(0).standard_normal((ROWS, 4)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((ROWS, 4)).astype(np.float32)
IDS = np.arange(ROWS, dtype=np.int32)[::-1].copy()
TYPES = [TensorType(dtype_of(a.dtype), a.shape) for a in (X, Y, IDS)]


class Net(nn.Cell):
    """Parameters as large as the batch in one dimension or the other."""

    def __init__(self, results: Results) -> None:
        super().__init__()
        random = np.random.default_rng(2)
        self.w = Parameter(Tensor(random.standard_normal((ROWS, 4)).astype(np.float32)), "w")
        self.v = Parameter(Tensor(random.standard_normal((4, ROWS)).astype(np.float32)), "v")
        self.results = results

    def construct(self, x: Any, y: Any, ids: Any) -> Any:
        return self.results(self, x, y, ids)


def _run(results: Results, ranks: int, mode: str, strategy: Any = "data_parallel") -> list[list[Any]]:
    """The results of every rank."""
    config = Config(ranks=ranks, mode=mode, dataset_strategy=strategy)
    compiled = compile_call(Net(results), TYPES, config, global_types=True)
    values = {name: np.array(parameter.array) for name, parameter in compiled.traced.parameters.items()}
    values |= compiled.traced.constants

    def own_slice(parameter: Any, rank: int, array: Any) -> Any:
        layout = parameter.layout
        return array[layout.slices_for(rank, array.shape)].copy() if isinstance(layout, Layout) else array

    def main(comm: LocalComm) -> list[Any]:
        graph = compiled.rank_graph(comm.rank)
        stored = {p.name: own_slice(p, comm.rank, values[p.name]) for p in graph.parameters if p.kind != "input"}
        executor = Executor(graph, NumPyBackend(comm), stored)
        return executor.run([own_slice(p, comm.rank, a) for p, a in zip(executor.inputs, (X, Y, IDS), strict=True)])

    return World(ranks).run(main)


def _check(results: Results, cuts: tuple[Any, ...], ranks: int, mode: str, strategy: Any = "data_parallel") -> None:
    """`cuts`: by result the dimension of the rows, None where every rank gets all of it."""
    (expected,) = _run(results, 1, "stand_alone")
    assert len(expected) == len(cuts)
    for rank, found in enumerate(_run(results, ranks, mode, strategy)):
        for mine, global_result, dimension in zip(found, expected, cuts, strict=True):
            wanted = global_result if dimension is None else np.split(global_result, ranks, dimension)[rank]
            assert mine.shape == wanted.shape
            np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5)


def _ones(*shape: int) -> Any:
    return Tensor(np.ones(shape, np.float32))


CASES: dict[str, tuple[Results, tuple[Any, ...]]] = {
    "a parameter": (lambda net, x, y, ids: (ops.relu(net.w), net.w, net.v), (None, None, None)),
    "an input": (lambda net, x, y, ids: (x, ids, x + net.w), (0, 0, 0)),
    "constants": (lambda net, x, y, ids: (ops.zeros((8, 4)), _ones(8, 4), ops.arange(8)), (None, None, None)),
    "transposed": (lambda net, x, y, ids: (ops.transpose(x, (1, 0)), ops.stack((x, y), 0)), (1, 1)),
    "reshaped": (lambda net, x, y, ids: (ops.reshape(x, (-1,)), ops.reshape(x, (1, 8, 4))), (0, 1)),
    "matmul": (lambda net, x, y, ids: (ops.matmul(x, net.v), ops.matmul(net.w, ops.transpose(x, (1, 0)))), (0, 1)),
    "both rows": (lambda net, x, y, ids: ops.matmul(x, ops.transpose(y, (1, 0))), (0,)),
    "summed rows": (
        lambda net, x, y, ids: (ops.reduce_sum(x, 0), ops.reduce_mean(x, 1), ops.matmul(ops.transpose(x, (1, 0)), y)),
        (None, 0, None),
    ),
    "summed to the size of the batch": (lambda net, x, y, ids: ops.reduce_sum(ops.matmul(x, net.v), 0), (None,)),
    "gathered": (lambda net, x, y, ids: (ops.gather(net.w, ids, 0), ops.gather(net.v, ids, 1)), (0, 1)),
    "rows in another order": (lambda net, x, y, ids: (ops.softmax(x, 0), ops.cumsum(x, 0)), (0, 0)),
    "some rows": (lambda net, x, y, ids: (x[:4], x[2:6] + 1.0, x[0]), (None, None, None)),
    "concatenated": (lambda net, x, y, ids: (ops.concat((x, y), 1), ops.concat((x[:4], y[:4]), 0)), (0, None)),
    "nested": (lambda net, x, y, ids: (x + y, (net.w, {"a": ops.relu(net.v)}), [ids, 3]), (0, None, None, 0)),
    "several results": (lambda net, x, y, ids: (ops.Split(1, 2)(x), ops.ArgMaxWithValue(1)(x)), (0, 0, 0, 0)),
    "slices of the batch": (lambda net, x, y, ids: ops.Split(0, 2)(x), (None, None)),
    "gradients of inputs": (lambda net, x, y, ids: ops.grad(lambda a: ops.reduce_sum(ops.matmul(a, net.v)))(x), (0,)),
    "constant gradients": (
        lambda net, x, y, ids: (ops.grad(ops.reduce_sum)(x[:, :1]), ops.grad(lambda a: ops.reduce_sum(a[:, 0]))(y)),
        (0, 0),
    ),
    "gradients of values": (lambda net, x, y, ids: ops.grad(ops.reduce_sum)(ops.relu(x)), (0,)),
    "gradients": (
        lambda net, x, y, ids: value_and_grad(lambda a, b: ops.reduce_sum(a * b * net.w), (0, 1), [net.w])(x, y),
        (None, 0, 0, None),
    ),
    "one gradient of two values": (
        lambda net, x, y, ids: value_and_grad(lambda a: ops.reduce_sum(a + net.w), 0, [net.w])(x), (None, 0, None),
    ),
    "gradients of two calls": (
        lambda net, x, y, ids: (
            ops.grad(lambda a: ops.reduce_sum(a + net.w))(x),
            ops.grad(lambda a: ops.reduce_sum(a + net.w), None, net.w)(x),
        ),
        (0, None),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_results_are_own_rows_where_they_have_rows(case: str, ranks: int, mode: str) -> None:
    results, cuts = CASES[case]
    _check(results, cuts, ranks, mode)


@pytest.mark.parametrize("strategy", ["full_batch", ((2, 1), (1, 2), (2,)), ((1, 2), (1, 1), (1,))])
@pytest.mark.parametrize("case", CASES)
def test_results_are_global_where_data_are_not_the_ranks_own_rows(case: str, strategy: Any) -> None:
    results, cuts = CASES[case]
    _check(results, (None,) * len(cuts), 2, "semi_auto_parallel", strategy)


def test_a_batch_that_becomes_two_dimensions_is_sharded_in_both() -> None:
    def results(net: Any, x: Any, y: Any, ids: Any) -> Any:
        return ops.reshape(x, (4, 2, 4)), ops.transpose(ops.reshape(x, (4, 2, 4)), (2, 1, 0))

    (expected,) = _run(results, 1, "stand_alone")
    for rank, (found, turned) in enumerate(_run(results, 8, "semi_auto_parallel")):
        np.testing.assert_array_equal(found, expected[0][rank // 2 : rank // 2 + 1, rank % 2 : rank % 2 + 1])
        np.testing.assert_array_equal(turned, expected[1][:, rank % 2 : rank % 2 + 1, rank // 2 : rank // 2 + 1])
