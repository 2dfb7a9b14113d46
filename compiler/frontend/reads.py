"""Records which values of the script a trace reads, and finds those that have changed since.

A trace turns attributes, globals and captured variables into constants of the graph. `Reads` collects their places in
the script. `Fingerprint` compares them with their values at the time of the trace at every call of a compiled network.
It keeps nothing of the script alive: objects are held by weak references, numbers and texts by their values.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from functools import partial
from itertools import repeat
from operator import call, is_, itemgetter
from typing import Any, NamedTuple

import numpy as np

from mspc.mindspore_api.common.parameter import FACTS, Parameter, changes
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import is_library, is_own
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.container import CellDict, CellList, SequentialCell

MISSING = object()
GONE = object()
"""Value at a place whose holder the script no longer has."""
NOTHING = object()
"""Replacement for None, which weak references to deleted objects return."""
MAX_ELEMENTS = 4096
"""Most elements of lists and arrays that are compared by contents. Longer ones are compared by length only, because
comparing them at every call takes too long."""
_TRACKED_ELSEWHERE = frozenset({"training", "revision"})
"""Attributes of cells that are always part of the key of a compiled graph."""
_CONTAINERS = (list, dict, set, frozenset, tuple)
_PLAIN = (bool, int, float, complex, str, bytes, types.NoneType, np.generic)

_facts_in = itemgetter(*FACTS)
Find = Callable[[Any, Any], Any]
Place = tuple[Any, Find, Any, str]
"""(the object that holds a value, a function that finds it there, its name, its name in messages)."""


def _attribute(holder: Any, name: str) -> Any:
    return vars(holder).get(name, MISSING)


def _global(function: types.FunctionType, name: str) -> Any:
    return function.__globals__.get(name, MISSING)


def _variable(function: types.FunctionType, index: int) -> Any:
    try:
        return (function.__closure__ or ())[index].cell_contents
    except ValueError:
        return MISSING


def _computed(holder: Any, name: str) -> Any:
    return getattr(holder, name, MISSING)


def _facts_of(parameter: Parameter, _: str) -> str:
    return str(_facts_in(vars(parameter)))


def _contents(tensor: Tensor, _: str) -> Any:
    return tensor.array if tensor.initial is None else tensor.initial


class Reads:
    """Places that a trace has read: attributes of objects and classes, globals, captured variables, attributes computed
    by Python code, and the contents of tensors."""

    def __init__(self) -> None:
        self.places: dict[tuple[Any, int, Any], Place] = {}
        self.counted: set[tuple[Any, int, Any]] = set()
        """Places of parameters and cells, counted by `changes`."""
        self._owners: dict[tuple[type, str], type | None] = {}
        self._functions: dict[int, types.FunctionType] = {}

    def _add(self, holder: Any, find: Find, name: Any, label: str, is_counted: bool = False) -> None:
        key = find, id(holder), name
        self.places.setdefault(key, (holder, find, name, label))
        if is_counted:
            self.counted.add(key)

    def _owner(self, kind: type, name: str) -> type | None:
        """Return the class that gives instances of `kind` an attribute."""
        key = kind, name
        if key not in self._owners:
            self._owners[key] = next((each for each in kind.__mro__ if name in vars(each)), None)
        return self._owners[key]

    def attribute(self, base: Any, name: str, found: Any = MISSING) -> None:
        """Record `base.name`, whose value is `found`; MISSING if there is no such attribute."""
        if isinstance(base, types.ModuleType):
            file = getattr(base, "__file__", None) or ""
            if file and not is_own(file) and not is_library(file):
                self._add(base, _attribute, name, f"{base.__name__}.{name}")
                self.value(found, f"{base.__name__}.{name}")
            return
        kind = base if isinstance(base, type) else type(base)
        label = f"{kind.__name__}.{name}"
        held = getattr(base, "__dict__", None) if kind is not base else None
        is_held = isinstance(held, dict)
        is_cell = isinstance(base, Cell)
        if is_held and not (is_cell and name in _TRACKED_ELSEWHERE):
            self._add(base, _attribute, name, label, is_cell and kind.__setattr__ is Cell.__setattr__)
        owner = self._owner(kind, name)
        if owner is None:
            is_computed = found is not MISSING and not (is_held and name in held)
        else:
            is_computed = not _is_fixed(owner) and hasattr(type(vars(owner)[name]), "__set__")
            if not _is_fixed(owner):
                self._add(owner, _attribute, name, f"{owner.__name__}.{name}")
        if is_computed and kind is not base and not _is_fixed(kind):
            self._add(base, _computed, name, label)
        self.value(found, label)

    def function(self, function: types.FunctionType) -> None:
        """Record a traced function, through which its globals are found."""
        self._functions.setdefault(id(function.__globals__), function)

    def name(self, held: Any, name: str, found: Any) -> None:
        """Record a global."""
        function = self._functions.get(id(held))
        if function is not None:
            self._add(function, _global, name, name)
            self.value(found, name)

    def variable(self, function: types.FunctionType, name: str, found: Any) -> None:
        """Record a variable that a function captures from the enclosing function."""
        self._add(function, _variable, function.__code__.co_freevars.index(name), name)
        self.value(found, name)

    def parameter(self, parameter: Parameter) -> None:
        """Record the attributes of a parameter that a compile uses."""
        self._add(parameter, _facts_of, "", f"parameter '{parameter.name}'", True)

    def cell(self, cell: Cell) -> None:
        """Record all attributes of a cell that is not traced itself because an equal one is traced in its place."""
        for name, value in vars(cell).items():
            if name not in _TRACKED_ELSEWHERE:
                self._add(cell, _attribute, name, f"{type(cell).__name__}.{name}", True)
                self.value(value, f"{type(cell).__name__}.{name}")

    def value(self, found: Any, label: str) -> None:
        """Record tensors and lists of cells in a value, which may change while it stays the same object."""
        if isinstance(found, Tensor):
            if not isinstance(found, Parameter):
                self._add(found, _contents, "", label)
        elif isinstance(found, CellDict | CellList | SequentialCell):
            self._add(found, _attribute, "_cells", label, True)
        elif isinstance(found, _CONTAINERS) and len(found) <= MAX_ELEMENTS:
            for item in found.values() if isinstance(found, dict) else found:
                if not isinstance(item, _PLAIN):
                    self.value(item, label)


def _is_fixed(kind: type) -> bool:
    """Return whether a class is mspc's or Python's own, so that no script changes its attributes."""
    return kind.__module__.startswith("mspc.") or kind.__module__ == "builtins"


class Fingerprint:
    """The current values at the places of some `Reads`."""

    def __init__(self, reads: Reads) -> None:
        self._places = [
            (_reference(holder), find, name, label, key in reads.counted)
            for key, (holder, find, name, label) in reads.places.items()
        ]
        self._places = [  # without properties that return another value each time
            place for place in self._places
            if place[1] is not _computed or _snapshot(_found(*place[:3])).equals(_found(*place[:3]))
        ]  # fmt: skip
        self._take()

    def _take(self) -> None:
        self._count = changes.count
        self._places = [place for place in self._places if place[0]() is not None]
        now = [_found(*place[:3]) for place in self._places]
        self._values = [*map(_snapshot, now)]
        self._counted, self._others = _Compared(), _Compared()
        for (reference, find, name, _, is_counted), found, value in zip(self._places, now, self._values, strict=True):
            holder = reference()
            compared = self._counted if is_counted else self._others
            if find is _attribute and isinstance(holder, type):  # a class, from which the network has methods
                own = None if found is NOTHING else found
                self._others.add(partial(vars(holder).get, name, MISSING), repeat(own).__next__)
                continue
            finder: Callable[[], Any] = partial(_found, reference, find, name)
            if type(found) is list and len(found) <= MAX_ELEMENTS and all(isinstance(each, _PLAIN) for each in found):
                compared.add(finder, repeat(found).__next__)
                self._others.lists.append((found, [*found]))
                continue
            if name != "_cells" and _has_contents(found):  # elements are set uncounted, except cells of a container
                compared = self._others
            compared.add(finder, *value)

    def changed(self) -> str:
        """Return the name, for messages, of the first changed value, or "". Replacing a value by an equal one is no
        change."""
        count = changes.count
        if count == self._count or self._counted.are_same():
            self._count = count
            if self._others.are_same():
                return ""
        for (reference, find, name, label, _), before in zip(self._places, self._values, strict=True):
            now = _found(reference, find, name)
            if now is not GONE and not before.equals(now):
                return label
        self._take()  # the next call compares with the current objects
        return ""


def _found(reference: Callable[[], Any], find: Find, name: Any) -> Any:
    holder = reference()
    found = GONE if holder is None else find(holder, name)
    return NOTHING if found is None else found


def _reference(value: Any) -> Callable[[], Any]:
    """Return a weak reference to an object, or a strong one if Python has none for its type."""
    try:
        return weakref.ref(value)
    except TypeError:
        return repeat(value).__next__


class _Compared:
    """Functions that find values, each with one that returns the object of before, compared by identity, or one that
    compares the contents of a container or an array."""

    def __init__(self) -> None:
        self.finders: list[Callable[[], Any]] = []
        self.values: list[Callable[[], Any]] = []
        self.contents: list[tuple[Callable[[], Any], Callable[[Any], bool]]] = []
        self.lists: list[tuple[list[Any], list[Any]]] = []
        """Lists of numbers and texts, with their copies."""

    def add(
        self, find: Callable[[], Any], before: Callable[[], Any] | None, equals: Callable[[Any], bool] | None = None
    ) -> None:
        if before is not None:
            self.finders.append(find)
            self.values.append(before)
        elif equals is not None:
            self.contents.append((find, equals))

    def are_same(self) -> bool:
        """Return whether all values are the same objects as before."""
        return (
            all(map(is_, map(call, self.finders), map(call, self.values)))
            and all(len(found) == len(items) and all(map(is_, found, items)) for found, items in self.lists)
            and all(equals(find()) for find, equals in self.contents)
        )


class _Snapshot(NamedTuple):
    """A value at one time. before: returns the object, or None if its contents are compared. equals: returns whether a
    value is still the same: numbers and texts by value, containers by their elements, other objects by identity."""

    before: Callable[[], Any] | None
    equals: Callable[[Any], bool]


def _snapshot(value: Any) -> _Snapshot:
    """Return a value for later comparisons, which keeps no object of the script alive."""
    if isinstance(value, _PLAIN) or value is MISSING or value is GONE or value is NOTHING:
        return _Snapshot(repeat(value).__next__, partial(_is_same_plain, value))
    if isinstance(value, types.MethodType):  # Python creates a new one for every use
        function, owner = _reference(value.__func__), _reference(value.__self__)
        return _Snapshot(None, lambda now: (
            isinstance(now, types.MethodType) and now.__func__ is function() and now.__self__ is owner()
        ))  # fmt: skip
    if _has_contents(value):
        return _Snapshot(None, _contents_of(value))
    try:
        reference = weakref.ref(value)
    except TypeError:
        number = id(value)
        return _Snapshot(None, lambda now: id(now) == number)
    return _Snapshot(reference, lambda now: now is not None and reference() is now)


def _is_same_plain(before: Any, now: Any) -> bool:
    return before is now or (type(before) is type(now) and (bool(before == now) or repr(before) == repr(now)))


def _has_contents(value: Any) -> bool:
    return isinstance(value, _CONTAINERS) or (isinstance(value, np.ndarray) and value.size <= MAX_ELEMENTS)


def _contents_of(value: Any) -> Callable[[Any], bool]:
    """Return a function that compares a container or an array with the present contents of this one."""
    kind, facts, is_dict = type(value), _facts(value), isinstance(value, dict)
    if facts is not None:
        return lambda now: type(now) is kind and bool(_facts(now) == facts)
    keys = [*map(_snapshot, value)] if is_dict else []
    items = [*map(_snapshot, value.values() if is_dict else value)]

    def equals(now: Any) -> bool:
        if type(now) is not kind or len(now) != len(items):
            return False
        if is_dict and not all(key.equals(own) for key, own in zip(keys, now, strict=True)):
            return False
        return all(item.equals(own) for item, own in zip(items, now.values() if is_dict else now, strict=True))

    return equals


def _facts(value: Any) -> Any:
    """Return all that is compared of an array, a set or a long container; None for other containers."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes() if value.size <= MAX_ELEMENTS else b""
    if len(value) > MAX_ELEMENTS:
        return len(value)
    if isinstance(value, set | frozenset):
        return frozenset(item if isinstance(item, _PLAIN) else id(item) for item in value)
    return None
