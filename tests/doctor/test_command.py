"""`mspc doctor`: what it prints, its JSON, its exit status; and the list where an import of a script fails."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mspc.doctor.examination import KINDS, examine
from mspc.doctor.public import _ARGUMENTS, _CALLS, _KEYWORDS, Public, PublicModule, function_named, member
from mspc.mindspore_api.index.module import absent_names
from tests.aliases import uninstall
from tests.errors import message_of
from tests.serving import invoke

GAPS = """import mindspore as ms
from mindspore import nn
from mindspore.ops import NoOperator, relu, MatMull
ms.set_context(mode=0, max_call_depth=7)
net = nn.Dens(3, 4)
"""
METHODS = """import mindspore as ms
from mindspore import Tensor, ops
def f(x: Tensor):
    x.expand_dims(0), x.expand_dims(axis=0), x.ne(3), x.equal(x), x.sqrt()
    x.argmax(dim=1), x.sum(dim=1, keepdim=True), x.split(split_size=2), x.std(ddof=1)
    return ops.relu(input=x), ops.sqrt(x=x), Tensor.ne(x, 3)
"""
"""Methods of tensors that are operators, and arguments by other names that are taken."""


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a folder of its own; what running a script changes is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    yield
    uninstall()


def doctor(text: str | None, *arguments: str, status: int) -> str:
    if text is not None:
        Path("train.py").write_text(text)
    done = invoke("doctor", "train.py", *arguments)
    assert done.exit_code == status, done.output
    return done.output


def test_a_table_of_what_lacks_and_what_changes_nothing() -> None:
    assert doctor(GAPS, status=1).splitlines() == [
        "what train.py uses that mspc lacks or ignores",
        "kind     name                                   line           instead",
        "lacks    mindspore.ops.NoOperator               train.py:3:27  -",
        "lacks    mindspore.ops.MatMull                  train.py:3:45  did you mean MatMul or matmul?",
        "ignored  mindspore.set_context(max_call_depth)  train.py:4:24  how deep calls may nest is fixed",
        "lacks    mindspore.nn.Dens                      train.py:5:10  did you mean Dense?",
        "3 names lacking; 1 that changes nothing",
    ]


def test_json() -> None:
    found = json.loads(doctor(GAPS, "--json", "-", status=1))["findings"]
    assert found[-1] == {
        "kind": "lacks", "name": "mindspore.nn.Dens", "file": "train.py", "line": 5, "column": 10,
        "instead": "did you mean Dense?",
    }  # fmt: skip
    assert len(found) == 4


@pytest.mark.parametrize(("text", "said"), [
    ("import mindspore as ms\nms.Tensor([1])\n", "no names lacking\n"),
    ("import mindspore as ms\nms.set_context(max_call_depth=7)\n", "no names lacking; 1 that changes nothing\n"),
    ("try:\n    from mindspore import hall\nexcept ImportError:\n    hall = None\n", "no names lacking\n"),
    ("", "no names lacking\n"),
    (METHODS, "no names lacking\n"),
])  # fmt: skip
def test_status_0_where_nothing_lacks(text: str, said: str) -> None:
    assert doctor(text, status=0).endswith(said)


@pytest.mark.parametrize(("text", "message"), [
    (None, "error: there is no script 'train.py'\n"),
    ("x = 1\ndef f(:\n", "train.py:2:7: error: not Python: invalid syntax\n    def f(:\n          ^\n"),
    ("import other\n", "other.py:1:3: error: not Python: '(' was never closed\n    f((\n      ^\n"),
    ("x = 1\0", "error: train.py is not Python: source code string cannot contain null bytes\n"),
    ("x = " + "-" * 30_000 + "1", "error: train.py is not Python: expressions are nested too deep\n"),
])  # fmt: skip
def test_mistakes_are_one_message(text: str | None, message: str) -> None:
    Path("other.py").write_text("f((\n")
    assert message_of(doctor(text, status=2)) == message


def test_nothing_is_run_and_deep_expressions_are_read() -> None:
    deep = "import mindspore as ms\nx = " + " + ".join(["ms.Tensor"] * 900) + " + ms.Tensr\n"
    deep += "x = ms.Tensor" + ".abs" * 900 + "\ny = ms.nn" + "(1)" * 900 + "\n"
    assert "mindspore.Tensr" in doctor(deep + "open('made', 'w')\nraise SystemExit(7)\n", status=1)
    assert not Path("made").exists()


def test_modules_beside_and_in_the_package_are_read_and_installed_ones_are_not() -> None:
    Path("package/deep").mkdir(parents=True)
    for name in ("package", "package/deep"):
        Path(name, "__init__.py").write_text("")
    Path("beside.py").write_text("from mindspore import nn as cells\nimport numpy\ncells.Denss\n")
    Path("package/deep/train.py").write_text("from ..common import cells\nimport package.common\ncells.Dens\n")
    Path("package/common.py").write_text("from beside import cells\ncells.Densse\n")
    done = invoke("doctor", "package/deep/train.py", "--json", "-")
    assert [(f["file"], f["name"]) for f in json.loads(done.output)["findings"]] == [
        ("package/deep/train.py", "mindspore.nn.Dens"),
        ("package/common.py", "mindspore.nn.Densse"),
        ("beside.py", "mindspore.nn.Denss"),
    ]


@pytest.mark.parametrize("command", [["compile"], ["run", "--ranks", "2", "--simulate"]])
def test_a_failed_import_names_all_that_the_file_lacks(command: list[str]) -> None:
    Path("train.py").write_text(GAPS)
    done = invoke(*command, "train.py", status=2)
    assert message_of(done.stderr).endswith(
        "  note: train.py:3:27: mindspore.ops.NoOperator is not in mspc\n"
        "  note: train.py:3:45: mindspore.ops.MatMull is not in mspc: did you mean MatMul or matmul?\n"
        "  note: train.py:5:10: mindspore.nn.Dens is not in mspc: did you mean Dense?\n"
    )


def test_other_errors_get_no_such_list() -> None:
    Path("train.py").write_text("import mindspore as ms\nif ms.GRAPH_MODE:\n    ms.Tensr\nimport nothing_of_the_kind\n")
    done = invoke("compile", "train.py")
    assert "Tensr" not in done.output


def test_what_is_known_by_name_is_there() -> None:
    """Functions without effect, and what stands for names that mspc lacks."""
    for name in (*_ARGUMENTS, *_CALLS, *_KEYWORDS):
        assert callable(function_named(name))
    for name, row in absent_names().items():
        assert bool(row.target) != bool(row.doc), name
        path, _, last = row.target.partition(" ")[0].rstrip(":,").rpartition(".")
        assert not row.target or isinstance(member(PublicModule("mindspore", path), last), Public), name


def test_modules_below_a_package_are_names_of_it() -> None:
    Path("package/inner").mkdir(parents=True)
    Path("package/__init__.py").write_text("from .functions import *\nfrom .inner import *\nfunctions.__all__\n")
    Path("package/functions.py").write_text("from mindspore.ops import *\n")
    Path("package/inner/__init__.py").write_text("from .below import *\nbelow.x, unknown.x\n")
    Path("package/inner/below.py").write_text("from mindspore.ops import *\n")
    found = json.loads(doctor("import package\n", "--json", "-", status=1))["findings"]
    assert [(f["file"], f["name"]) for f in found] == [("package/inner/__init__.py", "mindspore.ops.unknown")]


SCRIPTS = Path(__file__).parent / "scripts"
ENTRIES = sorted((*SCRIPTS.glob("*.py"), SCRIPTS / "language_model" / "train.py"))


def expected(path: Path) -> set[tuple[str, int, str, str]]:
    """The expectations in comments at the ends of lines: `# lacks NAME, NAME`."""
    found: set[tuple[str, int, str, str]] = set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for kind, names in re.findall(rf"# ({'|'.join(KINDS)}) ([^#]+)", line):
            found |= {(path.name, number, kind, name.strip()) for name in names.split(", ")}
    return found


@pytest.mark.parametrize("script", ENTRIES, ids=lambda path: path.stem)
def test_every_gap_and_nothing_else(script: Path) -> None:
    own = sorted(script.parent.rglob("*.py")) if script.parent != SCRIPTS else [script]
    found = {(Path(f.file).name, f.line, f.kind, f.name) for f in examine(script)}
    assert found == set().union(*map(expected, own))


def test_there_are_ten() -> None:
    assert len(ENTRIES) == 10
