"""What a stage may keep in the memory of the host of what gradients read: as much as copies bring away and back while
it works on one micro-batch after the other, of units that run first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mspc.analysis.cost.machine import HOST_COPIES, Machine
from mspc.ir.graph import MICRO_BATCH, WORK, Graph
from mspc.ir.late_dataclass import dataclass
from mspc.passes.lib.host_memory import HostStores, take_apart_calls
from mspc.passes.lib.recomputation import within

ON_DEVICE = 4
"""Micro-batches of which such values are on the device: they are made, leave, come back, and are read."""


@dataclass(frozen=True)
class HostBytes:
    """values: bytes that gradients read of one micro-batch of each unit and that may leave. seconds: in which a byte
    does."""

    values: np.ndarray
    seconds: float

    def only(self, units: np.ndarray) -> HostBytes:
        """Of these units, a bool of each."""
        return HostBytes(np.where(units, self.values, 0.0), self.seconds)


BUSY = 2 / 3
"""The share of a stage's time that copies can be counted on to take: they have to wait for work, and work for them."""
GIGA = 1 << 30


def host_bytes(values: np.ndarray, machine: Machine) -> HostBytes | None:
    """Of these bytes of every unit by the rates of a machine; None where there are none."""
    return HostBytes(values, machine.moving_seconds(GIGA, HOST_COPIES) / GIGA) if values.any() else None


def spared(alive: np.ndarray, values: np.ndarray, seconds: np.ndarray, host: HostBytes) -> np.ndarray:
    """[entry, row]: bytes of a stage that are on the host during its entries. alive: [entry, chunk], micro-batches of
    which it keeps what forwards made; values: [chunk, row], bytes of one that may leave; seconds: [row], the time for
    the copies of one micro-batch."""
    all_values = values.sum(axis=0)
    share = np.minimum(1.0, BUSY * seconds / np.maximum(all_values * host.seconds, 1e-30))
    left = np.einsum("ek,kr->er", alive, values) - ON_DEVICE * values.max(axis=0, initial=0.0)
    return share * np.maximum(0.0, left)


def values_of(graph: Graph, cells: Sequence[str]) -> float:
    """Bytes that the gradients of one micro-batch read of what these cells make, in a stage's program; calls in it are
    taken apart."""
    take_apart_calls(graph)
    found = 0.0
    for each in HostStores(graph):
        call = graph.nodes[each.made]
        if WORK in call.attrs and call.attrs[MICRO_BATCH] == 0 and any(within(each.maker.scope, c) for c in cells):
            found += each.value.type.nbytes
    return found
