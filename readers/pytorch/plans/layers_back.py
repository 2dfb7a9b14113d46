"""Finds in a compiled network what DTensor's `parallelize_module` and `fully_shard` would be told of its layers.

Values between layers are plain local tensors there, so a layer says how it takes and gives its slices, and all that
happens between layers has to happen without ranks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import LayoutChange
from mspc.readers.pytorch.plans.local_modules import local_parts
from mspc.readers.pytorch.plans.rank_axes import Axis, all_axes_of, axes_of, said, sharing, states, tensor_axis
from mspc.readers.pytorch.plans.strategies import IMPORTED, parameter_of, scope_inside

MOST_TOLD = 8
GRADIENTS = "Gradients/"
PASSED = frozenset(("ShardingConstraint", "Cast", "Load"))
ROW_BY_ROW = PASSED | set("Fill Reshape PadV3 StridedSlice Slice Equal NotEqual ExpandDims".split())
"""Kinds that mix no rows of what they take."""
PRODUCTS_OF_OWN = PASSED | set("MatMul Add BiasAdd Reshape".split())
"""What modules of others than PyTorch's own classes may do with the parameters that are cut: DTensor follows it."""
SLICES = "LocalSlice"
"""Takes a slice of what every rank holds, which costs no message."""
WHOLE = -1
"""Of a value: every rank of the tensor axis holds all of it. Else the dimension that is cut."""


@dataclass(frozen=True)
class LayerBack:
    """A module with a style: kind `Colwise` or `Rowwise`; how it takes and gives (WHOLE, or a dimension), and the last
    dimension of what it gives. cut: its parameters with the dimensions that are cut, of a module that is neither
    `Linear` nor `Embedding`. same_as: the module whose parameters it has, too; "" for none. parts: of a module of kind
    `Local`, its parameters with the dimension that is cut, and of how many weights one behind another each is."""

    module: str
    kind: str
    takes: int
    gives: int
    last: int
    is_table: bool = False
    cut: tuple[tuple[str, int], ...] = ()
    same_as: str = ""
    parts: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class PlanBack:
    """What is written.

    data, tensor: the axes, None without. layers: in the order of the network. sharing: "" for none, `states`: the
    optimizer's are shared over the axis of the batch, `parameters`: those are, too. modules: all that have parameters.
    """

    ranks: int
    data: Axis | None
    tensor: Axis | None
    layers: tuple[LayerBack, ...]
    sharing: str
    modules: tuple[str, ...]


