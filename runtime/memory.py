"""Memory plan of a step: the memory of every value, and the nodes that wait for others. Made by `memory_plan`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from mspc.analysis.aliasing import ShadowWeights
from mspc.ir.graph import FROM_HOST, OFFLOAD, TO_HOST, Graph, Node, Parameter, Value, element_types, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import FLOAT32, HALVES, TensorType, TupleType
from mspc.ops.collective.base import is_summed_by_reader
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.regions import Loop
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise, moved_operands, replaceable_operands, step_types, steps_of
from mspc.ops.fused.updates import GroupedUpdate, gradient_index, member_of
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Split
from mspc.ops.tensor.reshape import Cast
from mspc.ops.tensor.slicing import StridedSlice
from mspc.runtime.memory_classes import Part, Parts

COMMUNICATION = "communication"
"""Attribute `stream` of nodes on the side stream of collectives."""
REDUCTION = "reduction"
"""Attribute `stream` of nodes on the side stream of gradient sums."""
MESSAGES = "messages"
"""Side stream of messages between stages of a pipeline."""
SIDE_STREAMS = (COMMUNICATION, REDUCTION, TO_HOST, FROM_HOST)
"""Values of the attribute `stream`."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory of one tensor, row-major.

    kind: "arena", at `offset`; "kept", the memory of `value`, a Parameter or a Constant, from its start; or "host", at
    `offset` in host memory. pitch: elements between starts of consecutive rows (the last dimension); 0 if contiguous.
    """

    kind: str
    value: Value | None
    offset: int
    nbytes: int
    pitch: int = 0


class GradientPart(NamedTuple):
    """Part of the matrix or vector made by `source`: a half-open range (begin, end) along each dimension."""

    source: Node
    ranges: tuple[tuple[int, int], ...]

    def of(self, whole: Any) -> Any:
        """Return the part of an array."""
        return whole[tuple(slice(*each) for each in self.ranges)]


@dataclass(frozen=True)
class GradientSlices:
    """Gradients that are slices of larger results. parts: by the values they replace. splits: operators of several
    results, all of which are in `parts`."""

    parts: Mapping[Value, GradientPart] = field(default_factory=dict[Value, GradientPart])
    splits: frozenset[Node] = frozenset()

    def source(self, node: Node) -> Node | None:
        """Return the whole result that a node would split, or None if the node has to run."""
        if node in self.splits:
            return node.inputs[0] if isinstance(node.inputs[0], Node) else None
        found = self.parts.get(node)
        return None if found is None or isinstance(node.op, TupleGetItem) else found.source


@dataclass(frozen=True)
class MemoryPlan:
    """Memory plan of a step, and the assumptions that a launch may make.

    A node whose operator `is_view`, and which is not in `copied`, is not launched: its result already exists. Any other
    node reads its operands from their memory and writes its results to theirs:

    - no result overlaps an operand, unless both are equal: then the operator works `in_place`, or is an AllReduce, or
      overwrites a parameter (`mutates`), whose new value is the result;
    - nothing else in the arena may be written, and the previous contents are undefined (possibly NaN);
    - memory is aligned as requested, that of a bucket's members and of results computed in place to BUCKET_ALIGNMENT.

    Results of the graph stay allocated until the end of the step; one of kind "kept" aliases a parameter after the
    step.

    places: one Allocation for every tensor of every value.
    arena: bytes of the arena. lower_bound: maximum live bytes in it; no plan is smaller.
    host_arena: bytes of host memory for values of a step. kept_on_host: bytes of parameters in host memory, which are
    not counted in `weights`, `states` and `peak`.
    buckets: for an AllReduce of several adjacent operands, the block of all of them, in which member k starts where
    operand k does: the node is one reduction over the block, in place. Its size is a multiple of the element size. An
    AllReduce of several operands without an entry has operands elsewhere, or operands that are needed afterwards.
    waits: for a node, the collectives of other streams that must be complete before it starts.
    copied: nodes whose result aliases a parameter that is updated while the result is still needed, with the memory
    that it aliases. A view is replaced by a copy. An updating operator runs as usual, and its new values are copied
    after it.
    inside: for a node with regions, the memory of values that are live while it runs. outside: if the caller of this
    graph supplies memory for its results, the placeholders for that memory, see `OutsideResults`.
    shadow_weights: copies of parameters, whose memory is the same in all steps, and the casts that only they read.
    These nodes need not run as long as only updates change the parameters.
    slices: gradients that a GPU's updates read inside larger matrices. The nodes that would split them do not run.
    weights, states, inputs: bytes of parameters: those of the network including statistics, those that only updates
    change (moments, counters), and fed inputs. constants: bytes of the constants in the text.
    gradients, activations, temporary: maximum live bytes of each class in the arena, each at its own time.
    classes: class of every result of a node that makes results, see `memory_classes`; "" for memory of a parameter.
    """

    places: Mapping[Value, tuple[Allocation, ...]]
    arena: int
    lower_bound: int
    buckets: Mapping[Node, Allocation] = field(default_factory=dict[Node, Allocation])
    waits: Mapping[Node, tuple[Node, ...]] = field(default_factory=dict[Node, "tuple[Node, ...]"])
    copied: Mapping[Node, tuple[Allocation, ...]] = field(default_factory=dict[Node, "tuple[Allocation, ...]"])
    inside: Mapping[Node, Allocation] = field(default_factory=dict[Node, Allocation])
    outside: tuple[Value | None, ...] = ()
    weights: int = 0
    states: int = 0
    inputs: int = 0
    constants: int = 0
    gradients: int = 0
    activations: int = 0
    temporary: int = 0
    classes: Mapping[Node, tuple[str, ...]] = field(default_factory=dict[Node, "tuple[str, ...]"])
    shadow_weights: ShadowWeights = field(default_factory=ShadowWeights)
    slices: GradientSlices = field(default_factory=GradientSlices)
    host_arena: int = 0
    kept_on_host: int = 0

    def shows(self, node: Node) -> bool:
        """Return whether a node is not launched because its result already exists."""
        return node not in self.copied and (node.op.is_view or self.slices.source(node) is not None)

    @property
    def on_host(self) -> int:
        """Bytes of the host's memory: parameters stored there, and values of a step."""
        return self.kept_on_host + self.host_arena

    @property
    def peak(self) -> int:
        """Bytes of all places together: parameters, constants and the arena."""
        return self.weights + self.states + self.inputs + self.constants + self.arena


