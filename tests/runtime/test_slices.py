"""Slices of global tensors, their gathering, the feeding of data, and what ranks settle before they start."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.runtime.arena import MemoryBlock, ResultMemory, assign, assign_with_adjacent, peak_live_bytes
from mspc.runtime.comm.agreement import agree, stop_together
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.data import Batches, gather, load_batches, local_slice, slice_parameter, synthetic_batches
from mspc.runtime.faults.record import StoppedByOther
from tests.errors import error_of
from tests.graphs import FLOAT32, INT32, DType, Layout, MspcError, Parameter, TensorType

WHOLE = np.arange(48, dtype=np.float32).reshape(4, 12)
LAYOUTS = [
    Layout.replicated(6, 2),
    Layout.from_strategy((2, 3), 6),
    Layout.from_strategy((2, 1), 6),
    Layout.from_strategy((1, 6), 6),
    Layout.of((2, 3), [(), (1, 0)]),
    Layout.of((3, 2), [(1,), ()]),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_gathering_undoes_cutting(layout: Layout) -> None:
    def main(comm: LocalComm) -> Any:
        local = local_slice(WHOLE, layout, comm.rank)
        assert local.shape == layout.local_shape(WHOLE.shape)
        assert not np.shares_memory(local, WHOLE)
        return gather(local, layout, WHOLE.shape, comm)

    for found in World(6).run(main):
        np.testing.assert_array_equal(found, WHOLE)


def fed(name: str, shape: tuple[int, ...], layout: Layout, dtype: DType = FLOAT32) -> Parameter:
    local = TensorType(dtype, layout.local_shape(shape))
    return Parameter(name, local, layout=layout, global_type=TensorType(dtype, shape))


def test_values_that_do_not_fit_are_refused() -> None:
    parameter = fed("w", (4, 12), LAYOUTS[1])
    assert slice_parameter(parameter, WHOLE.astype(np.float64), 0, "array").dtype == np.float32
    error = error_of(slice_parameter, parameter, WHOLE[:2], 0, "array")
    assert error.message == "array 'w' has shape (2, 12); the program takes (4, 12)"
    error = error_of(slice_parameter, fed("i", (4, 12), LAYOUTS[1], INT32), WHOLE, 0, "array")
    assert error.message == "array 'i' is float32; the program takes int32"


BATCH = fed("x", (4, 12), Layout.from_strategy((2, 1), 2))


def test_steps_lie_one_after_the_other_and_begin_again() -> None:
    data = np.arange(96, dtype=np.float32).reshape(8, 12)
    batches = Batches([BATCH], {"x": data}, 1, "data.npz")
    assert batches.count == 2
    for step in range(4):
        (found,) = batches.step(step)
        first = 4 * (step % 2)
        np.testing.assert_array_equal(found, data[first + 2 : first + 4])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "data.npz has no array 'x'"),
        ({"x": WHOLE, "y": WHOLE}, "data.npz has an array 'y' that the network does not take"),
        (
            {"x": WHOLE[:3]},
            "data.npz: array 'x' has shape (3, 12); the program takes (4, 12) or (steps x 4, 12)",
        ),
    ],
)
def test_data_that_do_not_fit_are_refused(arrays: dict[str, Any], message: str) -> None:
    assert error_of(Batches, [BATCH], arrays, 0, "data.npz").message == message


def test_npz_files(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=WHOLE)
    np.testing.assert_array_equal(load_batches(path, [BATCH], 0).step(0)[0], WHOLE[:2])
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(MspcError, match=r"cannot read .*data\.npz"):
        load_batches(path, [BATCH], 0)
    np.save(tmp_path / "one.npy", WHOLE)
    with pytest.raises(MspcError, match=r"one\.npy is not an npz file"):
        load_batches(tmp_path / "one.npy", [BATCH], 0)
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(MspcError, match="cannot read"):
        load_batches(path, [BATCH], 0)


def test_synthetic_data_are_slices_of_the_same_arrays() -> None:
    inputs = [BATCH, fed("i", (4,), Layout.from_strategy((2,), 2), INT32)]
    parts = [synthetic_batches(inputs, rank).step(0) for rank in (0, 1)]
    expected = np.random.default_rng(0).random((4, 12)).astype(np.float32)
    np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), expected)
    assert [part[1].tolist() for part in parts] == [[0, 0], [0, 0]]


def test_ranks_that_hold_different_compiles_do_not_start() -> None:
    World(3).run(lambda comm: agree(comm, "same"))
    error = error_of(lambda: World(3).run(lambda comm: agree(comm, "other" if comm.rank == 2 else "same")))
    assert error.exit_status == 2
    assert error.message == "the ranks hold graphs of different compiles: rank 2 and rank 0 differ; rank 0 holds same"


def test_one_rank_that_cannot_start_stops_all_with_its_own_message() -> None:
    quiet: list[int] = []

    def main(comm: LocalComm) -> None:
        try:
            stop_together(comm, MspcError("mine") if comm.rank == 1 else None)
        except StoppedByOther:
            quiet.append(comm.rank)
            raise

    with pytest.raises(MspcError, match="mine"):
        World(3).run(main)
    assert quiet == [0]


BLOCKS = [(1, 6, 8), (4, 0, 5), (2, 7, 11), (5, 3, 6), (2, 3, 7), (3, 0, 4), (5, 1, 3), (6, 4, 5), (6, 5, 10)]
"""(size, first node, the one behind the last); every order alone takes 20 where 17 are alive at most."""


def test_what_lies_beyond_the_bound_is_placed_first() -> None:
    blocks = [MemoryBlock(256 * size, begin, last=end - 1, free=end, free_on_side=end) for size, begin, end in BLOCKS]
    assert peak_live_bytes(blocks) == 17 * 256
    assert assign(blocks, 256) == 17 * 256
    check_apart(blocks)


def check_apart(blocks: list[MemoryBlock]) -> None:
    for i, one in enumerate(blocks):
        for other in blocks[:i]:
            together = one.start < other.free and other.start < one.free
            apart = one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset
            assert apart or not together


def test_blocks_of_one_life_lie_side_by_side() -> None:
    lives = [(300, 1, 5), (100, 1, 5), (500, 2, 4), (700, 1, 5), (0, 1, 5), (256, 2, 4), (400, 3, 6)]
    blocks = [MemoryBlock(size, begin, last=end - 1, free=end, free_on_side=end) for size, begin, end in lives]
    results = [ResultMemory(TensorType(FLOAT32, (1,)), [b.start], block=b) for b in blocks]
    assert assign_with_adjacent(blocks, [results[:5], [], results[4:], results[:2]], 256) >= peak_live_bytes(blocks)
    check_apart(blocks)
    assert [blocks[i].offset - blocks[0].offset for i in (0, 1, 3)] == [0, 512, 768]
