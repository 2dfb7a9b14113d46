"""Collectives in which all ranks of a group participate, with equal or uneven data of each, or one rank's data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, Self

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Constant, Node, Value, element_types, operand_types
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, DType, TensorType, TupleType, Type
from mspc.ops import gpu
from mspc.ops.collective.base import (
    Collective,
    Ranks,
    Rendezvous,
    check_fields,
    check_reduction,
    is_all_zero,
    message,
    one_tensor,
    same,
)
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Equal, Mul, RealDiv
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, Gradients, NotDifferentiable, Op, RankPlacement, RequestedSharding
from mspc.ops.operator_arguments import ints_of, sequence_of, split_call
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.ops.tensor.slicing import StridedSlice
from mspc.sharding.groups import WORLD_GROUPS

NO_GRADIENT = NotDifferentiable("placements are chosen after differentiation")


class AllReduce(Collective):
    """The group's tensors combined by `op` ("sum", "max", "min" or "prod"); the same on every rank.

    Several operands of one element type travel together, and the result is a tuple.
    """

    instead: ClassVar[tuple[str, ...]] = (
        "gradients are global there, and so are their sums: clip with ops.clip_by_global_norm, or take the root of the "
        "sums of squares, none of them divided by how many ranks hold a slice",
    )
    op: str = "sum"
    group: str = WORLD_GROUPS[0]
    mesh: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    rank_list: Ranks = ()
    ordered = False
    in_place = True
    agrees = True

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        """Add up the gradients: ranks differentiate the sum of their losses, as in MindSpore."""
        summed = replace(self, op="sum")
        if self.op == "sum":
            return (b.emit(summed, dout),)
        if self.op == "prod":
            return (b.emit(RealDiv(), b.emit(summed, b.emit(Mul(), dout, out)), x),)
        chosen = b.emit(Cast(x.tensor_type.dtype), b.emit(Equal(), x, out))
        return (b.emit(Mul(), b.emit(summed, dout), chosen),)

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        """Return the operands if they are zeros, global or local to each rank: there is nothing to reduce."""
        return list(inputs) if all(map(is_all_zero, inputs)) else None

    def infer(self, *types: Type) -> Type:
        tensors = [t for t in types if isinstance(t, TensorType)]
        if len(tensors) < 2 or len(tensors) < len(types):
            return super().infer(*types)
        if any(t.dtype != tensors[0].dtype for t in tensors):
            raise MspcError(f"AllReduce: {', '.join(str(t.dtype) for t in tensors)} cannot travel together")
        return TupleType(tuple(tensors))

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        return Reordered(self, tuple(orders), tuple(orders)) if len(types) == 1 else None

    @classmethod
    def sent_bytes(cls, operand: float, group: float) -> float:
        """Return the bytes of a reduce-scatter and an all-gather."""
        return 2 * operand * (group - 1) / group

    def bind(self, comm: Any) -> Callable[..., Any]:
        return partial(comm.all_reduce, op=self.op, ranks=self.ranks)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return gpu.gpu_launch.launch_all_reduce(device, inputs, out, self.op, self.ranks)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        one = super().kernel(be)
        xp = be.xp

        def several(*arrays: Any) -> Any:
            if len(arrays) == 1:
                return one(arrays[0])
            found = one(xp.concatenate([array.ravel() for array in arrays]))
            parts: list[Any] = []
            start = 0
            for array in arrays:
                parts.append(found[start : start + array.size].reshape(array.shape))
                start += array.size
            return tuple(parts)

        return several


class AllGather(Collective):
    """The group's tensors concatenated along `axis`, in the order of the ranks."""

    group: str = WORLD_GROUPS[0]
    axis: int = 0
    mesh: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    rank_list: Ranks = ()
    agrees = True

    def local_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return resized(self, shape, self.axis, self.group_size, 1)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(ReduceScatter("sum", self.group, self.axis, self.mesh, self.axes, self.rank_list), dout),)

    @classmethod
    def sent_bytes(cls, operand: float, group: float) -> float:
        return operand * (group - 1)

    def bind(self, comm: Any) -> Callable[..., Any]:
        return partial(comm.all_gather, ranks=self.ranks, axis=self.axis)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return gpu.gpu_launch.launch_all_gather(device, inputs[0], out, self.ranks, self.axis)


