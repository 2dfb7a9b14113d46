"""The graph: values, parameters, constants, nodes and their attributes, their builder, and copies of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from mspc.ir.diagnostics import Frames, MspcError
from mspc.ir.layout import Layout
from mspc.ir.types import BOOL, DType, TensorType, TupleType, Type, dtype_of, is_too_large


def free_name(wanted: str, taken: set[str]) -> str:
    """Return the wanted name, or the first of NAME_1, NAME_2, ... that is not taken, and add it to `taken`."""
    name, count = wanted, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name


T = TypeVar("T")
Layouts = Layout | tuple[Layout, ...] | None
"""The placement of a value: one layout for a tensor, one per element for a tuple, None before sharding."""
_LONGEST = 400
"""Most characters of the parts listed in a label; the remaining parts are only counted."""
OFFLOAD = "offload"
"""Attribute of values in the host's memory. For a parameter: the number of updates by which it is fetched early, 0 to
leave that to the compiler. For a forward node with results saved for gradients on the host: "CELL, PREFETCH" if its
cell asks for it, ", PREFETCH" if a cell that is not called itself asks for its inner cells, else PREFETCH. PREFETCH is
the number of operators before the reader at which the fetch begins, or "Auto" to leave it to the compiler."""
OFFLOAD_INSIDE = "offload_inside"
"""Flag of cells inside a cell that asks for offloading."""
TO_HOST, FROM_HOST = "to_host", "from_host"
"""Values of the attribute `stream` of copies to and from the host's memory: each direction has full bandwidth."""
PADDING = "padding"
"""Attribute of a parameter that is stored with zeros at the end of dimensions: the reason. Its global type is without
them; an optimizer leaves them zero, and checkpoints do not hold them. Flag of a node that pads a dimension, masks
padding, or removes it."""
STAGE, STAGES = "stage", "pipeline_stages"
"""Attributes: the pipeline stage of a node or graph; in the header, the number of stages."""
WORK, MICRO_BATCH = "work", "micro_batch"
"""Attributes of the calls in a stage's program: the kind of work, in the terms of schedules, and the index of its
micro-batch."""


class OpLike(Protocol):
    """Operator interface that the graph and its analyses need; `mspc.ops.op.Op` documents the members."""

    @property
    def name(self) -> str: ...

    has_side_effect: ClassVar[bool]
    mutates: ClassVar[tuple[int, ...]]
    updates_aside: ClassVar[bool]
    is_view: ClassVar[bool]
    moves: ClassVar[bool]
    is_collective: ClassVar[bool]
    host_reads: ClassVar[tuple[int, ...]]

    def attributes(self) -> Mapping[str, Any]: ...

    def aliased_operands(self, count: int) -> Sequence[int]: ...


class Value:
    """A possible input of a node: a type, a placement and a debug name."""

    __slots__ = ("layout", "name", "type")

    def __init__(self, type: Type, name: str = "", layout: Layouts = None) -> None:
        self.type = type
        self.name = name
        self.layout = layout

    @property
    def tensor_type(self) -> TensorType:
        """The type of a value that must be one tensor."""
        assert isinstance(self.type, TensorType), f"{self.name} is {self.type}, not a tensor"
        return self.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor_type.shape

    @property
    def tensor_layout(self) -> Layout:
        """The placement of a value that must be one tensor with a layout."""
        assert isinstance(self.layout, Layout), f"{self.name} has no layout"
        return self.layout


class Parameter(Value):
    """An input of the graph.

    kind: "input" is fed at every step, "parameter" has its value stored between steps (weights, optimizer states),
        "constant" is a large array fixed at compile time; the last two live in the weights file under `name`.
    trainable: takes part in differentiation by default (`requires_grad`).
    global_type: on a rank's own graph the type before slicing, else None.
    attrs: further facts, printed.
    """

    __slots__ = ("attrs", "global_type", "kind", "trainable")

    def __init__(
        self, name: str, type: Type, kind: str = "input", trainable: bool = False, layout: Layouts = None,
        global_type: Type | None = None,
    ) -> None:  # fmt: skip
        super().__init__(type, name, layout)
        self.kind = kind
        self.trainable = trainable
        self.global_type = global_type
        self.attrs: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Parameter({self.name}: {self.type})"


