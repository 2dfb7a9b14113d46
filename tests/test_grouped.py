"""Cases that share a test: every one runs, and every one that fails is named.

The share of the drawn cases that is taken, and all of them under `--thorough`.
Waiting for what a process prints ends: with the lines, or with a failure that shows them.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grouped import each, grouped
from tests.printed_lines import lines_until
from tests.serving import run_process
from tests.shares import THOROUGH, crossed, is_taken, share_of

TRIED: list[tuple[str, int]] = []
TOGETHER: list[tuple[str, int]] = []


@grouped([("one", 1), ("two", 1), ("one", 2)])
def test_a_name_has_its_cases(name: str, index: int) -> None:
    """Says what is tested."""
    TRIED.append((name, index))


def test_every_case_ran() -> None:
    assert TRIED == [("one", 1), ("one", 2), ("two", 1)]
    assert test_a_name_has_its_cases.__doc__ == "Says what is tested."


@grouped([("one", 1), ("two", 1), ("three", 1), ("one", 2)], 2)
def test_names_share_a_test_that_has_them(name: str, index: int) -> None:
    TOGETHER.append((name, index))


def test_every_case_of_several_names_ran(request: pytest.FixtureRequest) -> None:
    assert TOGETHER == [("one", 1), ("one", 2), ("two", 1), ("three", 1)]
    found = [item.name for item in request.session.items if "that_has_them" in item.name]
    assert found == [f"test_names_share_a_test_that_has_them[{names}]" for names in ("one two", "three")]


def test_every_failure_is_named() -> None:
    def check(name: str, index: int) -> None:
        assert index == 2, name

    with pytest.raises(ExceptionGroup, match="2 of 3 cases fail") as caught:
        each(check, [("Cube", 1), ("Cube", 2), ("Add", 3)])
    assert [error.__notes__ for error in caught.value.exceptions] == [["case: Cube, 1"], ["case: Add, 3"]]


def test_what_is_skipped_stays_skipped() -> None:
    with pytest.raises(pytest.skip.Exception):
        each(lambda _: pytest.skip("needs more"), [(1,)])


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
    [(["--thorough"], "\n107 tests collected"), ([], "\n23/30 tests collected (7 deselected)"),
     (["tests/search/plans/test_plan_files.py::test_rows_are_what_their_files_compile_to"], "\n30 tests collected")],
)  # fmt: skip
def test_marks_and_files_count_by_the_option(words: list[str], counted: str, root: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:xdist", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if name != THOROUGH}
    done = run_process(*command, *words, *FILES, cwd=root, env=environment)
    assert counted in done.stdout, done.stdout + done.stderr


PRINTS = (
    "import sys, time; print('odd', file=sys.stderr, flush=True); print('one', flush=True); print('two', flush=True)"
)


def started(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )


def test_the_lines_that_are_enough_and_what_follows_them() -> None:
    with started(f"{PRINTS}; print('three')") as job:
        assert lines_until(job, lambda lines: "two" in lines[-1]) == ["one\n", "two\n"]
        assert job.stdout is not None
        assert job.stdout.read() == "three\n"


@pytest.mark.parametrize(
    ("ends", "limit", "how"),
    [
        ("", 60, "has ended"),
        ("time.sleep(60)", 2, "was killed after 2 s"),
        ("import subprocess; subprocess.run(['sleep', '60'])", 2, "was killed after 2 s"),
    ],
)
def test_what_was_printed_is_shown_where_it_is_not_enough(ends: str, limit: float, how: str) -> None:
    with started(f"{PRINTS}; {ends}") as job, pytest.raises(pytest.fail.Exception) as raised:
        lines_until(job, lambda lines: len(lines) == 3, limit)
    assert str(raised.value) == f"the job {how}; it printed:\none\ntwo\nodd\n"
