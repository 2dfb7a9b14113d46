"""Rows of the index: what they say, what is made of them, and which mistakes in a table are told."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, mint, ops
from mspc.mindspore_api import index
from mspc.mindspore_api.index.functions import found, is_expression, tree_of
from mspc.mindspore_api.index.table import module_of, rows_of

MODULES = sorted({module_of(path.name) for path in Path(index.__path__[0]).glob("*.txt")})


def row_of(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str, name: str) -> Any:
    """A row of a table of a module of its own."""
    (folder / f"{folder.name}.txt").write_text(text)
    monkeypatch.setattr(index, "__path__", [str(folder)])
    return rows_of(folder.name)[name]


@pytest.mark.parametrize("module", MODULES)
def test_every_row_gives_an_object_and_every_function_its_words(module: str) -> None:
    for name, row in rows_of(module).items():
        assert found(row) is not None or name == "newaxis", name
        if is_expression(row) and row.kind == "":
            assert tree_of(row).name in {its.removeprefix(".") for its in row.names}
            assert row.doc, f"{row.path}:{row.line} says nothing of {name}"


def test_a_row_is_a_function_with_its_signature_and_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "use math: pi\n\nlet twice(x) = x * 2\nturned more(x, by: float = pi, *, over=1 / 4) =\n"
    text += "        twice(x) + by * over\n    Turned.\n\n    Raises:\n        nothing\nnext(x) = x\n    x.\n"
    row = row_of(monkeypatch, tmp_path, text, "more")
    function = found(row)
    assert str(inspect.signature(function)).startswith("(x: 'Any', by: 'float' = 3.14")
    assert str(inspect.signature(function)).endswith(", *, over: 'Any' = 0.25) -> 'Any'")
    assert (function.__name__, function.__doc__) == ("turned", "Turned.\n\nRaises:\n    nothing")
    assert function(1, 4.0) == 3.0
    assert function.__code__.co_firstlineno == 4
    assert not rows_of(tmp_path.name)["twice"].is_public


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f(x) = [y for y in x]\n", ":1: ListComp has no place in a row; write a function"),
        ("f(x) = (lambda: x)\n", ":1: Lambda has no place in a row; write a function"),
        ("f(x) = unknown(x)\n", ":1: nothing is called 'unknown'; 'use' names its place"),
        ("f(x) = open(x)\n", ":1: nothing is called 'open'; 'use' names its place"),
        ("\nf(x) = x +\n", ":2: invalid syntax"),
        ("f = \n", ":1: a row is 'names(parameters) = expression' or 'names = name'"),
        ("f(x) = x\nf(y) = y\n", ":2: f has a row already, "),
        ("hidden from math\n", ":1: a row is 'from module: names' or 'hidden from module: names'"),
        ("from math pi: e\n", ":1: a row is 'from module: names' or 'hidden from module: names'"),
    ],
)
def test_a_mistake_in_a_table_is_told_with_its_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"\.txt:\d+: ") as raised:
        found(row_of(monkeypatch, tmp_path, text, "f"))
    assert message in str(raised.value)


def test_an_error_points_to_the_row_and_the_message_to_the_call() -> None:
    with pytest.raises(TypeError, match=r"ops.one_hot\(\): .*'depth'"):
        ops.one_hot(Tensor([1]))
    assert ops.one_hot(Tensor([1]), 3).asnumpy().tolist() == [[0, 1, 0]]
    assert np.allclose(mint.softmax(Tensor([0.0, 0.0]), 0).asnumpy(), 0.5)
