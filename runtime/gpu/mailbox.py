"""Collectives of small arrays run in one kernel: every rank writes to its peers' memory over NVLink and waits for
theirs.

A collective of NCCL takes about 10 us however small it is. Here each 32-bit word travels in one 64-bit store together
with the number of the call, so that its arrival needs no other signal (as in the protocol that NCCL calls LL). A box
has two sides that take turns: a rank begins call n + 2 once it has heard in call n + 1 from all its peers, which then
have read what was sent in call n. The order of additions is that of the group's ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ir.graph import operand_types
from mspc.ops.collective.collectives import AllGather, AllReduce, ReduceScatter
from mspc.ops.device import Array
from mspc.runtime.faults.stalled import STEP_SHIFT
from mspc.runtime.gpu.peers import PeerMemory

WORDS = 4096
"""32-bit words that a rank may send to one peer in a call."""
_THREADS = 512

_SOURCE = r"""
typedef unsigned int word;
__device__ __forceinline__ word await(volatile u64* place, word call) {
    u64 found;
    do { found = *place; } while ((word)(found >> 32) != call);
    return (word)found;
}
__device__ __forceinline__ word combined(word a, word b) {
    T x = *(T*)&a, y = *(T*)&b, z = HOW;
    return *(word*)&z;
}
extern "C" __global__ void __launch_bounds__(THREADS) exchange_words(
    const word* given, word* out, u64* calls, const u64* boxes, int count, int apart,
    volatile long long* place, const long long* step, long long mark
) {
    word call = (word)calls[0] + 1;
    size_t side = (size_t)(call & 1) * RANKS * WORDS;
    if (threadIdx.x == 0 && place) *place = mark | step[0] << STEP_SHIFT;
    for (int i = threadIdx.x; i < count; i += THREADS)
        for (int peer = 0; peer < RANKS; ++peer)
            if (peer != OWN)
                *((volatile u64*)boxes[peer] + side + OWN * WORDS + i) = (u64)call << 32 | given[peer * apart + i];
    volatile u64* mine = (volatile u64*)boxes[OWN] + side;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        word total = 0, own = given[OWN * apart + i];
        for (int peer = 0; peer < RANKS; ++peer) {
            word part = peer == OWN ? own : await(mine + peer * WORDS + i, call);
            if (COMBINES) total = peer ? combined(total, part) : part;
            else out[peer * count + i] = part;
        }
        if (COMBINES) out[i] = total;
    }
    __syncthreads();
    if (threadIdx.x == 0) calls[0] = call;
}
"""
_TYPES = {"float32": "float", "int32": "int"}
_HOW = {"sum": "x + y", "prod": "x * y", "max": "x < y || y != y ? y : x", "min": "y < x || y != y ? y : x"}


class Mailbox:
    """The boxes of one group, of this rank and its peers. Only `open_mailbox` makes it.

    Args:
        device: see `GpuDevice`. box: this rank's. boxes: addresses of the ranks' boxes in the group's order. own: this
        rank's place.
    """

    def __init__(self, device: Any, box: Array, boxes: list[int], own: int) -> None:
        self._device, self._box = device, box
        self._ranks, self._own = len(boxes), own
        with device.stream("compute"):
            self._calls = device.zeros((1,), "uint64")
            self._boxes = device.empty((len(boxes),), "uint64")
            device.send(np.array(boxes, np.uint64), self._boxes)
        device.synchronize()

    def exchange(self, given: Array, out: Array, words: int, apart: bool, op: str, mark: tuple[int, int]) -> None:
        """Put one collective on the current stream.

        Args:
            words: that each peer gets. apart: every peer gets a part of its own of `given`, else all get the same.
            op: what arrives is combined by it; "" puts the parts one after the other. mark: address of the host's and
            value to be written there, or zeros.
        """
        source = (
            f"typedef {_TYPES.get(given.dtype.name, 'int')} T;\n#define HOW {_HOW.get(op, 'x')}\n"
            f"constexpr int RANKS = {self._ranks}, OWN = {self._own}, WORDS = {WORDS}, THREADS = {_THREADS};\n"
            f"constexpr int STEP_SHIFT = {STEP_SHIFT};\nconstexpr bool COMBINES = {str(bool(op)).lower()};\n"
        )
        kernel = self._device.kernel(source + _SOURCE, "exchange_words")
        place, value = mark
        kernel(1, _THREADS, (
            given, out, self._calls, self._boxes, np.int32(words), np.int32(words if apart else 0), np.uint64(place),
            self._device.step, np.int64(value),
        ))  # fmt: skip


def takes(nbytes: int, dtype: Any, op: str) -> bool:
    """Whether parts of so many bytes can go through a mailbox."""
    name = np.dtype(dtype).name
    return nbytes % 4 == 0 and nbytes <= 4 * WORDS and (not op or (name in _TYPES and op in _HOW))


def open_mailbox(device: Any, memory: PeerMemory, ranks: tuple[int, ...], own: int) -> Mailbox | None:
    """The mailbox of a group; its members call this together. None where a rank cannot reach another's memory.

    Args:
        ranks: in the order of slices. own: this rank's place among them.
    """
    box = device.zeros((2 * len(ranks) * WORDS,), "uint64")
    device.synchronize()
    found = memory.addresses((box,), ranks)
    if found is None:
        return None
    known = device.workspaces
    known["mailboxes of small collectives"] = known.get("mailboxes of small collectives", 0) + box.nbytes
    return Mailbox(device, box, found[0], own)


def small(node: Any) -> bool:
    """Whether a collective's node can go through a mailbox: all that it moves is small."""
    op = node.op
    if not isinstance(op, AllReduce | AllGather | ReduceScatter):
        return False
    how = "" if isinstance(op, AllGather) else op.op
    parts = op.group_size if isinstance(op, ReduceScatter) else 1
    types = operand_types(node)
    return all(takes(t.nbytes // parts, t.dtype.numpy, how) for t in types)
