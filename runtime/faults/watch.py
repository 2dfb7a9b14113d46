"""The watch monitors the ranks of a job on one host, so that a rank that dies or stops ends the job with a message.

All ranks map one small file. Each writes its position there: its process, its step, its node, and the ranks it waits
for. A thread of every rank waits for the others' processes to end and reads the file a few times a second. MPI itself
would let the remaining ranks wait for ever, or end them without a message about the network.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

from mspc.ir.diagnostics import ExecutionError, shown_ranks
from mspc.ir.files.atomic_writing import remove_unfinished
from mspc.ir.graph import Graph
from mspc.runtime.faults.call_log import FOLDER, VARIABLE, CallLog, remove_records
from mspc.runtime.faults.record import (
    ENDED,
    FAILED,
    GRAPH,
    LOOPS,
    MARK,
    MAX_LOOPS,
    NODE,
    PID,
    RUNNING,
    STATE,
    STEP,
    TURNS,
    WORDS,
    JobFile,
    first_line,
    missed,
    read_text,
    shown_turns,
    tell,
    write_text,
)
from mspc.runtime.faults.recorded_calls import RankEnd
from mspc.runtime.faults.stopped import (
    NAMED,
    PATIENCE,
    STOPPED,
    DeadlockDetector,
    Idle,
    Stalled,
    Start,
    Stopped,
    Verdict,
    Wait,
    WaitingNode,
    behind,
    find,
    for_messages,
    in_group,
    meetings,
    name_of,
    orphaned,
    remove_files_of_job,
    state_of,
    unpacked,
)

BEFORE = "before its first step"
"""Place of a rank that has not begun to run a graph."""

IS_STUCK = 1
"""Word of the job's own record that is set when its ranks are to write fault records; word 0 is of the message."""

LONGER = "mspc run --timeout SECONDS waits longer"

TICK = 0.25
"""Seconds between two looks at the other ranks."""

Describe = Callable[[int, int, int], ExecutionError]
"""Function from (rank, number of the graph, node index) to an error whose message is `at NODE` and whose frames are the
node's."""


