"""Equal cells compiled as one graph that a loop runs: detection, gradients, updates, and joined values."""

from __future__ import annotations

import ast
import itertools
import types
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from operator import attrgetter
from typing import Any

import numpy as np

from mspc.compiler.frontend.branches import TraceSnapshot
from mspc.compiler.frontend.cell_marks import stage_of
from mspc.compiler.frontend.loops import UNROLLED, LoopPlan, run_loop, tried
from mspc.compiler.frontend.micro_batches import LOOP
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Frame, Unrolled
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import STAGE, Builder, Constant, Graph, Node, Parameter, Value, asks_for_host
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.mindspore_api.common.parameter import FACTS
from mspc.mindspore_api.common.parameter import Parameter as ScriptParameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.container import CellList
from mspc.mindspore_api.ops.primitive import Primitive
from mspc.ops.control.regions import For, MakeStack, Scan, emit_regions, outlined, with_effects
from mspc.ops.control.structural import Depend, Gradient, TupleGetItem
from mspc.ops.math.arithmetic import AddN, LogicalAnd, LogicalOr, Maximum, Minimum, Mul
from mspc.ops.math.reduce import ReduceAll, ReduceAny, ReduceMax, ReduceMin, ReduceProd
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Concat, Stack
from mspc.ops.tensor.reshape import ReduceSum, Reshape

_NOT_COMPARED = ("_cells", "_params", "_members", "_owned", "_stage_place")
"""Attributes in which a cell records its own cells and parameters, which are compared themselves, and the line of the
script that set its stage."""
_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})
_facts = attrgetter("dtype", "shape", *FACTS)


