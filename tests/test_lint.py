"""ruff finds nothing; its rules stand in pyproject.toml. Rules that checkers are told to ignore are named, with a
reason."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

IGNORED = re.compile(r"#\s*(?:type:\s*ignore|pyright:\s*ignore|pyrefly:\s*ignore|noqa)\b(.*)")
NAMED_WITH_REASON = re.compile(r"(?:\[[\w, -]+\]|: [A-Z]+[0-9]+(?:, [A-Z]+[0-9]+)*)  # \S.*\Z")
NO_CODE = ("tests", "samples", "build", "dist")


def ignored_without_reason(text: str) -> list[int]:
    """The lines on which a checker is told to ignore something, without what it is or why."""
    found = ((number, IGNORED.search(line)) for number, line in enumerate(text.splitlines(), 1) if "#" in line)
    return [number for number, mark in found if mark is not None and NAMED_WITH_REASON.match(mark[1]) is None]


def test_ruff_is_content(root: Path) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", "."]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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
