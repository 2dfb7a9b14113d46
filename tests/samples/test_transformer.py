"""The transformer sample: whatever the number of ranks, its losses are one rank's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def script(samples: Path) -> Path:
    return samples / "transformer" / "net.py"


@pytest.fixture
def train(mspc: Callable[..., str], script: Path) -> Callable[..., np.ndarray]:
    """Losses [step, rank] of every step."""

    def run(ranks: int, steps: int, *flags: str) -> np.ndarray:
        printed = 1 if "--only-rank" in flags else ranks
        out = mspc("run", script, "--ranks", ranks, *flags, "--", "--steps", steps, "--every", 1)
        found = [float(text) for text in re.findall(r"loss is (\S+)", out)]
        return np.array(found).reshape(steps, printed)

    return run


def test_losses_of_50_steps_equal_one_ranks(train: Callable[..., np.ndarray]) -> None:
    alone = train(1, 50)
    assert alone[0] == pytest.approx(np.log(64), rel=0.1)
    assert alone[-1] < 2.5
    for ranks in (2, 8):
        found = train(ranks, 50, "--simulate")
        np.testing.assert_array_equal(found, found[:, :1].repeat(ranks, 1))
        np.testing.assert_allclose(found[:, :1], alone, rtol=1e-4)


def test_losses_under_mpi_equal_one_ranks(train: Callable[..., np.ndarray]) -> None:
    np.testing.assert_allclose(train(8, 10, "--only-rank", "0"), train(1, 10), rtol=1e-4)


def test_eight_ranks_are_two_groups_of_four(
    compiled: Callable[[Path], dict[str, Any]], script: Path, samples: Path, tmp_path: Path,
    mspc_budget: Callable[..., None],
) -> None:  # fmt: skip
    tables = compiled(script)
    mspc_budget(tmp_path / "out", budget=samples / "budget.toml", name="transformer")
    slices = {row["name"]: row["slice"] for row in tables["parameters"]}
    assert slices["table"] == [16, 64]
    assert slices["layers.0.attention.wq"] == [64, 16]
    assert slices["layers.1.feed_forward.w2"] == [64, 64]
    assert slices["moment1.layers.1.feed_forward.w2"] == [64, 64]
    forward = [row for row in tables["collectives"] if row["phase"] == "forward"]
    # The embedding, two reductions per layer, one layout change at the loss, the loss itself and its rows.
    assert Counter((row["operator"], len(row["ranks"])) for row in forward) == {
        ("AllReduce", 4): 5,
        ("AlltoAll", 4): 1,
        ("AllReduce", 8): 2,
    }


def test_the_text_fits_the_vocabulary(script: Path) -> None:
    text = script.with_name("text.txt").read_text(encoding="utf-8")
    assert 3000 < len(text) < 6000
    assert len(set(text)) < 64
