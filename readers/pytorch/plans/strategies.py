"""Strategies of operators from a plan of PyTorch's layers."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypeVar

from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.graph import STAGE, Builder, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import NamedLayout
from mspc.ir.text.families import each_of_cells
from mspc.ir.types import TensorType
from mspc.ops.control.structural import constrained
from mspc.ops.op import Op
from mspc.readers.pytorch.exported_program import ExportedNode, ExportedProgram, NodeResult, frames_of, scope_of
from mspc.readers.pytorch.plans.flow import LayerFlow
from mspc.readers.pytorch.plans.packed import PRODUCTS, TURNS, unpacked
from mspc.readers.pytorch.plans.written_plan import (
    COLUMNS,
    IN,
    OPEN,
    OUT,
    PREPARED,
    ROWS,
    SEQUENCE,
    STACK,
    STYLES,
    WHOLE,
    Style,
    WrittenPlan,
)

T = TypeVar("T")


def modules_of(program: ExportedProgram) -> dict[str, list[str]]:
    """Return the parameters by the modules that have them, by their qualified names; tied ones under all of theirs."""
    found: dict[str, list[str]] = {}
    for each in program.inputs:
        if each.kind == "parameter":
            module, _, _ = each.qualified.rpartition(".")
            found.setdefault(module, []).append(each.qualified)
    for node in program.graph.nodes:
        if node.scope:
            found.setdefault(node.scope, [])
    return found


def matched(
    plan: str, patterns: Mapping[str, T], names: Iterable[str], what: str, may_miss: bool = False
) -> dict[str, tuple[str, T]]:  # fmt: skip
    """Return for every name that matches a pattern of a plan (pattern, its entry); the longest pattern has priority.

    `*` is for one part of a name. A pattern may leave out the first part of names, as plans of base models do.
    may_miss: patterns that match no name are passed over.

    Raise MspcError if a pattern matches no name.
    """
    known = list(names)
    found: dict[str, tuple[str, T]] = {}
    for pattern in sorted(patterns, key=lambda each: (each.count("*") == 0, len(each))):
        whole = re.compile(r"\.".join("[^.]+" if part == "*" else re.escape(part) for part in pattern.split(".")))
        named = [name for name in known if whole.fullmatch(name)]
        if not named:
            named = [name for name in known if whole.fullmatch(name.partition(".")[2])]
        if not named and not may_miss:
            generic = {re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in known if name}
            generic |= {name.partition(".")[2] for name in generic} - {""}
            raise MspcError(
                f"{plan}: {pattern!r:.100} names no {what} of this network", notes=did_you_mean(pattern, generic)
            )
        found.update({name: (pattern, patterns[pattern]) for name in named})
    return found


# A network repeats one block, and the blocks are divided among the stages, in order. Modules that a plan names before
# them, as `base_model_pp_plan` does with the table of words, are on the first stage, and those after them on the last
# one; everything else is on the stage of its operands.


_BLOCK = re.compile(r"(.*?)\.(\d+)(?=\.|$)")


def stages_of(plan: str, program: ExportedProgram, count: int, named: Sequence[str]) -> dict[str, int]:
    """Return stages by the front end's names of scopes.

    plan: its name. named: modules, in their order.

    Raise MspcError if there are fewer blocks than stages, or a name is none of the program's.
    """
    if count < 2:
        return {}
    scopes = list(dict.fromkeys(node.scope for node in program.graph.nodes if node.scope))
    first: dict[str, int] = {}
    """Modules with all they are in, by the first node that is in them."""
    for place, scope in enumerate(scopes):
        parts = scope.split(".")
        for length in range(1, len(parts) + 1):
            first.setdefault(".".join(parts[:length]), place)
    found = matched(plan, dict.fromkeys(named), first, "module")
    lists: dict[str, list[str]] = {}
    """Lists of modules by their names, outermost ones, each with its modules in order."""
    for scope in scopes:
        block = _BLOCK.match(scope)
        if block is not None and block[0] not in lists.setdefault(block[1], []):
            lists[block[1]].append(block[0])
    chosen = {name: blocks for name, blocks in lists.items() if not named or name in found}
    blocks = max(chosen.values(), key=len, default=[])
    if len(blocks) < count:
        raise MspcError(
            f"{plan}: there are {count} stages, and the longest list of modules that are alike has {len(blocks)}",
            notes=["stages are made of whole modules, as of `layers.0`, `layers.1`"],
        )
    stages = {block: number * count // len(blocks) for number, block in enumerate(blocks)}
    begin = min(first[block] for block in blocks)
    of_blocks = blocks[0].rpartition(".")[0]
    for name in found:
        if name != of_blocks:
            stages[name] = 0 if first[name] < begin else count - 1
    return {
        scope_of(node): stage
        for node in program.graph.nodes
        if (stage := _stage_of_module(node.scope, stages)) is not None
    }


def _stage_of_module(scope: str, stages: Mapping[str, int]) -> int | None:
    """Return the stage of the innermost module that has one."""
    while scope:
        if scope in stages:
            return stages[scope]
        scope = scope.rpartition(".")[0]
    return None


# Stacks of experts' weights of which a plan gives every rank some experts are cut inside of every expert instead. Only
# the run knows the number of rows of an expert: ranks with whole experts would send different numbers in every step; a
# rank with a slice of every expert has as much of the weights, one sum of the experts' results is sent, and no rank
# waits for the one with the most rows.


FIRST, SECOND = STYLES["packed_colwise"], STYLES["rowwise"]
RANK = 3


def inside_of_experts(program: ExportedProgram, styles: Mapping[str, Style]) -> dict[str, Style]:
    """Return the styles with those of stacks: matmuls with the module's input are cut column-wise, and matmuls with
    results of other stacks row-wise."""
    stacks = {
        each.name: each.qualified for each in program.inputs
        if each.kind == "parameter" and (style := styles.get(each.qualified)) is not None and style.weight == STACK
    }  # fmt: skip
    found = dict(styles)
    ranks = {each.name: len(each.type.shape) for each in program.inputs if each.type is not None}
    for name, qualified in stacks.items():
        found[qualified] = STYLES["local_params"] if ranks.get(name) != RANK else FIRST
        assert found[qualified].weight == OPEN
    turned = {name: name for name in stacks}
    given: dict[str, str] = {}
    """Values that come of a stack's product, with its module."""
    for node in program.graph.nodes:
        operands = node.operands
        if node.target in TURNS and operands and operands[0] in turned:
            turned[node.results[0]] = turned[operands[0]]
            continue
        weight = dict(node.arguments).get(PRODUCTS[node.target][0]) if node.target in PRODUCTS else None
        stack = turned.get(weight.name) if isinstance(weight, NodeResult) else None
        modules = {given[name] for name in operands if name in given}
        if stack is not None:
            module = stacks[stack].rpartition(".")[0]
            if module in modules:
                found[stacks[stack]] = SECOND
            modules.add(module)
        for module in modules:
            if f"{node.scope}.".startswith(f"{module}."):
                given.update(dict.fromkeys(node.results, module))
    return found