def side_stream(node: Node) -> str:
    """Return the side stream on which the node runs, or "" for the main one. A message from another stage is awaited on
    the main stream, at its reader. A message to another stage is sent beside the work."""
    if is_received(node):
        return ""
    if is_sent(node):
        return MESSAGES
    name = node.attrs.get("stream")
    return str(name) if name in SIDE_STREAMS else ""


def is_sent(node: Node) -> bool:
    """Return whether the node sends a message to another stage. The name is compared because few programs have such
    operators."""
    return node.op.name == "SendToStage"


def is_received(node: Node) -> bool:
    """Return whether the node receives a message from another stage."""
    return node.op.name == "ReceiveFromStage"


def is_awaited(node: Node) -> bool:
    """Return whether the node only waits until its operand is copied to the host. The name is compared, as in
    `is_sent`."""
    return node.op.name == "AwaitHost"


def is_on_host(node: Node) -> bool:
    """Return whether the node's result is in host memory."""
    return node.op.name == "ToHost"


def row_pitches(node: Node) -> Sequence[int]:
    """Return the row pitch of every result in elements, 0 if contiguous. Raise MspcError if the attribute does not fit
    the result types."""
    types, found = element_types(node.type), node.attrs.get("row_pitch")
    if found is None:
        return [0] * len(types)
    if not isinstance(found, tuple) or len(found) != len(types) or not all(map(_is_pitch, found, types)):
        raise node.error(f"{node.label} has row_pitch {found!r}; a result of type {node.type} cannot lie in memory so")
    return found


