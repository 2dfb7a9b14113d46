"""Collectives of small arrays run in one kernel: every rank writes to its peers' memory over NVLink and waits for
theirs.

A collective of NCCL takes about 10 us however small it is. Here several arrays go in one call, and each 32-bit word
travels in one 64-bit store together with the number of the call, so that its arrival needs no other signal (as in the
protocol that NCCL calls LL). A box has two sides that take turns: a rank begins call n + 2 once it has heard in call
n + 1 from all its peers, which then have read what was sent in call n. The order of additions is that of the group's
ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ops.collective.collectives import COMBINED, WORDS, takes
from mspc.ops.device import Array
from mspc.runtime.faults.stalled import STEP_SHIFT
from mspc.runtime.gpu.peers import PeerMemory, Reached

_THREADS = 1024

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
__device__ __forceinline__ void send(
    const word* given, int count, int apart, size_t begin, word call, const u64* boxes
) {
    for (int i = threadIdx.x; i < count; i += THREADS)
        for (int peer = 0; peer < RANKS; ++peer)
            if (peer != OWN)
                *((volatile u64*)boxes[peer] + begin + OWN * WORDS + i) = (u64)call << 32 | given[peer * apart + i];
}
__device__ __forceinline__ void receive(
    const word* given, word* out, int count, int apart, size_t begin, word call, const u64* boxes
) {
    volatile u64* mine = (volatile u64*)boxes[OWN] + begin;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        word total = 0, own = given[OWN * apart + i];
        for (int peer = 0; peer < RANKS; ++peer) {
            word part = peer == OWN ? own : await(mine + peer * WORDS + i, call);
            if (COMBINES) total = peer ? combined(total, part) : part;
            else out[peer * count + i] = part;
        }
        if (COMBINES) out[i] = total;
    }
}
extern "C" __global__ void __launch_bounds__(THREADS) exchange_words(
    ARRAYS, u64* calls, const u64* boxes, int apart, volatile long long* place, const long long* step, long long mark
) {
    const word* const given[] = {GIVEN};
    word* const out[] = {OUT};
    const int counts[] = {COUNTS};
    int words = 0;
    #pragma unroll
    for (int k = 0; k < PIECES; ++k) words += counts[k];
    word call = (word)calls[0] + 1;
    size_t begin = (size_t)(call & 1) * RANKS * WORDS;
    if (threadIdx.x == 0 && place) *place = mark | step[0] << STEP_SHIFT;
    #pragma unroll
    for (int k = 0, here = begin; k < PIECES; here += counts[k++]) send(given[k], counts[k], apart, here, call, boxes);
    #pragma unroll
    for (int k = 0, here = begin; k < PIECES; here += counts[k++])
        receive(given[k], out[k], counts[k], apart, here, call, boxes);
    __syncthreads();
    // Without words nobody is heard: the turns of the sides would say nothing of what peers have read.
    if (threadIdx.x == 0 && words) calls[0] = call;
}
"""
_HOW = {"sum": "x + y", "prod": "x * y", "max": "x < y || y != y ? y : x", "min": "y < x || y != y ? y : x"}


class Mailbox:
    """The boxes of one group, of this rank and its peers. Only `open_mailbox` makes it.

    Args:
        device: see `GpuDevice`. box: this rank's. reached: the ranks' boxes in the group's order. own: this rank's
        place.
    """

    def __init__(self, device: Any, box: Array, reached: Reached, own: int) -> None:
        self._device, self._box, self._reached = device, box, reached
        (boxes,) = reached
        self._ranks, self._own = len(boxes), own
        with device.stream("compute"):
            self._calls = device.zeros((1,), "uint64")
            self._boxes = device.empty((len(boxes),), "uint64")
            device.send(np.array(boxes, np.uint64), self._boxes)
        device.synchronize()

    def exchange(self, given: Sequence[Array], out: Sequence[Array], words: Sequence[int], apart: bool, op: str,
                 mark: tuple[int, int]) -> None:  # fmt: skip
        """Put one collective of several arrays on the current stream.

        Args:
            words: of each array what each peer gets, together at most `WORDS`. apart: every peer gets a part of its own
            of the only array, else all get the same. op: what arrives is combined by it; "" puts the parts of the only
            array one after the other. mark: address of the host's and value to be written there, or zeros.
        """
        pieces = range(len(given))
        source = (
            f"typedef {COMBINED.get(given[0].dtype.name, 'int')} T;\n#define HOW {_HOW.get(op, 'x')}\n"
            f"constexpr int RANKS = {self._ranks}, OWN = {self._own}, WORDS = {WORDS}, THREADS = {_THREADS};\n"
            f"constexpr int STEP_SHIFT = {STEP_SHIFT}, PIECES = {len(given)};\n"
            f"constexpr bool COMBINES = {str(bool(op)).lower()};\n"
            f"#define ARRAYS {', '.join(f'const word* given{k}, word* out{k}, int count{k}' for k in pieces)}\n"
            f"#define GIVEN {', '.join(f'given{k}' for k in pieces)}\n"
            f"#define OUT {', '.join(f'out{k}' for k in pieces)}\n"
            f"#define COUNTS {', '.join(f'count{k}' for k in pieces)}\n"
        )
        kernel = self._device.kernel(source + _SOURCE, "exchange_words")
        place, value = mark
        arrays = [each for x, y, n in zip(given, out, words, strict=True) for each in (x, y, np.int32(n))]
        kernel(1, _THREADS, (
            *arrays, self._calls, self._boxes, np.int32(words[0] if apart else 0), np.uint64(place),
            self._device.step, np.int64(value),
        ))  # fmt: skip


class Mailboxes:
    """Of every group one mailbox for the main stream and one for others: calls of one must not overtake another's."""

    def __init__(self) -> None:
        self._device: Any = None
        self._boxes: dict[tuple[tuple[int, ...], bool], Mailbox | None] = {}

    def open(self, device: Any, memory: PeerMemory, ranks: tuple[int, ...], own: int) -> None:
        """Those of a group; its members call this together. ranks: in the order of slices. own: this rank's place."""
        self._device = device
        for main in (True, False):
            self._boxes[ranks, main] = open_mailbox(device, memory, ranks, own)

    def has(self, ranks: tuple[int, ...]) -> bool:
        """Whether the members of a group reach each other's memory."""
        return self._boxes.get((ranks, True)) is not None

    def exchange(self, given: Sequence[Array], out: Sequence[Array], ranks: tuple[int, ...], nbytes: Sequence[int],
                 apart: bool, op: str, mark: tuple[int, int]) -> bool:  # fmt: skip
        """See `Mailbox.exchange`, of so many bytes of each array; False where there is no mailbox that takes them."""
        if not self.has(ranks) or not takes(sum(nbytes), given[0].dtype, op):
            return False
        box = self._boxes[ranks, self._device.current_stream() == "compute"]
        assert box is not None, "both were opened together"
        box.exchange(given, out, [size // 4 for size in nbytes], apart, op, mark)
        return True


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
    return Mailbox(device, box, found, own)