class Counterparts:
    """Pairing of the parts of one cell with the parts of its equal cells.

    parameters, cells: by the identity of a parameter or cell of the first cell, the matching ones of all cells in their
    order, starting with the first cell's.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.parameters: dict[int, list[ScriptParameter]] = {}
        self.cells: dict[int, list[Cell]] = {}
        first, *others = cells
        self.are_alike = all(self._same(first, other, number) for number, other in enumerate(others, 1))

    def _same(self, one: Any, other: Any, number: int) -> bool:
        """Return whether `one`, a part of the first cell, equals `other`, the matching part of cell `number`."""
        if one is other and not isinstance(one, ScriptParameter | Cell):
            return True  # every cell has its own parameters and cells
        kind = type(one)
        if kind is not type(other):
            return False
        if kind in _PLAIN:
            return bool(one == other)
        if isinstance(one, Cell):
            return self._same_cell(one, other, number)
        if isinstance(one, ScriptParameter):
            return _facts(one) == _facts(other) and self._note(self.parameters, one, other, number)
        if isinstance(one, tuple | list):
            return len(one) == len(other) and all(self._same(a, b, number) for a, b in zip(one, other, strict=True))
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(self._same(one[key], other[key], number) for key in one)
        if isinstance(one, Op):
            seeds = type(one).seeds
            fields = one.attributes()
            return all(name in seeds or fields[name] == value for name, value in other.attributes().items())
        if isinstance(one, Primitive):
            return self._same_attributes(one, other, number)
        if isinstance(one, Tensor):
            alike = one.shape == other.shape and one.dtype == other.dtype
            return alike and np.array_equal(one.asnumpy(), other.asnumpy())
        if isinstance(one, np.ndarray):
            return one.dtype == other.dtype and np.array_equal(one, other)
        if isinstance(one, types.FunctionType | types.BuiltinFunctionType | type | set | frozenset):
            return bool(one == other)
        if isinstance(one, types.MethodType):
            return one.__func__ is other.__func__ and self._same(one.__self__, other.__self__, number)
        return False

    def _same_cell(self, one: Cell, other: Cell, number: int) -> bool:
        known = self.cells.get(id(one))
        if known is not None and len(known) > number:
            return known[number] is other
        if not self._note(self.cells, one, other, number) or not self._same_attributes(one, other, number):
            return False
        return all(self._same(a, b, number) for a, b in zip(one._cells.values(), other._cells.values(), strict=False))

    def _same_attributes(self, one: Cell | Primitive, other: Cell | Primitive, number: int) -> bool:
        mine, others = vars(one), vars(other)
        if mine.keys() != others.keys():
            return False
        is_primitive = isinstance(one, Primitive)
        for name, value in mine.items():
            counterpart = others[name]
            if (value is counterpart and type(value) in _PLAIN) or name in _NOT_COMPARED:
                continue  # most values are plain, and there are thousands
            by_value = is_primitive and name in ("in_strategy", "out_strategy")
            if not (value == counterpart if by_value else self._same(value, counterpart, number)):
                return False
        return True

    def _note(self, found: dict[int, Any], one: Any, other: Any, number: int) -> bool:
        """Record `other` as the counterpart of `one` in cell `number`. Return False if a different one is recorded
        already."""
        members = found.setdefault(id(one), [one])
        if len(members) == number:
            members.append(other)
        return len(members) > number and members[number] is other


def asks_for_one_graph(items: Sequence[Any]) -> bool:
    """Return whether `items` are two or more cells whose constructor is marked with `lazy_inline`."""
    is_marked = getattr(type(items[0]).__init__, "is_lazily_inlined", False)
    return is_marked and isinstance(items[0], Cell) and len(items) > 1


def folded(tracer: Tracer, frame: Frame, node: ast.For, items: Sequence[Any]) -> tuple[Any] | None:
    """Compile the iterations of a `for` statement as loops.

    Return a tuple of one element, how the statement ends; None, with nothing traced, if the iterations must be inlined.
    """
    read = _read_by_turn(tracer, frame, node, items)
    if not any(map(asks_for_one_graph, read or ())):
        return None
    rows = list(zip(*read or (), strict=True))
    starts = [0]
    if tracer.stages > 1:  # a loop for consecutive iterations whose cells are in the same stages
        stages = [
            tuple(stage_of(tracer, frame.scope, cell) if isinstance(cell, Cell) else None for cell in row)
            for row in rows
        ]
        starts += [i for i in range(1, len(rows)) if stages[i] != stages[i - 1]]
    runs = [(a, Counterparts(rows[a:b])) for a, b in itertools.pairwise([*starts, len(rows)])]
    if not all(counterparts.are_alike for _, counterparts in runs):
        return None
    beginning = TraceSnapshot(tracer, frame)
    found = tried(tracer, beginning, lambda: _loops(tracer, frame, node, items, runs))
    return None if found is UNROLLED else (found,)


def _loops(
    tracer: Tracer, frame: Frame, node: ast.For, items: Sequence[Any], runs: Sequence[tuple[int, Counterparts]]
) -> Any:
    """Emit one loop per run of iterations. A run of one iteration is inlined."""
    found: Any = None
    for number, (first, counterparts) in enumerate(runs):
        last = runs[number + 1][0] if number + 1 < len(runs) else len(items)
        if last - first > 1:
            found = _loop(tracer, frame, node, items[first:last], counterparts)
            continue
        tracer.assign(frame, node.target, items[first])
        found = tracer.block(frame, node.body)
    return found


def _read_by_turn(tracer: Tracer, frame: Frame, node: ast.For, items: Sequence[Any]) -> list[Sequence[Any]] | None:
    """Return the objects that differ per iteration: one sequence, with an entry per iteration, for each read of the
    loop's target or of a list indexed by it. Return None if an iteration may use the target in another way."""
    target = node.target
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    if not all(isinstance(name, ast.Name) for name in names):
        return None
    rows = items if isinstance(target, ast.Tuple) else [(item,) for item in items]
    if any(not isinstance(row, tuple) or len(row) != len(names) for row in rows):
        return None
    found: list[Sequence[Any]] = []
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        assert isinstance(name, ast.Name)
        if any(type(value) is not int for value in values):
            found.append(values)
            continue
        lists = _indexed(tracer, frame, node.body, name.id)
        if lists is None or any(not 0 <= value < len(each) for each in lists for value in values):
            return None
        found += [[each[value] for value in values] for each in lists]
    return found


