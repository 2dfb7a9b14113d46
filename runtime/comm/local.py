"""Communicator that simulates ranks by threads of one process, which alternate so that a run is reproducible.

One thread runs at a time. It yields only when it communicates or pauses, always to the next rank in cyclic order that
can continue. Prints therefore come in the same order every time, and no kernel needs a lock.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from mspc.ir.diagnostics import ExecutionError
from mspc.ir.late_dataclass import dataclass
from mspc.runtime.comm.interface import GRAPH_CHANNELS, SIDE_CHANNEL_OFFSET, Array, Exchanging, Ranks, combine, pieces
from mspc.runtime.faults.record import StoppedByOther, first_line, missed

Main = Callable[["LocalComm"], Any]
_Compute = Callable[[list[Any]], list[Any]]


class RankStopped(BaseException):
    """Exception that unwinds the other ranks' threads once one has failed; it never reaches a user."""


@dataclass
class _Rendezvous:
    """One collective: the members' contributions, and their results once all have arrived."""

    kind: str
    ranks: Ranks
    brought: dict[int, Any] = field(default_factory=dict[int, Any])
    results: dict[int, Any] = field(default_factory=dict[int, Any])


@dataclass(slots=True)
class _Offer:
    """Array that a rank leaves unchanged until another has copied it."""

    array: Array
    taken: bool = False


@dataclass
class _Rank:
    """State of one rank. waits_for: returns whether it may continue. waiting: the call in which it waits. said: its
    announcement."""

    gate: threading.Lock = field(default_factory=threading.Lock)
    waits_for: Callable[[], bool] | None = None
    waiting: str = ""
    said: str = ""
    parked: bool = False
    done: bool = False
    result: Any = None


