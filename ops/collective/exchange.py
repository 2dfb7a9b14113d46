"""The free exchange of slices between ranks is one abstract operator here, with what it becomes on a rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType, Type
from mspc.ops.collective.collectives import NO_GRADIENT, LayoutChange, NeighborExchange
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import ArrayBackend, Op, RankPlacement
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.slicing import StridedSlice
from mspc.sharding.groups import group_name
from mspc.sharding.pieces import Box, RankExchange, rank_exchange, spans_one_dimension


class Exchange(LayoutChange):
    """A change of layout for which every rank sends each other rank the slice that it lacks.

    A rank runs one NeighborExchange, and PasteSlices or Concat where its new slice is made of several.
    """

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        (x,) = inputs
        part = rank_exchange(self.source, self.target, placement.in_types[0].shape, placement.rank)
        return exchanged(b, x, part, self.source.ranks)


def exchanged(
    b: Builder,
    x: Value,
    part: RankExchange,
    ranks: int,
    reason: str = "",
    shared: object = None,
    again: bool = False,
) -> Value:
    """The value that a rank holds after an exchange among `ranks` ranks, made from the one that it holds before.

    reason: what for, where the operator that is carried out has no reason of its own. shared: tells exchanges apart,
    alike on all ranks: operators that ask for equal ones of one value share them. again: with others that do not say so
    it shares what is received alone, and puts the slices together once more: they are small, and what they make is not
    saved for a gradient.
    """
    first = len(b.nodes)
    found = _exchanged(b, x, part, ranks, reason)
    if shared is not None:
        for place, node in enumerate(b.nodes[first:]):
            apart = again and not isinstance(node.op, (NeighborExchange, TupleGetItem))
            node.attrs["shared"] = (x, (shared, place, apart))
    return found


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
        everyone = tuple(range(ranks))
        exchange = NeighborExchange(
            send_rank_ids=tuple(rank for rank, _ in part.sends),
            recv_rank_ids=tuple(rank for rank, _ in part.receives),
            recv_shapes=tuple(box.within(box).end for _, box in part.receives),
            recv_type=x.tensor_type.dtype,
            group=group_name(everyone),
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

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        joined = be.xp.empty(self.shape, inputs[0].dtype)
        for begin, piece in zip(self.begins, inputs, strict=True):
            joined[tuple(slice(b, b + n) for b, n in zip(begin, piece.shape, strict=True))] = piece
        return joined

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.collective.gpu_launch import launch_paste  # late: only a GPU needs it

        return launch_paste(device, inputs, out, self.begins)
