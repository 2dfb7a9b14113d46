"""Cache of the compiled graphs of a call, one per setting of its cells, with a limited number per target."""

from __future__ import annotations

import os
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from itertools import count
from typing import Any

from mspc.compiler.call import script_objects, stored_call
from mspc.compiler.frontend.reads import Fingerprint, Reads
from mspc.compiler.frontend.trace import Traced
from mspc.engine.job import name_of
from mspc.ir.diagnostics import MspcError
from mspc.ir.text.limits import number_of
from mspc.mindspore_api.common.gradient import GradientFunction, JitFunction, NamedCall
from mspc.mindspore_api.common.parameter import changes
from mspc.mindspore_api.nn.cell import Cell

VARIABLE = "MSPC_KEPT_GRAPHS"
"""Environment variable with the maximum number of stored graphs per cell or function."""
MAX_GRAPHS = 64

Keeps = Callable[[Any, str], bool]
"""Function (name of a target, change) that returns whether its graph stays valid."""


def graphs_to_keep() -> int:
    """Return the maximum number of stored graphs per target. Raise MspcError if the environment variable is not a
    number of at least 1."""
    given = os.environ.get(VARIABLE, str(MAX_GRAPHS))
    number = number_of(given, 1 << 30)
    if not number:
        raise MspcError(f"{VARIABLE} must be an integer from 1, not {given!r:.100}")
    return number


def identity(target: Any) -> Hashable:
    """Return a key that is equal for calls of one target.

    It is the id of a cell or function. For a method, which Python creates anew for every access, it has the ids of its
    function and object; for a request for gradients, which scripts create anew, its fields.
    """
    if isinstance(target, GradientFunction):
        rest = tuple(value for name, value in vars(target).items() if name not in ("fn", "weights"))
        weights = None if target.weights is None else tuple(map(id, target.weights))
        return identity(target.fn), weights, rest
    if isinstance(target, NamedCall):
        return identity(target.fn), target.names
    if isinstance(target, JitFunction):
        return identity(target.fn)
    if isinstance(target, types.MethodType):
        return id(target.__func__), id(target.__self__)
    return id(target)


def objects_in_identity(target: Any) -> tuple[Any, ...]:
    """Return the objects whose ids are in the `identity` of a target."""
    if isinstance(target, GradientFunction):
        return (*objects_in_identity(target.fn), *(target.weights or ()))
    if isinstance(target, JitFunction | NamedCall):
        return objects_in_identity(target.fn)
    return (target.__func__, target.__self__) if isinstance(target, types.MethodType) else (target,)


def step_count_key(target: Any) -> tuple[Hashable, Any]:
    """Return (key of a target's step count, object on which the count depends). A function, or a request for its
    gradients, that a script creates for every step continues one count."""
    while isinstance(target, GradientFunction | JitFunction | NamedCall):
        target = target.fn
    if isinstance(target, types.MethodType):
        return (step_count_key(target.__func__)[0], id(target.__self__)), target.__self__
    counted = target.__code__ if isinstance(target, types.FunctionType) else target
    return id(counted), counted


class _Variant:
    """A graph that is valid while its cells have the same training flags, buffers and hooks as when it was traced, and
    all other state that the trace read is unchanged. The script's objects are referenced weakly: once they are
    collected, nothing can call the graph.

    Args:
        name: of the target, for messages. reads: other attributes that were read. target: the objects whose ids are in
            the key; Python may reuse ids once they are collected. needed: further objects that calls depend on. gone:
            list to which the variant is added once one is collected. as_it_trained: it stays valid when its cells leave
            training mode. stays: it is stored in any case. used: time of the last call.
    """

    def __init__(
        self, key: Any, compiled_call: Any, name: str, cells: Sequence[Cell], reads: Reads, target: Sequence[Any],
        needed: Sequence[Any], gone: list[_Variant], stays: bool, used: int, as_it_trained: bool,
    ) -> None:  # fmt: skip
        self._fingerprint: Fingerprint | None = Fingerprint(reads)
        self._count = changes.count
        self.name = name
        self.key = key
        self.compiled_call = compiled_call
        self.stays = stays
        self.used = used
        self.has_target = True
        self.is_complete = True
        self._gone = gone
        self._watched = [weak_reference(each, self._on_target_gone) for each in target] + [
            weak_reference(each, self._on_needed_object_gone) for each in needed
        ]
        self._cells = [(weak_reference(cell), state_of(cell, as_it_trained)) for cell in cells]
        self._as_it_trained = as_it_trained

    def holds(self, keeps: Keeps) -> bool:
        """Return whether the script's state is unchanged; checked at every call. A collected cell was made in a
        `construct`."""
        if not (self.has_target and self.is_complete):
            return False
        count = changes.count
        if count != self._count:
            for cell_reference, state in self._cells:
                cell = cell_reference()
                if cell is not None and state_of(cell, self._as_it_trained) != state:
                    return False
            self._count = count
        if self._fingerprint is None:
            return True
        changed = self._fingerprint.changed()
        if not changed:
            return True
        if not keeps(self.name, changed):
            return False
        self._fingerprint = None  # reported once
        return True

    def _on_target_gone(self, _: Any) -> None:
        self.has_target = False
        self._gone.append(self)

    def _on_needed_object_gone(self, _: Any) -> None:
        self.is_complete = False
        self._gone.append(self)


