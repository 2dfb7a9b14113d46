"""Collectives that a script calls outside a network, run after the ranks have agreed on them."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from mspc.compiler.call import Call, Placed, call_tensors
from mspc.engine.job import Job
from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError, ranks_listed
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.types import Type
from mspc.mindspore_api.errors import caller_location
from mspc.ops.collective.base import Collective, Rendezvous
from mspc.ops.collective.point_to_point import Receive, Send
from mspc.ops.op import Op, RequestedSharding
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.agreement import gathered
from mspc.runtime.comm.interface import Communicator
from mspc.runtime.faults.record import StoppedByOther
from mspc.runtime.faults.stopped import shown_ranks

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
