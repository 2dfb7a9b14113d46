"""Wrappers of public functions, constructors and methods. They replace Python's errors about unsuitable arguments by
mspc's messages. Numbers, bools, strings and functions are checked before the call, by their annotations; other
arguments only after the call has failed, so that a correct call costs next to nothing."""

from __future__ import annotations

import enum
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError
from mspc.mindspore_api.ops.checked import LEAKS, Function, check_names, explain
from mspc.mindspore_api.rooms import PUBLIC
from mspc.ops.operator_arguments import describe


@functools.cache
def guarded(found: Any) -> Any:
    """Wrap a function so that it explains wrong arguments, or the constructor and methods of a class in place. A
    function with `check_arguments`, which explains them already, is returned unchanged."""
    if isinstance(found, FunctionType):
        return found if hasattr(found, "check_arguments") else _explaining(found.__name__, found)
    if isinstance(found, type) and not issubclass(found, enum.Enum | BaseException):
        for home in found.__mro__[:-1]:
            if home.__module__.startswith(PUBLIC):
                _guard_members(home)
        if found.__init__ is object.__init__ and found.__new__ is object.__new__:
            found.__init__ = _taking_nothing(found)
    return found


@functools.cache
def _guard_members(cls: type[Any]) -> None:
    for name, member in list(vars(cls).items()):
        if name == "__init__":
            _guard_maker(cls, name, cls.__init__)  # a dataclass makes its own on first use
        elif name == "__new__":
            _guard_maker(cls, name, member)
        elif name.startswith("_") or name == "construct":
            continue
        elif isinstance(member, staticmethod | classmethod):
            kind = type(member)
            setattr(cls, name, kind(_explaining(f"{cls.__name__}.{name}", member.__func__)))
        elif isinstance(member, FunctionType):
            setattr(cls, name, _explaining(_label(f".{name}"), member))


def _guard_maker(cls: type[Any], name: str, member: Any) -> None:
    function = getattr(member, "__func__", member)
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        return
    setattr(cls, name, _explaining(_label(), function))


def _label(member: str = "") -> Callable[[Any], str]:
    """Return a function that names a constructor or method by the object's class: the nearest class of mspc."""

    def of(first: Any) -> str:
        classes = (first if isinstance(first, type) else type(first)).__mro__
        own = next((cls for cls in classes if cls.__module__.startswith(PUBLIC)), classes[0])
        return f"{own.__name__}{member}"

    return of


def _explaining(label: str | Callable[[Any], str], function: Function) -> Function:
    """Wrap a function so that it explains unsuitable arguments. label: its name in messages, or a function that returns
    the name for the object being made."""
    plain = _plain_parameters(function)
    first = min((place for place, *_ in plain), default=sys.maxsize)

    def named(args: tuple[Any, ...]) -> str:
        if callable(label):
            return label(args[0]) if args else function.__qualname__
        return label

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for place, name, wanted, fits in plain if kwargs or len(args) > first else ():
            if place < len(args):
                value = args[place]
            elif name in kwargs:
                value = kwargs[name]
            else:
                continue
            if not fits(value):
                called = named(args)
                check_names(called, function, args, kwargs)
                raise ApiTypeError(f"{called}: {name} must be {wanted}, not {describe(value)}")
        try:
            return function(*args, **kwargs)
        except MspcError:
            raise
        except LEAKS as error:
            explain(named(args), function, args, kwargs, error)
            raise

    return cast(Function, call)


_Plain = tuple[int, str, str, Callable[[Any], bool]]
_FITS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "Callable": ("a function", callable),
    "bool": ("True or False", lambda value: isinstance(value, bool | np.bool_)),
    "float": ("a number", lambda value: _is_number(value)),
    "str": ("a string", lambda value: isinstance(value, str | os.PathLike)),
    "int": ("an integer", lambda value: isinstance(value, int | np.integer) and not isinstance(value, bool)),
}


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.dtype.is_complex
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _plain_parameters(function: Function) -> list[_Plain]:
    """Return (position, name, description, predicate) of the parameters annotated as numbers, bools, strings or
    functions, which few functions check themselves."""
    inner = inspect.unwrap(function)
    code, said, found = inner.__code__, inner.__annotations__, list[_Plain]()
    for place, name in enumerate(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]):
        kind, _, more = re.sub(r"^Callable\[[^|]*\]", "Callable", str(said.get(name))).partition(" | ")
        if kind not in _FITS or more not in ("", "None"):
            continue
        wanted, fits = _FITS[kind]
        if more:
            wanted, fits = f"{wanted} or None", lambda value, fits=fits: value is None or fits(value)
        found.append((place if place < code.co_argcount else sys.maxsize, name, wanted, fits))
    return found


def _taking_nothing(cls: type[Any]) -> Function:
    """Return a constructor for a class that has none; a script's class may have it as one of several parents."""

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            super(cls, self).__init__(*args, **kwargs)
        except TypeError as error:
            if type(self).__module__.startswith(PUBLIC):
                explain(type(self).__name__, _nothing, (self, *args), kwargs, error)
            raise

    return make


def _nothing(self: object) -> None:
    """Constructor signature of a class without a constructor of its own."""