def state_of(cell: Cell, as_it_trained: bool) -> int:
    """Return a number that changes when the cell is modified or, unless as_it_trained, its training mode changes."""
    return cell.revision if as_it_trained else cell.revision * 2 + cell.training


def weak_reference(value: Any, ended: Callable[[Any], None] | None = None) -> Callable[[], Any]:
    """Return a weak reference to an object, or a strong one if its type does not support weak references."""
    try:
        return weakref.ref(value, ended)
    except TypeError:
        return lambda: value


class Variants:
    """Compiled graphs of a script's calls. Keys are tuples of the target's `identity` and its arguments.

    most: maximum number of graphs per target, see `surplus`. by_use: the least recently used graph is dropped.
    Otherwise the oldest is, which is the same on all ranks: they compile together but may call differently. keeps:
    decides whether a graph stays valid although an attribute that its trace read has changed.
    """

    def __init__(self, most: int, by_use: bool, keeps: Keeps) -> None:
        self._keeps = keeps
        self.most = most
        self.by_use = by_use
        self._known: dict[Any, list[_Variant]] = {}
        self._gone: list[_Variant] = []
        self._clock = count()

    def find(self, key: Any) -> Any:
        """Return the graph of a call for the current state of its cells, or None if it must be compiled."""
        for variant in self._known.get(key, ()):
            if variant.holds(self._keeps):
                if self.by_use:
                    variant.used = next(self._clock)
                return variant.compiled_call
        return None

    def add(self, key: Any, compiled_call: Any, traced: Traced, target: Any, stays: bool, as_it_trained: bool) -> None:
        """Store a graph as long as its target, arguments and parameters are alive."""
        identity, call, frozen = key
        key = (identity, stored_call(call), frozen)
        needed = [*script_objects(call), *traced.parameters.values()]
        variant = _Variant(
            key, compiled_call, name_of(target), traced.cells, traced.reads, objects_in_identity(target), needed,
            self._gone, stays, next(self._clock), as_it_trained,
        )  # fmt: skip
        self._known.setdefault(key, []).append(variant)

    def take_unreachable(self) -> list[tuple[Any, bool]]:
        """Remove and return the graphs that the script can no longer call, each with whether it stays stored
        nevertheless.

        Ranks notice at different times that an object was collected. They must release graphs of a living target in the
        same order, so that several ranks leave these to `surplus`.
        """
        found: list[tuple[Any, bool]] = []
        while self._gone:
            variant = self._gone.pop()
            if variant in self._known.get(variant.key, ()) and (self.by_use or not variant.has_target):
                self._remove(variant.key, variant)
                found.append((variant.compiled_call, variant.stays))
        return found

    def surplus(self, target: Hashable) -> tuple[Any, Any] | None:
        """Remove and return (key, graph) of the graph to drop of a target, given by its `identity`, if it has too many;
        else None."""
        own = [(key, variant) for key in self._known if key[0] == target for variant in self._known[key]]
        found = [(key, variant) for key, variant in own if not variant.stays]
        if len(found) <= self.most:
            return None
        key, oldest = min(found, key=lambda entry: entry[1].used)
        self._remove(key, oldest)
        return key, oldest.compiled_call

    def forget(self, key: Any, compiled_call: Any) -> bool:
        """Remove a graph from lookup; return whether it need not be stored any longer."""
        variant = next(known for known in self._known[key] if known.compiled_call is compiled_call)
        self._remove(key, variant)
        return not variant.stays

    def _remove(self, key: Any, variant: _Variant) -> None:
        self._known[key].remove(variant)
        if not self._known[key]:
            del self._known[key]

    def keys(self) -> list[Any]:
        """Return the keys of calls with graphs."""
        return list(self._known)
