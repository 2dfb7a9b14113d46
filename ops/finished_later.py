"""Operator classes become dataclasses when they are first used: that costs half a millisecond each, and a compile uses
few of all operators."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

_FIELDS = "__dataclass_fields__"
"""Where `dataclasses` keeps the fields of a class."""


class _Unfinished:
    """Stands for the fields of an operator class that is no dataclass yet; it becomes one when they are asked for."""

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        _finish(self.cls)
        return getattr(owner, _FIELDS)


def finish_later(cls: type[Any]) -> None:
    """Make the class a dataclass when it is first used."""

    def first_init(self: Any, *args: Any, **kwargs: Any) -> None:
        _finish(cls)
        type(self).__init__(self, *args, **kwargs)

    setattr(cls, "__init__", first_init)  # noqa: B010  # a type checker would take it for the dataclass's own
    setattr(cls, _FIELDS, _Unfinished(cls))


def _finish(cls: type[Any]) -> None:
    if isinstance(cls.__dict__.get(_FIELDS), _Unfinished):
        delattr(cls, "__init__")
        delattr(cls, _FIELDS)
        dataclass(frozen=True)(cls)
        drop_class_variables(cls)


def drop_class_variables(cls: type[Any]) -> None:
    """Forget what a dataclass notes of its class variables: an attribute of that name would take their place in the
    order of a subclass's fields, before those that are declared ahead of it."""
    known = {field.name for field in fields(cls)}
    noted = cls.__dict__[_FIELDS]
    for name in [name for name in noted if name not in known]:
        del noted[name]
