"""Agreement of ranks, before their first step, that all can start and that their graphs match."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError, ranks_listed, shown_ranks
from mspc.ir.graph import Graph, Node, Value
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import NeighborExchange
from mspc.ops.collective.exchange import PasteSlices
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.tensor.moving import Concat
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import Communicator, fingerprint
from mspc.runtime.faults.record import StoppedByOther


def agree(comm: Communicator, compile_id: str, folder: str = "") -> None:
    """Check that all ranks have graphs of one compile; all ranks call this before their first step. Raise MspcError if
    some have graphs of another; status 2."""
    if comm.size == 1:
        return
    everyone = tuple(range(comm.size))
    own = fingerprint(compile_id)
    found = comm.all_gather(own[None], everyone, 0)
    different = [rank for rank in everyone if not np.array_equal(found[rank], found[0])]
    if not different:
        return
    raise MspcError(
        f"the ranks hold graphs of different compiles: {ranks_listed(different, 8)} "
        f"and rank 0 differ; rank {comm.rank} holds {compile_id}" + (f" from {folder}" if folder else ""),
        notes=["compile once and run that on all ranks; a script must build the same network on every rank"],
    )


def stop_together(comm: Communicator, error: MspcError | None) -> None:
    """Raise on every rank if one rank cannot start, so that no rank waits for it; all ranks call this together. Raise
    `error` if it is this rank's own, StoppedByOther if another rank has one."""
    if comm.size == 1:
        if error is not None:
            raise error
        return
    found = comm.all_gather(np.array([error is not None]), tuple(range(comm.size)), 0)
    if error is not None:
        raise error
    if found.any():
        raise StoppedByOther(f"rank {int(np.argmax(found))} cannot start")


def agree_on_collectives(comm: Communicator, graph: Graph) -> None:
    """Check that the ranks' graphs agree on every collective: operator, attributes, types and group, in the same order.
    All ranks call this before a graph's first step. Ranks may have different graphs, or edited files. Raise MspcError
    with status 2 if ranks disagree, StoppedByOther if another rank reports it."""
    if comm.size == 1:
        return
    own = _schedule(graph, comm.rank)
    digests = {key: hashlib.sha256("\n".join(said).encode()).hexdigest()[:32] for key, (said, _) in own.items()}
    of_ranks = gathered(comm, digests)
    for key in sorted({key for found in of_ranks for key in found}):
        ranks = [int(rank) for rank in key.partition(";")[0].split()]
        wrong = [rank for rank in ranks if rank >= comm.size]
        if wrong:
            raise MspcError(f"a collective names rank {wrong[0]}; the ranks are 0 to {comm.size - 1}")
        if len({of_ranks[rank].get(key) for rank in ranks}) > 1:
            _raise_difference(comm, key, ranks, own.get(key, ([], [])))


RankSchedule = dict[str, tuple[list[str], list[Node]]]
"""A rank's collectives in order, as descriptions and nodes, by group of ranks."""


def _schedule(graph: Graph, rank: int) -> RankSchedule:
    found: RankSchedule = {}
    _add_rendezvous(graph, rank, "", found)
    return found


def _add_rendezvous(graph: Graph, rank: int, inside: str, found: RankSchedule) -> None:
    """Add the collectives of a graph. inside: text about the enclosing nodes, such as " in the body of For of 3
    turns"."""
    for node in graph.nodes:
        for name, region in zip(getattr(node.op, "region_names", ()), node.regions, strict=False):
            turns = getattr(node.op, "turns", -1)
            counted = f" of {turns} turns" if turns >= 0 else ""
            _add_rendezvous(region, rank, f" in the {name} of {node.op.name}{counted}{inside}", found)
        if not isinstance(node.op, Collective):
            continue
        for ranks, label, said in node.op.rendezvous(rank, [value.type for value in node.inputs]):
            if len(ranks) < 2:
                continue
            texts, nodes = found.setdefault(f"{' '.join(map(str, ranks))};{label}", ([], []))
            texts.append(said + inside)
            nodes.append(node)


