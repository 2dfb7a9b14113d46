"""A backend is the array module and the communicator with which kernels work."""

from __future__ import annotations

from typing import Any

import numpy

from mspc.ir.late_dataclass import dataclass
from mspc.runtime.comm.interface import Communicator


@dataclass(slots=True)
class NumPyBackend:
    """Array module and state of kernels on the CPU.

    xp: NumPy. comm: connects this rank with the others. step: number of runs. turns: numbers of the iterations of the
    loops around the running node, the outermost first. calls: numbers of the nodes around it that share their graphs.
    Random masks depend on `step`, `turns` and `calls`. halves: whether kernels may meet Float16 or BFloat16.
    planned_from: bytes from which a result's memory is planned; small arrays come from the allocator's own lists.
    loop_limit: seconds that a loop may take if its number of iterations is not known before it runs; 0: any time.
    taken: if it is a set, receives the graphs of branches and loops that run.
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
