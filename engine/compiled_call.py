"""Runs one compiled target on a rank: its executor, and how its values and arguments arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.analysis.aliasing import updated_parameters
from mspc.api.common.initial_values import InitialValue
from mspc.compiler.driver import Compiled
from mspc.compiler.frontend.trace import Traced
from mspc.compiler.run_graph import run_graph
from mspc.engine.equal_inputs import COMPARED_STEPS, compare_inputs, must_be_equal
from mspc.engine.initial_values import RankInitialValue, beginning
from mspc.engine.job import Job
from mspc.engine.parameter_store import ParameterStore
from mspc.ir.graph import Graph
from mspc.ir.graph import Parameter as GraphParameter
from mspc.ir.stage_marks import stages_of
from mspc.runtime.slices import slice_parameter, slices_of

Array = Any


class CompiledCall:
    """One compiled target on this rank: its executor and how its arguments arrive.

    traced: what this rank's own script has for the graph's parameters and constants; the compile may be another rank's.
    """

    def __init__(
        self, number: int, compiled: Compiled, job: Job, traced: Traced, store: ParameterStore,
        tf32: bool = False,
    ) -> None:  # fmt: skip
        self.number = number
        self.compiled = compiled
        self.job = job
        self.is_outdated = False
        """Whether a number that the graph relies on was changed: it is compiled anew for the next call."""
        self.counted_as: Any = None
        self.counted: Callable[[], Any] = lambda: None
        """The key of its count of steps, and the object without which no other graph continues it, see `StepCounts`."""
        self._traced, self._store = traced, store
        self._arrays: dict[str, Array] = {}
        graph = self._without_unused_states(compiled.rank_graph(job.rank))
        values: dict[str, Array] = {}
        self.borrowed: list[Any] = []
        begun: list[RankInitialValue | None] = []
        with store.drawn_ahead((traced.parameters[p.name], p) for p in graph.parameters if p.kind == "parameter"):
            for parameter in graph.parameters:
                if parameter.kind == "constant":
                    full = traced.constants[parameter.name]
                    array = values[parameter.name] = _constant(full, parameter, job.rank)
                    begun.append(beginning(parameter.name, "constant", slices_of(parameter, job.rank), full, array))
                elif parameter.kind == "parameter":
                    values[parameter.name] = self._attached(parameter)
        if compiled.config.pipeline_stages > 1:
            held = {parameter.name for parameter in graph.parameters}
            for parameter in compiled.graph.parameters:
                if parameter.kind == "parameter" and parameter.name not in held and stages_of(parameter.attrs):
                    store.leave(traced.parameters[parameter.name], parameter)
        self._begun = [entry for entry in begun if entry is not None] + store.take_begun()
        self._compared = must_be_equal(compiled, graph, job.size)
        self.executor = job.hardware.executor(graph, job.comm, values, job.cursor, number, tf32)
        self.mutated = {p.name for ps in updated_parameters(graph).values() for p in ps}
        store.changed_by(self)
        self._traced, self._arrays = traced.without_script(), {}

    def _attached(self, parameter: GraphParameter) -> Array:
        """This rank's array of a parameter of the script."""
        if parameter.name not in self._arrays:
            self._arrays[parameter.name] = self._store.attach(self._traced.parameters[parameter.name], parameter, self)
        return self._arrays[parameter.name]

    def _without_unused_states(self, graph: Graph) -> Graph:
        """The graph, without those states of optimizers that the numbers of now leave unused; an update without states
        may do with the rows that are looked up."""
        own, scalars = run_graph(graph, self._number)
        for scalar in scalars:
            self._store.rely(self._traced.parameters[scalar.name], self)
        return own

    def _number(self, scalar: GraphParameter) -> float | None:
        """What a scalar parameter holds now; None where a graph changes it."""
        self._attached(scalar)
        parameter = self._traced.parameters[scalar.name]
        return None if self._store.varies(parameter) else float(self._store.part(parameter)[1])  # of this stage alone

    def take_begun(self) -> list[RankInitialValue]:
        """What its constants, and those of its parameters that no graph before had, begin with; given once."""
        found, self._begun = self._begun, []
        return found

    def run(self, arrays: Sequence[Array], origins: Sequence[Any]) -> list[Array]:
        """One step on this rank's arrays; an array whose origin is the last step's has not changed since."""
        executor = self.executor
        fed = [_fit(p, a, self.job.rank) for p, a in zip(executor.inputs, arrays, strict=True)]
        if self._compared is not None and executor.step < COMPARED_STEPS:
            own = {p.name: a for p, a in zip(executor.inputs, arrays, strict=True)}
            comm, fetch = self.job.comm.for_graph(self.number), self.job.hardware.memory.fetch
            with self.job.outside_user_code():
                compare_inputs(comm, self.job.rank, self._compared, own, executor.step + 1, fetch)
        self.job.step(self.number, executor.step + 1)
        results = self.job.run(executor, fed, origins)
        self.job.step_done()
        return results


def _constant(full: Any, parameter: GraphParameter, rank: int) -> Array:
    """This rank's slice of a constant of the script; of one that an initializer makes nothing else is made."""
    if isinstance(full, InitialValue):
        return full.fill(slices_of(parameter, rank))
    return slice_parameter(parameter, np.asarray(full), rank, "constant")


def _fit(parameter: GraphParameter, array: Array, rank: int) -> Array:
    """What the graph takes of what the script feeds: the array itself, or this rank's slice of a global
    one."""
    if array.shape == parameter.shape:
        return array
    return slice_parameter(parameter, array, rank, "argument")
