"""Tensors outside compiled graphs."""

from __future__ import annotations

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, ops
from mspc.mindspore_api.common.tensor import REPLICATED
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError


@pytest.mark.parametrize(
    ("data", "dtype", "expected"),
    [
        (1, None, ms.int64),
        (1.5, None, ms.float32),
        (True, None, ms.bool_),
        ([1.0, 2.0], None, ms.float32),
        ([[1, 2], [3, 4]], None, ms.int64),
        (np.ones(2), None, ms.float64),
        (np.ones(2), ms.float32, ms.float32),
        (np.float16(1), None, ms.float16),
        (1, ms.int32, ms.int32),
    ],
)
def test_element_type_follows_data_or_argument(data, dtype, expected):
    assert Tensor(data, dtype).dtype == expected


def test_attributes_describe_shape_and_size():
    x = Tensor(np.zeros((2, 3, 4), np.float32))
    assert (x.shape, x.ndim, x.size, x.itemsize, x.nbytes, len(x)) == ((2, 3, 4), 3, 24, 4, 96, 2)
    assert str(ms.float32) == "Float32"


def test_asnumpy_is_a_copy():
    x = Tensor([1.0, 2.0])
    x.asnumpy()[0] = 9
    assert x.array.tolist() == [1.0, 2.0]


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


def test_setitem_changes_values_and_leaves_shared_memory_alone():
    array = np.zeros(3, np.float32)
    x = Tensor.from_array(array)
    x[1] = 5
    assert x.array.tolist() == [0, 5, 0]
    assert array.tolist() == [0, 0, 0]


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


def test_lazy_tensor_draws_when_asked():
    x = Tensor(shape=(2, 3), dtype=ms.float32, init="ones")
    assert x.has_init
    assert (x.shape, x.dtype) == ((2, 3), ms.float32)
    assert x.asnumpy().sum() == 6
    assert not x.has_init


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Tensor("ab"), ApiTypeError, "a tensor is made of numbers, lists and arrays, not of str"),
        (lambda: Tensor([[1], [1, 2]]), ApiValueError, "the rows of the list have different lengths"),
        (lambda: Tensor(), ApiValueError, "Tensor takes input_data, or shape (with dtype and init)"),
        (
            lambda: Tensor([1, 2]).item(),
            ApiValueError,
            "item() needs a tensor with one element, not shape (2,)",
        ),
        (lambda: Tensor([1, 2]).reshape(3), ApiValueError, "cannot reshape (2,) to (3,)"),
        (
            lambda: bool(Tensor([1, 2])),
            ApiValueError,
            "bool() needs a tensor with one element, not shape (2,)",
        ),
        (lambda: len(Tensor(1)), ApiTypeError, "a tensor without dimensions has no len()"),
    ],
)
def test_bad_use_is_named(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert caught.value.message == message
    assert caught.value.location.file.endswith("test_tensor.py")


def test_shapes_that_do_not_fit_are_an_error_of_the_users_line():
    with pytest.raises(ValueError, match=r"shapes \(2,\) and \(3,\) do not fit") as caught:
        Tensor([1, 2]) + Tensor([1, 2, 3])
    assert caught.value.location.text.strip() == "Tensor([1, 2]) + Tensor([1, 2, 3])"
    assert caught.value.location.column == 9


def test_an_index_outside_is_an_index_error():
    with pytest.raises(IndexError, match=r"index 5 of a tensor of shape \(2,\)"):
        Tensor([1, 2])[5]


def test_iteration_yields_rows_and_ends():
    assert [row.array.tolist() for row in Tensor([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]


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