def _indexed(tracer: Tracer, frame: Frame, body: list[ast.stmt], name: str) -> list[Sequence[Any]] | None:
    """Return the lists that the body indexes with the name `name`; None if it uses that name in any other way."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    uses = sum(isinstance(node, ast.Name) and node.id == name for node in nodes)
    read = [n for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Name) and n.slice.id == name]
    lists = [_object_before(tracer, frame, each.value, assigned) for each in read if isinstance(each.ctx, ast.Load)]
    if len(lists) != uses or not all(isinstance(each, CellList | list | tuple) for each in lists):
        return None
    return list({id(each): each for each in lists}.values())


def _object_before(tracer: Tracer, frame: Frame, node: ast.expr, assigned: set[str]) -> Any:
    """Return the object that a name, or an attribute of a cell, refers to before the loop and in every iteration.
    Return None for any other expression."""
    if isinstance(node, ast.Name):
        return None if node.id in assigned else frame.lookup(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    base = _object_before(tracer, frame, node.value, assigned)
    if not isinstance(base, Cell) or (id(base), node.attr) in tracer.attributes:
        return None
    return getattr(base, node.attr, None)


def _loop(tracer: Tracer, frame: Frame, node: ast.For, items: Sequence[Any], counterparts: Counterparts) -> Any:
    def body(turn: Value | None) -> Any:
        tracer.at(frame, node.target)
        tracer.assign(frame, node.target, items[0])
        return tracer.block(frame, node.body)

    with _names_of_all(tracer, counterparts):
        found = run_loop(tracer, frame, LoopPlan(node, node.iter, None, body, len(items)))
    _scan_parameters(tracer, *_last_loop(tracer), counterparts.parameters)
    for key, members in counterparts.cells.items():
        if key in tracer.cells:
            tracer.cells |= {id(cell): cell for cell in members}
            for cell in members[1:]:
                tracer.reads.cell(cell)
    tracer.assign(frame, node.target, items[-1])
    return found


@contextmanager
def _names_of_all(tracer: Tracer, counterparts: Counterparts) -> Generator[None]:
    """Inside the context, name the cells of the first iteration by a pattern for all of them if their names count up,
    so that scopes read `layers-CellList/[0..79]-Layer`."""
    from mspc.ir.text.families import name_of_cells  # imported late: few networks have layers that are one graph

    names = tracer.cell_names
    common = {
        key: name for key, members in counterparts.cells.items()
        if all(id(cell) in names for cell in members)
        and (name := name_of_cells([names[id(cell)] for cell in members]))
    }  # fmt: skip
    before = {key: names[key] for key in common}
    names |= common
    try:
        yield
    finally:
        names |= before


def repeated(
    tracer: Tracer, caller: Frame, carried: tuple[Any, ...], layer: Callable[[Sequence[Any]], tuple[Any, ...]],
    members: Sequence[Sequence[ScriptParameter]], count: int,
) -> tuple[Any, ...] | None:  # fmt: skip
    """Compile equal layers of a program as one loop. layer: emits the first layer for the carried values, and returns
    their new values. members: for each parameter that it reads, those of all layers.

    Return the carried values after all layers; None, with nothing traced, if they must be inlined.
    """
    frame = Frame(caller.source, {"carry": carried}, caller.globals, caller.enclosing, caller, caller.call_frames)
    parameters = {id(each[0]): list(each) for each in members}
    loop = LOOP
    assert isinstance(loop, ast.For)

    def turn(number: Value | None) -> None:
        frame.locals["carry"] = layer(frame.locals["carry"])

    def run() -> tuple[Any, ...]:
        run_loop(tracer, frame, LoopPlan(loop, loop.iter, None, turn, count))
        _scan_parameters(tracer, *_last_loop(tracer, of_layers=True), parameters)
        return frame.locals["carry"]

    found = tried(tracer, TraceSnapshot(tracer, frame), run)
    return None if found is UNROLLED else found


def _last_loop(tracer: Tracer, of_layers: bool = False) -> tuple[Node, dict[str, Any]]:
    """Return (the loop made last, its attributes of a stage: all of its nodes are on one, or none is). of_layers: nodes
    without a stage are on that of the layers that read them."""
    made = next(each for each in reversed(tracer.builder.nodes) if isinstance(each.op, For))
    stages = {each.attrs.get(STAGE) for each in made.regions[-1].nodes}
    if of_layers:
        stages.discard(None)
    stage = {STAGE: stages.pop()} if tracer.stages > 1 and len(stages) == 1 and stages != {None} else {}
    made.attrs |= stage
    return made, stage


def _scan_parameters(
    tracer: Tracer, loop: Node, attrs: dict[str, Any], parameters: Mapping[int, list[ScriptParameter]]
) -> None:
    """Make the loop scan stacks of the parameters that it captures from the first cell. attrs: of the stacks.
    parameters: those of all cells, by the identity of the first cell's."""
    op, [body] = loop.op, loop.regions
    assert isinstance(op, For)
    if op.mutates:
        raise MspcError(f"{op.name}: a turn overwrites a parameter")  # each cell has its own: tried() inlines them
    behind = op.first + op.carried
    stacks: list[tuple[Value, Parameter]] = []
    captured: list[tuple[Value, Parameter]] = []
    nodes = tracer.builder.nodes
    at = nodes.index(loop)
    for value, parameter in zip(loop.inputs[behind:], body.parameters[op.leading + op.carried :], strict=True):
        name = getattr(value, "name", "")
        members = parameters.get(id(tracer.parameters.get(name)))
        if members is None:
            captured.append((value, parameter))
            continue
        weights: list[Value] = [tracer.weight(member) for member in members]
        stack = next((n for n in nodes[:at] if isinstance(n.op, MakeStack) and n.inputs == weights), None)
        if stack is None:  # else another loop scans them: a gradient is requested for one stack only
            type = MakeStack().infer(*(weight.type for weight in weights))
            stack = Node(MakeStack(), weights, type, value.name, "", loop.scope, loop.frames, loop.phase)
            stack.attrs |= attrs
            nodes.insert(at, stack)
            at += 1
        stacks.append((stack, parameter))
    loop.inputs[behind:] = [value for value, _ in (*stacks, *captured)]
    body.parameters[op.leading + op.carried :] = [parameter for _, parameter in (*stacks, *captured)]
    scanning = with_effects(replace(op, scanned=len(stacks)), loop.inputs, loop.regions)
    loop.op = scanning  # type: ignore[assignment]  # fields, see RegionOp
    scanning.results_of(loop.regions, [value.type for value in loop.inputs])


