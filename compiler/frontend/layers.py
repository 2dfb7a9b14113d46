"""Makes one graph, which a loop runs, of equal cells that a `for` statement calls one behind the other.

The statement goes over the cells, over their numbers, or over both: `for layer in self.layers`, `for i in range(n)`
with `self.layers[i]`, `enumerate` and `zip`. A turn is traced with the first cell. Where that reads a parameter, every
turn reads the one that stands in its cell in the same place: these are put on a stack, which the loop scans. Cells are
folded where their class asks for it (`lazy_inline`), they differ in the values of their parameters alone, and nothing
that a turn does depends on which it is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from mspc.api.nn.cell import Cell
from mspc.api.nn.container import CellList
from mspc.compiler.frontend.alike_cells import Counterparts
from mspc.compiler.frontend.expressions import assign
from mspc.compiler.frontend.loops import LoopPlan, run_loop
from mspc.compiler.frontend.program_state import TraceSnapshot
from mspc.compiler.frontend.stages import stage_of
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.turns import UNROLLED, tried
from mspc.compiler.frontend.values import Frame
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import STAGE, Node, Parameter, Value
from mspc.ops.control.regions import For, MakeStack, with_effects

Block = Callable[[Tracer, Frame, list[ast.stmt]], Any]


def asks_for_one_graph(items: Sequence[Any]) -> bool:
    """Whether these are several cells of one class whose constructor is marked with `lazy_inline`."""
    if len(items) < 2 or not isinstance(items[0], Cell) or any(type(item) is not type(items[0]) for item in items):
        return False
    return getattr(type(items[0]).__init__, "is_lazily_inlined", False)


def folded(tracer: Tracer, frame: Frame, node: ast.For, items: Sequence[Any], block: Block) -> tuple[Any] | None:
    """How the statement ends, with its turns as one loop; None, and nothing is traced, where they must be inlined."""
    read = _read_by_turn(tracer, frame, node, items)
    if not any(map(asks_for_one_graph, read or ())):
        return None
    rows = list(zip(*read or (), strict=True))
    runs = [(first, Counterparts(rows[first:last])) for first, last in _runs(tracer, frame.scope, rows)]
    if not all(counterparts.are_alike for _, counterparts in runs):
        return None
    beginning = TraceSnapshot(tracer, frame)
    found = tried(tracer, beginning, lambda: _loops(tracer, frame, node, items, runs, block))
    return None if found is UNROLLED else (found,)


def _runs(tracer: Tracer, scope: str, rows: Sequence[Sequence[Any]]) -> list[tuple[int, int]]:
    """The turns whose cells are of one stage, and one behind the other: (number of the first, of the one behind)."""
    if tracer.stages == 1:
        return [(0, len(rows))]
    stages = [tuple(stage_of(tracer, scope, cell) if isinstance(cell, Cell) else None for cell in row) for row in rows]
    starts = [i for i in range(len(rows)) if i == 0 or stages[i] != stages[i - 1]]
    return list(zip(starts, [*starts[1:], len(rows)], strict=True))


def _loops(
    tracer: Tracer, frame: Frame, node: ast.For, items: Sequence[Any], runs: Sequence[tuple[int, Counterparts]],
    block: Block,
) -> Any:  # fmt: skip
    """A loop for every run of turns; a turn that is a run of its own is inlined."""
    found: Any = None
    for number, (first, counterparts) in enumerate(runs):
        last = runs[number + 1][0] if number + 1 < len(runs) else len(items)
        if last - first > 1:
            found = _loop(tracer, frame, node, items[first:last], counterparts, block)
            continue
        assign(tracer, frame, node.target, items[first])
        found = block(tracer, frame, node.body)
    return found


def _read_by_turn(tracer: Tracer, frame: Frame, node: ast.For, items: Sequence[Any]) -> list[Sequence[Any]] | None:
    """What the turns read in one place each, of which every turn has its own; None where a turn may do more with it."""
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
    """The lists of which a turn reads the element of this number; None where it does something else with it."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    uses = sum(isinstance(node, ast.Name) and node.id == name for node in nodes)
    read = [n for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Name) and n.slice.id == name]
    lists = [_held(tracer, frame, each.value, assigned) for each in read if isinstance(each.ctx, ast.Load)]
    if len(lists) != uses or not all(isinstance(each, CellList | list | tuple) for each in lists):
        return None
    return list({id(each): each for each in lists}.values())


def _held(tracer: Tracer, frame: Frame, node: ast.expr, assigned: set[str]) -> Any:
    """What a name, or attributes of cells, refer to ahead of the loop and in every turn; None for all else."""
    if isinstance(node, ast.Name):
        return None if node.id in assigned else frame.lookup(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    base = _held(tracer, frame, node.value, assigned)
    if not isinstance(base, Cell) or (id(base), node.attr) in tracer.attributes:
        return None
    return getattr(base, node.attr, None)


def _loop(
    tracer: Tracer, frame: Frame, node: ast.For, items: Sequence[Any], counterparts: Counterparts, block: Block
) -> Any:
    def body(turn: Value | None) -> Any:
        tracer.at(frame, node.target)
        assign(tracer, frame, node.target, items[0])
        return block(tracer, frame, node.body)

    with _names_of_all(tracer, counterparts):
        found = run_loop(tracer, frame, LoopPlan(node, node.iter, None, body, len(items), None))
    made = next(each for each in reversed(tracer.builder.nodes) if isinstance(each.op, For))
    stages = {each.attrs.get(STAGE) for each in made.regions[-1].nodes}
    stage = {STAGE: stages.pop()} if tracer.stages > 1 and len(stages) == 1 and stages != {None} else {}
    made.attrs |= stage
    _scan_parameters(tracer, made, counterparts, stage)
    for key, members in counterparts.cells.items():
        if key in tracer.cells:
            tracer.cells |= {id(cell): cell for cell in members}
            for cell in members[1:]:
                tracer.reads.cell(cell)
    assign(tracer, frame, node.target, items[-1])
    return found


@contextmanager
def _names_of_all(tracer: Tracer, counterparts: Counterparts) -> Generator[None]:
    """Let what a turn does with the first cells be of all of them by its scope: `layers-CellList/[0..79]-Layer`, where
    their names count up."""
    from mspc.ir.text.families import name_of_cells  # late: few networks have layers that are one graph

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


def _scan_parameters(tracer: Tracer, loop: Node, counterparts: Counterparts, attrs: dict[str, Any]) -> None:
    """Let the loop scan stacks of the parameters that it captures of the first cell; `attrs` is said of the stacks."""
    op, [body] = loop.op, loop.regions
    assert isinstance(op, For)
    if op.mutates:
        raise MspcError(f"{op.name}: a turn overwrites a parameter")  # each has its own; tried() inlines the cells
    behind = op.first + op.carried
    stacks: list[tuple[Value, Parameter]] = []
    captured: list[tuple[Value, Parameter]] = []
    nodes = tracer.builder.nodes
    at = nodes.index(loop)
    for value, parameter in zip(loop.inputs[behind:], body.parameters[op.leading + op.carried :], strict=True):
        name = getattr(value, "name", "")
        members = counterparts.parameters.get(id(tracer.parameters.get(name)))
        if members is None:
            captured.append((value, parameter))
            continue
        weights: list[Value] = [tracer.weight(member) for member in members]
        stack = next((n for n in nodes[:at] if isinstance(n.op, MakeStack) and n.inputs == weights), None)
        if stack is None:  # else another loop scans them: gradients are asked for one stack
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
