"""Public functions, constructors and methods as scripts get them: what Python says of arguments that do not fit, they
say in mspc's words. They are called at once, and looked at again where that fails: a good call costs nothing more.
"""

from __future__ import annotations

import enum
import functools
from types import FunctionType
from typing import Any, cast

from mspc.api.ops.checked import LEAKS, Function, explain
from mspc.ir.diagnostics import MspcError

_OWN = "mspc.api."


@functools.cache
def guarded(found: Any) -> Any:
    """A function that explains what was wrong with a call, or a class whose constructor and methods do so from now on;
    what explains it already as it is."""
    if isinstance(found, FunctionType):
        return found if hasattr(found, "check_arguments") else _explaining(f"{found.__name__}()", found)
    if isinstance(found, type) and not issubclass(found, enum.Enum | BaseException):
        for home in found.__mro__[:-1]:
            if home.__module__.startswith(_OWN):
                _guard_members(home)
        if found.__init__ is object.__init__ and found.__new__ is object.__new__:
            found.__init__ = _taking_nothing(found)
    return found


@functools.cache
def _guard_members(cls: type[Any]) -> None:
    for name, member in list(vars(cls).items()):
        if name in ("__init__", "__new__"):
            _guard_maker(cls, name, member)
        elif name.startswith("_") or name == "construct":
            continue
        elif isinstance(member, staticmethod | classmethod):
            kind = type(member)
            setattr(cls, name, kind(_explaining(f"{cls.__name__}.{name}()", member.__func__)))
        elif isinstance(member, FunctionType):
            setattr(cls, name, _explaining(f"{cls.__name__}.{name}()", member))


def _guard_maker(cls: type[Any], name: str, member: Any) -> None:
    """What makes objects is called as the class that is made, where that is one of mspc's."""
    function = getattr(member, "__func__", member)
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        return

    def label(first: Any) -> str:
        made = first if isinstance(first, type) else type(first)
        return made.__name__ if made.__module__.startswith(_OWN) else cls.__name__

    setattr(cls, name, _explaining(label, function))


def _explaining(label: Any, function: Function) -> Function:
    """The function, which says of arguments that did not fit what was wrong. label: its name in messages, or what gives
    it for the object that is made."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except MspcError:
            raise
        except LEAKS as error:
            explain(label(args[0]) if callable(label) else label, function, args, kwargs, error)
            raise

    return cast(Function, call)


def _taking_nothing(cls: type[Any]) -> Function:
    """A constructor for a class that has none; of a script's class it may be one of several parents."""

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            super(cls, self).__init__(*args, **kwargs)
        except TypeError as error:
            if type(self).__module__.startswith(_OWN):
                explain(type(self).__name__, _nothing, (self, *args), kwargs, error)
            raise

    return make


def _nothing(self: object) -> None:
    """What a class without a constructor of its own is made with."""
