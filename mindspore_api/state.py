"""This module has the state of one rank's session, and is the one holder of the session that runs now.

A process under mpirun has one session. A simulation has one per rank and puts the right one in place
(`swap`) whenever the turn changes. This holder is the only global state of mspc.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from mspc.ir.diagnostics import Location
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.call_handler import backend


@dataclass
class Session:
    """Everything that differs between ranks or outlives a call.

    rank, size: of the job of all ranks. local_rank, local_size: on this host.
    launched: rank and size were set by a launcher and win over the environment.
    claimed: ranks that the environment speaks of if no launcher has started this process, else 0.
    initialized: `init()` was called. backend: its argument, "nccl", or "" for none.
    seed: of `set_seed`, None before. dataset_seed: of `dataset.config.set_seed`, which wins for data sets.
    initializers: how many initial values were requested so far. shuffles, dropouts: how many random stages
        of data sets and dropout layers were made. draws: how many random operators without seeds ran outside of a
        network.
    groups: user-made groups of ranks by name.
    general, parallel, offload: the values set by `set_context`, `set_auto_parallel_context` and `set_offload_context`.
    asked: how and where the script wrote some of them. set_at: the lines that have set them, and called `init`.
    said: what was warned of. speaks: whether this rank warns for all.
    background: what writes checkpoints while the script continues. resumed: folders and prefixes of the checkpoints
        that the run resumes from.
    frozen: (what the context was last frozen from, the result), so that calls in a row need not do it again.
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
        """Rank and size as the launcher of this process says; one rank without one."""
        return cls(**backend().launched_rank())

    @classmethod
    def of_rank(cls, rank: int, size: int) -> Session:
        """A session that a launcher makes for one rank of a job on this host."""
        return cls(rank=rank, size=size, local_rank=rank, local_size=size, launched=True, speaks=rank == 0)


_holder: list[Session] = []


def current() -> Session:
    """The session of the rank that runs now."""
    if not _holder:
        _holder.append(Session.from_environment())
    return _holder[0]


def swap(session: Session) -> Session:
    """Put another session in place and return the one that was there."""
    before = current()
    _holder[0] = session
    return before
