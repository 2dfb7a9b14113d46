"""The kernel of Argmax and Argmin, run by g++ against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ops.op import REGISTRY
from mspc.ops.tensor.selection import Argmax
from tests.ops.cuda.cuda_emulator import NEEDED, Emulator, aligned

pytestmark = pytest.mark.skipif(NEEDED is None, reason="g++ is missing")
LENGTHS = (3, 100, 5000)


def found(name: str, x: Any, axis: int, folder: Path) -> Any:
    op = REGISTRY[name](axis=axis)
    held = aligned(x.nbytes).view(x.dtype).reshape(x.shape)
    held[...] = x
    out = np.full(np.delete(np.array(x.shape), axis), -7, np.int32)
    launch = op.launch(Emulator(folder), [held], out)
    assert launch is not None
    launch()
    return out


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.bool_])
@pytest.mark.parametrize("name", ["Argmax", "Argmin"])
def test_places(name: str, dtype: Any, tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    for length in LENGTHS:
        for shape, axis in (((3, length), 1), ((2, length, 5), 1), ((length,), 0)):
            x = generator.integers(0, 40, shape).astype(dtype)  # many are equal
            wanted = getattr(np, name.lower())(x, axis=axis)
            np.testing.assert_array_equal(found(name, x, axis, tmp_path), wanted)


def test_the_first_of_those_that_are_no_number_wins(tmp_path: Path) -> None:
    x = np.random.default_rng(4).standard_normal((6, 700)).astype(np.float32)
    for row, places in enumerate([(), (0,), (699,), (5, 4), (300, 299, 650), (31, 32)]):
        x[row, list(places)] = np.nan
        x[row, 350] = np.inf
    for name in ("Argmax", "Argmin"):
        np.testing.assert_array_equal(found(name, x, 1, tmp_path), getattr(np, name.lower())(x, axis=1))


def test_what_has_no_rows_is_left_to_others(tmp_path: Path) -> None:
    assert Argmax(axis=1).launch(Emulator(tmp_path), [np.zeros((0, 4), np.float32)], np.zeros(0, np.int32)) is None
