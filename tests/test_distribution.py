"""The tests of a process that crashes."""

import subprocess
import sys
from collections import OrderedDict
from types import SimpleNamespace

import pytest

pytest.importorskip("xdist")

from tests.distribution import Files, how_it_ended  # there is xdist


def test_the_test_of_a_crash_is_not_tried_again() -> None:
    files = Files.__new__(Files)
    files.workqueue = OrderedDict()
    files.assigned_work = {"crashed": {
        "done.py": {"done.py::one": True}, "some.py": {"one": True, "two": False, "three": False},
        "next.py": {"four": False},
    }}  # fmt: skip
    assert files.remove_node("crashed") == "two"
    assert files.workqueue == {"some.py": {"one": True, "two": True, "three": False}, "next.py": {"four": False}}
    files.assigned_work = {"over": {"done.py": {"done.py::one": True}}}
    assert files.remove_node("over") is None
    assert set(files.workqueue) == {"some.py", "next.py"}


def test_parts_of_a_long_test_are_given_out_one_by_one() -> None:
    split = Files.__new__(Files)._split_scope
    assert split("test_some.py::test_long[part-3-of-8]") == "test_some.py::test_long[part-3-of-8]"
    assert split("test_some.py::test_long[3-of-8]") == split("test_some.py::test_short") == "test_some.py"


@pytest.mark.parametrize(("ends", "said"), [
    ("os._exit(3)", "ended with status 3"), ("os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
])  # fmt: skip
def test_how_a_process_ended_is_said(ends: str, said: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", f"import os; {ends}"])
    node = SimpleNamespace(gateway=SimpleNamespace(_io=SimpleNamespace(popen=process)))
    assert how_it_ended(node) == said
