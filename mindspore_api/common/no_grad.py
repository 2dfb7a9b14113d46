"""`_no_grad`: a context in which no gradients are computed. Functions that it decorates are compiled like others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class _no_grad:
    """Context manager and decorator: values that a network computes inside are constants for gradients, as with
    `ops.stop_gradient`. Outside of a network it refuses calls of `grad()`."""

    depth = 0
    """The number of contexts that the script is in outside of networks."""

    def __enter__(self) -> None:
        _no_grad.depth += 1

    def __exit__(self, *error: object) -> None:
        _no_grad.depth -= 1

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def without_gradient(*args: Any, **kwargs: Any) -> Any:
            with _no_grad():
                return function(*args, **kwargs)

        return without_gradient
