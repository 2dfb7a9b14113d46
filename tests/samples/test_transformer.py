"""The transformer sample: whatever the number of ranks, its losses are one rank's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Run = Callable[..., str]
STEPS, COMPARED = 50, 15
"""Behind which the loss is well below that of guessing; of which ranks do the first."""


@pytest.fixture(scope="module")
def script(samples: Path) -> Path:
    return samples / "transformer" / "net.py"


def train(mspc: Run, script: Path, ranks: int, steps: int, *flags: str) -> np.ndarray:
    """Losses [step, rank] of every step."""
    printed = 1 if "--only-rank" in flags else ranks
    out = mspc("run", script, "--ranks", ranks, *flags, "--", "--steps", steps, "--every", 1)
    found = [float(text) for text in re.findall(r"loss is (\S+)", out)]
    return np.array(found).reshape(steps, printed)


@pytest.fixture(scope="module")
def alone(shared_mspc: Run, script: Path) -> np.ndarray:
    """The losses of one rank."""
    return train(shared_mspc, script, 1, STEPS)


def test_one_rank_learns(alone: np.ndarray) -> None:
    assert alone[0] == pytest.approx(np.log(64), rel=0.1)
    assert alone[-1] < 2.5


@pytest.mark.parametrize("ranks", [2, 8])
def test_losses_equal_one_ranks(mspc: Run, script: Path, alone: np.ndarray, ranks: int) -> None:
    found = train(mspc, script, ranks, COMPARED, "--simulate")
    np.testing.assert_array_equal(found, found[:, :1].repeat(ranks, 1))
    np.testing.assert_allclose(found[:, :1], alone[:COMPARED], rtol=1e-4)


@pytest.mark.thorough
def test_losses_under_mpi_equal_one_ranks(mspc: Run, script: Path, alone: np.ndarray) -> None:
    np.testing.assert_allclose(train(mspc, script, 8, 5, "--only-rank", "0"), alone[:5], rtol=1e-4)


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
    # The embedding, two reductions per layer, the largest and the sum of every row of logits, the parts of the rows'
    # losses, the loss itself and its rows.
    assert Counter((row["operator"], len(row["ranks"])) for row in forward) == {
        ("AllReduce", 4): 7,
        ("ReduceScatter", 4): 1,
        ("AllReduce", 8): 2,
    }


def test_the_text_fits_the_vocabulary(script: Path) -> None:
    text = script.with_name("text.txt").read_text(encoding="utf-8")
    assert 3000 < len(text) < 6000
    assert len(set(text)) < 64
