"""What ranks settle before their first step: that all can start, and that they hold graphs of one compile."""

from __future__ import annotations

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.runtime.comm.interface import Communicator, fingerprint
from mspc.runtime.faults.failure import StoppedByOther


def agree(comm: Communicator, compile_id: str, folder: str = "") -> None:
    """Make sure that all ranks hold graphs of one compile; all ranks call this before their first step.

    Raises:
        MspcError: some hold another; status 2.
    """
    if comm.size == 1:
        return
    everyone = tuple(range(comm.size))
    own = fingerprint(compile_id)
    found = comm.all_gather(own[None], everyone, 0)
    different = [rank for rank in everyone if not np.array_equal(found[rank], found[0])]
    if not different:
        return
    ranks = ", ".join(map(str, different[:8])) + (", ..." if len(different) > 8 else "")
    raise MspcError(
        f"the ranks hold graphs of different compiles: rank{'s' if len(different) > 1 else ''} {ranks} "
        f"and rank 0 differ; rank {comm.rank} holds {compile_id}" + (f" from {folder}" if folder else ""),
        notes=["compile once and run that on all ranks; a script must build the same network on every rank"],
    )


def stop_together(comm: Communicator, error: MspcError | None) -> None:
    """Raise on every rank when one rank cannot start, so that no other waits for it; all ranks call this
    together.

    Raises:
        MspcError: this rank's own `error`. StoppedByOther: another rank has one.
    """
    if comm.size == 1:
        if error is not None:
            raise error
        return
    found = comm.all_gather(np.array([error is not None]), tuple(range(comm.size)), 0)
    if error is not None:
        raise error
    if found.any():
        raise StoppedByOther(f"rank {int(np.argmax(found))} cannot start")
