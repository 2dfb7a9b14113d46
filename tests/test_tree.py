"""The tree of folders in CONTRIBUTING.md is the one that there is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def lines_of(root: Path) -> Iterator[str]:
    """A line for every folder of the package, as CONTRIBUTING.md has it."""
    for init in sorted(root.glob("[a-z]*/**/__init__.py")):
        folder = init.parent.relative_to(root)
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
