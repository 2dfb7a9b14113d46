"""Collectives of a group of ranks are operators like any other; so are the abstract changes of placement.

Every one has two forms. In the graph of all ranks the group is named by mesh axes (`mesh`, `axes`): types
are global, and the operator changes the placement alone. On a rank (`localize`) it is named by its ranks
(`rank_list`, `group`) and types are the rank's own. Scripts that place their slices by hand write the
second form; its ranks are filled in by `with_ranks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Value, element_types
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, DType, TensorType, TupleType, Type
from mspc.ops.collective.base import Collective, Ranks, Rendezvous, check_fields, message, same
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Mul, RealDiv
from mspc.ops.math.comparison import Equal
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, RankPlacement, RequestedSharding
from mspc.ops.tensor.cast import Cast
from mspc.ops.tensor.reshape import Reshape
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

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        """Ranks differentiate the sum of their losses, so gradients add up, as in MindSpore."""
        summed = replace(self, op="sum")
        if self.op == "sum":
            return (b.emit(summed, dout),)
        if self.op == "prod":
            return (b.emit(RealDiv(), b.emit(summed, b.emit(Mul(), dout, out)), x),)
        chosen = b.emit(Cast(x.tensor_type.dtype), b.emit(Equal(), x, out))
        return (b.emit(Mul(), b.emit(summed, dout), chosen),)

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        """Of zeros there is nothing to combine, whether they are read as global or as every rank's own."""
        from mspc.ops.collective.known_zeros import is_all_zero  # late: few scripts call collectives in global modes

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
        """A reduce-scatter and an all-gather."""
        return 2 * operand * (group - 1) / group

    def bind(self, comm: Any) -> Callable[..., Any]:
        return partial(comm.all_reduce, op=self.op, ranks=self.ranks)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.collective.gpu_launch import launch_all_reduce  # late: only a GPU needs it

        return launch_all_reduce(device, inputs, out, self.op, self.ranks)

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
    """The group's tensors side by side along `axis`, in the order of the ranks."""

    group: str = WORLD_GROUPS[0]
    axis: int = 0
    mesh: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    rank_list: Ranks = ()
    agrees = True

    def local_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return resized(self, shape, self.axis, self.group_size, 1)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        return (b.emit(ReduceScatter("sum", self.group, self.axis, self.mesh, self.axes, self.rank_list), dout),)

    @classmethod
    def sent_bytes(cls, operand: float, group: float) -> float:
        return operand * (group - 1)

    def bind(self, comm: Any) -> Callable[..., Any]:
        return partial(comm.all_gather, ranks=self.ranks, axis=self.axis)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.collective.gpu_launch import launch_all_gather  # late: only a GPU needs it

        return launch_all_gather(device, inputs[0], out, self.ranks, self.axis)


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

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        if self.op != "sum":
            raise MspcError(f"ReduceScatter has no gradient for op {self.op!r}", notes=["only the sum has one"])
        return (b.emit(AllGather(self.group, self.axis, self.mesh, self.axes, self.rank_list), dout),)

    def bind(self, comm: Any) -> Callable[..., Any]:
        return partial(comm.reduce_scatter, op=self.op, ranks=self.ranks, axis=self.axis)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.collective.gpu_launch import launch_reduce_scatter  # late: only a GPU needs it

        return launch_reduce_scatter(device, inputs[0], out, self.op, self.ranks, self.axis)


class AlltoAll(Collective):
    """Slice i of the tensor along `split_dim` goes to rank i of the group; what arrives is joined along
    `concat_dim`, both from the last dimension where they are negative. `split_count` is the size of the group."""

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
        split_dim, concat_dim = self._dims(len(shape))
        return resized(self, resized(self, shape, split_dim, 1, self.split_count), concat_dim, self.split_count, 1)

    def _dims(self, rank: int) -> tuple[int, int]:
        """split_dim and concat_dim of a tensor with so many dimensions, from 0 on; one that is not there as it is."""
        found = [dim + rank if -rank <= dim < 0 else dim for dim in (self.split_dim, self.concat_dim)]
        return found[0], found[1]

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        return (b.emit(replace(self, split_dim=self.concat_dim, concat_dim=self.split_dim), dout),)

    def bind(self, comm: Any) -> Callable[..., Any]:
        ranks = self.ranks

        def kernel(x: Any, *more: Any, **named: Any) -> Any:
            split_dim, concat_dim = self._dims(x.ndim)
            return comm.all_to_all(x, *more, ranks=ranks, split_dim=split_dim, concat_dim=concat_dim, **named)

        return kernel

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.collective.gpu_launch import launch_all_to_all  # late: only a GPU needs it

        return launch_all_to_all(device, inputs[0], out, self.ranks, *self._dims(len(inputs[0].shape)))


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
        return self, _spread(args)

    def infer(self, *types: Type) -> Type:
        return TupleType(tuple(t for t in types if isinstance(t, TensorType)))

    def bprop(self, b: Builder, *inputs_out_dout: Any) -> Sequence[Value | None]:
        """MindSpore hands the gradient through unchanged; it is not added up over the ranks."""
        return tuple(inputs_out_dout[-1])

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        if self._mesh:
            return lambda *arrays: arrays
        comm, root, ranks = be.comm, self.root_rank, self.ranks
        return lambda *arrays: tuple(comm.broadcast(array, root, ranks) for array in arrays)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.collective.gpu_launch import launch_broadcast  # late: only a GPU needs it

        return launch_broadcast(device, inputs, out, self.root_rank, self.ranks)


