"""Exchanges of slices between two layouts: pastes, halos of images, and meshes with permuted ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Axes, Layout, common_mesh, group_of, on_mesh
from mspc.ir.types import TensorType, Type
from mspc.ops import gpu
from mspc.ops.collective.base import Collective, Ranks, check_fields
from mspc.ops.collective.collectives import NO_GRADIENT, AllGather, AlltoAll, LayoutChange, NeighborExchange
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import Op, RankPlacement, RequestedSharding
from mspc.ops.tensor.creation import Fill
from mspc.ops.tensor.moving import Concat, Transpose
from mspc.ops.tensor.reshape import Reshape
from mspc.ops.tensor.slicing import StridedSlice
from mspc.sharding.groups import WORLD_GROUPS, group_name
from mspc.sharding.pieces import Box, RankExchange, rank_exchange, spans_one_dimension


class Exchange(LayoutChange):
    """A change of layout for which every rank sends each other rank the slice that it lacks.

    A rank runs one NeighborExchange, and PasteSlices or Concat if its new slice is made of several.
    """

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        (x,) = inputs
        part = rank_exchange(self.source, self.target, placement.in_types[0].shape, placement.rank)
        return exchanged(b, x, part, self.source.ranks)


def exchanged(
    b: Builder, x: Value, part: RankExchange, ranks: int, reason: str = "", shared: object = None, again: bool = False,
) -> Value:  # fmt: skip
    """Emit an exchange among `ranks` ranks and return the value after it. reason: purpose, if the operator has no
    reason of its own. shared: key of the exchange, equal on all ranks: operators with equal exchanges of one value
    share them. again: share the received slices only with operators that do not set it, and join the slices again: they
    are small, and the joined value is not saved for a gradient."""
    first = len(b.nodes)
    found = _exchanged(b, x, part, ranks, reason)
    if shared is not None:
        for place, node in enumerate(b.nodes[first:]):
            apart = again and not isinstance(node.op, (NeighborExchange, TupleGetItem))
            node.attrs["shared"] = (x, (shared, place, apart))
    return found


@cache
def _world(ranks: int) -> tuple[tuple[int, ...], str]:
    """Return all ranks, and the name of their group: of thousands of ranks each has an exchange among all."""
    everyone = tuple(range(ranks))
    return everyone, group_name(everyone)


def _exchanged(b: Builder, x: Value, part: RankExchange, ranks: int, reason: str) -> Value:
    cuts: dict[Box, Value] = {part.old: x}

    def sliced(box: Box) -> Value:
        if box not in cuts:
            local = box.within(part.old)
            strides = (1,) * len(local.begin)
            cuts[box] = b.emit(StridedSlice(begin=local.begin, end=local.end, strides=strides), x)
        return cuts[box]

    pieces = [(part.stays, sliced(part.stays))] if part.stays is not None else []
    if part.sends or part.receives:
        everyone, group = _world(ranks)
        exchange = NeighborExchange(
            send_rank_ids=tuple(rank for rank, _ in part.sends),
            recv_rank_ids=tuple(rank for rank, _ in part.receives),
            recv_shapes=tuple(box.within(box).end for _, box in part.receives),
            recv_type=x.tensor_type.dtype,
            group=group,
            rank_list=everyone,
        )
        received = b.emit(exchange, *(sliced(box) for _, box in part.sends))
        if reason:
            received.attrs["reason"] = reason
        pieces += [(box, b.emit(TupleGetItem(i), received)) for i, (_, box) in enumerate(part.receives)]
    if not pieces:
        return b.constant(np.zeros(part.new.within(part.new).end), x.tensor_type.dtype)
    pieces.sort(key=lambda piece: piece[0].begin)
    if len(pieces) == 1:
        return pieces[0][1]
    values = [value for _, value in pieces]
    axis = spans_one_dimension([box for box, _ in pieces], part.new)
    if axis is not None:
        return b.emit(Concat(axis=axis), *values)
    begins = tuple(box.within(part.new).begin for box, _ in pieces)
    return b.emit(PasteSlices(shape=part.new.within(part.new).end, begins=begins), *values)


class PasteSlices(Op):
    """A new tensor of `shape` made of the operands, operand i with its first element at `begins[i]`.

    The operands must cover it and not overlap.
    """

    takes_complex = True
    shape: tuple[int, ...] = ()
    begins: tuple[tuple[int, ...], ...] = ()
    bprop = NO_GRADIENT

    def rule(self, *types: TensorType) -> str:
        raise MspcError("PasteSlices works on the slices of one rank and cannot be sharded")

    def infer(self, *types: Type) -> Type:
        tensors = [t for t in types if isinstance(t, TensorType)]
        if not tensors or len(tensors) != len(types) or len(types) != len(self.begins):
            raise MspcError(f"PasteSlices: {len(types)} operands for {len(self.begins)} places")
        for index, (tensor, begin) in enumerate(zip(tensors, self.begins, strict=True)):
            ends = [b + n for b, n in zip(begin, tensor.shape, strict=False)]
            fits = len(begin) == len(tensor.shape) == len(self.shape)
            if not fits or any(end > n for end, n in zip(ends, self.shape, strict=True)):
                place = f"into {self.shape} at {begin}"
                raise MspcError(f"PasteSlices: input {index} of shape {tensor.shape} does not fit {place}")
        if sum(t.size for t in tensors) != TensorType(tensors[0].dtype, self.shape).size:
            raise MspcError(f"PasteSlices: the operands do not make up shape {self.shape}")
        return tensors[0].with_shape(self.shape)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        joined = xp.empty(self.shape, inputs[0].dtype)
        for begin, piece in zip(self.begins, inputs, strict=True):
            joined[tuple(slice(b, b + n) for b, n in zip(begin, piece.shape, strict=True))] = piece
        return joined

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return gpu.gpu_launch.launch_paste(device, inputs, out, self.begins)


@dataclass(frozen=True, slots=True)
class Regrouping:
    """The two collectives of a change of layout. lost, gained: for each dimension, the axes that stop and those that
    begin to shard it, major to minor. moved: axes that do both. gathered: axes that only stop."""

    mesh: tuple[int, ...]
    lost: tuple[Axes, ...]
    gained: tuple[Axes, ...]
    moved: Axes
    gathered: Axes


@cache
def regrouping(source: Layout, target: Layout) -> Regrouping | None:
    """Return how to go from `source` to `target` by one all-to-all and one gather, or None."""
    mesh = common_mesh(source.mesh, target.mesh)
    if mesh is None or source.partial or target.partial:
        return None
    lost: list[Axes] = []
    gained: list[Axes] = []
    for before, after in zip(on_mesh(source, mesh)[0], on_mesh(target, mesh)[0], strict=True):
        same = min(len(before), len(after))
        if before[:same] != after[:same]:
            return None
        lost.append(before[same:])
        gained.append(after[same:])
    moved, stopping = sum(gained, ()), sum(lost, ())
    if not moved or not {*moved} <= {*stopping}:
        return None
    return Regrouping(mesh, tuple(lost), tuple(gained), moved, tuple(a for a in stopping if a not in moved))


class Regroup(LayoutChange):
    """A change of layout by one AlltoAll and one AllGather, between transpositions on each rank."""

    def localize(self, placement: RankPlacement) -> Op:
        raise AssertionError("it expands to several operators")

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        plan = regrouping(self.source, self.target)
        assert plan is not None, f"{self.source} does not go to {self.target} by one all-to-all and one gather"
        (x,), mesh = inputs, plan.mesh

        def sizes(axes: Axes) -> list[int]:
            return [mesh[a] for a in axes]

        def group(axes: Axes) -> tuple[int, ...]:
            return group_of(mesh, axes, placement.rank)

        count = math.prod(sizes(plan.moved))
        rest = [n // math.prod(sizes(axes)) for n, axes in zip(x.shape, plan.gained, strict=True)]
        divided: list[int] = []
        own: list[int] = []
        for n, axes in zip(rest, plan.gained, strict=True):
            divided += [*sizes(axes), n]
            own.append(len(divided) - 1)
        front = [place for place in range(len(divided)) if place not in own]  # the axes in the order of `moved`
        apart = b.emit(Transpose(perm=(*front, *own)), b.emit(Reshape(tuple(divided)), x))
        exchange = AlltoAll(split_count=count, split_dim=0, concat_dim=0).with_ranks(group(plan.moved))
        arrived = b.emit(exchange, b.emit(Reshape((count, *rest)), apart))
        if plan.gathered:
            arrived = b.emit(AllGather(axis=0).with_ranks(group(plan.gathered)), arrived)
        axes = (*plan.gathered, *plan.moved)
        order: list[int] = []
        for dim, lost in enumerate(plan.lost):
            order += [*map(axes.index, lost), len(axes) + dim]
        placed = b.emit(Transpose(perm=tuple(order)), b.emit(Reshape((*sizes(axes), *rest)), arrived))
        joined = [n * math.prod(sizes(lost)) for n, lost in zip(rest, plan.lost, strict=True)]
        return b.emit(Reshape(tuple(joined)), placed)


PLACES = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
"""Positions of the neighbours, (down, right): above, then clockwise."""


class NeighborExchangeV2(Collective):
    """x [n, c, h, w] extended by halos from its neighbours. send_rank_ids, recv_rank_ids: the ranks above, above right,
    right, and so on clockwise, to and from which halos are sent; -1 for none. send_lens, recv_lens: numbers of rows at
    the top and bottom, and columns at the left and right of a halo. A side without a received halo does not change; a
    corner is present if both its sides are, and zero if no rank sends it."""

    send_rank_ids: Ranks = ()
    send_lens: tuple[int, ...] = ()
    recv_rank_ids: Ranks = ()
    recv_lens: tuple[int, ...] = ()
    data_format: str = "NCHW"
    group: str = WORLD_GROUPS[0]
    rank_list: Ranks = ()
    ordered = False
    checks_where_called = True
    named = ("send_rank_ids", "recv_rank_ids")
    sequences = dict.fromkeys(("send_rank_ids", "send_lens", "recv_rank_ids", "recv_lens"), list)
    is_several = True
    omitted = ("group", "rank_list")

    def infer(self, *types: Type) -> Type:
        self._check_fields()
        x = types[0] if len(types) == 1 else None
        if not isinstance(x, TensorType) or len(x.shape) != 4:
            raise MspcError(
                f"{self.name} takes one tensor of 4 dimensions, not {', '.join(map(str, types))}", code="E0301"
            )
        n, c, height, width = x.shape
        for place, rank in zip(PLACES, self.send_rank_ids, strict=True):
            if rank >= 0 and any(sum(_lengths(self.send_lens, side)) > size for side, size in
                                 zip(_sides(place), (height, width), strict=True)):  # fmt: skip
                raise MspcError(f"{self.name}: send_lens {self.send_lens} is more than the tensor {x.shape} has")
        above, below, left, right = self._received
        return x.with_shape((n, c, above + height + below, left + width + right))

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        (x,) = inputs
        pieces = {place: x if place == (0, 0) else None for place in ((0, 0), *PLACES)}
        sent = [(rank, place) for rank, place in zip(self.send_rank_ids, PLACES, strict=True) if rank >= 0]
        come = [(rank, place) for rank, place in zip(self.recv_rank_ids, PLACES, strict=True) if rank >= 0]
        if sent or come:
            exchange = NeighborExchange(
                send_rank_ids=tuple(rank for rank, _ in sent),
                recv_rank_ids=tuple(rank for rank, _ in come),
                recv_shapes=tuple(self._shape(x, place) for _, place in come),
                recv_type=x.tensor_type.dtype,
                group=self.group,
                rank_list=self.rank_list,
            )
            arrived = b.emit(exchange, *(self._border(b, x, place) for _, place in sent))
            pieces |= {place: b.emit(TupleGetItem(i), arrived) for i, (_, place) in enumerate(come)}
        above, below, left, right = self._received
        down = [-1] * bool(above) + [0] + [1] * bool(below)
        across = [-1] * bool(left) + [0] + [1] * bool(right)
        rows = [_joined(b, 3, [pieces[i, j] or self._nothing(b, x, (i, j)) for j in across]) for i in down]
        return (_joined(b, 2, rows),)

    def _check_fields(self) -> None:
        check_fields(self)
        if self.data_format != "NCHW":
            raise MspcError(f"{self.name}: data_format is {self.data_format!r}; it must be 'NCHW'", kind=ValueError)
        for name, count in (("send_rank_ids", 8), ("send_lens", 4), ("recv_rank_ids", 8), ("recv_lens", 4)):
            given, least = getattr(self, name), -1 if count == 8 else 0
            if len(given) != count or min(given) < least:
                message = f"{self.name}: {name} must be {count} numbers from {least}, not {given}"
                raise MspcError(message, kind=ValueError)
            ranks = [rank for rank in given if rank >= 0]
            if count == 8 and (len(set(ranks)) < len(ranks) or (self.rank_list and not {*ranks} <= {*self.rank_list})):
                message = f"{self.name}: {name} {given} must be different ranks of the group"
                raise MspcError(message, notes=[f"the group has {len(self.rank_list)} ranks"], kind=ValueError)
        for corner in (1, 3, 5, 7):
            if self.recv_rank_ids[corner] >= 0 and -1 in (self.recv_rank_ids[corner - 1],
                                                          self.recv_rank_ids[(corner + 1) % 8]):  # fmt: skip
                message = f"{self.name}: recv_rank_ids {self.recv_rank_ids} has a corner without both its sides"
                raise MspcError(message, kind=ValueError)

    @property
    def _received(self) -> tuple[int, ...]:
        """Rows above and below, columns to the left and to the right that come."""
        sides = (self.recv_rank_ids[i] for i in (0, 4, 6, 2))
        return tuple(length if rank >= 0 else 0 for rank, length in zip(sides, self.recv_lens, strict=True))

    def _shape(self, x: Value, place: tuple[int, int]) -> tuple[int, ...]:
        """Return the shape of the border from a neighbour."""
        found = [_lengths(self.recv_lens, side) for side in _sides(place)]
        return (*x.shape[:2], *(sum(own) if own else size for own, size in zip(found, x.shape[2:], strict=True)))

    def _border(self, b: Builder, x: Value, place: tuple[int, int]) -> Value:
        """Return the halo for a neighbour."""
        begin, end = [0, 0], list(x.shape[2:])
        for axis, (toward, side) in enumerate(zip(place, _sides(place), strict=True)):
            length = sum(_lengths(self.send_lens, side))
            if toward < 0:
                end[axis] = length
            elif toward > 0:
                begin[axis] = end[axis] - length
        return b.emit(StridedSlice(begin=(0, 0, *begin), end=(*x.shape[:2], *end), strides=(1,) * 4), x)

    def _nothing(self, b: Builder, x: Value, place: tuple[int, int]) -> Value:
        return b.emit(Fill(x.tensor_type.dtype, self._shape(x, place), 0.0))


def _sides(place: tuple[int, int]) -> tuple[int, int]:
    """Return which of the four lengths a neighbour's border has downwards and across; -1 for all of the tensor."""
    down, right = place
    return {-1: 0, 0: -1, 1: 1}[down], {-1: 2, 0: -1, 1: 3}[right]


def _lengths(lengths: Sequence[int], side: int) -> tuple[int, ...]:
    return () if side < 0 else (lengths[side],)


def _joined(b: Builder, axis: int, parts: Sequence[Value]) -> Value:
    return parts[0] if len(parts) == 1 else b.emit(Concat(axis=axis), *parts)