class ReduceScatter(Collective):
    """This rank's slice along `axis` of the group's tensors combined by `op`."""

    op: str = "sum"
    group: str = WORLD_GROUPS[0]
    axis: int = 0
    mesh: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    rank_list: Ranks = ()
    agrees = True

    def local_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return resized(self, shape, self.axis, 1, self.group_size)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        if self.op != "sum":
            raise MspcError(
                f"ReduceScatter has no gradient for op {self.op!r}", notes=["only the sum has one"], code="E0310"
            )
        return (b.emit(AllGather(self.group, self.axis, self.mesh, self.axes, self.rank_list), dout),)

    def bind(self, comm: Any) -> Callable[..., Any]:
        return partial(comm.reduce_scatter, op=self.op, ranks=self.ranks, axis=self.axis)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return gpu.gpu_launch.launch_reduce_scatter(device, inputs[0], out, self.op, self.ranks, self.axis)


class AlltoAll(Collective):
    """Slice i of the tensor along `split_dim` goes to rank i of the group; the received slices are joined along
    `concat_dim`. Both count from the last dimension if negative. `split_count` is the size of the group."""

    split_count: int = 1
    split_dim: int = 0
    concat_dim: int = 0
    group: str = WORLD_GROUPS[0]
    mesh: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    rank_list: Ranks = ()

    def local_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if self.split_count != self.group_size:
            raise MspcError(f"AlltoAll: split_count is {self.split_count}, the group has {self.group_size} ranks")
        split_dim, concat_dim = self.dims_of(len(shape))
        return resized(self, resized(self, shape, split_dim, 1, self.split_count), concat_dim, self.split_count, 1)

    def dims_of(self, rank: int) -> tuple[int, int]:
        """Return split_dim and concat_dim of a tensor with `rank` dimensions, from 0 on; one that does not exist is
        unchanged."""
        found = [dim + rank if -rank <= dim < 0 else dim for dim in (self.split_dim, self.concat_dim)]
        return found[0], found[1]

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(replace(self, split_dim=self.concat_dim, concat_dim=self.split_dim), dout),)

    def bind(self, comm: Any) -> Callable[..., Any]:
        ranks = self.ranks

        def kernel(x: Any, *more: Any, **named: Any) -> Any:
            split_dim, concat_dim = self.dims_of(x.ndim)
            return comm.all_to_all(x, *more, ranks=ranks, split_dim=split_dim, concat_dim=concat_dim, **named)

        return kernel

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return gpu.gpu_launch.launch_all_to_all(device, inputs[0], out, self.ranks, *self.dims_of(len(inputs[0].shape)))


class Broadcast(Collective):
    """The tensors of `root_rank` on every rank of the group; takes and returns a tuple, as in MindSpore."""

    root_rank: int = 0
    group: str = WORLD_GROUPS[0]
    mesh: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    rank_list: Ranks = ()
    ordered = False
    agrees = True
    named = ("root_rank",)

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        return self, sequence_of(self.name, args)

    def infer(self, *types: Type) -> Type:
        return TupleType(tuple(t for t in types if isinstance(t, TensorType)))

    def bprop(self, b: Builder, *inputs_out_dout: Any) -> Gradients:
        """Return the gradient unchanged, as MindSpore does; it is not added up over the ranks."""
        return tuple(inputs_out_dout[-1])

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        if self._mesh:
            return lambda *arrays: arrays
        comm, root, ranks = be.comm, self.root_rank, self.ranks
        return lambda *arrays: tuple(comm.broadcast(array, root, ranks) for array in arrays)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return gpu.gpu_launch.launch_broadcast(device, inputs, out, self.root_rank, self.ranks)


