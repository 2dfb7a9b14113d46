"""Single edits of captured steps are found, at the changed node or its next reader."""

import random
from collections import Counter

import pytest

from mspc.commands.verify_capture import programs_of_captures
from tests.captures import shared
from tests.shares import share_of
from tests.verify.planted_in_captures import planted
from tests.verify.scale.changes_of_nodes import Unusable

pytest.importorskip("torch")
COUNT = 36


def test_edits_are_found_where_they_are(tmp_path_factory: pytest.TempPathFactory) -> None:
    programs = programs_of_captures(*(shared(name, tmp_path_factory) for name in ("ranks", "single")))
    generator, found = random.Random(1), Counter[str]()
    while found.total() < share_of(COUNT):
        try:
            made = planted(programs, generator)
        except Unusable:
            continue
        assert made.found, made.change.label
        found[made.where] += 1
    assert found["elsewhere"] <= max(1, 0.15 * found.total()), found
