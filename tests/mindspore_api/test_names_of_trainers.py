"""Names that public trainers import beside networks: data sets by their origin, operations of their own,
settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc import dataset as ds
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api import state


def test_an_operation_of_a_script() -> None:
    class Twice(ds.vision.transforms.PyTensorOperation):
        def _execute_py(self, value: Any) -> Any:
            return value * 2

    class Negated(ds.transforms.py_transforms.PyTensorOperation):
        def __call__(self, value: Any) -> Any:
            return -value

    rows = ds.NumpySlicesDataset([1, 2, 3], ["x"], shuffle=False).map([Twice(), Negated()], ["x"])
    assert [int(x) for (x,) in rows.create_tuple_iterator(output_numpy=True)] == [-2, -4, -6]
    with pytest.raises(NotImplementedError, match="PyTensorOperation"):
        ds.transforms.py_transforms.PyTensorOperation()(3)


def test_entries_of_settings_that_are_dicts() -> None:
    before = state.swap(state.Session())
    assert ms.get_auto_parallel_context("pipeline_scheduler") == "1f1b"
    assert ms.get_auto_parallel_context("parallel_optimizer_threshold") == 64
    ms.set_auto_parallel_context(parallel_optimizer_config={"parallel_optimizer_threshold": 7})
    assert ms.get_auto_parallel_context("parallel_optimizer_threshold") == 7
    state.swap(before)
    with pytest.raises(MspcError, match="pipeline_schedulers"):
        ms.get_auto_parallel_context("pipeline_schedulers")


def test_what_is_said_of_a_parameter_is_taken_over() -> None:
    old = Parameter(Tensor(1.0), "w", requires_grad=False, layerwise_parallel=True, parallel_optimizer=False)
    old.comm_fusion = 3
    new = Parameter(Tensor(2.0))
    new.param_info = old.param_info.clone()
    assert (new.name, new.requires_grad, new.layerwise_parallel, new.parallel_optimizer, new.comm_fusion) == (
        "w", False, True, False, 3,
    )  # fmt: skip
    assert float(new.asnumpy()) == 2.0
    with pytest.raises(MspcError, match="param_info"):
        new.param_info = "w"


def test_reductions_of_mint_by_names() -> None:
    x = Tensor(np.array([[1.0, 2.0], [3.0, 6.0]], np.float32))
    assert ops.MeanExt()(x, -1, keepdim=True).asnumpy().tolist() == [[1.5], [4.5]]
    assert ops.SumExt()(x, dim=0).asnumpy().tolist() == [4.0, 8.0]
    assert ops.auto_generate.DropoutExt()(input=x, p=0.0)[0].asnumpy().tolist() == x.asnumpy().tolist()
    assert nn.TrainOneStepCell(nn.Dense(2, 2), nn.SGD(nn.Dense(2, 2).trainable_params())).use_graceful_exit is False
