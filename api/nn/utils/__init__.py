"""`no_init_parameters`: values of parameters are not drawn before they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_init_parameters() -> Iterator[None]:
    """Parameters made inside are drawn later, by each rank its own slice.

    mspc draws every parameter made by an initializer like that, inside this context and outside, and a
    slice holds the same numbers as the same part of the whole tensor.
    """
    yield