BESIDE = "beside"
JOINED = {
    "sum": (AddN, ReduceSum), "prod": (Mul, ReduceProd), "max": (Maximum, ReduceMax), "min": (Minimum, ReduceMin),
    "all": (LogicalAnd, ReduceAll), "any": (LogicalOr, ReduceAny),
}  # fmt: skip
"""The operator that joins operands and the one that joins along a dimension, by the name in `Op.joins`."""


@dataclass
class MergeNode:
    """A node that combines values of all cells.

    node: the combining node. parts: the value that each cell contributes. others: operands that belong to no cell,
    joined. joins: see `Op.joins`. trailing: the other operands that come after the cells' in a concatenation.
    """

    node: Node
    parts: list[Value]
    others: list[Value]
    joins: str
    trailing: list[Value] = field(default_factory=list[Value])

    def over_stack(self, b: Builder, stacked: Value) -> None:
        """Make the node join `stacked`, the parts of all cells along its first dimension, with the other operands.
        Append the nodes needed for that through `b`."""
        if self.joins == BESIDE:
            _, each, *rest = stacked.shape
            row = Reshape((len(self.parts) * each, *rest))
            if not (self.others or self.trailing):
                self.node.op, self.node.inputs = row, [stacked]
                return
            self.node.op, self.node.inputs = Concat(0), [*self.others, b.emit(row, stacked), *self.trailing]
            return
        join, reduce = JOINED[self.joins]
        if not self.others:
            self.node.op, self.node.inputs = reduce(axis=(0,)), [stacked]
            return
        operands = [*self.others, b.emit(reduce(axis=(0,)), stacked)]
        while len(operands) > 2 and join is not AddN:
            operands = [b.emit(join(), *operands[:2]), *operands[2:]]
        self.node.op, self.node.inputs = join(), operands


@dataclass
class Grouped:
    """A graph with its merge nodes. cell_of: the cell of each value that belongs to one cell. meetings: the merge nodes
    by graph node, in run order."""

    cell_of: dict[Value, int]
    meetings: dict[Node, MergeNode]


def grouped(graph: Graph, cells: int, known: Mapping[Value, int]) -> Grouped:
    """Find the cell that each node belongs to, and combine the operands that each cell gives to a merge node.

    known: the cells of parameters and gradients. A parameter that is read for one cell only, such as an optimizer
    state, belongs to that cell, too. Raise Unrolled if values of several cells are combined in another way.
    """
    looked = _Look(graph, known)
    while states := looked.states():
        others = (node for node in graph.nodes if node not in looked.cell_of and not isinstance(node.op, MakeStack))
        if all(states.keys().isdisjoint(node.inputs) for node in others):
            looked.cell_of |= states
            break
        looked = _Look(graph, looked.known | states)
    found = Grouped(looked.cell_of, {})
    nodes: list[Node] = []
    dropped = {node for _, inner in looked.meetings.values() for node in inner}
    for node in graph.nodes:
        if node in dropped:
            continue
        if node in looked.meetings:
            found.meetings[node] = _meeting(graph, nodes, node, looked.meetings[node][0], found.cell_of, cells)
        nodes.append(node)
    graph.nodes = nodes
    return found


class _Look:
    """One pass over a graph that assigns nodes to cells, from the values with a known cell.

    cell_of: the cells of values. meetings: by each node that reads values of several cells, its operands and the
    earlier nodes that join some of them.
    """

    def __init__(self, graph: Graph, known: Mapping[Value, int]) -> None:
        self.graph = graph
        self.known = dict(known)
        self.cell_of = dict(known)
        self.meetings: dict[Node, tuple[list[Value], list[Node]]] = {}
        readers: dict[Value, list[Node]] = {node: [] for node in graph.nodes if _is_tree(node.op)}
        for node in graph.nodes if readers else ():
            for value in node.inputs:
                if value in readers:
                    readers[value].append(node)
        returned = set(graph.results)
        trees: dict[Value, tuple[list[Value], list[Node]]] = {}
        """Operands and inner nodes, as in `meetings`, of nodes that are read only by one node that joins in the same
        way."""
        for node in graph.nodes:
            if isinstance(node.op, MakeStack) or (isinstance(node.op, Depend) and node.inputs[0] not in self.cell_of):
                continue
            leaves, inner = node.inputs, list[Node]()
            if trees and not trees.keys().isdisjoint(leaves):
                inner = [each for value in leaves if value in trees for each in trees[value][1]]
                leaves = [leaf for value in leaves for leaf in (trees[value][0] if value in trees else [value])]
            own_readers = readers.get(node, ())
            reader = own_readers[0] if len(own_readers) == 1 and node not in returned else None
            # The join of a node can be a part of that of its only reader, of the same kind.
            if reader is not None and _is_tree(reader.op) and _joins(reader.op) == _joins(node.op) and (
                reader.type == node.type
            ):
                trees[node] = leaves, [*inner, node]
                continue
            of = {self.cell_of[leaf] for leaf in leaves if leaf in self.cell_of}
            if len(of) > 1:
                self.meetings[node] = leaves, inner
            elif of:
                self.cell_of |= dict.fromkeys((*inner, node), *of)

    def states(self) -> dict[Value, int]:
        """Return the parameters without a known cell that are read for one cell only, with that cell."""
        readers: dict[Value, set[int]] = {}
        for node in self.graph.nodes:
            if node in self.cell_of:
                for value in node.inputs:
                    if isinstance(value, Parameter) and value not in self.known:
                        readers.setdefault(value, set()).add(self.cell_of[node])
        return {value: cell for value, (cell, *others) in readers.items() if not others}


