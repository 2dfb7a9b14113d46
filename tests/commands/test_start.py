"""The modules that a start loads: a command imports what it needs. Counts, not seconds: these are the same on every
machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MAX_MODULES = 396
"""Modules of mspc that the quick start's compile may load, of some 960."""
ASKED_FOR = {
    "mspc.mindspore_api.dataset.vision": "operations on images, which the script does not name",
    "mspc.mindspore_api.mindrecord": "files of records",
    "mspc.commands.search": "another command",
    "mspc.plans.contents": "there is no plan",
    "mspc.doctor": "the script has no mistake",
    "mspc.engine.job": "no rank runs",
    "mspc.search.plans.table": "plans are compared by `mspc search`",
    "mspc.ops.convolution": "the network has no convolution",
    "mspc.ops.cuda": "the network runs on no GPU",
    "mspc.ops.collective.gpu_launch": "the network runs on no GPU",
    "mspc.search.model.model": "nothing is searched for",
    "mspc.runtime.executor": "nothing is run",
    "concurrent.futures": "no thread reads data",
    "lark": "no text is read",
    "logging": "no thread reads data",
    "mpi4py": "no rank runs",
    "multiprocessing": "no process reads data",
    "networkx": "no circle is looked for",
    "numpy.ma": "NumPy loads it for `unique`",
    "rich": "nothing is drawn",
    "sqlite3": "files of records alone need it",
}
"""Modules that a plain compile does without, and all below them, with the reason."""


def loaded(code: str, *arguments: str) -> list[str]:
    """The modules that a process has loaded at the end of `code`, in which `sys` is there."""
    text = f"import sys\n{code}\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


COMMAND = """
from mspc.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
"""


@pytest.fixture(scope="module")
def compiled(root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The modules that a compile of the quick start has loaded."""
    script, out = root / "samples" / "quickstart" / "net.py", tmp_path_factory.mktemp("start") / "out"
    return loaded(COMMAND, "compile", str(script), "--ranks", "8", "--save-graphs", "--out", str(out))


def test_a_compile_loads_few_modules(compiled: list[str]) -> None:
    own = [name for name in compiled if name.partition(".")[0] == "mspc"]
    assert 100 < len(own) <= MAX_MODULES


@pytest.mark.parametrize("name", sorted(ASKED_FOR))
def test_a_compile_does_without(compiled: list[str], name: str) -> None:
    assert [each for each in compiled if f"{each}.".startswith(f"{name}.")] == []


def test_a_list_of_commands_needs_no_arrays() -> None:
    assert [name for name in loaded(COMMAND, "--help") if name.partition(".")[0] in ("numpy", "networkx")] == []


def test_the_package_opens_with_little() -> None:
    before = set(loaded(""))
    own = {
        "mspc",
        "mspc.mindspore_api",
        "mspc.mindspore_api.alias",
        "mspc.mindspore_api.call_handler",
        "mspc.mindspore_api.rooms",
    }
    assert set(loaded("import mspc")) - before == own | set(loaded("import functools, os, typing, types")) - before
