"""Choice of the fastest of several implementations by timing. All ranks take the same one, and choices are stored on
disk for later runs.

A busy GPU is at its power limit, and the time of a matmul then depends on its operands: with zeros, which fill memory
at a start, it is a tenth shorter than with real values, and by a different amount for each algorithm. So memory is
filled with random values before timing. The first implementation within `EQUAL_SHARE` of the fastest is taken, which
cuBLASLt expects to be the best: the measured order varies between runs, and one that is briefly faster may take more
power. On an H200 the twelve matmuls of a transformer's layer took 515 us with the algorithms that were best in long
runs, 527 to 539 with those that short runs on zeros had chosen, and 518 with these.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
import zlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import cache_folder, make_cache_folder, read_own, write_private
from mspc.ops.device import Array, Launch, source_text

# Storage of choices on disk for later runs on the same kind of machine.
#
# A file's name is derived from the machine and the libraries' versions. It is JSON: numbers of choices, and lists of
# pairs of numbers, by digests of their keys. Damaged files count as empty, and choices that cannot be written are
# dropped.


Key = tuple[Any, ...]
Pairs = tuple[tuple[int, int], ...]
MAX_ENTRIES = 20_000
"""Maximum number of entries of a file; beyond it the oldest are removed."""


class StoredChoices:
    """Contents of one file. path: None if nothing is stored."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known = _read(path)
        self._new: dict[str, Any] = {}

    def get(self, key: Key, count: int) -> int | None:
        """Return the stored choice among `count`, or None."""
        found = self._known.get(_digest(key))
        return found if isinstance(found, int) and 0 <= found < count else None

    def put(self, key: Key, choice: int) -> None:
        self._new[_digest(key)] = choice

    def pairs(self, key: Key) -> Pairs | None:
        """Return the pairs of non-negative numbers stored under this key, or None."""
        found = self._known.get(_digest(key))
        return tuple((first, second) for first, second in found) if _are_pairs(found) else None

    def put_pairs(self, key: Key, pairs: Pairs) -> None:
        self._new[_digest(key)] = [list(pair) for pair in pairs]

    def save(self) -> None:
        """Write new choices, merged with those that others have written since."""
        if self.path is None or not self._new:
            return
        whole = {**_read(self.path), **self._new}
        self._known, self._new = whole, {}
        kept = dict(list(whole.items())[-MAX_ENTRIES:])
        text = json.dumps(kept, separators=(",", ":")).encode()
        try:
            make_cache_folder(self.path.parent)
            write_private(self.path, text)
        except (OSError, MspcError):  # a folder that is full or read-only
            return


def file_of(machine: Sequence[str]) -> Path | None:
    """Return the file of choices for the machine identified by these words, or None if there is no cache folder."""
    folder = cache_folder("choices")
    return None if folder is None else folder / f"{_digest(tuple(machine))}.json"


def _digest(key: Key) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:32]


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        found = json.loads(read_own(path) or b"")
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _are_pairs(found: Any) -> bool:
    return isinstance(found, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(n, int) and n >= 0 for n in pair) for pair in found
    )


_ENOUGH, _LEAST, _MOST = 0.0005, 4, 40
"""Seconds for which launches are timed, and their least and largest number."""
_SLOW, _SURE = 2, 0.00005
"""Ratio to the shortest time so far, and seconds beyond it, from which one launch is enough to reject a way."""
EQUAL_SHARE = 0.02
"""Relative difference to the fastest time within which an implementation counts as equally fast."""
_LONGEST_PAUSE = 0.01
"""In seconds."""
_PACK, _THREADS, _WAVES = 16, 256, 8
"""Constants of the kernel that fills memory with numbers: bytes that a thread writes at once, threads of a block, and
blocks for every multiprocessor."""
_HOLDING = 1024
"""Threads of a block that occupies a multiprocessor: no matmul's block fits next to it."""


