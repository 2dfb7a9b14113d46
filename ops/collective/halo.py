"""The exchange of borders between neighbours in a plane is made of several operators."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType, Type
from mspc.ops.collective.base import Collective, Ranks, check_fields
from mspc.ops.collective.collectives import NeighborExchange
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import RequestedSharding
from mspc.ops.tensor.creation import Fill
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.slicing import StridedSlice
from mspc.sharding.groups import WORLD_GROUPS

PLACES = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
"""Where the neighbours are, (down, right): above, then clockwise."""


class NeighborExchangeV2(Collective):
    """x [n, c, h, w] with the borders of its neighbours around it.

    send_rank_ids, recv_rank_ids: the ranks above, above to the right, to the right, and so on clockwise, to which a
    border goes and from which one comes; -1 for none. send_lens, recv_lens: how many rows above and below, columns to
    the left and to the right a border has. A side from which nothing comes stays as it is; a corner is there where both
    its sides are, zero where no rank sends it.
    """

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
    sequences = dict.fromkeys(
        ("send_rank_ids", "send_lens", "recv_rank_ids", "recv_lens"), list
    )
    is_several = True
    omitted = ("group", "rank_list")

    def infer(self, *types: Type) -> Type:
        self._check_fields()
        x = types[0] if len(types) == 1 else None
        if not isinstance(x, TensorType) or len(x.shape) != 4:
            raise MspcError(f"{self.name} takes one tensor of 4 dimensions, not {', '.join(map(str, types))}")
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
        check_fields(self, _WANTED)
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
        """The shape of what comes from a neighbour."""
        found = [_lengths(self.recv_lens, side) for side in _sides(place)]
        return (*x.shape[:2], *(sum(own) if own else size for own, size in zip(found, x.shape[2:], strict=True)))

    def _border(self, b: Builder, x: Value, place: tuple[int, int]) -> Value:
        """What goes to a neighbour."""
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


_WANTED = {
    "send_rank_ids": "a list of ranks", "recv_rank_ids": "a list of ranks", "send_lens": "a list of integers",
    "recv_lens": "a list of integers", "data_format": "a string", "group": "the name of a group",
}  # fmt: skip


def _sides(place: tuple[int, int]) -> tuple[int, int]:
    """Which of the four lengths a neighbour's border has downwards and across; -1 for all of the tensor."""
    down, right = place
    return {-1: 0, 0: -1, 1: 1}[down], {-1: 2, 0: -1, 1: 3}[right]


def _lengths(lengths: Sequence[int], side: int) -> tuple[int, ...]:
    return () if side < 0 else (lengths[side],)


def _joined(b: Builder, axis: int, parts: Sequence[Value]) -> Value:
    return parts[0] if len(parts) == 1 else b.emit(Concat(axis=axis), *parts)
