"""Data parallel mode: every rank computes what one device does with the rank's own rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ir.types import TensorType, dtype_of
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.executor import Executor


class Sliced(nn.Cell):
    def construct(self, x: Any, ids: Any) -> Any:
        return ops.ReduceSum()(x[:, 0:1]), ops.Slice()(x, (1, 0), (2, 4)), x[0], x[-1:, ::2]


class Tiled(nn.Cell):
    def construct(self, x: Any, ids: Any) -> Any:
        return ops.Tile()(x, (2, 1)), ops.Tile()(x, (3, 1, 2)), ops.Tile()(ids, (1, 2))


class Language(nn.Cell):
    """Every token foretells the next."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Parameter(Tensor(np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)), "table")

    def construct(self, x: Any, ids: Any) -> Any:
        shown, wanted = ids[:, :-1], ids[:, 1:]
        logits = ops.matmul(ops.gather(self.table, shown, 0), ops.transpose(self.table, (1, 0)))
        return ops.cross_entropy(ops.reshape(logits, (-1, 8)), ops.reshape(wanted, (-1,)))


class Placed(nn.Cell):
    """Operators that count rows."""

    def construct(self, x: Any, ids: Any) -> Any:
        picked = ops.gather(x, Tensor(np.array([3, 0], np.int32)), 0)
        return picked, ops.Tril()(x), ops.GatherNd()(x, ids[:, :2])


def _types(rows: int) -> list[TensorType]:
    return [TensorType(dtype_of("float32"), (rows, 4)), TensorType(dtype_of("int32"), (rows, 6))]


def _run(cell: Any, rows: int, ranks: int, mode: str, arrays: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    compiled = compile_call(cell, _types(rows), Config(ranks=ranks, mode=mode))
    values = {name: np.array(parameter.array) for name, parameter in compiled.traced.parameters.items()}

    def main(comm: LocalComm) -> list[np.ndarray]:
        graph = compiled.rank_graph(comm.rank)
        stored = {p.name: compiled.traced.constants.get(p.name, values.get(p.name)) for p in graph.parameters}
        return Executor(graph, NumPyBackend(comm), stored).run(arrays[comm.rank])  # type: ignore[arg-type]  # no input is None

    return World(ranks).run(main)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("cell", [Sliced, Tiled, Language, Placed])
def test_every_rank_computes_with_its_own_rows(cell: Any, ranks: int) -> None:
    random = np.random.default_rng(0)
    fed = [
        [random.standard_normal((4, 4)).astype(np.float32), random.integers(0, 4, (4, 6)).astype(np.int32)]
        for _ in range(ranks)
    ]
    network = cell()
    found = _run(network, 4, ranks, "data_parallel", fed)
    for mine, rows in zip(found, fed, strict=True):
        (expected,) = _run(network, 4, 1, "stand_alone", [rows])
        for result, wanted in zip(mine, expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=1e-6)
