"""Which functions are methods of a tensor. A method is a function that takes the tensor first, the same one in a
compiled function and on a Tensor outside of one.

Python functions say so by `@tensor_method()` where they are defined, operators by `Op.method`.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

from mspc.api.ops.checked import checked, misfit_of
from mspc.api.ops.operator_function import function_of
from mspc.ops.op import METHOD_OPERATORS

Function = TypeVar("Function", bound=Callable[..., Any])

METHODS: dict[str, Callable[..., Any]] = {}
"""Python functions by the method's name; filled by `tensor_method`, never by hand."""

_FUNCTIONS = "mspc.api.ops.function"
_ONLY_METHODS = tuple(f"mspc.api.ops.tensor_method{part}" for part in ("", "_places", "_changes"))


def tensor_method(*names: str) -> Callable[[Function], Function]:
    """A decorator: the function is a method of tensors too, under its own name or under these."""

    def declare(function: Function) -> Function:
        METHODS.update(dict.fromkeys(names or (function.__name__,), function))
        return function

    return declare


def find_method(name: str) -> Callable[..., Any] | None:
    """The function behind `x.name(...)`, which takes `x` first; None where tensors have no such method."""
    if name.startswith("_"):
        return None
    _load()
    if name in METHODS:
        function = METHODS[name]
        return checked(f"ops.{name}", function) if function.__module__.startswith(_FUNCTIONS) else function
    operator = METHOD_OPERATORS.get(name)
    return None if operator is None else function_of(operator)


_SYNONYMS = (
    {"dim", "axis"}, {"keepdim", "keepdims", "keep_dims"}, {"correction", "ddof"}, {"other", "x2", "tensor2"},
    {"split_size", "split_size_or_sections"},
)  # fmt: skip
"""Names of the same argument in the forms of a method that MindSpore has by turns."""


def respelled(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a method under the names that its function has for them."""
    if not kwargs or not inspect.isfunction(function):
        return dict(kwargs)
    parameters = inspect.signature(function).parameters
    return {own_name(name, parameters): value for name, value in kwargs.items()}


def own_name(name: str, parameters: Iterable[str]) -> str:
    """The name that a function with these parameters has for an argument."""
    parameters = list(parameters)
    same = next((group for group in _SYNONYMS if name in group), None)
    own = None if same is None or name in parameters else next((key for key in parameters if key in same), None)
    return name if own is None else own


def misfit(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Why `x.name(...)` cannot be called with these arguments, of which `x` is the first; "" where it can, or where an
    operator checks them itself."""
    if not inspect.isfunction(function):
        return ""
    wrong = misfit_of(function, args, kwargs)
    return f"Tensor.{name}(): {wrong}" if wrong else ""


def method_names() -> list[str]:
    """Names of all methods that are functions."""
    _load()
    return sorted({*METHODS, *METHOD_OPERATORS})


@functools.cache
def _load() -> None:
    for module in pkgutil.iter_modules(import_module(_FUNCTIONS).__path__):
        import_module(f"{_FUNCTIONS}.{module.name}")
    for name in _ONLY_METHODS:
        import_module(name)
