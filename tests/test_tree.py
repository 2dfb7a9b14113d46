"""The tree of folders in CONTRIBUTING.md is the one that there is.

ruff finds nothing; its rules stand in pyproject.toml. Rules that checkers are told to ignore are named, with a
reason.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import succeed


def lines_of(root: Path) -> Iterator[str]:
    """A line for every folder of the package, as CONTRIBUTING.md has it. Packages that tests have are no part of it."""
    for init in sorted(root.glob("[a-z]*/**/__init__.py")):
        folder = init.parent.relative_to(root)
        if not all((root / around / "__init__.py").exists() for around in folder.parents):
            continue
        about = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        shown = "  " * (len(folder.parts) - 1) + folder.name + "/"
        yield f"{shown:<18}{about.splitlines()[0]}"


def test_the_tree_in_the_docs_is_true(root: Path, update_goldens: bool) -> None:
    """`--update-goldens` writes it from the folders' own lines."""
    file = root / "CONTRIBUTING.md"
    before, start, rest = file.read_text(encoding="utf-8").partition("## The house\n\n```\n")
    shown, end, after = rest.partition("\n```")
    tree = "\n".join(lines_of(root))
    if update_goldens and shown != tree:
        file.write_text(before + start + tree + end + after, encoding="utf-8")
        return
    assert shown.splitlines() == tree.splitlines()


def test_packages_of_tests_are_no_part_of_the_tree(tmp_path: Path) -> None:
    for folder in (".", "ir", "ir/text", "tests/ir"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "__init__.py").write_text(f'"""{folder}."""\n')
    assert [line.split() for line in lines_of(tmp_path)] == [["ir/", "ir."], ["text/", "ir/text."]]


def test_every_line_ends_as_a_sentence_does(root: Path) -> None:
    assert [line for line in lines_of(root) if not line.endswith(".")] == []


def test_modules_of_tests_have_names_of_their_own(root: Path) -> None:
    """pytest imports them by these: of two that share one, the second to come is an error in one process alone."""
    names = Counter(file.name for file in (root / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


IGNORED = re.compile(r"#\s*(?:type:\s*ignore|pyright:\s*ignore|pyrefly:\s*ignore|noqa)\b(.*)")
NAMED_WITH_REASON = re.compile(r"(?:\[[\w, -]+\]|: [A-Z]+[0-9]+(?:, [A-Z]+[0-9]+)*)  # \S.*\Z")
NO_CODE = ("tests", "samples", "build", "dist")


def ignored_without_reason(text: str) -> list[int]:
    """The lines on which a checker is told to ignore something, without what it is or why."""
    found = ((number, IGNORED.search(line)) for number, line in enumerate(text.splitlines(), 1) if "#" in line)
    return [number for number, mark in found if mark is not None and NAMED_WITH_REASON.match(mark[1]) is None]


def test_ruff_is_content(root: Path) -> None:
    succeed(sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", ".", cwd=root)


def test_texts_are_spelled_right(root: Path) -> None:
    texts = (p.name for p in sorted(root.iterdir()) if p.suffix in (".md", ".py") or (p / "__init__.py").exists())
    command = [sys.executable, "-m", "codespell_lib", "docs", "samples", *(name for name in texts if name != "tests")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_ignored_is_named_and_has_its_reason(root: Path) -> None:
    found = list[str]()
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if place.parts[0] in NO_CODE or any(part.startswith(".") or part == "node_modules" for part in place.parts):
            continue
        found += [f"{place}:{number}" for number in ignored_without_reason(path.read_text(encoding="utf-8"))]
    assert not found


@pytest.mark.parametrize(("mark", "is_fine"), [
    ("type: ignore[arg-type]  # an Update", True), ("noqa: E402  # behind the limit", True),
    ("pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]  # JSON", True),
    ("noqa: F401, E402  # for scripts", True), ("type: ignore[arg-type]", False), ("noqa: E402", False),
    ("pyright: ignore  # older releases", False), ("type: ignore", False), ("noqa: E402 -- behind it", False),
])  # fmt: skip
def test_marks_without_a_reason_are_seen(mark: str, is_fine: bool) -> None:
    assert ignored_without_reason(f"x = 1\ny = f(x)  # {mark}") == ([] if is_fine else [2])
