"""What is planted in copies of the package is found by `mspc verify`; `planted_errors.py` alone runs all of it."""

from __future__ import annotations

import pytest

from tests.conftest import HANG
from tests.planted import Planted
from tests.planted_errors import ERRORS, FREE, PACKAGE, SAMPLE, SHARED, verified
from tests.planted_shared import PARALLEL

HIDDEN = ("freed-too-early", "mask-from-step-2", "overflow-on-one-rank", "transposed-all-to-all")
"""Those that are run here: each is seen by one part of the comparison alone."""


ALL_SHARED = [planted for errors, _ in SHARED.values() for planted in errors]


@pytest.mark.parametrize("planted", [*ERRORS, *ALL_SHARED], ids=lambda planted: planted.name)
def test_the_text_of_an_error_stands_once(planted: Planted) -> None:
    text = (PACKAGE / planted.file).read_text(encoding="utf-8")
    assert text.count(planted.old) == 1
    assert planted.new != planted.old


def test_there_is_a_network_for_every_error() -> None:
    assert len(ERRORS) == len({planted.name for planted in ERRORS}) == 14
    assert set(FREE) < {planted.name for planted in ERRORS}
    assert {target for target, _ in FREE.values()} == {SAMPLE}


def test_there_are_twenty_in_what_is_shared() -> None:
    assert len(ALL_SHARED) == len({planted.name for planted in ALL_SHARED}) >= 20
    assert not {planted.name for planted in ALL_SHARED} & {planted.name for planted in ERRORS}


def test_an_error_of_all_ranks_in_data_parallel_mode_is_found() -> None:
    errors, options = SHARED["data parallel"]
    run = verified(errors[1], PARALLEL, HANG, options)
    assert run.returncode == 1, run.stdout + run.stderr
    assert run.stdout.startswith("differs: ")


def test_without_an_error_nothing_is_found() -> None:
    run = verified(None, "", HANG)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("equal: ")


@pytest.mark.parametrize("planted", [e for e in ERRORS if e.name in HIDDEN], ids=lambda planted: planted.name)
def test_an_error_is_found(planted: Planted) -> None:
    run = verified(planted, "", HANG)
    assert run.returncode == 1, run.stdout + run.stderr
    assert run.stdout.startswith("differs: ")
    assert " values differ between one device and 8 ranks" in run.stderr
