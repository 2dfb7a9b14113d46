"""Tells what of a compiled plan may live in the memory of the host, optimizer states and what gradients read of cells,
and how much of it is copied behind the step."""

from __future__ import annotations

from itertools import accumulate

from mspc.analysis.cost.machine import HOST_COPIES, Machine
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.ir.graph import OFFLOAD, Graph, Node
from mspc.ir.late_dataclass import dataclass
from mspc.passes.lib.host_memory import HostStores
from mspc.passes.lib.recomputation import mark_offloaded, mark_states, states_of

LARGE = 1 / 8
"""From this share of what all cells keep on, the cells inside of a cell are taken one by one."""


@dataclass(frozen=True)
class HostMemoryUse:
    """What lives on the host. cells: of which what gradients read does; states: those of optimizers do."""

    cells: tuple[str, ...] = ()
    states: bool = False

    @property
    def words(self) -> str:
        """For people."""
        cells = f"values of {len(self.cells)} cell{'s' * (len(self.cells) != 1)}"
        return " and ".join(["optimizer states"] * self.states + [cells] * bool(self.cells)) + " on the host"

    def mark(self, graph: Graph) -> None:
        """Mark it in a graph on which nothing else is to be decided."""
        mark_offloaded(graph, self.cells)
        if self.states:
            mark_states(graph)


NOTHING = HostMemoryUse()


def has_host_apart(device: str) -> bool:
    """Whether a program's device has other memory than its host."""
    return device == "GPU"


@dataclass(frozen=True)
class HostRoom:
    """cells: in the order in which they run, with the bytes that each keeps for gradients. states: bytes. forward,
    backward: seconds of a step up to the last forward operator and from there on. machine: whose rates count."""

    cells: tuple[tuple[str, float], ...]
    states: float
    forward: float
    backward: float
    machine: Machine

    @classmethod
    def of(cls, graph: Graph, machine: Machine) -> HostRoom:
        """Of a rank's graph with nothing on the host."""
        spans = StreamTimeline(graph, machine).spans
        ends = {node: sum(span) for node, span in spans.items()}
        forward = max((end for node, end in ends.items() if node.phase == "forward"), default=0.0)
        states = sum(state.type.nbytes for state in states_of(graph) if OFFLOAD not in state.attrs)
        return cls(_cells(graph), states, forward, max(0.0, max(ends.values(), default=0.0) - forward), machine)

    @property
    def hidden(self) -> float:
        """Bytes that have left for the host by the end of the forward part."""
        return min(sum(nbytes for _, nbytes in self.cells), self.forward / self._seconds(1 << 30) * (1 << 30))

    def late(self, states: bool) -> float:
        """Seconds that copies of states take behind the gradients, beside which they run."""
        return max(0.0, self._seconds(self.states) - self.backward) if states and self.states else 0.0

    def first_cells(self, nbytes: float) -> tuple[str, ...]:
        """The cells that run first and keep so many bytes together, or as many as leave by the end of the forward
        part."""
        sums = accumulate((kept for _, kept in self.cells), initial=0.0)
        count = next((i for i, total in enumerate(sums) if total >= min(nbytes, self.hidden)), len(self.cells))
        return tuple(cell for cell, _ in self.cells[:count])

    def _seconds(self, nbytes: float) -> float:
        return self.machine.moving_seconds(nbytes, HOST_COPIES)


def _cells(graph: Graph) -> tuple[tuple[str, float], ...]:
    """The outermost cells that keep little of what all keep, or have no cells inside, by the places at which they keep
    the first of it."""
    kept: dict[str, float] = {}
    within: dict[str, float] = {}
    for value in HostStores(graph):
        if not _stays(value.maker):
            kept[value.maker.scope] = kept.get(value.maker.scope, 0.0) + value.value.type.nbytes
    for scope, nbytes in kept.items():
        for cell in _cells_around(scope):
            within[cell] = within.get(cell, 0.0) + nbytes
    total = sum(kept.values())
    found: dict[str, float] = {}
    for scope in kept:
        around = _cells_around(scope)
        if not found.keys() & set(around):
            small = (cell for cell in around[1:] if within[cell] <= LARGE * total)
            cell = next(small, scope if within[scope] == kept[scope] else "")
            found |= {cell: within[cell]} if cell else {}
    return tuple(found.items())


def _cells_around(scope: str) -> list[str]:
    """The cells that a scope is in, itself last."""
    parts = scope.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _stays(node: Node) -> bool:
    """Whether the script has decided on a node."""
    return OFFLOAD in node.attrs or bool(node.attrs.get("recompute"))
