"""A share of the networks that `mspc verify --scale` must find equal."""

from __future__ import annotations

import pytest

from mspc.ops.op import load_operators
from tests.shares import share_of
from tests.verify.scale.networks_that_are_right import EQUAL, drawn, main, outcome_of

load_operators()
SHARE = {
    "stages": (1, 2, 3),
    "halves": (3, 4, 6),
    "rows": (1, 10),
    "public": (0, 8),
    "control": (0, 2),
    "experts": (1, 3, 4, 21),
    "context": (0, 2, 45, 189, 202, 410, 30086),
    "networks": (*range(share_of(12)), 25, 66, 74, 94, 155, 171, 323, 1005),
}
"""Those too that were not: exchanges among several kinds, rows that travel by places, running sums, results of rows,
exchanges of other rounds, constants of ranks, places of keys, a third, indices beyond small tables, other groups."""


@pytest.mark.share(2)
@pytest.mark.parametrize(("source", "seed"), [(source, seed) for source, seeds in SHARE.items() for seed in seeds])
def test_what_is_right_is_equal(source: str, seed: int) -> None:
    found = outcome_of(drawn(source, seed))
    assert (found.kind, found.message) == (EQUAL, "")
    assert found.values > 0


def test_the_command_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0", "1", "--source", "networks"]) == 0
    assert "networks: 1 equal" in capsys.readouterr().out
