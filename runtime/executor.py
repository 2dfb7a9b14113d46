"""Executor of one rank's graph: runs the prepared instructions in order and frees every value at its last use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Parameter, Value
from mspc.ir.types import TensorType
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.compiled_loops import is_worth_compiling
from mspc.runtime.faults.finite import Origin, check_finite, search
from mspc.runtime.faults.record import PLACE_WORDS, NodeFailure
from mspc.runtime.plan import (
    ExecutionPlan,
    Instructions,
    KernelFailed,
    RegionKernels,
    hooked,
    plan,
    prepare,
    run_instructions,
)
from mspc.runtime.profile import NodeTimer, NodeTiming

Array = Any


class Executor:
    """A rank's flat graph, prepared once and run many times. Raise MspcError if a value is missing or has another shape
    or element type, or an operator has no kernel.

    graph: the rank's graph with local types. backend: array module and communicator of this rank. values: arrays of the
    parameters of kind "parameter" and "constant" by name, with local shapes; they are not copied, and updates write to
    them. cursor: writable int64 sequence in shared memory: element 0 is the index of the running node, the others are
    the iterations of the enclosing loops, see `faults.record`.
    """

    def __init__(self, graph: Graph, backend: NumPyBackend, values: Mapping[str, Array], cursor: Any = None) -> None:
        self.graph = graph
        self.backend = backend
        self.rank = backend.comm.rank
        self.inputs = [p for p in graph.parameters if p.kind == "input"]
        self.step = 0
        self.earlier_steps = 0
        self.cursor: Any = [0] * PLACE_WORDS if cursor is None else cursor
        prepare(graph, backend)
        self._regions = _regions_of(graph, backend, self.cursor)
        kernels = self._regions.kernels(graph.nodes) if self._regions is not None else RegionKernels()
        self.plan: ExecutionPlan = plan(graph, backend, kernels, compiles=is_worth_compiling(graph, backend))
        self.slots: list[Any] = [None] * self.plan.slots
        for parameter in graph.parameters:
            if parameter.kind != "input":
                self.slots[self.plan.slot_of[parameter]] = _value_of(parameter, values)
        for constant, slot in self.plan.constants:
            self.slots[slot] = constant.value
        self._input_slots = [self.plan.slot_of[p] for p in self.inputs]
        self._fixed = [self.plan.slot_of[p] for p in graph.parameters]

    @property
    def trains(self) -> bool:
        """Whether a run updates parameters."""
        return bool(self.plan.updates.numbers)

    def set_step_count(self, steps: int) -> None:
        """Continue random numbers as if `steps` steps had run before."""
        self.earlier_steps = steps

    @property
    def comm(self) -> Any:
        """Communicator of this rank."""
        return self.backend.comm

    @property
    def boundary(self) -> int:
        """Index of the first node that updates a parameter."""
        return self.plan.boundary

    def search(self) -> Origin:
        """Return the operator at which the running step first made a non-finite value."""
        return search(self, lambda: self.backend.turns)

    def hook_regions(self, call: Callable[..., Any] | None) -> None:
        """Run the kernels of all regions through `call`, see `Region.hook`."""
        for region in self._regions.prepared if self._regions is not None else ():
            region.hook(call)

    def parameter(self, name: str) -> Array:
        """Return the array of a parameter that the next step reads. Raise KeyError for an unknown name."""
        return self.slots[self.plan.slot_of[self.graph.parameter(name)]]

    def replace(self, name: str, array: Array) -> None:
        """Use another array for a parameter from the next step on."""
        parameter = self.graph.parameter(name)
        self.slots[self.plan.slot_of[parameter]] = _value_of(parameter, {name: array})

    def run(self, inputs: Sequence[Array], origins: Sequence[Any] = ()) -> list[Array]:
        """Run one step on inputs in the order of `self.inputs`, and return the results in the order of the graph.
        origins: only used on a GPU. Raise MspcError if an input has another shape or element type than the graph's;
        ExecutionError if a kernel failed, or the loss of a training step is not finite."""
        slots = self.slots
        self.step += 1
        self.backend.step = self.earlier_steps + self.step
        self.backend.turns = ()
        if len(inputs) != len(self._input_slots):
            raise MspcError(f"the graph takes {len(self._input_slots)} inputs, {len(inputs)} were given", code="E0802")
        for parameter, slot, array in zip(self.inputs, self._input_slots, inputs, strict=True):
            slots[slot] = check_array(parameter, np.asarray(array))
        plan = self.plan
        with np.errstate(all="ignore"):
            self._run(plan.before_update)
            if plan.losses:
                check_finite(self, plan.losses)
            self._run(plan.after_update)
            if plan.late_losses:
                check_finite(self, plan.late_losses, updated=True)
        results = [slots[slot] for slot in plan.result_slots]
        owned = {id(owner(slots[slot])) for slot in self._fixed}
        for index, array in enumerate(results):
            if id(owner(array)) in owned:
                results[index] = np.array(array)
        for slot in plan.free_at_end:
            slots[slot] = None
        return results

    def run_timed(self, inputs: Sequence[Array], origins: Sequence[Any] = ()) -> tuple[list[Array], list[NodeTiming]]:
        """Run a step like `run`, and also return the timing of each of its nodes; empty for the first step, which is
        warm-up."""
        if not self.step:
            return self.run(inputs), []
        timer, plan = NodeTimer(self.graph), self.plan
        before, after = (hooked(each, timer.run) for each in (plan.before_update, plan.after_update))
        self.plan = replace(plan, before_update=before, after_update=after)
        self.hook_regions(timer.run_inside)
        try:
            return self.run(inputs), timer.times()
        finally:
            self.plan = plan
            self.hook_regions(None)

    def _run(self, instructions: Instructions) -> None:
        try:
            run_instructions(instructions, self.slots, self.cursor)
        except KernelFailed as failed:
            where, index, cause = f"rank {self.rank} in step {self.step}", failed.index, failed.__cause__
            assert isinstance(cause, Exception)
            raise NodeFailure.of(self.graph.nodes[index], index, cause, where) from cause

    def slot_value(self, value: Value) -> Array:
        """Return the current array of a parameter or a live value."""
        return value.value if isinstance(value, Constant) else self.slots[self.plan.slot_of[value]]


def _regions_of(graph: Graph, backend: NumPyBackend, cursor: Any) -> Any:
    if not any(node.regions for node in graph.nodes):
        return None
    from mspc.runtime.regions.region import Regions  # late: most graphs need none of it

    return Regions(graph, backend, cursor)


def owner(array: Array) -> Array:
    """Return the array that owns the memory of `array`: itself, unless it is a view."""
    while isinstance(base := getattr(array, "base", None), np.ndarray):
        array = base
    return array


def _value_of(parameter: Parameter, values: Mapping[str, Array]) -> Array:
    if parameter.name not in values:
        raise MspcError(f"there is no value for {parameter.kind} {parameter.name!r}")
    return check_array(parameter, values[parameter.name])


def check_array(parameter: Parameter, array: Array) -> Array:
    """Return `array`. Raise MspcError if its shape or element type differs from the parameter's."""
    type = parameter.type
    assert isinstance(type, TensorType), f"{parameter} is not a tensor"
    if array.shape != type.shape or array.dtype != type.dtype.numpy:
        kind = {"input": "argument"}.get(parameter.kind, parameter.kind)
        raise MspcError(
            f"{kind} {parameter.name!r} is {array.dtype.name} of shape {array.shape}; "
            f"this rank's graph takes {type.dtype.numpy.name} of shape {type.shape}", code="E0802"
        )
    return array
