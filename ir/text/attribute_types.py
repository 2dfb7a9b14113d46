"""These checks, built from the annotations of an operator class, tell whether an attribute's value fits its field."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

from mspc.ir.late_dataclass import dataclass

Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class AttributeField:
    """One field of an operator: its name, its annotation as people read it, and the check of a value."""

    name: str
    annotation: str
    fits: Check


@cache
def fields_of(cls: type) -> Mapping[str, AttributeField]:
    """The fields of an operator class by name, in the order of their declaration."""
    hints = _hints_of(cls)
    return {
        f.name: AttributeField(f.name, f.type if isinstance(f.type, str) else str(f.type), check_of(hints[f.name]))
        for f in dataclasses.fields(cls)
    }


def _hints_of(cls: type) -> dict[str, Any]:
    """The annotations of a dataclass's fields, evaluated. Those of its class variables, of which operators have far
    more, are left alone: each costs as much."""
    names = {field.name for field in dataclasses.fields(cls)}
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        annotations = inspect.get_annotations(base)
        own = {n: kind for n, kind in annotations.items() if n in names and not str(kind).startswith("ClassVar")}
        if own:
            holder = types.SimpleNamespace(__annotations__=own)
            found |= typing.get_type_hints(holder, vars(sys.modules[base.__module__]))
    return found


def check_of(annotation: Any) -> Check:
    """A check of values against an annotation; annotations that it does not know take any value."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None or annotation is type(None):
        return lambda value: value is None
    if annotation is float:
        return lambda value: isinstance(value, float | int) and not isinstance(value, bool)
    if annotation is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    if origin is tuple:
        return _tuple_check(args)
    if annotation is tuple:
        return lambda value: isinstance(value, tuple)
    if origin in (typing.Union, types.UnionType):
        checks = [check_of(arg) for arg in args]
        return lambda value: any(check(value) for check in checks)
    if origin is typing.Literal:
        return lambda value: value in args
    if annotation in (bool, str) or (isinstance(annotation, type) and dataclasses.is_dataclass(annotation)):
        return lambda value: isinstance(value, annotation)
    return lambda value: True


def _tuple_check(args: tuple[Any, ...]) -> Check:
    if len(args) == 2 and args[1] is Ellipsis:
        check = check_of(args[0])
        return lambda value: isinstance(value, tuple) and all(map(check, cast("tuple[Any, ...]", value)))
    checks = [check_of(arg) for arg in args if arg != ()]

    def fits(value: Any) -> bool:
        members = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else None
        if members is None or len(members) != len(checks):
            return False
        return all(check(member) for check, member in zip(checks, members, strict=True))

    return fits
