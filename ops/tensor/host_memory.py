"""Copies between device and host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from mspc.ir.types import TensorType
from mspc.ops.device import Array, Copy, Device, Launch, nothing
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.ops.optim.optimizer import Assign
from mspc.sharding.rules import broadcast_rule


class HostCopy(Op, abstract=True):
    """A copy of operand 0 in the other memory, equal bit for bit."""

    any_types = True
    takes_complex = True
    traffic = "host_copies"
    bprop = NotDifferentiable("copies between device and host are decided after all gradients are taken")
    samples = (sample((8, 16), gradient=False), sample((16,), gradient=False))

    def rule(self, input: TensorType) -> str:
        return broadcast_rule((input.shape,))

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        return types[0].nbytes

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.array(inputs[0])

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        def kernel(source: Any, out: Any) -> Any:
            np.copyto(out, source)
            return out

        return kernel


class ToHost(HostCopy):
    """The value in the host's memory."""

    def launch(self, device: Device, out: Any, source: Array) -> Launch | None:
        return lambda: device.receive(source, out)


class FromHost(HostCopy):
    """A value of the host's memory on the device."""

    def launch(self, device: Device, out: Any, source: Array) -> Launch | None:
        return lambda: device.send(source, out)


class AwaitHost(HostCopy):
    """The host copy that ToHost or AssignOnHost started, once it is complete: the copied tensor may then be
    overwritten."""

    may_alias = True
    has_side_effect = True  # must run without readers, too: overwriting the source waits for it

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        return 0

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0]

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        return None

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return nothing  # streams wait


class AssignOnHost(Assign):
    """A parameter that lives on the host = a value on the device."""

    traffic = "host_copies"
    cuda_update = ""
    neutral: ClassVar[Mapping[int, float | None]] = {}
    bprop = NotDifferentiable("copies between device and host are decided after all gradients are taken")
    samples = (sample((8, 16), (8, 16), gradient=False), sample((16,), (16,), gradient=False))

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        return types[0].nbytes

    def launch(
        self, device: Device, out: Any, *inputs: Array, copies: Mapping[int, Copy] | None = None
    ) -> Launch | None:
        target, source = inputs
        return lambda: device.receive(source, target)