def equal_results(node: Node, known: dict[Graph, dict[int, int]]) -> dict[int, int]:
    """Return duplicate results of a graph that a node runs once, by number, with the number of the first equal result.
    known: cache by graph, as several nodes may run one."""
    if len(node.regions) != 1 or isinstance(node.op, Loop) or node.attrs.get("row_pitch") is not None:
        return {}
    (graph,) = node.regions
    if graph not in known:
        known[graph] = _equal(graph)
    return known[graph]


def _equal(graph: Graph) -> dict[int, int]:
    first: dict[object, int] = {}
    found: dict[int, int] = {}
    for number, value in enumerate(graph.results):
        same: object = _whole_result(value)
        if same is not None and first.setdefault(same, number) != number:
            found[number] = first[same]
    return found


def _whole_result(value: Value) -> object:
    """Return (node, number of its result) if a value is the whole memory of that result, else None."""
    if not isinstance(value.type, TensorType):
        return None
    shown, item = value, 0
    while isinstance(shown, Node) and shown.op.is_view and not isinstance(shown.type, TupleType):
        if isinstance(shown.op, TupleGetItem):
            item, shown = shown.op.index, shown.inputs[0]
            break
        shown = shown.inputs[0]
    if not isinstance(shown, Node) or shown.op.is_view or shown.op.mutates or shown.regions:
        return None
    made = element_types(shown.type)[item]
    whole = isinstance(made, TensorType) and (made.dtype, made.nbytes) == (value.tensor_type.dtype, value.type.nbytes)
    return (shown, item) if whole else None


def _is_pitch(pitch: Any, type: TensorType) -> bool:
    return pitch == 0 or (isinstance(pitch, int) and len(type.shape) > 1 and 0 < type.shape[-1] <= pitch)


def updated_operands(node: Node) -> tuple[int, ...]:
    """Return, for an operator that overwrites parameters, the operand whose new value each result is; () for other
    operators and for nodes with regions."""
    mutates = node.op.mutates
    if not mutates or node.op.updates_aside or node.regions:
        return ()
    results = element_types(node.type)
    members = node.op.count if isinstance(node.op, GroupedUpdate) else 1
    written, each = len(mutates) // members, len(results) // members
    operands = tuple(mutates[m * written + k] for m in range(members) for k in range(each))
    return operands if tuple(node.inputs[i].type for i in operands) == results else ()


def sources_of(node: Node, results: int) -> list[Sequence[Value]]:
    """Return, for each of `results` results, the operands that it may overwrite: those it is computed from.

    A result in place of another operand would be stored while that operand is still being loaded: four times slower on
    an H200.
    """
    if isinstance(node.op, AllReduce) and results == len(node.inputs):
        return [(value,) for value in node.inputs]  # each is reduced separately
    if getattr(node.op, "in_place_of", ()):
        return [[node.inputs[i] for i in node.op.in_place_of]] * results  # type: ignore[attr-defined]  # asked above: few operators have it
    if isinstance(node.op, FusedElementwise):
        return [[node.inputs[i] for i in sorted(found)] for found in replaceable_operands(node.op)]
    return [node.inputs] * results


def read_elsewhere(node: Node) -> list[Value]:
    """Return the operands that are read at other elements than the result's, or that another rank reads. An operator
    that works in place of some operands reads the others in any order: x of x @ y + x must not be overwritten although
    it is the addend."""
    if allowed := getattr(node.op, "in_place_of", ()):
        return [value for i, value in enumerate(node.inputs) if i not in allowed]
    if not isinstance(node.op, FusedElementwise):
        return []
    return [node.inputs[i] for i in moved_operands(node.op)] + list(filter(is_summed_by_reader, node.inputs))


def works_on(node: Node, size: int) -> bool:
    """Return whether `size` is the number of elements of the largest tensor that the operator processes, or whether the
    operator declares the operands that its result may overwrite."""
    if getattr(node.op, "in_place_of", ()):
        return True
    types = [t for value in (node, *node.inputs) for t in element_types(value.type)]
    if isinstance(node.op, FusedElementwise):
        types += step_types(node.op, [value.tensor_type for value in node.inputs])
    return size == max(t.size for t in types)


