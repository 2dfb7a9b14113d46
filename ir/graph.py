"""Names that are not taken yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from mspc.ir.diagnostics import Frames, MspcError
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType, TupleType, Type, dtype_of


def free_name(wanted: str, taken: set[str]) -> str:
    """The wanted name, or the first of NAME_1, NAME_2, ... that is not taken; from now on it is."""
    name, count = wanted, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name


Layouts = Layout | tuple[Layout, ...] | None
"""The placement of a value: one layout for a tensor, one per element for a tuple, None before sharding."""
_LONGEST = 400
"""Characters of a label from which its other parts are only counted."""
OFFLOAD = "offload"
"""Attribute of a parameter that lives in the host's memory: how many updates ahead of its own it is fetched, 0 where
that is left to the compiler. Of a forward node, where what gradients read of it is kept there: "CELL, PREFETCH" where
its cell asks, else PREFETCH, or ", PREFETCH" where a cell that is not called itself asks for those inside: how many
operators ahead of its reader it is fetched, "Auto" for left to the compiler."""
OFFLOAD_INSIDE = "offload_inside"
"""The flag of cells inside of one that asks."""
TO_HOST, FROM_HOST = "to_host", "from_host"
"""Values of the attribute `stream` of copies to the host's memory and from it: each way has a bus's full bandwidth."""
STAGE, STAGES = "stage", "pipeline_stages"
"""Attributes: the stage of a pipeline that a node, or the graph, is of; in the header how many there are."""
WORK, MICRO_BATCH = "work", "micro_batch"
"""Attributes of the calls of a stage's program: the kind of their work, as schedules have it, and on which part of the
batch it is."""


class OpLike(Protocol):
    """What the graph and the analyses of it need of an operator; `mspc.ops.op.Op` says what each means."""

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
    """Something that a node can take as an input: a type, a placement and a debug name."""

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
        self,
        name: str,
        type: Type,
        kind: str = "input",
        trainable: bool = False,
        layout: Layouts = None,
        global_type: Type | None = None,
    ) -> None:
        super().__init__(type, name, layout)
        self.kind = kind
        self.trainable = trainable
        self.global_type = global_type
        self.attrs: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Parameter({self.name}: {self.type})"


class Constant(Value):
    """A small tensor known at compile time, printed where it is used. `value` is a read-only NumPy array.

    given: the number that it was made of, which a narrower type may hold rounded alone; None where it was no such."""

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
    instance: the user's name for the operator (the attribute that holds it), "" when it has none.
    scope: the cells around it, as `Default/network-WithLossCell/_backbone-Net`.
    frames: source spans, innermost first.
    phase: "forward", "backward" (made by differentiation) or "update" (changes parameters).
    in_strategy, out_strategy: what the user gave to `shard()`: per tensor a tuple of ints, or an object that
        prints itself as a layout; None when nothing was asked.
    strategy: the strategy that holds after propagation, one tuple of ints per tensor; only in the dump
        `step_parallel_begin`, where people read it.
    in_layouts: the placement that the operator needs of every input, once it is decided; the operands' own layouts
        may still differ until the redistributions are inserted.
    layout: the placement of the result.
    regions: of an operator that runs graphs (`If`, `While`, ...) these, in the order that the operator says. What they
        read from outside is handed in with the operands; several nodes may share a graph.
    forward, forward_input: on a node made by differentiation the node it belongs to, and the index of the input whose
        gradient this node is (-1 for nodes in between).
    place: the name that the operator has in plans (`Default/network-Net/MatMul-op0`), while a plan is still to be
        applied; "" otherwise.
    attrs: further facts, printed as cnode_attrs (`reason`, `mirror_user_id`, ...).
    """

    __slots__ = (
        "attrs", "forward", "forward_input", "frames", "in_layouts", "in_strategy", "inputs", "instance", "op",
        "out_strategy", "phase", "place", "regions", "scope", "strategy",
    )  # fmt: skip

    def __init__(
        self,
        op: OpLike,
        inputs: Iterable[Value],
        type: Type,
        name: str = "",
        instance: str = "",
        scope: str = "",
        frames: Frames = (),
        phase: str = "forward",
    ) -> None:
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
        self.attrs: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """How messages name the node: `MatMul 'matmul1'`, `Sub` where the user gave no name, and for a node that
        is several of the user's (its attribute `fused` says which) `FusedElementwise of Add, GeLU 'gelu'`, the first of
        them where they are many."""
        if "fused" in self.attrs:
            return f"{self.op.name} of {_listed(self.attrs['fused'])}"
        return f"{self.op.name} '{self.instance}'" if self.instance else self.op.name

    def error(
        self, message: str, notes: Iterable[str] = (), kind: type[Exception] | None = None
    ) -> MspcError:
        """An error at the user's line of this node."""
        return MspcError(message, notes=notes, frames=self.frames, kind=kind or RuntimeError)

    def __repr__(self) -> str:
        return f"Node({self.label}: {self.type})"