@dataclass
class _Search:
    """layers: found, by modules. operands: what they take, with their scopes. covered: nodes that move slices, which a
    layer stands for. wrong: what cannot be said."""

    graph: Graph
    users: Mapping[Node, list[Node]]
    data: Axis | None
    tensor: Axis | None
    layers: dict[str, LayerBack] = field(default_factory=dict[str, LayerBack])
    operands: dict[str, tuple[Value, str]] = field(default_factory=dict[str, "tuple[Value, str]"])
    covered: set[Node] = field(default_factory=set[Node])
    wrong: list[tuple[str, Node | None]] = field(default_factory=list[tuple[str, "Node | None"]])

    def layer(self, node: Node, number: int, parameter: Parameter) -> None:
        """Look at an operator one of whose operands is a parameter that the tensor axis cuts."""
        owner, (dim,) = parameter.name.rpartition(".")[0], self.cut(parameter.layout)
        other = node.inputs[1 - number] if len(node.inputs) > 1 else None
        name, scope = node.op.name, node.scope
        cell, module = scope.rpartition("-")[2], module_at(scope) or owner
        if name == "BiasAdd" or (name == "Add" and len(parameter.shape) == 1):
            return  # it lies with the weight, which says the style
        is_product = name == "MatMul" and number == 1 and len(parameter.shape) == 2
        is_own = cell not in ("Linear", "Embedding")
        if is_own and not (is_product and self._is_followed(scope)):
            self._local(owner, scope)
            return
        if other is None or not (is_product or (cell, name) == ("Embedding", "Gather")):
            self.wrong.append((f"{parameter.name}: what {cell} does with it, {name}, is no product", node))
            return
        if module in self.layers or "@" in module:
            self.wrong.append((f"{module} is called twice", node))
            return
        is_table = cell == "Embedding"
        out = 1 if is_table or not node.op.attributes().get("transpose_b") else 0
        given, last = self.given(node, scope)
        self.layers[module] = LayerBack(
            module, "Colwise" if dim == out else "Rowwise", WHOLE, given, last, is_table,
            self._parameters(owner) if is_own else (), owner if owner != module else "",
        )  # fmt: skip
        if not is_table:
            self.operands[module] = other, scope

    def _is_followed(self, scope: str) -> bool:
        """Whether a module multiplies, adds and views, and nothing else."""
        inside = [node for node in self.graph.nodes if node.scope == scope]
        return all(node.op.name in PRODUCTS_OF_OWN or self.moves(node) for node in inside)

    def _local(self, module: str, scope: str) -> None:
        """Look at a module that computes with slices of its parameters by itself and gives sums, as experts do."""
        if module in self.layers:
            return
        found = local_parts(self, module, scope)
        if found is None:
            return
        parts, nodes = found
        self.covered |= nodes
        self.layers[module] = LayerBack(module, "Local", WHOLE, WHOLE, 0, parts=parts)

    def _parameters(self, owner: str) -> tuple[tuple[str, int], ...]:
        """The parameters of a module that are cut, with their dimensions."""
        return tuple(
            (name, dims[0])
            for parameter in self.graph.parameters
            for module, _, name in (parameter.name.rpartition("."),)
            if module == owner and (dims := self.cut(parameter.layout))
        )

    def take(self) -> None:
        """Say of the layers that were found how they take what others give."""
        given = frozenset(self.covered)
        for module, (value, scope) in self.operands.items():
            layer = replace(self.layers[module], takes=self.taken(value, scope, given))
            self.layers[module] = layer
            if {layer.takes, layer.gives} - {WHOLE, layer.last}:
                # modules around it ask for shapes before it gathers, and would view slices as if they were all
                what = "takes or gives slices of another dimension than its features, as of the sequence"
                self.wrong.append((f"{module} {what}", value if isinstance(value, Node) else None))

    def taken(self, value: Value, scope: str, given: Collection[Node]) -> int:
        """How the tensor axis cuts what comes into a module, before it moves: several modules may take it so."""
        while isinstance(value, Node) and value.inputs and value not in given:
            if value.scope != scope and not self.moves(value):
                break
            self.covered.add(value)
            value = value.inputs[0]
        slices = self._slices(value, given)
        if slices:
            self.covered |= slices
            return WHOLE
        return self._one(value)

    def _slices(self, value: Value, given: Collection[Node]) -> set[Node]:
        """The slices that ranks take of what they hold, where a value is cut by nothing else: a layer that takes all
        of it cuts it later. given: what layers give."""
        found: set[Node] = set()
        pending, seen = [value], set[Value]()
        while pending:
            each = pending.pop()
            if each in seen or not self.cut(each.layout):
                continue
            seen.add(each)
            if not isinstance(each, Node) or each in given or any(parameter_of(source) for source in each.inputs):
                return set()
            if each.op.name == SLICES:
                found.add(each)
            pending += each.inputs
        return found

    def given(self, node: Node, scope: str) -> tuple[int, int]:
        """How it cuts what leaves a module, and the last dimension of that."""
        self.covered.add(node)
        while True:
            users = [each for each in self.users.get(node, []) if not each.scope.startswith(GRADIENTS)]
            users = [each for each in users if each.op.name not in PASSED or each in self.users]  # some hold nothing
            inside = [each for each in users if each.scope == scope or self.moves(each) or each.op.name in PASSED]
            if len(inside) != 1 or len(users) != 1:
                break
            node = inside[0]
            self.covered.add(node)
        return self._one(node), len(node.shape) - 1

    def _one(self, value: Value) -> int:
        layout = value.layout
        if not isinstance(layout, Layout):
            return WHOLE
        dims = self.cut(layout)
        node = value if isinstance(value, Node) else None
        if len(dims) > 1 or (self.tensor and any(self.tensor == each for each in axes_of(layout, layout.partial))):
            self.wrong.append(("what is between two layers is cut in two dimensions, or a partial sum", node))
        return dims[0] if dims else WHOLE

    def cut(self, layout: object) -> list[int]:
        """The dimensions that the tensor axis cuts."""
        if not isinstance(layout, Layout) or self.tensor is None:
            return []
        return [dim for dim, axes in enumerate(layout.dims) if self.tensor in axes_of(layout, axes)]

    def is_of_gradients(self, node: Node) -> bool:
        """Whether a value is brought to the gradients alone."""
        users = self.users.get(node, [])
        return bool(users) and all(user.scope.startswith(GRADIENTS) for user in users)

    def is_partial(self, layout: object) -> bool:
        """Whether it is a sum over the tensor axis, and over no other."""
        return isinstance(layout, Layout) and axes_of(layout, layout.partial) == [self.tensor]

    @staticmethod
    def moves(node: Node) -> bool:
        return isinstance(node.op, (Collective, LayoutChange))

    def beside(self, node: Node, parameter: Parameter) -> None:
        """Look at an operator with a parameter that is whole: beside slices its gradient is a sum."""
        dims = {dim for value in node.inputs if not parameter_of(value) for dim in self.cut(value.layout)}
        if not dims or parameter.name.rpartition(".")[0] in self.layers or node.op.name == "Gather":
            return
        self.wrong.append((f"{parameter.name} is whole, beside slices of dimension {min(dims)}", node))


