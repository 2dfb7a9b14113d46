"""CUDA kernels over the rows that integers name, at sizes that take the ways of large graphs: run by g++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ops.cuda import rows_by_number
from mspc.ops.cuda.moves import RowLookup
from mspc.ops.cuda.rows_by_number import NamedRows
from tests.ops.cuda.cuda_emulator import NEEDED, Emulator, aligned, placed

needs_compiler = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
SIZES = ((3, 4097), (70, 9000), (511, 5000), (512, 5000), (40000, 9000), (2**31 - 3, 4096), (300, 0), (300, 1), (1, 90))
"""(places, names): one, two and four digits."""


def ids_of(size: int, count: int, skewed: bool, dtype: Any, seed: int = 0) -> Any:
    """Ids of which some are outside of [0, size) or count from the end; if skewed, few places have most."""
    random = np.random.default_rng((size, count, seed))
    found = (size * random.random(count) ** (9 if skewed else 1)).astype(dtype)
    found[random.random(count) < 0.1] -= dtype(size)
    found[random.random(count) < 0.05] = -size - 1
    return found


@needs_compiler
def test_names_are_sorted_by_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_by_number, "_MAX_COUNTED", 0)
    device: Any = Emulator(tmp_path)
    made: list[tuple[Any, ...]] = []
    for number, (size, count) in enumerate(SIZES):
        groups: list[NamedRows] = []
        expected: list[Any] = []
        for skewed in (False, True):
            ids = placed(ids_of(size, 2 * count, skewed, (np.int32, np.int64)[number % 2]).reshape(2, count))
            lookup = RowLookup(2, 1, size, 1, count, 0, size)
            groups.append(NamedRows(lookup, ids, ids, ids))
            ids = ids.astype(np.int64)
            places = np.where(ids < 0, ids + size, ids)
            places[(places < 0) | (places >= size)] = 0x7FFFFFFE
            expected.append(np.sort(places << 32 | np.arange(count), axis=1))
        names = np.zeros((2, 2, count), np.uint64)
        memory = aligned(rows_by_number.sort_bytes(4, count))
        table = rows_by_number.table_of(device, groups, [0, 0], [0, 0])
        launch = rows_by_number.sorting(device, groups, table, memory, names)
        made.append((names, np.array(expected), launch, groups))  # the table has only addresses
    for names, wanted, launch, _ in made:
        launch()
        np.testing.assert_array_equal(names, wanted.astype(np.uint64))
