"""Ten scripts in the style of public code: every gap is found, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mspc.doctor.examination import KINDS, examine

SCRIPTS = Path(__file__).parent / "scripts"
ENTRIES = sorted((*SCRIPTS.glob("*.py"), SCRIPTS / "language_model" / "train.py"))


def expected(path: Path) -> set[tuple[str, int, str, str]]:
    """The expectations in comments at the ends of lines: `# lacks NAME, NAME`."""
    found: set[tuple[str, int, str, str]] = set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for kind, names in re.findall(rf"# ({'|'.join(KINDS)}) ([^#]+)", line):
            found |= {(path.name, number, kind, name.strip()) for name in names.split(", ")}
    return found


@pytest.mark.parametrize("script", ENTRIES, ids=lambda path: path.stem)
def test_every_gap_and_nothing_else(script: Path) -> None:
    own = sorted(script.parent.rglob("*.py")) if script.parent != SCRIPTS else [script]
    found = {(Path(f.file).name, f.line, f.kind, f.name) for f in examine(script)}
    assert found == set().union(*map(expected, own))


def test_there_are_ten() -> None:
    assert len(ENTRIES) == 10