def module_at(scope: str) -> str:
    """The module's path of a scope, `Default/network-ImportedNetwork/words-Embedding`; "" for the network itself."""
    inside = scope_inside(scope)
    return ".".join(part.rpartition("-")[0] or part for part in inside.split("/")) if inside else ""


def plan_back(graph: Graph) -> PlanBack:
    """What a network's plan is in DTensor's words. graph: of all ranks, with collectives.

    Raises:
        MspcError: it has loops or branches, or something of it cannot be said; all that cannot is named.
    """
    if any(node.regions for node in graph.nodes):
        raise MspcError("--out-torch writes plans of layers, and the network is compiled as loops or branches")
    trained = [p for p in graph.parameters if p.kind == "parameter"]
    layouts = [p.layout for p in graph.parameters if isinstance(p.layout, Layout)]
    ranks = max((math.prod(layout.mesh) for layout in layouts), default=1)
    data = _data_axis(graph)
    belonging = set(states(trained))
    own = [p for p in trained if p.name not in belonging]
    search = _Search(graph, _users(graph), data, tensor_axis(own, data))
    for parameter in own:
        for axis in all_axes_of(parameter.layout):
            if axis not in (search.tensor, data):
                search.wrong.append((f"{parameter.name} is cut over {said(axis)}, and layers over "
                                     f"{said(search.tensor)}, the batch over {said(data)}", None))  # fmt: skip
    if not search.wrong:
        _walk(search, {p.name: p for p in own})
    if search.wrong:
        raise _refused(search.wrong)
    _check_mesh(ranks, data, search.tensor)
    modules = tuple(dict.fromkeys([*(p.name.rpartition(".")[0] for p in own), *search.layers]))
    return PlanBack(ranks, data, search.tensor, tuple(search.layers.values()), sharing(own, trained, data), modules)


def _check_mesh(ranks: int, data: Axis | None, tensor: Axis | None) -> None:
    """Raise MspcError where the two axes are not all ranks."""
    axes = sorted((each for each in (data, tensor) if each is not None), key=lambda axis: axis.stride)
    stride = 1
    for axis in axes:
        if axis.stride != stride:
            break
        stride = axis.end
    if stride != ranks or not axes:
        what = f"layers are cut over {said(tensor)}, the batch over {said(data)}"
        raise MspcError(f"--out-torch: nothing says what each of {ranks} ranks is for: {what}")


