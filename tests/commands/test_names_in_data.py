"""Paths that the files of a compiled folder name: none leads out of it, whatever a script may do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.run import run_directory, run_script
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.files.regular import RULE

SCRIPT = """
import sys
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.full((8, 4), 2, np.float32)), "w")
        self.dump = ops.TensorDump()

    def construct(self, x):
        y = ops.matmul(x, self.w)
        self.dump(sys.argv[1] if len(sys.argv) > 1 else "dumps/y.npy", y)
        return y

Net()(Tensor(np.ones((4, 8), np.float32)))
"""
DUMPED = "dumps/y_float32_1_rank0.npy"


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


def dump_to(program: Path, name: str) -> Path:
    """Let the program dump to `name`; returns its file."""
    file = execute(program)
    text = file.read_text()
    assert 'file: "dumps/y.npy"' in text
    file.write_text(text.replace('file: "dumps/y.npy"', f'file: "{name}"'))
    return file


def test_a_program_dumps_into_its_own_folder(program: Path) -> None:
    run_directory(program, synthetic=True, steps=2)
    assert np.load(program / DUMPED).shape == (4, 4)
    assert sorted(p.name for p in Path().rglob("*.npy")) == ["y_float32_1_rank0.npy", "y_float32_2_rank0.npy"]


def test_the_next_compile_takes_dumps_for_its_own(program: Path) -> None:
    run_directory(program, synthetic=True)
    compile_target("net.py", CompileOptions(out=program, json=Path("table.json")))
    assert not (program / "dumps").exists()
    dump_to(program, "rank_0/y.npy")
    run_directory(program, synthetic=True)
    assert (program / "rank_0" / "y_float32_1_rank0.npy").is_file()
    compile_target("net.py", CompileOptions(out=program, json=Path("table.json")))
    (program / "empty").mkdir()
    with pytest.raises(MspcError, match="out holds files that mspc did not write: empty"):
        compile_target("net.py", CompileOptions(out=program, json=Path("table.json")))
    (program / "empty").rmdir()
    run_directory(program, synthetic=True)
    (program / "dumps" / "notes.txt").write_text("mine")
    with pytest.raises(MspcError, match="out holds files that mspc did not write: dumps"):
        compile_target("net.py", CompileOptions(out=program, json=Path("table.json")))


def test_a_script_dumps_where_it_likes(program: Path, tmp_path: Path) -> None:
    run_script(Path("net.py"), script_arguments=["../up/y.npy"])
    run_script(Path("net.py"), script_arguments=[str(tmp_path / "there" / "y")])
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.npy")) == [
        "there/y_float32_1_rank0.npy", "up/y_float32_1_rank0.npy",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["../y.npy", "dumps/../../y.npy", "..", "{absolute}/y.npy", "{absolute}/out/y.npy"])
def test_a_dump_out_of_the_folder(program: Path, name: str) -> None:
    name = name.format(absolute=Path.cwd())
    file = dump_to(program, name)
    refused(program, f"{file}: TensorDump names {name!r}, a path out of its folder")


@pytest.mark.parametrize("name", ["x" * 300, "x" * 240, "x" * 300 + "/y.npy"])
def test_a_dump_that_can_have_no_name(program: Path, name: str) -> None:
    dump_to(program, name)
    with pytest.raises(MspcError, match=r"TensorDump (cannot write|names)"):
        run_directory(program, synthetic=True)
    assert not list(Path().rglob("*.npy"))


def test_a_dump_through_a_link(program: Path) -> None:
    file = dump_to(program, "link/y.npy")
    (program / "link").symlink_to("../elsewhere")
    refused(program, f"{file}: TensorDump names 'link/y.npy', which a link leads out of out")


def test_a_dump_onto_a_link(program: Path) -> None:
    (program / "dumps").mkdir()
    (program / DUMPED).symlink_to("../../elsewhere/y.npy")
    refused(program, f"{execute(program)}: TensorDump names '{DUMPED}', which a link leads out of out")


def test_links_inside_of_the_folder_are_followed(program: Path) -> None:
    (program / "there").mkdir()
    (program / "dumps").symlink_to("there")
    Path("other").symlink_to(program)
    run_directory(Path("other"), synthetic=True)
    assert (program / "there" / "y_float32_1_rank0.npy").is_file()


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


@pytest.mark.parametrize("name", ["x" * 300, "file/y", "a\0b"])
def test_a_script_s_dump_that_cannot_be_written(program: Path, name: str) -> None:
    Path("file").write_text("")
    with pytest.raises(ExecutionError, match="TensorDump cannot write"):
        run_script(Path("net.py"), script_arguments=[name])
