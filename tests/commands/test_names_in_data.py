"""Paths that the files of a compiled folder name: none leads out of it, whatever a script may do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.run import run_directory
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.regular import RULE

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.full((8, 4), 2, np.float32)), "w")

    def construct(self, x):
        return ops.matmul(x, self.w)

Net()(Tensor(np.ones((4, 8), np.float32)))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "net.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        compile_target("net.py", CompileOptions(out=Path("out"), json=Path("table.json")))
    return folder


@pytest.fixture
def program(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the compiled folder, in a working folder with another folder beside it."""
    (tmp_path / "work" / "elsewhere").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    shutil.copytree(compiled / "out", "out")
    shutil.copy(compiled / "net.py", "net.py")
    return Path("out")


def refused(program: Path, message: str) -> None:
    """Running the program is refused with this message, and writes nothing anywhere."""
    before = sorted(Path.cwd().parent.rglob("*"))
    with pytest.raises(MspcError) as raised:
        run_directory(program, synthetic=True, steps=2)
    assert (raised.value.message, raised.value.exit_status) == (message, 2)
    assert sorted(Path.cwd().parent.rglob("*")) == before


def execute(program: Path) -> Path:
    (found,) = (program / "rank_0").glob("*_execute_*.ir")
    return found


def rename_graph(program: Path, name: str) -> None:
    path = program / "program.json"
    content = json.loads(path.read_text())
    content["execute"]["0"] = name
    path.write_text(json.dumps(content))


def absolute(program: Path) -> str:
    return str(execute(program).resolve())


def above(program: Path) -> str:
    shutil.copy(execute(program), "net.ir")
    return "rank_0/../../net.ir"


@pytest.mark.parametrize("name", [absolute, above, lambda _: "/etc/hostname", lambda _: "../net.py"])
def test_a_graph_out_of_the_folder(program: Path, name: Callable[[Path], str]) -> None:
    named = name(program)
    rename_graph(program, named)
    refused(program, f"out/program.json names {named!r}, a path out of its folder")


@pytest.mark.parametrize("linked", ["rank_0", "program.json", "weights.safetensors", "graph"])
def test_a_file_behind_a_link(program: Path, linked: str) -> None:
    path = execute(program) if linked == "graph" else program / linked
    shutil.move(path, "elsewhere/moved")
    path.symlink_to(Path("elsewhere/moved").resolve())
    who = "out/program.json" if linked in ("rank_0", "graph") else "the folder"
    shown = execute(program).relative_to(program) if linked == "rank_0" else path.relative_to(program)
    refused(program, f"{who} names {str(shown)!r}, which a link leads out of out")


def test_the_rule_is_said(program: Path) -> None:
    rename_graph(program, "/etc/hostname")
    with pytest.raises(MspcError) as raised:
        run_directory(program, synthetic=True)
    assert raised.value.notes == (RULE,)
