"""This module finds which collectives run beside a node of the compute stream, and how many multiprocessors they take
from it.

A product fills all multiprocessors at once. Beside a collective that holds a few of them, its last blocks wait for the
first to end, and it takes twice its time; one that is told how many are left is divided to fit.

All ranks come to the same answer, since it depends on the graph and on fixed rates alone: what they compute alike they
compute in the same way.
"""

from __future__ import annotations

from mspc.analysis.cost.known_machines import H200
from mspc.analysis.cost.machine import ROUNDS
from mspc.analysis.cost.nodes import seconds
from mspc.ir.graph import Node
from mspc.ir.late_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class _Flight:
    """A collective under way: its place in the step, multiprocessors that it holds, when it ends."""

    place: int
    blocks: int
    end: float


class Overlap:
    """The collectives of the stream "communication" that run while others compute, as a step's nodes are gone through
    in their order. rounds: products of Float32 are rounded to TF32."""

    def __init__(self, rounds: bool = False) -> None:
        self._machine = H200.under({ROUNDS: rounds})
        self._clock = 0.0
        self._flights: list[_Flight] = []

    @property
    def idle(self) -> bool:
        """Whether a collective that is launched now begins at once, as none is before it."""
        return all(flight.end <= self._clock for flight in self._flights)

    def begins(self, place: int, node: Node, blocks: int) -> None:
        """A collective is launched as work `place` of the step, on so many multiprocessors (0: not known)."""
        start = max([self._clock, *(flight.end for flight in self._flights)])
        self._flights.append(_Flight(place, blocks, start + seconds(node, self._machine)))

    def ends(self, place: int) -> None:
        """The compute stream has waited for the collective at `place`, and for those before it."""
        self._flights = [flight for flight in self._flights if flight.place > place]

    def taken(self, node: Node) -> int:
        """Multiprocessors that collectives hold during half of the time or more of a node that is launched now."""
        if not self._flights:  # whatever begins later begins behind this node, however long it takes
            return 0
        begun, length = self._clock, seconds(node, self._machine)
        self._clock += length
        beside = [flight.blocks for flight in self._flights if flight.end - begun >= length / 2]
        return max(beside, default=0)
