"""A compile looks for garbage rarely, and a script as it did before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, nn
from mspc.engine.calls import RankCalls
from mspc.engine.garbage import NEW_OBJECTS, leaving_out_made

ORDINARY = (700, 11, 12)


@pytest.fixture(autouse=True)
def threshold() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*ORDINARY)
    yield
    gc.set_threshold(*before)


def seen_in_a_compile(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    seen: list[tuple[int, int, int]] = []
    compiled = RankCalls.compiled

    def look(self: RankCalls, call: Any) -> Any:
        seen.append(gc.get_threshold())
        return compiled(self, call)

    monkeypatch.setattr(RankCalls, "compiled", look)
    return seen


def test_threshold_of_a_script_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = seen_in_a_compile(monkeypatch)
    nn.ReLU()(Tensor(np.ones(2, np.float32)))
    assert (seen, gc.get_threshold()) == ([(NEW_OBJECTS, *ORDINARY[1:])], ORDINARY)


def test_threshold_is_given_back_where_a_compile_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = seen_in_a_compile(monkeypatch)
    monkeypatch.setattr("mspc.engine.calls.compile_traced", lambda call, keeps: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        nn.ReLU()(Tensor(np.ones(2, np.float32)))
    assert (seen, gc.get_threshold()) == ([(NEW_OBJECTS, *ORDINARY[1:])], ORDINARY)


@pytest.mark.parametrize("rarer", [(0, 10, 10), (NEW_OBJECTS * 2, 10, 10)])
def test_script_that_looks_more_rarely_still_does(monkeypatch: pytest.MonkeyPatch, rarer: tuple[int, int, int]) -> None:
    seen = seen_in_a_compile(monkeypatch)
    gc.set_threshold(*rarer)
    nn.ReLU()(Tensor(np.ones(2, np.float32)))
    assert (seen, gc.get_threshold()) == ([rarer], rarer)


def test_ranks_of_one_process_leave_the_threshold_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = seen_in_a_compile(monkeypatch)
    monkeypatch.setattr(RankCalls, "has_own_process", False)
    nn.ReLU()(Tensor(np.ones(2, np.float32)))
    assert seen == [ORDINARY]


def test_what_is_made_is_left_out_meanwhile() -> None:
    before = gc.get_freeze_count()
    with leaving_out_made():
        assert gc.get_freeze_count() > before
    assert gc.get_freeze_count() == 0
