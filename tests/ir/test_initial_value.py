"""Initial values as data: slices equal the global tensor's, descriptions read back equal, damaged ones are refused."""

from __future__ import annotations

import hashlib
import json
import resource
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.initial_value import (
    Description,
    Diagonal,
    Distribution,
    Filled,
    NormalDistribution,
    TruncatedNormalDistribution,
    UniformDistribution,
    exact_in,
    read_description,
)
from mspc.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT8, INT32

DISTRIBUTIONS: list[Distribution] = [
    Filled(0.1), Filled(True), Filled(-3), Filled(float("-inf")), Diagonal(), NormalDistribution(0.02, 0.5),
    UniformDistribution(0.07), TruncatedNormalDistribution(1.0, 0.0, -2.0, 2.0),
]  # fmt: skip


LARGE = [(d, (700, 1100)) for d in DISTRIBUTIONS]
"""A number of elements in several blocks."""


@pytest.mark.parametrize(("distribution", "shape"), [*((d, (6, 8)) for d in DISTRIBUTIONS), *LARGE], ids=str)
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
def test_slices_are_parts_of_the_whole(distribution: Distribution, shape: tuple[int, int], dtype: Any) -> None:
    value = Description(distribution, shape, dtype, seed=3, counter=5, zero_row=2)
    whole = value.fill()
    assert (whole.shape, whole.dtype) == (shape, dtype.numpy)
    assert not whole[2].any()
    rows, columns = shape
    joined = np.concatenate([value.fill((slice(0, rows), slice(i, i + columns // 4))) for i in _starts(columns)], 1)
    np.testing.assert_array_equal(joined, whole)
    middle = (slice(1, rows // 2), slice(3, 7))
    np.testing.assert_array_equal(value.fill(middle), whole[middle])
    assert value.fill(middle).flags.writeable


def _starts(columns: int) -> range:
    return range(0, columns, columns // 4)


def test_zeros_are_memory_that_nothing_has_touched() -> None:
    """Moments of optimizers are as large as the parameters: to write zeros over them takes seconds at a start."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        pytest.skip("there is no list of pages")
    before = int(pages.read_text().split()[1])
    zeros = Description(Filled(0.0), (1 << 24,), FLOAT32).fill()
    touched = int(pages.read_text().split()[1]) - before
    assert touched * resource.getpagesize() < zeros.nbytes // 2
    assert not zeros.any()


def test_negative_zeros_keep_their_sign() -> None:
    assert np.signbit(Description(Filled(-0.0), (2,), BFLOAT16).fill().astype(np.float32)).all()


def test_tensors_of_more_dimensions_and_none() -> None:
    value = Description(NormalDistribution(1.0, 0.0), (3, 5, 800, 300), FLOAT32, 1, 2)
    part = (slice(1, 3), slice(2, 4), slice(100, 700), slice(7, 9))
    np.testing.assert_array_equal(value.fill(part), value.fill()[part])
    assert Description(NormalDistribution(1.0, 0.0), (), FLOAT32).fill(()).shape == ()
    assert Description(UniformDistribution(1.0), (0, 4), FLOAT32).fill().shape == (0, 4)


@pytest.mark.parametrize(
    ("distribution", "counter", "digest"),
    [
        (NormalDistribution(0.01, 0.0), 1, "9c5449cdf6e1"),
        (UniformDistribution(0.07), 3, "714df8390e14"),
        (TruncatedNormalDistribution(0.01, 0.0, -2.0, 2.0), 5, "e92b359c9699"),
    ],
)
def test_the_numbers_stay_the_same(distribution: Distribution, counter: int, digest: str) -> None:
    """Losses of networks depend on them."""
    values = Description(distribution, (1100, 600), FLOAT32, 3, counter).fill()
    assert hashlib.sha256(values.tobytes()).hexdigest()[:12] == digest


def test_a_slice_needs_no_more_memory_than_itself_and_a_block() -> None:
    value = Description(NormalDistribution(1.0, 0.0), (8192, 4096), FLOAT32)
    tracemalloc.start()
    value.fill((slice(1024, 2048), slice(0, 4096)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 * 2**20 + 8 * 2**20


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_a_description_reads_back_equal(distribution: Distribution) -> None:
    value = Description(distribution, (4, 4), FLOAT32, 7, 8, 1)
    entry = json.loads(json.dumps(value.entry(), allow_nan=False))
    found = read_description(entry, (4, 4), FLOAT32)
    np.testing.assert_array_equal(found.fill(), value.fill())
    assert found.entry() == entry


NORMAL = {"initializer": "Normal", "sigma": 0.02, "mean": 0.0, "seed": 0, "counter": 3}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (None, "it is NoneType, not an object"),
        ([], "it is list, not an object"),
        ({}, "unknown initializer None; known are Constant, Identity, Normal, Uniform, TruncatedNormal"),
        (NORMAL | {"initializer": "normal"}, "unknown initializer 'normal'; known are"),
        (NORMAL | {"initializer": ["Normal"]}, r"unknown initializer \['Normal'\]; known are"),
        (NORMAL | {"sigma": "0.02"}, "sigma is '0.02', not a finite number"),
        (NORMAL | {"sigma": True}, "sigma is True, not a finite number"),
        (NORMAL | {"sigma": float("nan")}, "sigma is nan, not a finite number"),
        (NORMAL | {"sigma": 10**400}, "makes no Float32: one of its numbers is no Float64"),
        (NORMAL | {"mean": None}, "mean is None, not a finite number"),
        (NORMAL | {"seed": -1}, "seed is -1, not an integer from 0 to 4294967295"),
        (NORMAL | {"seed": 2**32}, "seed is 4294967296, not an integer"),
        (NORMAL | {"seed": None}, "seed is None, not an integer"),
        (NORMAL | {"counter": 1.0}, "counter is 1.0, not an integer"),
        (NORMAL | {"counter": False}, "counter is False, not an integer"),
        (NORMAL | {"scale": 1}, "the initializer Normal has no 'scale'"),
        ({"initializer": "Normal", "sigma": 1.0, "mean": 0.0}, "the initializer Normal lacks 'seed'"),
        ({"initializer": "Uniform", "seed": 0, "counter": 0}, "the initializer Uniform lacks 'scale'"),
        ({"initializer": "Constant", "value": "zero"}, "value is 'zero', not a number"),
        ({"initializer": "Constant", "value": [0]}, r"value is \[0\], not a number"),
        ({"initializer": "Constant", "value": 0, "seed": 0}, "the initializer Constant has no 'seed'"),
        ({"initializer": "Constant", "value": 10**400}, "00 is no number of Float32"),
        ({"initializer": "Identity"}, r"Identity makes matrices, not a tensor of shape \(8,\)"),
        (NORMAL | {"zero_row": 8}, "has no row 8 to be zero"),
        (NORMAL | {"zero_row": -1}, "zero_row is -1, not an integer"),
        (
            {"initializer": "TruncatedNormal", "sigma": 1, "mean": 0, "a": 2, "b": -2, "seed": 0, "counter": 0},
            "from 2 to -2 deviations there is next to no value to draw",
        ),
        (
            {"initializer": "TruncatedNormal", "sigma": 1, "mean": 0, "a": 50, "b": 60, "seed": 0, "counter": 0},
            "from 50 to 60 deviations there is next to no value to draw",
        ),
    ],
)
def test_damaged_descriptions_are_refused(entry: Any, message: str) -> None:
    with pytest.raises((MspcError, ValueError), match=message):
        read_description(entry, (8,), FLOAT32)


def test_a_value_that_the_element_type_cannot_hold_is_refused() -> None:
    with pytest.raises(MspcError, match="300 is no number of Int8"):
        Description(Filled(300), (2,), INT8).fill()
    assert Description(Filled(1), (2,), BOOL).fill().tolist() == [True, True]


def test_what_may_be_made_in_another_element_type() -> None:
    """Where values are rounded once, casting them afterwards gives the same."""
    normal = Description(NormalDistribution(1.0, 0.0), (4,), FLOAT32)
    assert exact_in(normal, BFLOAT16)
    assert not exact_in(Description(NormalDistribution(1.0, 0.0), (4,), FLOAT16), FLOAT32)
    assert exact_in(Description(Filled(0), (4,), FLOAT16), FLOAT32)
    assert not exact_in(Description(Filled(0.1), (4,), FLOAT16), FLOAT64)
    assert exact_in(Description(Filled(float("nan")), (4,), FLOAT32), FLOAT16)
    assert exact_in(Description(Filled(2.5), (4,), FLOAT32), INT32)
