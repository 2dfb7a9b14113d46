"""A served command says, writes and returns what one of its own process does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import SERVED

SCRIPT = """
import os, sys
import mspc as ms
print(sys.argv[1:], os.environ.get("GIVEN"), sorted(os.listdir(".")), sys.stdin.read(), __name__)
sys.stderr.write("aside\\n")
raise SystemExit(3)
"""


@pytest.mark.parametrize("arguments", [
    ["--version"], ["compile", "missing.py"], ["ops", "MatMul"], ["run", "script.py", "--", "one"],
])  # fmt: skip
def test_it_is_as_a_command_of_its_own(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    found = []
    for command in (SERVED, [sys.executable, "-m", "mspc"]):
        done = subprocess.run([*command, *arguments], cwd=tmp_path, env={**os.environ, "GIVEN": "this"}, input="typed",
                              capture_output=True, text=True, check=False)  # fmt: skip
        found.append((done.returncode, done.stdout, done.stderr))
    assert found[0] == found[1]
    assert found[0][0] == {"--version": 0, "compile": 2, "ops": 0, "run": 3}[arguments[0]]
