"""Cases that share a test: every one runs, and every one that fails is named."""

from __future__ import annotations

import pytest

from tests.grouped import each, grouped

TRIED: list[tuple[str, int]] = []
TOGETHER: list[tuple[str, int]] = []


@grouped([("one", 1), ("two", 1), ("one", 2)])
def test_a_name_has_its_cases(name: str, index: int) -> None:
    """Says what is tested."""
    TRIED.append((name, index))


def test_every_case_ran() -> None:
    assert TRIED == [("one", 1), ("one", 2), ("two", 1)]
    assert test_a_name_has_its_cases.__doc__ == "Says what is tested."


@grouped([("one", 1), ("two", 1), ("three", 1), ("one", 2)], 2)
def test_names_share_a_test_that_has_them(name: str, index: int) -> None:
    TOGETHER.append((name, index))


def test_every_case_of_several_names_ran(request: pytest.FixtureRequest) -> None:
    assert TOGETHER == [("one", 1), ("one", 2), ("two", 1), ("three", 1)]
    found = [item.name for item in request.session.items if "that_has_them" in item.name]
    assert found == [f"test_names_share_a_test_that_has_them[{names}]" for names in ("one two", "three")]


def test_every_failure_is_named() -> None:
    def check(name: str, index: int) -> None:
        assert index == 2, name

    with pytest.raises(ExceptionGroup, match="2 of 3 cases fail") as caught:
        each(check, [("Cube", 1), ("Cube", 2), ("Add", 3)])
    assert [error.__notes__ for error in caught.value.exceptions] == [["case: Cube, 1"], ["case: Add, 3"]]


def test_what_is_skipped_stays_skipped() -> None:
    with pytest.raises(pytest.skip.Exception):
        each(lambda _: pytest.skip("needs more"), [(1,)])
