"""Code that a script does not reach, names bound again, files that are not there, and errors in large trees."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mspc.doctor import program
from mspc.doctor.examination import FILES_AFTER_ERROR, examine
from mspc.engine.script import ScriptError, run_script_as
from mspc.mindspore_api import alias
from tests.aliases import uninstall

HEAD = "import mindspore as ms\nfrom mindspore import nn, ops, parallel\n"


@pytest.fixture(autouse=True)
def _alone(own_folder: Path) -> Iterator[None]:
    alias.install()
    yield
    uninstall()


def found(text: str) -> list[tuple[str, str]]:
    """(kind, name) of what stands in a script."""
    Path("train.py").write_text(HEAD + text)
    return [(each.kind, each.name.removeprefix("mindspore.")) for each in examine(Path("train.py"))]


@pytest.mark.parametrize(("text", "expected"), [
    ("def f():\n    ops.Nothing1()\ndef g():\n    ops.Nothing2()\nf()\n",
     [("lacks", "ops.Nothing1"), ("unreached", "ops.Nothing2")]),
    ("def f():\n    g()\ndef g():\n    ops.Nothing()\nif __name__ == '__main__':\n    f()\n",
     [("lacks", "ops.Nothing")]),
    ("class Net(nn.Cell):\n    def construct(self):\n        ops.Nothing1()\n"
     "    def export(self):\n        ops.Nothing2()\nNet()\n",
     [("lacks", "ops.Nothing1"), ("unreached", "ops.Nothing2")]),
    ("class Net(nn.Cell):\n    def construct(self):\n        ops.Nothing()\n", [("lacks", "ops.Nothing")]),
    ("class Own:\n    def run(self):\n        ops.Nothing()\ngetattr(Own(), 'run')()\n", [("lacks", "ops.Nothing")]),
    ("@register\ndef f():\n    ops.Nothing()\ndef g(): pass\ng()\n", [("lacks", "ops.Nothing")]),
    ("import functools\ndef f(): ops.Nothing()\ntable = {'a': f}\n", [("lacks", "ops.Nothing")]),
    ("def f():\n    import beside\ndef g():\n    from beside import one as two\n    two()\ng()\n",
     [("lacks", "ops.Nothing1"), ("unreached", "ops.Nothing2")]),
])  # fmt: skip
def test_what_the_script_does_not_come_to_is_told_apart(text: str, expected: list[tuple[str, str]]) -> None:
    beside = "from mindspore import ops\ndef one():\n    ops.Nothing1()\ndef other():\n    ops.Nothing2()\n"
    Path("beside.py").write_text(beside)
    assert found(text) == expected


def test_names_with_several_values_are_unknown() -> None:
    assert found("net = nn.ReLU()\nnet.place('worker', 0)\n") == [("ignored", "nn.ReLU.place()")]
    assert found("net = nn.ReLU()\nnet.place('worker', 0)\nnet = 3\n") == []
    shadowed = "def f(ops):\n    ops.Nothing1()\ndef g():\n    nn = 3\n    nn.Nothing2(), ops.Nothing3()\nf(g())\n"
    assert found(shadowed) == [("lacks", "ops.Nothing3")]


def test_a_file_that_is_not_there_yet_is_no_lack() -> None:
    assert found("ms.set_auto_parallel_context(strategy_ckpt_load_file='later.ckpt')\nfrom later import *\nNothing()\n"
                 "ms.set_auto_parallel_context(strategy_ckpt_config={'load_file': 'later.ckpt'})\n") == []  # fmt: skip


def test_names_of_own_modules_by_star_are_no_lacks() -> None:
    Path("package/inner").mkdir(parents=True)
    Path("package/__init__.py").write_text("")
    Path("package/inner/__init__.py").write_text("from .stem import *\n")
    Path("package/inner/stem.py").write_text("globals()['made'] = 3\n")
    assert found("from package.inner.stem import *\nmade\nfrom package.inner import *\nother\n") == []


@pytest.mark.parametrize("where", ["one_package.stem", "package_two.deep.stem"])
def test_an_error_in_a_large_tree_reads_few_files(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,500 modules that all import from each other, one of which asks for a name that is not there."""
    folder = tmp_path.joinpath(*where.split(".")[:-1])
    folder.mkdir(parents=True)
    for number in range(1500):
        text = f"from .module{number + 1} import *\n" if number < 1499 else ""
        (folder / f"module{number}.py").write_text(text)
    (folder / "stem.py").write_text("from .module0 import *\nfrom mindspore.ops import NoSuchName, relu\nNoSuch2\n")
    for each in (folder, *folder.parents[: where.count(".") - 1]):
        (each / "__init__.py").write_text("")
    script = tmp_path / "train.py"
    script.write_text(f"from {where} import *\n")
    (folder / "module100.py").write_text("")  # so that Python itself reads few
    read: list[Path] = []
    own = program.read_source
    monkeypatch.setattr(program, "read_source", lambda path, *more: (read.append(path), own(path, *more))[1])
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    with pytest.raises(ScriptError) as raised:
        run_script_as("__main__", script, [])
    lines = raised.value.render().splitlines()
    assert "NoSuchName" in lines[-2]
    assert lines[-1].endswith("stem.py:2:27: mindspore.ops.NoSuchName is not in mspc")
    assert len(read) <= FILES_AFTER_ERROR


def test_an_import_that_is_not_of_mindspore_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(program, "read_source", lambda path, *_: read.append(path))
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    script = tmp_path / "train.py"
    script.write_text("import a_library_that_is_not_there\n")
    with pytest.raises(ScriptError, match="a_library_that_is_not_there"):
        run_script_as("__main__", script, [])
    assert not read