class Choices:
    """Choices of one device by kind of work. stored: choices kept by earlier runs."""

    def __init__(self, device: Any, stored: StoredChoices) -> None:
        self._device = device
        self.stored = stored
        self._taken, self._shortest = 0, math.inf
        self._gate: Array = None
        self._unset: Array = None
        self._found: dict[Key, int] = {}
        self._counts: dict[Key, int] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._found

    def __getitem__(self, key: Key) -> int:
        """Return the number of the chosen implementation."""
        return self._found[key]

    def choose(self, key: Key, count: int, seconds: Callable[[int], float]) -> None:
        """Choose one of `count` implementations. seconds: returns the time of one, infinite if it is impossible; not
        called for a stored choice or a single implementation."""
        self._counts[key] = count
        known = 0 if count == 1 else self.stored.get(key, count)
        if known is None:
            self._set()
            times: list[float] = []
            for i in range(count):
                self._shortest = min(times, default=math.inf)
                times.append(seconds(i))
            known = next(i for i, time in enumerate(times) if time <= (1 + EQUAL_SHARE) * min(times))
            self.stored.put(key, known)
        self._found[key] = known

    def fastest(self, key: Key, launches: Sequence[Launch]) -> Launch:
        """See `Device.fastest`."""
        if self._device.deterministic or len(launches) == 1:
            return launches[0]
        if key not in self:
            self.choose(key, len(launches), lambda i: self.seconds(launches[i]))
        return lambda: launches[self._found[key]]()

    def agree(self, comm: Any) -> None:
        """Take the choices of the lowest rank that has one for a key: ranks with the same computation must get the same
        bits. `comm` works on host arrays; every rank calls this."""
        if comm.rank == 0:
            self.stored.save()
        if comm.size == 1:
            return
        ranks = tuple(range(comm.size))
        mine = sorted((zlib.crc32(repr(key).encode()), key) for key in self._found)
        length = int(comm.all_reduce(np.array([len(mine)], np.int64), "max", ranks)[0])
        table = np.full((length, 2), -1, np.int64)
        for row, (name, key) in enumerate(mine):
            table[row] = name, self._found[key]
        first: dict[int, int] = {}
        for name, choice in comm.all_gather(table, ranks, 0).tolist():
            first.setdefault(name, choice)
        for name, key in mine:
            self._found[key] = min(first[name], self._counts[key] - 1)

    # Time

    @contextlib.contextmanager
    def within(self, memory: Array) -> Generator[None]:
        """Return a context in which timed work may use `memory`, bytes that nothing needs before the context ends."""
        self._unset = memory
        try:
            yield
        finally:
            self._unset = None

    def _set(self) -> None:
        memory, self._unset = self._unset, None
        count = 0 if memory is None else memory.nbytes // _PACK
        if count:
            blocks = min(-(-count // _THREADS), _WAVES * self._device.multiprocessors)
            self._kernel("numbers")(blocks, _THREADS, (memory, np.uint64(count)))

    @contextlib.contextmanager
    def beside(self, blocks: int) -> Generator[None]:
        """Return a context that leaves `blocks` multiprocessors to other kernels."""
        before, self._taken = self._taken, blocks
        try:
            yield
        finally:
            self._taken = before

    @property
    def multiprocessors(self) -> int:
        """Multiprocessors that a matmul made now may use; 0 for all."""
        return max(1, self._device.multiprocessors - self._taken) if self._taken else 0

    def seconds(self, launch: Launch) -> float:
        """Return the mean time of a few launches, of one if that is much longer than the shortest so far. The GPU is
        paused until all of them are queued; otherwise it might wait for the host, and the host would be timed."""
        launch()
        if self._taken:
            return self._seconds_with_reserved(launch)
        found = self._seconds_of(launch, 1)
        if found > _SLOW * self._shortest + _SURE:
            return found
        return self._seconds_of(launch, max(_LEAST, min(_MOST, int(_ENOUGH / max(found, 1e-7)))))

    def _kernel(self, name: str) -> Any:
        return self._device.kernel(source_text("runtime/gpu/timing.cu"), name)

    def _seconds_of(self, launch: Launch, count: int) -> float:
        began = time.perf_counter()
        launch()
        pause = min(2 * count * (time.perf_counter() - began), _LONGEST_PAUSE)
        self._kernel("pause")(1, 1, (np.int64(1e9 * pause),))
        begun = self._device.signal(timed=True)
        for _ in range(count):
            launch()
        ended = self._device.signal(timed=True)
        ended.synchronize()
        return self._device.milliseconds(begun, ended) / (1000 * count)

    def _seconds_with_reserved(self, launch: Launch) -> float:
        """Return the same while an idle kernel occupies as many multiprocessors as a collective."""
        device = self._device
        if self._gate is None:
            self._gate = device.zeros((2,), "uint32")
        hold, wait, free = (
            device.kernel(source_text("runtime/gpu/holding.cu"), name)
            for name in ("hold", "await_holders", "free_holders")
        )
        device.load_kernels()
        before = device.signal()
        total = 0.0
        for _ in range(_LEAST):
            with device.stream("communication"):
                device.wait(before)
                hold(self._taken, _HOLDING, (self._gate,))
            wait(1, 1, (self._gate, np.uint32(self._taken)))
            begun = device.signal(timed=True)
            launch()
            ended = device.signal(timed=True)
            free(1, 1, (self._gate,))
            before = device.signal()
            before.synchronize()
            device.synchronize()
            total += device.milliseconds(begun, ended)
        return total / (1000 * _LEAST)
