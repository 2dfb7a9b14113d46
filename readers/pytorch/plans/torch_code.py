"""A plan as code over PyTorch's tensor parallel API: the style of each layer."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Parameter, Value, Worklist
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import LayoutChange
from mspc.ops.device import source_text
from mspc.ops.op import Op
from mspc.readers.pytorch.plans.strategies import IMPORTED, others_noted, parameter_of, scope_inside


@dataclass(frozen=True)
class Axis:
    """Ranks over which something is cut: `size` of them, every `stride`-th."""

    stride: int
    size: int

    @property
    def end(self) -> int:
        return self.stride * self.size


def axes_of(layout: Layout, axes: Sequence[int]) -> list[Axis]:
    """Return the axes of a layout as ranks, those that lie beside each other as one."""
    found: list[Axis] = []
    for axis in axes:
        each = Axis(math.prod(layout.mesh[axis + 1 :]), layout.mesh[axis])
        if found and found[-1].stride == each.end:
            each = Axis(each.stride, found.pop().size * each.size)
        found.append(each)
    return found


def all_axes_of(layout: object) -> Iterator[Axis]:
    if isinstance(layout, Layout):
        for axes in layout.dims:
            yield from axes_of(layout, axes)


def tensor_axis(own: Sequence[Parameter], data: Axis | None) -> Axis | None:
    """Return the axis that cuts most parameters, beside the axis of the batch."""
    counts: dict[Axis, int] = {}
    for parameter in own:
        for axis in all_axes_of(parameter.layout):
            if data is None or axis.end <= data.stride or data.end <= axis.stride:
                counts[axis] = counts.get(axis, 0) + 1
    return max(counts, key=lambda axis: counts[axis], default=None)


def states(trained: Sequence[Parameter]) -> Iterator[str]:
    """Yield the names of parameters that belong to others, as `exp_avg.layers.0.weight` does."""
    names = {p.name for p in trained}
    for parameter in trained:
        rest = parameter.name.partition(".")[2]
        if rest in names:
            yield parameter.name


def sharing(own: Sequence[Parameter], trained: Sequence[Parameter], data: Axis | None) -> str:
    if data is None:
        return ""
    if any(data in all_axes_of(parameter.layout) for parameter in own):
        return "parameters"
    return "states" if any(data in all_axes_of(parameter.layout) for parameter in trained) else ""


def said(axis: Axis | None) -> str:
    return "none" if axis is None else f"{axis.size} ranks" + (f", every {axis.stride}th" if axis.stride > 1 else "")


VIEWS = frozenset(("Reshape", "BroadcastTo", "Fill"))
"""Kinds that a module asks for by sizes, which are others for slices."""
_PART = re.compile(r"(.*)\[(\d+)\]")


def _local_parts(search: _Search, module: str, scope: str) -> None:
    """Note a module that computes with slices of its parameters by itself and gives sums, as experts do.

    Every rank runs the module's own code with its slices. So only sums are exchanged inside, and everything computed
    from a sum is linear in it, so that it may come last; and the code may ask for no size of a slice.
    """
    if module in search.layers:
        return
    nodes = [each for each in search.graph.nodes if each.scope == scope or each.scope.startswith(f"{scope}/")]
    inside, sums = set(nodes), set[Node]()
    for node in nodes:
        problem = _problem(search, module, node, inside)
        if problem:
            search.wrong.append((f"{module}: {problem}", node))
            return
        if _moves(node):
            sums.add(node)
    if not any(search.is_partial(node.inputs[0].layout) for node in sums):
        search.wrong.append((f"{module} gives no sum over ranks", None))
        return
    search.covered |= sums
    found: dict[str, tuple[int, int]] = {}
    for parameter in search.graph.parameters:
        owner, _, name = parameter.name.rpartition(".")
        dims = search.cut(parameter.layout)
        if owner == module and dims:
            part = _PART.fullmatch(name)
            name = part[1] if part else name
            found[name] = dims[0], found.get(name, (0, 0))[1] + 1
    parts = tuple((name, dim, count) for name, (dim, count) in found.items())
    search.layers[module] = LayerBack(module, "Local", WHOLE, WHOLE, 0, parts=parts)


def _problem(search: _Search, module: str, node: Node, inside: Collection[Value]) -> str:
    """Return why ranks cannot run a node by themselves; "" if they can."""
    if search.is_of_gradients(node):
        return ""
    for value in node.inputs:
        name = parameter_of(value)
        if name and not (name.rpartition(".")[0] == module and search.cut(value.layout)):
            return f"{name} is whole, beside slices"
        if not name and value not in inside and search.cut(value.layout):
            return "it takes slices of its input"
    if _moves(node):
        if not search.is_partial(node.inputs[0].layout) or search.cut(node.layout):
            return f"{node.op.name} is inside of it"
        return "" if _is_last(search, node, inside) else "it is not linear, and its input is a sum over ranks"
    cut = search.cut(node.layout) or any(search.cut(value.layout) for value in node.inputs if not parameter_of(value))
    return f"{node.op.name} asks for sizes, which slices have not" if cut and node.op.name in VIEWS else ""


def _is_last(search: _Search, node: Node, inside: Collection[Value]) -> bool:
    """Return whether everything that the module makes of a sum is linear in it."""
    pending, seen = [node], set[Node]()
    while pending:
        value = pending.pop()
        for user in search.users.get(value, []):
            if user not in inside or user in seen:
                continue
            seen.add(user)
            places = [number for number, each in enumerate(user.inputs) if each is value]
            op = user.op
            is_linear = isinstance(op, Op) and len(places) == 1 and (places[0] in op.linear_in)
            if not is_linear and not _moves(user) and user.op.name != "ShardingConstraint":
                return False
            pending.append(user)
    return True


def _moves(node: Node) -> bool:
    """Return whether ranks exchange something, or take slices."""
    return isinstance(node.op, (Collective, LayoutChange))


# Values between layers are plain local tensors in DTensor's plans, so a layer declares how it takes and gives its
# slices, and everything between layers has to happen without ranks.


MAX_TOLD = 8
GRADIENTS = "Gradients/"
PASSED = frozenset(("ShardingConstraint", "Cast", "Load"))
ROW_BY_ROW = PASSED | set("Fill Reshape PadV3 StridedSlice Slice Equal NotEqual ExpandDims".split())
"""Kinds that mix no rows of their operands."""
PRODUCTS_OF_OWN = PASSED | set("MatMul Add BiasAdd Reshape".split())
"""Kinds that modules of others than PyTorch's own classes may use with parameters that are cut: DTensor follows
them."""
SLICES = "LocalSlice"
"""Takes a slice of a value that every rank holds, which costs no message."""
WHOLE = -1
"""The split dimension of a value that every rank of the tensor axis holds whole."""


@dataclass(frozen=True)
class LayerBack:
    """A module with a style: kind `Colwise`, `Rowwise` or `Sequence`; how it takes and gives (WHOLE, or a dimension),
    and the last dimension of its result.

    cut: its parameters with the dimensions that are cut, of a module that is neither `Linear` nor `Embedding`. same_as:
    the module whose parameters it shares, or "". parts: of a module of kind `Local`, its parameters with the dimension
    that is cut, and the number of weights one after another in each. gives_loss: a loss reads its slices of classes.
    """

    module: str
    kind: str
    takes: int
    gives: int
    last: int
    is_table: bool = False
    cut: tuple[tuple[str, int], ...] = ()
    same_as: str = ""
    parts: tuple[tuple[str, int, int], ...] = ()
    gives_loss: bool = False


@dataclass(frozen=True)
class PlanBack:
    """A plan to be written. data, tensor: the axes, None without. layers: in the order of the network. sharing: "" for
    none, `states`: the optimizer's are shared over the axis of the batch, `parameters`: those are, too. modules: all
    that have parameters."""

    ranks: int
    data: Axis | None
    tensor: Axis | None
    layers: tuple[LayerBack, ...]
    sharing: str
    modules: tuple[str, ...]


@dataclass
class _Search:
    """layers: found, by modules. operands: theirs, with their scopes. covered: nodes that move slices and belong to a
    layer. wrong: mistakes."""

    graph: Graph
    users: Mapping[Value, list[Node]]
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
        inside = [each for each in self.graph.nodes if each.scope == scope] if is_own else []
        if is_own and not (is_product and all(each.op.name in PRODUCTS_OF_OWN or _moves(each) for each in inside)):
            _local_parts(self, owner, scope)
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

    def _parameters(self, owner: str) -> tuple[tuple[str, int], ...]:
        """Return the parameters of a module that are cut, with their dimensions."""
        return tuple(
            (name, dims[0])
            for parameter in self.graph.parameters
            for module, _, name in (parameter.name.rpartition("."),)
            if module == owner and (dims := self.cut(parameter.layout))
        )

    def take(self) -> None:
        """Set how the layers take their inputs."""
        given = frozenset(self.covered)
        for module, (value, scope) in self.operands.items():
            layer = replace(self.layers[module], takes=self.taken(value, scope, given))
            self.layers[module] = layer
            if {layer.takes, layer.gives} - {WHOLE, layer.last}:
                # modules around it ask for shapes before it gathers, and would view slices as if they were all
                what = "takes or gives slices of another dimension than its features, as of the sequence"
                self.wrong.append((f"{module} {what}", value if isinstance(value, Node) else None))

    def taken(self, value: Value, scope: str, given: Collection[Node]) -> int:
        """Return how the tensor axis cuts a module's input, before it moves: several modules may take it so."""
        while isinstance(value, Node) and value.inputs and value not in given:
            if value.scope != scope and not _moves(value):
                break
            self.covered.add(value)
            value = value.inputs[0]
        slices = self._slices(value, given)
        if slices:
            self.covered |= slices
            return WHOLE
        return self._one(value)

    def _slices(self, value: Value, given: Collection[Node]) -> set[Node]:
        """Return the slices that ranks take of a value they hold, if nothing else cuts it: a layer that takes all of it
        cuts it later. given: the results of layers."""
        found: set[Node] = set()
        pending = Worklist([value])
        for each in pending:
            if not self.cut(each.layout):
                continue
            if not isinstance(each, Node) or each in given or any(parameter_of(source) for source in each.inputs):
                return set()
            if each.op.name == SLICES:
                found.add(each)
            pending.add(each.inputs)
        return found

    def given(self, node: Node, scope: str) -> tuple[int, int]:
        """Return how the axis cuts a module's result, and the last dimension of that."""
        self.covered.add(node)
        while True:
            users = [each for each in self.users.get(node, []) if not each.scope.startswith(GRADIENTS)]
            users = [each for each in users if each.op.name not in PASSED or each in self.users]  # some hold nothing
            inside = [each for each in users if each.scope == scope or _moves(each) or each.op.name in PASSED]
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
            self.wrong.append(("a value between two layers is sharded in two dimensions, or a partial sum", node))
        return dims[0] if dims else WHOLE

    def cut(self, layout: object) -> list[int]:
        """Return the dimensions that the tensor axis cuts."""
        if not isinstance(layout, Layout) or self.tensor is None:
            return []
        return [dim for dim, axes in enumerate(layout.dims) if self.tensor in axes_of(layout, axes)]

    def is_of_gradients(self, node: Node) -> bool:
        """Return whether a value is brought to the gradients alone."""
        users = self.users.get(node, [])
        return bool(users) and all(user.scope.startswith(GRADIENTS) for user in users)

    def is_partial(self, layout: object) -> bool:
        """Return whether it is a sum over the tensor axis, and over no other."""
        return isinstance(layout, Layout) and axes_of(layout, layout.partial) == [self.tensor]

    def beside(self, node: Node, parameter: Parameter) -> None:
        """Look at an operator with a parameter that is whole: beside slices its gradient is a sum.

        A norm of slices, as of the heads that a rank has, is a `SequenceParallel`, which sums the gradient.
        """
        dims = {dim for value in node.inputs if not parameter_of(value) for dim in self.cut(value.layout)}
        module = parameter.name.rpartition(".")[0]
        if not dims or module in self.layers or node.op.name == "Gather":
            return
        inside = [each for each in self.graph.nodes if each.scope == node.scope]
        operands = {value for each in inside for value in each.inputs if not parameter_of(value)}
        cuts = {tuple(self.cut(value.layout)) for value in operands.union(inside)} - {()}
        if len(parameter.shape) == len(cuts) == len(dims) == 1 and module == module_at(node.scope):
            self.layers[module] = LayerBack(module, "Sequence", min(dims), min(dims), WHOLE)
        else:
            self.wrong.append((f"{parameter.name} is whole, beside slices of dimension {min(dims)}", node))

    def loss_over_classes(self, forward: Sequence[Node]) -> set[Node]:
        """Return the operators of losses over slices of classes, as PyTorch's `loss_parallel` computes them, and mark
        the layers that give the slices: a LogSoftmax, all that is computed from it, and slices for these alone."""
        found: set[Node] = set()
        for node in forward:
            if node.op.name == "LogSoftmax" and len(node.shape) - 1 in self.cut(node.inputs[0].layout):
                value = node.inputs[0]
                while isinstance(value, Node) and value.inputs and module_at(value.scope) not in self.layers:
                    value = value.inputs[0]
                layer = self.layers.get(module_at(value.scope)) if isinstance(value, Node) else None
                if layer and not layer.cut:
                    self.layers[layer.module] = replace(layer, gives_loss=True)
                    found.add(node)
            elif found.intersection(node.inputs):
                found.add(node)
        if any(module_at(node.scope) in self.layers for node in found):
            return set()
        users = {node: set(self.users.get(node, [])).intersection(forward) for node in forward if _moves(node)}
        return found.union(node for node, readers in users.items() if readers and readers <= found)


