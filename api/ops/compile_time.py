"""`constexpr` makes functions that are called as they are when a network is compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mspc.api.errors import ApiTypeError
from mspc.ops.operator_arguments import describe


class Constexpr:
    """A function of what is known at compile time; a compiled function calls it and continues with its result."""

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        functools.update_wrapper(self, function)
        self.__name__ = name or self.__name__
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def constexpr(
    fn: Any = None, get_instance: bool = True, name: Any = None, reuse_result: bool = True, check: bool = True
) -> Any:
    """Mark a function to be called at compile time, as `@constexpr` or `@constexpr(...)`.

    get_instance: False gives what makes the function when it is called. name: what messages call it. reuse_result,
    check: change nothing: the function is called each time, and tensors of a graph are refused always.

    Raises:
        TypeError: `fn` is no function, or `name` no string.
    """
    if name is not None and not isinstance(name, str):
        raise ApiTypeError(f"constexpr: name must be a string, not {describe(name)}")
    if fn is None:
        return functools.partial(constexpr, get_instance=get_instance, name=name)
    if not callable(fn):
        raise ApiTypeError(f"constexpr takes a function, not {describe(fn)}")
    made = Constexpr(fn, name)
    return made if get_instance else lambda: made


primexpr = constexpr
