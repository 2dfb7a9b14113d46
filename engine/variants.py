"""Stores the compiled graphs of a call, one for each setting of its cells, a limited number for each target."""

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
from mspc.engine.own_collectives import name_of
from mspc.ir.diagnostics import MspcError
from mspc.ir.text.limits import number_of
from mspc.mindspore_api.common.gradient import GradientFunction, JitFunction, NamedCall
from mspc.mindspore_api.common.parameter import changes
from mspc.mindspore_api.nn.cell import Cell

VARIABLE = "MSPC_KEPT_GRAPHS"
"""The environment's name of how many graphs are stored of a cell or a function."""
MOST_GRAPHS = 64

Keeps = Callable[[Any, str], bool]
"""(the name of a target, the change) -> whether its graph is used all the same."""


def graphs_to_keep() -> int:
    """Return how many graphs are stored of a target. Raises MspcError if the environment says no number from 1."""
    given = os.environ.get(VARIABLE, str(MOST_GRAPHS))
    number = number_of(given, 1 << 30)
    if not number:
        raise MspcError(f"{VARIABLE} must be an integer from 1, not {given!r:.100}")
    return number


def identity(target: Any) -> Hashable:
    """A key that is equal for calls of one target.

    It is the id of a cell or function. For a method, which Python makes anew for every use, it has the ids of its
    function and object, and of a request for gradients, which scripts make anew, its fields.
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


def named_by_identity(target: Any) -> tuple[Any, ...]:
    """The objects whose ids are in the `identity` of a target."""
    if isinstance(target, GradientFunction):
        return (*named_by_identity(target.fn), *(target.weights or ()))
    if isinstance(target, JitFunction | NamedCall):
        return named_by_identity(target.fn)
    return (target.__func__, target.__self__) if isinstance(target, types.MethodType) else (target,)


def counted_as(target: Any) -> tuple[Hashable, Any]:
    """The key by which the steps of a target are counted, and the object without which there are no more: a function,
    or a request for its gradients, that a script makes again for every step continues the count of the one before."""
    while isinstance(target, GradientFunction | JitFunction | NamedCall):
        target = target.fn
    if isinstance(target, types.MethodType):
        return (counted_as(target.__func__)[0], id(target.__self__)), target.__self__
    counted = target.__code__ if isinstance(target, types.FunctionType) else target
    return id(counted), counted


class _Variant:
    """A graph that holds while its cells train or do not, as they did when it was read, and have the same buffers and
    hooks, and all else of the script that it was read from. The script's objects are not kept alive: without them
    nothing can call the graph.

    Args:
        name: of the target, for messages. reads: other attributes that were read. target: the objects that its key
            names as the target by their ids, which Python may give to others once they are gone. needed: further
            objects without which it is not found. gone: gets the variant when one is gone. as_it_trained: whether it
            still holds when its cells train no longer. stays: whether it is stored in any case. used: when it was
            called last.
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
        self._watched = [watched(each, self._end) for each in target] + [watched(each, self._lack) for each in needed]
        self._cells = [(watched(cell), state_of(cell, as_it_trained)) for cell in cells]
        self._as_it_trained = as_it_trained

    def holds(self, keeps: Keeps) -> bool:
        """Whether the script is as it was; asked at every call. A cell that is gone was made in a `construct`."""
        if not (self.has_target and self.is_complete):
            return False
        count = changes.count
        if count != self._count:
            for watched, state in self._cells:
                cell = watched()
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

    def _end(self, _: Any) -> None:
        self.has_target = False
        self._gone.append(self)

    def _lack(self, _: Any) -> None:
        self.is_complete = False
        self._gone.append(self)


def state_of(cell: Cell, as_it_trained: bool) -> int:
    """A number that changes when the cell becomes another one or, unless as_it_trained, is set to train or not to."""
    return cell.revision if as_it_trained else cell.revision * 2 + cell.training


def watched(value: Any, ended: Callable[[Any], None] | None = None) -> Callable[[], Any]:
    """A weak reference to an object, or a strong one if Python has no weak ones to such objects."""
    try:
        return weakref.ref(value, ended)
    except TypeError:
        return lambda: value


class Variants:
    """The compiled graphs of a script's calls, by target and arguments: keys are tuples that begin with the `identity`
    of the target, and its arguments.

    most: how many graphs are stored of a target, see `surplus`. by_use: the graph that was unused for longest goes
    first. Otherwise the oldest goes: that is the same one on all ranks, which compile together but need not call alike.
    keeps: asked whether a graph of a target is used although an attribute that it was read from has changed.
    """

    def __init__(self, most: int, by_use: bool, keeps: Keeps) -> None:
        self._keeps = keeps
        self.most = most
        self.by_use = by_use
        self._known: dict[Any, list[_Variant]] = {}
        self._gone: list[_Variant] = []
        self._clock = count()

    def find(self, key: Any) -> Any:
        """Return the graph of a call as its cells are now, or None if it is still to be compiled."""
        for variant in self._known.get(key, ()):
            if variant.holds(self._keeps):
                if self.by_use:
                    variant.used = next(self._clock)
                return variant.compiled_call
        return None

    def add(
        self, key: Any, compiled_call: Any, traced: Traced, target: Any, stays: bool, as_it_trained: bool
    ) -> None:
        """Store a graph for as long as the script has the target, and the arguments and parameters that it is of."""
        identity, call, frozen = key
        key = (identity, stored_call(call), frozen)
        needed = [*script_objects(call), *traced.parameters.values()]
        variant = _Variant(
            key, compiled_call, name_of(target), traced.cells, traced.reads, named_by_identity(target), needed,
            self._gone, stays, next(self._clock), as_it_trained,
        )  # fmt: skip
        self._known.setdefault(key, []).append(variant)

    def take_gone(self) -> list[tuple[Any, bool]]:
        """Return the graphs that the script can call no more, and whether they stay nevertheless. They are no longer
        known.

        Ranks find out at different times that an object is gone. They must give up graphs of a living target alike, so
        several ranks leave these to `surplus`.
        """
        found: list[tuple[Any, bool]] = []
        while self._gone:
            variant = self._gone.pop()
            if variant in self._known.get(variant.key, ()) and (self.by_use or not variant.has_target):
                self._remove(variant.key, variant)
                found.append((variant.compiled_call, variant.stays))
        return found

    def surplus(self, target: Hashable) -> tuple[Any, Any] | None:
        """Return (key, graph) of the graph of a target, given by its `identity`, that is dropped because there are too
        many; it is forgotten. None if there are not."""
        own = [(key, variant) for key in self._known if key[0] == target for variant in self._known[key]]
        found = [(key, variant) for key, variant in own if not variant.stays]
        if len(found) <= self.most:
            return None
        key, oldest = min(found, key=lambda entry: entry[1].used)
        self._remove(key, oldest)
        return key, oldest.compiled_call

    def forget(self, key: Any, compiled_call: Any) -> bool:
        """The graph of a call is no longer found; whether it need not be stored any more."""
        variant = next(known for known in self._known[key] if known.compiled_call is compiled_call)
        self._remove(key, variant)
        return not variant.stays

    def _remove(self, key: Any, variant: _Variant) -> None:
        self._known[key].remove(variant)
        if not self._known[key]:
            del self._known[key]

    def keys(self) -> list[Any]:
        """The calls that there are graphs of."""
        return list(self._known)
