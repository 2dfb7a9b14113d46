"""Waiting for what a process prints ends: with the lines, or with a failure that shows them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.printed_lines import lines_until

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
