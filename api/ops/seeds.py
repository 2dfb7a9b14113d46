"""Seeds of random operators are made of what scripts give: a number, a Generator, or nothing."""

from __future__ import annotations

from typing import Any

from mspc.api.common.generator import Generator
from mspc.api.errors import ApiTypeError
from mspc.ops.operator_arguments import describe


def seeds_of(given: Any, which: int = 0) -> tuple[int, int]:
    """The two seeds of an operator; zeros, with which it draws numbers of its own, where nothing is given. A Generator
    gives others at each call. which: tells the draws of one number apart.

    Raises:
        TypeError: it is none of these.
    """
    if given is None:
        return 0, 0
    if isinstance(given, Generator):
        return given.next_seeds()
    if isinstance(given, bool) or not isinstance(given, int):
        raise ApiTypeError(f"a seed must be an integer, a Generator or None, not {describe(given)}")
    return given, which
