"""Storage of a graph's values on a GPU, and the launches of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from mspc.ir.graph import Constant, Graph, Node, Value, element_types, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import StackType, TensorType, TupleType
from mspc.ops.collective.base import is_summed_by_reader
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.regions import MakeStack
from mspc.ops.control.structural import TupleGetItem, TupleGetItems
from mspc.ops.device import Array, Copy, Launch, in_order, nothing
from mspc.ops.fused.elementwise import FusedElementwise
from mspc.ops.op import Op
from mspc.runtime.gpu.peers import PeerLaunch
from mspc.runtime.gpu.progress import HostQuery, wait_for, with_host_query
from mspc.runtime.memory import Allocation, MemoryPlan

# Arrays on the GPU that the host must read to launch their readers. Each is copied once, after the launch that makes
# it, so that the copy is complete before the first reader is launched.


class HostRead:
    """Host copy of an array. `begin` enqueues the copy on the current stream, `values` waits for the latest one."""

    def __init__(self, device: Any, array: Array) -> None:
        self._device, self._array = device, array
        self._on_host = device.pinned(array.shape, array.dtype)
        self._copied: Any = None

    def begin(self) -> None:
        self._device.receive(self._array, self._on_host)
        self._copied = self._device.signal()

    def values(self) -> Any:
        """Return the elements; the next copy overwrites them."""
        wait_for(self._device, self._copied)
        return self._on_host


class Asking(HostQuery):
    """Launch that calls `run` with arrays as NumPy arrays. It copies them itself, unless `share` sets other copies.
    ahead: a launch that makes some of them, run before the copies."""

    def __init__(
        self, device: Any, arrays: Sequence[Array], run: Callable[..., None], ahead: Launch | None = None
    ) -> None:  # fmt: skip
        super().__init__(self._ask)
        self._ahead = ahead
        self.arrays = arrays
        self._device, self._with = device, run
        self._reads: list[HostRead] | None = None
        self._shared: Mapping[int, HostRead] = {}

    def share(self, reads: Mapping[int, HostRead]) -> None:
        """Use copies made before this launch. reads: by the number of the array."""
        self._shared = reads

    def _ask(self) -> None:
        if self._reads is None:
            made = (self._shared.get(i) or HostRead(self._device, array) for i, array in enumerate(self.arrays))
            self._reads = list(made)
        if self._ahead is not None:
            self._ahead()
        for i, read in enumerate(self._reads):
            if i not in self._shared:
                read.begin()
        self._with(*[read.values() for read in self._reads])


def makers(graph: Graph, plan: MemoryPlan) -> dict[Value, Node]:
    """Return the nodes that make values read by the host. Other values are copied on demand: parameters, and values
    that other ranks or regions write."""
    asked = (node.inputs[i] for node in graph.nodes for i in node.op.host_reads)
    found = {value: _maker(value, plan) for value in dict.fromkeys(asked)}
    return {value: maker for value, maker in found.items() if maker is not None}


def _maker(value: Value, plan: MemoryPlan) -> Node | None:
    while isinstance(value, Node) and value.op.is_view:
        if value in plan.copied or not (len(value.inputs) == 1 or isinstance(value.op, TupleGetItem)):
            return None
        value = value.inputs[0]
    if not isinstance(value, Node) or value.regions or value.op.is_collective:
        return None
    return value


Storage = Any
"""Storage of a value: an array on the GPU, or for a stack a list of the storages of its entries."""


def arrays_of(held: Sequence[Storage]) -> Iterator[Array]:
    """Yield the arrays, including entries of stacks."""
    for each in held:
        if isinstance(each, list):
            yield from arrays_of(each)
        else:
            yield each


@dataclass
class Backend:
    """Backend of kernels that run through CuPy; see `NumPyBackend`."""

    comm: Any
    xp: Any
    step: int = 0
    turns: tuple[int, ...] = ()
    calls: tuple[int, ...] = ()


class _OnNumpy:
    """Backend with NumPy arrays."""

    xp: Any = np

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class LaunchSequence:
    """Launches in order that do not need the host: those of `ahead` once, then the others `times` times."""

    def __init__(self, launches: Sequence[Launch], times: int = 1, ahead: Sequence[Launch] = ()) -> None:
        self._ahead, self._launches, self._times = ahead, launches, times
        self.count = count_of(ahead) + times * count_of(launches)

    def __call__(self) -> None:
        run_all(self._ahead)
        for _ in range(self._times):
            run_all(self._launches)


def run_all(launches: Sequence[Launch]) -> None:
    """Run launches in order."""
    for launch in launches:
        launch()


def count_of(launches: Sequence[Launch]) -> int:
    """Return the number of launches, including nested ones."""
    return sum(getattr(launch, "count", 1) for launch in launches)


def _host_call(device: Any, arrays: Sequence[Array], run: Callable[..., None]) -> HostQuery:
    """Return a launch that waits for arrays and calls `run` with them as NumPy arrays."""

    def launch() -> None:
        given = [np.empty(array.shape, array.dtype) for array in arrays]
        wait_for(device, device.signal())  # earlier work may take long; unlike a copy, this wait can be interrupted
        for array, host in zip(arrays, given, strict=True):
            device.receive(array, host)
        device.synchronize()
        run(*given)

    return HostQuery(launch)


def needs_host(launch: Launch) -> bool:
    """Return whether a launch needs the host even when captured."""
    return isinstance(launch, HostQuery) and not launch.decided


@dataclass
class Constants:
    """Arrays on the GPU of a program's constants, each copied once."""

    device: Any
    arrays: dict[Constant, Array] = field(default_factory=dict[Constant, Array])

    def of(self, constant: Constant) -> Array:
        found = self.arrays.get(constant)
        if found is None:
            found = self.arrays[constant] = copied(self.device, constant.value)
        return found


