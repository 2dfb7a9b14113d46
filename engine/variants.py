"""Stores the compiled graphs of a call, one for each setting of its cells, a limited number for each target."""

from __future__ import annotations

import os
import types
from collections.abc import Hashable, Sequence
from itertools import count
from typing import Any

from mspc.api.common.gradient import GradientFunction, JitFunction
from mspc.api.nn.cell import Cell
from mspc.ir.diagnostics import MspcError

VARIABLE = "MSPC_KEPT_GRAPHS"
"""The environment's name of how many graphs are stored of a cell or a function."""
MOST_GRAPHS = 64


def graphs_to_keep() -> int:
    """How many graphs are stored of a target. Raises MspcError where the environment says no number from 1."""
    given = os.environ.get(VARIABLE, str(MOST_GRAPHS))
    if not given.isdecimal() or not int(given):
        raise MspcError(f"{VARIABLE} must be an integer from 1, not {given!r}")
    return int(given)


def identity(target: Any) -> Hashable:
    """What all calls of a target have in common: its id, or those of the function and the object of a method, which
    Python makes anew wherever it is looked up."""
    if isinstance(target, types.MethodType):
        return id(target.__func__), id(target.__self__)
    return id(target)


def counted_as(target: Any) -> Hashable:
    """What the steps of a target are counted by: a function, or a request for its gradients, that a script makes again
    for every step goes on where the one before was."""
    while isinstance(target, GradientFunction | JitFunction):
        target = target.fn
    if isinstance(target, types.MethodType):
        return counted_as(target.__func__), id(target.__self__)
    return id(target.__code__) if isinstance(target, types.FunctionType) else id(target)


class _Variant:
    """A graph that holds while its cells train or do not, as they did when it was read, and have the same buffers and
    hooks. as_it_trained: whether it still holds when its cells train no longer.

    called: what its key names by id, which must not be used again. stays: whether it is stored in any case. used: when
    it was called last.
    """

    def __init__(
        self, compiled_call: Any, cells: Sequence[Cell], called: Any, stays: bool, used: int, as_it_trained: bool
    ) -> None:
        self.compiled_call = compiled_call
        self.called = called
        self.stays = stays
        self.used = used
        self._cells = cells
        self._as_it_trained = as_it_trained
        self._states = self._read()

    def holds(self) -> bool:
        """Whether the cells are as they were; asked at every call."""
        return self._read() == self._states

    def _read(self) -> list[int]:
        if self._as_it_trained:
            return [cell.revision for cell in self._cells]
        return [cell.revision * 2 + cell.training for cell in self._cells]


class Variants:
    """The compiled graphs of a script's calls, by what is called and how: keys are tuples that begin with the
    `identity` of the target, and its arguments.

    most: how many graphs are stored of a target, see `surplus`. by_use: the graph goes first that was not called for
    longest. It is the oldest else: that is the same one on all ranks, which compile together but need not call alike.
    """

    def __init__(self, most: int, by_use: bool) -> None:
        self.most = most
        self.by_use = by_use
        self._known: dict[Any, list[_Variant]] = {}
        self._clock = count()

    def find(self, key: Any) -> Any:
        """The graph of a call as its cells are now, None where it is still to be compiled."""
        for variant in self._known.get(key, ()):
            if variant.holds():
                if self.by_use:
                    variant.used = next(self._clock)
                return variant.compiled_call
        return None

    def add(
        self, key: Any, compiled_call: Any, cells: Sequence[Cell], called: Any, stays: bool, as_it_trained: bool
    ) -> None:
        """Store a graph; `cells` are those whose `construct` is in it."""
        variant = _Variant(compiled_call, cells, called, stays, next(self._clock), as_it_trained)
        self._known.setdefault(key, []).append(variant)

    def surplus(self, target: Hashable) -> tuple[Any, Any] | None:
        """(key, graph) of the graph of a target, given by its `identity`, that goes as there are more than are stored;
        it is no longer known. None where there are not."""
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
