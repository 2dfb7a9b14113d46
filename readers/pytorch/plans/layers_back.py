"""Finds in a compiled network what DTensor's `parallelize_module` and `fully_shard` would be told of its layers.

Values between layers are plain local tensors there, so a layer says how it takes and gives its slices, and all that
happens between layers has to happen without ranks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import LayoutChange
from mspc.readers.pytorch.plans.strategies import parameter_of

MOST_TOLD = 8
GRADIENTS = "Gradients/"
PASSED = frozenset(("ShardingConstraint", "Cast", "Load"))
ROW_BY_ROW = PASSED | set("Fill Reshape PadV3 StridedSlice Slice Equal NotEqual ExpandDims".split())
"""Kinds that mix no rows of what they take."""
WHOLE = -1
"""Of a value: every rank of the tensor axis holds all of it. Else the dimension that is cut."""


@dataclass(frozen=True)
class Axis:
    """Ranks over which something is cut: `size` of them, every `stride`-th."""

    stride: int
    size: int

    @property
    def end(self) -> int:
        return self.stride * self.size


@dataclass(frozen=True)
class LayerBack:
    """A module with a style: kind `Colwise` or `Rowwise`; how it takes and gives (WHOLE, or a dimension),
    and the number of dimensions of what it gives."""

    module: str
    kind: str
    takes: int
    gives: int
    last: int
    is_table: bool = False


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
        module, (dim,) = parameter.name.rpartition(".")[0], self.cut(parameter.layout)
        other = node.inputs[1 - number] if len(node.inputs) > 1 else None
        name, scope = node.op.name, node.scope
        cell = scope.rpartition("-")[2]
        if name == "BiasAdd" or (name == "Add" and len(parameter.shape) == 1 and cell == "Linear"):
            return  # it lies with the weight, which says the style
        if (cell, name) not in (("Linear", "MatMul"), ("Embedding", "Gather")) or other is None:
            self.wrong.append((f"{parameter.name}: parallelize_module cuts Linear and Embedding, not {cell}", node))
            return
        if module in self.layers:
            self.wrong.append((f"{module} is called twice", node))
            return
        is_table = cell == "Embedding"
        kind = "Colwise" if (dim == 1) == is_table else "Rowwise"
        given, last = self.given(node, scope)
        self.layers[module] = LayerBack(module, kind, WHOLE, given, last, is_table)
        if not is_table:
            self.operands[module] = other, scope

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
        return self._one(value)

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
        if len(dims) > 1 or (self.tensor and any(self.tensor == each for each in _axes(layout, layout.partial))):
            self.wrong.append(("what is between two layers is cut in two dimensions, or a partial sum", node))
        return dims[0] if dims else WHOLE

    def cut(self, layout: object) -> list[int]:
        """The dimensions that the tensor axis cuts."""
        if not isinstance(layout, Layout) or self.tensor is None:
            return []
        return [dim for dim, axes in enumerate(layout.dims) if self.tensor in _axes(layout, axes)]

    @staticmethod
    def moves(node: Node) -> bool:
        return isinstance(node.op, (Collective, LayoutChange))

    def beside(self, node: Node, parameter: Parameter) -> None:
        """Look at an operator with a parameter that is whole: beside slices its gradient is a sum."""
        dims = {dim for value in node.inputs if not parameter_of(value) for dim in self.cut(value.layout)}
        if not dims or parameter.name.rpartition(".")[0] in self.layers or node.op.name == "Gather":
            return
        self.wrong.append((f"{parameter.name} is whole, beside slices of dimension {min(dims)}", node))


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
    states = {name for name in _states(trained)}
    own = [p for p in trained if p.name not in states]
    search = _Search(graph, _users(graph), data, _tensor_axis(own, data))
    for parameter in own:
        for axis in _all_axes(parameter.layout):
            if axis not in (search.tensor, data):
                search.wrong.append((f"{parameter.name} is cut over {_said(axis)}, and layers over "
                                     f"{_said(search.tensor)}, the batch over {_said(data)}", None))  # fmt: skip
    if not search.wrong:
        _walk(search, {p.name: p for p in own})
    if search.wrong:
        raise _refused(search.wrong)
    _check_mesh(ranks, data, search.tensor)
    modules = tuple(dict.fromkeys(p.name.rpartition(".")[0] for p in own))
    return PlanBack(ranks, data, search.tensor, tuple(search.layers.values()), _sharing(own, trained, data), modules)


def _check_mesh(ranks: int, data: Axis | None, tensor: Axis | None) -> None:
    """Raise MspcError where the two axes are not all ranks."""
    axes = sorted((each for each in (data, tensor) if each is not None), key=lambda axis: axis.stride)
    stride = 1
    for axis in axes:
        if axis.stride != stride:
            break
        stride = axis.end
    if stride != ranks or not axes:
        said = f"layers are cut over {_said(tensor)}, the batch over {_said(data)}"
        raise MspcError(f"--out-torch: nothing says what each of {ranks} ranks is for: {said}")


def _walk(search: _Search, own: Mapping[str, Parameter]) -> None:
    forward = [node for node in search.graph.nodes if "-ImportedNetwork" in node.scope and
               not node.scope.startswith(GRADIENTS)]  # fmt: skip
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
    search.layers = dict(sorted(search.layers.items(), key=lambda pair: order[pair[0]]))
    for node in forward:
        is_stored = bool(node.inputs) and parameter_of(node.inputs[0]) in own  # fully_shard gathers it
        if not search.moves(node) or node in search.covered or is_stored:
            continue
        if not _of_loss(node, search.data) and not _of_rows(node, search.data):
            search.wrong.append((f"{node.op.name} is between layers", node))


def _of_loss(node: Node, data: Axis | None) -> bool:
    """A number that is summed over the batch's axis, which every process has of its own rows."""
    source = node.inputs[0] if node.inputs else None
    layout = source.layout if source is not None else None
    return (
        data is not None and isinstance(layout, Layout) and not source.shape and layout.reduction == "sum"  # type: ignore[union-attr]
        and _axes(layout, layout.partial) == [data]
    )  # fmt: skip


