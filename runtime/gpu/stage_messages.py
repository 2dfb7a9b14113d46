"""Messages between pipeline stages, written directly to the receiver's memory, between GPUs of one host.

The memory of every received tensor is reserved from the start of a step, so that messages may arrive in any order and
no rank waits to send. A rank signals at the start of a step that this memory is free. A sender waits only for that,
copies by a copy engine, which takes no multiprocessor from parallel work, and signals. A receiver waits for the signal
when the tensor is needed. Signals are step numbers, so that nothing has to be cleared.

Messages through a communicator would wait in kernels for the other rank, each on several multiprocessors, and many of
them in one step could block each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.ops.cuda.text import address
from mspc.ops.device import Array, Launch, source_text
from mspc.runtime.gpu.peers import PeerAddresses, PeerMemory


@dataclass(frozen=True)
class _Message:
    """Tensor that this rank sends or receives. partner: the other rank."""

    node: Node
    partner: int
    tag: int
    array: Array


class StageMessages:
    """Direct GPU-to-GPU messages of a rank's graph; made by `stage_messages`. They reference the mapped memory of other
    ranks."""

    def __init__(
        self, device: Any, signs: Array, steps: Array, free: Sequence[int], reached: Sequence[PeerAddresses]
    ) -> None:
        self._device, self._signs, self._steps, self._reached = device, signs, steps, reached
        self._launches: dict[Node, Launch] = {}
        self._waited = device.zeros((2,), "uint64")
        """Nanoseconds that receivers and senders have waited."""
        with device.stream("compute"):
            places = device.empty((max(1, len(free)),), "uint64")
            device.send(np.array(free, np.uint64), places[: len(free)])
        device.synchronize()
        kernel = device.kernel(source_text("runtime/gpu/begin_messages.cu"), "begin_messages")
        count = np.int32(len(free))
        self._begin: Launch = lambda: kernel(1, 32, (steps, places, count))

    def begin(self) -> None:
        """Signal that this rank's memory is free; runs at the start of a step, before all other work."""
        self._begin()

    @property
    def waited(self) -> float:
        """Total seconds that this rank waited idle for messages. Waits for the steps in flight."""
        found = np.zeros(2, np.uint64)
        with self._device.stream("compute"):
            self._device.receive(self._waited, found)
        self._device.synchronize()
        return float(found[0]) / 1e9

    def __contains__(self, node: Node) -> bool:
        return node in self._launches

    def launch(self, node: Node) -> Launch:
        """Return the launch of a message: a send on a side stream, a receive at its reader."""
        return self._launches[node]

    def due(self, graph: Graph, read: Mapping[int, Sequence[Value]]) -> dict[int, list[int]]:
        """Return, by the index of the first node that reads a message, the indices of messages that must have arrived
        for it, at the latest for the last node. read: values that are also read before the node of an index."""
        left = {node: len(graph.nodes) - 1 for node in self._launches if isinstance(node.op, ReceiveFromStage)}
        for index, node in reversed([*enumerate(graph.nodes)]):
            values = [*(() if node.op.is_view else node.inputs), *read.get(index, ())]
            while values:
                value = values.pop()
                if value in left:
                    left[value] = index
                elif isinstance(value, Node) and value.op.is_view:
                    values += value.inputs
        found: dict[int, list[int]] = {}
        for number, node in enumerate(graph.nodes):
            if node in left:
                found.setdefault(left[node], []).append(number)
        return found

    def add_received(self, node: Node, sign: int) -> None:
        """Add a message whose arrival is signalled in word `sign`."""
        self._launches[node] = self._awaited(sign, 0)

    def add_sent(self, message: _Message, free: int, place: int, sign: int) -> None:
        """Add a message to the address `place` that may be sent once word `free` is signalled; its arrival is signalled
        at the address `sign`."""
        device, steps = self._device, self._steps
        ready, left = self._awaited(free, 1), self._kernel("leave_sign")

        def send() -> None:
            ready()
            device.put(message.array, place)
            left(1, 1, (np.uint64(sign), steps))

        self._launches[message.node] = send

    def _kernel(self, name: str) -> Any:
        return self._device.kernel(source_text("runtime/gpu/signs.cu"), name)

    def _awaited(self, sign: int, who: int) -> Launch:
        kernel = self._kernel("await_sign")
        arguments = self._signs[sign : sign + 1], self._steps, self._waited[who : who + 1]
        return lambda: kernel(1, 1, arguments)


def stage_messages(graph: Graph, device: Any, arena: Array, array_of: Callable[[Node], Array]) -> StageMessages | None:
    """Return the messages between stages of a rank's graph, if the GPUs can map each other's memory.

    The ranks of a pipeline call this together. Other messages are prepared for communicators. arena: the memory of all
    received tensors. array_of: of a node's result.
    """
    comm = device.comm
    memory: PeerMemory | None = getattr(comm, "peer_memory", None)
    sent, received = _messages(graph, comm.rank, array_of)
    if memory is None or not (sent or received):
        return None
    partners = sorted({tuple(sorted((comm.rank, each.partner))) for each in (*sent, *received)})
    signs = device.zeros((len(received) + len(partners),), "uint32")
    steps = device.zeros((1,), "uint32")
    device.synchronize()
    free: list[int] = []
    found: list[tuple[_Message, tuple[int, ...]]] = []
    reached: list[PeerAddresses] = []
    for place, pair in enumerate(partners):  # the same order on all ranks avoids a deadlock
        other = pair[0] if pair[1] == comm.rank else pair[1]
        mine = [(k, each) for k, each in enumerate(received) if each.partner == other]
        theirs = [each for each in sent if each.partner == other]
        good = all(each.array.flags.c_contiguous for each in (*theirs, *(each for _, each in mine)))
        bases = memory.addresses((arena, signs), pair, good)
        if bases is None:
            comm.prepare([each.node.op.channel(comm.rank) for each in (*theirs, *(each for _, each in mine))], False)
            continue
        reached.append(bases)
        table = np.zeros((1 + max(len(mine), len(theirs)), 3), np.int64)
        table[0, 0] = len(received) + place
        for row, (k, each) in zip(table[1:], mine, strict=False):
            row[:] = each.tag, address(each.array) - address(arena), k
        tables = comm.host.all_gather(table[None], pair, 0)
        at = pair.index(other)
        their_arena, their_signs = bases[0][at], bases[1][at]
        if mine:
            free.append(their_signs + 4 * int(tables[at][0, 0]))
            found += [(each, (k,)) for k, each in mine]
        rows = {int(tag): (int(offset), int(k)) for tag, offset, k in tables[at][1 : 1 + len(theirs)]}
        for each in theirs:
            offset, k = rows[each.tag]
            found.append((each, (len(received) + place, their_arena + offset, their_signs + 4 * k)))
    made = StageMessages(device, signs, steps, free, reached)
    for message, where in found:
        made.add_sent(message, *where) if len(where) == 3 else made.add_received(message.node, *where)
    return made


def _messages(graph: Graph, rank: int, array_of: Callable[[Node], Array]) -> tuple[list[_Message], list[_Message]]:
    sent: list[_Message] = []
    received: list[_Message] = []
    for node in graph.nodes:
        if isinstance(node.op, SendToStage | ReceiveFromStage):
            (source, target), tag = node.op.channel(rank)
            is_sent = isinstance(node.op, SendToStage)
            message = _Message(node, target if is_sent else source, tag, array_of(node))
            (sent if is_sent else received).append(message)
    return sent, received