def module_at(scope: str) -> str:
    """Return the module's path of a scope, `Default/network-ImportedNetwork/words-Embedding`; "" for the network
    itself."""
    inside = scope_inside(scope)
    return ".".join(part.rpartition("-")[0] or part for part in inside.split("/")) if inside else ""


def plan_back(graph: Graph) -> PlanBack:
    """Return a network's plan in DTensor's words.

    graph: of all ranks, with collectives.

    Raise MspcError if it has loops or branches, or parts that DTensor's words cannot express, all of which are named.
    """
    if any(node.regions for node in graph.nodes):
        raise MspcError("--out-torch writes plans of layers, and the network is compiled as loops or branches")
    trained = [p for p in graph.parameters if p.kind == "parameter"]
    layouts = [p.layout for p in graph.parameters if isinstance(p.layout, Layout)]
    ranks = max((math.prod(layout.mesh) for layout in layouts), default=1)
    data = data_axis(graph)
    belonging = set(states(trained))
    own = [p for p in trained if p.name not in belonging]
    users = {value: [*dict.fromkeys(user for user, _ in found)] for value, found in graph.users().items()}
    search = _Search(graph, users, data, tensor_axis(own, data))
    for parameter in own:
        for axis in all_axes_of(parameter.layout):
            if axis not in (search.tensor, data):
                search.wrong.append((f"{parameter.name} is cut over {said(axis)}, and layers over "
                                     f"{said(search.tensor)}, the batch over {said(data)}", None))  # fmt: skip
    if not search.wrong:
        _walk(search, {p.name: p for p in own})
    if search.wrong:
        raise _first_error(search.wrong)
    _check_mesh(ranks, data, search.tensor)
    modules = tuple(dict.fromkeys([*(p.name.rpartition(".")[0] for p in own), *search.layers]))
    return PlanBack(ranks, data, search.tensor, tuple(search.layers.values()), sharing(own, trained, data), modules)


