"""Collectives of large arrays in one kernel: ranks of one host read and write each other's memory over NVLink.

For AllReduce, rank r adds up part r of all ranks' arrays and writes the sum into part r of all results: every byte
crosses once in either direction, as in a ring, but in one step and with few multiprocessors. ReduceScatter is its first
half and AllGather its second. Additions are in the order of the group's ranks, halves are accumulated in Float32, and
all ranks get the same bits.

A kernel starts and ends by signalling every peer, block by block: at its start all operands are ready and all results
may be written, at its end both are free again.
"""

from __future__ import annotations

import contextlib
import functools
import math
import socket
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import dtype_of
from mspc.ops.collective.collectives import COMBINED, WORDS, takes
from mspc.ops.cuda.text import address
from mspc.ops.device import Array, Launch, RankSum, c_type, computing_type, source_text
from mspc.runtime.faults.stopped import STEP_SHIFT

# Memory of other processes, mapped once per allocation and as long as the mapping is referenced.
#
# Memory that CUDA frees in one process is not released until the others have unmapped it: stale mappings would
# accumulate from compile to compile.


class Mapping:
    """Mapped allocation of another process. address: its start in this process."""

    def __init__(self, address: int) -> None:
        self.address = address


class Mappings:
    """Mappings of a device. unmap: ends the mapping at an address. An unreferenced mapping ends at the next
    `unmap_unreferenced`, when nothing on the GPU can still use it, not when Python releases it."""

    def __init__(self, unmap: Callable[[int], None]) -> None:
        self._unmap = unmap
        self._mappings: weakref.WeakValueDictionary[bytes, Mapping] = weakref.WeakValueDictionary()
        self._addresses: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def has_unreferenced(self) -> bool:
        """Whether there is an unreferenced mapping."""
        return len(self._mappings) < len(self._addresses)

    def mapping(self, handle: bytes, map: Callable[[bytes], int]) -> Mapping:
        """Return the mapping of an allocation, possibly an unreferenced one, or a new one made by `map`."""
        found = self._mappings.get(handle)
        if found is None:
            if handle not in self._addresses:
                self._addresses[handle] = map(handle)
            found = self._mappings[handle] = Mapping(self._addresses[handle])
        return found

    def unmap_unreferenced(self) -> None:
        """Unmap unreferenced mappings; nothing on the GPU may use them."""
        self._end([handle for handle in self._addresses if handle not in self._mappings])

    def end_all(self) -> None:
        """Unmap everything, because the device is destroyed."""
        self._end(list(self._addresses))

    def _end(self, handles: list[bytes]) -> None:
        for handle in handles:
            with contextlib.suppress(Exception):  # the process that owned the memory may have ended
                self._unmap(self._addresses.pop(handle))


HANDLE = 64
"""Bytes of CUDA's handle of memory of another process."""
LARGEST_GROUP = 8
_BLOCKS, _THREADS = 8, 1024
"""Eight multiprocessors saturate NVLink, six do not (measured on two H200s). Using few slows parallel matmuls least.
Among four ranks NCCL is faster for 64 MiB by itself (312 against 328 us), but with 32 multiprocessors: a step whose
gradients it sums in buckets of 38 MB takes 6.2 ms instead of 5.8."""
_PACK = 16
_TYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
_HOW = {"sum": "Sum", "prod": "Product", "max": "Largest", "min": "Smallest"}


class PeerAddresses(list[list[int]]):
    """Addresses in the memory of several ranks; keeps the mappings alive."""

    def __init__(self, addresses: Iterable[list[int]]) -> None:
        super().__init__(addresses)
        self.mappings: list[Mapping] = []


