"""This AlltoAll sends slices of different sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Value
from mspc.ir.types import TensorType, Type
from mspc.ops.collective.base import Collective, Ranks, Rendezvous, message, one_tensor
from mspc.ops.collective.gpu_launch import launch_exchange
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import ArrayBackend, Op
from mspc.ops.operator_arguments import ints_of, split_call
from mspc.sharding.groups import WORLD_GROUPS


class AlltoAllV(Collective):
    """Slices of a tensor of one dimension go to the ranks of the group in order, and what arrives is joined in order.

    Called as `AlltoAllV(group, block_size)(x, send_numel_list, recv_numel_list)`: how many blocks of `block_size`
    elements go to and come from each rank. The numbers may differ from rank to rank.
    """

    group: str = WORLD_GROUPS[0]
    block_size: int = 1
    send_numel_list: tuple[int, ...] = ()
    recv_numel_list: tuple[int, ...] = ()
    rank_list: Ranks = ()
    ordered = False  # of what travels, messages; the numbers say which goes where
    omitted = ("group", "rank_list")

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("send_numel_list", "recv_numel_list"))
        return replace(self, **{name: self._numbers(name, value) for name, value in found.items()}), tensors

    def _numbers(self, name: str, value: Any) -> tuple[int, ...]:
        held = value.value if isinstance(value, Constant) else value
        return ints_of(self.name, name, held.reshape(-1).tolist() if hasattr(held, "reshape") else held)

    def infer(self, *types: Type) -> Type:
        x = one_tensor(self, types)
        for name, counts in (("send_numel_list", self.send_numel_list), ("recv_numel_list", self.recv_numel_list)):
            if len(counts) != self.group_size or min(counts, default=0) < 0:
                what = f"{self.group_size} numbers from 0 on, one for each rank of the group"
                raise MspcError(f"{self.name}: {name} must be {what}, not {counts}")
        if self.block_size < 1:
            raise MspcError(f"{self.name}: block_size must be at least 1, not {self.block_size}")
        sent = sum(self.send_numel_list) * self.block_size
        if x.shape != (sent,):
            raise MspcError(f"{self.name}: the tensor has shape {x.shape}, and send_numel_list says ({sent},)")
        return x.with_shape((sum(self.recv_numel_list) * self.block_size,))

    def meetings(self, rank: int, types: Sequence[Type]) -> list[Rendezvous]:
        """One with every rank that it sends to or hears from."""
        (x,) = types
        assert isinstance(x, TensorType)
        to = [message(rank, r, x.with_shape((n,))) for r, n in self._pieces(self.send_numel_list)]
        of = [message(r, rank, x.with_shape((n,))) for r, n in self._pieces(self.recv_numel_list)]
        return [meeting for meeting in to + of if meeting.ranks != (rank, rank)]

    def _pieces(self, counts: Sequence[int]) -> list[tuple[int, int]]:
        """(rank, elements) of the slices that are not empty."""
        return [(rank, n * self.block_size) for rank, n in zip(self.ranks, counts, strict=True) if n]

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        back = replace(self, send_numel_list=self.recv_numel_list, recv_numel_list=self.send_numel_list)
        return (b.emit(back, dout),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        sends, receives = self._pieces(self.send_numel_list), self._pieces(self.recv_numel_list)
        xp, comm = be.xp, be.comm

        def kernel(x: Any) -> Any:
            arrived = comm.exchange(_split(x, sends), [(rank, (n,), x.dtype) for rank, n in receives])
            return xp.concatenate(arrived) if arrived else xp.empty((0,), x.dtype)

        return kernel

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        (x,) = inputs
        return launch_exchange(
            device,
            _split(x, self._pieces(self.send_numel_list)),
            _split(out, self._pieces(self.recv_numel_list)),
            self.ranks,
        )


def _split(x: Any, pieces: Sequence[tuple[int, int]]) -> list[tuple[int, Any]]:
    """(rank, its slice) of an array in which the slices lie one after another."""
    ends = accumulate(n for _, n in pieces)
    return [(rank, x[end - n : end]) for (rank, n), end in zip(pieces, ends, strict=True)]
