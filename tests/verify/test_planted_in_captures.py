"""Single edits of captured steps are found, at the changed node or its next reader."""

import random
from pathlib import Path

import pytest

from mspc.readers.pytorch.captured import read_rank
from tests.shares import share_of
from tests.verify.drawn_captures import kept_captures
from tests.verify.planted_in_captures import edits_of, without_wait

pytest.importorskip("torch")
SEEDS = (1, 2, 3, 4, 5)
"""FSDP, HSDP, tensor parallelism, context parallelism and experts."""
COUNT = 24
HARD = {
    1: [("1 slices exchanged 0", "slices exchanged"),  # all slices of a gradient are right, on other ranks
        ("1", "")],  # a parameter that is not written: an update writes another one
    2: [("2 a 0", "collective left out"),  # read by updates, which follow other gradients of one flat buffer
        ("2 collective left out 0", "collective left out"),  # a buffer whose segments contradict each other
        ("2 e 12", "constant")],  # a small term of a sum, whose readers round the difference away
    4: [("4 d 1", "collective left out")],  # a sum for which there are many places, and one as of other gradients
    3: [("3 d 1", "operand"),  # zeros on one rank, whose sum with the others' slices is a slice
        ("3 d 1", "collective of another kind")],  # ranks stop there; heads are reshaped before, and right
    8: [("8 offset 0", "offset"), ("8 collective added 0", "collective added")],  # norms of slices before their sum
    5: [("5 d 1", "stale gradient")],
}  # fmt: skip
"""Edits by program that were located elsewhere, each with the reason."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for captures, which tests make when they need them."""
    return tmp_path_factory.mktemp("captures")


def test_edits_are_located(folder: Path) -> None:
    count = share_of(COUNT)
    seeds = {p: [(str(n), "") for n in range(p, count, len(SEEDS))] for p in SEEDS if p < count}
    kept_captures([*seeds], folder)
    made = [each for p in seeds for each in edits_of(folder, p, seeds[p])]
    missed = [each for each in made if each.where != "located"]
    assert not any(each.where == "not found" for each in missed), missed
    assert len(missed) <= 0.05 * len(made), missed


@pytest.mark.share(6)
@pytest.mark.parametrize("program", HARD)
def test_hard_edits_are_located(folder: Path, program: int) -> None:
    kept_captures([program], folder)
    made = edits_of(folder, program, HARD[program])
    assert [each for each in made if each.where != "located"] == []


def test_a_wait_that_is_missing_is_found(folder: Path) -> None:
    kept_captures([3], folder)
    made = without_wait(read_rank(folder / "3" / "ranks", 0), random.Random(0))
    assert made.where == "located"
    assert "before wait_tensor" in made.told
