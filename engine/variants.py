"""Graphs of one call: what cells compute depends on whether they train, so each setting has a graph of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.api.nn.cell import Cell


class _Variant:
    """A graph that holds while its cells train or do not, as they did when it was read."""

    def __init__(self, launched: Any, cells: Sequence[Cell]) -> None:
        self.launched = launched
        self._cells = cells
        self._training = [cell.training for cell in cells]

    def holds(self) -> bool:
        """Whether the cells are as they were; asked at every call."""
        return [cell.training for cell in self._cells] == self._training


class Variants:
    """The compiled graphs of a script's calls, by what is called and how."""

    def __init__(self) -> None:
        self._known: dict[Any, list[_Variant]] = {}

    def find(self, key: Any) -> Any:
        """The graph of a call as its cells stand now, None where it is still to be compiled."""
        return next((variant.launched for variant in self._known.get(key, ()) if variant.holds()), None)

    def add(self, key: Any, launched: Any, cells: Sequence[Cell]) -> None:
        """Keep a graph; `cells` are those whose `construct` stands in it."""
        self._known.setdefault(key, []).append(_Variant(launched, cells))

    def keys(self) -> list[Any]:
        """The calls that there are graphs of."""
        return list(self._known)
