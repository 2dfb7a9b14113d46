"""Silent errors of training on several ranks: each is found at its line, and the step without it is proved equal.

Single edits of captured steps are found, at the changed node or its next reader.
"""

import random
import re
from pathlib import Path

import pytest

from mspc.commands.verify_capture import check_precision, programs_of_captures
from mspc.ir.diagnostics import ExecutionError, Frames
from mspc.readers.pytorch.captured import read_rank
from mspc.verify.scale.proof import prove
from tests.shares import is_taken, share_of
from tests.verify.drawn_captures import capture, captured, differences, kept_captures
from tests.verify.drawn_plans import drawn
from tests.verify.planted_in_captures import edits_of, without_wait

pytest.importorskip("torch")
SCRIPT = Path(__file__).parent / "silent_errors.py"
LINES = SCRIPT.read_text().splitlines()
NAMES = [match[1] for line in LINES if (match := re.match(r'    "([^"]+)": lambda', line))]
TAKEN = [name for place, name in enumerate(NAMES) if is_taken(place, 6)]
ON_FOUR = {"largest over a group", "wrong group", "masks"}
SAID = {
    "row parallel bias": "adds bias on each of 2 ranks",
    "column parallel gradient": "all_reduce of the sum over ranks 0, 1, and groups alike, is missing after MatMul",
    "sum instead of mean": "Div is 2 times too large",
    "sum in bf16": "added up over ranks 0, 1 in BFloat16",
    "norm of a sequence": "all_reduce of the sum over ranks 0, 1, and groups alike, is missing after ReduceSum",
    "norm of a width": "all_reduce of the sum over ranks 0, 1",
    "chunked loss": "all_reduce of the sum over ranks 0, 1, and groups alike, is missing after MatMul",
    "largest over a group": "all_reduce of the max over ranks 0, 2, and groups alike, is missing after ReduceMax",
    "max instead of sum": "takes the max over ranks instead of the sum",
    "tied tables": "all_reduce of the mean over ranks 0, 1, and groups alike, is missing after GatherGrad",
    "read too early": "reads the result of _c10d_functional.all_reduce.default before wait_tensor",
    "valid rows": "all_reduce of the mean over ranks 0, 1, and groups alike, is missing after ReduceSum",
    "norm of slices": "all_reduce of the sum over ranks 0, 1",
    "small number": "on each of 2 ranks, whose results are added up",
    "wrong group": "is over ranks 0, 1, and should be over ranks 0, 2",
    "masks": "random numbers differ on ranks 0 and 1, which have the same values there",
    "flat offset": "does not begin where the slice before it ends in AllReduce",
    "flat scale": "Div is 2 times too large",
    "flat place": "it is the value that StridedSlice has at the same place of the script",
    "flat slice": "StridedSlice is not the slice of the rank's place over ranks 0, 1",
    "one forgotten": "all_reduce of the sum over ranks 0, 1, and groups alike, is missing after",
    "slices of others": "AllReduce is one sum too many",
}
"""The change that the message names. Errors of two places have none."""


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The steps of the tested names."""
    folder = tmp_path_factory.mktemp("captures")
    capture(SCRIPT, [
        (folder / name / f"{form}{ranks}", ranks, (name, form))
        for name in TAKEN
        for form, ranks in (("right", 1), *((form, 2 + 2 * (name in ON_FOUR)) for form in ("right", "wrong")))
    ])  # fmt: skip
    return folder


def found_in(folder: Path, name: str, form: str) -> tuple[str, Frames]:
    """Return the message of the proof of a step, "" if it is that of one device, and its lines."""
    single = folder / name / "right1"
    try:
        programs = programs_of_captures(folder / name / f"{form}{2 + 2 * (name in ON_FOUR)}", single)
        check_precision(programs)
    except ExecutionError as error:
        return error.message, error.frames
    found = prove(programs.one, programs.kinds, programs.values, 0, None, programs.batch)
    if found.same:
        return "", ()
    assert found.first is not None
    return found.first.equals or "differs", found.first.node.frames


@pytest.mark.parametrize("name", TAKEN)
def test_an_error_is_found_at_its_line(name: str, captures: Path) -> None:
    said, frames = found_in(captures, name, "wrong")
    assert SAID.get(name, "differs") in said
    assert any(LINES[frame.line - 1].endswith("# here") for frame in frames[:3]), frames[:3]


@pytest.mark.parametrize("name", TAKEN)
def test_the_step_without_it_is_proved(name: str, captures: Path) -> None:
    assert found_in(captures, name, "right") == ("", ())


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


FIRST = (15, 20, 4, 5, 0, 1)
"""One of every way: gradients that tensor parallelism leaves as parts of sums, and accumulated gradients in HSDP."""
DRAWN_SEEDS = (*FIRST, *(seed for seed in range(48) if seed not in FIRST))


def test_right_steps_are_equal(tmp_path: Path) -> None:
    taken = DRAWN_SEEDS[: share_of(len(DRAWN_SEEDS))]
    captured(taken, tmp_path)
    assert {drawn(seed).way: found for seed in taken if (found := differences(tmp_path, seed))} == {}