def _meeting(
    graph: Graph, nodes: list[Node], node: Node, leaves: Sequence[Value], cell_of: dict[Value, int], cells: int
) -> MergeNode:
    op = node.op
    joins = _joins(op)
    if joins == BESIDE:
        return _row_of_cells(graph, nodes, node, leaves, cell_of, cells)
    if not joins or (_is_tree(op) and any(leaf.type != node.type for leaf in leaves)):
        raise Unrolled
    join, _ = JOINED[joins]
    b = Builder(graph, nodes).like(node)
    b.phase = node.phase

    def joined(values: Sequence[Value]) -> Value:
        if not _is_tree(op):
            assert isinstance(op, Op)
            return b.emit(op, *values)
        if join is AddN:
            return values[0] if len(values) == 1 and isinstance(values[0], Node) else b.emit(AddN(), *values)
        made = values[0]
        for value in values[1:]:
            made = b.emit(join(), made, value)
        return made

    of_cells: list[list[Value]] = [[] for _ in range(cells)]
    others: list[Value] = []
    for leaf in leaves:
        (of_cells[cell_of[leaf]] if leaf in cell_of else others).append(leaf)
    if not all(of_cells):
        raise Unrolled
    parts: list[Value] = []
    for cell, values in enumerate(of_cells):
        first = len(nodes)
        part = joined(values)
        cell_of |= dict.fromkeys(nodes[first:], cell)
        parts.append(part)
    if others and not _is_tree(op):
        others = [joined(others)]
    return MergeNode(node, parts, others, joins)


def _row_of_cells(
    graph: Graph, nodes: list[Node], node: Node, leaves: Sequence[Value], cell_of: dict[Value, int], cells: int
) -> MergeNode:
    """Return the merge node of a concatenation that lists the operands cell by cell. Raise Unrolled if the operands are
    in another order."""
    op = node.op
    assert isinstance(op, Concat | Stack)
    of = [cell_of.get(leaf, -1) for leaf in leaves]
    first = next(i for i, cell in enumerate(of) if cell >= 0)
    each = of.count(0)
    last = first + cells * each
    if op.axis not in (0, -node.tensor_type.rank) or of != [-1] * first + [
        cell for cell in range(cells) for _ in range(each)
    ] + [-1] * (len(of) - last):
        raise Unrolled
    b = Builder(graph, nodes).like(node)
    b.phase = node.phase
    parts: list[Value] = []
    for cell in range(cells):
        parts.append(b.emit(op, *leaves[first + cell * each : first + (cell + 1) * each]))
        cell_of[parts[-1]] = cell
    before, behind = ([b.emit(op, *part)] if part else [] for part in (leaves[:first], leaves[last:]))
    return MergeNode(node, parts, [*before], BESIDE, [*behind])


def _joins(op: object) -> str:
    return op.joins if isinstance(op, Op) else ""


def _is_tree(op: object) -> bool:
    """Return whether the operator joins its operands, so that nested operators of the same kind can be flattened."""
    return isinstance(op, Op) and op.joins not in ("", BESIDE) and not op.operandwise


@iterative
def is_alike(one: Value, other: Value, changing: Collection[Value]) -> Generator[Any, bool, bool]:
    """Return whether two values are equal: the same value, equal constants, or the same side-effect-free computation on
    equal operands. changing: values that are overwritten meanwhile and never count as equal."""
    if one is other:
        return one not in changing
    if isinstance(one, Constant) and isinstance(other, Constant):
        return one.type == other.type and one.value.tobytes() == other.value.tobytes()
    if not (isinstance(one, Node) and isinstance(other, Node)) or one.regions or other.regions:
        return False
    if one.op.has_side_effect or one.op.mutates or isinstance(one.op, Gradient):
        return False
    if (one.op, one.type, one.phase, len(one.inputs)) != (other.op, other.type, other.phase, len(other.inputs)):
        return False
    for a, b in zip(one.inputs, other.inputs, strict=True):
        if not (yield a, b, changing):
            return False
    return True


