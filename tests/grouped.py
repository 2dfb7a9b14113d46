"""Tests of many short cases: one test for each operator, not for each of its samples; pytest takes 3 ms for a test."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

Case = tuple[Any, ...]
MANY = 8
"""Names of a test whose cases take no longer than to begin it."""


def each(check: Callable[..., None], cases: Iterable[Case]) -> None:
    """Run a check of every case. Raises ExceptionGroup with the errors of all that fail, which their notes name."""
    tried = list(cases)
    errors: list[Exception] = []
    for case in tried:
        try:
            check(*case)
        except Exception as error:
            error.add_note(f"case: {', '.join(map(str, case))}")
            errors.append(error)
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {len(tried)} cases fail", errors)


def grouped(cases: Sequence[Case], together: int = 1) -> Callable[[Callable[..., None]], Callable[[str], None]]:
    """Make a check of cases a test of each name that they begin with, or of so many of these names together, which the
    test then has, so that `-k` finds them."""
    names: dict[str, list[Case]] = {}
    for case in cases:
        names.setdefault(case[0], []).append(case)
    of_test = {" ".join(some): [case for name in some for case in names[name]] for some in batched(names, together)}

    def of(check: Callable[..., None]) -> Callable[[str], None]:
        def test(name: str) -> None:
            each(check, of_test[name])

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return pytest.mark.parametrize("name", of_test)(test)

    return of


def batched(names: Iterable[str], count: int) -> Iterator[list[str]]:
    """Return this number of names one after the other."""
    left = list(names)
    return (left[i : i + count] for i in range(0, len(left), count))