class World:
    """Ranks of a simulation."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ranks = [_Rank() for _ in range(size)]
        for rank in self.ranks:
            rank.gate.acquire()
        self.failures: list[tuple[int, BaseException]] = []
        self._quiet: list[tuple[int, StoppedByOther]] = []
        self._meetings: dict[tuple[int, Ranks, int], _Rendezvous] = {}
        self._calls: list[defaultdict[tuple[int, Ranks], int]] = [defaultdict(int) for _ in range(size)]
        self._mail: dict[tuple[int, int, int], deque[Array]] = defaultdict(deque)
        self._offers: dict[tuple[int, int], deque[_Offer]] = defaultdict(deque)
        self._finished = threading.Event()

    def run(self, main: Main) -> list[Any]:
        """Call `main(communicator)` on every rank, from rank 0 on, and return the results of the calls. Raise the
        exception of the first rank that failed; the other ranks are unwound."""
        threads = [
            threading.Thread(target=self._body, args=(rank, main), name=f"rank {rank}", daemon=True)
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        self.ranks[0].gate.release()
        try:
            self._finished.wait()
        except KeyboardInterrupt as interrupt:
            self.failures.append((-1, interrupt))
            self._finished.wait(1)
            raise
        for thread in threads:
            thread.join()
        for _, error in [*self.failures, *self._quiet]:
            raise error
        return [rank.result for rank in self.ranks]

    def _body(self, number: int, main: Main) -> None:
        rank = self.ranks[number]
        rank.gate.acquire()
        try:
            if not self.failures:
                rank.result = main(LocalComm(self, number))
        except RankStopped:
            pass
        except StoppedByOther as error:  # the rank that reports the error continues until then
            self._quiet.append((number, error))
        except BaseException as error:  # the caller of `run` gets any exception
            self.failures.append((number, error))
        rank.done = True
        self._hand_over(number)

    def switch(self, number: int) -> None:
        """Let other ranks run; return when this rank runs again. Raise RankStopped if another rank has failed,
        ExecutionError if no rank can continue (deadlock)."""
        if self._hand_over(number):
            self.ranks[number].gate.acquire()
        rank = self.ranks[number]
        if self.failures:
            raise RankStopped
        if rank.waits_for is not None and not rank.waits_for():
            raise self._deadlock(number)
        rank.waits_for = None

    def _hand_over(self, number: int) -> bool:
        """Wake the next rank; return False if it is the caller."""
        following = self._next(number)
        if following == number:
            return False
        if following >= 0:
            self.ranks[following].gate.release()
        elif all(rank.done for rank in self.ranks):
            self._finished.set()
        return True

    def _next(self, number: int) -> int:
        order = [*range(number + 1, self.size), *range(number + 1)]
        alive = [r for r in order if not self.ranks[r].done]
        if self.failures:
            return alive[0] if alive else -1
        for r in alive:
            rank = self.ranks[r]
            if not rank.parked and (rank.waits_for is None or rank.waits_for()):
                return r
        parked = [r for r in sorted(alive) if self.ranks[r].parked]
        for r in parked:
            self.ranks[r].parked = False
        if parked:
            return parked[0]
        speaks = [r for r in alive if self.ranks[r].said]
        return next(iter(speaks or alive), -1)

    def _deadlock(self, number: int) -> ExecutionError:
        alive = [number, *(r for r, rank in enumerate(self.ranks) if r != number and not rank.done)]
        for speaker in (r for r in alive if self.ranks[r].said):
            said = self.ranks[speaker].said
            for other, rank in enumerate(self.ranks):
                if first_line(rank.said) != first_line(said):
                    where = first_line(rank.said) or f"waits in {rank.waiting}"
                    return missed(speaker, said, other, "has ended" if rank.done else where)
        notes: list[str] = []
        for r, rank in enumerate(self.ranks):
            if rank.done:
                notes.append(f"rank {r} has ended")
            elif rank.waiting:
                notes.append(f"rank {r} waits in {rank.waiting}")
        waiting = self.ranks[number].waiting
        return ExecutionError(f"rank {number} would wait for ever in {waiting}", notes=notes)

    def meet(self, number: int, channel: int, kind: str, ranks: Ranks, brought: Any, compute: _Compute) -> Any:
        """Contribute `brought` to the next collective of `ranks`. compute: maps all contributions, in the order of
        `ranks`, to the results of each. Raise ExecutionError if the members call different operations."""
        call = self._calls[number][channel, ranks]
        self._calls[number][channel, ranks] = call + 1
        key = (channel, ranks, call)
        meeting = self._meetings.setdefault(key, _Rendezvous(kind, ranks))
        if meeting.kind != kind:
            other = next(iter(meeting.brought))
            raise ExecutionError(
                f"rank {number} is in {kind} where rank {other} is in {meeting.kind}, of ranks {ranks}", code="E0804"
            )
        meeting.brought[number] = brought
        if len(meeting.brought) == len(ranks):
            del self._meetings[key]
            results = compute([meeting.brought[r] for r in ranks])
            meeting.results = dict(zip(ranks, results, strict=True))
        rank = self.ranks[number]
        rank.waits_for = lambda: bool(meeting.results)
        rank.waiting = f"{kind} with ranks {', '.join(str(r) for r in ranks if r != number)}"
        self.switch(number)
        return meeting.results[number]

    def post(self, source: int, target: int, tag: int, array: Array) -> None:
        """Store a copy of `array` for `target`."""
        self._mail[source, target, tag].append(np.array(array))

    def fetch(self, number: int, wanted: Sequence[tuple[int, int]]) -> list[Array]:
        """Wait for one array from every (rank, tag) in `wanted`, in order."""
        boxes = [self._mail[source, number, tag] for source, tag in wanted]
        needs = [sum(box is other for other in boxes) for box in boxes]
        self._wait(
            number,
            lambda: all(len(box) >= need for box, need in zip(boxes, needs, strict=True)),
            f"a receive from ranks {', '.join(str(source) for source, _ in wanted)}",
        )
        return [box.popleft() for box in boxes]

    def swap(self, number: int, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        """Copy the arrays offered by others directly into the arrays of `receives`; return once everything in `sends`
        has been copied. All is offered before any wait, so that ranks cannot block each other."""
        offers = [_Offer(array) for _, array in sends]
        for (target, _), offer in zip(sends, offers, strict=True):
            self._offers[number, target].append(offer)
        for source, array in receives:
            box = self._offers[source, number]
            if not box:
                self._wait(number, lambda box=box: bool(box), f"a receive from rank {source}")
            offer = box.popleft()
            _fits(offer.array, array.shape, array.dtype, source, number)
            array[...] = offer.array
            offer.taken = True
        if not all(offer.taken for offer in offers):
            to = ", ".join(str(target) for (target, _), offer in zip(sends, offers, strict=True) if not offer.taken)
            self._wait(number, lambda: all(offer.taken for offer in offers), f"a send to ranks {to}")

    def _wait(self, number: int, until: Callable[[], bool], waiting: str) -> None:
        rank = self.ranks[number]
        rank.waits_for, rank.waiting = until, waiting
        self.switch(number)

    def park(self, number: int) -> None:
        """Let every other rank run as far as it can without this one."""
        self.ranks[number].parked = True
        self.switch(number)


class LocalComm(Exchanging):
    """Communicator of one simulated rank."""

    def __init__(self, world: World, rank: int, channel: int = 0) -> None:
        self.world = world
        self.channel = channel
        self.rank = rank
        self.size = world.size

    def for_graph(self, number: int) -> LocalComm:
        """See `Communicator`."""
        return LocalComm(self.world, self.rank, GRAPH_CHANNELS + number)

    def beside(self) -> LocalComm:
        """See `Communicator`."""
        return LocalComm(self.world, self.rank, SIDE_CHANNEL_OFFSET + self.channel)

    def say(self, text: str) -> None:
        """See `Communicator`."""
        self.world.ranks[self.rank].said = text

    def pause(self) -> None:
        """End a step: the other ranks finish theirs before this one continues."""
        self.world.park(self.rank)

    def _meet(self, kind: str, ranks: Ranks, brought: Any, compute: _Compute) -> Any:
        return self.world.meet(self.rank, self.channel, kind, ranks, brought, compute)

    def all_reduce(self, array: Array, op: str, ranks: Ranks) -> Array:
        def compute(parts: list[Array]) -> list[Array]:
            total = combine(parts, op)
            return [total, *(total.copy() for _ in parts[1:])]

        return self._meet(f"AllReduce({op})", ranks, array, compute)

    def all_gather(self, array: Array, ranks: Ranks, axis: int = 0) -> Array:
        def compute(parts: list[Array]) -> list[Array]:
            gathered = np.concatenate(parts, axis)
            return [gathered, *(gathered.copy() for _ in parts[1:])]

        return self._meet("AllGather", ranks, array, compute)

    def reduce_scatter(self, array: Array, op: str, ranks: Ranks, axis: int = 0) -> Array:
        def compute(parts: list[Array]) -> list[Array]:
            return pieces(combine(parts, op), len(parts), axis)

        return self._meet(f"ReduceScatter({op})", ranks, array, compute)

    def all_to_all(self, array: Array, ranks: Ranks, split_dim: int, concat_dim: int) -> Array:
        def compute(parts: list[Array]) -> list[Array]:
            split = [pieces(part, len(parts), split_dim) for part in parts]
            return [np.concatenate([row[i] for row in split], concat_dim) for i in range(len(parts))]

        return self._meet("AlltoAll", ranks, array, compute)

    def exchange_into(self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        self.world.swap(self.rank, sends, receives)

    def broadcast(self, array: Array, root: int, ranks: Ranks) -> Array:
        def compute(parts: list[Array]) -> list[Array]:
            return [np.array(parts[ranks.index(root)]) for _ in parts]

        return self._meet(f"Broadcast(root {root})", ranks, array, compute)

    def send(self, array: Array, rank: int, tag: int = 0) -> None:
        self.world.post(self.rank, rank, tag, array)

    def receive(self, rank: int, tag: int, shape: tuple[int, ...], dtype: Any) -> Array:
        (array,) = self.world.fetch(self.rank, [(rank, tag)])
        _fits(array, shape, dtype, rank, self.rank)
        return array

    def barrier(self, ranks: Ranks) -> None:
        self._meet("Barrier", ranks, None, lambda parts: [True for _ in parts])


def _fits(array: Array, shape: tuple[int, ...], dtype: Any, source: int, target: int) -> None:
    if array.shape != tuple(shape) or array.dtype != np.dtype(dtype):
        raise ExecutionError(
            f"rank {target} expects {np.dtype(dtype).name} of shape {tuple(shape)} from rank {source}, "
            f"but {array.dtype.name} of shape {array.shape} arrives"
        )
