"""Backend of kernels: the array module and the communicator that they use."""

from __future__ import annotations

from typing import Any

import numpy

from mspc.ir.late_dataclass import dataclass
from mspc.runtime.comm.interface import Communicator


@dataclass(slots=True)
class NumPyBackend:
    """Array module and state of kernels on the CPU.

    xp: NumPy. comm: connects this rank with the others. step: number of the run. turns: iteration numbers of the loops
    around the running node, outermost first. calls: numbers of the enclosing nodes that share their graphs. Random
    masks depend on `step`, `turns` and `calls`. halves: kernels may get Float16 or BFloat16. planned_from: bytes from
    which a result's memory is planned; small arrays come from the allocator's free lists. loop_limit: seconds that a
    loop with an unknown number of iterations may take, 0 for no limit. taken: None, or a set that receives the regions
    that run.
    """

    comm: Communicator
    xp: Any = numpy
    step: int = 0
    turns: tuple[int, ...] = ()
    calls: tuple[int, ...] = ()
    loop_limit: float = 0.0
    halves: bool = True
    planned_from: int = 16384
    taken: set[Any] | None = None
