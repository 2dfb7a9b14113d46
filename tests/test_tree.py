"""The tree of folders in CONTRIBUTING.md is the one that there is."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


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
