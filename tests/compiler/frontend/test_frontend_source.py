"""Finding a function's source: odd layouts, several functions on a line, decorators, names of files."""

# ruff: noqa: RUF005  tensors are added to lists, which does not join them

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor
from mspc.compiler.frontend.source import Sources
from mspc.compiler.frontend.trace import trace
from tests.errors import error_of
from tests.graphs import FLOAT32, INT64, MspcError, TensorType

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
    where = error_of(trace, module.ODD_LETTERS, [X], script_folder=str(tmp_path)).location
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


VECTOR, COUNT = TensorType(FLOAT32, (2,)), TensorType(INT64, ())
OUTSIDE = Tensor(np.array([1.0, 2.0], np.float32))


def in_a_loop(x: Any, n: Any) -> Any:
    for i in (1, 2):
        OUTSIDE += i  # type: ignore[misc]  # noqa: F823
    while n < 2:
        OUTSIDE = OUTSIDE * x
        n = n + 1
    return OUTSIDE


def in_an_inner_function(x: Any, n: Any) -> Any:
    y = x + 1

    def inner(x: Any) -> Any:
        y = y * x  # type: ignore[misc]  # noqa: F823
        return y

    return inner(x)


@pytest.mark.parametrize(
    ("function", "name", "result"),
    [(in_a_loop, "OUTSIDE", [4.0, 500.0]), (in_an_inner_function, "y", [2.0, 110.0])],
)
def test_what_is_read_before_it_has_a_value(function: Callable[..., Any], name: str, result: list[float]) -> None:
    (warning,) = trace(function, (VECTOR, COUNT), script_folder=str(Path(__file__).parent)).warnings
    assert warning.endswith(f"variable '{name}' is read here before it has a value; the outer value is used")
    x = Tensor(np.array([1.0, 10.0], np.float32))
    assert ms.jit(function)(x, Tensor(0)).asnumpy().tolist() == result


def only_in_a_branch(x: Any, n: Any) -> Any:
    if x.sum() > 0:
        OUTSIDE = x
    return OUTSIDE


def test_a_name_that_only_a_branch_binds_is_not_the_one_outside() -> None:
    with pytest.raises(MspcError, match="variable 'OUTSIDE' has no value here"):
        trace(only_in_a_branch, (VECTOR, COUNT), script_folder=str(Path(__file__).parent))


SEQUENCE_X = np.array([1, 5], np.int32)
CASES: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda x: x + (1, 2), SEQUENCE_X + [1, 2]),
    (lambda x: [1, 2] - x, [1, 2] - SEQUENCE_X),
    (lambda x: x * [1.5, 2.5], np.array([1.5, 12.5], np.float32)),
    (lambda x: x / (x[0], 3), np.array([1, 5 / 3], np.float32)),
    (lambda x: x // (2, 3), SEQUENCE_X // [2, 3]),
    (lambda x: (7, 8) % x, [7, 8] % SEQUENCE_X),
    (lambda x: x + ((1, 2), (3, 4)), SEQUENCE_X + [[1, 2], [3, 4]]),
    (lambda x: x + (x, x * 2), np.stack([SEQUENCE_X + SEQUENCE_X, SEQUENCE_X * 3])),
    (lambda x: Tensor([1, 2], ms.int32) + (1, 2) + x, SEQUENCE_X + [2, 4]),
    (lambda x: sum(x), np.array(6)),
    (lambda x: sum(x + ((1, 2), (3, 4)), x), SEQUENCE_X + [6, 16]),
    (lambda x: max(x) - min(x), np.array(4, np.int32)),
    (lambda x: sum((x, x)), SEQUENCE_X * 2),
]


@pytest.mark.parametrize(("function", "wanted"), CASES)
def test_what_they_give(function: Callable[[Any], Any], wanted: Any) -> None:
    found = ms.jit(function)(Tensor(SEQUENCE_X)).asnumpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert found.dtype.kind == wanted.dtype.kind


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x + ("a", 1), "'a'"),
        (lambda x: x + ((1, 2), 3), "Stack"),
        (lambda x: max(x + ((1, 2), (3, 4))), r"max\(\) of one tensor"),
        (lambda x: x + (), "tuple"),
    ],
)
def test_mistakes(function: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(MspcError, match=message):
        ms.jit(function)(Tensor(SEQUENCE_X))
