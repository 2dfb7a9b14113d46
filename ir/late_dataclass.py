"""`dataclass` as in the standard library, but the methods are made when a class is first used.

`dataclasses` writes and compiles six methods for every class, which costs a millisecond, and a compile loads about 170
classes. Here only `__init__` is written, at the first instance or the first access to the fields; the other methods
loop over the fields. Several threads may use a class first at the same time, as simulated ranks do.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import reprlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

_FIELDS = "__dataclass_fields__"
"""The attribute in which `dataclasses` stores the fields of a class."""
_INIT = "__init__"
_STATE = "__setstate__"

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # the type that importers see
else:

    def dataclass(
        cls: type[Any] | None = None, /, *, frozen: bool = False, eq: bool = True, slots: bool = False
    ) -> Any:
        """Make a class a dataclass as `dataclasses.dataclass` does, but at its first use."""
        if cls is None:
            return functools.partial(dataclass, frozen=frozen, eq=eq, slots=slots)
        said = {name: cls.__dict__[name] for name in own_fields(cls) if name in cls.__dict__}
        made = _with_slots(cls) if slots else cls
        finish_later(made, said, frozen=frozen, eq=eq)
        return made


def own_fields(cls: type[Any]) -> dict[str, Any]:
    """Return the fields that a class itself declares, and their types."""
    kinds = inspect.get_annotations(cls)
    return {name: kind for name, kind in kinds.items() if "ClassVar" not in str(kind).partition("[")[0]}


def finish_subclass(cls: type[Any]) -> None:
    """Make a subclass of a frozen dataclass one, too, for `__init_subclass__`; without own fields it inherits those of
    its one base."""
    said = own_fields(cls)
    if said or len(cls.__bases__) > 1:
        finish_later(cls, {name: vars(cls)[name] for name in said if name in vars(cls)}, frozen=True)


def finish_later(cls: type[Any], said: dict[str, Any], *, frozen: bool, eq: bool = True) -> None:
    """Make the class a dataclass at its first use, or at once if it has no fields.

    said: the defaults and `field(...)` entries of the class's own fields. frozen, eq: as in `dataclasses.dataclass`.
    """
    lock, done = threading.RLock(), list[bool]()

    def finish() -> None:
        with lock:  # another thread that makes an instance in the meantime waits until `__init__` is set
            if not done:
                _finish(cls, said, frozen, eq)
                done.append(True)

    for name in (_INIT, _FIELDS, _STATE):
        if name not in cls.__dict__:
            setattr(cls, name, _Unfinished(cls, name, finish))
    if not own_fields(cls):
        finish()  # a copy from another process has no state, so no access would finish it


class _Unfinished:
    """Placeholder for an attribute that the class has as a dataclass; the first access finishes the class."""

    def __init__(self, cls: type[Any], name: str, finish: Callable[[], None]) -> None:
        self.cls, self.name, self.finish = cls, name, finish

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        self.finish()
        found = self.cls.__dict__[self.name]
        return found if self.name == _FIELDS else found.__get__(instance, owner)


def _finish(cls: type[Any], said: dict[str, Any], frozen: bool, eq: bool) -> None:
    """Make the class a dataclass."""
    found: dict[str, dataclasses.Field[Any]] = {}
    for base in cls.__mro__[:0:-1]:
        found |= getattr(base, _FIELDS, {})
    body = said | {"__annotations__": own_fields(cls), "__module__": cls.__module__, "__doc__": "Its own fields."}
    alone: Any = type(cls.__name__, (), body)
    found |= vars(dataclasses.dataclass(init=False, repr=False, eq=False)(alone))[_FIELDS]
    for name, value in said.items():
        if isinstance(value, dataclasses.Field) and vars(cls).get(name) is value:  # not replaced by a slot
            default = found[name].default
            if default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, default)
    by_place = tuple(name for name, field in found.items() if field.init and not field.kw_only)
    made = {"__dataclass_params__": _parameters(frozen, eq), "__match_args__": by_place, "__repr__": _shown(found)}
    made |= _comparison(found, frozen) if eq else {}
    made |= _refusals(cls, found) if frozen else {}
    for name, value in made.items():
        if name not in vars(cls) or (name == "__hash__" and vars(cls)[name] is None):
            setattr(cls, name, value)
    for name, value in ((_STATE, _set_state), (_FIELDS, found), (_INIT, _written_init(cls, found, frozen))):
        if isinstance(vars(cls)[name], _Unfinished):
            setattr(cls, name, value)


def _with_slots(cls: type[Any]) -> type[Any]:
    """Return a copy of the class with slots for its own fields."""
    names = own_fields(cls)
    inherited = {name for base in cls.__mro__[1:] for name in vars(base).get("__slots__", ())}
    body = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__", *names)}
    body["__slots__"] = tuple(name for name in names if name not in inherited)
    made = type(cls)(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    return made


@functools.cache
def _parameters(frozen: bool, eq: bool) -> Any:
    """Return the record of `dataclasses` of the arguments with which a class was made."""
    empty: Any = type("_", (), {"__doc__": "No fields."})
    return dataclasses.dataclass(frozen=frozen, eq=eq)(empty).__dataclass_params__


def _set_state(self: Any, state: Any) -> None:
    """Fill an instance made without `__init__`, such as a copy from another process."""
    by_name, by_slot = state if isinstance(state, tuple) else (state, None)
    for name, value in ((by_name or {}) | (by_slot or {})).items():
        object.__setattr__(self, name, value)


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns a tuple of an instance's values of these fields."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    if not names:
        return lambda self: ()
    (name,) = names
    return lambda self: (getattr(self, name),)


def _comparison(found: dict[str, dataclasses.Field[Any]], frozen: bool) -> dict[str, Any]:
    """Return `__eq__`, and `__hash__`, which is None for classes that are not frozen."""
    compared = _values([name for name, field in found.items() if field.compare])
    hashed = _values([name for name, field in found.items() if (field.compare if field.hash is None else field.hash)])

    def is_equal(self: Any, other: Any) -> Any:
        if self is other:
            return True
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    return {"__eq__": is_equal, "__hash__": (lambda self: hash(hashed(self))) if frozen else None}


def _shown(found: dict[str, dataclasses.Field[Any]]) -> Callable[[Any], str]:
    """Return `__repr__`."""
    names = [name for name, field in found.items() if field.repr]

    @reprlib.recursive_repr()
    def shown(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return shown


def _refusals(cls: Any, found: dict[str, dataclasses.Field[Any]]) -> dict[str, Any]:
    """Return `__setattr__` and `__delattr__` of a frozen class."""

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in found:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in found:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": set_attribute, "__delattr__": delete_attribute}


class _Absent:
    """Default that marks a missing argument of a field with a default factory."""

    def __repr__(self) -> str:
        return "<factory>"


def _written_init(cls: type[Any], found: dict[str, dataclasses.Field[Any]], frozen: bool) -> Any:
    """Return `__init__`: it assigns arguments, defaults, or results of default factories."""
    known: dict[str, Any] = {"_put": object.__setattr__, "_absent": _Absent()}
    by_place = ["self"]
    by_name: list[str] = []
    lines: list[str] = []
    for name, field in found.items():
        given, first, parameter = name, f"_first_{name}", name
        if field.default_factory is not dataclasses.MISSING:
            known[first], parameter = field.default_factory, f"{name}=_absent"
            given = f"{first}() if {name} is _absent else {name}" if field.init else f"{first}()"
        elif field.default is not dataclasses.MISSING:
            known[first], parameter = field.default, f"{name}={first}"
            given = name if field.init else first
        if field.init:
            (by_name if field.kw_only else by_place).append(parameter)
        lines.append(f"_put(self, {name!r}, {given})" if frozen else f"self.{name} = {given}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join([*by_place, "*", *by_name] if by_name else by_place)
    body = "\n  ".join(lines or ["pass"])
    made: dict[str, Any] = {}
    exec(f"def make({', '.join(known)}):\n def __init__({parameters}):\n  {body}\n return __init__", made)
    init = made["make"](**known)
    init.__qualname__ = f"{cls.__qualname__}.{_INIT}"
    types: dict[str, Any] = {name: field.type for name, field in found.items() if field.init}
    init.__annotations__ = {**types, "return": None}
    return init
