"""Parameters that stages of a pipeline hold: their ranks hand values to those of all others."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.engine.job import Job
from mspc.engine.synchronization_points import TOGETHER, joint_call
from mspc.ir.graph import Parameter as GraphParameter
from mspc.ir.layout import Layout
from mspc.ir.stage_marks import stages_of
from mspc.runtime.slices import full_type

Array = Any


def on_all_stages(job: Job, parameter: GraphParameter, full: Array | None) -> Array:
    """The full tensor of a parameter that some stages hold; all ranks call this together.

    full: what the ranks of these stages have; None on all others.
    """
    assert isinstance(parameter.layout, Layout)
    type = full_type(parameter)
    given = np.empty(type.shape, type.dtype.numpy) if full is None else full
    return job.aside.broadcast(given, stages_of(parameter.attrs)[0] * parameter.layout.ranks, tuple(range(job.size)))


class OtherStage:
    """Where the values of a parameter are for the ranks that do not hold it."""

    holds = False

    def __init__(self, job: Job, parameter: GraphParameter) -> None:
        self._job, self._parameter = job, parameter

    def read(self, parameter: Any) -> Array:
        """The full tensor, from a stage that holds it; then all ranks must read it."""
        what = f"reads '{parameter.name}', which stage {stages_of(self._parameter.attrs)[0]} holds"
        with joint_call(self._job, what, "", TOGETHER), self._job.outside_user_code():
            return on_all_stages(self._job, self._parameter, None)

    def write(self, parameter: Any, array: Array) -> None:
        """Nothing: the ranks that hold it replace it."""

    def draw(self, parameter: Any, initial: Any) -> None:
        """Nothing, as `write`."""

    def part(self, parameter: Any) -> tuple[Layout | None, Array]:
        """Callers ask `Parameter.is_here` first."""
        raise AssertionError(f"no part of '{parameter.name}' is here")
