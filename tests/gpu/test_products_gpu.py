"""Products through cuBLASLt against NumPy, on a GPU."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from tests.gpu.arrays import drawn, fetched, opened, put
from tests.gpu.test_elementwise_gpu import check
from tests.ops.cuda.test_cuda_elementwise import activated_cases

TOLERANCE = {"float16": 3e-3, "bfloat16": 2e-2, "float32": 3e-6, "float64": 1e-13}
SHAPES = [((24, 40), (40, 56)), ((3, 24, 40), (3, 40, 56)), ((3, 24, 40), (40, 56)), ((2, 1, 24, 40), (2, 3, 40, 56))]


@pytest.fixture(scope="module")
def device() -> Any:
    return opened()


def close(got: Any, wanted: Any, dtype: str) -> None:
    error = np.linalg.norm(got.astype(np.float64) - wanted) / np.linalg.norm(wanted)
    assert error < TOLERANCE[dtype], f"relative error {error:.2e}"


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shapes", SHAPES)
def test_product_equals_numpy(device: Any, dtype: str, shapes: Any) -> None:
    for ta, tb in itertools.product((False, True), repeat=2):
        x, y = drawn(shapes[0], dtype), drawn(shapes[1], dtype, 1)
        wanted = x.astype(np.float64) @ y.astype(np.float64)
        left = np.ascontiguousarray(x.swapaxes(-1, -2)) if ta else x
        right = np.ascontiguousarray(y.swapaxes(-1, -2)) if tb else y
        out = device.empty(wanted.shape, x.dtype)
        with device.stream("compute"):
            launch = device.matmul(put(device, left), put(device, right), out, ta, tb)
            launch()
        close(fetched(device, out), wanted, dtype)


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_gradient(x: Any) -> Any:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return 0.5 * (1 + np.tanh(inner)) + 0.5 * x * (1 - np.tanh(inner) ** 2) * slope


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_what_follows_is_joined(device: Any, dtype: str) -> None:
    x, y, bias, addend = (drawn(s, dtype, i) for i, s in enumerate([(64, 32), (32, 48), (48,), (64, 48)]))
    product = x.astype(np.float64) @ y.astype(np.float64)
    wide, plus = bias.astype(np.float64), addend.astype(np.float64)
    left, right, row, also = (put(device, a) for a in (x, y, bias, addend))
    out, before = device.empty((64, 48), x.dtype), device.empty((64, 48), x.dtype)
    with device.stream("compute"):
        device.matmul(left, right, out, False, False, addend=also)()
        close(fetched(device, out), product + plus, dtype)
        device.matmul(left, right, out, False, False, bias=row)()
        close(fetched(device, out), product + wide, dtype)
        device.matmul(left, right, out, False, False, bias=row, activation="gelu", before=before)()
        close(fetched(device, out), gelu(product + wide), dtype)
        close(fetched(device, before), product + wide, dtype)
        device.matmul(left, right, out, False, False, activation="gelu", before=before)()
        close(fetched(device, out), gelu(product), dtype)
        device.matmul(left, right, out, False, False, activation="gelu_gradient", before=also)()
        close(fetched(device, out), product * gelu_gradient(plus), dtype)
        device.matmul(left, right, also, False, False, addend=also)()
        close(fetched(device, also), product + plus, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_product_of_halves_is_written_in_float32(device: Any, dtype: str) -> None:
    x, y = drawn((64, 32), dtype), drawn((32, 48), dtype, 1)
    bias, addend = drawn((48,), "float32", 2), drawn((64, 48), "float32", 3)
    product = x.astype(np.float64) @ y.astype(np.float64)
    left, right, row, also = (put(device, a) for a in (x, y, bias, addend))
    out = device.empty((64, 48), np.float32)
    with device.stream("compute"):
        for options, added in (({}, 0), ({"bias": row}, bias), ({"bias": row, "addend": also}, bias + addend)):
            launch = device.matmul(left, right, out, False, False, **options)
            assert launch is not None
            launch()
            close(fetched(device, out), product + added, "float32")
        total = put(device, addend)
        launch = device.matmul(left, right, total, False, False, addend=total)
        assert launch is not None
        launch()
        close(fetched(device, total), product + addend, "float32")


@pytest.mark.parametrize("place", [0, -1])
def test_activations_are_as_exact_as_the_element_type(device: Any, place: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(device, "fastest", lambda kind, launches: launches[place])
    with device.stream("compute"):
        check(device, activated_cases())


def test_product_is_captured(device: Any) -> None:
    x, y = drawn((64, 32), "float32"), drawn((32, 48), "float32", 1)
    out = device.zeros((64, 48), np.float32)
    with device.stream("compute"):
        launch = device.matmul(put(device, x), put(device, y), out, False, False)
        replay = device.capture(launch)
        replay()
    close(fetched(device, out), x.astype(np.float64) @ y.astype(np.float64), "float32")