def copied(device: Any, value: Any) -> Array:
    """Return an array on the GPU with the elements of a NumPy array."""
    value = np.ascontiguousarray(value).reshape(np.shape(value))
    array = device.empty(value.shape, value.dtype)
    device.send(value, array)
    device.synchronize()
    return array


class Launches:
    """Launches of a graph's nodes, with storage by the memory plan. device: see `GpuDevice`. arena: the bytes that the
    plan divides. stored: the graph's parameters and constants. regions: makes the launch of a node with regions from
    the node, its operands, its results, and bytes for values that are live while it runs."""

    def __init__(
        self, graph: Graph, device: Any, backend: Backend, plan: MemoryPlan, arena: Array,
        stored: Mapping[Value, Storage], regions: Callable[[Node, list[Storage], list[Storage], Array], Launch],
    ) -> None:  # fmt: skip
        self.graph = graph
        self._device, self._backend = device, backend
        self._plan, self._arena = plan, arena
        self._host_arena = device.pinned((plan.host_arena,), np.uint8) if plan.host_arena else None
        self._stored, self._regions = stored, regions
        self._views: dict[Any, Array] = {}
        self._storage: dict[Value, tuple[Storage, ...]] = {}
        self._makers = makers(graph, plan)
        self._reads: dict[Value, HostRead] = {}
        self.leaves = False
        """Whether reductions are left to their readers if these can do them."""
        self._left: dict[Node, int] = {}
        """The reductions that are left, and their positions in the graph."""

    def arrays(self, value: Value) -> tuple[Storage, ...]:
        """Return the storage of a value, one entry per tensor."""
        found = self._storage.get(value)
        if found is None:
            found = self._storage[value] = self._found(value)
        return found

    def _found(self, value: Value) -> tuple[Storage, ...]:
        types = element_types(value.type)
        places = self._plan.places[value]
        if (part := self._plan.slices.parts.get(value)) is not None:
            return (part.of(self.arrays(part.source)[0]),)
        if not any(isinstance(type, StackType) for type in types):
            return tuple(self._array(place, type) for place, type in zip(places, types, strict=True))
        if not isinstance(value, Node):
            return (self._stored[value],)
        if isinstance(value.op, MakeStack):
            return ([self.arrays(entry)[0] for entry in value.inputs],)
        if isinstance(value.op, TupleGetItem):
            return (self.arrays(value.inputs[0])[value.op.index],)
        if isinstance(value.op, TupleGetItems):
            return tuple(self.arrays(value.inputs[0])[i] for i in value.op.indices)
        if value.op.is_view:
            return self.arrays(value.inputs[0])
        return tuple(
            [] if isinstance(type, StackType) else self._array(place, type)
            for place, type in zip(places, types, strict=True)
        )

    def _array(self, place: Allocation, type: TensorType) -> Array:
        key = (place.kind, place.offset, place.value, place.pitch, type)
        found = self._views.get(key)
        if found is None:
            shape, dtype = type.shape, type.dtype.numpy
            if place.pitch:
                rows = type.size // shape[-1], place.pitch
                found = self._device.view(self._arena, place.offset, rows, dtype)[:, : shape[-1]].reshape(shape)
            elif place.kind == "arena":
                found = self._device.view(self._arena, place.offset, shape, dtype)
            elif place.kind == "host":
                begin, end = place.offset, place.offset + place.nbytes
                found = self._host_arena[begin:end].view(dtype).reshape(shape)
            else:
                assert place.value is not None
                stored = self._stored[place.value]
                found = stored if stored.shape == shape else stored.reshape(shape)
            self._views[key] = found
        return found

    def memory(self, place: Allocation) -> Array:
        """Return the bytes of an allocation in the arena."""
        return self._device.view(self._arena, place.offset, (place.nbytes,), np.uint8)

    def of(self, node: Node, copies: Mapping[int, Copy] | None = None) -> tuple[Launch, bool]:
        """Return the launch of a node, and whether it runs through CuPy. copies: further destinations of its updates.
        Raise the error of making it, with the node as `.node`."""
        copied = self._plan.copied.get(node)
        if copied is None:
            if self.leaves and self._defer(node):
                return nothing, False
            launch, plain = self._make(node, self.arrays(node), copies)
            return self._with_host_reads(node, launch), plain
        types = element_types(node.type)
        shown = tuple(self._array(place, type) for place, type in zip(copied, types, strict=True))
        copy = _copies(self._device, shown, self.arrays(node))
        if node.op.is_view:
            return copy, False
        update, plain = self._make(node, shown, copies)
        both = in_order(update, copy)
        assert both is not None
        return with_host_query(update, both), plain

    def is_deferred(self, node: Node) -> bool:
        """Return whether a node has no launch of its own because its reader performs it."""
        return node in self._left

    def _defer(self, node: Node) -> bool:
        """Defer a reduction to its reader, if that supports it."""
        if not is_summed_by_reader(node) or not isinstance(node.op, AllReduce) or node.op.op != "sum":
            return False
        if not self._device.same(*map(self._operand, (node.inputs[0], node))):
            return False
        readers = [(i, each) for i, each in enumerate(self.graph.nodes) if node in (each, *each.inputs)]
        if len(readers) != 2 or not isinstance(readers[1][1].op, FusedElementwise) or node in self.graph.results:
            return False
        self._left[node] = readers[0][0]
        return True

    def _summing(self, node: Node, inputs: Sequence[Any], out: Any) -> Launch | None:
        """Return the launch of a node that performs deferred reductions: it adds up the ranks' partial sums."""
        op, comm, left = node.op, self._device.comm, [i for i, value in enumerate(node.inputs) if value in self._left]
        assert isinstance(op, FusedElementwise)
        made = list(dict.fromkeys(node.inputs[i] for i in left))
        ranks = made[0].op.ranks
        summed = comm.partial_sums(inputs[left[0]], ranks) if len(left) == 1 else None
        if summed is not None:
            launch = op.launch(self._device, out, *inputs, summed=(left[0], summed))
            if comm.all_agree(launch is not None, ranks) and launch is not None:
                return self._marked(made[0], launch, joined=True)
        launches = [(each, self._make(each, self.arrays(each), None)[0]) for each in made]
        ahead = [self._marked(each, own, isinstance(own, PeerLaunch)) for each, own in launches]
        own = op.launch(self._device, out, *inputs)
        return in_order(*ahead, own or self._plain(op, inputs, out if isinstance(out, tuple) else (out,)))

    def _marked(self, node: Node, launch: Launch, joined: bool) -> Launch:
        """Return the launch of a deferred collective with progress marks, see `GpuProgress.before`."""
        progress = self._device.progress
        return launch if progress is None else progress.before(self._left[node], launch, joined)

    def _make(self, node: Node, out: Any, copies: Mapping[int, Copy] | None) -> tuple[Launch, bool]:
        op = node.op
        assert isinstance(op, Op)
        inputs: list[Any] = [self._operand(value) for value in node.inputs]
        self._device.set_node(node)
        try:
            if node.regions:
                return self._regions(node, inputs, list(out), self.memory(self._plan.inside[node])), False
            bucket = self._plan.buckets.get(node)
            if bucket is not None:
                dtype = element_types(node.type)[0].dtype.numpy
                merged = self._device.view(self._arena, bucket.offset, (bucket.nbytes // dtype.itemsize,), dtype)
                inputs, out = [merged], (merged,)
            single = bucket is not None or not isinstance(node.type, TupleType)
            result = out[0] if single else out
            if not self._left.keys().isdisjoint(node.inputs):
                launch = self._summing(node, inputs, result)
            else:
                more: Any = {"copies": copies} if copies else {}
                # Kernels of mspc have no complex numbers; CuPy has.
                made = (*operand_types(node), *element_types(node.type))
                is_complex = any(type.dtype.is_complex for type in made)
                launch = None if is_complex else op.launch(self._device, result, *inputs, **more)
            if isinstance(launch, Asking):
                launch.share(self._shared(node, inputs, launch.arrays))
            if launch is not None:
                return launch, False
            assert not copies, "an operator that says that it writes copies has no launch"
            if op.runs_on_host:
                return self._on_host(op, inputs, out), True
            plain = self._plain(op, inputs, out)
            # The length of a stack is known at run time only; random numbers for CuPy come from the host.
            asks = op.draws or op.waits or any(isinstance(array, list) for array in inputs)
            return (HostQuery(plain) if asks else plain), True
        except Exception as error:
            if not hasattr(error, "node"):
                error.node = node  # type: ignore[attr-defined]  # for the message
            raise

    def _with_host_reads(self, node: Node, launch: Launch) -> Launch:
        """Return the launch of a node followed by copies to the host for its readers."""
        asked = [value for value, maker in self._makers.items() if maker is node]
        if not asked or (isinstance(launch, HostQuery) and launch.decided):
            return launch
        reads = [HostRead(self._device, self.arrays(value)[0]) for value in asked]
        self._reads |= dict(zip(asked, reads, strict=True))
        both = in_order(launch, *[read.begin for read in reads])
        assert both is not None
        return HostQuery(both)

    def _shared(self, node: Node, inputs: Sequence[Any], asked: Sequence[Array]) -> dict[int, HostRead]:
        """Return existing host copies of the arrays that a node's launch needs, by number."""
        known = [(array, self._reads[value]) for value, array in zip(node.inputs, inputs, strict=True)
                 if value in self._reads]  # fmt: skip
        return {i: read for i, wanted in enumerate(asked) for array, read in known if array is wanted}

    def _operand(self, value: Value) -> Any:
        arrays = self.arrays(value)
        return arrays if isinstance(value.type, TupleType) else arrays[0]

    def _on_host(self, op: Op, inputs: Sequence[Any], out: Sequence[Array]) -> Launch:
        """Return a launch that runs the operator's kernel on NumPy arrays and copies its results to the GPU."""
        kernel, device = op.kernel(_OnNumpy(self._backend)), self._device

        def run(*given: Any) -> None:
            result = kernel(*given)
            for target, made in zip(out, result if isinstance(result, tuple | list) else (result,), strict=True):
                device.send(np.ascontiguousarray(made).reshape(target.shape), target)
            device.synchronize()

        return _host_call(device, inputs, run)

    def _plain(self, op: Op, inputs: Sequence[Any], out: Sequence[Array]) -> Launch:
        """Return a launch that runs the operator's kernel on CuPy arrays and copies its results to their storage."""
        kernel, device = op.kernel(self._backend), self._device

        def launch() -> None:
            result = kernel(*inputs)
            for target, made in zip(out, result if isinstance(result, tuple | list) else (result,), strict=True):
                if isinstance(made, np.ndarray | np.generic) and not isinstance(target, np.ndarray):
                    made = device.xp.asarray(made)
                if not device.same(target, made) or made.shape != target.shape:
                    target[...] = made

        return launch


def _copies(device: Any, sources: tuple[Array, ...], targets: tuple[Array, ...]) -> Launch:
    def launch() -> None:
        for source, target in zip(sources, targets, strict=True):
            device.copy(source, target)

    return launch