class PeerMemory:
    """Access of this rank to arrays of the other ranks of its host. device: see `GpuDevice`. host: communicator of
    arrays on the host."""

    def __init__(self, device: Any, host: Any) -> None:
        self._device = device
        self._host = host
        self._place = zlib.crc32(socket.gethostname().encode())

    def addresses(self, arrays: Sequence[Array], ranks: tuple[int, ...], good: bool = True) -> PeerAddresses | None:
        """Return, for each array, its addresses on every rank in the order of `ranks`, mapped in this process and valid
        while the result is referenced.

        The ranks call this together. Return None on all of them if one cannot map another's memory or is not `good`.
        """
        self._device.end_mappings()
        everyone = tuple(sorted(ranks))
        handles = np.zeros((len(arrays), HANDLE + 8), np.uint8)
        try:
            for row, array in zip(handles, arrays, strict=True):
                handle, offset = self._device.exported(array)
                row[:HANDLE] = np.frombuffer(handle, np.uint8)
                row[HANDLE:] = np.array([offset], np.int64).view(np.uint8)
        except Exception:  # a driver without such memory: NCCL is used instead
            good = False
        line = np.concatenate([handles.reshape(-1), np.array([self._place, good], np.int64).view(np.uint8)])
        lines = self._host.all_gather(line[None], everyone, 0)
        ends = [np.ascontiguousarray(one[-16:]).view(np.int64).tolist() for one in lines]
        good = all(place == self._place and able for place, able in ends)
        found = PeerAddresses([] for _ in arrays)
        try:
            for rank in ranks if good else ():
                rows = lines[everyone.index(rank)][:-16].reshape(len(arrays), HANDLE + 8)
                for known, array, row in zip(found, arrays, rows, strict=True):
                    if rank == self._host.rank:
                        known.append(address(array))
                        continue
                    offset = int(np.ascontiguousarray(row[HANDLE:]).view(np.int64)[0])
                    found.mappings.append(self._device.imported(row[:HANDLE].tobytes()))
                    known.append(found.mappings[-1].address + offset)
        except Exception:  # no way from one GPU to the other
            good = False
        good = bool(self._host.all_reduce(np.array([good], np.int64), "min", everyone)[0])
        return found if good else None


