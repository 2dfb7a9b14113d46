"""A backend is the array module and the communicator with which kernels work."""

from __future__ import annotations

from typing import Any

import numpy

from mspc.ir.late_dataclass import dataclass
from mspc.runtime.comm.interface import Communicator


@dataclass(slots=True)
class NumPyBackend:
    """Kernels on the CPU: `xp` is NumPy, `comm` connects this rank with the others, `step` counts the runs and `turns`
    those of the loops around the node that runs, the outermost first, `calls` the numbers of nodes around it that share
    their graphs (random masks depend on all three), `halves` says
    whether kernels may meet Float16 or BFloat16, `planned_from` from how many bytes on a result's memory is planned;
    small arrays come from the allocator's own lists. `loop_limit`: seconds that a loop may take whose turns nobody has
    counted ahead; 0: any time. `taken`: gets the graphs of branches that run, if it is a set."""

    comm: Communicator
    xp: Any = numpy
    step: int = 0
    turns: tuple[int, ...] = ()
    calls: tuple[int, ...] = ()
    loop_limit: float = 0.0
    halves: bool = True
    planned_from: int = 16384
    taken: set[Any] | None = None
