"""This program counts words, paragraphs and code blocks of the README and of each part of docs/.

    python docs/site/counts.py            # a row for the README and each part
    python docs/site/counts.py --pages    # a row for each page, too

A paragraph is text between blank lines, or an item of a list; tables, headings and code are none. The limits below are
held by tests/test_docs.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = ("start", "guides", "concepts", "reference")
DENSE = ("start", "guides")
"""Parts with many examples."""
RUN_WHOLLY = ("README.md", "docs/start/", "docs/guides/")
"""Pages of which tests run every code block."""
LONGEST_README, LONGEST_PAGE, LONG_PARAGRAPH, EXECUTED_PER_1000 = 600, 2500, 50, 8
GENERATED = tuple(f"docs/reference/{name}.md" for name in (
    "names", "pytorch-networks", "pytorch-operators", "benchmarks"))  # fmt: skip
"""Pages that programs write, or lists of measured figures, which may be longer."""
_BLOCK = re.compile(
    r"(?:<!-- (?P<kind>file|run|not run)(?:: (?P<argument>[^\n]*?))? -->\n)?"
    r"(?P<indent> *)```(?P<language>[\w-]*)\n(?P<text>.*?)\n? *```",
    re.DOTALL,
)
_STEP = re.compile(r"(?m)^\$ ")
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s")


@dataclass(frozen=True)
class Block:
    """A code block. kind: "file" (it is written), "run" (commands with their output), "not run" or "". argument: the
    name of the file, or why it is not run."""

    kind: str
    argument: str
    text: str


def blocks(text: str) -> list[Block]:
    """Return the code blocks of a page."""
    return [
        Block(found["kind"] or "", found["argument"] or "", f"{found['text']}\n") for found in _BLOCK.finditer(text)
    ]


def steps(block: Block) -> Iterator[tuple[str, str]]:
    """Yield each command of a block with the output that it must have; `...` stands for anything."""
    for step in filter(None, _STEP.split(block.text)):
        command, _, wanted = step.partition("\n")
        while command.endswith("\\"):
            more, _, wanted = wanted.partition("\n")
            command = f"{command[:-1]}{more}"
        yield command, wanted


def paragraphs(text: str) -> list[int]:
    """Return the words of each paragraph and list item of a page."""
    found: list[int] = []
    for part in re.split(r"\n\s*\n", _BLOCK.sub("\n\n", text)):
        lines = [line for line in part.split("\n") if line.strip() and not re.match(r"\s*(#|\||<!--|!\[| {4}\S)", line)]
        starts = [place for place, line in enumerate(lines) if _ITEM.match(line)]
        for begin, end in zip([0, *starts], [*starts, len(lines)], strict=True):
            words = " ".join(lines[begin:end]).split()
            if len(words) > 2:
                found.append(len(words))
    return found


class Counts:
    """Figures of a page, or the sum of several."""

    def __init__(self, text: str = "") -> None:
        found = blocks(text)
        self.words = len(text.split())
        self.prose = len(_BLOCK.sub(" ", text).split())
        self.lengths = paragraphs(text)
        self.blocks = len(found)
        self.executed = sum(block.kind in ("file", "run") for block in found)
        self.pages = 1 if text else 0
        self.longest = self.words

    def add(self, page: Counts) -> None:
        """Add a page's figures to the sum."""
        self.words += page.words
        self.prose += page.prose
        self.lengths += page.lengths
        self.blocks += page.blocks
        self.executed += page.executed
        self.pages += page.pages
        self.longest = max(self.longest, page.longest)

    def paragraph(self, share: float) -> int:
        """Return the words that a paragraph has at most in this share of them."""
        lengths = sorted(self.lengths)
        return lengths[min(len(lengths) - 1, int(share * len(lengths)))] if lengths else 0

    @property
    def executed_per_1000(self) -> float:
        """Executed code blocks per 1,000 words of prose."""
        return 1000 * self.executed / max(1, self.prose)

    def row(self, name: str) -> str:
        """Return the figures as a line of the table."""
        density = 1000 * self.blocks / max(1, self.prose)
        return (
            f"{name:40} {self.pages:5} {self.words:7} {self.longest:7} {self.paragraph(0.5):6} {self.paragraph(0.9):4} "
            f"{self.blocks:6} {density:8.1f} {self.executed_per_1000:9.1f}"
        )


def parts(pages: Mapping[str, Counts]) -> dict[str, Counts]:
    """Return the figures of the README and of each part, without generated pages."""
    found = {name: Counts() for name in ("README.md", *PARTS)}
    for name, page in pages.items():
        part = name.split("/")[1] if name.count("/") > 1 else name
        if part in found and name not in GENERATED:
            found[part].add(page)
    return found


def main(arguments: list[str]) -> None:
    """Print the table."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages = {file.relative_to(ROOT).as_posix(): Counts(file.read_text(encoding="utf-8")) for file in files}
    print(f"{'':40} pages   words longest median  p90 blocks   /1,000  executed")
    for name, total in (pages if "--pages" in arguments else {}).items():
        print(total.row(name))
    for name, total in parts(pages).items():
        print(total.row(name))


if __name__ == "__main__":
    main(sys.argv[1:])
