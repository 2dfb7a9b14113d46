"""Collectives over the memory of peers: real kernels in processes of their own, that share what GPUs would share."""

import gc
import mmap
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc.ops.collective.collectives import WORDS
from mspc.ops.device import in_order
from mspc.runtime.comm.local import World
from mspc.runtime.gpu.peers import (
    HANDLE,
    Mailbox,
    Mapping,
    Mappings,
    PeerAddresses,
    PeerCollectives,
    PeerLaunch,
    PeerMemory,
    open_mailbox,
)
from tests.gpu.emulated import EmulatedGpu
from tests.ops.cuda.cuda_emulator import NEEDED
from tests.serving import HANG

REGION = 4 << 20
"""Bytes that each rank has of the shared memory."""
BF16: Any = ml_dtypes.bfloat16
CASES: list[tuple[str, Any, str, int]] = [
    ("AllReduce", np.float32, "sum", 40_001),
    ("AllReduce", BF16, "sum", 70_003),
    ("AllReduce", np.float16, "max", 9_000),
    ("AllReduce", np.int64, "min", 5_001),
    ("AllReduce", np.float64, "prod", 3),
    ("AllGather", BF16, "", 2_400),
    ("AllGather", np.bool_, "", 160),
    ("ReduceScatter", BF16, "sum", 4_800),
    ("ReduceScatter", np.float32, "sum", 40_032),
]
"""Collective, element type, how it combines, elements of a rank's operand."""


class Region(EmulatedGpu):
    """A GPU whose memory is its part of the shared one."""

    def __init__(self, folder: Path, shared: mmap.mmap, rank: int) -> None:
        self._free, self._end = rank * REGION, (rank + 1) * REGION
        self._bytes = np.frombuffer(shared, np.uint8)
        super().__init__(folder)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        begin, self._free = self._free, self._free + -(-size // 256) * 256
        assert self._free <= self._end
        return self._bytes[begin : begin + size].view(dtype).reshape(shape)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Shared memory is zero at first, and another rank may have written to it already."""
        return self.empty(shape, dtype)


class Addresses:
    """The addresses of PeerMemory if every rank takes its memory in the same order."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def addresses(self, arrays: Any, ranks: Any, good: bool = True) -> PeerAddresses | None:
        return (
            PeerAddresses([a.ctypes.data + (r - self.rank) * REGION for r in ranks] for a in arrays) if good else None
        )


def drawn(case: int, rank: int, round_: int) -> Any:
    _, dtype, _, count = CASES[case]
    rng = np.random.default_rng([case, rank, round_])
    if np.dtype(dtype) == np.bool_:
        return rng.integers(0, 2, count).astype(dtype)
    return rng.standard_normal(count).astype(dtype) if np.dtype(dtype).kind in "fV" else rng.integers(0, 99, count)


def wanted(case: int, rank: int, ranks: tuple[int, ...], round_: int) -> Any:
    name, dtype, op, _ = CASES[case]
    parts = [drawn(case, r, round_) for r in ranks]
    if name == "AllGather":
        return np.concatenate(parts)
    if np.dtype(dtype).kind == "V" or dtype == np.float16:
        parts = [part.astype(np.float32) for part in parts]
    function = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op]
    total = parts[0]
    for part in parts[1:]:
        total = function(total, part)
    total = total.astype(dtype)
    own = ranks.index(rank)
    return total if name == "AllReduce" else np.split(total, len(ranks))[own]


