"""The results of two slices of the keys are joined to that of both, by NumPy and by a kernel for GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc.ops.nn.attention import FlashAttentionScore
from mspc.ops.nn.context_attention import JoinAttention
from tests.ops.backend import BACKEND
from tests.ops.cuda.cuda_emulator import NEEDED, Emulator

LAYOUTS = ("BSH", "SBH", "BNSD", "BSND")
BATCH, HEADS, QUERIES, KEYS, DEPTH = 2, 3, 5, 8, 4


def laid(x: Any, layout: str) -> Any:
    """[batch, heads, sequence, depth] in a layout."""
    if layout == "BNSD":
        return x
    turned = np.ascontiguousarray(x.transpose(0, 2, 1, 3))
    if layout == "BSND":
        return turned
    flat = turned.reshape(*turned.shape[:2], -1)
    return flat if layout == "BSH" else np.ascontiguousarray(flat.transpose(1, 0, 2))


def slices(layout: str) -> tuple[list[Any], list[Any]]:
    """(attention and statistics of each half of the keys, those of all), causal from the third key on: some queries see
    no key of one half, the first two none at all."""
    random = np.random.default_rng(1)
    query, key, value = (random.normal(size=(BATCH, HEADS, n, DEPTH)) for n in (QUERIES, KEYS, KEYS))

    def found(first: int, last: int) -> list[Any]:
        op = FlashAttentionScore(
            HEADS, input_layout=layout, sparse_mode=2, first_query=0, all_queries=KEYS, key_slice=(first + 2, KEYS + 2)
        )
        arrays = [laid(x, layout) for x in (query, key[:, :, first:last], value[:, :, first:last])]
        statistics, _, _, out = op.run(BACKEND, *arrays)
        return [out, statistics]

    return [*found(0, KEYS // 2 - 2), *found(KEYS // 2 - 2, KEYS)], found(0, KEYS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_joined_slices_are_the_whole(layout: str) -> None:
    parts, whole = slices(layout)
    assert np.isneginf(whole[1]).any()
    joined: Any = JoinAttention(layout).run(BACKEND, *parts)
    for one, wanted in zip(joined, whole, strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-13, atol=1e-14)


@pytest.mark.skipif(NEEDED is None, reason="needs g++")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("first", "second", "bound"),
    [(np.float64, np.float64, 1e-12), (np.float32, np.float32, 1e-6), (np.float32, ml_dtypes.bfloat16, 1e-6)],
)
def test_the_kernel_does_as_numpy(layout: str, first: Any, second: Any, bound: float, tmp_path: Path) -> None:
    (one, of_one, other, of_other), _ = slices(layout)
    wide = np.float64 if first == np.float64 else np.float32
    given = [one.astype(first), of_one.astype(wide), other.astype(second), of_other.astype(wide)]
    wanted: Any = JoinAttention(layout).run(BACKEND, *(x.astype(np.float64) for x in given))
    out = [np.full(x.shape, np.nan, wide) for x in wanted]
    launch = JoinAttention(layout).launch(Emulator(tmp_path), out, *given)  # type: ignore[arg-type]  # the emulator
    assert launch is not None
    launch()
    for got, expected in zip(out, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=bound, atol=bound)