def _check_mesh(ranks: int, data: Axis | None, tensor: Axis | None) -> None:
    """Raise MspcError if the two axes are not all ranks."""
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
    covered = search.loss_over_classes(forward) | search.covered
    for node in forward:
        is_stored = bool(node.inputs) and parameter_of(node.inputs[0]) in own  # fully_shard gathers it
        if not _moves(node) or node in covered or is_stored or search.is_of_gradients(node):
            continue
        is_result = node in search.graph.results and _of_batch(node, search.data)  # a process returns its own rows
        if not is_result and not _of_loss(node, search.data) and not _of_rows(node, search.data):
            search.wrong.append((f"{node.op.name} is between layers", node))


def _of_loss(node: Node, data: Axis | None) -> bool:
    """Return a number that is summed over the batch's axis, which every process has of its own rows."""
    source = node.inputs[0] if node.inputs else None
    layout = source.layout if source is not None else None
    return (
        data is not None and source is not None and isinstance(layout, Layout)
        and not source.shape and layout.reduction == "sum"
        and axes_of(layout, layout.partial) == [data]
    )  # fmt: skip


def _of_batch(node: Node, data: Axis | None) -> bool:
    """Return whether a redistribution differs before and after over the batch's axis alone."""
    before, after = set(all_axes_of(node.inputs[0].layout)), set(all_axes_of(node.layout))
    return before ^ after == {data} and not (isinstance(node.layout, Layout) and node.layout.partial)


