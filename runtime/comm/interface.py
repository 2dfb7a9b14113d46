"""Interface of communicators, which kernels use, and the combination of the ranks' values.

All implementations combine values with `combine`, in the order of the group's ranks, so that every rank gets the same
bits and a simulation gives the bits of a run under MPI.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, cast

import numpy as np

from mspc.ir.diagnostics import ExecutionError
from mspc.ir.graph import Node
from mspc.ops.collective.base import Collective

Array = Any
"""Array of the backend's array module."""

Ranks = tuple[int, ...]
"""Members of a group; their order is the order of slices in gathers and scatters."""

GRAPH_CHANNELS = 16
"""Channel of graph 0; lower channels are for communication outside of graphs."""

SIDE_CHANNEL_OFFSET = 1 << 20
"""Offset of the channel for agreements of a graph's ranks from the graph's own channel."""

_COMBINE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
_NARROW = ("float16", "bfloat16")


class Communicator(Protocol):
    """Collectives of one rank. Every member of a group calls the same operation in the same order.

    Results are fresh arrays. `ranks` always contains the calling rank. `op` is one of sum, max, min, prod.
    """

    rank: int
    size: int

    def all_reduce(self, array: Array, op: str, ranks: Ranks) -> Array:
        """Return the members' arrays combined, in the array's own shape."""

    def all_gather(self, array: Array, ranks: Ranks, axis: int = 0) -> Array:
        """Return the members' arrays joined along `axis`."""

    def reduce_scatter(self, array: Array, op: str, ranks: Ranks, axis: int = 0) -> Array:
        """Return this rank's slice along `axis` of the members' arrays combined."""

    def all_to_all(self, array: Array, ranks: Ranks, split_dim: int, concat_dim: int) -> Array:
        """Send slice i of `array` along `split_dim` to member i; return the received slices joined along
        `concat_dim`."""

    def exchange(
        self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, tuple[int, ...], Any]]
    ) -> list[Array]:
        """Send arrays to ranks and receive from (rank, shape, dtype); the order of arrays between two ranks is kept.

        An array to the calling rank itself is allowed.
        """

    def exchange_into(self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        """Exchange arrays like `exchange`, but receive into existing arrays (rank, array), which share no memory with
        the sent ones. Arrays need not be contiguous; no memory of their size is allocated."""

    def broadcast(self, array: Array, root: int, ranks: Ranks) -> Array:
        """Return the array of `root` (a member's rank); on the others `array` gives shape and dtype."""

    def send(self, array: Array, rank: int, tag: int = 0) -> None: ...

    def receive(self, rank: int, tag: int, shape: tuple[int, ...], dtype: Any) -> Array: ...

    def barrier(self, ranks: Ranks) -> None:
        """Return once every member has called it."""

    def for_graph(self, number: int) -> Communicator:
        """Return the communicator of a graph, by its number in the job: messages of different graphs never mix."""

    def beside(self) -> Communicator:
        """Return another communicator of the same graph, for agreements of ranks besides the graph's collectives."""

    def say(self, text: str) -> None:
        """Announce this rank's last action, followed by one note per line, for error messages of ranks that wait for
        it; "" clears."""


class Exchanging:
    """Mixin that implements `exchange` by `exchange_into`."""

    def exchange_into(self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        """See `Communicator`."""
        raise NotImplementedError

    def exchange(
        self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, tuple[int, ...], Any]]
    ) -> list[Array]:
        """See `Communicator`."""
        found = [np.empty(shape, dtype) for _, shape, dtype in receives]
        self.exchange_into(sends, [(source, array) for (source, _, _), array in zip(receives, found, strict=True)])
        return found


