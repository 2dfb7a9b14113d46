"""What statements may change beside the nodes of the graph: copies of it, to go back to, and to compare.

A branch of an `if` and a turn of a loop each begin with a state, and leave another one.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager
from typing import Any

from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Frame
from mspc.ir.graph import Node


class ProgramState:
    """Names of the running function, contents of the lists, dicts and sets that the program made, and attributes that
    it set, as they are now. foreign: by their identity lists, dicts and sets that were made elsewhere than on the way
    to here."""

    def __init__(self, tracer: Tracer, frame: Frame, foreign: Collection[int] = ()) -> None:
        self.names = dict(frame.locals)
        self.held: dict[int, Any] = {
            key: held
            for key, held in tracer.owned.items()
            if isinstance(held, list | dict | set) and key not in foreign
        }
        self.contents: dict[int, Any] = {key: held.copy() for key, held in self.held.items()}
        self.attributes = dict(tracer.attributes)

    def restore(self, tracer: Tracer, frame: Frame) -> None:
        frame.locals.clear()
        frame.locals.update(self.names)
        for key, contents in self.contents.items():
            fill(tracer.own(self.held[key]), contents)
        tracer.attributes = dict(self.attributes)

    def foreign(self, tracer: Tracer) -> set[int]:
        """What was made since, but not on the way that goes on from here."""
        return tracer.owned.keys() - self.held.keys()


NOTED = (
    "parameters", "constants", "errors", "warnings", "ignored", "owned", "draws", "runs", "attributes_read", "weak",
    "weights", "_tensors",
)  # fmt: skip
"""What a trace collects in the Tracer as it goes."""


class TraceSnapshot:
    """All that a trace changes, so that it may be tried and forgotten."""

    def __init__(self, tracer: Tracer, frame: Frame) -> None:
        self.tracer, self.frame = tracer, frame
        self.state = ProgramState(tracer, frame)
        self.noted = {name: getattr(tracer, name).copy() for name in NOTED}
        self.parameters = [(parameter, parameter.name) for parameter in tracer.graph.parameters]
        self.regions = tracer.regions
        self.nodes = len(tracer.builder.nodes)

    def restore(self) -> None:
        """Forget what was traced since."""
        tracer = self.tracer
        tracer.names.clear()
        for name, noted in self.noted.items():
            setattr(tracer, name, noted.copy())
        self.state.restore(tracer, self.frame)
        for parameter, name in self.parameters:
            parameter.name = name
        tracer.graph.parameters = [parameter for parameter, _ in self.parameters]
        tracer.regions = self.regions
        del tracer.builder.nodes[self.nodes :]


def fill(held: Any, contents: Any) -> None:
    """Give a list, dict or set of the program these elements."""
    if isinstance(held, list):
        held[:] = contents
        return
    held.clear()
    held.update(contents)


@contextmanager
def apart(tracer: Tracer) -> Generator[list[Node]]:
    """What is emitted inside goes into a list of its own. No gradient takes up calls across its border."""
    nodes, runs = tracer.builder.nodes, tracer.runs
    tracer.builder.nodes, tracer.runs = [], {}
    try:
        yield tracer.builder.nodes
    finally:
        tracer.builder.nodes, tracer.runs = nodes, runs


@contextmanager
def emitting_to(tracer: Tracer, nodes: list[Node]) -> Generator[None]:
    """What is emitted inside is appended to these nodes."""
    outer = tracer.builder.nodes
    tracer.builder.nodes = nodes
    try:
        yield
    finally:
        tracer.builder.nodes = outer
