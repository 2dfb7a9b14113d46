"""The executor runs one rank's graph: it runs prepared steps in order and frees every value at its last use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Parameter, Value
from mspc.ir.types import TensorType
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.compiled_loops import pays
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
    """A rank's flat graph, prepared once and run many times.

    Args:
        graph: the rank's graph with local types.
        backend: array module and communicator of this rank.
        values: arrays of the parameters of kind "parameter" and "constant" by name, of the rank's own shapes. They are
        used, not copied, and operators that update parameters write to them.
        cursor: a writable int64 sequence (memory that others can read); element 0 is the index of the running node, and
        further ones are the iterations of the loops around it, see `faults.record`.

    Raises:
        MspcError: a value is missing or has another shape or element type, or an operator has no kernel.
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
        self.plan: ExecutionPlan = plan(graph, backend, kernels, compiles=pays(graph, backend))
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
        """Whether a run changes parameters."""
        return bool(self.plan.updates.numbers)

    def go_on(self, steps: int) -> None:
        """Draw random numbers as if `steps` steps had been run before."""
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
        """Return the place at which the running step first made a value that is not finite."""
        return search(self, lambda: self.backend.turns)

    def hook_regions(self, call: Callable[..., Any] | None) -> None:
        """Let `call` run the kernels of all regions, see `Region.hook`."""
        for region in self._regions.prepared if self._regions is not None else ():
            region.hook(call)

    def parameter(self, name: str) -> Array:
        """Return the array of a parameter, as the next step will read it. Raise KeyError if there is none of this
        name."""
        return self.slots[self.plan.slot_of[self.graph.parameter(name)]]

    def replace(self, name: str, array: Array) -> None:
        """Use another array for a parameter from the next step on."""
        parameter = self.graph.parameter(name)
        self.slots[self.plan.slot_of[parameter]] = _value_of(parameter, {name: array})

    def run(self, inputs: Sequence[Array], origins: Sequence[Any] = ()) -> list[Array]:
        """Run one step: the inputs in the order of `self.inputs`, the results in the order of the graph's. `origins`
        matter only on a GPU.

        Raises:
            MspcError: an input has another shape or element type than the graph's.
            ExecutionError: a kernel failed, or the loss of a training step is not finite.
        """
        slots = self.slots
        self.step += 1
        self.backend.step = self.earlier_steps + self.step
        self.backend.turns = ()
        if len(inputs) != len(self._input_slots):
            raise MspcError(f"the graph takes {len(self._input_slots)} inputs, {len(inputs)} were given", code="E0802")
        for parameter, slot, array in zip(self.inputs, self._input_slots, inputs, strict=True):
            slots[slot] = checked(parameter, np.asarray(array))
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
        """Run a step like `run`, and return the timing of each of its nodes as well; nothing for the first step, which
        warms up."""
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
        """Return the present array of `value`; only for parameters and values that are still alive."""
        return value.value if isinstance(value, Constant) else self.slots[self.plan.slot_of[value]]


def _regions_of(graph: Graph, backend: NumPyBackend, cursor: Any) -> Any:
    if not any(node.regions for node in graph.nodes):
        return None
    from mspc.runtime.regions.kernels import Regions  # late: most graphs need none of it

    return Regions(graph, backend, cursor)


def owner(array: Array) -> Array:
    """Return the array whose memory `array` is: itself, unless it is a view."""
    while isinstance(base := getattr(array, "base", None), np.ndarray):
        array = base
    return array


def _value_of(parameter: Parameter, values: Mapping[str, Array]) -> Array:
    if parameter.name not in values:
        raise MspcError(f"there is no value for {parameter.kind} {parameter.name!r}")
    return checked(parameter, values[parameter.name])


def checked(parameter: Parameter, array: Array) -> Array:
    """Return `array`, which must have the parameter's shape and element type. Raise MspcError if it does not."""
    type = parameter.type
    assert isinstance(type, TensorType), f"{parameter} is not a tensor"
    if array.shape != type.shape or array.dtype != type.dtype.numpy:
        kind = {"input": "argument"}.get(parameter.kind, parameter.kind)
        raise MspcError(
            f"{kind} {parameter.name!r} is {array.dtype.name} of shape {array.shape}; "
            f"this rank's graph takes {type.dtype.numpy.name} of shape {type.shape}", code="E0802"
        )
    return array