def combine(parts: Sequence[Array], op: str) -> Array:
    """Return the arrays combined in order, as a fresh array of their dtype; half precision is accumulated in Float32.
    Raise ValueError if `op` is not one of sum, max, min, prod."""
    if op not in _COMBINE:
        raise ValueError(f"cannot combine with {op!r}; known are {', '.join(_COMBINE)}")
    function = _COMBINE[op]
    first = np.asarray(parts[0])
    if first.dtype == bool:
        function = {"sum": np.logical_or, "max": np.logical_or}.get(op, np.logical_and)
    wide = first.dtype.name in _NARROW and op in ("sum", "prod")
    total = np.array(first, dtype=np.float32 if wide else first.dtype)
    for part in parts[1:]:
        function(total, part, out=total)
    return total.astype(first.dtype) if wide else total


def pieces(array: Array, count: int, axis: int) -> list[Array]:
    """Return `array` split into `count` equal contiguous slices along `axis`. Raise ValueError if `count` does not
    divide the dimension."""
    array = np.asarray(array)
    if array.shape[axis] % count:
        raise ValueError(f"dimension {axis} of shape {array.shape} does not divide by {count} ranks")
    return [np.ascontiguousarray(piece) for piece in np.split(array, count, axis)]


def fingerprint(text: str) -> Array:
    """Return a digest of `text` as an Int64 array of shape (4,), to be compared between ranks."""
    return np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.int64)


# Ranks that communicate inside a node with regions must take the same path: the same branch, and equally many
# iterations.
#
# A rank on another path misses a collective, and the others may match its next one with theirs. So a rank with
# collectives inside reports its path to the ranks of these groups, on a side channel: before a branch and a counted
# loop, and after a loop with a condition. That is one small message per run, none per iteration. If a rank waits there
# in vain, because another is still inside, the error message names it with its report.


Check = Callable[[int], None]
"""Function called with this rank's path: a branch or a number of iterations. Raises ExecutionError if ranks differ."""

_LONGEST = 256
"""Maximum bytes of a rank's report."""


def path_check(node: Node, comm: Communicator, said: Callable[[int], str]) -> Check | None:
    """Return a function that compares this rank's path through the node with that of the ranks it communicates with
    inside, or None if there are none. said: describes a path as an action of the rank: "has left While after 3
    turns"."""
    groups = groups_inside(node, comm.rank) if comm.size > 1 else []
    if not groups:
        return None
    beside = comm.beside()
    name = zlib.crc32(node.regions[-1].name.encode())

    def check(way: int) -> None:
        beside.say(f"{said(way)}\n{_note(groups)}")
        for ranks in groups:
            found = beside.all_gather(np.array([[name, way]], np.int64), ranks, 0)
            other = next((i for i in range(len(ranks)) if (found[i] != found[0]).any()), 0)
            if other:
                padded = np.frombuffer(said(way).encode()[:_LONGEST].ljust(_LONGEST), np.uint8)
                rows = beside.all_gather(padded[None], ranks, 0)
                one, two = (rows[i].tobytes().decode(errors="ignore").rstrip() for i in (0, other))
                raise ExecutionError(f"rank {ranks[0]} {one}, but rank {ranks[other]} {two}", notes=[_note(groups)])
        beside.say("")

    return check


def groups_inside(node: Node, rank: int) -> list[Ranks]:
    """Return the groups in which a rank communicates inside a node, in ascending order, equal on all ranks."""
    found: set[Ranks] = set()
    for inner in collectives_of([node]):
        types = [value.type for value in inner.inputs]
        found |= {tuple(sorted(meeting.ranks)) for meeting in cast(Collective, inner.op).rendezvous(rank, types)}
    return sorted(ranks for ranks in found if len(ranks) > 1)


def collectives_of(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield the collectives among nodes and in all their regions."""
    own = list(nodes)
    regions = dict.fromkeys(region for node in own for region in node.regions)
    graphs = dict.fromkeys(graph for region in regions for graph in region.graphs())
    for node in (*own, *(node for graph in graphs for node in graph.nodes)):
        if isinstance(node.op, Collective):
            yield node


def _note(groups: list[Ranks]) -> str:
    ranks = ", ".join(map(str, sorted({rank for group in groups for rank in group})[:16]))
    return f"ranks {ranks} meet inside: there a condition or a number of turns must be the same on all of them"
