"""What is known to be over when a node starts, by the streams of a step and the events that a plan records.

`runtime/memory_plan.py` says what streams there are. Here nothing is taken from it but who waits for whom: a stream
runs its nodes in their order, what is on a side stream starts behind all of the main stream ahead of it, and who waits
for a node knows all that this node knew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mspc.ir.graph import Node
from mspc.runtime.memory import side_stream

Clock = dict[str, int]
MAIN = ""


class Clocks:
    """The clocks of all streams, as a program's nodes start one after the other."""

    def __init__(self, nodes: Sequence[Node], waits: Mapping[Node, tuple[Node, ...]]) -> None:
        self._place = {node: index for index, node in enumerate(nodes)}
        self._waits = waits
        self._signals = {other for others in waits.values() for other in others}
        self._at: dict[str, Clock] = {MAIN: {}}
        self._ends: dict[Node, tuple[str, Clock]] = {}

    def start(self, index: int, node: Node) -> tuple[str, list[Node]]:
        """(the stream of a node that starts now, what it waits for though that comes later)."""
        stream = side_stream(node)
        clock = self._at.setdefault(stream, {})
        if stream != MAIN:
            _join(clock, self._at[MAIN])
        late: list[Node] = []
        for other in self._waits.get(node, ()):
            if self._place.get(other, index) >= index:
                late.append(other)
            elif other in self._ends:
                _join(clock, self._ends[other][1])
        return stream, late

    def is_over(self, access: tuple[int, str], stream: str) -> bool:
        """Whether what started at that place on that stream is over for the node that starts now on this one."""
        index, other = access
        return index < 0 or other == stream or self._at[stream].get(other, -1) >= index

    def end(self, index: int, node: Node) -> None:
        """Note the node as the last one of its stream."""
        stream = side_stream(node)
        clock = self._at[stream]
        clock[stream] = index
        if node in self._signals:
            self._ends[node] = stream, dict(clock)


def _join(clock: Clock, other: Clock) -> None:
    for stream, index in other.items():
        if clock.get(stream, -1) < index:
            clock[stream] = index
