"""Counts the steps that the graphs of a script have run in all, also in the runs that this one resumes.

Random masks depend on the number of a step. Graphs are told apart by what they are for and the order in which the
script runs them first, as `train.0`, so that a run on other ranks, with other graphs, finds its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class StepCounts:
    """The counts of one script. earlier: those of the run that it resumes."""

    def __init__(self, earlier: Mapping[str, int]) -> None:
        self._earlier = dict(earlier)
        self._names: dict[int, str] = {}
        self._known: list[Any] = []
        self._latest: dict[Any, tuple[Any, Any]] = {}
        """The target and the graph that began last, by what tells such graphs apart from others."""
        self._ended: dict[Any, list[str]] = {}
        """Names of graphs that are no longer stored, by what tells such graphs apart from others."""

    def begin(self, executor: Any, identity: Any = None, target: Any = None) -> None:
        """Have a graph that runs for the first time go on where it was, or where that of the same `identity` ended or,
        if the latest of these is stored and that of another `target`, where that one is."""
        if self._ended.get(identity):
            self._note(executor, self._ended[identity].pop(0))
        name = self._name(executor)
        before, latest = self._latest.get(identity, (target, executor))
        so_far = 0 if before == target else latest.step + latest.earlier_steps
        steps = self._earlier.get(name, so_far)
        self._latest[identity] = target, executor
        if steps:
            executor.go_on(steps - executor.step)

    def end(self, executor: Any, identity: Any) -> None:
        """A graph is no longer stored."""
        name = self._name(executor)
        self._earlier[name] = executor.step + executor.earlier_steps
        self._ended.setdefault(identity, []).append(name)
        del self._names[id(executor)]
        self._known.remove(executor)
        if self._latest.get(identity, (None, None))[1] is executor:
            del self._latest[identity]

    def steps(self, executors: Sequence[Any]) -> dict[str, int]:
        """The steps of every graph, by name."""
        ended = {name: self._earlier[name] for name in self._ended_names()}
        return ended | {self._name(e): e.step + e.earlier_steps for e in executors}

    def _name(self, executor: Any) -> str:
        if id(executor) not in self._names:
            kind = "train" if executor.trains else "evaluate"
            taken = [*self._names.values(), *self._ended_names()]
            self._note(executor, f"{kind}.{sum(name.startswith(kind) for name in taken)}")
        return self._names[id(executor)]

    def _note(self, executor: Any, name: str) -> None:
        self._names[id(executor)] = name
        self._known.append(executor)  # an id must not be used again

    def _ended_names(self) -> list[str]:
        return [name for names in self._ended.values() for name in names]
