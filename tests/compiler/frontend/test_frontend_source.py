"""Finding a function's source: odd layouts, several functions on a line, decorators, names of files."""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from interpret import run_global

from mspc import nn
from mspc.compiler.frontend.source import SourceFile, Sources
from mspc.compiler.frontend.trace import trace
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, TensorType
from mspc.mindspore_api.common.gradient import jit

X = TensorType(FLOAT32, (2, 4))

ODD = '''
def outer():
    def closing_at_margin(
        x,
        y=(1,
2),
    ):
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


@pytest.mark.parametrize(
    ("pick", "expected"),
    [
        (lambda m: m.closing, 3.0),
        (lambda m: m.decorated, 4.0),
        (lambda m: m.one_line, 1.0),
        (lambda m: m.PAIR[0], 3.0),
        (lambda m: m.PAIR[1], 6.0),
        (lambda m: m.NAMES[0], 3.0),
        (lambda m: m.NAMES[1], 10.0),
        (lambda m: m.SPREAD[0], 9.0),
        (lambda m: m.Outer.Inner().method, 1.0),
    ],
)
def test_function_is_found(module: ModuleType, pick: Callable[[ModuleType], Any], expected: float) -> None:
    traced = trace(pick(module), [X])
    (result,) = run_global(
        traced.graph, {p.name: np.full((2, 4), 2, np.float32) for p in traced.graph.parameters}
    )
    np.testing.assert_array_equal(result, expected)


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


def test_only_the_functions_own_lines_are_parsed(module: ModuleType) -> None:
    sources = Sources("")
    found = sources.function(module.one_line)
    assert found is sources.function(module.one_line)
    assert found.file._text is None


def test_every_trace_has_the_same_trees_and_its_own_file_names(module: ModuleType, tmp_path: Path) -> None:
    for function in (module.one_line, module.ODD_LETTERS):
        one, other = (Sources(folder).function(function) for folder in (str(tmp_path), str(tmp_path / "a")))
        assert one.tree is other.tree
        assert other.location(other.tree).file == f"../{one.location(one.tree).file}"


def test_files_are_shown_relative_to_the_script(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert SourceFile(str(tmp_path / "a" / "net.py"), folder).name == "a/net.py"
    assert SourceFile(str(tmp_path / "net.py"), str(tmp_path / "a")).name == "../net.py"
    assert SourceFile(nn.MSELoss.construct.__code__.co_filename, folder).name == "mspc/mindspore_api/nn/loss.py"


def test_libraries_are_not_shown_and_not_read() -> None:
    for path in (json.__file__, np.__file__):
        file = SourceFile(path, "")
        assert file.name == ""
        assert not file.is_traced


def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


class Decorated(nn.Cell):
    @jit
    def construct(self, x):
        return self.twice(x)

    @doubled
    def twice(self, x, add=1.0):
        return x + add


def test_decorated_methods_are_read_through() -> None:
    traced = trace(Decorated(), [X])
    assert [p.name for p in traced.graph.parameters] == ["x"]
    (result,) = run_global(traced.graph, {"x": np.ones((2, 4), np.float32)})
    np.testing.assert_array_equal(result, 4.0)
