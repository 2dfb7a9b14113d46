"""Messages from one rank to another, of a script and of pipeline stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.graph import Builder, Value
from mspc.ir.types import FLOAT32, DType, TensorType, TupleType, Type
from mspc.ops import gpu
from mspc.ops.collective.base import Collective, Ranks, Rendezvous, message
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import ArrayBackend, Gradients, NotDifferentiable
from mspc.sharding.groups import WORLD_GROUPS


class Send(Collective):
    """A message of the tensor to `dest_rank`; the result is the operand, so that a Depend can order later operators.

    group_back: the group of the gradient's way back. The gradient is the tensor that the receiving rank sends back
    under the same tag; the gradient of the result itself is not added to it, as in MindSpore.
    """

    sr_tag: int = 0
    dest_rank: int = 0
    group: str = WORLD_GROUPS[0]
    group_back: str = WORLD_GROUPS[0]
    rank_list: Ranks = ()
    may_alias = True
    named = ("dest_rank",)
    omitted = ("group", "group_back", "rank_list")

    @property
    def communicates(self) -> bool:
        return True

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        back = Receive(
            self.sr_tag, self.dest_rank, x.shape, x.tensor_type.dtype, self.group_back, self.group, self.rank_list
        )
        return (b.emit(back),)

    def partners(self, rank: int) -> Ranks:
        return (self.dest_rank,) if self.dest_rank != rank else ()

    def rendezvous(self, rank: int, types: Sequence[Type]) -> list[Rendezvous]:
        """Return the participation with the rank that it sends to."""
        return [message(rank, self.dest_rank, types[0], self.sr_tag)] if self.dest_rank != rank else []

    def channel(self, rank: int) -> tuple[Ranks, int]:
        """Return the channel of messages of one tag from one rank to another: the order of tags is free."""
        return (rank, self.dest_rank), self.sr_tag

    @classmethod
    def sent_bytes(cls, operand: float, group: float) -> float:
        return operand

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        comm, rank, tag = be.comm, self.dest_rank, self.sr_tag

        def send(x: Any) -> Any:
            comm.send(x, rank, tag)
            return x

        return send

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        """Return a launch that sends a copy, asynchronously: two ranks that both send before they receive would
        deadlock otherwise."""
        rank, tag, comm = self.dest_rank, self.sr_tag, device.comm
        return _Sending(device, f"message to {rank} under {tag}", inputs[0], out, lambda x: comm.send(x, rank, tag))


class _Sending:
    """A launch in which `leave` sends a copy of x on the stream `name`, and x is copied to `out`. A loop may run it
    again while an earlier message is in flight: every message until the device rejoins has a copy of its own."""

    def __init__(self, device: Device, name: str, x: Array, out: Array, leave: Callable[[Array], None]) -> None:
        self._device, self._name, self._leave = device, name, leave
        self._x, self._out = x, out
        self._copies = [self._copy()]
        self._rejoined, self._number = device.rejoined, 0

    def _copy(self) -> tuple[Array, Launch]:
        """Return memory for the message, and the launch that fills it."""
        x = self._x
        held = self._device.empty(x.shape, x.dtype)
        return held, gpu.gpu_launch.launch_copies(self._device, (x, x), (held, self._out))

    def __call__(self) -> None:
        device = self._device
        if self._rejoined != device.rejoined:
            self._rejoined, self._number = device.rejoined, 0
        if self._number == len(self._copies):
            self._copies.append(self._copy())
        held, copy = self._copies[self._number]
        self._number += 1
        copy()
        device.on_side_stream(self._name, lambda: self._leave(held))


class Receive(Collective):
    """A tensor of `shape` and `dtype` from `src_rank`, sent with the same `sr_tag`. An operand, if there is one, only
    orders it. group_back: group in which the gradient is sent back, with the same tag."""

    sr_tag: int = 0
    src_rank: int = 0
    shape: tuple[int, ...] = ()
    dtype: DType = FLOAT32
    group: str = WORLD_GROUPS[0]
    group_back: str = WORLD_GROUPS[0]
    rank_list: Ranks = ()
    named = ("src_rank",)
    omitted = ("group", "group_back", "rank_list")
    answers = True

    def bprop(self, b: Builder, *inputs_out_dout: Any) -> Gradients:
        *inputs, _, dout = inputs_out_dout
        b.emit(Send(self.sr_tag, self.src_rank, self.group_back, self.group, self.rank_list), dout)
        return (None,) * len(inputs)

    def infer(self, *types: Type) -> Type:
        return TensorType(self.dtype, tuple(self.shape))

    @property
    def communicates(self) -> bool:
        return True

    def partners(self, rank: int) -> Ranks:
        return (self.src_rank,) if self.src_rank != rank else ()

    def rendezvous(self, rank: int, types: Sequence[Type]) -> list[Rendezvous]:
        """Return the participation with the rank that it receives from."""
        return [message(self.src_rank, rank, self.infer(), self.sr_tag)] if self.src_rank != rank else []

    def channel(self, rank: int) -> tuple[Ranks, int]:
        """Return the channel of messages of one tag from one rank to another: the order of tags is free."""
        return (self.src_rank, rank), self.sr_tag

    @classmethod
    def sent_bytes(cls, operand: float, group: float) -> float:
        return 0.0

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        comm, rank, tag = be.comm, self.src_rank, self.sr_tag
        shape, dtype = tuple(self.shape), self.dtype.numpy
        return lambda *_: comm.receive(rank, tag, shape, dtype)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        comm = device.comm
        return lambda: comm.receive_into(out, self.src_rank, self.sr_tag)


class Barrier(Collective):
    """The operands, once every rank of the group has reached the barrier."""

    group: str = WORLD_GROUPS[0]
    rank_list: Ranks = ()
    may_alias = True
    omitted = ("group", "rank_list")
    bprop = NotDifferentiable("it orders ranks and computes nothing")

    def infer(self, *types: Type) -> Type:
        return TupleType(tuple(t for t in types if isinstance(t, TensorType)))

    @classmethod
    def sent_bytes(cls, operand: float, group: float) -> float:
        return 0.0

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        comm, ranks = be.comm, self.ranks

        def barrier(*arrays: Any) -> Any:
            comm.barrier(ranks)
            return arrays

        return barrier

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        copy, comm, ranks = gpu.gpu_launch.launch_copies(device, inputs, out), device.comm, self.ranks

        def barrier() -> None:
            if len(ranks) > 1:
                comm.barrier(ranks)
            copy()

        return barrier

NO_GRADIENT = NotDifferentiable("stages are cut after differentiation")


class _ToStage(Collective, abstract=True):
    """A message of a rank as in `Send` or `Receive`, with the rank that it goes to or comes from."""

    bprop = NO_GRADIENT
    omitted = ()

    def on(self, rank: int) -> Send | Receive:
        """Return the message as this rank sends or receives it."""
        raise NotImplementedError

    @property
    def communicates(self) -> bool:
        return True

    def partners(self, rank: int) -> Ranks:
        return self.on(rank).partners(rank)

    def rendezvous(self, rank: int, types: Sequence[Type]) -> list[Rendezvous]:
        """Return the participation with the rank at the other end."""
        return self.on(rank).rendezvous(rank, types)

    def channel(self, rank: int) -> tuple[Ranks, int]:
        """Return the channel of messages of one tag from one rank to another: the order of tags is free."""
        return self.on(rank).channel(rank)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return self.on(be.comm.rank).kernel(be)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return self.on(device.comm.rank).launch(device, out, *inputs)


class SendToStage(_ToStage):
    """A message to the rank that is `distance` further on, which is of stage `stage`; the result is the operand.

    sr_tag: the number of the message among those of the two ranks; it differs between micro-batches. micro_batch: its
    number, -1 for a tensor of no micro-batch.
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
