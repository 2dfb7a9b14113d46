"""`no_init_parameters` makes parameters whose values are not sampled before they are needed."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def no_init_parameters() -> Generator[None]:
    """Parameters made inside are sampled later, by each rank its own slice.

    mspc draws every parameter made by an initializer like that, inside this context and outside, and a
    slice holds the numbers that the global tensor has there.
    """
    yield