class PeerCollectives:
    """Factory of collectives between ranks that can map each other's memory. device: see `GpuDevice`. memory: see
    `PeerMemory`. owner: has the attribute `mark`, see `NcclComm`."""

    def __init__(self, device: Any, memory: PeerMemory, owner: Any) -> None:
        self._device = device
        self._memory = memory
        self._owner = owner
        self._signs: dict[tuple[tuple[int, ...], str, int], tuple[PeerAddresses, Array, Array] | None] = {}

    def launch(
        self, name: str, array: Array, out: Array, op: str, ranks: tuple[int, ...], own: int
    ) -> PeerLaunch | None:
        """Return the collective `name` ("AllReduce", "AllGather" or "ReduceScatter") on arrays of contiguous parts.

        The ranks call this together, in the same order. Return None on all of them if it is not possible. ranks: in the
        order of parts and of additions. own: this rank's index among them.
        """
        parts = 1 if name == "AllReduce" else len(ranks)
        part = max(array.nbytes, out.nbytes) // parts
        kind = np.dtype(array.dtype).name
        if len(ranks) > LARGEST_GROUP or (name != "AllReduce" and part % _PACK) or part < _PACK:
            return None
        if name != "AllGather" and (kind not in _TYPES or op not in _HOW):
            return None
        signs = self._signs_of(ranks)
        if signs is None:
            return None
        aligned = not (address(array) % _PACK or address(out) % _PACK)
        found = self._memory.addresses((array, out), ranks, aligned)
        if found is None:
            return None
        given, made = found
        packs, tail, begin = part // _PACK, 0, own * part
        if name == "AllReduce":
            share = -(-packs // len(ranks))
            first = min(own * share, packs)
            begin, tail = first * _PACK, (array.nbytes % _PACK) // array.dtype.itemsize
            packs, tail = min(share, packs - first), tail if own == len(ranks) - 1 else 0
            sources, targets = [a + begin for a in given], [a + begin for a in made]
        elif name == "AllGather":
            share, sources, targets = packs, [given[own]], [a + begin for a in made]
        else:
            share, sources, targets = packs, [a + begin for a in given], [made[own]]
        ends = PeerEndpoints(sources, targets, signs[0][0], (found, *signs))
        return PeerLaunch(self._device, self._owner, ends, signs[1], (kind, op), own, (packs, share, tail))

    def partial_sums(self, array: Array, ranks: tuple[int, ...], own: int) -> RankSum | None:
        """See `DeviceCommunicator`; ranks, own: as for `launch`."""
        signs = self._signs_of(ranks, RankSum.SIGNS, RankSum.STATE)
        found = None
        if signs is not None:
            found = self._memory.addresses((array,), ranks, not address(array) % _PACK)
        if signs is None or found is None:
            return None
        (parts,), ((heard,), state, _) = found, signs
        owner, step = self._owner, self._device.step
        return RankSum(tuple(parts), own, tuple(heard), state, step, STEP_SHIFT, lambda: owner.mark, (found, *signs))

    def _signs_of(
        self, ranks: tuple[int, ...], each: int = _BLOCKS, own: int = _BLOCKS
    ) -> tuple[PeerAddresses, Array, Array] | None:
        """Return the addresses of the ranks' signal words for each other on the current stream, `own` words of this
        rank alone, and the memory of all. each: words that a rank receives from every other rank."""
        device = self._device
        key = (ranks, device.current_stream(), each)
        if key not in self._signs:
            words = device.zeros((each * len(ranks),), "uint32")
            calls = device.zeros((own,), "uint32")
            device.synchronize()
            found = self._memory.addresses((words,), ranks)
            self._signs[key] = None if found is None else (found, calls, words)
        return self._signs[key]


@dataclass(frozen=True)
class PeerEndpoints:
    """Addresses that a collective reads, writes, and signals. references: keep the memory alive."""

    sources: list[int]
    targets: list[int]
    signs: list[int]
    references: tuple[Any, ...]


class PeerLaunch:
    """Launch of one collective. It reports this rank's progress itself, see `GpuProgress.before`. blocks: of its
    kernel, each on its own multiprocessor."""

    def __init__(
        self, device: Any, owner: Any, ends: PeerEndpoints, calls: Array, kind: tuple[str, str], own: int,
        sizes: tuple[int, int, int],
    ) -> None:  # fmt: skip
        sources, targets, signs = ends.sources, ends.targets, ends.signs
        self._references = ends.references
        packs, share, tail = sizes
        self._device, self._owner, self._step = device, owner, device.step
        flight = max(1, 8 // max(2, len(sources)))
        self.blocks = max(1, min(_BLOCKS, math.ceil(share / (_THREADS * flight))))
        self._text = functools.partial(source_of, len(sources), len(targets), len(signs), own, *kind, flight)
        self._kernel = device.kernel(self._text(False), "between_peers")
        self._resident = calls  # any word, while blocks are not counted
        self._before = (*(np.uint64(a) for a in (*sources, *targets, *signs)), calls)
        self._behind = (np.uint64(packs), np.int32(tail))

    def __call__(self) -> None:
        place, mark = self._owner.mark
        here = (np.uint64(place), self._step, np.int64(mark))
        self._kernel(self.blocks, _THREADS, (*self._before, self._resident, *self._behind, *here))

    def awaited(self) -> Launch:
        """Return a launch for another stream that delays later work there until this launch, enqueued before, has its
        multiprocessors. Otherwise this launch might wait for the multiprocessors of a matmul whose end waits for this
        launch."""
        device, blocks = self._device, np.uint32(self.blocks)
        resident = self._resident = device.zeros((1,), "uint32")
        self._kernel = device.kernel(self._text(True), "between_peers")
        kernel = device.kernel(source_text("runtime/gpu/await_blocks.cu"), "await_blocks")
        return lambda: kernel(1, 1, (resident, blocks))


def source_of(sources: int, targets: int, ranks: int, own: int, dtype: str, op: str, flight: int, counted: bool) -> str:
    """Return the source of the kernel `between_peers` for these numbers of arrays to read and write, with elements of
    NumPy type `dtype`. counted: started blocks count themselves."""
    kind = dtype_of(dtype) if sources > 1 else None
    names = [[f"{letter}{i}" for i in range(n)] for letter, n in (("s", sources), ("t", targets), ("g", ranks))]
    lists = dict(zip(("sources", "targets", "signs"), (", ".join(n) for n in names), strict=True))
    addresses = ", ".join(f"const u64 {name}" for one in names for name in one)
    known = f"constexpr bool COUNTED = {str(counted).lower()};\n"
    return known + (
        f"typedef {c_type(kind) if kind else 'int'} T;\ntypedef {computing_type(kind) if kind else 'int'} C;\n"
        f"typedef {_HOW.get(op, 'Sum')} HOW;\n"
        f"constexpr int SOURCES = {sources}, TARGETS = {targets}, RANKS = {ranks}, OWN = {own}, THREADS = {_THREADS};\n"
        f"constexpr int FLIGHT = {flight}, STEP_SHIFT = {STEP_SHIFT};\n"
    ) + source_text("runtime/gpu/between_peers.cu", addresses=addresses, **lists)


# Collectives of small arrays in one kernel: every rank writes to its peers' memory over NVLink and waits for theirs.
#
# A collective of NCCL takes at least about 10 us. Here one call handles several arrays, and each 32-bit word is sent in
# one 64-bit store together with the number of the call, so that its arrival needs no other signal (like NCCL's protocol
# LL). A mailbox is double buffered: a rank starts call n + 2 once it has received words of call n + 1 from all peers,
# which then have read its words of call n. Additions are in the order of the group's ranks.


_MAIL_THREADS = 1024

_MAIL_HOW = {"sum": "x + y", "prod": "x * y", "max": "x < y || y != y ? y : x", "min": "y < x || y != y ? y : x"}


class Mailbox:
    """Mailboxes of one group, of this rank and its peers; made by `open_mailbox`. device: see `GpuDevice`. box: this
    rank's. reached: the ranks' boxes in the group's order. own: this rank's index."""

    def __init__(self, device: Any, box: Array, reached: PeerAddresses, own: int) -> None:
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
        """Enqueue one collective of several arrays on the current stream. words: of each array for each peer, together
        at most `WORDS`. apart: every peer gets its own part of the only array, else all get the same. op: reduction; ""
        concatenates the parts of the only array. mark: host address and the value to write there, or zeros."""
        pieces = range(len(given))
        source = (
            f"typedef {COMBINED.get(given[0].dtype.name, 'int')} T;\n#define HOW {_MAIL_HOW.get(op, 'x')}\n"
            f"constexpr int RANKS = {self._ranks}, OWN = {self._own}, WORDS = {WORDS}, THREADS = {_MAIL_THREADS};\n"
            f"constexpr int STEP_SHIFT = {STEP_SHIFT}, PIECES = {len(given)};\n"
            f"constexpr bool COMBINES = {str(bool(op)).lower()};\n"
            f"#define ARRAYS {', '.join(f'const word* given{k}, word* out{k}, int count{k}' for k in pieces)}\n"
            f"#define GIVEN {', '.join(f'given{k}' for k in pieces)}\n"
            f"#define OUT {', '.join(f'out{k}' for k in pieces)}\n"
            f"#define COUNTS {', '.join(f'count{k}' for k in pieces)}\n"
        )
        kernel = self._device.kernel(source + source_text("runtime/gpu/exchange_words.cu"), "exchange_words")
        place, value = mark
        arrays = [each for x, y, n in zip(given, out, words, strict=True) for each in (x, y, np.int32(n))]
        kernel(1, _MAIL_THREADS, (
            *arrays, self._calls, self._boxes, np.int32(words[0] if apart else 0), np.uint64(place),
            self._device.step, np.int64(value),
        ))  # fmt: skip


class Mailboxes:
    """Two mailboxes per group, for the main stream and for others: calls of one stream must not overtake those of the
    other."""

    def __init__(self) -> None:
        self._device: Any = None
        self._boxes: dict[tuple[tuple[int, ...], bool], Mailbox | None] = {}

    def open(self, device: Any, memory: PeerMemory, ranks: tuple[int, ...], own: int) -> None:
        """Open the mailboxes of a group; its members call this together. ranks: in the order of slices. own: this
        rank's index."""
        self._device = device
        for main in (True, False):
            self._boxes[ranks, main] = open_mailbox(device, memory, ranks, own)

    def has(self, ranks: tuple[int, ...]) -> bool:
        """Return whether the members of a group can map each other's memory."""
        return self._boxes.get((ranks, True)) is not None

    def exchange(self, given: Sequence[Array], out: Sequence[Array], ranks: tuple[int, ...], nbytes: Sequence[int],
                 apart: bool, op: str, mark: tuple[int, int]) -> bool:  # fmt: skip
        """Run `Mailbox.exchange` for `nbytes` bytes of each array; return False if no mailbox is large enough."""
        if not self.has(ranks) or not takes(sum(nbytes), given[0].dtype, op):
            return False
        box = self._boxes[ranks, self._device.current_stream() == "compute"]
        assert box is not None, "both were opened together"
        box.exchange(given, out, [size // 4 for size in nbytes], apart, op, mark)
        return True


def open_mailbox(device: Any, memory: PeerMemory, ranks: tuple[int, ...], own: int) -> Mailbox | None:
    """Return the mailbox of a group; its members call this together. None if a rank cannot map another's memory. ranks:
    in the order of slices. own: this rank's index among them."""
    box = device.zeros((2 * len(ranks) * WORDS,), "uint64")
    device.synchronize()
    found = memory.addresses((box,), ranks)
    if found is None:
        return None
    known = device.workspaces
    known["mailboxes of small collectives"] = known.get("mailboxes of small collectives", 0) + box.nbytes
    return Mailbox(device, box, found, own)
