"""This module writes the messages about ranks that are stopped or idle, and ends the job of one that is so for too
long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from mspc.ir.diagnostics import ExecutionError
from mspc.runtime.faults.failure import first_line, tell
from mspc.runtime.faults.idle import Idle, Wait
from mspc.runtime.faults.record import ENDED, PID, RUNNING, STATE
from mspc.runtime.faults.stopped import NAMED, STOPPED, Stopped, state_of


class Watching(Protocol):
    """The part of this rank's `Watch` that is used here."""

    rank: int
    size: int
    patience: float

    def record(self, rank: int) -> Any: ...
    def place(self, rank: int) -> ExecutionError: ...
    def said(self, rank: int) -> str: ...
    def fail(self, text: str, status: int, quiet: bool = False) -> NoReturn: ...


def judge_stopped(watch: Watching, stopped: Stopped, halted: Mapping[int, float]) -> None:
    """Name ranks that are stopped, and end the job for one that is for too long; the first rank that runs does.
    halted: seconds by rank."""
    to_name = stopped.to_name(halted)
    running = [r for r in range(watch.size) if r not in halted and watch.record(r)[STATE] in (RUNNING, ENDED)]
    if not halted or running[:1] != [watch.rank]:
        return
    for rank in to_name:
        pid, place = stopped.pid(rank), watch.place(rank)
        text = f"note: rank {rank} has been stopped for {NAMED:g} s {place.message}; kill -CONT {pid} lets it go on"
        tell(f"{text}, and the job ends after {watch.patience:g} s (mspc run --timeout SECONDS waits longer)")
    for rank, seconds in halted.items():
        if seconds >= watch.patience and state_of(stopped.pid(rank)) == STOPPED:
            place = watch.place(rank)
            what = f"rank {rank} has been stopped for {seconds:.0f} s {place.message}"
            notes = ["mspc run --timeout SECONDS waits longer for a rank that is stopped"]
            watch.fail(ExecutionError(what, notes=notes, frames=place.frames).render(), 1)


def judge_idle(watch: Watching, idle: Idle, waits: Sequence[Wait]) -> None:
    """Name ranks that are waited for and do nothing, and end the job for one that does not for too long; the rank that
    waits for it does."""
    own = [wait for wait in waits if wait.rank == watch.rank]
    for wait in idle.to_name(own):
        tell(f"note: {_waits_for(watch, wait)}; the job ends after {watch.patience:g} s (mspc run --timeout SECONDS "
             "waits longer)")  # fmt: skip
    for wait in own:
        if wait.seconds >= watch.patience:
            notes = [f"its process is {watch.record(wait.idle)[PID]}; mspc run --timeout SECONDS waits longer"]
            frames = watch.place(wait.rank).frames
            watch.fail(ExecutionError(_waits_for(watch, wait), notes=notes, frames=frames).render(), 1)


def judge_start(watch: Watching, seconds: float) -> None:
    """End the job if its ranks have come up and do not reach each other. seconds: for which nothing has moved."""
    if seconds < watch.patience:
        return
    here = sum(bool(watch.record(rank)[PID]) for rank in range(watch.size))
    whose = "all ranks have" if here == watch.size else f"all {here} ranks of this host have"
    what = f"rank {watch.rank} waits before its first step for a message that MPI does not deliver: {whose} come up"
    notes = [
        f"nothing has moved for {seconds:.0f} s; mspc run --timeout SECONDS waits longer",
        "a rank may be unable to map the memory that ranks share: see the messages of MPI above, the space in /dev/shm "
        "and the limits of memory (ulimit -v)",
    ]
    watch.fail(ExecutionError(what, notes=notes).render(), 1)


def _waits_for(watch: Watching, wait: Wait) -> str:
    where = first_line(watch.said(wait.rank)) or f"waits {watch.place(wait.rank).message}"
    return (f"rank {wait.rank} {where}, for rank {wait.idle}, which has done nothing for {wait.seconds:.0f} s "
            f"{watch.place(wait.idle).message}")  # fmt: skip
