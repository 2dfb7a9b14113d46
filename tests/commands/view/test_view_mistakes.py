"""Targets that `mspc view` refuses, each with one clear message and status 2."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.report.verbosity import Loudness
from mspc.commands.view.page import ViewOptions, facts_of, view_target
from mspc.ir.diagnostics import MspcError
from tests.commands.view.reading import compiled

NETWORK = """
import mindspore as ms
import numpy as np
from mindspore import nn, ops, Tensor

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=2, dataset_strategy="full_batch")

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.relu = ops.ReLU().shard(((2, 1),))

    def construct(self, x):
        return self.relu(x) * 2

Net()(Tensor(np.ones((4, 8), np.float32)))
"""


@pytest.fixture(scope="module")
def compile_of_net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "net.py").write_text(NETWORK)
    return compiled(folder / "net.py", folder / "graphs")


@pytest.fixture
def folder(compile_of_net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that may be damaged, in the working folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(compile_of_net, "graphs")
    return Path("graphs")


def refused(target: str, profile: Path | None = None, **options: Any) -> str:
    """The message with which a target is refused. No page is written."""
    common = CompileOptions(loudness=Loudness(False, True), **options)
    with pytest.raises(MspcError) as caught:
        view_target(target, ViewOptions(common, profile=profile, out=Path("page.html")))
    assert caught.value.exit_status == 2
    assert not Path("page.html").exists()
    return str(caught.value)


def execute(folder: Path, rank: int) -> Path:
    (found,) = (folder / f"rank_{rank}").glob("*_execute_*.ir")
    return found


def test_files_that_are_no_dumps(folder: Path) -> None:
    Path("text.ir").write_text("hello\n")
    Path("bytes.ir").write_bytes(b"\xff\xfe\x00")
    Path("empty").mkdir()
    assert refused("text.ir").startswith("text.ir:1:1: error: unexpected 'hello'")
    assert refused("bytes.ir").startswith("error: bytes.ir is not text")
    assert refused("empty").startswith("error: empty holds no compiled program: program.json is missing")
    assert refused("none.ir") == "error: there is no file or folder 'none.ir'"
    assert refused("none.py") == "error: there is no script 'none.py'"


def test_dumps_of_different_compiles(folder: Path) -> None:
    path = execute(folder, 1)
    said = re.search(r'compile_id : "(\w+)"', path.read_text())
    assert said is not None
    path.write_text(path.read_text().replace(said[1], "0123456789abcdef"))
    assert refused("graphs").splitlines()[0] == (
        f"error: graphs holds dumps of different compiles: {path.relative_to(folder)} is of compile 0123456789abcdef, "
        f"program.json of {said[1]}"
    )


@pytest.mark.parametrize(("old", "new", "why"), [
    ("ranks : 2", "ranks : 4", "has ranks 4, the programs have 2"),
    ("(4, 8)", "(4, 16)", "x is <Tensor[Float32], (4, 16)> in"),
])  # fmt: skip
def test_a_stage_of_another_compile(folder: Path, old: str, new: str, why: str) -> None:
    (path,) = (folder / "rank_0").glob("*_fuse_gradients_*.ir")
    path.write_text(path.read_text().replace(old, new).replace("[0, -]", "[-, -]"))
    assert "graphs holds dumps of different compiles: " in refused("graphs")
    assert why in refused("graphs")


def test_truncated_files(folder: Path) -> None:
    path = execute(folder, 0)
    text = path.read_text()
    path.write_text(text[: text.index("Return(")])
    assert re.fullmatch(rf"{path}:\d+:\d+: error: the text ends too early", refused("graphs").splitlines()[0])
    program = folder / "program.json"
    program.write_text(program.read_text()[:300])
    assert refused("graphs").startswith("error: graphs/program.json is damaged: ")


def test_a_missing_rank(folder: Path) -> None:
    path = execute(folder, 1)
    path.unlink()
    assert refused("graphs") == f"error: there is no graph of rank 1, which program.json names {str(path)!r}"


def event(**others: Any) -> dict[str, Any]:
    return {"name": "ReLU 'relu'", "ph": "X", "pid": 0, "ts": 0.0, "dur": 1.0,
            "args": {"step": 1, "node": 0, "result": "<Tensor[Float32], (2, 8)>"}} | others  # fmt: skip


@pytest.mark.parametrize(("content", "why"), [
    ("no JSON", "is no profile: Expecting value"),
    ('{"traceEvents": 3}', "is no profile: it has no list of traceEvents"),
    (json.dumps({"traceEvents": [event(args={})]}), "is no profile of mspc: an event \"ReLU 'relu'\" names no node"),
    (json.dumps({"traceEvents": [event(pid=7)]}), "is of another compile: it has times of rank 7, which"),
    (json.dumps({"traceEvents": [event(name="GeLU")]}), "is of another compile: node "),
])  # fmt: skip
def test_profiles_of_something_else(folder: Path, content: str, why: str) -> None:
    Path("trace.json").write_text(content)
    assert refused("graphs", Path("trace.json")).startswith(f"error: trace.json {why}")


def test_options_that_say_nothing_here(folder: Path) -> None:
    assert refused("graphs", ranks=4) == "error: graphs is no script and takes no --ranks"
    Path("trace.json").write_text("{}")
    file = str(execute(folder, 0))
    assert refused(file, Path("trace.json")) == "error: --profile is for the folder of a compile, not for one graph"


def test_edited_and_missing_files_are_said_on_the_page(folder: Path) -> None:
    path = execute(folder, 1)
    path.write_text(path.read_text() + "# edited\n")
    assert facts_of("graphs", ViewOptions())["notes"] == [
        f"edited since they were compiled: {path.relative_to(folder)}"
    ]


def test_a_folder_that_does_not_lead_to_its_program_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NETWORK)
    folder = compiled(tmp_path / "net.py", tmp_path / "graphs", level=0, only_ranks=(0,))
    said = (folder / "program.json").read_text()
    (folder / "program.json").write_text(said.replace("((2, 1))", "((1, 2))").replace("in_strategy: ((2, 1),)", ""))
    facts = facts_of(str(folder), ViewOptions())
    assert facts["notes"] == [
        "no layouts of results: mspc compile --save-graphs writes the graphs that have them",
        "the folder holds 1 of 2 ranks' programs",
    ]
    assert facts["plan"] == -1
