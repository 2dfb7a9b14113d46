"""The kernel of Argmax and Argmin, run by g++ against NumPy."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ops.op import REGISTRY
from mspc.ops.tensor.selection import Argmax
from tests.ops.cuda.cuda_emulator import NEEDED, Emulator, placed

pytestmark = pytest.mark.skipif(NEEDED is None, reason="g++ is missing")
NAMES = ("Argmax", "Argmin")
LENGTHS = (3, 100, 5000)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("kernels"))


def prepared(device: Emulator, name: str, x: Any, axis: int) -> tuple[Any, Any, Any]:
    """(launch, its result, NumPy's). Kernels of one device are compiled together at the first launch."""
    out = np.full(np.delete(np.array(x.shape), axis), -7, np.int32)
    launch: Any = REGISTRY[name](axis=axis).launch(device, out, placed(x))
    return launch, out, getattr(np, name.lower())(x, axis=axis)


def check(work: list[tuple[Any, Any, Any]]) -> None:
    for launch, out, wanted in work:
        launch()
        np.testing.assert_array_equal(out, wanted)


def test_places(device: Emulator) -> None:
    generator = np.random.default_rng(3)
    work: list[tuple[Any, Any, Any]] = []
    for name, dtype, length in product(NAMES, (np.float64, np.int64, np.bool_), LENGTHS):
        for shape, axis in (((3, length), 1), ((2, length, 5), 1), ((length,), 0)):
            x = generator.integers(0, 40, shape).astype(dtype)  # many are equal
            work.append(prepared(device, name, x, axis))
    check(work)


def test_the_first_of_those_that_are_no_number_wins(device: Emulator) -> None:
    x = np.random.default_rng(4).standard_normal((6, 700)).astype(np.float32)
    for row, places in enumerate([(), (0,), (699,), (5, 4), (300, 299, 650), (31, 32)]):
        x[row, list(places)] = np.nan
        x[row, 350] = np.inf
    check([prepared(device, name, x, 1) for name in NAMES])


def test_what_has_no_rows_is_left_to_others(tmp_path: Path) -> None:
    assert Argmax(axis=1).launch(Emulator(tmp_path), np.zeros(0, np.int32), np.zeros((0, 4), np.float32)) is None