class Constant(Value):
    """A small tensor known at compile time, printed as an operand. `value` is a read-only NumPy array.

    given: the float it was made from, which a narrower type may only hold rounded; None if it was made otherwise."""

    __slots__ = ("given", "value")

    def __init__(self, value: Any, dtype: Any = None) -> None:
        array = np.asarray(value, dtype=None if dtype is None else dtype_of(dtype).numpy)
        array.flags.writeable = False
        super().__init__(TensorType(dtype_of(array.dtype), array.shape))
        self.value = array
        self.given = float(value) if isinstance(value, float) else None

    def __repr__(self) -> str:
        return f"Constant({self.value!r})"


class Node(Value):
    """One operator applied to values.

    op: the operator with its attributes.
    inputs: operands in order; constants and parameters included.
    instance: the user's name for the operator (the attribute that holds it), "" if it has none.
    scope: the cells around it, as `Default/network-WithLossCell/_backbone-Net`.
    frames: source spans, innermost first.
    phase: "forward", "backward" (made by differentiation) or "update" (changes parameters).
    in_strategy, out_strategy: the strategies given to `shard()`: per tensor a tuple of ints, or an object that
        prints itself as a layout; None if none was given.
    strategy: the strategy after propagation, one tuple of ints per tensor; only in the dump
        `step_parallel_begin`, for human readers.
    in_layouts: the placement that the operator needs of every input, once it is decided; the operands' own layouts
        may still differ until the redistributions are inserted.
    layout: the placement of the result.
    regions: the graphs that the operator (`If`, `While`, ...) runs, in the order that it defines. Outside values
        reach them only as operands; several nodes may share a graph.
    forward, forward_input: for a node made by differentiation, the forward node it belongs to, and the index of the
        input that this node is the gradient of (-1 for nodes in between).
    place: the operator's name in plans (`Default/network-Net/MatMul-op0`) until the plan is applied; "" otherwise.
    provenance: the pass that made the node and, after a slash, the operator that it rewrote; see `mspc.ir.provenance`.
    attrs: further facts, printed as cnode_attrs (`reason`, `mirror_user_id`, ...).
    """

    __slots__ = (
        "attrs", "forward", "forward_input", "frames", "in_layouts", "in_strategy", "inputs", "instance", "op",
        "out_strategy", "phase", "place", "provenance", "regions", "scope", "strategy",
    )  # fmt: skip

    def __init__(
        self, op: OpLike, inputs: Iterable[Value], type: Type, name: str = "", instance: str = "", scope: str = "",
        frames: Frames = (), phase: str = "forward",
    ) -> None:  # fmt: skip
        super().__init__(type, name)
        self.op = op
        self.inputs: list[Value] = list(inputs)
        self.instance = instance
        self.scope = scope
        self.frames = frames
        self.phase = phase
        self.regions: tuple[Graph, ...] = ()
        self.in_strategy: tuple[Any, ...] | None = None
        self.out_strategy: tuple[Any, ...] | None = None
        self.strategy: tuple[tuple[int, ...], ...] | None = None
        self.in_layouts: tuple[Layout | None, ...] | None = None
        self.forward: Node | None = None
        self.forward_input = -1
        self.place = ""
        self.provenance = ""
        self.attrs: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """Name of the node in messages: `MatMul 'matmul1'`, or `Sub` if the user gave no name. A node fused from
        several of the user's (its attribute `fused`) is `FusedElementwise of Add, GeLU 'gelu'`; of many only the first
        ones are listed."""
        if "fused" in self.attrs:
            parts = self.attrs["fused"]
            lengths = itertools.accumulate(map(len, parts))
            shown = max(1, sum(length <= _LONGEST for length in lengths))
            more = f" and {len(parts) - shown} more" if shown < len(parts) else ""
            return f"{self.op.name} of {', '.join(parts[:shown])}{more}"
        return f"{self.op.name} '{self.instance}'" if self.instance else self.op.name

    def error(
        self, message: str, notes: Iterable[str] = (), kind: type[Exception] | None = None, code: str = ""
    ) -> MspcError:
        """Return an error at the user's line of this node."""
        return MspcError(message, notes=notes, frames=self.frames, kind=kind or RuntimeError, code=code)

    def __repr__(self) -> str:
        return f"Node({self.label}: {self.type})"


