"""Stages of a pipeline hand tensors on: every rank of a stage sends to, or hears from, the rank of another stage that
has its place there, which is so many ranks further on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.types import FLOAT32, DType, TensorType, Type
from mspc.ops.collective.base import Collective, Ranks, Rendezvous
from mspc.ops.collective.point_to_point import Receive, Send
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import ArrayBackend, NotDifferentiable

NO_GRADIENT = NotDifferentiable("stages are cut behind differentiation")


class _ToStage(Collective, abstract=True):
    """A message of a rank as `Send` or `Receive` has it, with the rank that it goes to or comes from."""

    bprop = NO_GRADIENT
    omitted = ()

    def on(self, rank: int) -> Send | Receive:
        """The message as this rank sends or receives it."""
        raise NotImplementedError

    @property
    def communicates(self) -> bool:
        return True

    def partners(self, rank: int) -> Ranks:
        return self.on(rank).partners(rank)

    def meetings(self, rank: int, types: Sequence[Type]) -> list[Rendezvous]:
        """With the rank at the other end."""
        return self.on(rank).meetings(rank, types)

    def channel(self, rank: int) -> tuple[Ranks, int]:
        """Messages of one tag from one rank to another: the order of tags is free."""
        return self.on(rank).channel(rank)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return self.on(be.comm.rank).kernel(be)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        return self.on(device.comm.rank).launch(device, inputs, out)


class SendToStage(_ToStage):
    """Sends a tensor to the rank that is `distance` further on, which is of stage `stage`; the result is the operand.

    sr_tag: what the message is among those of the two ranks; it differs between micro-batches. micro_batch: its number,
    -1 for what is of no micro-batch.
    """

    stage: int = 0
    distance: int = 0
    sr_tag: int = 0
    micro_batch: int = -1
    may_alias = True

    def on(self, rank: int) -> Send:
        return Send(self.sr_tag, rank + self.distance)

    @classmethod
    def sent_bytes(cls, operand: float, group: float) -> float:
        return operand


class ReceiveFromStage(_ToStage):
    """A tensor of `shape` and `dtype` from the rank that is `distance` further back, which is of stage `stage`.

    sr_tag, micro_batch: as of the SendToStage that sends it.
    """

    stage: int = 0
    distance: int = 0
    sr_tag: int = 0
    shape: tuple[int, ...] = ()
    dtype: DType = FLOAT32
    micro_batch: int = -1
    answers = True

    def on(self, rank: int) -> Receive:
        return Receive(self.sr_tag, rank - self.distance, tuple(self.shape), self.dtype)

    def infer(self, *types: Type) -> Type:
        return TensorType(self.dtype, tuple(self.shape))

    @classmethod
    def sent_bytes(cls, operand: float, group: float) -> float:
        return 0.0