class NeighborExchange(Collective):
    """An exchange: operand i goes to rank `send_rank_ids[i]`; the result is the tuple of tensors received from
    `recv_rank_ids`, of `recv_shapes` and `recv_type`. A rank may only send, or only receive."""

    send_rank_ids: Ranks = ()
    recv_rank_ids: Ranks = ()
    recv_shapes: tuple[tuple[int, ...], ...] = ()
    send_shapes: tuple[tuple[int, ...], ...] = ()
    recv_type: DType = FLOAT32
    group: str = WORLD_GROUPS[0]
    rank_list: Ranks = ()
    ordered = False
    checks_where_called = True
    named = ("send_rank_ids", "recv_rank_ids")
    sequences: ClassVar[Mapping[str, type]] = {
        "send_rank_ids": list, "recv_rank_ids": list, "recv_shapes": tuple, "send_shapes": tuple
    }  # fmt: skip
    omitted = ("send_shapes", "group", "rank_list")

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        return self, sequence_of(self.name, args)

    def infer(self, *types: Type) -> Type:
        check_fields(self)
        to, of, shapes = len(self.send_rank_ids), len(self.recv_rank_ids), self.recv_shapes
        if len(types) != to:
            raise MspcError(f"NeighborExchange: {len(types)} tensors for {to} ranks to send to")
        if len(shapes) != of:
            raise MspcError(f"NeighborExchange: {len(shapes)} shapes for {of} ranks to receive from")
        given = tuple(t.shape for t in types if isinstance(t, TensorType))
        if self.send_shapes and self.send_shapes != given:
            raise MspcError(f"NeighborExchange: send_shapes is {self.send_shapes}, the tensors have {given}")
        return TupleType(tuple(TensorType(self.recv_type, shape) for shape in shapes))

    @property
    def communicates(self) -> bool:
        return True

    def partners(self, rank: int) -> Ranks:
        return tuple(sorted({*self.send_rank_ids, *self.recv_rank_ids} - {rank}))

    def rendezvous(self, rank: int, types: Sequence[Type]) -> list[Rendezvous]:
        """Return one participation per rank that it sends to or receives from."""
        arriving = [TensorType(self.recv_type, tuple(shape)) for shape in self.recv_shapes]
        to = [message(rank, other, type) for other, type in zip(self.send_rank_ids, types, strict=True)]
        of = [message(other, rank, type) for other, type in zip(self.recv_rank_ids, arriving, strict=True)]
        return [meeting for meeting in to + of if meeting.ranks != (rank, rank)]

    @classmethod
    def sent_bytes(cls, operand: float, group: float) -> float:
        return operand

    def bprop(self, b: Builder, *operands_out_dout: Any) -> Gradients:
        """Send the gradients back to the ranks that sent the tensors; all ranks differentiate their exchange."""
        *operands, out, dout = operands_out_dout
        sent: list[Value] = []
        for grad, type in zip(dout, element_types(out.type), strict=True):
            sent.append(Constant(np.zeros(type.shape), type.dtype) if grad is None else grad)
        back = replace(
            self, send_rank_ids=self.recv_rank_ids, recv_rank_ids=self.send_rank_ids, send_shapes=(),
            recv_shapes=tuple(value.shape for value in operands),
            recv_type=operands[0].tensor_type.dtype if operands else self.recv_type,
        )  # fmt: skip
        arrived = b.emit(back, *sent)
        return tuple(b.emit(TupleGetItem(i), arrived) for i in range(len(operands)))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        comm, ranks, dtype = be.comm, self.send_rank_ids, self.recv_type.numpy
        receives = [(r, tuple(s), dtype) for r, s in zip(self.recv_rank_ids, self.recv_shapes, strict=True)]
        return lambda *arrays: tuple(comm.exchange(list(zip(ranks, arrays, strict=True)), receives))

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        sends = list(zip(self.send_rank_ids, inputs, strict=True))
        receives = list(zip(self.recv_rank_ids, out, strict=True))
        return gpu.gpu_launch.launch_exchange(device, sends, receives, self.rank_list)


