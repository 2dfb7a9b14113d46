"""Functions of tensors as methods: names, arguments and checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mspc.mindspore_api.index.module import find
from mspc.mindspore_api.index.table import rows_of
from mspc.mindspore_api.ops.checked import misfit_of


def find_method(name: str) -> Callable[..., Any] | None:
    """Return the function of `x.name(...)`, which takes `x` first, or None if tensors have no such method."""
    return find("ops", f".{name}") if f".{name}" in rows_of("ops") else None


_SYNONYMS = (
    {"dim", "axis"}, {"keepdim", "keepdims", "keep_dims"}, {"correction", "ddof"}, {"other", "x2", "tensor2"},
    {"split_size", "split_size_or_sections"},
)  # fmt: skip
"""Groups of names that one argument has in different versions of a method of MindSpore."""


def respelled(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a method with the parameter names of its function."""
    if not kwargs or not inspect.isfunction(function):
        return dict(kwargs)
    parameters = inspect.signature(function).parameters
    return {own_name(name, parameters): value for name, value in kwargs.items()}


def own_name(name: str, parameters: Iterable[str]) -> str:
    """Return the name that a function with these parameters has for an argument."""
    parameters = list(parameters)
    same = next((group for group in _SYNONYMS if name in group), None)
    own = None if same is None or name in parameters else next((key for key in parameters if key in same), None)
    return name if own is None else own


def misfit(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return why `x.name(...)` cannot be called with these arguments, of which `x` is the first; "" if it can, or if an
    operator checks them itself."""
    if not inspect.isfunction(function):
        return ""
    wrong = misfit_of(function, args, kwargs)
    return f"Tensor.{name}(): {wrong}" if wrong else ""


def method_names() -> list[str]:
    """Return the names of all methods that are functions."""
    return sorted(name[1:] for name in rows_of("ops") if name.startswith("."))