def rank_body(rank: int, ranks: tuple[int, ...], shared: mmap.mmap, folder: Path) -> None:
    device = Region(folder, shared, rank)
    collectives = PeerCollectives(device, Addresses(rank), SimpleNamespace(mark=(0, 0)))  # type: ignore[arg-type]
    own = ranks.index(rank)
    made: list[tuple[Any, Any, Any]] = []
    for case, (name, dtype, op, count) in enumerate(CASES):
        array = device.empty((count,), dtype)
        sizes = {"AllReduce": count, "AllGather": count * len(ranks), "ReduceScatter": count // len(ranks)}
        out = array if case == 1 else device.empty((sizes[name],), dtype)  # case 1 works in place
        launch = collectives.launch(name, array, out, op, ranks, own)
        assert isinstance(launch, PeerLaunch)
        made.append((array, out, launch if case else in_order(launch, launch.awaited())))
    for round_ in range(3):
        for case, (array, out, launch) in enumerate(made):
            array[...] = drawn(case, rank, round_)
            launch()
            right = wanted(case, rank, ranks, round_)
            assert out.tobytes() == right.tobytes(), (CASES[case], out, right)


def in_processes(body: Callable[..., None], ranks: tuple[int, ...], tmp_path: Path) -> None:
    """Run `body` of a rank, the ranks, the shared memory and a folder in a process for each rank."""

    def job(rank: int, folder: Path) -> None:
        try:
            body(rank, ranks, shared, folder)
            queue.put(None)
        except BaseException as error:  # the other process must not wait for ever
            queue.put(f"rank {rank}: {error!r}")

    shared = mmap.mmap(-1, REGION * len(ranks))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    folders = {rank: tmp_path / str(rank) for rank in sorted(ranks)}
    for folder in folders.values():
        folder.mkdir()
    jobs = [context.Process(target=job, args=each, daemon=True) for each in folders.items()]
    for each in jobs:
        each.start()
    found = []
    for _ in jobs:
        found.append(queue.get(timeout=HANG))
        if found[-1] is not None:  # the others wait for it
            break
    for each in jobs:
        each.join(10 if found[-1] is None else 0)
        each.kill()
    assert found == [None] * len(ranks)


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
@pytest.mark.parametrize("ranks", [(0, 1), (2, 0, 1)])
def test_kernels_equal_numpy(ranks: tuple[int, ...], tmp_path: Path) -> None:
    in_processes(rank_body, ranks, tmp_path)


class Owner:
    """A GPU whose allocations begin at multiples of a million."""

    def __init__(self, rank: int, broken: bool = False) -> None:
        self.rank, self.broken = rank, broken
        self.opened: list[bytes] = []

    def exported(self, array: Any) -> tuple[bytes, int]:
        if self.broken:
            raise OSError("no such memory")
        return bytes([self.rank] * HANDLE), int(array.flat[0])

    def imported(self, handle: bytes) -> Mapping:
        self.opened.append(handle)
        return Mapping(1_000_000 * (handle[0] + 1))

    def end_mappings(self) -> None: ...


@pytest.mark.parametrize("broken", [None, 1])
def test_addresses_are_known_to_all_or_none(broken: int | None) -> None:
    def body(comm: Any) -> Any:
        array = np.array([7 + comm.rank])
        device = Owner(comm.rank, comm.rank == broken)
        found = PeerMemory(device, comm).addresses((array,), (1, 0, 2))
        return None if found is None else [0 if a == array.ctypes.data else a for a in found[0]]

    found = World(3).run(body)
    if broken is not None:
        assert found == [None] * 3
    else:
        assert found == [[2_000_008, 0, 3_000_009], [0, 1_000_007, 3_000_009], [2_000_008, 1_000_007, 0]]


def test_what_has_no_direct_way() -> None:
    collectives = PeerCollectives(None, None, None)  # type: ignore[arg-type]
    x = np.zeros(10, np.int16)
    assert collectives.launch("AllReduce", x, x, "sum", (0, 1), 0) is None, "an element type that is not added up"
    assert collectives.launch("AllReduce", x, x, "sum", tuple(range(9)), 0) is None, "a group of nine"
    assert collectives.launch("AllGather", x, np.zeros(20, np.int16), "", (0, 1), 0) is None, "parts of 20 bytes"


# A rank's mailbox, whose peer is played: what it wrote is there before it is asked for.


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_a_call_without_words_takes_no_turn(tmp_path: Path) -> None:
    """Nobody is heard in it, so that the peer may not have read what was sent in the call before."""
    device = EmulatedGpu(tmp_path)
    own, theirs = (device.zeros((2, 2, WORDS), "uint64") for _ in range(2))
    mailbox = Mailbox(device, own, PeerAddresses([[own.ctypes.data, theirs.ctypes.data]]), 0)

    def exchanged(numbers: list[int], heard: list[int]) -> list[int]:
        """The sums with what the peer wrote, whatever the number of the call is."""
        for side in range(2):
            mine = own[side, 1, : len(heard)]
            mine[...] = np.array(heard, np.uint64) | np.uint64(np.uint64(turn + (side - turn) % 2) << np.uint64(32))
        given, out = np.array(numbers, np.int32), np.zeros(len(numbers), np.int32)
        mailbox.exchange([given], [out], [len(numbers)], False, "sum", (0, 0))
        return out.tolist()

    turn = 1
    assert exchanged([1, 2, 3], [10, 20, 30]) == [11, 22, 33]
    sent: Any = theirs.copy()
    assert (sent[1, 0, :3] & np.uint64(0xFFFFFFFF)).tolist() == [1, 2, 3]
    turn = 2
    assert exchanged([], []) == []
    assert exchanged([4, 5, 6], [40, 50, 60]) == [44, 55, 66]
    assert theirs[1].tolist() == sent[1].tolist(), "what the peer may not have read stays"
    assert (theirs[0, 0, :3] & np.uint64(0xFFFFFFFF)).tolist() == [4, 5, 6]


# Memory of other processes is mapped as long as something reads or writes it, and no longer.


class MappingGpu(EmulatedGpu):
    """A GPU whose every array is an allocation of its own. open: addresses that are mapped; waits: how often all work
    was waited for."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(folder)
        self.rank, self.exports, self.waits = rank, 0, 0
        self.open: list[int] = []
        self._mappings = Mappings(self.open.remove)

    def exported(self, array: Any) -> tuple[bytes, int]:
        self.exports += 1
        return np.array([self.rank, self.exports], np.int64).tobytes().ljust(HANDLE, b"\0"), 0

    def imported(self, handle: bytes) -> Mapping:
        return self._mappings.mapping(handle, self._open)

    def _open(self, handle: bytes) -> int:
        rank, number = np.frombuffer(handle[:16], np.int64)
        self.open.append(int((rank + 1) << 40 | number << 20))
        return self.open[-1]

    def synchronize(self) -> None:
        self.waits += 1

    def end_mappings(self) -> None:
        if self._mappings.has_unreferenced:
            self.synchronize()
            self._mappings.unmap_unreferenced()


def test_an_allocation_is_mapped_once() -> None:
    opened, closed = list[bytes](), list[int]()

    def map(handle: bytes) -> int:
        opened.append(handle)
        return 100 * len(opened)

    mappings = Mappings(closed.append)
    first, again, other = (mappings.mapping(handle, map) for handle in (b"a", b"a", b"b"))
    assert (first.address, again.address, other.address, opened) == (100, 100, 200, [b"a", b"b"])
    del first, other
    mappings.unmap_unreferenced()
    assert (closed, len(mappings)) == ([200], 1)
    del again
    assert mappings.has_unreferenced
    assert mappings.mapping(b"a", map).address == 100, "what is still mapped is not mapped again"
    mappings.unmap_unreferenced()
    held = mappings.mapping(b"a", map)
    assert (held.address, closed) == (300, [200, 100])
    mappings.end_all()
    assert (closed, len(mappings)) == ([200, 100, 300], 0)


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_mappings_go_with_the_collectives_that_use_them(tmp_path: Path) -> None:
    """Graphs that are compiled one after the other: those of the last one, and of the signs, stay mapped."""
    gc.freeze()  # both ranks look for garbage, among what is made from now on

    def body(comm: Any) -> list[int]:
        folder = tmp_path / str(comm.rank)
        folder.mkdir()
        device = MappingGpu(folder, comm.rank)
        collectives = PeerCollectives(device, PeerMemory(device, comm), SimpleNamespace(mark=(0, 0)))  # type: ignore[arg-type]  # has what is read
        device.current_stream = lambda: "compute"  # type: ignore[attr-defined]  # of a real device
        mailbox = open_mailbox(device, collectives._memory, (0, 1), comm.rank)
        assert mailbox is not None
        sizes = [len(device.open)]
        for _ in range(4):
            arrays = [device.zeros((4096,), "float32") for _ in range(4)]
            launches = [collectives.launch("AllReduce", a, a, "sum", (0, 1), comm.rank) for a in arrays]
            assert None not in launches
            gc.collect()
            sizes.append(len(device.open))
            del launches
        waits = device.waits
        device.end_mappings()
        assert device.waits == waits + 1, "nothing may still use what is unmapped"
        return [*sizes, len(device.open)]

    for sizes in World(2).run(body):
        assert sizes[0] == 1, "the mailbox"
        assert sizes[1:5] == [sizes[1]] * 4, "those of the graph before are gone"
        assert sizes[5] == 2, "the mailbox, and the signs"
