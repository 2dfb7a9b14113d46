"""Partial sums go on through linear operators where there are fewer elements behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.collective.base import Collective

RANKS, ROWS, PARTS, WIDTH = 4, 16, 4, 8


class Rows(nn.Cell):
    """A row-wise product, turned rows of it, and what becomes of these."""

    def __init__(self, ending: str) -> None:
        super().__init__()
        self.product = ops.MatMul().shard(((1, RANKS), (RANKS, 1)))
        self.weight = Parameter(Tensor(np.ones((WIDTH, WIDTH), np.float32)))
        self.turned = Tensor(np.arange(ROWS * PARTS, dtype=np.int32)[::-1].copy())
        self.whole = ops.Sin().shard(((1,) * (2 if ending == "sum" else 3),))
        self.ending = ending

    def construct(self, x: Any) -> Any:
        found = ops.gather(self.product(x, self.weight), self.turned, 0).reshape(ROWS, PARTS, WIDTH)
        if self.ending == "sum":
            return self.whole(found.sum(1))
        if self.ending == "sine":
            return self.whole(found).sum(1)
        return self.whole(ops.tile(found, (1, 2, 1)))


@pytest.mark.parametrize(
    ("ending", "elements"),
    [("sum", ROWS * WIDTH), ("sine", ROWS * PARTS * WIDTH), ("tile", ROWS * PARTS * WIDTH)],
)  # fmt: skip
def test_the_sum_is_where_the_fewest_elements_are(ending: str, elements: int) -> None:
    config = Config(
        ranks=RANKS, mode="auto_parallel", search_mode="sharding_propagation", dataset_strategy="full_batch"
    )
    compiled = compile_call(Rows(ending), [TensorType(FLOAT32, (ROWS * PARTS, WIDTH))], config)
    sums = [node for node in compiled.rank_graph(0).nodes if isinstance(node.op, Collective)]
    assert [node.op.name for node in sums] == ["AllReduce"]
    assert sums[0].inputs[0].tensor_type.size == elements