class Graph:
    """A function: parameters, nodes in run order, one result (None, a value, or a tuple of values).

    A graph is a program, or a region that a node of another graph runs. A region reads only its own parameters (of kind
    "input"), its own nodes, and constants.

    attrs: attributes of the entire graph, printed in the header of its text (mode, ranks, rank, compile id, ...).
    """

    __slots__ = ("attrs", "name", "nodes", "parameters", "results", "returns_tuple")

    def __init__(self, name: str) -> None:
        self.name = name
        self.attrs: dict[str, Any] = {}
        self.parameters: list[Parameter] = []
        self.nodes: list[Node] = []
        self.results: list[Value] = []
        self.returns_tuple = False

    def users(self) -> dict[Value, list[tuple[Node, int]]]:
        """Return, for every value that is read, the (node, operand index) pairs that read it, in run order."""
        found: dict[Value, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for index, value in enumerate(node.inputs):
                found.setdefault(value, []).append((node, index))
        return found

    def replace(self, mapping: Mapping[Value, Value]) -> None:
        """Replace every use of a key of `mapping` by its value, in operands and results."""
        for node in self.nodes:
            for index, value in enumerate(node.inputs):
                if value in mapping:
                    node.inputs[index] = mapping[value]
        self.results = [mapping.get(value, value) for value in self.results]

    def values(self) -> Iterator[Value]:
        yield from self.parameters
        yield from self.nodes

    def graphs(self) -> list[Graph]:
        """Return the graph and all regions inside it, each once; a graph comes before its regions."""
        ended: dict[Graph, None] = {}
        self._end_after_its_regions(ended)
        return list(reversed(ended))

    def all_nodes(self) -> Iterator[Node]:
        """Return an iterator over the nodes of the graph and of all regions inside it, in the order of `graphs`."""
        return (node for graph in self.graphs() for node in graph.nodes)

    def clear_strategies(self) -> None:
        """Remove the strategies of all operators of the graph and of its regions."""
        for node in self.all_nodes():
            node.in_strategy = node.out_strategy = None

    def _end_after_its_regions(self, ended: dict[Graph, None]) -> None:
        for node in reversed(self.nodes):
            for region in reversed(node.regions) if node.regions else ():
                if region not in ended:
                    region._end_after_its_regions(ended)
        ended[self] = None

    def parameter(self, name: str) -> Parameter:
        """Return the parameter called `name`. Raise KeyError if there is none."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise KeyError(name)

    def verify(self) -> None:
        """Check the structure of the graph and its regions: every operand is defined before its use and in the same
        graph, results are defined, names are unique. Raise AssertionError if a pass broke the graph; this is never a
        user's mistake."""
        graphs = self.graphs()
        graph_names = [graph.name for graph in graphs]
        assert len(graph_names) == len(set(graph_names)), f"graphs share a name: {graph_names}"
        for graph in graphs:
            graph._verify_alone()

    def _verify_alone(self) -> None:
        seen: set[Value] = set(self.parameters)
        names = [p.name for p in self.parameters]
        assert len(names) == len(set(names)), f"parameters share a name: {names}"
        for node in self.nodes:
            for value in node.inputs:
                assert isinstance(value, Constant) or value in seen, f"{node} reads {value} before it is defined"
            assert node not in seen, f"{node} is twice in the graph"
            seen.add(node)
        for value in self.results:
            assert isinstance(value, Constant) or value in seen, f"{self.name} returns the undefined {value}"


def element_types(type: Type) -> tuple[TensorType, ...]:
    """Return the tensor types of a value: one, or all of a tuple; () for an opaque type."""
    if isinstance(type, TupleType):
        return type.elements
    return (type,) if isinstance(type, TensorType) else ()


def operand_types(node: Node) -> tuple[TensorType, ...]:
    """Return the types of the tensors that a node reads, with tuples flattened."""
    return tuple(type for value in node.inputs for type in element_types(value.type))


def element_layouts(layout: Layouts) -> tuple[Layout, ...]:
    """Return the layouts of a value: one, or all of a tuple; () if it has none."""
    if layout is None:
        return ()
    return layout if isinstance(layout, tuple) else (layout,)


def asks_for_host(program: Graph) -> bool:
    """Return whether any parameters or values of a program are to be stored in the host's memory."""
    return any(OFFLOAD in value.attrs for graph in program.graphs() for value in (*graph.parameters, *graph.nodes))


def stages_of(attrs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the stages in the attributes of a node or parameter, ascending; () if there are none."""
    given = attrs.get(STAGE, ())
    return (given,) if isinstance(given, int) else tuple(given)


def mark_stages(attrs: dict[str, Any], stages: Collection[int]) -> None:
    """Set the stages in these attributes and replace earlier ones; no stages remove the attribute."""
    attrs.pop(STAGE, None)
    if stages:
        found = sorted(stages)
        attrs[STAGE] = found[0] if len(found) == 1 else tuple(found)


def copied_node(node: Node, inputs: Iterable[Value], op: OpLike | None = None) -> Node:
    """Return a copy of `node` with other operands and perhaps another operator. It shares the regions and has the same
    forward node."""
    own = Node(
        node.op if op is None else op, inputs, node.type, node.name, node.instance, node.scope, node.frames, node.phase
    )
    own.regions = node.regions
    own.in_strategy, own.out_strategy, own.strategy = node.in_strategy, node.out_strategy, node.strategy
    own.in_layouts, own.layout = node.in_layouts, node.layout
    own.forward, own.forward_input, own.place = node.forward, node.forward_input, node.place
    own.provenance = node.provenance
    own.attrs = dict(node.attrs)
    return own


def interpose(node: Node, op: OpLike) -> Node:
    """Move a node's computation to a new node, which is not in the graph yet, and return the new node. The old node
    becomes `op` applied to it, so all readers see that result."""
    moved = copied_node(node, node.inputs)
    node.op, node.regions = op, ()
    node.inputs = [moved]
    node.in_strategy = node.out_strategy = None
    node.attrs = {}
    node.instance = node.name = node.provenance = ""
    return moved


def copied_parameter(parameter: Parameter) -> Parameter:
    """Return a copy of a parameter."""
    own = object.__new__(Parameter)  # skips `__init__`: there are thousands
    own.name, own.type, own.kind, own.layout = parameter.name, parameter.type, parameter.kind, parameter.layout
    own.trainable, own.global_type, own.attrs = parameter.trainable, parameter.global_type, {**parameter.attrs}
    return own


def copied_graph(graph: Graph, name: str | None = None) -> Graph:
    """Return a copy of a graph, with a new name if given. Its nodes run the same regions."""
    made = Graph(graph.name if name is None else name)
    made.attrs, made.returns_tuple = dict(graph.attrs), graph.returns_tuple
    of: dict[Value, Value] = {}
    for parameter in graph.parameters:
        of[parameter] = own = copied_parameter(parameter)
        made.parameters.append(own)
    for node in graph.nodes:
        copy = copied_node(node, [of.get(value, value) for value in node.inputs])
        forward = of.get(node.forward) if node.forward is not None else None
        copy.forward = forward if isinstance(forward, Node) else node.forward
        of[node] = copy
        made.nodes.append(copy)
    made.results = [of.get(value, value) for value in graph.results]
    return made


def depending(nodes: Sequence[Node], on: Collection[Value]) -> set[Value]:
    """Return the nodes computed from these values, including those of the values that are computed from others."""
    given = set(on)
    found: set[Value] = set()
    for node in nodes:
        if any(value in given or value in found for value in node.inputs):
            found.add(node)
    return found


class Worklist(Generic[T]):
    """Items to visit in a loop, each once, the last added first; the loop may add more. seen: those visited so far."""

    def __init__(self, items: Iterable[T]) -> None:
        self._waiting = list(items)
        self.seen: set[T] = set()

    def __iter__(self) -> Iterator[T]:
        while self._waiting:
            item = self._waiting.pop()
            if item not in self.seen:
                self.seen.add(item)
                yield item

    def add(self, items: Iterable[T]) -> None:
        """Visit these later, unless they were visited before."""
        self._waiting += items


def copied_region(graph: Graph, name: Callable[[str], str] = str, known: dict[Graph, Graph] | None = None) -> Graph:
    """Return a copy of a graph and of its regions, or the copy in `known`.

    name: gives the name of a copy from the name of its graph. known: earlier copies by their originals; those made
    here are added.
    """
    known = {} if known is None else known
    if graph in known:
        return known[graph]
    made = known[graph] = copied_graph(graph, name(graph.name))
    for node in made.nodes:
        node.regions = tuple(copied_region(region, name, known) for region in node.regions)
    return made


# The builder of nodes ---------------------------------------------------------------------------------
# It infers the type, fills in scope and source spans, and appends the node to a list.


class TypedOp(OpLike, Protocol):
    """An operator that can infer the type of its result."""

    def infer(self, *types: TensorType) -> Type: ...


def with_instance(message: str, name: str, instance: str) -> str:
    """Return a message that begins with an operator's name, with the name of its instance after that."""
    return f"{name} '{instance}'{message[len(name) :]}" if instance and message.startswith(name) else message


class Builder:
    """Emitter of nodes into `nodes`, a list in run order (a graph's own list, or one that a pass is building).

    Every emitted node gets the current `scope`, `frames`, `phase`, `forward` and `provenance`.
    """

    def __init__(self, graph: Graph, nodes: list[Node] | None = None) -> None:
        self.graph = graph
        self.nodes = graph.nodes if nodes is None else nodes
        self.scope = "Default"
        self.frames: Frames = ()
        self.phase = "forward"
        self.forward: Node | None = None
        self.provenance = ""
        self.inner_gradients: dict[Value, Any] = {}
        """Gradients that an OwnGradient differentiated earlier makes for another one (see `OwnGradient.inner`)."""

    def emit(self, op: TypedOp, *inputs: Value, name: str = "", instance: str = "") -> Node:
        """Append `op(*inputs)`. Raise MspcError if the operands' types do not fit; its place is the current source
        line."""
        try:
            types = [value.type for value in inputs]
            refuse_kinds(op, types)
            type = op.infer(*types)  # type: ignore[misc]  # tuples reach structural operators only
            refuse_large(op.name, type)
        except MspcError as error:
            if error.location is not None:
                raise
            message = with_instance(error.message, op.name, instance)
            raise MspcError(message, notes=error.notes, frames=self.frames, kind=error.kind or ValueError) from None
        node = Node(op, inputs, type, name, instance, self.scope, self.frames, self.phase)
        node.forward, node.provenance = self.forward, self.provenance
        self.nodes.append(node)
        return node

    def constant(self, value: Any, dtype: DType) -> Constant:
        """Return a scalar (or small array) constant of an element type."""
        return Constant(value, dtype)

    def like(self, node: Node) -> Builder:
        """Take scope and source spans from `node` for the next nodes. Return the builder."""
        self.scope = node.scope
        self.frames = node.frames
        return self


def refuse_kinds(op: TypedOp, types: Sequence[Type], takes_complex: bool = False) -> None:
    """Raise MspcError if an operator that takes only numbers gets a Bool operand, or one that takes only real numbers a
    complex operand. takes_complex: this one takes complex numbers here, whatever it says."""
    bools, complexes = getattr(op, "takes_bool", True), takes_complex or getattr(op, "takes_complex", False)
    if bools and complexes:
        return  # an entry of the tuple of all gradients has as many types to look at as there are parameters
    for index, type in enumerate(types):
        for element in element_types(type):
            if element.dtype == BOOL and not bools:
                raise MspcError(f"{op.name}: input {index} is Bool, not a number",
                                notes=["cast it first: x.astype(mindspore.int32)"], kind=TypeError)  # fmt: skip
            if element.dtype.is_complex and not complexes:
                raise MspcError(f"{op.name}: input {index} is {type}; the operator takes no complex numbers",
                                notes=["take its parts with ops.real and ops.imag"], kind=TypeError)  # fmt: skip


def refuse_large(name: str, type: Type) -> None:
    """Raise MspcError if a value has a tensor that is too large for any text or memory."""
    for element in element_types(type):
        if is_too_large(element.shape):
            raise MspcError(f"{name}: {element} has more elements than any memory holds")
