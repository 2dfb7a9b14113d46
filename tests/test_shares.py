"""The share of the drawn cases that is taken, and all of them under `--thorough`."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HANG
from tests.shares import THOROUGH, crossed, is_taken, share_of

FILES = ("tests/pipelining/test_random_pipelines.py", "tests/search/plans/test_plan_files.py")


def test_a_share_is_rounded_up_and_all_under_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THOROUGH, raising=False)
    assert [share_of(count) for count in (1000, 10, 3)] == [84, 1, 1]
    assert share_of(7, 2) == 4
    assert [place for place in range(13) if is_taken(place)] == [0, 12]
    monkeypatch.setenv(THOROUGH, "1")
    assert share_of(7, 2) == 7
    assert all(map(is_taken, range(9)))


def test_any_two_options_meet_in_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    options = "ab", "cd", "ef", "ghij"
    monkeypatch.delenv(THOROUGH, raising=False)
    some = crossed(*options)
    assert len(some) == len(set(some)) < 16
    for (i, left), (j, right) in itertools.combinations(enumerate(options), 2):
        assert {(case[i], case[j]) for case in some} == set(itertools.product(left, right))
    monkeypatch.setenv(THOROUGH, "1")
    every = crossed(*options)
    assert every == list(itertools.product(*options))
    assert some == [case for case in every if case in some]


@pytest.mark.parametrize(
    ("words", "counted"),
    [(["--thorough"], "\n89 tests collected"), ([], "\n5/12 tests collected (7 deselected)"),
     (["tests/search/plans/test_plan_files.py::test_rows_are_what_their_files_compile_to"], "\n12 tests collected")],
)  # fmt: skip
def test_marks_and_files_count_by_the_option(words: list[str], counted: str, root: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:xdist", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if name != THOROUGH}
    done = subprocess.run(
        [*command, *words, *FILES], cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=HANG
    )
    assert counted in done.stdout, done.stdout + done.stderr
