"""Single edits of captured steps are found, at the changed node or its next reader."""

import random
from collections import Counter
from pathlib import Path

import pytest

from mspc.readers.pytorch.captured import read_rank
from tests.shares import share_of
from tests.verify.drawn_captures import captured
from tests.verify.planted_in_captures import KINDS, one_of, without_wait

pytest.importorskip("torch")
SEEDS = (1, 3, 4)
"""FSDP, tensor parallelism and context parallelism."""
COUNT = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("captures")
    captured(SEEDS, made)
    return made


def test_edits_are_found_where_they_are(folder: Path) -> None:
    found = Counter[str]()
    for number in range(share_of(COUNT)):
        made = one_of(folder, SEEDS[number % len(SEEDS)], random.Random(number))
        assert made.found, made.change.label
        assert made.change.what in (*KINDS, "missing wait")
        found[made.where] += 1
    assert found["elsewhere"] <= 0.2 * found.total(), found  # 2 of the 10 edits of every day; the aim is 5 %


def test_a_wait_that_is_missing_is_found(folder: Path) -> None:
    made = without_wait(read_rank(folder / "3" / "ranks", 0), random.Random(0))
    assert (made.found, made.where) == (True, "there")
    assert "before wait_tensor" in made.told
