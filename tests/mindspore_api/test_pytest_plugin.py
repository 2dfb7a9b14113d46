"""Tests of scripts that import mindspore, under pytest alone and under mpirun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import run_process, succeed

TEST = """
import mindspore as ms
from mindspore import nn
from mindspore.communication import get_group_size, get_rank, init

def test_ranks():
    init()
    assert ms.__name__ == "mindspore"
    assert nn.Dense.__module__ == "mspc.mindspore_api.nn.basic"
    print(f"rank {get_rank()} of {get_group_size()}.")
"""
PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-s",
    "-p",
    "no:cacheprovider",
    "-p",
    "mspc.mindspore_api.pytest_plugin",
]


def run(folder: Path, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    others = ("OMPI_", "PMIX_", "PRTE_", "PYTEST_")
    own = {key: value for key, value in os.environ.items() if not key.startswith(others)}
    return run_process(*command, cwd=folder, env=own | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environment)


def test_tests_import_mindspore(tmp_path):
    (tmp_path / "conftest.py").write_text("from mindspore import nn\n")
    (tmp_path / "test_it.py").write_text(TEST)
    done = run(tmp_path, PYTEST)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 of 1." in done.stdout


def test_an_installed_mindspore_is_left_alone(tmp_path):
    """Also where it has not a module that mspc has."""
    (tmp_path / "mindspore").mkdir()
    (tmp_path / "mindspore" / "__init__.py").write_text("own = True\n")
    (tmp_path / "test_it.py").write_text(
        "import mindspore, pytest\n\ndef test_it():\n    assert mindspore.own\n"
        "    with pytest.raises(ModuleNotFoundError):\n        __import__('mindspore.nn')\n"
    )
    done = run(tmp_path, PYTEST)
    assert done.returncode == 0, done.stdout + done.stderr


def test_under_mpirun(tmp_path):
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        pytest.skip("needs mpirun beside this Python")
    (tmp_path / "test_it.py").write_text(TEST)
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = run(tmp_path, [str(mpirun), "--oversubscribe", "-n", "2", *PYTEST], **as_root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 of 2." in done.stdout
    assert "rank 1 of 2." in done.stdout


def test_it_costs_no_import_of_numpy():
    plugin = "import sys, mspc.mindspore_api.pytest_plugin as p"
    code = f"{plugin}; p.pytest_load_initial_conftests(); print('numpy' in sys.modules)"
    found = succeed(sys.executable, "-c", code)
    assert found.stdout == "False\n"


def test_the_plugin_is_entered(root):
    assert "pytest11 =\n    mspc = mspc.mindspore_api.pytest_plugin\n" in (root / "setup.cfg").read_text()
