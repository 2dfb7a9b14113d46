"""Runs work in processes that are watched: what takes too long, or ends its process, is named, and the rest goes on."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

BATCH = 20
"""How many seeds a process takes."""


@dataclass(frozen=True)
class Outcome:
    """The result of one seed. text: its script."""

    seed: int
    kind: str
    message: str = ""
    text: str = ""


@dataclass
class _Worker:
    """A process, the seeds that it has not told of, and when the first of them has taken too long."""

    process: Any
    pipe: Connection
    seeds: list[int] = field(default_factory=list[int])
    late: float = 0.0


def watched(
    work: Callable[[int], Outcome], seeds: Sequence[int], processes: int, seconds: float, hangs: str
) -> Iterator[Outcome]:
    """The outcomes of all seeds, as they come. hangs: what is said of a seed that takes longer than `seconds`."""
    batches = [list(seeds[i : i + BATCH]) for i in range(0, len(seeds), BATCH)]
    batches.reverse()
    workers: list[_Worker] = []
    try:
        while workers or batches:
            while batches and len(workers) < processes:
                workers.append(_start(work, batches.pop(), seconds))
            wait([worker.pipe for worker in workers], timeout=0.5)
            for worker in list(workers):
                yield from _told(worker, seconds)
                lost = worker.late < time.monotonic()
                if worker.seeds and not lost and worker.process.is_alive():
                    continue
                if worker.seeds:
                    worker.process.kill()
                    worker.process.join()
                    yield from _told(worker, seconds)  # what it said meanwhile
                if worker.seeds:
                    what = f"takes more than {seconds:g} s" if lost else f"ended its process: {worker.process.exitcode}"
                    yield Outcome(worker.seeds.pop(0), hangs, what)
                if worker.seeds:
                    batches.append(worker.seeds)
                workers.remove(worker)
                worker.process.join()
    finally:
        for worker in workers:
            worker.process.kill()


def _start(work: Callable[[int], Outcome], seeds: list[int], seconds: float) -> _Worker:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(work, list(seeds), there), daemon=True)
    process.start()
    there.close()
    return _Worker(process, here, list(seeds), time.monotonic() + seconds)


def _work(work: Callable[[int], Outcome], seeds: list[int], pipe: Connection) -> None:
    for seed in seeds:
        pipe.send(work(seed))


def _told(worker: _Worker, seconds: float) -> Iterator[Outcome]:
    """The outcomes that a process has sent since."""
    try:
        while worker.seeds and worker.pipe.poll():
            outcome = worker.pipe.recv()
            worker.seeds.pop(0)
            worker.late = time.monotonic() + seconds
            yield outcome
    except EOFError:  # it has ended
        return