def _walk(search: _Search, own: Mapping[str, Parameter]) -> None:
    forward = [node for node in search.graph.nodes if not node.scope.startswith(GRADIENTS)]
    # A network that is not trained has no cell around it, so that its scope is that of the outermost cell.
    forward = [node for node in forward if IMPORTED in node.scope] or forward
    for take in (True, False):
        for node in forward:
            for number, value in enumerate(node.inputs):
                parameter = own.get(parameter_of(value))
                if parameter is None or bool(search.cut(parameter.layout)) != take:
                    continue
                if take:
                    search.layer(node, number, parameter)
                else:
                    search.beside(node, parameter)
        if take:
            search.take()
    order = {name.rpartition(".")[0]: i for i, name in reversed(list(enumerate(own)))}
    search.layers = dict(sorted(search.layers.items(), key=lambda pair: order.get(pair[0], len(order))))
    for node in forward:
        is_stored = bool(node.inputs) and parameter_of(node.inputs[0]) in own  # fully_shard gathers it
        if not search.moves(node) or node in search.covered or is_stored or search.is_of_gradients(node):
            continue
        is_result = node in search.graph.results and _of_batch(node, search.data)  # a process returns its own rows
        if not is_result and not _of_loss(node, search.data) and not _of_rows(node, search.data):
            search.wrong.append((f"{node.op.name} is between layers", node))


def _of_loss(node: Node, data: Axis | None) -> bool:
    """A number that is summed over the batch's axis, which every process has of its own rows."""
    source = node.inputs[0] if node.inputs else None
    layout = source.layout if source is not None else None
    return (
        data is not None and source is not None and isinstance(layout, Layout)
        and not source.shape and layout.reduction == "sum"
        and axes_of(layout, layout.partial) == [data]
    )  # fmt: skip


def _of_batch(node: Node, data: Axis | None) -> bool:
    """Whether what moves differs before and after over the batch's axis alone."""
    before, after = set(all_axes_of(node.inputs[0].layout)), set(all_axes_of(node.layout))
    return before ^ after == {data} and not (isinstance(node.layout, Layout) and node.layout.partial)


def _of_rows(node: Node, data: Axis | None) -> bool:
    """Whether rows of the inputs themselves, or of what is the same everywhere, move over the batch's axis: processes
    compute what they need of their own rows."""
    if not _of_batch(node, data):
        return False
    pending, seen = [node.inputs[0]], set[Value]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, Parameter) and value.kind != "input":
            return False
        if isinstance(value, Node):
            if value.op.name not in ROW_BY_ROW and not _Search.moves(value):
                return False
            pending += value.inputs
    return True


def _users(graph: Graph) -> dict[Node, list[Node]]:
    found: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for value in dict.fromkeys(node.inputs):
            if isinstance(value, Node):
                found.setdefault(value, []).append(node)
    return found


def _data_axis(graph: Graph) -> Axis | None:
    """What cuts the rows of the first input that is cut."""
    wrong: list[tuple[str, Node | None]] = []
    found: Axis | None = None
    for parameter in graph.parameters:
        layout = parameter.layout
        if parameter.kind != "input" or not isinstance(layout, Layout) or not any(layout.dims):
            continue
        axes = axes_of(layout, layout.dims[0])
        if any(layout.dims[1:]) or len(axes) != 1 or (found is not None and axes != [found]):
            wrong.append((f"input {parameter.name} is cut otherwise than in its rows, as others are", None))
        else:
            found = axes[0]
    if wrong:
        raise _refused(wrong)
    return found


def _refused(wrong: Sequence[tuple[str, Node | None]]) -> MspcError:
    """The error of the first thing that cannot be said, with the others."""
    text, node = next((each for each in wrong if each[1] is not None), wrong[0])
    others = [each for each in dict.fromkeys(each for each, _ in wrong) if each != text]
    notes = [f"also: {each}" for each in others[: MOST_TOLD]]
    if len(others) > MOST_TOLD:
        notes.append(f"and {len(others) - MOST_TOLD} more")
    message = f"--out-torch: the plan cannot be said in DTensor's words: {text}"
    return MspcError(message, notes=notes) if node is None else MspcError(message, notes=notes, frames=node.frames)