def without_unread(nodes: Sequence[Node], results: Sequence[Value], doubtful: Collection[Value]) -> list[Node]:
    """Return `nodes` without the nodes in `doubtful` that nothing reads, and without nodes computed only for these."""
    read: set[Value] = {*results}
    doubted = set(doubtful)
    found: list[Node] = []
    for node in reversed(nodes):
        if node in doubted and node not in read and not node.op.has_side_effect and not node.op.mutates:
            doubted.update(node.inputs)
            continue
        read.update(node.inputs)
        found.append(node)
    return found[::-1]


def roll_updates(graph: Graph) -> None:
    """Request gradients of stacks instead of single parameters, and do the updates of all cells in loops. Raise
    Unrolled if the updates of one cell differ from those of another, or another node reads a single parameter. The
    cells must be inlined."""
    stacks = [node for node in graph.nodes if isinstance(node.op, MakeStack)]
    if not stacks:
        return
    if asks_for_host(graph):
        raise Unrolled  # a loop over the cells would need all host-resident tensors on the device at once
    members: dict[Value, tuple[Node, int]] = {w: (stack, i) for stack in stacks for i, w in enumerate(stack.inputs)}
    if len(members) != sum(len(stack.inputs) for stack in stacks):
        raise Unrolled  # a gradient is requested for one stack only
    requests = [node for node in graph.nodes if isinstance(node.op, Gradient)]
    if len(requests) > 1:
        raise Unrolled
    grads: dict[Value, tuple[Node, int]] = {}
    stack_of: dict[Node, Node] = {}
    for request in requests:
        grads, stack_of = _of_stacks(graph, request, stacks, members)
    groups: dict[object, set[Node]] = {}
    for stack in stacks:  # those of the same cells: all of them, or those of one stage if stages have their own loops
        key = None if STAGE not in stack.attrs else (stack.attrs[STAGE], len(stack.inputs))
        groups.setdefault(key, set()).add(stack)
    for group in groups.values():
        own = {weight: place for weight, place in members.items() if place[0] in group}
        _roll(graph, own, {value: place for value, place in grads.items() if stack_of[place[0]] in group})
    _order_parameters(graph)
    used = [value for node in graph.nodes if not isinstance(node.op, MakeStack) for value in node.inputs]
    if any(value in members for value in (*used, *graph.results)):
        raise Unrolled