class JobWatch:
    """Record of this rank in the job's file, and the thread that reads the others'.

    Args:
        rank, size: of the job. name: the job's own name, the same on all its ranks. siblings: processes of this host's
        ranks, by rank, for those that have no record yet.

    describe, graph_of: (rank, number of the graph[, node index]) to the place of a rank, and to its graph.
    in_group, for_messages: return the context of this rank in a collective, and in messages, see the functions of these
    names in `stopped`. marks: reads the mark of this rank's GPU, see `stopped.packed`. patience: in seconds, see there.
    """

    def __init__(
        self, rank: int, size: int, name: str, siblings: Callable[[], Mapping[int, int]] | None = None
    ) -> None:
        self.rank = rank
        self.size = size
        self.describe: Describe | None = None
        self.graph_of: Callable[[int, int], Graph] | None = None
        self.marks: Callable[[], int] | None = None
        self.patience = PATIENCE
        self.session_folder = ""
        """Folder of mpirun for the duration of the job, which the rank removes if mpirun cannot."""
        self._file = JobFile(name, 8 * WORDS * (size + 1))
        self._words = memoryview(self._file.memory).cast("q")
        self._own = self.record(rank)
        self.cursor = self._own[NODE:]
        self._log = CallLog(self._own)
        self.in_group = cache(partial(in_group, self._own, log=self._log))
        self.for_messages = cache(partial(for_messages, self._own, rank, log=self._log))
        self._records = Path(os.environ.get(VARIABLE) or FOLDER).absolute()
        self._records_name = os.path.relpath(self._records)  # a script may change the working folder later
        self._ends: dict[int, RankEnd | None] = {rank: None}
        """Ends of ranks whose fault records this one writes: its own, and that of a rank that was killed."""
        self._own[NODE] = -1
        self._own[PID] = os.getpid()
        self._own[STATE] = RUNNING
        self._parent = os.getppid()
        self._parent_name = name_of(self._parent)
        self._over = False
        self._is_ready = self._has_ended = self._is_saved = False
        self._reader, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._halted = Stopped([self.record(r) for r in range(size)], siblings)
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def record(self, rank: int) -> Any:
        """Return a rank's record, see `runtime.faults.record`."""
        return self._words[WORDS * (rank + 1) : WORDS * (rank + 2)]

    def start(self) -> None:
        """Begin to watch, before the others have come up.

        Must be called from the main thread, in which Python handles signals.
        """
        self._thread.start()
        # Python's own handlers run between two lines of the main thread, which may never come while it waits in MPI;
        # the wake-up pipe is written at once.
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)

    def ready(self) -> None:
        """Note that every rank has made its record: the file needs no name from now on."""
        self._is_ready = True
        self._halted.complete()
        self._file.remove()

    def graph(self, number: int, step: int) -> None:
        """Note that this rank begins a step of its graph `number`."""
        self._own[GRAPH] = number
        self._own[STEP] = step
        self._own[LOOPS] = 0

    def say(self, text: str) -> None:
        """Announce this rank's next meeting with the others outside of a graph; "" if there is none any more."""
        self._log.say(text)
        write_text(self._own, text)

    def said(self, rank: int) -> str:
        """Return the last text that a rank has written."""
        return read_text(self.record(rank))

    def end(self) -> None:
        """Note that this rank has finished its work and waits for the others to finish theirs."""
        self._own[NODE] = -1
        self._own[STATE] = ENDED
        self._has_ended = True

    def stop(self) -> None:
        """Stop watching: every rank has ended."""
        self._over = True
        signal.set_wakeup_fd(-1)
        os.write(self._wake, b"\0")
        self._thread.join(2)

    # Ending the job
    # --------------------------------------------------------------------------------------------

    def fail(
        self, text: str, status: int, quiet: bool = False, stuck: bool = False, end: RankEnd | None = None
    ) -> NoReturn:
        """End the job because of this rank: print `text` unless another rank was first (`quiet`: another rank will be),
        and end the process without MPI's finalization, which would wait for the others. stuck: the job hangs. If it
        does, or this rank has this `end`, the ranks write their fault records."""
        self._ends[self.rank] = end
        is_recorded = self.size > 1 and (stuck or end is not None)
        if is_recorded:
            self._words[IS_STUCK] = 1
        self._own[STATE] = FAILED
        sys.stdout.flush()
        if quiet:
            time.sleep(1.5)
        elif self._claim():
            if is_recorded:
                remove_records(self._records)
            tell(text)
            if stuck:
                tell(f"note: mspc explain-hang {self._records_name} compares the calls of the ranks")
        else:
            time.sleep(0.1)  # the rank that was first removes records of an earlier job
            self._write_calls()
            time.sleep(0.4)  # it is still writing its message
        self._leave(status)

    def _leave(self, status: int) -> NoReturn:
        self._write_calls()
        if not self._is_ready:
            self._file.remove()
        os._exit(status)

    def _write_calls(self) -> None:
        """Write the fault record of this rank once if the job hangs; a failure must not hide the message of the job.
        mpirun kills a rank a second after another one has failed."""
        if not self._words[IS_STUCK] or self._is_saved:
            return
        self._is_saved, graph_of = True, self.graph_of
        with suppress(Exception):
            self._records.mkdir(parents=True, exist_ok=True)
            own = None if graph_of is None else lambda number: graph_of(self.rank, number)
            for rank, end in self._ends.items():
                place = "at its end" if rank == self.rank and self._has_ended else self.place(rank).message
                log = self._log if rank == self.rank else CallLog(self.record(rank))
                log.write(self._records / f"rank_{rank}.json", own, place, end)

    def _claim(self) -> bool:
        """Return whether this rank is the one that prints the job's message."""
        try:
            fcntl.lockf(self._file.descriptor, fcntl.LOCK_EX)
        except OSError:
            return True
        first = self._words[0] == 0
        self._words[0] = 1
        fcntl.lockf(self._file.descriptor, fcntl.LOCK_UN)
        return first

    def place(self, rank: int) -> ExecutionError:
        """Return the place of `rank`, as an error that names node and source line."""
        record = self.record(rank)
        step, node, graph = record[STEP], record[NODE], record[GRAPH]
        mark = unpacked(record[MARK])
        if mark is not None and node < 0:
            step, graph, node = mark.step, mark.graph, -1 if mark.over else mark.index
        if node < 0 or step <= 0 or self.describe is None:
            return ExecutionError(f"after step {step}" if step > 0 else BEFORE)
        try:
            error = self.describe(rank, graph, node)
        except Exception:  # the place is optional; the message must come out in any case
            return ExecutionError(f"in step {step}, node {node}")
        loops = min(max(0, record[LOOPS]), MAX_LOOPS) if record[NODE] == node else 0
        turns = shown_turns(record[TURNS : TURNS + loops])
        return ExecutionError(f"in step {step}, {error.message}{turns}", frames=error.frames)

    def end_job(self, rank: int, what: str, notes: Sequence[str] = ()) -> NoReturn:
        """End the job, which hangs, with a message about a rank, and the source lines of its place."""
        self.fail(ExecutionError(what, notes=notes, frames=self.place(rank).frames).render(), 1, stuck=True)

    # The thread
    # --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        processes: dict[int, int] = {}
        unknown = {rank for rank in range(self.size) if rank != self.rank}
        records = [self.record(rank) for rank in range(self.size)]
        stuck, stalled, idle = DeadlockDetector(records), Stalled(records, self.patience), Idle(records)
        start = Start(self.rank, records)
        while not self._over:
            unknown = self._follow(unknown, processes, poll)
            events = poll.poll(TICK * 1000)
            if self._over:
                return
            if self.marks is not None:
                self._own[MARK] = self.marks()
            if os.getppid() != self._parent:
                remove_files_of_job(self.session_folder)  # nobody else would end the job or remove its files
                said = orphaned(self._parent_name, self.rank, self.place(self.rank).message)
                self.fail(ExecutionError(said).render(), 1)
            gone = [processes[d] for d, _ in events if d in processes]
            for descriptor, _ in events:
                if descriptor in processes:
                    poll.unregister(descriptor)
            if any(descriptor == self._reader for descriptor, _ in events):
                self._signalled(os.read(self._reader, 64), gone)
            for rank in gone:
                self._ended(rank)
            now = time.monotonic()
            halted = self._halted.look(now)
            self.judge_stopped(halted)
            self._judge_idle(idle, idle.look(now, halted))
            if not self._is_ready and (seconds := start.look(now, halted)) >= self.patience:
                self._report_start(seconds)
            found = None if gone else stuck.look(now, halted)
            if found is not None:
                self._report_stuck(*found)
            stalled.patience = self.patience
            if not halted and stalled.look(now):
                self._judge(records)

    def _follow(self, unknown: set[int], processes: dict[int, int], poll: select.poll) -> set[int]:
        """Watch the processes of ranks that have come up since; return the ranks that are still unknown."""
        for rank in sorted(unknown):
            pid = self.record(rank)[PID]
            if not pid:
                continue
            unknown = unknown - {rank}
            try:
                descriptor = os.pidfd_open(pid)
            except (OSError, AttributeError):
                continue
            processes[descriptor] = rank
            poll.register(descriptor, select.POLLIN)
        return unknown

    def judge_stopped(self, halted: Mapping[int, float]) -> None:
        """Name ranks that are stopped, and end the job if one is for too long. Only the first rank that runs does this.
        halted: seconds by rank."""
        to_name = self._halted.to_name(halted)
        running = [r for r in range(self.size) if r not in halted and self.record(r)[STATE] in (RUNNING, ENDED)]
        if not halted or running[:1] != [self.rank]:
            return
        for rank in to_name:
            pid, place = self._halted.pid(rank), self.place(rank)
            text = f"note: rank {rank} has been stopped for {NAMED:g} s {place.message}; kill -CONT {pid} lets it go on"
            tell(f"{text}, and the job ends after {self.patience:g} s ({LONGER})")
        for rank, seconds in halted.items():
            if seconds >= self.patience and state_of(self._halted.pid(rank)) == STOPPED:
                what = f"rank {rank} has been stopped for {seconds:.0f} s {self.place(rank).message}"
                self.end_job(rank, what, [f"{LONGER} for a rank that is stopped"])

    def _judge_idle(self, idle: Idle, waits: Sequence[Wait]) -> None:
        """Name awaited ranks that do nothing, and end the job if one does nothing for too long. The rank that waits for
        it does this."""

        def said(wait: Wait) -> str:
            where = first_line(self.said(wait.rank)) or f"waits {self.place(wait.rank).message}"
            return (f"rank {wait.rank} {where}, for rank {wait.idle}, which has done nothing for {wait.seconds:.0f} s "
                    f"{self.place(wait.idle).message}")  # fmt: skip

        own = [wait for wait in waits if wait.rank == self.rank]
        for wait in idle.to_name(own):
            tell(f"note: {said(wait)}; the job ends after {self.patience:g} s ({LONGER})")
        for wait in own:
            if wait.seconds >= self.patience:
                self.end_job(wait.rank, said(wait), [f"its process is {self.record(wait.idle)[PID]}; {LONGER}"])

    def _report_start(self, seconds: float) -> NoReturn:
        """End the job, whose ranks have come up and do not reach each other. seconds: time without any movement."""
        here = sum(bool(self.record(rank)[PID]) for rank in range(self.size))
        whose = "all ranks have" if here == self.size else f"all {here} ranks of this host have"
        what = f"rank {self.rank} waits before its first step for a message that MPI does not deliver: {whose} come up"
        notes = [
            f"nothing has moved for {seconds:.0f} s; {LONGER}",
            "a rank may be unable to map the memory that ranks share: see the messages of MPI above, the space in "
            "/dev/shm and the limits of memory (ulimit -v)",
        ]
        self.fail(ExecutionError(what, notes=notes).render(), 1)

    def _report_stuck(self, rank: int, other: int) -> NoReturn:
        if not self.said(rank) and self.said(other) and self.record(other)[STATE] == RUNNING:
            rank, other = other, rank
        if self.said(rank):
            where = first_line(self.said(other)) or f"is {self.place(other).message}"
            where = "has ended" if self.record(other)[STATE] == ENDED else where
            self.fail(missed(rank, self.said(rank), other, where, self.place(rank).frames).render(), 1, stuck=True)
        notes: list[str] = []
        what = f"rank {other} has ended while rank {rank} waits for it"
        if self.record(other)[STATE] != ENDED:
            what = f"rank {rank} waits for rank {other}, which waits elsewhere"
            notes = [
                f"rank {other} is {self.place(other).message}",
                "every rank must call the same networks and read the same sharded parameters, in one order",
            ]
        self.end_job(rank, f"{what}: {self.place(rank).message}", notes)

    def _judge(self, records: list[Any]) -> None:
        """End the job, in which nothing moves, if a GPU waits for a rank that has not come."""
        schedules: dict[tuple[int, int], list[WaitingNode]] = {}

        def schedule(rank: int, graph: int) -> list[WaitingNode]:
            if self.graph_of is None:
                return []
            if (rank, graph) not in schedules:
                try:
                    schedules[rank, graph] = meetings(self.graph_of(rank, graph), rank)
                except Exception:  # of another rank, whose graph is not available here; most graphs are alike
                    schedules[rank, graph] = meetings(self.graph_of(self.rank, graph), self.rank)
            return schedules[rank, graph]

        marks = {rank: unpacked(record[MARK]) for rank, record in enumerate(records)}
        verdict = find(marks, schedule)
        if verdict is not None:
            reasons = [behind(verdict, m, marks[m], records[m], schedule) for m in verdict.missing]
            self._report_missing(verdict, reasons)

    def _report_missing(self, verdict: Verdict, reasons: list[str]) -> NoReturn:
        at = f"at {verdict.at.what} ({shown_ranks(verdict.at.ranks)})"
        what = f"rank {verdict.rank} waits in step {verdict.mark.step} {at} for {shown_ranks(verdict.missing)}"
        many = len(set(reasons)) > 1
        notes = [f"rank {m} {reason}" for m, reason in zip(verdict.missing, reasons, strict=True)] if many else []
        if "has ended" not in reasons:
            notes.append(f"no rank has moved for {self.patience:g} s; {LONGER}")
        self.end_job(verdict.rank, what if many else f"{what}, which {reasons[0]}", notes)

    def _signalled(self, numbers: bytes, gone: list[int]) -> None:
        if signal.SIGTERM in numbers:
            # Open MPI ends the other ranks when one has died; the dead one is named first.
            for rank in (*gone, *(r for r in range(self.size) if r not in gone and self._is_dead(r))):
                self._check_state(rank)
            self._write_calls()
        for number, seconds in ((signal.SIGTERM, 0.2), (signal.SIGINT, 0.5)):
            if number in numbers:
                time.sleep(seconds)  # the main thread may be able to end by itself
                sys.stdout.flush()
                remove_unfinished()
                self._leave(128 + number)

    def _check_state(self, rank: int) -> None:
        """End the job if the process of a rank has ended before its work."""
        if self.record(rank)[STATE] == RUNNING:
            place = self.place(rank)
            stack = [f"{frame.file}:{frame.line}" for frame in place.frames]
            self._ends[rank] = RankEnd("was killed or left without a word", tuple(stack))
            self.end_job(rank, f"rank {rank} was killed or left without a word {place.message}")

    def _ended(self, rank: int) -> None:
        self._check_state(rank)
        if self.record(rank)[STATE] == FAILED:
            self._write_calls()
            time.sleep(1.0)  # Open MPI ends this process, or else it ends itself
            self._leave(1)

    def _is_dead(self, rank: int) -> bool:
        pid = self.record(rank)[PID]
        return bool(pid) and rank != self.rank and state_of(pid) in ("", "Z", "X")