# Gradients that are rows or columns of a larger matrix, because matmuls with a common operand are fused, or a part of a
# vector, and that only an update reads: a GPU's kernel reads them in place, without a contiguous or widened copy.
#
#     %8 = MatMul(%6, %7)  of BFloat16, [1024, 3072]
#     %9 = StridedSlice(%8) {begin: (0, 1024), end: (1024, 2048)}, %10 = Cast(%9) {dst_type: Float32}, in one kernel
#     %11 = ApplyMomentum(%w, %m, %rate, %10, %momentum)


_PACK = 8
"""Maximum number of elements that a kernel loads at once; parts of rows start and end at a multiple."""
_MAX_ELEMENTS = (1 << 32) - 1
"""Maximum number of elements of a tensor, because kernels count in 32 bits."""


def gradient_slices(graph: Graph) -> GradientSlices:
    """Return the gradients of all updates of a graph that can be read inside larger results."""
    found = {value: part for node in graph.nodes for value, part in _parts(node)}
    if not found:
        return GradientSlices()
    users, results = graph.users(), set[Value](graph.results)
    parts = {value: part for value, part in found.items() if len(users[value]) == 1 and value not in results}
    taken = {value.inputs[0] for value in parts if isinstance(value.op, TupleGetItem)}
    splits = frozenset[Node](
        split for split in taken
        if isinstance(split, Node) and split not in results and all(reader in parts for reader, _ in users[split])
    )  # fmt: skip
    made = {v: part for v, part in parts.items() if not isinstance(v.op, TupleGetItem) or v.inputs[0] in splits}
    return GradientSlices(dict[Value, GradientPart](made), splits)


def _parts(node: Node) -> Iterator[tuple[Node, GradientPart]]:
    """Yield the gradients of an update on the GPU that are parts and that its kernel can read in place."""
    op = member_of(node.op)
    index = gradient_index(op) if op is not None else None
    if op is None or index is None or index in (*op.mutates, *op.scalars):
        return
    if any(isinstance(value, Parameter) and OFFLOAD in value.attrs for value in node.inputs):
        return
    width, types = len(op.operands), operand_types(node)
    if any(type.size > _MAX_ELEMENTS for type in types):
        return
    for start in range(0, len(node.inputs), width):
        value, own = node.inputs[start + index], types[start : start + width]
        part = _part_of(value) if isinstance(value, Node) and own[0].shape == own[index].shape else None
        if part is None:
            continue
        dtypes = [type.dtype for type in own]
        dtypes[index] = part.source.tensor_type.dtype
        if op.statements(dtypes):
            yield value, part


def _part_of(value: Node) -> GradientPart | None:
    """Return the part of another node's result that a node extracts, if it does nothing else but widen it; else
    None."""
    op: Op | object = value.op
    if isinstance(op, TupleGetItem):
        split = value.inputs[0]
        if not isinstance(split, Node) or not isinstance(split.op, Split):
            return None
        op, value = split.op.single_result(op.index, *operand_types(split)), split
    elif isinstance(op, FusedElementwise):
        steps = steps_of(op) if len(value.inputs) == 1 and op.returns == (len(op.body) - 1,) else ()
        if not 1 <= len(steps) <= 2 or [step.operands for step in steps] != [(("x", 0),), (("t", 0),)][: len(steps)]:
            return None
        widens = operand_types(value)[0].dtype in HALVES and value.tensor_type.dtype == FLOAT32
        if len(steps) == 2 and not (widens and isinstance(steps[1].op, Cast)):
            return None
        op = steps[0].op
    source = value.inputs[0] if value.inputs else None
    if not isinstance(op, StridedSlice) or not isinstance(source, Node) or not isinstance(source.type, TensorType):
        return None
    made = source.inputs[0] if isinstance(source.op, TupleGetItem) else source
    if not isinstance(made, Node) or made.op.is_view or made.op.mutates or made.regions:
        return None
    if len(source.shape) not in (1, 2):
        return None
    ranges = op.ranges(source.shape)
    if ranges is None or any(n % _PACK for n in (*ranges[-1], source.shape[-1])):
        return None
    return GradientPart(source, ranges)


