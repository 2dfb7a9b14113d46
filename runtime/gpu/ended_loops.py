"""Loops of which the GPU decides that they end too early: after the time that they may take, or because the host waits
no longer. What they leave is no result, and the updates behind them change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import ExecutionError
from mspc.ir.graph import Node
from mspc.runtime.gpu.progress import wait_for
from mspc.runtime.regions.ways import too_long


class EndedLoops:
    """Of one step.

    array: Int64 of two elements on the GPU: number of the loop that took too long, from 1, and how many turns it had;
        0: none, -1: all loops are to end.
    are_limited: whether a loop may take too long. slots: steps that are under way, see `executor`.

    Args:
        device: see `GpuDevice`. limit: seconds that a loop may take; 0: any time.
    """

    def __init__(self, device: Any, limit: float) -> None:
        self.array = device.empty((2,), "int64")
        self._device, self._limit = device, limit
        self.slots: Sequence[Any] = ()
        self._loops: list[tuple[Node, bool]] = []
        self.are_limited = False
        self._left: tuple[Any, Any] | None = None
        """The number that the GPU was sent to leave all loops, and the event behind it."""
        self._clear()
        device.ended_loops.add(self)

    def number_of(self, node: Node, has_condition: bool, limited: bool) -> int:
        """The number of another loop that the GPU decides on."""
        self._loops.append((node, has_condition))
        self.are_limited = self.are_limited or limited
        return len(self._loops)

    @property
    def are_there(self) -> bool:
        """Whether the GPU decides on a loop."""
        return bool(self._loops)

    def tell(self, told: Any) -> None:
        """A launch that copies the array to the host, where a loop may take too long: else `told` is not written."""
        if self.are_limited:
            self._device.receive(self.array, told)

    def has_ended(self, told: Any) -> bool:
        """Whether a loop took too long in the step behind which `tell` filled this array."""
        return self.are_limited and bool(told[0])

    def error(self, told: Any) -> tuple[ExecutionError, Node]:
        """What is said of a loop that took too long, and its node. told: what the array held."""
        node, has_condition = self._loops[int(told[0]) - 1]
        return too_long(self._limit, int(told[1]), has_condition), node

    def cause(self, error: Exception, node: Node | None) -> tuple[Exception, Node | None]:
        """An error of the host and its node, or in their place those of a loop that the GPU ended ahead of them: what
        the host met then is of no account. Later steps run as if there had been none."""
        if not self.are_limited:
            return error, node
        told, device = np.zeros(2, np.int64), self._device
        with device.stream("compute"):
            device.receive(self.array, told)
        device.synchronize()
        if told[0] <= 0:
            return error, node
        self._forget()
        return self.error(told)

    def fail(self, failure: Exception) -> None:
        """Wait for what is under way: steps with an ended loop have failed, what comes then runs as if there had been
        none."""
        self._forget()
        for slot in self.slots:
            if slot.done is not None and self.has_ended(slot.ended):
                slot.done, slot.failed = None, failure

    def leave(self) -> None:
        """End all loops that are under way on the GPU: nobody waits for its steps any more, of this graph and others,
        as updates behind a loop that is left change nothing."""
        deciding: list[EndedLoops] = [each for each in self._device.ended_loops if each.are_there]
        if not deciding:
            return
        for each in self._device.ended_loops:
            for slot in each.slots:
                if slot.done is not None:
                    slot.done, slot.failed = None, ExecutionError("the step was interrupted")
        for each in deciding:
            each._send_leave()

    def _send_leave(self) -> None:
        if self._left is not None:
            return
        # Of the host's pinned memory, which a copy beside the running graph takes.
        number = self._device.pinned((2,), "int64")
        number[:] = -1, 0
        with self._device.stream("copy"):
            self._device.send(number, self.array)
            self._left = number, self._device.signal()

    def forget_leaving(self) -> None:
        """Wait for loops that were left, and what is behind them; what comes then runs to its end."""
        for each in list(self._device.ended_loops):
            if each._left is not None:
                wait_for(self._device, each._left[1])
                with self._device.stream("compute"):
                    wait_for(self._device, self._device.signal(), interruptible=True)
                each._forget()

    def _forget(self) -> None:
        self._device.synchronize()
        self._clear()
        with self._device.stream("compute"):
            self._device.send(np.zeros(1, np.int32), self._device.stop)
        self._device.synchronize()
        self._left = None

    def _clear(self) -> None:
        """In the order of the steps."""
        with self._device.stream("compute"):
            self._device.send(np.zeros(2, np.int64), self.array)
