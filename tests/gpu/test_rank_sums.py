"""Kernels along rows that add up what ranks hold, as they read it: real kernels in processes of their own, that share
what GPUs would share."""

import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.ops.fused.elementwise import FusedElementwise
from mspc.runtime.faults.stopped import packed
from mspc.runtime.gpu.peers import PeerCollectives
from tests.executors import NumPyBackend, OneRank
from tests.gpu.test_peers import BF16, Addresses, Region, in_processes
from tests.ops.cuda.cuda_emulator import NEEDED

NORM = ("Add(x0, x1)", "Cast(t0, dst_type=Float32)", "ReduceMean(t1, keep_dims=true, axis=(1))", "Sub(t1, t2)",
        "Cast(t3, dst_type=BFloat16)")  # fmt: skip
CASES = [
    (BF16, (37, 1024)),  # a warp holds a row
    (np.float32, (5, 3000)),  # a block holds a row
    (BF16, (9, 1002)),  # packs of two elements
    (np.float16, (3, 21)),  # single elements
    (np.float32, (2, 30_000)),  # a row lies in shared memory
]


def drawn(case: int, rank: int, turn: int) -> tuple[Any, Any]:
    dtype, shape = CASES[case]
    part = np.random.default_rng([case, rank, turn]).standard_normal(shape).astype(dtype)
    return part, np.random.default_rng([case, turn]).standard_normal(shape).astype(dtype)


def rank_body(rank: int, ranks: tuple[int, ...], shared: mmap.mmap, folder: Path) -> None:
    device: Any = Region(folder, shared, rank)
    device.step[0] = 7
    mark, place = packed(2, 0, 5), np.zeros((1,), np.int64)
    owner = SimpleNamespace(mark=(place.ctypes.data, mark))
    collectives = PeerCollectives(device, Addresses(rank), owner)  # type: ignore[arg-type]
    op = FusedElementwise(NORM, (0, 4))
    made: list[Any] = []
    for dtype, shape in CASES:
        part, beside = device.empty(shape, dtype), device.empty(shape, dtype)
        out = device.empty(shape, dtype), device.empty(shape, BF16)
        summed = collectives.partial_sums(part, ranks, ranks.index(rank))
        assert summed is not None
        launch = op.launch(device, out, part, beside, summed=(0, summed))
        assert launch is not None
        made.append((part, beside, out, launch))
    plain = op.kernel(NumPyBackend(OneRank()))
    for turn in range(3):
        for case, (part, beside, out, launch) in enumerate(made):
            part[...], beside[...] = drawn(case, rank, turn)
            place[0] = 0
            launch()
            assert place[0] == packed(2, 7, 5), "how far this rank is, for the others' watches"
            part[...] = 0  # whoever reads it behind the kernel's end would find this
            parts = [drawn(case, each, turn)[0].astype(np.float32) for each in ranks]
            total = sum(parts[1:], parts[0]).astype(CASES[case][0])
            wanted = plain(total, beside.copy())
            assert out[0].tobytes() == wanted[0].tobytes(), (case, turn)
            apart = np.abs(out[1].astype(np.float32) - wanted[1].astype(np.float32))
            assert apart.max() <= 2.0**-7 * np.abs(wanted[1].astype(np.float32)).max(), (case, turn, apart.max())


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
@pytest.mark.parametrize("ranks", [(0, 1), (0, 1, 2)])
def test_sums_are_those_of_a_reduction(ranks: tuple[int, ...], tmp_path: Path) -> None:
    in_processes(rank_body, ranks, tmp_path)