def gathered(comm: Communicator, own: Any) -> list[Any]:
    """Return the values of all ranks, by rank; they are sent as JSON."""
    everyone = tuple(range(comm.size))
    data = np.frombuffer(json.dumps(own).encode(), np.uint8)
    sizes = comm.all_gather(np.array([data.size]), everyone, 0)
    padded = np.zeros((1, int(sizes.max())), np.uint8)
    padded[0, : data.size] = data
    rows = comm.all_gather(padded, everyone, 0)
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def _raise_difference(comm: Communicator, key: str, ranks: Sequence[int], own: tuple[list[str], list[Node]]) -> None:
    """Raise the error of ranks that disagree; the first rank that differs from the group's first rank reports it."""
    texts, nodes = own
    said = gathered(comm, texts)
    first = ranks[0]
    other = next(rank for rank in ranks if said[rank] != said[first])
    if comm.rank != other:
        raise StoppedByOther(f"rank {other} has other collectives than rank {first}")
    length = max(len(said[first]), len(said[other]))
    at = next(i for i in range(length) if said[first][i : i + 1] != said[other][i : i + 1])
    label = key.partition(";")[2]
    of = [", ".join(said[rank][at : at + 1]) or "nothing more" for rank in (first, other)]
    frames = nodes[at].frames if at < len(nodes) else ()
    alike = "ranks that meet must call the same collectives, with the same group and types, in one order"
    paired = "another rank must receive each message, with the same type and tag, in the same order, and nothing else"
    raise MspcError(
        f"the ranks' graphs do not fit together: as number {at + 1} of "
        f"{label or f'the collectives of {shown_ranks(ranks)}'}, rank {first} has {of[0]} and rank {other} {of[1]}",
        notes=[paired if label else alike],
        frames=frames, code="E0804",
    )


# Slices of an exchange are received in their final memory, so that only source and target are live.
#
# Input:  %1 = NeighborExchange(%0); %2 = TupleGetItem(%1); %3 = PasteSlices(%kept, %2), or Concat.
# Output: the kernel of %1 makes the tensor %3 and receives into its parts, which %2 aliases; the kernel of %3 only
# copies the other slices to their places.


Array = Any
Place = tuple[slice, ...]
Readers = Mapping[Value, Sequence[Node]]


def arrival_kernels(graph: Graph, backend: NumPyBackend) -> dict[int, Callable[..., Any]]:
    """Return the kernels of exchanges, and of the operators that join their slices, by node index."""
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
    """Exchange and the operator that joins its slices; `target` is live from one to the other."""

    def __init__(self, exchange: Node, join: Node, backend: NumPyBackend) -> None:
        op: Any = exchange.op
        self._comm = backend.comm
        self._send_to: tuple[int, ...] = op.send_rank_ids
        self._shape, self._dtype = join.shape, join.tensor_type.dtype.numpy
        self._target: Array = None
        arrivals: dict[int, Place] = {}
        self._others: list[tuple[int, Place]] = []
        for operand, (value, place) in enumerate(zip(join.inputs, _places(join), strict=True)):
            item = _slice_index(value, exchange)
            if item is None:
                self._others.append((operand, place))
            else:
                arrivals[item] = place
        self._arrivals = [(rank, arrivals[i]) for i, rank in enumerate(op.recv_rank_ids)]

    def receive(self, *arrays: Array) -> tuple[Array, ...]:
        """Run the exchange and return the received slices, each a view of the target."""
        self._target = np.empty(self._shape, self._dtype)
        parts = [(rank, self._target[place]) for rank, place in self._arrivals]
        self._comm.exchange_into(list(zip(self._send_to, arrays, strict=True)), parts)
        return tuple(part for _, part in parts)

    def complete(self, *pieces: Array) -> Array:
        """Run the joining operator: return the target completed by the other slices."""
        target, self._target = self._target, None
        for i, place in self._others:
            target[place] = pieces[i]
        return target


def _joined_by(exchange: Node, readers: Readers, results: Sequence[Value]) -> Node | None:
    """Return the PasteSlices or Concat that is the only reader of the slices, and reads each once; else None."""
    op = exchange.op
    items = readers.get(exchange, ())
    joins = dict.fromkeys(join for item in items for join in readers.get(item, ()))
    if not isinstance(op, NeighborExchange) or len(joins) != 1 or any(v in results for v in (exchange, *items)):
        return None
    (join,) = joins
    read = sorted(i for value in join.inputs if (i := _slice_index(value, exchange)) is not None)
    every = len(items) == len(op.recv_rank_ids) and read == list(range(len(items)))
    return join if every and isinstance(join.op, PasteSlices | Concat) else None


def _slice_index(value: Value, exchange: Node) -> int | None:
    """Return the index of a value among the slices of `exchange`, or None."""
    if isinstance(value, Node) and isinstance(value.op, TupleGetItem) and value.inputs[0] is exchange:
        return value.op.index
    return None


def _places(join: Node) -> Iterator[Place]:
    """Yield the position of each operand of a PasteSlices or Concat in the result."""
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
