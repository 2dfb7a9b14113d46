"""Slices of one table of sums, for all ranks at once."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.ops.tensor.embedding import UnsortedSegmentSum
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import OneRank
from mspc.verify.scale.rank_kernels import slices_on_each
from mspc.verify.scale.rank_kinds import widened

BACKEND = NumPyBackend(OneRank())


@pytest.mark.parametrize("lead", [(1, 1, 2), (1, 1, 1)])
def test_slices_of_one_table(lead: tuple[int, ...]) -> None:
    random = np.random.default_rng(2)
    rows, places = random.standard_normal((*lead, 20, 3)), random.integers(-1, 14, (1, 1, 1, 20))
    which = np.array([[0, 2, 1], [1, 0, 2]])[..., None]
    ops = [UnsortedSegmentSum(num_segments=4, offset=offset) for offset in (4, 0, 8)]
    found = slices_on_each(ops, which, 3, BACKEND, [rows, places])
    assert found.shape == (2, 3, lead[2], 4, 3)
    for place in np.ndindex(*found.shape[:3]):
        own = [widened(array, found.shape[:3])[place] for array in (rows, places)]
        wanted = ops[which[place[0], place[1], 0]].run(BACKEND, *own)
        np.testing.assert_array_equal(found[place], wanted)


def test_what_is_no_slice_of_one_table() -> None:
    which = np.array([[0, 1]])
    alike = [UnsortedSegmentSum(num_segments=4, offset=offset) for offset in (0, 4)]
    others = [UnsortedSegmentSum(num_segments=size) for size in (4, 5)]
    far = [UnsortedSegmentSum(num_segments=4, offset=offset) for offset in (0, 4000)]
    rows, places = np.ones((1, 1, 5, 2)), np.zeros((1, 1, 5), np.int64)
    own_rows = np.ones((1, 2, 5, 2))
    assert slices_on_each(alike, which, 2, BACKEND, [rows, places]) is not None
    assert slices_on_each(alike, which, 2, BACKEND, [own_rows, places]) is None
    assert slices_on_each(others, which, 2, BACKEND, [rows, places]) is None
    assert slices_on_each(far, which, 2, BACKEND, [rows, places]) is None
