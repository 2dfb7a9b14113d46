"""FetchRows and SendRows: rows go to those who name them, on simulated ranks and under MPI, whatever the places are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, INT32, TensorType
from mspc.ops.collective.row_exchange import FetchRows, SendRows
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import World

Array = np.ndarray
ROWS = TensorType(FLOAT32, (4, 2))


def drawn(ranks: int, seed: int) -> Iterator[tuple[tuple[int, ...], Array, list[Array]]]:
    """(group, table, places of each member): many to one owner, none, twice the same, and such as are no places."""
    r = np.random.default_rng(seed)
    for group in (tuple(range(ranks)), tuple(reversed(range(ranks))), tuple(range(0, ranks, 2))):
        count = len(group)
        for rows in (1, 3):
            table = r.normal(size=(count * rows, 4))
            yield group, table, [r.integers(-1, count * rows + 1, 6) for _ in group]
            yield group, table, [np.full(5, count * rows - 1) for _ in group]
            yield group, table, [np.full(4, -1) if i % 2 else r.integers(0, rows, 4) for i in range(count)]
            yield group, table, [r.integers(0, count * rows, 0) for _ in group]


def check(comm: Any) -> int:
    """Both collectives with the operands of `drawn`, on one rank. Returns how many were tried."""
    backend, tried = NumPyBackend(comm), 0
    for group, table, places in drawn(comm.size, 3):
        if comm.rank not in group:
            continue
        mine = group.index(comm.rank)
        slices, total = np.split(table, len(group)), len(table)
        fetch = FetchRows(total=total, rank_list=group).kernel(backend)(slices[mine], places[mine])
        inside = (places[mine] >= 0) & (places[mine] < total)
        expected = np.where(inside[:, None], table[np.where(inside, places[mine], 0)], 0.0)
        np.testing.assert_array_equal(fetch, expected)
        rows = [np.arange(4.0 * len(each)).reshape(-1, 4) + i for i, each in enumerate(places)]
        sums = np.zeros_like(table)
        for each, own in zip(places, rows, strict=True):
            for place, row in zip(each, own, strict=True):
                if 0 <= place < total:
                    sums[place] += row
        send = SendRows(size=total // len(group), total=total, rank_list=group)
        found = send.kernel(backend)(rows[mine], places[mine])
        np.testing.assert_array_equal(found, np.split(sums, len(group))[mine])
        tried += 1
    return tried


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_on_simulated_ranks(ranks: int) -> None:
    """Under MPI `test_every.py` runs the same."""
    assert max(World(ranks).run(check)) >= 16


def test_halves_add_up_in_float32() -> None:
    def main(comm: Any) -> Array:
        rows = np.full((2049, 1), 1.0, np.float16)
        op = SendRows(size=1, total=2, rank_list=(0, 1))
        return op.kernel(NumPyBackend(comm))(rows, np.zeros(2049, np.int32))

    first, second = World(2).run(main)
    assert first.dtype == np.float16
    assert first[0, 0] == 4098  # in Float16 2048 + 1 is 2048
    assert second[0, 0] == 0


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (FetchRows(), (ROWS, TensorType(FLOAT32, (3,))), "takes a tensor with rows and a tensor"),
        (SendRows(), (ROWS,), "takes a tensor with rows and a tensor of integers"),
        (SendRows(), (ROWS, TensorType(INT32, (3,))), "places (3,) are not those of rows (4, 2)"),
    ],
)
def test_operands_that_do_not_fit_are_refused(op: Any, types: Any, message: str) -> None:
    with pytest.raises(MspcError) as refused:
        op.infer(*types)
    assert message in str(refused.value)
