"""Notes where in its script a rank waits for the others, for the message that is printed if they never come."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import numpy as np

from mspc.api.errors import caller_location
from mspc.compiler.call import Call, Placed, call_tensors
from mspc.engine.job import Job
from mspc.ir.diagnostics import MspcError
from mspc.runtime.comm.interface import Communicator

LONGEST = 512
"""Bytes of a rank's description that others are shown."""
ALIKE = (
    "every rank must feed tensors of the same shapes at every step; in a data set, batch(..., drop_remainder=True) "
    "and as many rows on every rank make them so"
)
TOGETHER = (
    "every rank holds a slice, so all must read it: call save_checkpoint() or asnumpy() on every rank, not below "
    "`if get_rank() == 0`; what they return may then be used on rank 0 alone"
)
EVERYONE = (
    "metrics are those of the data of all ranks, so all must evaluate: call Model.eval and Model.fit on every rank, "
    "not below `if get_rank() == 0`"
)


@contextlib.contextmanager
def joint_call(job: Job, what: str, how: str, *notes: str) -> Generator[None]:
    """A context in which this rank does `what` ("reads ...") at a line of the script, `how`, and needs the others."""
    if job.size == 1:
        yield
        return
    place = caller_location()
    where = f" at {place.file}:{place.line}" if place else ""
    line = (f"the line is {place.text.strip()}",) if place else ()
    job.say("\n".join((f"{what}{where}{how}", *line, *notes)))
    yield
    job.say("")  # not after a failure: then it is still what the rank was about


def described(call: Call) -> str:
    """The tensors of a call, for messages: `Float32 (3, 4), Int32 (3,)`."""
    types = [t.type if isinstance(t, Placed) else t for t in call_tensors(call)]
    return ", ".join(f"{t.dtype} {t.shape}" for t in types) or "no tensors"


def name_of(target: Any) -> str:
    """What a target is called in messages."""
    return getattr(target, "__name__", "") or type(target).__name__


def different_calls(comm: Communicator, target: Any, call: Call) -> MspcError | None:
    """The error of ranks that call a network with tensors of different shapes; all ranks call this together. None where
    they do not."""
    own = described(call).encode()[:LONGEST].ljust(LONGEST)
    rows = comm.all_gather(np.frombuffer(own, np.uint8)[None], tuple(range(comm.size)), 0)
    texts = [bytes(row).rstrip().decode(errors="ignore") for row in rows]
    if len(set(texts)) == 1:
        return None
    ranks = {text: [r for r, other in enumerate(texts) if other == text] for text in texts}
    shown = [f"rank{'s' * (len(who) > 1)} {_listed(who)} with {text}" for text, who in ranks.items()]
    place = caller_location()
    return MspcError(f"the ranks call {name_of(target)} with different tensors: {'; '.join(shown)}", place, [ALIKE])


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
