"""The wheel holds every package and the grammar, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mspc.mindspore_api.index.stubs import stubs


@pytest.fixture(scope="module")
def wheel_names(root: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Files of a wheel that is built from a copy of the checkout, with the setuptools that is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(root, source, ignore=shutil.ignore_patterns(".*", "build", "stubs", "__pycache__"))
    hook = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"  # what pip would call
    done = subprocess.run([sys.executable, "-c", hook], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_wheel_holds_every_module(root: Path, wheel_names: set[str]) -> None:
    left_out = {"tests", "benchmarks", "samples", "docs", "build", "dist"}
    modules = {
        f"mspc/{path.relative_to(root)}"
        for path in (*root.glob("*.py"), *root.glob("[a-z]*/**/*.py"))
        if path.relative_to(root).parts[0] not in left_out and path.name != "setup.py"
    }
    assert {name for name in wheel_names if name.endswith(".py")} == modules


def test_wheel_holds_the_grammar_the_page_the_index_and_no_other_data(root: Path, wheel_names: set[str]) -> None:
    data = {name for name in wheel_names if name.startswith("mspc/") and not name.endswith(".py")}
    page = {f"mspc/commands/view/page/built/view.{kind}" for kind in ("js", "css")}
    tables = {f"mspc/mindspore_api/index/{path.name}" for path in (root / "mindspore_api/index").glob("*.txt")}
    assert len(tables) > 10
    assert data == {"mspc/ir/text/grammar.lark", "mspc/py.typed"} | page | tables


def test_wheel_holds_the_stubs(wheel_names: set[str]) -> None:
    assert {name for name in wheel_names if name.split("/")[0].endswith("-stubs")} == stubs().keys()


def test_wheel_holds_the_licence(wheel_names: set[str]) -> None:
    assert any(name.endswith("LICENSE") for name in wheel_names)