def _of_rows(node: Node, data: Axis | None) -> bool:
    """Return whether rows of the inputs themselves, or of values that are the same everywhere, move over the batch's
    axis: processes compute them from their own rows."""
    if not _of_batch(node, data):
        return False
    pending = Worklist(node.inputs[:1])
    for value in pending:
        if isinstance(value, Parameter) and value.kind != "input":
            return False
        if isinstance(value, Node):
            if value.op.name not in ROW_BY_ROW and not _moves(value):
                return False
            pending.add(value.inputs)
    return True


def data_axis(graph: Graph) -> Axis | None:
    """Return the axis that cuts the rows of the first input that is cut."""
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
        raise _first_error(wrong)
    return found


def _first_error(wrong: Sequence[tuple[str, Node | None]]) -> MspcError:
    """Return the error of the first mistake, with the others."""
    text, node = next((each for each in wrong if each[1] is not None), wrong[0])
    others = [each for each in dict.fromkeys(each for each, _ in wrong) if each != text]
    notes = others_noted(others, MAX_TOLD)
    message = f"--out-torch: the plan cannot be said in DTensor's words: {text}"
    return MspcError(message, notes=notes) if node is None else MspcError(message, notes=notes, frames=node.frames)


DATA, TENSOR = "dp", "tp"
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def torch_code(plan: PlanBack, made_of: str, compile_id: str) -> str:
    """Return the text of the file. made_of: the compiled network, in words."""
    axes = [(axis, name) for axis, name in ((plan.data, DATA), (plan.tensor, TENSOR)) if axis is not None]
    axes.sort(key=lambda pair: -pair[0].stride)
    comma = "," if len(axes) == 1 else ""
    sizes, names = ", ".join(str(axis.size) for axis, _ in axes), ", ".join(f'"{name}"' for _, name in axes)
    layers = styles(plan)
    tied = {layer.module: layer.same_as for layer in plan.layers if layer.same_as}
    used = {word for style in layers.values() for word in re.findall(r"\w+Parallel", style)}
    if any(layer.gives_loss for layer in plan.layers):
        used |= {"loss_parallel"}
    placements = {word for style in layers.values() for word in re.findall(r"Shard|Replicate", style)}
    is_own = any(layer.cut for layer in plan.layers)
    if is_own:
        used |= {"ParallelStyle"}
        placements |= {"DTensor", "Placement", "Replicate", "Shard", "distribute_module", "distribute_tensor"}
    is_local = any(layer.parts for layer in plan.layers)
    if is_local:
        used |= {"ParallelStyle"}
        placements |= {"DTensor", "Partial", "Replicate", "Shard", "distribute_tensor"}
    lines = [
        f'"""How {made_of} is sharded over {plan.ranks} ranks, in DTensor\'s words.', "",
        f"Written by `mspc compile --out-torch`, of compile {compile_id}.", "", *_reader_notes(plan), '"""', "",
        *(["from typing import Any", ""] if is_own or is_local else []),
        f"from torch import {'Tensor, ' if is_local else ''}nn",
        "from torch.distributed.device_mesh import DeviceMesh, init_device_mesh",
    ]  # fmt: skip
    if plan.data is not None:
        lines.append("from torch.distributed.fsdp import fully_shard")
    if placements:
        lines.append(f"from torch.distributed.tensor import {', '.join(sorted(placements))}")
    if is_local:
        lines.append("from torch.distributed.tensor.placement_types import _StridedShard")
    if layers:
        lines.append(f"from torch.distributed.tensor.parallel import {', '.join(sorted(used))}, parallelize_module")
    if is_own:
        lines += ["", *source_text("readers/pytorch/plans/sliced_style.py.txt").split("\n")]
    if is_local:
        lines += ["", *source_text("readers/pytorch/plans/local_style.py.txt").split("\n")]
    lines += ["", "", 'def mesh(device: str = "cuda") -> DeviceMesh:', '    """The ranks and their axes."""']
    lines += [f"    return init_device_mesh(device, ({sizes}{comma}), mesh_dim_names=({names}{comma}))", ""]
    if layers:
        lines += ["", "LAYERS = {", *(f'    "{name}": {style},' for name, style in layers.items()), "}", ""]
    if tied:
        lines += ["SAME = {", *(f'    "{name}": "{first}",' for name, first in tied.items()), "}",
                  '"""Modules whose weight is another one\'s."""', ""]  # fmt: skip
    lines += ["", "def parallelize(module: nn.Module, ranks: DeviceMesh | None = None) -> nn.Module:",
              '    """Shard a module, which every process has with the same weights."""',
              "    ranks = ranks or mesh()"]  # fmt: skip
    if layers:
        lines.append(f'    parallelize_module(module, ranks["{TENSOR}"], LAYERS)')
    if tied:
        lines += ["    for name, first in SAME.items():  # every module was given a parameter of its own",
                  "        module.get_submodule(name).weight = module.get_submodule(first).weight"]  # fmt: skip
    if plan.data is not None:
        again = plan.sharing == "parameters"
        lines.append(f'    fully_shard(module, mesh=ranks["{DATA}"], reshard_after_forward={again})')
    return "\n".join([*lines, "    return module", ""])


