"""The changes that `python -m tests.mutation` makes, and how they come into functions that are loaded."""

import ast
import importlib.util
from pathlib import Path

from tests.mutation.changes import changes, compiled, places, put_in
from tests.mutation.processes import forked

TEXT = '''
def chosen(values, limit):
    """The values below a limit."""
    found = [value for value in values if value < limit and not value == 7]
    for value in found:
        assert value < 100
        if not isinstance(value, int):
            raise ValueError(f"{value + 1}")
    found.append(max(found) * 2)
    return found
'''


def changed() -> list[str]:
    """The function's text with each change."""
    shown = []
    for place in range(len(places(ast.parse(TEXT)))):
        for which in range(len(list(changes(*places(ast.parse(TEXT))[place])))):
            tree = ast.parse(TEXT)
            list(changes(*places(tree)[place]))[which][1]()
            shown.append(ast.unparse(ast.fix_missing_locations(tree)))
    return shown


def test_each_change_is_in_one_line_and_none_in_messages_and_types() -> None:
    before = ast.unparse(ast.parse(TEXT)).splitlines()
    lines = []
    for text in changed():
        (different,) = [b for a, b in zip(before, text.splitlines(), strict=True) if a != b]
        lines.append(different.strip())
    assert sorted(lines) == sorted([
        "found = [value for value in values]",
        "found = [value for value in values if value <= limit and (not value == 7)]",
        "found = [value for value in values if value < limit or not value == 7]",
        "found = [value for value in values if value < limit and (not not value == 7)]",
        "found = [value for value in values if value < limit and (not value != 7)]",
        "found = [value for value in values if value < limit and (not value == 8)]",
        "if not not isinstance(value, int):",
        "pass",
        "found.append(min(found) * 2)",
        "found.append(max(found) / 2)",
        "found.append(max(found) * 3)",
    ])  # fmt: skip


def test_a_loaded_function_gets_its_changed_code(tmp_path: Path) -> None:
    file = tmp_path / "choice.py"
    file.write_text(TEXT)
    spec = importlib.util.spec_from_file_location("choice", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.chosen([3, 7, 8], 8) == [3, 6]
    tree = ast.parse(TEXT)
    kind, change = next(changes(*places(tree)[0]))
    change()
    assert kind == "condition"
    put_in({str(file): compiled(file, tree)})
    assert module.chosen([3, 7, 8], 8) != [3, 6]


def test_calls_in_processes_give_what_they_return_or_how_they_end() -> None:
    assert dict(forked([lambda: [1], lambda: 1 / 0, lambda: "x"], 2)) == {0: [1], 1: 1, 2: "x"}
