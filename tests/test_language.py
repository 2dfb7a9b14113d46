"""Docstrings of the package are plain technical English, measured as rates of words and openings of sentences."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.syntax import walk
from tests.test_layering import LAYERS

ROOT = Path(__file__).resolve().parent.parent
TARGET = {"what": 0.5, "where": 2.0, "behind": 0.5, "ahead": 0.5}
"""The most occurrences of a word in 1,000 words of docstrings; `what` and `where` describe things by clauses."""
BEFORE_TARGET: dict[str, dict[str, float]] = {}
"""Folders that are still above the target, with the rates that they may not exceed. A rate is only ever lowered."""
SLACK = 1.0
"""A rate that is so much below the one noted has to be noted anew."""
OPENINGS = re.compile(r"(?:\A|[.!?]\s+)(What|Of|So many)\b")


@cache
def docstrings(folder: str) -> dict[str, str]:
    """Return the docstrings of a top folder's modules, classes and functions, by `file:line`."""
    found = dict[str, str]()
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text is not None:
                    found[f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"] = text
    return found


def pages() -> list[str]:
    """Return the prose of the documentation, without code."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [re.sub(r"```.*?```|`[^`]*`", "", file.read_text(encoding="utf-8"), flags=re.DOTALL) for file in files]


def rates(texts: list[str]) -> dict[str, float]:
    """Return the occurrences of each word of TARGET in 1,000 words."""
    words = Counter(word for text in texts for word in re.findall(r"[a-z]+", text.lower()))
    total = max(1, sum(words.values()))
    return {word: round(1000 * words[word] / total, 1) for word in TARGET}


@pytest.mark.parametrize("folder", LAYERS)
def test_rates_of_words(folder: str) -> None:
    found = rates(list(docstrings(folder).values()))
    limits = TARGET | BEFORE_TARGET.get(folder, {})
    assert {word: rate for word, rate in found.items() if rate > limits[word]} == {}, limits
    stale = {word: found[word] for word, rate in BEFORE_TARGET.get(folder, {}).items() if found[word] < rate - SLACK}
    assert stale == {}, "lower the rates noted in BEFORE_TARGET"


def test_rates_of_words_in_the_documentation() -> None:
    assert {word: rate for word, rate in rates(pages()).items() if rate > TARGET[word]} == {}


def test_openings_of_sentences() -> None:
    found = [place for folder in LAYERS for place, text in docstrings(folder).items() if OPENINGS.search(text)]
    assert found == [], "no sentence begins with What, Of or So many"


@pytest.mark.parametrize(("text", "rate"), [("Return what is there.", 250.0), ("Return the node if it is one.", 0.0)])
def test_rates_are_measured(text: str, rate: float) -> None:
    assert rates([text])["what"] == rate


@pytest.mark.parametrize(
    ("text", "is_banned"),
    [("What a node reads.", True), ("A node. Of two the first.", True), ("So many rows.", True), ("The node.", False)],
)
def test_banned_openings_are_found(text: str, is_banned: bool) -> None:
    assert bool(OPENINGS.search(text)) == is_banned
