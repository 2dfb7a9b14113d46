"""Functions of tensors as methods: names, arguments and checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mspc.mindspore_api.index.module import find
from mspc.mindspore_api.index.table import rows_of
from mspc.mindspore_api.ops.checked import misfit_of


def find_method(name: str) -> Callable[..., Any] | None:
    """The function behind `x.name(...)`, which takes `x` first; None if tensors have no such method."""
    return find("ops", f".{name}") if f".{name}" in rows_of("ops") else None


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
    """Why `x.name(...)` cannot be called with these arguments, of which `x` is the first; "" if it can, or if an
    operator checks them itself."""
    if not inspect.isfunction(function):
        return ""
    wrong = misfit_of(function, args, kwargs)
    return f"Tensor.{name}(): {wrong}" if wrong else ""


def method_names() -> list[str]:
    """Names of all methods that are functions."""
    return sorted(name[1:] for name in rows_of("ops") if name.startswith("."))