PASSING = frozenset(("Cast", "Load"))
"""Operators that hand a parameter on, element by element."""
MATMULS = frozenset(("MatMul", "BatchMatMul"))
EXPERTS, PACKED, GROUPED = 3, "packed_colwise", "GroupedProduct"
IMPORTED = "-ImportedNetwork"
"""The front end's name of the cell of a program."""
COLWISE = STYLES["colwise"]
MAX_TOLD = 5
Cuts = dict[int, tuple[str, ...]]
"""The axes of the mesh that cut dimensions."""


@dataclass(frozen=True)
class LayerPlan:
    """A plan for one program: styles of parameters by their qualified names, and placements of others.

    batch: the rows of the program's inputs, which axes beside the styles' one cut. cuts: dimensions of values that are
    slices, by the names of values in the program. tied: styles of modules that share parameters with others, by their
    scopes. program: that one, perhaps with parts of parameters as parameters of their own. whole: values that every
    rank holds completely, sums of partial ones. stages: of a pipeline, by the front end's names of scopes. pads: if
    it shards dimensions that ranks do not divide.
    """

    program: ExportedProgram
    plan: WrittenPlan
    styles: Mapping[str, Style]
    placed: Mapping[str, Cuts]
    batch: int
    cuts: Mapping[str, int] = field(default_factory=dict[str, int])
    tied: Mapping[str, Style] = field(default_factory=dict[str, Style])
    whole: frozenset[str] = frozenset()
    stages: Mapping[str, int] = field(default_factory=dict[str, int])
    pads: bool = False

    def inputs(self, types: Sequence[TensorType]) -> str | tuple[NamedLayout, ...]:
        """Return how the program's inputs are sharded, as `dataset_strategy` says it."""
        if not self.plan.batch_axes:
            return "full_batch"
        found: list[NamedLayout] = []
        for type in types:
            cut = bool(type.shape) and type.shape[0] == self.batch
            dims = [[number] for number in range(type.rank)]
            found.append(self._layout(dims, {0: self.plan.batch_axes} if cut else {}))
        return tuple(found)

    def node_marks(self, node: ExportedNode) -> Any:
        """Return everything by which the plan distinguishes nodes."""
        held = [(self.cuts.get(name), name in self.whole) for name in node.results]
        scope = scope_of(node)
        return held, self.stages.get(scope), [style for name, style in self.tied.items() if name == scope]

    def parameter_marks(self, name: str) -> Any:
        """Return everything by which the plan distinguishes parameters."""
        return self.styles.get(name), self.placed.get(name)

    def given(self, builder: Builder, before: int, found: Any) -> Any:
        """Give the operators from number `before` on that read parameters of the plan their strategies; return the
        results of the call that made them, held as their style requires.

        Raise MspcError if ranks do not divide a dimension that a style cuts.
        """
        style = None
        for node in builder.nodes[before:]:
            style = self._give(node) or style
            if self.stages:
                stage = self.stages.get(scope_inside(next(each_of_cells(node.scope))))
                if stage is not None:
                    node.attrs[STAGE] = stage
        if style is None or not isinstance(found, Node) or not isinstance(found.type, TensorType):
            return found
        changed = {SEQUENCE: (IN, ROWS), WHOLE: (OUT, COLUMNS, ROWS)}.get(style.gives, ())
        if style.weight in changed:
            cut = style.gives == SEQUENCE and self._divide(found.shape[1:2])
            return self._constrained(builder, found, {1: (self.plan.tensor_axis,)} if cut else {})
        return found

    def held(self, builder: Builder, name: str, value: Any) -> Any:
        """Return a value of the program, held in slices if layers leave it so."""
        dim = self.cuts.get(name)
        is_whole = name in self.whole
        if not isinstance(value, Node) or not isinstance(value.type, TensorType) or (dim is None and not is_whole):
            return value
        axes: Cuts = {}
        if dim is not None:
            if dim >= len(value.shape) or not self._divide(value.shape[dim:]):
                return value
            axes = {dim: (self.plan.tensor_axis,)}
        return self._constrained(builder, value, axes)

    def _constrained(self, builder: Builder, value: Node, axes: Cuts) -> Node:
        dims = [[number] for number in range(len(value.shape))]
        self._cut_batch(value.shape, dims, value.shape, axes)
        return constrained(builder, value, self._layout(dims, axes))

    def _divide(self, sizes: Sequence[int]) -> bool:
        return bool(sizes) and sizes[0] % self.plan.parts == 0

    def _give(self, node: Node) -> Style | None:
        op = node.op
        types = [value.type for value in node.inputs]
        if not isinstance(op, Op) or op.name in PASSING or not all(isinstance(each, TensorType) for each in types):
            return None
        for number, value in enumerate(node.inputs):
            is_stack = op.name == GROUPED and isinstance(value, Node) and value.op.name == "Transpose"
            name = parameter_of(value.inputs[0] if is_stack else value)
            own = next(each_of_cells(node.scope)) if self.tied else ""
            style = next((s for scope, s in self.tied.items() if own.endswith(f"/{scope}")), None)
            style = self.styles.get(name) if style is None or not name else style
            if name in self.placed:
                cuts = dict(self.placed[name])
            elif style is not None:
                cuts = self._cuts(node, number, style)
                if not cuts and style.takes != SEQUENCE:
                    continue
            else:
                continue
            self._set(node, number, cuts, style)
            return None if node.op.name in ("Transpose", GROUPED) else style
        return None

    def _cuts(self, node: Node, number: int, style: Style) -> Cuts:
        """Return which dimensions of an operand, a parameter, a style cuts."""
        rank, axis = len(node.inputs[number].shape), self.plan.tensor_axis
        name = node.op.name
        if style.weight in (ROWS, COLUMNS):
            return {0 if style.weight == ROWS else rank - 1: (axis,)} if name == "Gather" else {}
        if rank == EXPERTS and name in ("Transpose", GROUPED):  # a stack of weights, [experts, out, in] in its file
            place = {IN: 2, OUT: 1}.get(style.weight, 1 if PACKED in style.name else 0)
            place = 3 - place if place and name == GROUPED else place
            return {place: (axis,)} if place and node.inputs[number].shape[place] % self.plan.parts == 0 else {}
        if style.weight not in (OUT, IN) or rank > 2:
            return {}
        if rank == 1:  # a bias is cut as the layer's result
            return {0: (axis,)} if style.weight == OUT else {}
        if name == "Gather":  # an embedding: its vectors are its result
            return {1 if style.weight == OUT else 0: (axis,)}
        if name not in MATMULS:
            return {}
        attributes = node.op.attributes()
        across = (number == 1 and not attributes.get("transpose_b")) or (number == 0 and attributes.get("transpose_a"))
        gives = 1 if across else 0
        return {gives if style.weight == OUT else 1 - gives: (axis,)}

    def _set(self, node: Node, number: int, cuts: Cuts, style: Style | None) -> None:
        """Set the strategy of a node with one operand that is cut so: dimensions of others that belong to it, too."""
        assert isinstance(node.op, Op)
        rule = node.op.parsed_rule(*(value.tensor_type for value in node.inputs))
        axes: dict[int, tuple[str, ...]] = {}
        for dim, names in cuts.items():
            place = dim % len(rule.inputs[number])
            factors = rule.inputs[number][place]
            parts = math.prod(self.plan.mesh[each] for each in names)
            size = node.inputs[number].shape[place]
            uneven = bool(factors) and rule.sizes[factors[0]] % parts != 0  # a whole dimension is padded
            if not factors or factors[0] in rule.frozen or (uneven and len(factors) > 1):
                what = f"{parts} ranks do not divide dimension {place} of {parameter_of(node.inputs[number])}, {size}"
                raise node.error(f"{self.plan.name}: {what}")
            axes[factors[0]] = names
        first = next((i for i, value in enumerate(node.inputs) if not parameter_of(value)), None)
        if first is not None:
            self._cut_batch(node.inputs[first].shape, rule.inputs[first], rule.sizes, axes)
            if style is not None and style.takes == SEQUENCE and len(rule.inputs[first]) > 2:
                factors = rule.inputs[first][1]
                if factors and rule.sizes[factors[0]] % self.plan.parts == 0:
                    axes[factors[0]] = (self.plan.tensor_axis,)
        node.in_strategy = tuple(self._layout(dims, axes) for dims in rule.inputs)
        if style is not None and style.weight == IN and style.gives == WHOLE and node.op.name in MATMULS:
            whole = {factor: names for factor, names in axes.items() if self.plan.tensor_axis not in names}
            node.out_strategy = tuple(self._layout(dims, whole) for dims in rule.outputs)

    def _cut_batch(self, shape: Sequence[int], dims: Sequence[Sequence[int]], sizes: Sequence[int], axes: Cuts) -> None:
        """Let the other axes of the mesh cut rows that come from the batch."""
        names = self.plan.batch_axes
        parts = math.prod(self.plan.mesh[axis] for axis in names)
        used = {axis for each in axes.values() for axis in each}
        if parts < 2 or not dims or not dims[0] or used & set(names) or dims[0][0] in axes:
            return
        if self.batch and shape[0] % self.batch == 0 and sizes[dims[0][0]] % parts == 0:
            axes[dims[0][0]] = names

    def _layout(self, dims: Sequence[Sequence[int]], axes: Mapping[int, tuple[str, ...]]) -> NamedLayout:
        mesh = self.plan.mesh
        last = len(mesh) - 1
        places = {axis: last - i for i, axis in enumerate(mesh)}
        entries: list[int | tuple[int, ...]] = []
        for factors in dims:
            named = tuple(places[axis] for factor in factors for axis in axes.get(factor, ()))
            entries.append(named if len(named) > 1 else named[0] if named else -1)
        return NamedLayout(tuple(mesh.values()), tuple(mesh), tuple(entries))


