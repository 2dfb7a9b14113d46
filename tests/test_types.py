"""pyright, strict, finds nothing to say on ir/, ops/ and passes/."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = {
    "include": ["mspc/ir", "mspc/ops", "mspc/passes"],
    "typeCheckingMode": "strict",
    "pythonVersion": "3.11",
    # Hooks narrow `*types` and `*inputs` to the operands that an operator has; `bprop` is a method or a reason.
    "reportIncompatibleMethodOverride": False,
    "reportIncompatibleVariableOverride": False,
    "reportUnknownLambdaType": False,
}


def test_core_passes_the_strict_type_checker(root: Path, tmp_path: Path) -> None:
    """The checkout is the package mspc, so the checker sees it through a link of that name."""
    (tmp_path / "mspc").symlink_to(root)
    settings = {**SETTINGS, "extraPaths": [str(tmp_path)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "-p", str(tmp_path), "--pythonpath", sys.executable, "--outputjson"]
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if not done.stdout.lstrip().startswith("{"):
        pytest.skip("pyright does not start here: it needs node, or a network to fetch it")
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [d for d in found if d["severity"] == "error"]
    lines = [f"{d['file']}:{d['range']['start']['line'] + 1}: {d['message']}" for d in errors]
    assert lines == []