class LayoutChange(Op, abstract=True):
    """A change of layout. The global tensor does not change; the ranks hold `source` before and `target` after."""

    takes_complex = True
    source: Layout = Layout((1,), ())
    target: Layout = Layout((1,), ())
    may_alias = True
    widens = False
    bprop = NO_GRADIENT

    def rule(self, *types: TensorType) -> str:
        raise MspcError(f"{self.name} has its layouts already and cannot be sharded again")

    def infer(self, *types: Type) -> Type:
        return types[0]

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return same


class Redistribute(LayoutChange):
    """The change of a tensor from `source` to `target`; `lower_redistribution` replaces it by the cheapest steps."""

    def localize(self, placement: RankPlacement) -> Op:
        raise MspcError("Redistribute must be lowered before the graph is sliced", notes=["run lower_redistribution"])


class LocalSlice(LayoutChange):
    """A redistribution in which every rank takes a slice of its own slice; nothing is sent."""

    def localize(self, placement: RankPlacement) -> Op:
        shape = placement.in_types[0].shape
        if 0 in shape:  # every rank has all elements, whichever other dimensions are sharded
            return Reshape(self.target.local_shape(shape))
        old = self.source.slices_for(placement.rank, shape)
        new = self.target.slices_for(placement.rank, shape)
        begin = tuple(n.start - o.start for n, o in zip(new, old, strict=True))
        end = tuple(n.stop - o.start for n, o in zip(new, old, strict=True))
        return StridedSlice(begin=begin, end=end, strides=(1,) * len(shape))


