"""Slices of an exchange are received where they belong, so that no more than source and target are alive.

Input:  %1 = NeighborExchange(%0); %2 = TupleGetItem(%1); %3 = PasteSlices(%kept, %2), or Concat.
Output: the kernel of %1 makes the tensor %3 and receives into its parts, which %2 shows; the kernel of %3 only puts
        the slices that came from elsewhere to theirs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node, Value
from mspc.ops.collective.collectives import NeighborExchange
from mspc.ops.collective.exchange import PasteSlices
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.tensor.moving import Concat
from mspc.runtime.backend import NumPyBackend

Array = Any
Place = tuple[slice, ...]
Readers = Mapping[Value, Sequence[Node]]


def arrival_kernels(graph: Graph, backend: NumPyBackend) -> dict[int, Callable[..., Any]]:
    """Kernels of exchanges and of the operators that join their slices, by the index of their node."""
    nodes = graph.nodes
    exchanges = [index for index, node in enumerate(nodes) if isinstance(node.op, NeighborExchange)]
    if not exchanges or backend.xp is not np:
        return {}
    position = {node: index for index, node in enumerate(nodes)}
    readers: dict[Value, list[Node]] = {}
    for node in nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    kernels: dict[int, Callable[..., Any]] = {}
    for index in exchanges:
        join = _joined_by(nodes[index], readers, graph.results)
        if join is None or position[join] in kernels:
            continue
        arrival = _Arrival(nodes[index], join, backend)
        kernels[index], kernels[position[join]] = arrival.receive, arrival.complete
    return kernels


class _Arrival:
    """One exchange and the operator that joins its slices; `target` lives from one to the other."""

    def __init__(self, exchange: Node, join: Node, backend: NumPyBackend) -> None:
        op: Any = exchange.op
        self._comm = backend.comm
        self._send_to: tuple[int, ...] = op.send_rank_ids
        self._shape, self._dtype = join.shape, join.tensor_type.dtype.numpy
        self._target: Array = None
        arrivals: dict[int, Place] = {}
        self._others: list[tuple[int, Place]] = []
        for operand, (value, place) in enumerate(zip(join.inputs, _places(join), strict=True)):
            item = _item_of(value, exchange)
            if item is None:
                self._others.append((operand, place))
            else:
                arrivals[item] = place
        self._arrivals = [(rank, arrivals[i]) for i, rank in enumerate(op.recv_rank_ids)]

    def receive(self, *arrays: Array) -> tuple[Array, ...]:
        """The kernel of the exchange: the slices that arrive, each a part of the target."""
        self._target = np.empty(self._shape, self._dtype)
        parts = [(rank, self._target[place]) for rank, place in self._arrivals]
        self._comm.exchange_into(list(zip(self._send_to, arrays, strict=True)), parts)
        return tuple(part for _, part in parts)

    def complete(self, *pieces: Array) -> Array:
        """The kernel of the operator that joins: the target with the other slices in it."""
        target, self._target = self._target, None
        for i, place in self._others:
            target[place] = pieces[i]
        return target


def _joined_by(exchange: Node, readers: Readers, results: Sequence[Value]) -> Node | None:
    """The PasteSlices or Concat that alone reads the slices, each once; None where there is no such operator."""
    op = exchange.op
    items = readers.get(exchange, ())
    joins = dict.fromkeys(join for item in items for join in readers.get(item, ()))
    if not isinstance(op, NeighborExchange) or len(joins) != 1 or any(v in results for v in (exchange, *items)):
        return None
    (join,) = joins
    read = sorted(i for value in join.inputs if (i := _item_of(value, exchange)) is not None)
    every = len(items) == len(op.recv_rank_ids) and read == list(range(len(items)))
    return join if every and isinstance(join.op, PasteSlices | Concat) else None


def _item_of(value: Value, exchange: Node) -> int | None:
    """The index of the slice of `exchange` that `value` is, None where it is something else."""
    if isinstance(value, Node) and isinstance(value.op, TupleGetItem) and value.inputs[0] is exchange:
        return value.op.index
    return None


def _places(join: Node) -> Iterator[Place]:
    """The place of each operand of a PasteSlices or Concat in the result."""
    shapes = [value.shape for value in join.inputs]
    if isinstance(join.op, PasteSlices):
        begins = join.op.begins
    else:
        assert isinstance(join.op, Concat)
        axis = join.op.axis % len(join.shape)
        starts = itertools.accumulate((shape[axis] for shape in shapes[:-1]), initial=0)
        begins = tuple((*[0] * axis, start, *[0] * (len(join.shape) - axis - 1)) for start in starts)
    for begin, shape in zip(begins, shapes, strict=True):
        yield tuple(slice(b, b + n) for b, n in zip(begin, shape, strict=True))
