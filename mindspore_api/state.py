"""State of one rank's session, and the holder of the current session.

A process under mpirun has one session. A simulation has one per rank and exchanges them (`swap`) whenever another rank
continues. This holder is the only global state of mspc.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from mspc.ir.diagnostics import Location
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.call_handler import backend


@dataclass
class Session:
    """State that differs between ranks or outlives a call.

    rank, size: of the job of all ranks. local_rank, local_size: on this host.
    launched: rank and size were set by a launcher and win over the environment.
    claimed: number of ranks in the environment if no launcher has started this process, else 0.
    initialized: `init()` was called. backend: its argument, "nccl", or "" for none.
    seed: of `set_seed`, None before. dataset_seed: of `dataset.config.set_seed`, which wins for data sets.
    initializers: number of initial values requested so far. shuffles, dropouts: number of random nodes of data sets and
    of dropout layers made. draws: number of random operators without seeds that ran outside of a network.
    groups: user-made groups of ranks by name.
    general, parallel, offload: the values set by `set_context`, `set_auto_parallel_context` and `set_offload_context`.
    asked: text and place of some of them in the script. set_at: the lines that set them, and that called `init`.
    said: names of warnings already printed. speaks: whether this rank warns for all.
    background: writer of checkpoints while the script continues. resumed: folders and prefixes of the checkpoints from
    which the run resumes.
    frozen: (inputs of the last freeze of the context, the result), so that consecutive calls reuse it.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launched: bool = False
    claimed: int = 0
    initialized: bool = False
    backend: str = ""
    seed: int | None = None
    dataset_seed: int | None = None
    initializers: int = 0
    shuffles: int = 0
    dropouts: int = 0
    draws: int = 0
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    general: dict[str, Any] = field(default_factory=dict)
    parallel: dict[str, Any] = field(default_factory=dict)
    offload: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, tuple[str, str]] = field(default_factory=dict)
    set_at: dict[str, Location] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)
    speaks: bool = True
    background: Any = None
    resumed: set[tuple[str, str]] = field(default_factory=set)
    frozen: Any = None

    @classmethod
    def from_environment(cls) -> Session:
        """Return a session with rank and size from the launcher of this process; one rank without a launcher."""
        return cls(**backend().launched_rank())

    @classmethod
    def of_rank(cls, rank: int, size: int) -> Session:
        """Return a session for one rank of a job on this host, made by a launcher."""
        return cls(rank=rank, size=size, local_rank=rank, local_size=size, launched=True, speaks=rank == 0)


_holder: list[Session] = []


def current() -> Session:
    """Return the session of the rank that runs now."""
    if not _holder:
        _holder.append(Session.from_environment())
    return _holder[0]


def swap(session: Session) -> Session:
    """Put another session in place and return the one before."""
    before = current()
    _holder[0] = session
    return before
