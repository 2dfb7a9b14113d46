"""A `Symbol` says what a script knows of a dimension whose size differs from call to call."""

from __future__ import annotations

from typing import Any

from mspc.api.errors import ApiTypeError, ApiValueError


class Symbol:
    """A dimension of unknown size: `divisor * n + remainder` for some n from 1.

    It is in the shape of a tensor that declares an input, see `Cell.set_inputs`. Every call has shapes of its own.

    Args:
        max: the largest size; it counts where it is above `min`. min: the smallest size.
        unique: every dimension that has this symbol has one size.

    Raises:
        TypeError: a number is no integer, `unique` no bool. ValueError: `min` or `divisor` is below 1, or `remainder`
            does not lie below `divisor`.
    """

    def __init__(
        self, max: int = 0, min: int = 1, divisor: int = 1, remainder: int = 0, unique: bool = False
    ) -> None:
        numbers = {"max": max, "min": min, "divisor": divisor, "remainder": remainder}
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int):
                raise ApiTypeError(f"Symbol: {name} must be an integer, not {value!r}")
        if not isinstance(unique, bool):
            raise ApiTypeError(f"Symbol: unique must be True or False, not {unique!r}")
        for name in ("min", "divisor"):
            if numbers[name] < 1:
                raise ApiValueError(f"Symbol: {name} must be at least 1, not {numbers[name]}")
        if not 0 <= remainder < divisor:
            raise ApiValueError(f"Symbol: remainder must be from 0 to {divisor - 1}, not {remainder}")
        self.max, self.min, self.divisor, self.remainder, self.unique = max, min, divisor, remainder, unique

    def __repr__(self) -> str:
        return f"Symbol(max={self.max}, min={self.min}, divisor={self.divisor}, remainder={self.remainder})"


def is_unknown(shape: Any) -> bool:
    """Whether a shape has sizes that are known at a call only: None, -1 or a Symbol. Raises nothing."""
    return isinstance(shape, list | tuple) and any(n is None or isinstance(n, Symbol) or n == -1 for n in shape)
