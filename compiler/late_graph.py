"""A graph that is made when it is first looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.ir.graph import Graph


class LateGraph(Graph):
    """Any of its parts that is read makes all of them; that may raise what `make` raises."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Graph]) -> None:
        # What is not set here is made by `__getattr__`, which Python asks for attributes that are not there.
        self._make = make

    def __getattr__(self, name: str) -> Any:
        if name not in Graph.__slots__:
            raise AttributeError(name)
        made = self._make()
        for part in Graph.__slots__:
            setattr(self, part, getattr(made, part))
        return getattr(self, name)