def resized(op: Op, shape: tuple[int, ...], dim: int, times: int, parts: int) -> tuple[int, ...]:
    """Return a shape with `times` / `parts` as many elements along a dimension. Raise MspcError if that does not
    divide."""
    if not 0 <= dim < len(shape):
        raise MspcError(f"{op.name}: there is no dimension {dim} in shape {shape}", kind=IndexError)
    if shape[dim] % parts:
        raise MspcError(f"{op.name}: dimension {dim} is {shape[dim]}, which does not divide by {parts} ranks")
    return (*shape[:dim], shape[dim] * times // parts, *shape[dim + 1 :])

WORDS = 4096
"""Upper bound of the 32-bit words that a rank sends to each other one."""
COMBINED = {"float32": "float", "int32": "int"}
"""Element types whose elements are combined, and their names in CUDA C++."""
COMBINATIONS = ("sum", "prod", "max", "min")


def takes(nbytes: int, dtype: np.dtype, op: str) -> bool:
    """Whether the part that each rank gets, of `nbytes` bytes, is small. op: the operation that combines elements, or
    "" if none are combined."""
    return nbytes % 4 == 0 and nbytes <= 4 * WORDS and (not op or (dtype.name in COMBINED and op in COMBINATIONS))


def is_small(node: Node) -> bool:
    """Whether all that a collective's node moves is small."""
    op = node.op
    if not isinstance(op, AllReduce | AllGather | ReduceScatter):
        return False
    how = "" if isinstance(op, AllGather) else op.op
    parts = op.group_size if isinstance(op, ReduceScatter) else 1
    types = operand_types(node)
    if len(types) > 1 and not isinstance(op, AllReduce):
        return False
    return takes(sum(t.nbytes for t in types) // parts, types[0].dtype.numpy, how)

NOTHING = (1,)
"""The shape of the part of a rank that gets nothing: one zero."""


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
        """Return the operand's type. Raise MspcError if the root, or this rank's number, is not in the group."""
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

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        run, keeps, xp = self.bind(be.comm), self.at_root, be.xp

        def kernel(x: Any) -> Any:
            found = run(x)
            return found if keeps else xp.zeros(NOTHING, x.dtype)

        return kernel


class Reduce(Rooted):
    """The group's tensors combined by `op` ("sum", "max", "min" or "prod") on the rank with number `dest_rank` in the
    group; one zero on other ranks."""

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

    sent_bytes = AllReduce.sent_bytes  # of which only one rank stores the result

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        """Return, on every rank, the gradient of the one result."""
        given = dout if self.at_root else _zeros(x)
        back = b.emit(Broadcast(self.root, self.group, rank_list=self.rank_list), given)
        return (b.emit(TupleGetItem(0), back),)

    def bind(self, comm: Any) -> Callable[..., Any]:
        return partial(comm.all_reduce, op=self.op, ranks=self.ranks)


class CollectiveGather(Rooted):
    """The group's tensors concatenated along dimension 0, in the order of the group, on rank `dest_rank`; one zero on
    other ranks."""

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

    sent_bytes = AllGather.sent_bytes  # of which only one rank stores the result

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        """Return, on every rank, its slice of the gradient."""
        gathered_shape = (x.shape[0] * self.group_size, *x.shape[1:])
        given = dout if self.at_root else Constant(np.zeros(gathered_shape), x.tensor_type.dtype)
        return (b.emit(CollectiveScatter(self.dest_rank, self.group, self.rank_list, self.rank_id), given),)

    def bind(self, comm: Any) -> Callable[..., Any]:
        return partial(comm.all_gather, ranks=self.ranks, axis=0)


class CollectiveScatter(Rooted):
    """Part i along dimension 0 of the tensor of rank `src_rank` on rank i of the group. On other ranks only the shape
    and element type of the tensor matter."""

    src_rank: int = 0
    group: str = WORLD_GROUPS[0]
    rank_list: Ranks = ()
    rank_id: int = 0
    ordered = False  # the message is a broadcast; each rank takes its slice by its number
    named = ("src_rank",)

    @property
    def root(self) -> int:
        return self.src_rank

    def infer(self, *types: Type) -> Type:
        x = self.checked(types)
        part = resized(self, x.shape, 0, 1, self.group_size)
        return x.with_shape(part)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        """Gather the slices' gradients on the rank that had the tensor; on the others it had no effect."""
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


class AlltoAllV(Collective):
    """Slices of a tensor of one dimension go to the ranks of the group in order; received slices are joined in order.

    Called as `AlltoAllV(group, block_size)(x, send_numel_list, recv_numel_list)`: how many blocks of `block_size`
    elements go to and come from each rank. The numbers may differ from rank to rank.
    """

    group: str = WORLD_GROUPS[0]
    block_size: int = 1
    send_numel_list: tuple[int, ...] = ()
    recv_numel_list: tuple[int, ...] = ()
    rank_list: Ranks = ()
    ordered = False  # the messages; the numbers of blocks tell to which rank each goes
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

    def rendezvous(self, rank: int, types: Sequence[Type]) -> list[Rendezvous]:
        """Return one participation per rank that it sends to or receives from."""
        (x,) = types
        assert isinstance(x, TensorType)
        to = [message(rank, r, x.with_shape((n,))) for r, n in self._pieces(self.send_numel_list)]
        of = [message(r, rank, x.with_shape((n,))) for r, n in self._pieces(self.recv_numel_list)]
        return [meeting for meeting in to + of if meeting.ranks != (rank, rank)]

    def _pieces(self, counts: Sequence[int]) -> list[tuple[int, int]]:
        """Return (rank, elements) of the slices that are not empty."""
        return [(rank, n * self.block_size) for rank, n in zip(self.ranks, counts, strict=True) if n]

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        back = replace(self, send_numel_list=self.recv_numel_list, recv_numel_list=self.send_numel_list)
        return (b.emit(back, dout),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        sends, receives = self._pieces(self.send_numel_list), self._pieces(self.recv_numel_list)
        xp, comm = be.xp, be.comm

        def kernel(x: Any) -> Any:
            arrived = comm.exchange(_split(x, sends), [(rank, (n,), x.dtype) for rank, n in receives])
            return xp.concatenate(arrived) if arrived else xp.empty((0,), x.dtype)

        return kernel

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        return gpu.gpu_launch.launch_exchange(
            device,
            _split(x, self._pieces(self.send_numel_list)),
            _split(out, self._pieces(self.recv_numel_list)),
            self.ranks,
        )


def _split(x: Any, pieces: Sequence[tuple[int, int]]) -> list[tuple[int, Any]]:
    """Return (rank, its slice) for an array in which the slices follow one another."""
    ends = accumulate(n for _, n in pieces)
    return [(rank, x[end - n : end]) for (rank, n), end in zip(pieces, ends, strict=True)]
