"""Settings of scripts for files of strategies, and for optimizers that replicas share."""

from __future__ import annotations

from typing import Any

import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops


def parameters(count: int) -> list[Parameter]:
    return [Parameter(Tensor([1.0, 2.0], ms.float32), f"w{i}") for i in range(count)]


@pytest.mark.parametrize(
    ("mode", "device", "optimizer", "message"),
    [
        ("stand_alone", "Ascend", nn.Lamb, "but there is nothing to share in the mode stand_alone"),
        ("hybrid_parallel", "Ascend", nn.Adam, "but there is nothing to share in the mode hybrid_parallel"),
        ("data_parallel", "CPU", nn.Lamb, "which data_parallel has on Ascend alone, and device_target is CPU"),
        ("data_parallel", "Ascend", nn.Adam, "which data_parallel has for AdamWeightDecay and Lamb alone"),
        ("data_parallel", "Ascend", nn.Lamb, "but 4 ranks have only 3 parameters to share"),
    ],
)
def test_an_optimizer_says_where_replicas_cannot_share_it(mode: str, device: str, optimizer: Any, message: str) -> None:
    ms.set_context(device_target=device)
    ms.set_auto_parallel_context(parallel_mode=mode, device_num=4, enable_parallel_optimizer=True)
    with pytest.raises(RuntimeError) as refused:
        optimizer(parameters(3), learning_rate=0.1)
    assert f"{optimizer.__name__}: enable_parallel_optimizer is on, {message}" in str(refused.value)


@pytest.mark.parametrize(("mode", "count"), [("data_parallel", 4), ("semi_auto_parallel", 1), ("auto_parallel", 1)])
def test_an_optimizer_is_made_where_replicas_can_share_it(mode: str, count: int) -> None:
    ms.set_context(device_target="Ascend")
    ms.set_auto_parallel_context(parallel_mode=mode, device_num=4, enable_parallel_optimizer=True)
    assert len(nn.Lamb(parameters(count), learning_rate=0.1).parameters) == count


def test_a_micro_batch_is_a_part_of_every_input() -> None:
    part = ms.nn.wrap.cell_wrapper._MicroBatch(2)
    x, y = part(1, Tensor([1, 2, 3, 4]), ops.ones((6, 2), ms.float32))
    assert x.asnumpy().tolist() == [3, 4]
    assert y.shape == (3, 2)
