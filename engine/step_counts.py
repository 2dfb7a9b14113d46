"""How many steps the graphs of a script have run in all, also in the runs that this one goes on from.

Random masks depend on the number of a step. Graphs are told apart by what they are for and the order in which the
script runs them first, as `train.0`, so that a run on other ranks, with other graphs, finds its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class StepCounts:
    """The counts of one script. earlier: those of the run that it goes on from."""

    def __init__(self, earlier: Mapping[str, int]) -> None:
        self._earlier = dict(earlier)
        self._names: dict[int, str] = {}
        self._known: list[Any] = []

    def begin(self, executor: Any) -> None:
        """Have a graph that runs for the first time go on where it was."""
        name = self._name(executor)
        steps = self._earlier.get(name, 0)
        if steps:
            executor.go_on(steps - executor.step)

    def steps(self, executors: Sequence[Any]) -> dict[str, int]:
        """The steps of every graph, by name."""
        return {self._name(e): e.step + e.earlier_steps for e in executors}

    def _name(self, executor: Any) -> str:
        if id(executor) not in self._names:
            kind = "train" if executor.trains else "evaluate"
            number = sum(name.startswith(kind) for name in self._names.values())
            self._names[id(executor)] = f"{kind}.{number}"
            self._known.append(executor)  # an id must not be used again
        return self._names[id(executor)]
