"""Layers of experts on 2 to 16 ranks have the numbers of one device, in every form that public networks write them."""

from __future__ import annotations

import pytest

from tests.experts.drawn_experts import FORMS, DrawnExperts
from tests.judged_seeds import EQUAL
from tests.sharded_beside_one import beside_one_device
from tests.shares import share_of


@pytest.mark.share(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", range(share_of(8)))
def test_experts_on_ranks_are_those_of_one_device(number: int, form: str) -> None:
    outcome = beside_one_device(5000 + number, DrawnExperts(5000 + number, (form,)))
    assert outcome.kind == EQUAL, outcome.message