def _reader_notes(plan: PlanBack) -> list[str]:
    """Return the notes for a reader."""
    found = ["Between layers are local tensors: a module that views them has to ask for their sizes, or for -1 heads."]
    if plan.tensor is not None:
        found.append("Parameters that no layer cuts stay tensors, beside DTensors: optimizers take `foreach=False`.")
    if any(layer.gives_loss for layer in plan.layers):
        found.append("Losses are computed over slices of classes: call the module and `backward` inside of a "
                     "`with loss_parallel():`.")  # fmt: skip
    if plan.data is not None:
        found.append(f"Every process of `{DATA}` takes its own rows; the loss is the mean of theirs.")
        if not plan.sharing:
            found.append("mspc has every rank update all; fully_shard keeps shares, with equal numbers.")
    return found


def styles(plan: PlanBack) -> dict[str, str]:
    """Return the styles of modules, or of patterns of them if all that a pattern names have one."""
    own = {layer.module: _style(layer) for layer in plan.layers}
    found: dict[str, str] = {}
    for name, style in own.items():
        pattern = _NUMBER.sub("*", name)
        named = [each for each in plan.modules if fnmatchcase(each, pattern)]
        found[pattern if all(own.get(each) == style for each in named) else name] = style
    return found


def _style(layer: LayerBack) -> str:
    said: list[str] = []
    usual = (WHOLE if layer.kind == "Colwise" else layer.last, WHOLE if layer.kind == "Rowwise" else layer.last)
    if layer.parts:
        said_parts = ", ".join(f'"{name}": ({dim}, {count})' for name, dim, count in layer.parts)
        return f"Local({{{said_parts}}})"
    if layer.cut:
        cut = ", ".join(f'"{name}": {dim}' for name, dim in layer.cut)
        needs = WHOLE if layer.kind == "Colwise" else layer.last
        places = [_placement(dim, layer.last) for dim in (layer.takes, needs, layer.gives)]
        return f"Sliced({{{cut}}}, {', '.join(places)})"
    if layer.kind == "Sequence":
        return f"SequenceParallel(sequence_dim={layer.takes}, use_local_output=True)"
    if layer.takes != usual[0]:
        said.append(f"input_layouts={_placement(layer.takes, layer.last)}")
    if layer.gives != usual[1]:
        said.append(f"output_layouts={_placement(layer.gives, layer.last)}")
    if layer.gives_loss:
        said.append("use_local_output=False")
    return f"{layer.kind}Parallel({', '.join(said)})"


def _placement(dim: int, last: int) -> str:
    if dim == WHOLE:
        return "Replicate()"
    return "Shard(-1)" if dim == last else f"Shard({dim})"
