"""These collectives have one rank at which everything arrives, or from which it comes.

What a rank computes depends on which it is: `rank_id` is its number in the group, filled in where a script calls the
operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Value
from mspc.ir.types import TensorType, Type
from mspc.ops.collective.base import Collective, Ranks, check_reduction, one_tensor
from mspc.ops.collective.collectives import Broadcast, resized
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import ArrayBackend
from mspc.sharding.groups import WORLD_GROUPS

NOTHING = (1,)
"""The shape of what a rank gets that gets nothing: one zero."""


class Rooted(Collective, abstract=True):
    """The base of these collectives; a subclass has the fields `group`, `rank_list` and `rank_id`."""

    omitted = ("group", "rank_list", "rank_id")
    differs_by_rank = True

    @property
    def root(self) -> int:
        """The number in the job of the rank at which everything arrives, or from which it comes."""
        raise NotImplementedError(self.name)

    @property
    def at_root(self) -> bool:
        """Whether this rank is the root."""
        return self.ranks[getattr(self, "rank_id", 0)] == self.root

    def checked(self, types: Sequence[Type]) -> TensorType:
        """The operand's type. Raises MspcError where the root, or this rank's number, is none of the group."""
        x = one_tensor(self, types)
        mistake = self.mistake_in_group()
        if mistake:
            raise MspcError(mistake, kind=ValueError)
        number: int = getattr(self, "rank_id", 0)
        if not 0 <= number < self.group_size:
            raise MspcError(f"{self.name}: rank_id {number} is no number in a group of {self.group_size} ranks")
        return x

    def on_rank(self, rank: int) -> Self:
        return replace(self, rank_id=self.members.index(rank)) if rank in self.members else self


class Reduce(Rooted):
    """The group's tensors combined by `op` ("sum", "max", "min" or "prod") on the rank with number `dest_rank` in the
    group; one zero on the others."""

    dest_rank: int = 0
    op: str = "sum"
    group: str = WORLD_GROUPS[0]
    rank_list: Ranks = ()
    rank_id: int = 0
    ordered = False

    @property
    def root(self) -> int:
        return self.ranks[self.dest_rank]

    def mistake_in_group(self) -> str:
        count = len(self.members)
        if not count or 0 <= self.dest_rank < count:
            return ""
        place = f"group {self.group!r}, which has {count} rank{'s' * (count != 1)}, counted from 0"
        return f"Reduce: dest_rank {self.dest_rank} is no number in {place}"

    def infer(self, *types: Type) -> Type:
        x = self.checked(types)
        check_reduction(self, self.op)
        return x if self.at_root else x.with_shape(NOTHING)

    @classmethod
    def sent_bytes(cls, operand: float, group: float) -> float:
        """Those of an AllReduce, of which only one rank stores the result."""
        return 2 * operand * (group - 1) / group

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        """Every rank gets the gradient of the one result."""
        given = dout if self.at_root else _zeros(x)
        back = b.emit(Broadcast(self.root, self.group, rank_list=self.rank_list), given)
        return (b.emit(TupleGetItem(0), back),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        comm, op, ranks, xp, keeps = be.comm, self.op, self.ranks, be.xp, self.at_root

        def kernel(x: Any) -> Any:
            found = comm.all_reduce(x, op, ranks)
            return found if keeps else xp.zeros(NOTHING, x.dtype)

        return kernel


class CollectiveGather(Rooted):
    """The group's tensors side by side along dimension 0, in the order of the group, on rank `dest_rank`; one zero on
    the others."""

    dest_rank: int = 0
    group: str = WORLD_GROUPS[0]
    rank_list: Ranks = ()
    rank_id: int = 0
    named = ("dest_rank",)

    @property
    def root(self) -> int:
        return self.dest_rank

    def infer(self, *types: Type) -> Type:
        x = self.checked(types)
        gathered_shape = resized(self, x.shape, 0, self.group_size, 1)
        return x.with_shape(gathered_shape if self.at_root else NOTHING)

    @classmethod
    def sent_bytes(cls, operand: float, group: float) -> float:
        """Those of an AllGather, of which only one rank stores the result."""
        return operand * (group - 1)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        """Every rank gets its slice of the gradient."""
        gathered_shape = (x.shape[0] * self.group_size, *x.shape[1:])
        given = dout if self.at_root else Constant(np.zeros(gathered_shape), x.tensor_type.dtype)
        return (b.emit(CollectiveScatter(self.dest_rank, self.group, self.rank_list, self.rank_id), given),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        comm, ranks, keeps, xp = be.comm, self.ranks, self.at_root, be.xp

        def kernel(x: Any) -> Any:
            gathered = comm.all_gather(x, ranks, 0)
            return gathered if keeps else xp.zeros(NOTHING, x.dtype)

        return kernel


class CollectiveScatter(Rooted):
    """Part i along dimension 0 of the tensor of rank `src_rank` on rank i of the group. On the others the tensor gives
    shape and element type alone."""

    src_rank: int = 0
    group: str = WORLD_GROUPS[0]
    rank_list: Ranks = ()
    rank_id: int = 0
    ordered = False  # of what travels, a broadcast; each rank takes its slice by its number
    named = ("src_rank",)

    @property
    def root(self) -> int:
        return self.src_rank

    def infer(self, *types: Type) -> Type:
        x = self.checked(types)
        part = resized(self, x.shape, 0, 1, self.group_size)
        return x.with_shape(part)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        """The slices' gradients come together on the rank that had the tensor; on the others it had no effect."""
        back = b.emit(CollectiveGather(self.src_rank, self.group, self.rank_list, self.rank_id), dout)
        return (back if self.at_root else _zeros(x),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        comm, ranks, root, place = be.comm, self.ranks, self.root, self.rank_id

        def kernel(x: Any) -> Any:
            rows = x.shape[0] // len(ranks)
            return comm.broadcast(x, root, ranks)[place * rows : (place + 1) * rows].copy()

        return kernel


def _zeros(like: Value) -> Constant:
    kind = like.type
    assert isinstance(kind, TensorType)
    return Constant(np.zeros(kind.shape), kind.dtype)
