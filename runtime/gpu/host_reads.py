"""What the host has to know of arrays on the GPU to launch what reads them: it is copied once, behind the launch that
makes it, so that the host finds it there when the first of its readers is to be launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mspc.ir.graph import Graph, Node, Value
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.device import Array, Launch
from mspc.runtime.gpu.on_host import HostQuery
from mspc.runtime.gpu.progress import wait_for
from mspc.runtime.memory import MemoryPlan


class HostRead:
    """An array's elements on the host. `begin` puts the copy on the current stream, `values` waits for the last one."""

    def __init__(self, device: Any, array: Array) -> None:
        self._device, self._array = device, array
        self._held = device.pinned(array.shape, array.dtype)
        self._copied: Any = None

    def begin(self) -> None:
        self._device.receive(self._array, self._held)
        self._copied = self._device.signal()

    def values(self) -> Any:
        """The elements, which the next copy overwrites."""
        wait_for(self._device, self._copied)
        return self._held


class Asking(HostQuery):
    """A launch that calls `run` with the elements of arrays, which are those of NumPy's; what copies them is its own,
    unless `share` says of some of them who does. ahead: what makes some of them."""

    def __init__(
        self, device: Any, arrays: Sequence[Array], run: Callable[..., None], ahead: Launch | None = None
    ) -> None:  # fmt: skip
        super().__init__(self._ask)
        self._ahead = ahead
        self.arrays = arrays
        self._device, self._with = device, run
        self._reads: list[HostRead] | None = None
        self._shared: Mapping[int, HostRead] = {}

    def share(self, reads: Mapping[int, HostRead]) -> None:
        """reads: by the number of the array, what copies it elsewhere before this is launched."""
        self._shared = reads

    def _ask(self) -> None:
        if self._reads is None:
            made = (self._shared.get(i) or HostRead(self._device, array) for i, array in enumerate(self.arrays))
            self._reads = list(made)
        if self._ahead is not None:
            self._ahead()
        for i, read in enumerate(self._reads):
            if i not in self._shared:
                read.begin()
        self._with(*[read.values() for read in self._reads])


def makers(graph: Graph, plan: MemoryPlan) -> dict[Value, Node]:
    """The nodes that make what hosts read of this graph's values. Others are read where they are needed: parameters,
    and what other ranks or graphs within this one have a part in."""
    asked = (node.inputs[i] for node in graph.nodes for i in node.op.host_reads)
    found = {value: _maker(value, plan) for value in dict.fromkeys(asked)}
    return {value: maker for value, maker in found.items() if maker is not None}


def _maker(value: Value, plan: MemoryPlan) -> Node | None:
    while isinstance(value, Node) and value.op.is_view:
        if value in plan.copied or not (len(value.inputs) == 1 or isinstance(value.op, TupleGetItem)):
            return None
        value = value.inputs[0]
    if not isinstance(value, Node) or value.regions or value.op.is_collective:
        return None
    return value
