"""A called network returns, where every rank feeds its own rows, its rows of results that have rows, the rest
replicated."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Parameter, Tensor, nn, ops, value_and_grad
from tests.compiled_scripts import Config, compile_call
from tests.executors import Executor, LocalComm, NumPyBackend, World
from tests.graphs import Layout, TensorType, dtype_of

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


class _Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        mspc.set_seed(3)
        self.w = Parameter(Tensor(np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)), "w")
        self.drop, self.other = nn.Dropout(p=0.5), ops.Dropout(keep_prob=0.6, Seed0=5)
        self.set_train()


class First(_Net):
    """In dimension 0, behind layers, and at one place twice."""

    def construct(self, x: Any) -> Any:
        for _ in range(2):
            x = self.drop(ops.tanh(ops.matmul(x, self.w)))
        return x, self.other(x.reshape(-1, 2, 4))[0].reshape(-1, 8)


class Heads(_Net):
    """Attention: [batch, heads, rows, columns] out of [batch * rows, ...]."""

    def construct(self, x: Any) -> Any:
        tokens = ops.matmul(x, self.w).reshape(-1, 2, 2, 2)  # [batch, rows, heads, inside]
        query = ops.transpose(tokens, (0, 2, 1, 3))
        scores = self.drop(ops.softmax(ops.matmul(query, ops.transpose(query, (0, 1, 3, 2)))))
        mixed = ops.transpose(ops.matmul(scores, query), (0, 2, 1, 3))
        return scores, self.drop(mixed.reshape(-1, 8))


class Channels(_Net):
    def construct(self, x: Any) -> Any:
        images = x.reshape(-1, 4, 2, 1)
        return ops.dropout2d(images, 0.5), ops.dropout1d(x.reshape(-1, 4, 2), 0.5), ops.dropout3d(
            x.reshape(-1, 4, 2, 1, 1), 0.5)  # fmt: skip


class Combined(_Net):
    """Numbers out of nothing belong to the batch by what they are combined with."""

    def construct(self, x: Any) -> Any:
        rows = x.shape[0]
        path = ops.floor(ops.rand(rows, 1) + 0.5)
        noise = ops.standard_normal((rows, 8), seed=2)
        return x * path, x + noise * 2


class Latent(_Net):
    """Numbers that no input meets: the batch has their size, and no parameter."""

    def construct(self, x: Any) -> Any:
        hidden = self.drop(ops.relu(ops.matmul(ops.standard_normal((x.shape[0], 8), seed=2), self.w)))
        return hidden, ops.rand(x.shape[0], seed=4)


class Repeated(_Net):
    """Every row twice: dimension 0 holds the rows of a rank beside their copies."""

    def construct(self, x: Any) -> Any:
        return (self.drop(ops.stack((x, x), 1).reshape(-1, 8)),)


RANDOM_CASES = (First, Heads, Channels, Combined, Latent, Repeated)


def random_run(cell: Any, mode: str, ranks: int, rows: np.ndarray, parameter: str = "") -> list[list[np.ndarray]]:
    """The results of every rank in its second step, or a parameter after it."""
    per_rank = np.split(rows, ranks)
    types = [TensorType(dtype_of("float32"), per_rank[0].shape)]
    compiled = compile_call(cell, types, Config(ranks=ranks, mode=mode))
    values = {name: np.array(parameter.array) for name, parameter in compiled.traced.parameters.items()}

    def main(comm: LocalComm) -> list[np.ndarray]:
        graph = compiled.rank_graph(comm.rank)
        known = {p.name: compiled.traced.constants.get(p.name, values.get(p.name)) for p in graph.parameters}
        stored = {name: np.array(value) for name, value in known.items() if value is not None}
        executor = Executor(graph, NumPyBackend(comm), stored)
        executor.run([per_rank[comm.rank]])
        found = [np.array(a) for a in executor.run([per_rank[comm.rank]])]
        return [np.array(executor.parameter(parameter))] if parameter else found

    return World(ranks).run(main)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("cell", RANDOM_CASES, ids=lambda cell: cell.__name__)
def test_the_rows_are_those_of_the_global_batch(cell: Any, ranks: int) -> None:
    for batch in (ranks, 3 * ranks):  # a rank of one row alone has no factor for it
        rows = np.random.default_rng(batch).standard_normal((batch, 8)).astype(np.float32)
        (global_results,) = random_run(cell(), "stand_alone", 1, rows)
        found = random_run(cell(), "data_parallel", ranks, rows)
        for i, expected in enumerate(global_results):
            mine = np.concatenate([results[i] for results in found])
            np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6, err_msg=f"result {i} of {batch} rows")


class Turned(_Net):
    """Rows that are not first: columns, and blocks of the only dimension."""

    def construct(self, x: Any) -> Any:
        columns = ops.transpose(x, (1, 0))
        return self.drop(columns), self.drop(columns.reshape(-1)), ops.relu(self.drop(columns.reshape(2, -1)))


@pytest.mark.parametrize("batch", [2, 6])
def test_rows_that_are_not_first(batch: int) -> None:
    rows = np.random.default_rng(batch).standard_normal((batch, 8)).astype(np.float32)
    (global_results,) = random_run(Turned(), "stand_alone", 1, rows)
    found = random_run(Turned(), "data_parallel", 2, rows)
    mine = np.concatenate([results[0] for results in found], 1)
    np.testing.assert_array_equal(mine, global_results[0])
    for i in (1, 2):
        parts = [results[i].reshape(8, -1) for results in found]
        np.testing.assert_array_equal(np.concatenate(parts, 1), global_results[i].reshape(8, -1))


class Weights(_Net):
    """Masks of what every rank has alike, one of which has as many rows as the batch."""

    def construct(self, x: Any) -> Any:
        dropped, _ = self.other(self.w)
        mask = ops.floor(ops.rand(*self.w.shape) + 0.5)
        return ops.matmul(x, dropped), ops.matmul(x, self.w * mask), self.drop(self.w)


@pytest.mark.parametrize("ranks", [2, 4])
def test_masks_of_weights_are_those_of_every_rank(ranks: int) -> None:
    rows = np.ones((8 * ranks, 8), np.float32)
    (global_results,) = random_run(Weights(), "stand_alone", 1, rows)
    for results in random_run(Weights(), "data_parallel", ranks, rows):
        for mine, expected in zip(results, global_results, strict=True):
            np.testing.assert_allclose(mine, expected[:8], rtol=1e-5, atol=1e-6)


class Again(_Net):
    """Computed a second time in the backward graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.SequentialCell(nn.Dropout(p=0.5), nn.Tanh())
        self.layer.set_train()
        self.layer.recompute()

    def construct(self, x: Any) -> Any:
        return ops.reduce_sum(self.layer(ops.matmul(x, self.w)))


@pytest.mark.parametrize("ranks", [2, 4])
def test_gradients_read_the_same_numbers(ranks: int) -> None:
    rows = np.random.default_rng(1).standard_normal((2 * ranks, 8)).astype(np.float32)

    def weights(mode: str, ranks: int) -> np.ndarray:
        network = Again()
        step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
        return random_run(step, mode, ranks, rows, "w")[-1][0]

    np.testing.assert_allclose(weights("data_parallel", ranks), weights("stand_alone", 1), rtol=1e-5, atol=1e-6)
