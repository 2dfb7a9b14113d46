"""Operators that copy tensors between a device and the memory of its host; the pass `offload` inserts them.

`%h = ToHost(%a)`, `%b = AwaitHost(%h)`, `%c = FromHost(%b)`: a value leaves, its memory on the device is free behind
AwaitHost, and it comes back. Of a parameter that lives on the host: `%m = FromHost(%para_m)`, updates of `%m`, and
`AssignOnHost(%para_m, %m)`. The copies run on streams of their own; where there is no device they are plain copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from mspc.ir.types import TensorType
from mspc.ops.device import Array, Copy, Device, Launch
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.ops.optim.optimizer import Assign
from mspc.sharding.rules import broadcast_rule


class HostCopy(Op, abstract=True):
    """A copy of operand 0 in the other memory, equal bit for bit."""

    any_types = True
    takes_complex = True
    traffic = "host_copies"
    bprop = NotDifferentiable("what moves between device and host is decided after all gradients are taken")
    samples = (sample((8, 16), gradient=False), sample((16,), gradient=False))

    def rule(self, input: TensorType) -> str:
        return broadcast_rule((input.shape,))

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        return types[0].nbytes

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.array(inputs[0])

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        def kernel(source: Any, out: Any) -> Any:
            np.copyto(out, source)
            return out

        return kernel


class ToHost(HostCopy):
    """The value in the host's memory."""

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        (source,) = inputs
        return lambda: device.receive(source, out)


class FromHost(HostCopy):
    """A value of the host's memory on the device."""

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        (source,) = inputs
        return lambda: device.send(source, out)


class AwaitHost(HostCopy):
    """What ToHost or AssignOnHost has left on the host, once it is there: what was copied may be overwritten."""

    may_alias = True
    has_side_effect = True  # who waits for nothing else must wait for what is overwritten behind it

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        return 0

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return inputs[0]

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        return None

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        return _nothing


class AssignOnHost(Assign):
    """A parameter that lives on the host = a value on the device."""

    traffic = "host_copies"
    cuda_update = ""
    neutral: ClassVar[Mapping[int, float | None]] = {}
    bprop = NotDifferentiable("what moves between device and host is decided after all gradients are taken")
    samples = (sample((8, 16), (8, 16), gradient=False), sample((16,), (16,), gradient=False))

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        return types[0].nbytes

    def launch(
        self, device: Device, inputs: Sequence[Array], out: Any, copies: Mapping[int, Copy] | None = None
    ) -> Launch | None:
        target, source = inputs
        return lambda: device.receive(source, target)


def _nothing() -> None:
    """Streams wait, nothing is launched."""
