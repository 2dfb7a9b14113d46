"""The tests of `pytest -m quick`: the first case of every test that starts no process, asks for no PyTorch and is not
slow.

The rule needs no marks in files, so that a new test joins by itself; one that takes longer than `LIMIT` seconds of a
core is put into `slow_tests.txt`. `tests/test_quick.py` says which folder would be left without any.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

LIMIT = 0.5
FOLDER = Path(__file__).resolve().parent
STARTS = re.compile(r"\b(?:subprocess|run_process|succeed|serve|SERVED|find_mpirun|torch|JUDGES)\b")
"""In the text of a test or of what it uses: it starts processes, or loads PyTorch, either of which takes seconds."""
ALSO = frozenset(
    (
        "engine/ranks/test_launching.py",
        "oracle/test_functions.py",
        "output/stablehlo/test_modules.py",
        "verify/test_comparison.py",
    )
)
"""Files of which that does not hold, or which stand for their folders."""
SLOW = frozenset((FOLDER / "slow_tests.txt").read_text(encoding="utf-8").split())
"""Files with a test whose first case is slow; in `test_grouped.py` one test looks at all cases of another."""


@cache
def quick_tests(file: Path) -> frozenset[str]:
    """Names of the tests of a file that are quick: none of a file that loads PyTorch itself."""
    name = file.relative_to(FOLDER).as_posix()
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)  # ast.get_source_segment splits the text anew each time
    defined = {each: statement for statement in ast.parse(text).body for each in _names_defined(statement)}
    tests = {each for each in defined if each.startswith("test_")}
    if name in ALSO:
        return frozenset(tests)
    if name in SLOW or re.search(r"^(?:import torch|from torch|torch\b|pytest\.importorskip)", text, re.MULTILINE):
        return frozenset()
    sources = {each: "".join(lines[s.lineno - 1 : s.end_lineno]) for each, s in defined.items()}
    decorated = {each: "".join(map(ast.unparse, getattr(s, "decorator_list", ()))) for each, s in defined.items()}
    slow = {each for each, source in sources.items() if STARTS.search(source + decorated[each])}
    used = {each: {*re.findall(r"\w+", sources[each] + decorated[each])} & defined.keys() for each in defined}
    while more := {each for each in defined if used[each] & slow} - slow:
        slow |= more
    return frozenset(each for each in tests - slow if f"{name}::{each}" not in SLOW)


def _names_defined(statement: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [each.id for each in targets if isinstance(each, ast.Name)]


def is_quick(file: Path, test: str = "") -> bool:
    """Whether the first cases of a test, or of any of a file's tests, are among the quick ones."""
    return test in quick_tests(file) if test else bool(quick_tests(file))


def is_first_case(item: pytest.Item) -> bool:
    """Whether a test has no cases, or this is the first of them."""
    case = getattr(item, "callspec", None)
    return case is None or not any(case.indices.values())
