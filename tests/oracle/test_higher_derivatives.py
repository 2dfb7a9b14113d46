"""Derivatives of derivatives of random programs, beside PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import higher_derivatives
from tests.shares import share_of


@pytest.mark.parametrize("first", range(4))
def test_random_derivatives_of_derivatives(first: int, tmp_path: Path) -> None:
    """Every fourth program runs on one device as a cell, on 2 ranks, or function by function."""
    seeds = range(first, share_of(200, 17), 4)
    wrong = [message for seed in seeds if (message := higher_derivatives.check(seed, tmp_path)[1])]
    assert not wrong, "\n".join(wrong)


def test_the_programs_have_every_form_and_order() -> None:
    programs = [higher_derivatives.Program(seed) for seed in range(40)]
    assert set(higher_derivatives.TEXTS) == {name for each in programs for name in each.forms}
    assert {each.order for each in programs} >= {1, 2, 3, 4}
    for word in ("if a.sum()", "while ", "for _ in"):
        assert any(word in each.text for each in programs), word
