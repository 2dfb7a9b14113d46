"""Tensors outside compiled graphs."""

from __future__ import annotations

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, ops
from mspc.mindspore_api.common.tensor import REPLICATED


def test_attributes_describe_shape_and_size():
    x = Tensor(np.zeros((2, 3, 4), np.float32))
    assert (x.shape, x.ndim, x.size, x.itemsize, x.nbytes, len(x)) == ((2, 3, 4), 3, 24, 4, 96, 2)
    assert str(ms.float32) == "Float32"


def test_repr_shows_type_and_values():
    assert repr(Tensor([1.0, 2.5])) == "Tensor(shape=[2], dtype=Float32, value=[1. , 2.5])"
    assert str(Tensor(0.25)) == "0.25"
    assert f"{Tensor(0.25):.3f}" == "0.250"


@pytest.mark.parametrize(
    ("result", "dtype", "values"),
    [
        (lambda: Tensor([1, 2], ms.int32) + 1, ms.int32, [2, 3]),
        (lambda: Tensor([1, 2], ms.int32) + 1.5, ms.float32, [2.5, 3.5]),
        (lambda: 1 - Tensor([1.0, 2.0]), ms.float32, [0, -1]),
        (lambda: Tensor([1, 2], ms.int32) / 2, ms.float32, [0.5, 1]),
        (lambda: Tensor([1, 2], ms.int32) * Tensor([1.5, 2.0]), ms.float32, [1.5, 4]),
        (lambda: Tensor([1.0], ms.float16) + Tensor([1.0], ms.float32), ms.float32, [2]),
        (lambda: Tensor([3, 4], ms.int32) // 2, ms.int32, [1, 2]),
        (lambda: Tensor([1.0, 3.0]) > 2, ms.bool_, [False, True]),
        (lambda: Tensor([1.0, 3.0]) == Tensor([1.0, 2.0]), ms.bool_, [True, False]),
        (lambda: -Tensor([1.0]), ms.float32, [-1]),
        (lambda: Tensor([[1.0, 2.0]]) @ Tensor([[1.0], [2.0]]), ms.float32, [[5.0]]),
        (lambda: 2 ** Tensor([1.0, 3.0]), ms.float32, [2, 8]),
        (lambda: np.float64(2) * Tensor([1.5], ms.float32), ms.float32, [3]),
        (lambda: Tensor([True, False]) + 1, ms.int64, [2, 1]),
    ],
)
def test_arithmetic_promotes_as_mindspore(result, dtype, values):
    found = result()
    assert found.dtype == dtype
    assert found.array.tolist() == values


def test_reductions_keep_the_element_type():
    x = Tensor([1, 2], ms.float16)
    assert {x.sum().dtype, x.mean().dtype, x.std().dtype, x.prod().dtype} == {ms.float16}


def test_item_and_python_numbers():
    x = Tensor([[2.5]])
    assert (x.item(), float(x), int(Tensor(3)), bool(Tensor(0)), [1, 2, 3][Tensor(1)]) == (
        2.5,
        2.5,
        3,
        False,
        2,
    )


def test_what_is_computed_from_whole_tensors_alone_is_whole():
    whole, data = Tensor(np.ones((4, 2), np.float32)), Tensor(np.ones((4, 2), np.float32))
    whole.placement = REPLICATED
    weight = ms.Parameter(Tensor(np.ones((4, 2), np.float32)), "w")
    kept = [whole * 2, 1 - whole, -whole, whole + weight, whole.clip(0, 1), whole.T, whole.copy(), Tensor(whole)]
    kept += [abs(whole), ops.ReLU()(whole), ops.Add()(whole, weight), whole * Tensor(2.0), whole.astype(ms.float16)]
    assert [x.placement for x in kept] == [REPLICATED] * len(kept)
    lost = [whole + data, data * whole, whole * np.ones((4, 2)), whole[:2], whole[0], whole.sum(0)]
    lost += [ops.Add()(data, whole), Tensor(whole.asnumpy()), data * 2, *whole, *whole.split(2)]
    assert [x.placement for x in lost] == [None] * len(lost)
    assert ms.Parameter(whole, "v").placement == weight.placement != REPLICATED