def _of_rows(node: Node, data: Axis | None) -> bool:
    """Whether rows of the inputs themselves, or of what is the same everywhere, move over the batch's axis: processes
    compute what they need of their own rows."""
    source = node.inputs[0]
    before, after = set(_all_axes(source.layout)), set(_all_axes(node.layout))
    if before ^ after != {data} or (isinstance(node.layout, Layout) and node.layout.partial):
        return False
    pending, seen = [source], set[Value]()
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


def _axes(layout: Layout, axes: Sequence[int]) -> list[Axis]:
    """The axes of a layout as ranks, those that lie beside each other as one."""
    found: list[Axis] = []
    for axis in axes:
        each = Axis(math.prod(layout.mesh[axis + 1 :]), layout.mesh[axis])
        if found and found[-1].stride == each.end:
            each = Axis(each.stride, found.pop().size * each.size)
        found.append(each)
    return found


def _all_axes(layout: object) -> Iterator[Axis]:
    if isinstance(layout, Layout):
        for axes in layout.dims:
            yield from _axes(layout, axes)


def _data_axis(graph: Graph) -> Axis | None:
    """What cuts the rows of the first input that is cut."""
    wrong: list[tuple[str, Node | None]] = []
    found: Axis | None = None
    for parameter in graph.parameters:
        layout = parameter.layout
        if parameter.kind != "input" or not isinstance(layout, Layout) or not any(layout.dims):
            continue
        axes = _axes(layout, layout.dims[0])
        if any(layout.dims[1:]) or len(axes) != 1 or (found is not None and axes != [found]):
            wrong.append((f"input {parameter.name} is cut otherwise than in its rows, as others are", None))
        else:
            found = axes[0]
    if wrong:
        raise _refused(wrong)
    return found


def _tensor_axis(own: Sequence[Parameter], data: Axis | None) -> Axis | None:
    """What cuts most parameters, beside the axis of the batch."""
    counts: dict[Axis, int] = {}
    for parameter in own:
        for axis in _all_axes(parameter.layout):
            if data is None or axis.end <= data.stride or data.end <= axis.stride:
                counts[axis] = counts.get(axis, 0) + 1
    return max(counts, key=lambda axis: counts[axis], default=None)


def _states(trained: Sequence[Parameter]) -> Iterator[str]:
    """The names of parameters that belong to others, as `exp_avg.layers.0.weight` does."""
    names = {p.name for p in trained}
    for parameter in trained:
        rest = parameter.name.partition(".")[2]
        if rest in names:
            yield parameter.name


def _sharing(own: Sequence[Parameter], trained: Sequence[Parameter], data: Axis | None) -> str:
    if data is None:
        return ""
    if any(data in _all_axes(parameter.layout) for parameter in own):
        return "parameters"
    return "states" if any(data in _all_axes(parameter.layout) for parameter in trained) else ""


def _said(axis: Axis | None) -> str:
    return "none" if axis is None else f"{axis.size} ranks" + (f", every {axis.stride}th" if axis.stride > 1 else "")


def _refused(wrong: Sequence[tuple[str, Node | None]]) -> MspcError:
    """The error of the first thing that cannot be said, with the others."""
    text, node = next((each for each in wrong if each[1] is not None), wrong[0])
    others = [each for each in dict.fromkeys(said for said, _ in wrong) if each != text]
    notes = [f"also: {each}" for each in others[: MOST_TOLD]]
    if len(others) > MOST_TOLD:
        notes.append(f"and {len(others) - MOST_TOLD} more")
    said = f"--out-torch: the plan cannot be said in DTensor's words: {text}"
    return MspcError(said, notes=notes) if node is None else MspcError(said, notes=notes, frames=node.frames)
