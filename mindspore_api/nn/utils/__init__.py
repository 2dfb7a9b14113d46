"""`no_init_parameters`: parameters whose values are sampled on first use."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def no_init_parameters() -> Generator[None]:
    """Sample parameters made in this context later, on each rank only its slice.

    mspc draws every parameter made by an initializer like that, inside this context and outside, and a slice has the
    same numbers as in the global tensor.
    """
    yield
