"""Executor of one rank's graph on a GPU, with the interface of `runtime.executor.Executor`.

At most two steps are in flight: while the GPU runs one, the host copies the next one's inputs into pinned memory and
from there to the GPU on a separate stream. Results are copied to pinned memory; reading one waits for it.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from mspc.analysis.aliasing import source, updated_parameters
from mspc.analysis.integer_ranges import refused_indices
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import OFFLOAD, Constant, Graph, Node, Parameter, Value, element_types, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.base import Collective
from mspc.ops.device import Array
from mspc.runtime.executor import check_array
from mspc.runtime.faults.finite import NOWHERE, Origin, explained
from mspc.runtime.faults.record import NodeFailure
from mspc.runtime.gpu.host_arrays import PinnedArray, fetched, put
from mspc.runtime.gpu.launches import Constants, arrays_of, copied
from mspc.runtime.gpu.progress import out_of_memory, wait_for
from mspc.runtime.gpu.step import GpuStep
from mspc.runtime.memory import gradient_slices
from mspc.runtime.memory_plan import device_bytes_inside, plan_memory
from mspc.runtime.pending import Pending
from mspc.runtime.profile import NodeTiming
from mspc.runtime.workspaces import reserve_scratch

# Message about a node that fails on a GPU.


def failure_of(
    error: Exception, node: Node | None, what: str, graph: Graph, place: tuple[int, int], peak: int,
    memory: Mapping[str, int],
) -> NodeFailure:  # fmt: skip
    """Return the error of a rank. node: the node that raised `error`; None for the whole graph. what: the verb, such as
    "failed". place: (rank, index of its GPU). peak, memory: see `out_of_memory`."""
    rank, gpu = place
    message = error.message if isinstance(error, MspcError) else f"{type(error).__name__}: {error}"
    notes = list(error.notes) if isinstance(error, MspcError) else []
    label = "the graph" if node is None else node.label
    index, region = _place_of(node, graph)
    frames = node.frames if node is not None else ()
    if type(error).__name__ == "OutOfMemoryError":
        asked = re.search(r"[\d,]+", str(error))
        nbytes = int(asked[0].replace(",", "")) if asked else 0
        found = out_of_memory(node, nbytes, peak, memory, rank, gpu)
        return NodeFailure(*found, frames, index, region)
    if node is not None:
        operands = ", ".join(str(value.type) for value in node.inputs)
        notes.append(f"its operands are ({operands}), its result {node.type}")
    return NodeFailure(f"{label} {what} on rank {rank} (GPU {gpu}): {message}", notes, frames, index, region)


def _place_of(node: Node | None, graph: Graph) -> tuple[int, str]:
    """Return (position of a node in its graph, name of the graph if it is a region); -1 for no node."""
    for each in graph.graphs():
        if node in each.nodes:
            return each.nodes.index(node), "" if each is graph else each.name
    return -1, ""


# If a step's loss is not finite, its nodes run again on the GPU, one by one, until one makes a non-finite value.


def search(step: GpuStep, fed: Sequence[tuple[Parameter, Any, Any]], stored: Mapping[Value, Array]) -> Origin:
    """Return the operator that first made a non-finite value, see `finite.NonFiniteSearch`. fed: the step's inputs as
    (parameter, pinned memory, values if that memory does not have them). stored: arrays of parameters."""
    device, graph, held, first = step.device, step.graph, "", NOWHERE
    # A later step in flight may have other inputs.
    for parameter, pinned, array in fed:
        if array is not None:
            np.copyto(pinned, array)
        device.send(pinned, stored[parameter])
    device.synchronize()
    for parameter in graph.parameters:
        if not held and not _is_finite(step, parameter):
            kind = {"input": "argument"}.get(parameter.kind, parameter.kind)
            held = f"{kind} {parameter.name!r} held such a value before the step"
    for work in sorted((*step.anew, *step.work), key=lambda work: work.index):
        # Messages of other stages are received again: their memory may have been overwritten since.
        if not (work.ahead or 0 <= work.index < step.boundary):
            continue
        with device.stream(work.stream):
            work.launch()
            over = device.signal()
        with device.stream("compute"):
            device.wait(over)
        device.synchronize()
        if work.index >= 0 and first == NOWHERE and not _is_finite(step, graph.nodes[work.index]):
            first = work.index
    return Origin(held, int(first))


def _is_finite(step: GpuStep, value: Value) -> bool:
    device = step.device
    for array in arrays_of(step.arrays(value)):
        if array.dtype.kind not in "fV":
            continue
        found = np.empty(array.shape, array.dtype)
        with device.stream("compute"):
            device.receive(device.xp.ascontiguousarray(array), found)
        device.synchronize()
        if not np.isfinite(found).all():
            return False
    return True


DEPTH = 2
"""Maximum number of steps in flight."""
SMALL = 1 << 16
"""Maximum bytes of an input that is copied on the step's own stream: a separate stream costs more than it hides."""


