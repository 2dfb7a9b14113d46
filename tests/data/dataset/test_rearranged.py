"""Operations that slice, fill up, join, repeat and compare columns, against what MindSpore 2.10 gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
import mspc.dataset as ds
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.dataset import transforms
from mspc.dataset.transforms import Concatenate, Duplicate, Mask, PadEnd, Relational, Slice, Unique

A = np.array([1, 2, 3, 4], np.int32)
M = np.arange(6, dtype=np.float32).reshape(2, 3)
TEXTS = np.array(["a", "bb"])


@pytest.mark.parametrize(("operation", "value", "expected"), [
    (Concatenate(0, np.array([9], np.int32), np.array([7, 8], np.int32)), A, np.array([9, 1, 2, 3, 4, 7, 8], np.int32)),
    (Mask(Relational.GE, 2), A, np.array([False, True, True, True])),
    (Mask(Relational.GT, 2, ms.int32), A, np.array([0, 0, 1, 1], np.int32)),
    (Mask(Relational.NE, "a"), TEXTS, np.array([False, True])),
    (PadEnd([6], -1), A, np.array([1, 2, 3, 4, -1, -1], np.int32)),
    (PadEnd([2], -1), A, A[:2]),
    (PadEnd([3, 4], 5), M, np.array([[0, 1, 2, 5], [3, 4, 5, 5], [5, 5, 5, 5]], np.float32)),
    (PadEnd([None, 2]), M, M[:, :2]),
    (PadEnd([3], "zzz"), TEXTS, np.array(["a", "bb", "zzz"])),
    (Slice(slice(1, 3)), A, A[1:3]),
    (Slice(2), A, A[2:3]),
    (Slice([0, -1]), A, A[[0, -1]]),
    (Slice(..., [1]), M, M[:, [1]]),
    (Slice(1, slice(0, 2)), M, M[1:2, :2]),
    (Slice(None), A, A),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_one_value_and_a_column(operation: Any, value: np.ndarray, expected: np.ndarray) -> None:
    found = operation(value)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    data = ds.NumpySlicesDataset([value, value], "x", shuffle=False).map(operation)
    for (row,) in data.create_tuple_iterator(num_epochs=1, output_numpy=True):
        np.testing.assert_array_equal(row, expected)


def test_columns_that_are_joined_and_made() -> None:
    data = ds.NumpySlicesDataset({"x": [A], "y": [A[::-1]]}, shuffle=False)
    (joined,) = data.map(Concatenate(), ["x", "y"], ["x"]).create_tuple_iterator(num_epochs=1, output_numpy=True)
    assert joined[0].tolist() == [1, 2, 3, 4, 4, 3, 2, 1]
    twice = data.map(Duplicate(), ["x"], ["x", "z"]).create_dict_iterator(num_epochs=1, output_numpy=True)
    assert {name: value.tolist() for name, value in next(twice).items()} == {
        "x": [1, 2, 3, 4], "z": [1, 2, 3, 4], "y": [4, 3, 2, 1]
    }  # fmt: skip
    found = Unique()(np.array([[3.0, 1.0], [3.0, 2.0]], np.float32))
    assert [part.tolist() for part in found] == [[3.0, 1.0, 2.0], [0, 1, 0, 2], [2, 1, 1]]
    assert [part.dtype for part in found] == [np.float32, np.int32, np.int32]


@pytest.mark.parametrize(("call", "kind", "message"), [
    (lambda: Concatenate(1), ApiValueError, "Concatenate: axis 1 must be 0 or -1: values have one dimension"),
    (lambda: Concatenate(0, M), ApiValueError, "Concatenate: prepend must have one dimension, not shape (2, 3)"),
    (lambda: Concatenate(0, A.astype(np.int64))(A), ApiTypeError,
     "Concatenate: values of int32, int64 are not of one type"),
    (lambda: Duplicate()(A, A), ApiTypeError, "Duplicate: takes one column, not 2"),
    (lambda: Mask("eq", 2), ApiTypeError, "Mask: operator must be one of Relational, not 'eq'"),
    (lambda: Mask(Relational.EQ, 2)(TEXTS), ApiTypeError, "Mask: constant 2 is not compared with <U2"),
    (lambda: PadEnd([3])(M), ApiValueError, "PadEnd: pad_shape [3] does not fit a value of shape (2, 3)"),
    (lambda: PadEnd([3], "z")(A), ApiTypeError, "PadEnd: pad_value 'z' does not fit int32"),
    (lambda: Slice("a"), ApiTypeError, "Slice: 'a' is no integer, list of integers, slice, bool, None or ..."),
    (lambda: Slice(7)(A), ApiValueError, "Slice: place 7 is outside of a dimension of 4"),
    (lambda: Slice(1, 1)(A), ApiValueError, "Slice: 2 parts for a value of shape (4,)"),
])  # fmt: skip
def test_what_does_not_fit(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as raised:
        call()
    assert raised.value.message == message  # type: ignore[attr-defined]


def test_older_names() -> None:
    import mspc.dataset.transforms.c_transforms as older

    assert older.PadEnd is transforms.PadEnd
