"""The printed columns of a plan are those to which the plan's file compiles."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mspc.passes.base import VERIFY
from tests.random_plans import REFUSED, check
from tests.shares import share_of

GROUPS, EACH = share_of(10), 30


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_random_networks_plan_compiles_to_its_figures(
    group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VERIFY, raising=False)
    generator = random.Random(f"plans {group}")
    found = {seed: check(seed, tmp_path) for seed in (generator.getrandbits(48) for _ in range(EACH))}
    assert list(found.values()).count(REFUSED) < EACH / 3
    assert {seed: message for seed, message in found.items() if message not in ("", REFUSED)} == {}