def parameter_of(value: Value) -> str:
    """Return the name of the parameter that a value is, perhaps in another type; "" if it is none."""
    while isinstance(value, Node) and value.op.name in PASSING and value.inputs:
        value = value.inputs[0]
    return value.name if isinstance(value, Parameter) and value.kind == "parameter" else ""


def planned(program: ExportedProgram, plan: WrittenPlan, is_own: bool = False) -> LayerPlan:
    """Return the plan of a program with numbers for sizes.

    is_own: the model brings it, with patterns for all of its kind: some match nothing here.

    Raise MspcError if a pattern of it matches nothing, or it is wrong.
    """
    modules = modules_of(program)
    parameters = [each.qualified for each in program.inputs if each.kind == "parameter"]
    styles: dict[str, Style] = {}
    tied: dict[str, Style] = {}
    prepared: dict[str, Style] = {}
    summed: set[str] = set()
    shared = {*program.same, *program.same.values()}
    for name, (_, style) in matched(plan.name, plan.layers, [*modules, *parameters], "layer", is_own).items():
        if style.weight == PREPARED:
            prepared[name] = style
            continue
        if name in modules and shared.issuperset(modules[name]):
            tied[name] = style
        if style.sums and name in modules:
            summed.add(name)
            for parameter in modules[name]:
                styles.setdefault(parameter, style)
            continue
        for parameter in modules.get(name, [name]):
            styles[program.same.get(parameter, parameter)] = style
    styles = inside_of_experts(program, styles)
    program, slices = unpacked(program, [name for name, style in styles.items() if PACKED in style.name])
    for part, of in slices.items():
        styles[part] = COLWISE
        styles.pop(of.whole, None)
    _prepare(styles, prepared)
    placed = _placements(program, plan)
    first = next((each.type for each in program.inputs if each.kind == "user" and each.type is not None), None)
    rows = first.shape[0] if first is not None and first.shape else 0
    if isinstance(rows, int) and plan.batch_axes:
        parts = math.prod(plan.mesh[axis] for axis in plan.batch_axes)
        if rows % parts:
            raise MspcError(f"{plan.name}: {', '.join(plan.batch_axes)} cut the batch into {parts} parts, and it has "
                            f"{rows} rows")  # fmt: skip
    tensor = {name: dim for name, cuts in placed.items() for dim, axes in cuts.items() if plan.tensor_axis in axes}
    flow = LayerFlow(program, styles, plan.parts, tensor, tied, plan.loss_parallel)
    if flow.mistakes:
        first = flow.mistakes[0]
        texts = list(dict.fromkeys(each.text for each in flow.mistakes))
        notes = others_noted(texts[1:], MAX_TOLD - 1)
        raise MspcError(f"{plan.name}: {first.text}", notes=notes, frames=frames_of(first.node))
    cuts = {
        name: state.dim for node in program.graph.nodes for name in node.results
        if (state := flow.cuts.get(name)) is not None
    }  # fmt: skip
    scopes = {scope_of(node): tied[node.scope] for node in program.graph.nodes if node.scope in tied}
    return LayerPlan(
        program, plan, styles, placed, rows if isinstance(rows, int) else 0, cuts, scopes,
        _given_by(program, summed), stages_of(plan.name, program, plan.stages, plan.in_order),
        flow.pads or _is_uneven(program, plan, placed),
    )  # fmt: skip


