"""Single edits of captured steps are found, at the changed node or its next reader."""

import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from mspc.commands.verify_capture import programs_of_captures
from tests.conftest import HANG
from tests.serving import SERVED
from tests.shares import share_of
from tests.verify.planted_in_captures import planted
from tests.verify.scale.changes_of_nodes import Unusable

pytest.importorskip("torch")
SCRIPT = Path(__file__).parents[1] / "readers" / "pytorch" / "captured_training.py"
COUNT = 36


def captured(folder: Path, ranks: int, *arguments: object) -> Path:
    command = [*SERVED, "capture", SCRIPT, "--ranks", ranks, "--out", folder, "--", *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    return folder


def test_edits_are_found_where_they_are(tmp_path: Path) -> None:
    single, ranks = captured(tmp_path / "single", 1, 1, 1), captured(tmp_path / "ranks", 4, 2, 2)
    programs = programs_of_captures(ranks, single)
    generator, found = random.Random(1), Counter[str]()
    while found.total() < share_of(COUNT):
        try:
            made = planted(programs, generator)
        except Unusable:
            continue
        assert made.found, made.change.label
        found[made.where] += 1
    assert found["elsewhere"] <= max(1, 0.15 * found.total()), found