# Placement of a region's results in memory outside its arena, so that nothing is copied afterwards ----
# in the memory of the values that they replace in a loop's next iteration, or of the node's own results.
# Input: a call of a graph whose result `%9 = AddN(%total, %5)` replaces the operand `%total` Output: %9 is made in
# the memory of the call's result, which may be that of the operand if it has no other reader.


class ResultPlaces:
    """Parameters whose memory results may overwrite. parts: for every value the memory that it aliases."""

    def __init__(self, graph: Graph, parts: Parts) -> None:
        self._parts = parts
        self._last: dict[Part, int] = {}
        """Last position at which a parameter's memory is read; the end if a result aliases it."""
        for index, values in enumerate([*(node.inputs for node in graph.nodes), graph.results]):
            for value in values:
                self._last.update((part, index) for part in parts[value] if isinstance(part, Parameter))

    def place(
        self, index: int, node: Node, operands: Sequence[Value], own: Part, made: TensorType
    ) -> Parameter | None:  # fmt: skip
        """Return the parameter or placeholder in whose memory the node at `index` may make the result `own`, or
        None."""
        raise NotImplementedError

    def _replaceable(self, index: int, node: Node, operands: Sequence[Value], made: TensorType) -> Iterator[Parameter]:
        """Yield the operands that are parameters and that the node, as their last reader, may overwrite."""
        if not (isinstance(node.op, Op) and node.op.in_place):
            return
        for part in (part for value in operands for part in self._parts[value]):
            if not isinstance(part, Parameter) or self._last[part] > index:
                continue
            before, others = part.tensor_type, read_elsewhere(node)
            same_size = before.dtype == made.dtype and before.nbytes == made.nbytes
            if same_size and works_on(node, made.size) and all(part not in self._parts[value] for value in others):
                yield part


class CarriedResults(ResultPlaces):
    """Placement of the results of a loop's body. carried: for the body's parameters, the results that are their values
    in the next iteration."""

    def __init__(self, graph: Graph, carried: Mapping[Parameter, Value], parts: Parts) -> None:
        super().__init__(graph, parts)
        self._wanted = {parameter: parts[value] for parameter, value in carried.items()}

    def place(
        self, index: int, node: Node, operands: Sequence[Value], own: Part, made: TensorType
    ) -> Parameter | None:  # fmt: skip
        parameters = self._replaceable(index, node, operands, made)
        return next((each for each in parameters if self._wanted.get(each) == (own,)), None)


class OutsideResults(ResultPlaces):
    """Placement of results outside the graph's arena.

    places: for every result the placeholder for its memory outside, None if it has no memory of its own. replaces: for
    a result, the number of the graph's parameter that it may overwrite as well. size_of: bytes of a part of memory; 0
    if it must stay inside.
    """

    def __init__(self, graph: Graph, parts: Parts, size_of: Callable[[int], int]) -> None:
        super().__init__(graph, parts)
        self._numbers = {parameter: number for number, parameter in enumerate(graph.parameters)}
        self._wanted: dict[Part, int] = {}
        self.replaces: dict[int, int] = {}
        places: list[Parameter | None] = []
        for number, value in enumerate(graph.results):
            own = parts[value]
            if (
                isinstance(value.type, TensorType) and len(own) == 1 and isinstance(own[0], int)
                and own[0] not in self._wanted and size_of(own[0]) == value.type.nbytes > 0
            ):  # fmt: skip
                self._wanted[own[0]] = number
                places.append(Parameter(f"result_{number}", value.type))
            else:
                places.append(None)
        self.places = tuple(places)

    def place(
        self, index: int, node: Node, operands: Sequence[Value], own: Part, made: TensorType
    ) -> Parameter | None:  # fmt: skip
        number = self._wanted.get(own)
        place = None if number is None else self.places[number]
        if number is None or place is None or place.tensor_type.dtype != made.dtype:
            return None
        for part in self._replaceable(index, node, operands, made):
            if part in self._numbers and self._numbers[part] not in self.replaces.values():
                self.replaces[number] = self._numbers[part]
                break
        return place
