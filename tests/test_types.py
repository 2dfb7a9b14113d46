"""Type checkers, strict, find nothing to say on ir/, ops/ and passes/: pyrefly, which takes seconds, and with
--every-case pyright, which takes more than a minute and looks at what is unknown as well."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.serving import run_process

ROOMS = ("ir", "ops", "passes")
PYRIGHT = {
    "include": [f"mspc/{room}" for room in ROOMS],
    "typeCheckingMode": "strict",
    "pythonVersion": "3.11",
    # Hooks narrow `*types` and `*inputs` to the operands that an operator has; `bprop` is a method or a reason.
    "reportIncompatibleMethodOverride": False,
    "reportIncompatibleVariableOverride": False,
    "reportUnknownLambdaType": False,
}
PYREFLY = f"""
project-includes = {[f"mspc/{room}/**/*.py" for room in ROOMS]}
search-path = ["."]
python-version = "3.11"
preset = "strict"
[errors]
bad-override = false  # as above
implicit-any-lambda = false  # a lambda is of the type of what takes it
untyped-import = false  # networkx says no types
possibly-uninitialized-attribute = false  # what a stage has of its loop, a stage without one has not
missing-override-decorator = false  # hooks of operators are named by their base class; Python 3.11 has no decorator
"""


def test_core_passes_the_strict_type_checker(root: Path, tmp_path: Path) -> None:
    """The checkout is the package mspc, so the checker sees it through a link of that name."""
    (tmp_path / "mspc").symlink_to(root)
    (tmp_path / "pyrefly.toml").write_text(PYREFLY)
    command = ["pyrefly", "check", "--python-interpreter-path", sys.executable, "--output-format", "json"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = run_process(*command, cwd=tmp_path, env=environment)
    assert done.stdout.startswith("{"), done.stderr
    found = [f"{e['path']}:{e['line']}: {e['description']}" for e in json.loads(done.stdout)["errors"]]
    assert found == []


def test_core_passes_pyright(root: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--every-case"):
        pytest.skip("it takes more than a minute; --every-case runs it")
    (tmp_path / "mspc").symlink_to(root)
    settings = {**PYRIGHT, "extraPaths": [str(tmp_path)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "-p", str(tmp_path), "--pythonpath", sys.executable, "--outputjson"]
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = run_process(*command, env=environment)
    if not done.stdout.lstrip().startswith("{"):
        pytest.skip("pyright does not start here: it needs node, or a network to fetch it")
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [d for d in found if d["severity"] == "error"]
    lines = [f"{d['file']}:{d['range']['start']['line'] + 1}: {d['message']}" for d in errors]
    assert lines == []
