"""Memory of other processes is mapped as long as something reads or writes it, and no longer."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.runtime.comm.local import World
from mspc.runtime.gpu.mailbox import open_mailbox
from mspc.runtime.gpu.mappings import Mapping, Mappings
from mspc.runtime.gpu.peers import HANDLE, PeerCollectives, PeerMemory
from tests.gpu.emulated import EmulatedGpu
from tests.ops.cuda.cuda_emulator import NEEDED


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
        if self._mappings.has_unheld:
            self.synchronize()
            self._mappings.end_unheld()


def test_an_allocation_is_mapped_once() -> None:
    opened, closed = list[bytes](), list[int]()

    def map(handle: bytes) -> int:
        opened.append(handle)
        return 100 * len(opened)

    mappings = Mappings(closed.append)
    first, again, other = (mappings.mapping(handle, map) for handle in (b"a", b"a", b"b"))
    assert (first.address, again.address, other.address, opened) == (100, 100, 200, [b"a", b"b"])
    del first, other
    mappings.end_unheld()
    assert (closed, len(mappings)) == ([200], 1)
    del again
    assert mappings.has_unheld
    assert mappings.mapping(b"a", map).address == 100, "what is still mapped is not mapped again"
    mappings.end_unheld()
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