@dataclass
class _Slot:
    """Host state of one step in flight.

    inputs, results, stop, ended: pinned arrays, the last two with the GPU's state after the step. given: inputs that
    were already on the GPU, None for copied ones. staged: large inputs on the GPU, from the second transfer on. done:
    event after the step. failed: raised when a result is read. pending: results that are still referenced.
    """

    inputs: list[Array]
    staged: list[Array]
    results: list[Array]
    stop: Array
    ended: Array
    given: Sequence[Array] = ()
    step: int = 0
    done: Any = None
    failed: Exception | None = None
    pending: list[weakref.ref[Pending]] = field(default_factory=list[Any])


def _refuse_complex(graph: Graph) -> None:
    """Raise MspcError for a collective of complex numbers, which NCCL does not support."""
    for node in (node for node in graph.all_nodes() if isinstance(node.op, Collective)):
        if any(t.dtype.is_complex for t in (*element_types(node.type), *operand_types(node))):
            raise node.error(f"{node.label}: GPUs cannot exchange complex numbers", notes=["run with --device cpu"])


class GpuExecutor:
    """A rank's flat graph on its GPU, prepared once and run many times. Raise MspcError if a value is missing or does
    not fit; ExecutionError if the GPU's memory is insufficient, or an operator cannot run there.

    graph: the rank's graph with local types. device: see `GpuDevice`; its communicator connects the ranks. values:
    arrays of the parameters of kind "parameter" and "constant" by name; arrays on the device are used directly, others
    are copied to it. cursor: as in Executor. host: communicator of arrays on the host, for agreements of ranks.
    loop_limit: see `bound_regions.RegionContext`.
    """

    def __init__(self, graph: Graph, device: Any, values: Mapping[str, Array], cursor: Any = None, host: Any = None,
                 loop_limit: float = 0.0) -> None:  # fmt: skip
        self.graph = graph
        self.device = device
        self.comm = device.comm if host is None else host
        self.rank = self.comm.rank
        self.step = self.earlier_steps = 0
        self.cursor: Any = [0] if cursor is None else cursor
        self.inputs = [p for p in graph.parameters if p.kind == "input"]
        self.mutated = updated_parameters(graph)
        _refuse_complex(graph)
        self.plan = plan_memory(graph, inside=device_bytes_inside, early=True, slices=gradient_slices(graph))
        constants = Constants(device)
        try:
            stored: dict[Value, Array] = {parameter: self._place(parameter, values) for parameter in graph.parameters}
            stored |= {value: constants.of(value) for value in self.plan.places if isinstance(value, Constant)}
            self._stored = stored
            reserve_scratch(graph, device)
            self._step = GpuStep(graph, device, self.plan, stored, constants, self.comm, loop_limit)
            device.choices.agree(self.comm)
            self._slots = self._step.ended.slots = [self._slot() for _ in range(DEPTH)]
        except MspcError:
            raise
        except Exception as error:
            raise self._failure(error, getattr(error, "node", None), "cannot be prepared") from error
        self._by_name = {p.name: p for p in graph.parameters}
        refused = refused_indices(graph)
        self._refused = {i: refused[p] for i, p in enumerate(self.inputs) if p in refused}
        self._origins: list[Any] = [None] * len(self.inputs)

    def set_step_count(self, steps: int) -> None:
        """Continue random numbers as if `steps` steps had run before."""
        self.earlier_steps = steps
        with self.device.stream("compute"):
            self.device.send(np.array([self.step + steps], np.int64), self._step.own_count)

    @property
    def trains(self) -> bool:
        """Whether a run updates parameters."""
        return bool(self.mutated)

    @property
    def captured(self) -> bool:
        """Whether steps are replayed as one CUDA graph."""
        return self._step.captured

    @property
    def waited(self) -> float:
        """Total seconds that the GPU has waited for other pipeline stages."""
        messages = self._step.messages
        return 0.0 if messages is None else messages.waited

    @property
    def boundary(self) -> int:
        """Index of the first node that updates a parameter."""
        return self._step.boundary

    # Parameters

    def _place(self, parameter: Parameter, values: Mapping[str, Array]) -> Array:
        (type,) = element_types(parameter.type)
        if parameter.kind == "input":
            return self.device.zeros(type.shape, type.dtype.numpy)
        if parameter.name not in values:
            raise MspcError(f"there is no value for {parameter.kind} {parameter.name!r}")
        value = check_array(parameter, values[parameter.name])
        if isinstance(value, PinnedArray) and OFFLOAD in parameter.attrs:
            return value
        if OFFLOAD in parameter.attrs:
            return fetched(self.device, value, self.device.pinned(value.shape, value.dtype))
        return self._copied(value) if isinstance(value, np.ndarray) else value

    def _copied(self, value: Array) -> Array:
        return copied(self.device, value)

    def parameter(self, name: str) -> Array:
        """Return a host copy of a parameter's values that the next step reads. Raise KeyError for an unknown name."""
        array = self._stored[self._by_name[name]]
        return fetched(self.device, array, np.empty(array.shape, array.dtype))

    def array(self, name: str) -> Array:
        """Return a parameter's array on the GPU. Raise KeyError for an unknown name."""
        return self._stored[self._by_name[name]]

    def replace(self, name: str, array: Array) -> None:
        """Use other values for a parameter from the next step on."""
        parameter = self._by_name[name]
        value = np.ascontiguousarray(check_array(parameter, array)).reshape(np.shape(array))
        self.device.synchronize()
        put(self.device, value, self._stored[parameter])
        self.device.writers.outside(self._stored[parameter])

    # Steps

    def run(self, inputs: Sequence[Array], origins: Sequence[Any] = ()) -> list[Pending]:
        """Run one step on inputs in the order of `self.inputs`, and return the results in the order of the graph;
        reading a result waits for it. origins: for every input None, or an object that identifies its values: an input
        with the same origin as in the previous step is already on the GPU. Raise MspcError if an input does not fit;
        ExecutionError if an operator failed, or the loss of an earlier step was not finite."""
        return self._collect(self._begin(inputs, origins, self._step.run))

    def run_timed(self, inputs: Sequence[Array], origins: Sequence[Any] = ()) -> tuple[list[Pending], list[NodeTiming]]:
        """Run a step like `run`, and also return the timing of each of its nodes."""
        times: list[NodeTiming] = []
        slot = self._begin(inputs, origins, lambda _, counted: times.extend(self._step.run_timed(counted)))
        return self._collect(slot), times

    def _begin(self, inputs: Sequence[Array], origins: Sequence[Any], run: Callable[[int, int], None]) -> _Slot:
        if len(inputs) != len(self.inputs):
            raise MspcError(f"the graph takes {len(self.inputs)} inputs, {len(inputs)} were given", code="E0802")
        arrays = [check_array(p, np.asarray(a)) for p, a in zip(self.inputs, inputs, strict=True)]
        slot = self._slots[self.step % DEPTH]
        self._release_slot(slot)
        self._step.ended.wait_for_aborted()
        self.step += 1
        slot.step, slot.failed = self.step, None
        self._feed(slot, arrays, origins or [None] * len(arrays))
        try:
            run(self.step, self.step + self.earlier_steps)
        except Exception as error:
            known = self.graph.nodes[self._step.current] if self._step.current >= 0 else None
            cause = self._step.ended.cause(error, getattr(error, "node", known))
            raise self._failure(*cause, "failed") from error
        except BaseException:
            self._step.ended.leave()
            raise
        return slot

    def _slot(self) -> _Slot:
        device = self.device
        types = [element_types(p.type)[0] for p in self.inputs]
        pinned = [device.pinned(t.shape, t.dtype.numpy) for t in types]
        results = [device.pinned(v.shape, v.tensor_type.dtype.numpy) for v in self.graph.results]
        return _Slot(pinned, [None] * len(types), results, device.pinned((1,), "int32"), device.pinned((2,), "int64"))

    def _feed(self, slot: _Slot, arrays: Sequence[Array], origins: Sequence[Any]) -> None:
        device = self.device
        large = False
        new = [origin is None or origin is not held for origin, held in zip(origins, self._origins, strict=True)]
        for i, (limit, node) in self._refused.items():
            # Kernels take such an index for one of another rank's slice.
            if new[i] and arrays[i].size and not -limit <= arrays[i].min() <= arrays[i].max() < limit:
                outside = IndexError(f"an index is outside of [-{limit}, {limit})")
                raise self._failure(outside, node, "failed")
        self._origins = list(origins)
        slot.given = [None if changed else array for array, changed in zip(arrays, new, strict=True)]
        if not any(new):
            return
        for i, (pinned, array, changed) in enumerate(zip(slot.inputs, arrays, new, strict=True)):
            if not changed:
                continue
            np.copyto(pinned, array)
            # In the first step nothing overlaps with a copy, and inputs that never change need no memory for one.
            if pinned.nbytes > SMALL and self.step > 1:
                if slot.staged[i] is None:
                    slot.staged[i] = device.empty(pinned.shape, pinned.dtype)
                large = True
                with device.stream("copy"):
                    device.send(pinned, slot.staged[i])
        arrived = None
        if large:
            with device.stream("copy"):
                arrived = device.signal()
        with device.stream("compute"):
            if arrived is not None:
                device.wait(arrived)
            for parameter, pinned, staged, changed in zip(self.inputs, slot.inputs, slot.staged, new, strict=True):
                if not changed:
                    continue
                if staged is None:
                    device.send(pinned, self._stored[parameter])
                else:
                    device.copy(staged, self._stored[parameter])

    def _collect(self, slot: _Slot) -> list[Pending]:
        device = self.device
        found: list[Pending] = []
        slot.pending = []
        with device.stream("compute"):
            for value, pinned in zip(self.graph.results, slot.results, strict=True):
                device.receive(self._step.arrays(value)[0], pinned)
            if self.trains:
                device.receive(device.stop, slot.stop)
            self._step.ended.tell(slot.ended)
            slot.done = device.signal()
        for pinned in slot.results:
            result = Pending(pinned.shape, pinned.dtype, _StepResult(self, slot, slot.step, pinned))
            slot.pending.append(weakref.ref(result))
            found.append(result)
        return found

    def _release_slot(self, slot: _Slot) -> None:
        """Wait for the previous step of a slot and release it."""
        if slot.done is None:
            return
        self.wait(slot)
        for reference in slot.pending:
            result = reference()
            if result is not None:
                result.fetch()
        slot.done = None

    def wait(self, slot: _Slot) -> None:
        """Wait for a slot's step. Raise ExecutionError if its loss is not finite, or a loop took too long; parameters
        are as they were before it."""
        try:
            wait_for(self.device, slot.done, interruptible=self._step.ended.has_loops)
        except BaseException:
            self._step.ended.leave()
            raise
        if self._step.ended.has_ended(slot.ended):
            raise self._ended(slot)
        if self.trains and slot.stop[0]:
            self._stopped()

    def finish(self) -> None:
        """Wait for all steps in flight; raise their errors."""
        for slot in sorted(self._slots, key=lambda s: s.step):
            self._release_slot(slot)
        self._step.ended.wait_for_aborted()

    # Failures

    def _ended(self, slot: _Slot) -> NodeFailure:
        """Return the error of a step with a loop that the GPU ended. Later steps have changed nothing."""
        failure = self._failure(*self._step.ended.error(slot.ended), "failed")
        self._step.ended.fail(failure)
        return failure

    def _stopped(self) -> None:
        """Raise the error of the first step in flight whose loss is not finite."""
        slot = next(s for s in sorted(self._slots, key=lambda s: s.step) if s.done is not None and s.stop[0])
        self.device.synchronize()
        self.step = slot.step
        values = dict(zip(self.graph.results, slot.results, strict=True))
        for loss in self._step.losses:
            shown = next((v for v in self.graph.results if source(v) is loss), None)
            value = float(np.asarray(values[shown]).flat[0]) if shown is not None else float("nan")
            if not np.isfinite(value):
                self._again = slot
                raise explained(self, loss, value, updated=False)

    def search(self) -> Origin:
        """Run the failed step's nodes again, one by one, and check their results; see `finite.NonFiniteSearch`."""
        fed = list(zip(self.inputs, self._again.inputs, self._again.given, strict=True))
        self._origins = [None] * len(fed)
        return search(self._step, fed, self._stored)

    def _failure(self, error: Exception, node: Node | None, what: str) -> NodeFailure:
        return failure_of(error, node, what, self.graph, (self.rank, self.device.index), self.plan.peak, self.memory())

    def memory(self) -> dict[str, int]:
        """Return bytes by purpose: planned ones, and the runtime's own."""
        return {
            "parameters and optimizer states": self.plan.weights + self.plan.states,
            "inputs and constants": self.plan.inputs + self.plan.constants,
            "the step's values (planned peak)": self.plan.arena,
            **({"on the host": self.plan.on_host} if self.plan.on_host else {}),
            **self.device.workspaces,
        }


class _StepResult:
    """Pending result of a step: a call waits for the step and returns the result. It does not reference the result, so
    that the result is freed with its last reader."""

    def __init__(self, executor: GpuExecutor, slot: _Slot, step: int, pinned: Array) -> None:
        self._executor, self._slot, self._step, self._pinned = executor, slot, step, pinned

    def __call__(self) -> Array:
        assert self._slot.step == self._step, "a result was not fetched before its memory was used again"
        if self._slot.done is not None:
            self._executor.wait(self._slot)
        if self._slot.failed is not None:
            raise self._slot.failed
        return np.array(self._pinned)
