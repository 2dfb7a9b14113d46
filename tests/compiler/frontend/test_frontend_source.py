"""Finding a function's source: odd layouts, several functions on a line, decorators, names of files."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mspc.compiler.frontend.source import Sources
from mspc.compiler.frontend.trace import trace
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, TensorType

X = TensorType(FLOAT32, (2, 4))

ODD = '''
def outer():
    def closing_at_margin(
        x, y=(1, 2),
    ):  # fmt: skip
        """Text at the margin:
not code.
        """
        return (x
+ y[0])

        x = 1  # never reached
    return closing_at_margin


def keeps(function):
    return function


@keeps
@keeps
def decorated(x):
    if False:
        return 1
    return x * 2


def one_line(x): return x - 1


PAIR = (lambda x: x + 1, lambda x: x * 3)
NAMES = (lambda a: a + 1, lambda b: b * 5)
SPREAD = [
    lambda x: (
        x + 7
    ),
]
ODD_LETTERS = lambda x: "äöü" and x * undefined
class Outer:
    class Inner:
        def method(self, x):
            return x / 2
closing = outer()
'''


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    """ODD as a module of its own."""
    path = tmp_path / "odd.py"
    path.write_text(ODD, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("odd", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    yield found
    sys.modules.pop("odd", None)


def test_columns_count_characters(module: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(MspcError) as caught:
        trace(module.ODD_LETTERS, [X], script_folder=str(tmp_path))
    where = caught.value.location
    assert where is not None
    assert where.file == "odd.py"
    assert where.text[where.column - 1 : where.end_column - 1] == "undefined"


def test_changed_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "changed.py"
    path.write_text("def network(x):\n    return x\n", encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    path.write_text("other = (\n", encoding="utf-8")
    with pytest.raises(MspcError, match=r"changed after it was imported, so 'network' cannot be read"):
        trace(names["network"], [X], script_folder=str(tmp_path))


def test_every_trace_has_the_same_trees_and_its_own_file_names(module: ModuleType, tmp_path: Path) -> None:
    for function in (module.one_line, module.ODD_LETTERS):
        one, other = (Sources(folder).function(function) for folder in (str(tmp_path), str(tmp_path / "a")))
        assert one.tree is other.tree
        assert other.location(other.tree).file == f"../{one.location(one.tree).file}"