class Graph:
    """A function: parameters, nodes in run order, one result (None, a value, or a tuple of values).

    It is a program, or a region that a node of another graph runs: a region reads its own parameters (of kind "input"),
    its own nodes and constants, nothing else.

    attrs: facts of the entire graph, which are in the header of its text (mode, ranks, rank, compile id, ...).
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
        """For every value the (node, operand index) pairs that read it, in run order."""
        found: dict[Value, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for index, value in enumerate(node.inputs):
                found.setdefault(value, []).append((node, index))
        return found

    def replace(self, mapping: Mapping[Value, Value]) -> None:
        """Every use of a key of `mapping` becomes a use of its value."""
        for node in self.nodes:
            for index, value in enumerate(node.inputs):
                if value in mapping:
                    node.inputs[index] = mapping[value]
        self.results = [mapping.get(value, value) for value in self.results]

    def values(self) -> Iterator[Value]:
        yield from self.parameters
        yield from self.nodes

    def graphs(self) -> list[Graph]:
        """The graph itself and all that its nodes run, each once, a graph ahead of those inside of it."""
        ended: dict[Graph, None] = {}
        self._end_after_its_regions(ended)
        return list(reversed(ended))

    def _end_after_its_regions(self, ended: dict[Graph, None]) -> None:
        for node in reversed(self.nodes):
            for region in reversed(node.regions) if node.regions else ():
                if region not in ended:
                    region._end_after_its_regions(ended)
        ended[self] = None

    def parameter(self, name: str) -> Parameter:
        """The parameter called `name`. Raises KeyError."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise KeyError(name)

    def verify(self) -> None:
        """Check the structure, that of its regions too: every operand defined before its use and in the same graph,
        results defined, names unique.

        Raises:
            AssertionError: a pass broke the graph; this is never a user's mistake.
        """
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
            assert node not in seen, f"{node} stands twice in the graph"
            seen.add(node)
        for value in self.results:
            assert isinstance(value, Constant) or value in seen, f"{self.name} returns the undefined {value}"


def _listed(parts: Sequence[str]) -> str:
    """Names with commas, as many as are read in one go."""
    shown = 1
    while shown < len(parts) and sum(map(len, parts[: shown + 1])) <= _LONGEST:
        shown += 1
    more = f" and {len(parts) - shown} more" if shown < len(parts) else ""
    return ", ".join(parts[:shown]) + more


def element_types(type: Type) -> tuple[TensorType, ...]:
    """The tensors of a value: one, or all of a tuple."""
    if isinstance(type, TupleType):
        return type.elements
    return (type,) if isinstance(type, TensorType) else ()


def operand_types(node: Node) -> tuple[TensorType, ...]:
    """The types of the tensors that a node reads, those in tuples one by one."""
    return tuple(type for value in node.inputs for type in element_types(value.type))


def element_layouts(layout: Layouts) -> tuple[Layout, ...]:
    """The layouts of a value: one, or all of a tuple."""
    if layout is None:
        return ()
    return layout if isinstance(layout, tuple) else (layout,)


def asks_for_host(program: Graph) -> bool:
    """Whether parameters or values of a program are to live in the host's memory."""
    return any(OFFLOAD in value.attrs for graph in program.graphs() for value in (*graph.parameters, *graph.nodes))


def stages_of(attrs: Mapping[str, Any]) -> tuple[int, ...]:
    """The stages that the attributes of a node or parameter name, ascending; () where they name none."""
    given = attrs.get(STAGE, ())
    return (given,) if isinstance(given, int) else tuple(given)


def mark_stages(attrs: dict[str, Any], stages: Collection[int]) -> None:
    """Name these stages, in place of what was named."""
    attrs.pop(STAGE, None)
    if stages:
        found = sorted(stages)
        attrs[STAGE] = found[0] if len(found) == 1 else tuple(found)


def copied_node(node: Node, inputs: Iterable[Value], op: OpLike | None = None) -> Node:
    """A node with all that `node` says, which reads other values and may have another operator. Its regions are the
    same graphs, and it belongs to the same forward node."""
    own = Node(
        node.op if op is None else op, inputs, node.type, node.name, node.instance, node.scope, node.frames, node.phase
    )
    own.regions = node.regions
    own.in_strategy, own.out_strategy, own.strategy = node.in_strategy, node.out_strategy, node.strategy
    own.in_layouts, own.layout = node.in_layouts, node.layout
    own.forward, own.forward_input, own.place = node.forward, node.forward_input, node.place
    own.attrs = dict(node.attrs)
    return own


def interpose(node: Node, op: OpLike) -> Node:
    """Move what a node computes to a new node, which is not in the graph yet, and return that one. The node itself
    becomes `op` of it, for all that read it."""
    moved = copied_node(node, node.inputs)
    node.op, node.regions = op, ()
    node.inputs = [moved]
    node.in_strategy = node.out_strategy = None
    node.attrs = {}
    node.instance = node.name = ""
    return moved


def copied_parameter(parameter: Parameter) -> Parameter:
    """A parameter with all that `parameter` says."""
    own = object.__new__(Parameter)  # there are thousands
    own.name, own.type, own.kind, own.layout = parameter.name, parameter.type, parameter.kind, parameter.layout
    own.trainable, own.global_type, own.attrs = parameter.trainable, parameter.global_type, {**parameter.attrs}
    return own


def copied_graph(graph: Graph, name: str | None = None) -> Graph:
    """A copy of a graph, called `name` or as the graph is. Its nodes run the same regions."""
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


def copied_region(graph: Graph, name: Callable[[str], str] = str, known: dict[Graph, Graph] | None = None) -> Graph:
    """A copy of a graph and of those that its nodes run, or the copy that `known` has of it.

    name: what a copy of a graph of some name is called. known: copies that were made already, by what they are of;
    those made here are added.
    """
    known = {} if known is None else known
    if graph in known:
        return known[graph]
    made = known[graph] = copied_graph(graph, name(graph.name))
    for node in made.nodes:
        node.regions = tuple(copied_region(region, name, known) for region in node.regions)
    return made
