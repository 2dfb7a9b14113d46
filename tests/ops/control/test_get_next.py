"""GetNext: networks that read a device's queue are split, and do not run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api import context, state
from mspc.mindspore_api.common.api import CellGraphExecutor
from mspc.mindspore_api.state import Session


@pytest.fixture(autouse=True)
def session() -> Iterator[Session]:
    """A session that no launcher has made."""
    fresh = Session()
    before = state.swap(fresh)
    yield fresh
    state.swap(before)


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.next = ops.GetNext([ms.float32, ms.int32], [[32, 64], [32]], 2, "queue")
        self.weight = Parameter(Tensor(shape=(64,), dtype=ms.float32, init="ones"), "w")
        self.scale = ops.Mul().shard(((4, 2), (2,)))

    def construct(self) -> Any:
        data, labels = self.next()
        return self.scale(data, self.weight).sum(), labels


def test_a_network_that_reads_a_queue_is_split() -> None:
    context.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8)
    executor, network = CellGraphExecutor(), Network()
    phase, _ = executor.compile(ms.value_and_grad(network, None, network.trainable_params(), has_aux=True))
    assert executor.get_strategy(phase)["Default/Mul-op0"] == [[4, 2], [2]]


def test_no_network_runs_with_it() -> None:
    with pytest.raises(RuntimeError, match="GetNext: there is no queue of data here"):
        ops.GetNext([ms.float32], [[2]], 1, "queue")()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (([ms.float32], [[2], [3]], 1), "GetNext: 1 types and 2 shapes for output_num 1"),
        (([], [], 0), "GetNext: 0 types and 0 shapes for output_num 0"),
        (([ms.float32], [[0]], 1), r"GetNext: shapes \(\(0,\),\) must be positive"),
    ],
)
def test_types_and_shapes_go_together(fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        ops.GetNext(*fields)()
    assert isinstance(refused.value, MspcError)