_FIELDS = {
    "send_rank_ids": "a list of ranks",
    "recv_rank_ids": "a list of ranks",
    "recv_shapes": "a tuple of shapes",
    "send_shapes": "a tuple of shapes",
    "recv_type": "an element type",
    "group": "the name of a group",
}
"""What NeighborExchange wants, in words."""


class NeighborExchange(Collective):
    """Sends operand i to rank `send_rank_ids[i]` and returns what comes from `recv_rank_ids`, as a tuple of
    tensors of `recv_shapes` and `recv_type`. A rank may only send, or only receive."""

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
        return self, _spread(args)

    def infer(self, *types: Type) -> Type:
        check_fields(self, _FIELDS)
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

    def meetings(self, rank: int, types: Sequence[Type]) -> list[Rendezvous]:
        """One with every rank that it sends to or hears from."""
        arriving = [TensorType(self.recv_type, tuple(shape)) for shape in self.recv_shapes]
        to = [message(rank, other, type) for other, type in zip(self.send_rank_ids, types, strict=True)]
        of = [message(other, rank, type) for other, type in zip(self.recv_rank_ids, arriving, strict=True)]
        return [meeting for meeting in to + of if meeting.ranks != (rank, rank)]

    @classmethod
    def sent_bytes(cls, operand: float, group: float) -> float:
        return operand

    def bprop(self, b: Builder, *operands_out_dout: Any) -> Sequence[Value | None]:
        """Gradients go back to where the tensors came from; all ranks differentiate their exchange."""
        *operands, out, dout = operands_out_dout
        sent: list[Value] = []
        for grad, type in zip(dout, element_types(out.type), strict=True):
            sent.append(Constant(np.zeros(type.shape), type.dtype) if grad is None else grad)
        back = replace(
            self,
            send_rank_ids=self.recv_rank_ids,
            recv_rank_ids=self.send_rank_ids,
            recv_shapes=tuple(value.shape for value in operands),
            send_shapes=(),
            recv_type=operands[0].tensor_type.dtype if operands else self.recv_type,
        )
        arrived = b.emit(back, *sent)
        return tuple(b.emit(TupleGetItem(i), arrived) for i in range(len(operands)))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        comm, ranks, dtype = be.comm, self.send_rank_ids, self.recv_type.numpy
        receives = [(r, tuple(s), dtype) for r, s in zip(self.recv_rank_ids, self.recv_shapes, strict=True)]
        return lambda *arrays: tuple(comm.exchange(list(zip(ranks, arrays, strict=True)), receives))

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.collective.gpu_launch import launch_exchange  # late: only a GPU needs it

        sends = list(zip(self.send_rank_ids, inputs, strict=True))
        receives = list(zip(self.recv_rank_ids, out, strict=True))
        return launch_exchange(device, sends, receives, self.rank_list)


class LayoutChange(Op, abstract=True):
    """The global tensor stays as it is; the ranks hold `source` before and `target` after."""

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

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return inputs[0]

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return same


class Redistribute(LayoutChange):
    """Brings a tensor from `source` to `target`; `lower_redistribution` replaces it by the cheapest steps."""

    def localize(self, placement: RankPlacement) -> Op:
        raise MspcError("Redistribute must be lowered before the graph is sliced", notes=["run lower_redistribution"])


class LocalSlice(LayoutChange):
    """A change of layout for which every rank takes a slice of what it holds; nothing is sent."""

    def localize(self, placement: RankPlacement) -> Op:
        shape = placement.in_types[0].shape
        if 0 in shape:  # every rank has all elements, whichever other dimensions are sharded
            return Reshape(self.target.local_shape(shape))
        old = self.source.slices_for(placement.rank, shape)
        new = self.target.slices_for(placement.rank, shape)
        begin = tuple(n.start - o.start for n, o in zip(new, old, strict=True))
        end = tuple(n.stop - o.start for n, o in zip(new, old, strict=True))
        return StridedSlice(begin=begin, end=end, strides=(1,) * len(shape))


def _spread(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Operands of a call that may hand them over as one tuple."""
    if not args:
        return ()
    first = args[0]
    return tuple(cast("Iterable[Any]", first)) if len(args) == 1 and isinstance(first, (tuple, list)) else args


def resized(op: Op, shape: tuple[int, ...], dim: int, times: int, parts: int) -> tuple[int, ...]:
    """A shape with `times` / `parts` as many elements along a dimension. Raises MspcError where that cannot be."""
    if not 0 <= dim < len(shape):
        raise MspcError(f"{op.name}: there is no dimension {dim} in shape {shape}", kind=IndexError)
    if shape[dim] % parts:
        raise MspcError(f"{op.name}: dimension {dim} is {shape[dim]}, which does not divide by {parts} ranks")
    return (*shape[:dim], shape[dim] * times // parts, *shape[dim + 1 :])
