"""Loops whose body is a function: `WhileLoop`, `ForiLoop` and `Scan`.

In a compiled function a body with `unroll=False` is in the graph once, whatever the number of turns is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mspc.api.errors import ApiTypeError, ApiValueError


class CountedRange:
    """Numbers of a loop that is not unrolled."""

    counts_in_the_run = True
    """Says it to the compiler, which reads `numbers`."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


class WhileLoop:
    """Calls a function with its own result as long as a condition holds.

    The loop turns as often as the condition of the value says, which the function returns with the types that it got.

    Examples:
        >>> loop = ops.WhileLoop()
        >>> print(loop(lambda x: x < 10, lambda x: x * 2, Tensor(3)))
        12
    """

    def __call__(self, cond_func: Any, loop_func: Any, init_val: Any) -> Any:
        _check_functions("WhileLoop", cond_func=cond_func, loop_func=loop_func)
        value = init_val
        while cond_func(value):
            value = loop_func(value)
        return value


class ForiLoop:
    """Calls a function with every number from `lower` up to `upper`, and with its own result.

    unroll: put every turn into the graph, where the bounds are known when it is compiled.

    Examples:
        >>> loop = ops.ForiLoop()
        >>> print(loop(0, 4, lambda i, x: x + i, Tensor(1)))
        7
    """

    def __call__(self, lower: Any, upper: Any, loop_func: Any, init_val: Any, unroll: bool = True) -> Any:
        _check_functions("ForiLoop", loop_func=loop_func)
        _check_bool("ForiLoop", unroll)
        numbers = range(lower, upper)
        value = init_val
        for i in numbers if unroll else CountedRange(numbers):
            value = loop_func(i, value)
        return value


class Scan:
    """Calls a function with its own first result and with every element of `xs`, a list, a tuple or a tensor.

    Returns the last first result, and a list of the second results of all calls. Where `xs` is None there are `length`
    calls with None. unroll: put every call into the graph; so they are where elements of `xs` have several types.

    Examples:
        >>> loop = ops.Scan()
        >>> print(loop(lambda total, x: (total + x, total), 0, [1, 2, 3]))
        (6, [0, 1, 3])
    """

    scans = True
    """Says to the compiler that a call of it may be one loop."""

    def __call__(self, loop_func: Any, init: Any, xs: Any, length: Any = None, unroll: bool = True) -> Any:
        _check_functions("Scan", loop_func=loop_func)
        _check_bool("Scan", unroll)
        items = [None] * _length(xs, length) if xs is None else xs
        carry = init
        found: list[Any] = []
        for x in items:
            result = loop_func(carry, x)
            if not isinstance(result, tuple | list) or len(result) != 2:
                raise ApiValueError("Scan: loop_func returns two values: what it carries on, and a result")
            carry, y = result
            found.append(y)
        return carry, found


def _length(xs: Any, length: Any) -> int:
    if not isinstance(length, int) or isinstance(length, bool):
        raise ApiTypeError(f"Scan: length must be an integer where xs is None, not {length}")
    return length


def _check_functions(name: str, **functions: Any) -> None:
    for argument, function in functions.items():
        if not callable(function):
            raise ApiTypeError(f"{name}: {argument} must be a function, not {function}")


def _check_bool(name: str, unroll: Any) -> None:
    if not isinstance(unroll, bool):
        raise ApiTypeError(f"{name}: unroll must be a bool, not {unroll}")
