"""Initializers of vision code: their distributions, fans of convolutions' weights, slices, and those of scripts."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor
from mspc.common.initializer import (
    Constant,
    HeNormal,
    HeUniform,
    Identity,
    Normal,
    One,
    TruncatedNormal,
    Uniform,
    XavierNormal,
    XavierUniform,
    Zero,
    initializer,
)  # fmt: skip
from mspc.ir.initial_value import read_description

KERNEL = (64, 32, 3, 5)  # fan in 480, fan out 960
ROOT_480, ROOT_960 = math.sqrt(1 / 480), math.sqrt(1 / 960)


def drawn(init: Any, shape: Any = KERNEL, seed: int = 1) -> np.ndarray:
    ms.set_seed(seed)
    return initializer(init, shape, ms.float32).asnumpy()


def distribution(name: str, *arguments: float) -> Any:
    """One of SciPy, which takes seconds to load: every process of the tests would wait for it."""
    from scipy import stats

    return getattr(stats, name)(*arguments)


def normal(deviation: float) -> Any:
    return partial(distribution, "norm", 0.0, deviation)


def uniform(bound: float) -> Any:
    return partial(distribution, "uniform", -bound, 2 * bound)


def cut(deviation: float, mean: float = 0.0, a: float = -2.0, b: float = 2.0) -> Any:
    return partial(distribution, "truncnorm", a, b, mean, deviation)


def assert_drawn_from(expected: Any, values: np.ndarray) -> None:
    from scipy import stats

    assert stats.kstest(values.reshape(-1).astype(float), expected.cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        (Normal(), normal(0.01)),
        (Normal(0.5, 2.0), partial(distribution, "norm", 2.0, 0.5)),
        ("normal", normal(0.01)),
        (Uniform(), uniform(0.07)),
        ("uniform", uniform(0.07)),
        (TruncatedNormal(0.02), cut(0.02)),
        (TruncatedNormal(0.5, 1.0, -1.0, 3.0), cut(0.5, 1.0, -1.0, 3.0)),
        (HeNormal(), normal(math.sqrt(2) * ROOT_480)),
        (HeNormal(mode="fan_out", nonlinearity="relu"), normal(math.sqrt(2) * ROOT_960)),
        (HeNormal(mode="FAN_OUT"), normal(math.sqrt(2) * ROOT_960)),
        (HeNormal(0.5), normal(math.sqrt(2 / 1.25) * ROOT_480)),
        (HeNormal(nonlinearity="tanh"), normal(5 / 3 * ROOT_480)),
        (HeNormal(nonlinearity="conv2d"), normal(ROOT_480)),
        (HeUniform(), uniform(math.sqrt(6) * ROOT_480)),
        (HeUniform(math.sqrt(5)), uniform(ROOT_480)),
        ("he_uniform", uniform(math.sqrt(6) * ROOT_480)),
        ("HeNormal", normal(math.sqrt(2) * ROOT_480)),
        (XavierUniform(), uniform(math.sqrt(6 / 1440))),
        (XavierUniform(2.0), uniform(2 * math.sqrt(6 / 1440))),
        (XavierNormal(), normal(math.sqrt(2 / 1440))),
        ("xavier_uniform", uniform(math.sqrt(6 / 1440))),
    ],
)
def test_numbers_have_their_distribution(init: Any, expected: Any) -> None:
    values = drawn(init)
    assert_drawn_from(expected(), values)
    low, high = expected().support()
    assert low <= values.min() + 1e-6
    assert values.max() - 1e-6 <= high
    np.testing.assert_array_equal(values, drawn(init))
    assert (values != drawn(init, seed=2)).any()


EVERY: list[Any] = [
    (Zero(), KERNEL), (One(), KERNEL), (Constant(0.5), KERNEL), (Normal(), KERNEL), (Uniform(), KERNEL),
    (TruncatedNormal(), KERNEL), (HeNormal(), KERNEL), (HeUniform(), KERNEL), (XavierNormal(), KERNEL),
    (XavierUniform(), KERNEL), (Identity(), (30, 40)),
]  # fmt: skip


@pytest.mark.parametrize(("init", "shape"), EVERY, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("dtype", [ms.float32, ms.float16], ids=str)
def test_slices_are_parts_of_the_whole_and_described(init: Any, shape: Any, dtype: Any) -> None:
    ms.set_seed(3)
    parameter = Parameter(Tensor(np.zeros(shape), dtype), "w").set_data(initializer(init, shape, dtype))
    assert parameter.initial is not None
    part = (slice(3, 9), slice(1, 30), *[slice(1, size) for size in shape[2:]])
    made = parameter.initial.fill(part)
    described = parameter.initial.description()
    again = read_description(described.entry(), shape, dtype).fill(part)
    np.testing.assert_array_equal(made, parameter.asnumpy()[part])
    np.testing.assert_array_equal(again, made)
    assert made.dtype == dtype.numpy


class Noise(Normal):
    """One that draws NumPy's numbers, below one that says its values as data."""

    def _initialize(self, arr: Any) -> None:
        ms.common.initializer._assignment(arr, np.random.normal(0, 1, arr.shape))


def test_numbers_of_numpy_are_those_of_the_tensor() -> None:
    """Whenever and on whichever rank they are drawn; the script's own go on as if nothing had been drawn."""
    ms.set_seed(5)
    first, second = initializer(Noise(), (40, 50)), initializer(Noise(), (40, 50))
    own = np.random.get_state()[1].tolist()  # type: ignore[index]  # pyright: ignore
    later = second.asnumpy()
    part = first.initial.fill((slice(0, 5), slice(0, 5))) if first.initial else None
    np.testing.assert_array_equal(part, first.asnumpy()[:5, :5])
    assert (later != first.asnumpy()).any()
    assert np.random.get_state()[1].tolist() == own  # type: ignore[index]  # pyright: ignore
    assert_drawn_from(normal(1)(), later)


def test_an_initializer_fills_an_array_when_it_is_called() -> None:
    ms.set_seed(1)
    array = np.empty(KERNEL, np.float32)
    HeNormal()(array)
    assert_drawn_from(normal(math.sqrt(2) * ROOT_480)(), array)
    other = np.empty(KERNEL, np.float32)
    HeNormal()(other)
    assert (array != other).any()
    matrix = np.empty((2, 3))
    Identity()(matrix)
    assert matrix.tolist() == [[1, 0, 0], [0, 1, 0]]
