"""The measures of the house: how long a function may be, and limits in tests."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.syntax import children, walk

ROOT = Path(__file__).resolve().parent.parent
NO_CODE = {"tests", "benchmarks", "samples", "docs", "build", "dist"}
FUNCTION_LINES = 60
"""Lines of a body, without the signature and the docstring."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def files() -> Iterator[Path]:
    """Every file of the package."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        if parts[0] not in NO_CODE and not any(part.startswith(".") for part in parts):
            yield path


def body_lines(node: Function) -> int:
    """Return the number of lines of a function after its docstring."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (node.end_lineno or node.lineno) - body[0].lineno + 1 if body else 0


@cache
def functions() -> dict[str, int]:
    """Return the number of lines of every function's body by `file:name`; a method's name follows its class's."""
    return {
        name: body_lines(node)
        for path in files()
        for name, node in _inside(ast.parse(path.read_text(encoding="utf-8")), f"{path.relative_to(ROOT)}:")
        if not isinstance(node, ast.ClassDef)
    }


def _inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    for child in children(node):
        if isinstance(child, Function | ast.ClassDef):
            yield f"{prefix}{child.name}", child
            yield from _inside(child, f"{prefix}{child.name}.")
        elif not isinstance(child, ast.expr):  # which holds no definition
            yield from _inside(child, prefix)


def test_functions_stay_short() -> None:
    assert {name: lines for name, lines in functions().items() if lines > FUNCTION_LINES} == {}


def test_limits_of_tests_are_one_constant() -> None:
    """A number of seconds in a test fails on a machine that has other work."""
    waiting = ("run", "communicate", "wait", "check_output", "check_call")
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if "timeout" in (text := path.read_text(encoding="utf-8"))
        for node in walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in waiting
        for keyword in node.keywords
        if keyword.arg == "timeout" and isinstance(keyword.value, ast.Constant)
    ]
    assert wrong == []
