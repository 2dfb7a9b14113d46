"""Data parallel mode: random numbers of the ranks are one device's with the global batch, wherever rows are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ir.types import TensorType, dtype_of
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.executor import Executor


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


CASES = (First, Heads, Channels, Combined, Latent, Repeated)


def _run(cell: Any, mode: str, ranks: int, rows: np.ndarray, parameter: str = "") -> list[list[np.ndarray]]:
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
@pytest.mark.parametrize("cell", CASES, ids=lambda cell: cell.__name__)
def test_the_rows_are_those_of_the_global_batch(cell: Any, ranks: int) -> None:
    for batch in (ranks, 3 * ranks):  # a rank of one row alone has no factor for it
        rows = np.random.default_rng(batch).standard_normal((batch, 8)).astype(np.float32)
        (global_results,) = _run(cell(), "stand_alone", 1, rows)
        found = _run(cell(), "data_parallel", ranks, rows)
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
    (global_results,) = _run(Turned(), "stand_alone", 1, rows)
    found = _run(Turned(), "data_parallel", 2, rows)
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
    (global_results,) = _run(Weights(), "stand_alone", 1, rows)
    for results in _run(Weights(), "data_parallel", ranks, rows):
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
        return _run(step, mode, ranks, rows, "w")[-1][0]

    np.testing.assert_allclose(weights("data_parallel", ranks), weights("stand_alone", 1), rtol=1e-5, atol=1e-6)
