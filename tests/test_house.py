"""The measures of the house: how long a function and how large a class may be, and limits in tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.syntax import children, walk

ROOT = Path(__file__).resolve().parent.parent
NO_CODE = {"tests", "benchmarks", "samples", "docs", "build", "dist"}
FUNCTION_LINES, CLASS_LINES, ATTRIBUTES = 60, 300, 20

LONG_FUNCTIONS = {
    "run": "the options of `mspc run`: most of its lines declare them",
}
"""Functions that are longer, each with its reason."""
LARGE_CLASSES = {
    "Session": "all that differs between ranks, the only state there is: a field for each thing",
    "Cell": "what MindSpore's Cell offers to scripts stands in one class",
    "Tracer": "the state of one trace: graph, scopes, names and errors, which every kind of syntax reads",
    "_Schedule": "the clocks of three streams and their queues, which every step reads together",
    "GpuDevice": "one field for each thing that a rank has on its GPU",
    "Optimizer": "what MindSpore's optimizers keep stands in one class, which those that people write read",
    "NcclComm": "a method for every collective, in two forms",
}
"""Classes that are longer or have more attributes, each with its reason."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def files() -> Iterator[Path]:
    """Every file of the package."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        if parts[0] not in NO_CODE and not any(part.startswith(".") for part in parts):
            yield path


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@cache
def sizes() -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    """By `file:name`, a method's name behind its class's: lines of every function; lines and attributes of every
    class."""
    functions: dict[str, int] = {}
    classes: dict[str, tuple[int, int]] = {}
    for path in files():
        for name, node in _inside(ast.parse(path.read_text(encoding="utf-8")), f"{path.relative_to(ROOT)}:"):
            if isinstance(node, ast.ClassDef):
                classes[name] = lines_of(node), len(attributes(node))
            else:
                functions[name] = lines_of(node)
    return functions, classes


def _inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    for child in children(node):
        if isinstance(child, Function | ast.ClassDef):
            yield f"{prefix}{child.name}", child
            yield from _inside(child, f"{prefix}{child.name}.")
        elif not isinstance(child, ast.expr):  # which holds no definition
            yield from _inside(child, prefix)


def own_name(name: str) -> str:
    """The name of a definition without its file, which may move."""
    return name.rpartition(":")[2]


def attributes(node: ast.ClassDef) -> set[str]:
    """What an object of the class holds: annotated fields that are no class variables, and what methods assign to
    `self`."""
    found = {
        entry.target.id
        for entry in node.body
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)
        and "ClassVar" not in ast.unparse(entry.annotation)
    }  # fmt: skip
    for inner in walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            if isinstance(inner.value, ast.Name) and inner.value.id == "self":
                found.add(inner.attr)
    return found


def test_functions_stay_short() -> None:
    functions, _ = sizes()
    long = {name: lines for name, lines in functions.items() if lines > FUNCTION_LINES}
    assert {name: lines for name, lines in long.items() if own_name(name) not in LONG_FUNCTIONS} == {}
    assert set(LONG_FUNCTIONS) == set(map(own_name, long)), "an exception that is none any more"


def test_classes_stay_small() -> None:
    _, classes = sizes()
    large = {name: size for name, size in classes.items() if size[0] > CLASS_LINES or size[1] > ATTRIBUTES}
    assert {name: size for name, size in large.items() if own_name(name) not in LARGE_CLASSES} == {}
    assert set(LARGE_CLASSES) == set(map(own_name, large)), "an exception that is none any more"


def test_every_exception_has_its_reason() -> None:
    reasons = [*LONG_FUNCTIONS.values(), *LARGE_CLASSES.values()]
    assert all(reason.strip() for reason in reasons)


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
