"""Operators that a script defines as classes or functions. Scripts import this as `ops.primitive`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mspc.mindspore_api.errors import ApiTypeError
from mspc.ops.operator_arguments import describe


class Constexpr:
    """A function of values known at compile time; a compiled function calls it and continues with its result."""

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

    get_instance: False returns a maker of the function. name: its name in messages. reuse_result, check: change
    nothing: the function is called each time, and tensors of a graph are always refused.

    Raises TypeError if `fn` is no function, or `name` no string.
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


class HookBackward:
    """The inputs, with gradients that `hook_fn(gradients)` may replace: it takes a tuple, and returns a tuple, a
    tensor, or None to change nothing. Called as `HookBackward(hook_fn)(*inputs)`; hook_fn is read like a network.

    cell_id: accepted for MindSpore's scripts, changes nothing.

    Raises TypeError if hook_fn is no function.
    """

    def __init__(self, hook_fn: Any, cell_id: str = "") -> None:
        if not callable(hook_fn):
            raise ApiTypeError(f"HookBackward: hook_fn must be a function, not {describe(hook_fn)}")
        self.hook_fn: Callable[..., Any] = hook_fn

    def __call__(self, *inputs: Any) -> Any:
        return inputs[0] if len(inputs) == 1 else inputs


def _get_cache_prim(cls: type[Any]) -> type[Any]:
    return cls


_primexpr = primexpr