def scope_inside(scope: str) -> str:
    """Return the part of a scope inside of the imported network, which may be the outermost cell."""
    _, found, after = scope.partition(IMPORTED)
    return (after if found else scope).partition("/")[2]


def _placements(program: ExportedProgram, plan: WrittenPlan) -> dict[str, Cuts]:
    """Return the dimensions of parameters that placements cut."""
    parameters = [each.qualified for each in program.inputs if each.kind == "parameter"]
    placed: dict[str, Cuts] = {}
    shapes = {each.qualified: each.type.shape for each in program.inputs if each.type is not None}
    for name, (_, placements) in matched(plan.name, plan.parameters, parameters, "parameter").items():
        cuts: Cuts = {}
        for axis, placement in zip(plan.mesh, placements, strict=True):
            if isinstance(placement, int):
                rank = len(shapes[name])
                if not -rank <= placement < rank:
                    raise MspcError(f"{plan.name}: {name} has {rank} dimensions, and Shard({placement}) names none")
                cuts[placement % rank] = (*cuts.get(placement % rank, ()), axis)
        placed[program.same.get(name, name)] = cuts
    return placed


def _is_uneven(program: ExportedProgram, plan: WrittenPlan, placed: Mapping[str, Cuts]) -> bool:
    """Return whether placements shard a dimension into a number of slices that does not divide it."""
    shapes = {each.qualified: each.type.shape for each in program.inputs if each.type is not None}
    return any(
        isinstance(size := shapes[name][dim], int) and size % math.prod(plan.mesh[axis] for axis in axes)
        for name, cuts in placed.items() for dim, axes in cuts.items()
    )  # fmt: skip


def _prepare(styles: dict[str, Style], prepared: Mapping[str, Style]) -> None:
    """Let column-wise layers inside of modules with gathered input take the input before it is gathered."""
    for module, style in prepared.items():
        for name, own in styles.items():
            if name.startswith(f"{module}.") and own.weight == OUT and own.takes == style.gives == WHOLE:
                styles[name] = replace(own, takes=style.takes or WHOLE)


def _given_by(program: ExportedProgram, modules: Collection[str]) -> frozenset[str]:
    """Return the values that these modules give to others."""
    made = {name: node.scope for node in program.graph.nodes if node.scope in modules for name in node.results}
    return frozenset(
        name for node in program.graph.nodes for name in node.operands
        if name in made and not f"{node.scope}.".startswith(f"{made[name]}.")
    )  # fmt: skip


def others_noted(texts: Sequence[str], most: int) -> list[str]:
    """Return notes on further mistakes."""
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return [*(f"also: {text}" for text in texts[:most]), *more]