def _of_stacks(
    graph: Graph, request: Node, stacks: Sequence[Node], members: dict[Value, tuple[Node, int]]
) -> tuple[dict[Value, tuple[Node, int]], dict[Node, Node]]:
    """Make a gradient request ask for stacks instead of their members.

    Return the nodes that read the gradient of a member, each with the node that is now the gradient of the whole stack
    and the member's number; and the stack of each such gradient.
    """
    op = request.op
    assert isinstance(op, Gradient)
    last = len(request.inputs) - (op.outputs if op.has_sens else 0)
    wanted = request.inputs[op.outputs : last]
    asked: dict[Value, int] = {}
    for value in wanted:
        asked.setdefault(members[value][0] if value in members else value, len(asked))
    counts = {stack: sum(value in members and members[value][0] is stack for value in wanted) for stack in stacks}
    if any(count not in (0, len(stack.inputs)) for stack, count in counts.items()):
        raise Unrolled
    request.inputs[op.outputs : last] = list(asked)
    request.type = op.infer(*(value.type for value in request.inputs))  # type: ignore[arg-type]  # tensors all
    found: dict[Value, tuple[Node, int]] = {}
    whole: dict[Value, Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if not (isinstance(node.op, TupleGetItem) and node.inputs[0] is request):
            nodes.append(node)
            continue
        value = wanted[node.op.index]
        stack, number = members.get(value, (value, -1))
        if number < 0:
            node.op = TupleGetItem(asked[value])
            nodes.append(node)
            continue
        if stack not in whole:
            b = Builder(graph, nodes).like(node)
            b.phase = node.phase
            whole[stack] = b.emit(TupleGetItem(asked[stack]), request)
        found[node] = (whole[stack], number)
    graph.nodes = nodes
    return found, {gradient: stack for stack, gradient in whole.items() if isinstance(stack, Node)}


@dataclass
class _Chains:
    """Update nodes per cell. of: the cell of a value. nodes: the nodes of each cell, in run order. stage: the number of
    merge nodes before a node. changing: values overwritten by other nodes from the first update on."""

    of: dict[Value, int]
    nodes: list[list[Node]]
    stage: dict[Value, int]
    changing: set[Value]


def _roll(graph: Graph, members: dict[Value, tuple[Node, int]], grads: dict[Value, tuple[Node, int]]) -> None:
    """Replace the update nodes of all cells by loops over the cells: one up to each merge node, one after the last."""
    counts = {len(stack.inputs) for stack, _ in members.values()}
    if len(counts) > 1:
        raise Unrolled
    known = {value: number for value, (_, number) in (members | grads).items()}
    found = grouped(graph, max(counts), known)
    chains = _chains(graph, found, max(counts))
    first, *others = chains.nodes
    if not first and not any(others):
        if grads:
            raise Unrolled  # the gradients are returned one by one
        return
    varying: dict[Value, list[Value]] = {}
    twins: dict[Value, list[Value]] = {}
    for chain in others:
        _match(first, chain, varying, twins, chains, {**members, **grads})
    for meeting in found.meetings.values():
        if twins.get(meeting.parts[0]) != meeting.parts[1:]:
            raise Unrolled
    stages = _Stages(graph, chains, varying, lambda b, values: _stack(b, values, members, grads))
    stages.keep([meeting.parts[0] for meeting in found.meetings.values()])
    nodes: list[Node] = []
    gone = {node for chain in chains.nodes for node in chain}
    last = {chains.stage[node]: node for node in graph.nodes if node in gone}
    ends = {node: stage for stage, node in last.items()}
    for node in graph.nodes:
        if node in found.meetings:
            meeting = found.meetings[node]
            meeting.over_stack(Builder(graph, nodes).like(node), stages.stacked[meeting.parts[0]])
        if node not in gone:
            nodes.append(node)
        elif node in ends:
            stages.emit(nodes, ends[node])
    graph.nodes = without_unread(nodes, graph.results, {value for node in gone for value in node.inputs})
    whole = {value: stack for value, (stack, _) in grads.items()}
    whole |= {node: stages.loops[chains.stage[node]] for node in gone}
    for node in graph.nodes:
        if isinstance(node.op, Depend):
            node.inputs = list(dict.fromkeys([whole.get(value, value) for value in node.inputs]))
    if any(value in whole for value in (*graph.results, *(value for node in graph.nodes for value in node.inputs))):
        raise Unrolled


def _chains(graph: Graph, found: Grouped, cells: int) -> _Chains:
    chains = _Chains(found.cell_of, [[] for _ in range(cells)], {}, set())
    stage = 0
    for node in graph.nodes:
        waits = isinstance(node.op, Depend) and node not in found.cell_of
        stage += node in found.meetings or (waits and any(value in found.cell_of for value in node.inputs))
        cell = found.cell_of.get(node)
        if cell is not None:
            chains.nodes[cell].append(node)
            chains.stage[node] = stage
        elif chains.stage:
            chains.changing.update(node.inputs[i] for i in node.op.mutates)
    return chains


class _Stages:
    """Builder of the update loops. of_stage: the nodes of each cell, by stage. stacked: by a result of the first cell
    that another stage reads, the stacked results of all cells. loops: the loops made so far, by stage."""

    def __init__(
        self, graph: Graph, chains: _Chains, varying: dict[Value, list[Value]],
        stack: Callable[[Builder, list[Value]], Value],
    ) -> None:  # fmt: skip
        self.graph, self.varying, self.stack = graph, varying, stack
        self.cells = len(chains.nodes)
        self.stage = chains.stage
        self.of_stage: dict[int, list[list[Node]]] = {}
        for number, chain in enumerate(chains.nodes):
            for node in chain:
                stage = chains.stage[node]
                if stage not in self.of_stage:
                    self.of_stage[stage] = [[] for _ in range(self.cells)]
                self.of_stage[stage][number].append(node)
        self.stacked: dict[Value, Value] = {}
        self.results: dict[int, list[Node]] = {}
        self.loops: dict[int, Node] = {}
        later = (v for node in chains.nodes[0] for v in node.inputs if self.stage.get(v, 1 << 30) < self.stage[node])
        self.keep(later)

    def keep(self, values: Iterable[Value]) -> None:
        """Make values of the first cell that another stage reads results of their loop. Raise Unrolled otherwise."""
        for value in values:
            if not isinstance(value, Node) or not isinstance(value.type, TensorType) or value.op.mutates:
                raise Unrolled
            wanted = self.results.setdefault(self.stage[value], [])
            if value not in wanted:
                wanted.append(value)

    def emit(self, nodes: list[Node], stage: int) -> None:
        """Append the loop of a stage, and the nodes that take its results. Raise Unrolled if nodes of cells differ."""
        first, *others = self.of_stage[stage]
        if any(len(chain) != len(first) for chain in others):
            raise Unrolled
        _refuse_crossing(self.graph, self.of_stage[stage])
        entries: dict[Value, Value] = {}
        scanned: list[Value] = []
        b = Builder(self.graph, nodes).like(first[-1])
        b.phase = first[-1].phase
        read = {value: None for node in first for value in node.inputs}
        for value in [value for value in self.varying if value in read]:
            entries[value] = Value(value.type, value.name)
            scanned.append(self.stack(b, [value, *self.varying[value]]))
        for value in read:
            if self.stage.get(value, stage) < stage:
                entries[value] = Value(value.type, value.name)
                scanned.append(self.stacked[value])
        for node in first:
            node.inputs = [entries.get(value, value) for value in node.inputs]
        wanted = self.results.get(stage, [])
        taken = {each.name for each in self.graph.graphs()} | {part.name for node in nodes for part in node.regions}
        name = next(name for i in itertools.count(1) if (name := f"update_{i}_body") not in taken)
        body, captured = outlined(name, first, wanted, list(entries.values()))
        op = Scan(scanned=len(scanned), stacked=len(wanted), turns=self.cells)
        loop = self.loops[stage] = emit_regions(b, op, [*scanned, *captured], [body])
        for index, value in enumerate(wanted):
            self.stacked[value] = b.emit(TupleGetItem(index), loop, name=value.name)


def _refuse_crossing(graph: Graph, chains: Sequence[Sequence[Node]]) -> None:
    """Raise Unrolled if a node between those of the cells overwrites a value they read, or reads a value they
    overwrite."""
    own = {node for chain in chains for node in chain}
    places = [i for i, node in enumerate(graph.nodes) if node in own]
    read = {value for node in own for value in node.inputs}
    written = {node.inputs[i] for node in own for i in node.op.mutates}
    for node in graph.nodes[places[0] : places[-1]]:
        if node in own or isinstance(node.op, Depend | MakeStack):
            continue
        stacks = [value for value in node.inputs if isinstance(value, Node) and isinstance(value.op, MakeStack)]
        if any(node.inputs[i] in read for i in node.op.mutates):
            raise Unrolled
        if not written.isdisjoint([*node.inputs, *(value for stack in stacks for value in stack.inputs)]):
            raise Unrolled


def _match(
    first: Sequence[Node], chain: Sequence[Node], varying: dict[Value, list[Value]], twins: dict[Value, list[Value]],
    chains: _Chains, stacked: dict[Value, tuple[Node, int]],
) -> None:  # fmt: skip
    """Match the nodes of another cell with those of the first one. Add operands that differ per cell to `varying` and
    the matching nodes to `twins`. Raise Unrolled if the nodes do not match."""
    if len(first) != len(chain):
        raise Unrolled
    same: dict[Value, Value] = {}
    stage = chains.stage
    for one, other in zip(first, chain, strict=True):
        if one.op is not other.op and one.op != other.op:
            raise Unrolled
        if one.type is not other.type and one.type != other.type:
            raise Unrolled
        if one.phase != other.phase or len(one.inputs) != len(other.inputs) or stage[one] != stage[other]:
            raise Unrolled
        for value, counterpart in zip(one.inputs, other.inputs, strict=True):
            known = same.get(value)
            if known is not None:
                if known is not counterpart:
                    raise Unrolled
                continue
            if value is counterpart and value not in chains.of:
                same[value] = value
                continue
            if isinstance(value, Constant) or isinstance(counterpart, Constant):
                if not is_alike(value, counterpart, ()):
                    raise Unrolled
                continue
            same[value] = counterpart
            is_of_cell = value in chains.of or counterpart in chains.of
            if not is_of_cell and is_alike(value, counterpart, chains.changing):
                continue
            if value.type != counterpart.type or not (isinstance(value, Parameter) or value in stacked):
                raise Unrolled
            varying.setdefault(value, []).append(counterpart)
        same[one] = other
        twins.setdefault(one, []).append(other)


def _stack(
    b: Builder, values: list[Value], members: dict[Value, tuple[Node, int]], grads: dict[Value, tuple[Node, int]]
) -> Value:
    """Return the stack of one value per cell: a known one, or a new one. Raise Unrolled if the values are mixed up."""
    for known in (members, grads):
        if values[0] in known:
            stack = known[values[0]][0]
            if any(known.get(value) != (stack, number) for number, value in enumerate(values)):
                raise Unrolled
            return stack
    return b.emit(MakeStack(), *values, name=values[0].name)


def _order_parameters(graph: Graph) -> None:
    """Move the parameters of each stack next to its first one, so that texts can show them as one."""
    behind: dict[Value, list[Value]] = {}
    moved: set[Value] = set()
    for node in graph.nodes:
        apart = len(set(node.inputs)) == len(node.inputs) and not moved.intersection(node.inputs)
        if isinstance(node.op, MakeStack) and apart:
            behind[node.inputs[0]] = node.inputs[1:]
            moved.update(node.inputs)
    found: list[Parameter] = []
    for parameter in graph.parameters:
        if parameter not in moved or parameter in behind:
            found += [parameter, *(value for value in behind.get(parameter, ()) if isinstance(value, Parameter))]
    graph.parameters = found
