"""Counts the steps that the graphs of a script have run in all, also in the runs that this one resumes.

Random masks depend on the number of a step. Graphs are told apart by what they are for and the order in which the
script runs them first, as `train.0`, so that a run on other ranks, with other graphs, finds its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ENDED = 1024
"""The most graphs that are no longer stored and that others may go on from: a script may make functions without end."""


class StepCounts:
    """The counts of one script. earlier: those of the run that it resumes."""

    def __init__(self, earlier: Mapping[str, int]) -> None:
        self._earlier = dict(earlier)
        self._named: dict[int, tuple[str, Any]] = {}
        """The names of graphs, and the graphs, by the ids of these."""
        self._numbers: Counter[str] = Counter()
        """How many graphs of a kind have names, those that are gone among them."""
        self._latest: dict[Any, tuple[Any, Any]] = {}
        """The target and the graph that began last, by what tells such graphs apart from others."""
        self._ended: dict[Any, list[tuple[str, Callable[[], Any]]]] = {}
        """Names of graphs that are no longer stored, by what tells such graphs apart from others, and what the script
        has if it can make further ones."""

    def begin(self, executor: Any, identity: Any = None, target: Any = None) -> None:
        """Have a graph that runs for the first time go on where it was, or where that of the same `identity` ended or,
        if the latest of these is stored and that of another `target`, where that one is."""
        self._drop_gone()
        if self._ended.get(identity):
            self._named[id(executor)] = self._ended[identity].pop(0)[0], executor
        name = self._name(executor)
        before, latest = self._latest.get(identity, (target, executor))
        so_far = 0 if before == target else latest.step + latest.earlier_steps
        steps = self._earlier.get(name, so_far)
        self._latest[identity] = target, executor
        if steps:
            executor.go_on(steps - executor.step)

    def end(self, executor: Any, identity: Any, counted: Callable[[], Any]) -> None:
        """A graph is no longer stored. counted: returns the object without which the script makes no graph that goes on
        where this one was, or None if that is gone."""
        name = self._name(executor)
        self._earlier[name] = executor.step + executor.earlier_steps
        self._ended.setdefault(identity, []).append((name, counted))
        del self._named[id(executor)]
        if self._latest.get(identity, (None, None))[1] is executor:
            del self._latest[identity]
        self._drop_gone()

    def target_gone(self, executor: Any, identity: Any) -> None:
        """The script has no longer the target of a graph that stays, so another target may get its id."""
        if self._latest.get(identity, (None, None))[1] is executor:
            self._latest[identity] = None, executor

    def steps(self, executors: Sequence[Any]) -> dict[str, int]:
        """The steps of every graph, by name."""
        self._drop_gone()
        ended = {name: self._earlier[name] for names in self._ended.values() for name, _ in names}
        return ended | {self._name(e): e.step + e.earlier_steps for e in executors}

    def _name(self, executor: Any) -> str:
        if id(executor) not in self._named:
            kind = "train" if executor.trains else "evaluate"
            self._named[id(executor)] = f"{kind}.{self._numbers[kind]}", executor
            self._numbers[kind] += 1
        return self._named[id(executor)][0]

    def _drop_gone(self) -> None:
        """Forget graphs that no later graph goes on from."""
        for identity, names in list(self._ended.items()):
            for name, counted in names:
                if counted() is None:
                    del self._earlier[name]
            self._ended[identity] = [(name, counted) for name, counted in names if counted() is not None]
            if not self._ended[identity]:
                del self._ended[identity]
        while len(self._ended) > ENDED:
            for name, _ in self._ended.pop(next(iter(self._ended))):
                del self._earlier[name]
