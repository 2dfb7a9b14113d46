"""The stubs are those of the names that there are, and type checkers find what is right and wrong in a script."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mspc.api.index.stubs import PACKAGES, write
from tests.conftest import HANG

SCRIPT = """
import {first} as ms
import {first}.nn as cells
from {first} import Tensor, nn, ops
from {first}.common.initializer import Normal
from {first}.nn import Dense

net: nn.Cell = nn.Dense(4, 2)
other: cells.Dense = Dense(4, 2, weight_init=Normal(0.1))
x = ms.Tensor([1.0])
y: Tensor = ms.Parameter(x)
ops.relu(x)
ms.ops.MatMul(transpose_b=True)
ms.nn.Adam(net.trainable_params())
nn.Dense(4)
ops.reluu(x)
print(ms.Tensr)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both stub packages."""
    folder = tmp_path_factory.mktemp("stubs")
    write(folder)
    return folder


def test_a_row_has_its_parameters_and_its_words(made: Path) -> None:
    text = (made / "mspc-stubs/mint/__init__.pyi").read_text(encoding="utf-8")
    assert 'def cat(tensors: Sequence[Any], dim: int = ...) -> Any:\n    """Tensors one after another' in text
    assert "from mspc.ops import sinc as sinc\n" in text or "import sinc as sinc\n" in text


def test_every_stub_is_python(made: Path) -> None:
    files = sorted(made.rglob("*.pyi"))
    assert len(files) > 50
    for file in files:
        ast.parse(file.read_text(encoding="utf-8"))


def test_stubs_are_written_over_those_of_before(made: Path, tmp_path: Path) -> None:
    (tmp_path / "mspc-stubs").mkdir()
    (tmp_path / "mspc-stubs/gone.pyi").write_text("")
    write(tmp_path)
    assert {p.relative_to(tmp_path) for p in tmp_path.rglob("*")} == {p.relative_to(made) for p in made.rglob("*")}


SAMPLES = ("samples/quickstart/net.py", "samples/transformer/net.py", "tests/doctor/scripts/quickstart.py")
"""Scripts of which a type checker must know every name of MindSpore."""
UNKNOWN = ("reportAttributeAccessIssue", "reportCallIssue", "reportMissingImports", "reportMissingModuleSource")


def test_a_type_checker_sees_what_is_right_and_wrong(root: Path, made: Path, tmp_path: Path) -> None:
    """Laid out as an installation has it."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "mspc").symlink_to(root)
    for name in PACKAGES:
        (site / name).symlink_to(made / name)
    for first in ("mspc", "mindspore"):
        (tmp_path / f"with_{first}.py").write_text(SCRIPT.format(first=first))
    for number, sample in enumerate(SAMPLES):
        (tmp_path / f"with_sample_{number}.py").write_text((root / sample).read_text(encoding="utf-8"))
    settings = {"include": ["with_*.py"], "extraPaths": ["site"], "typeCheckingMode": "strict"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "-p", str(tmp_path), "--pythonpath", sys.executable, "--outputjson"]
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=HANG)
    if not done.stdout.lstrip().startswith("{"):
        pytest.skip("pyright does not start here: it needs node, or a network to fetch it")
    found = json.loads(done.stdout)["generalDiagnostics"]
    found = [d for d in found if d["severity"] == "error"]
    assert [d for d in found if "with_sample" in d["file"] and d["rule"] in UNKNOWN] == []
    rules = {"nn.Dense(4)": "reportCallIssue", "ops.reluu(x)": "reportAttributeAccessIssue",
             "print(ms.Tensr)": "reportAttributeAccessIssue"}  # fmt: skip
    for first in ("mspc", "mindspore"):
        file = tmp_path / f"with_{first}.py"
        lines = file.read_text().splitlines()
        wrong = [(lines[d["range"]["start"]["line"]], d["rule"]) for d in found if Path(d["file"]) == file]
        assert {line for line, _ in wrong} == set(rules)
        assert set(rules.items()) <= set(wrong)
