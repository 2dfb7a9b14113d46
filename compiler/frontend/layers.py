"""Makes one graph, which a loop runs, of equal cells that a `for` statement calls one behind the other.

A turn is traced with the first cell. Where that reads a parameter, every turn reads the one that stands in its cell in
the same place: these are put on a stack, which the loop scans. Cells are folded where their class asks for it
(`lazy_inline`), they differ in the values of their parameters alone, and nothing that a turn does depends on which it
is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mspc.api.nn.cell import Cell
from mspc.compiler.frontend.alike_cells import Counterparts
from mspc.compiler.frontend.expressions import assign
from mspc.compiler.frontend.loops import Turns, run_loop
from mspc.compiler.frontend.program_state import Beginning
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.turns import UNROLLED, tried
from mspc.compiler.frontend.values import Frame
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Parameter, Value
from mspc.ops.control.loops import For, MakeStack
from mspc.ops.control.regions import with_effects

Block = Callable[[Tracer, Frame, list[ast.stmt]], Any]


def asks_for_one_graph(items: Sequence[Any]) -> bool:
    """Whether these are several cells of one class whose constructor is marked with `lazy_inline`."""
    if len(items) < 2 or not isinstance(items[0], Cell) or any(type(item) is not type(items[0]) for item in items):
        return False
    return getattr(type(items[0]).__init__, "is_lazily_inlined", False)


def folded(tracer: Tracer, frame: Frame, node: ast.For, cells: Sequence[Cell], block: Block) -> tuple[Any] | None:
    """How the statement ends, with its turns as one loop; None, and nothing is traced, where they must be inlined."""
    counterparts = Counterparts(cells)
    if not counterparts.are_alike:
        return None
    beginning = Beginning(tracer, frame)
    found = tried(tracer, beginning, lambda: _loop(tracer, frame, node, cells, counterparts, block))
    return None if found is UNROLLED else (found,)


def _loop(
    tracer: Tracer, frame: Frame, node: ast.For, cells: Sequence[Cell], counterparts: Counterparts, block: Block
) -> Any:
    def body(turn: Value | None) -> Any:
        tracer.at(frame, node.target)
        assign(tracer, frame, node.target, cells[0])
        return block(tracer, frame, node.body)

    found = run_loop(tracer, frame, Turns(node, node.iter, None, body, len(cells), None))
    made = next(each for each in reversed(tracer.builder.nodes) if isinstance(each.op, For))
    _scan_parameters(tracer, made, counterparts)
    for key, members in counterparts.cells.items():
        if key in tracer.cells:
            tracer.cells |= {id(cell): cell for cell in members}
    assign(tracer, frame, node.target, cells[-1])
    return found


def _scan_parameters(tracer: Tracer, loop: Node, counterparts: Counterparts) -> None:
    """Let the loop scan stacks of the parameters that it captures of the first cell."""
    op, [body] = loop.op, loop.regions
    assert isinstance(op, For)
    if op.mutates:
        raise MspcError(f"{op.name}: a turn overwrites a parameter")  # each has its own; tried() inlines the cells
    behind = op.first + op.carried
    stacks: list[tuple[Value, Parameter]] = []
    captured: list[tuple[Value, Parameter]] = []
    at = tracer.builder.nodes.index(loop)
    for value, parameter in zip(loop.inputs[behind:], body.parameters[op.leading + op.carried :], strict=True):
        name = getattr(value, "name", "")
        members = counterparts.parameters.get(id(tracer.parameters.get(name)))
        if members is None:
            captured.append((value, parameter))
            continue
        weights = [tracer.weight(member) for member in members]
        stack = Node(MakeStack(), weights, MakeStack().infer(*(w.type for w in weights)), value.name, "", loop.scope,
                     loop.frames, loop.phase)  # fmt: skip
        tracer.builder.nodes.insert(at, stack)
        at += 1
        stacks.append((stack, parameter))
    loop.inputs[behind:] = [value for value, _ in (*stacks, *captured)]
    body.parameters[op.leading + op.carried :] = [parameter for _, parameter in (*stacks, *captured)]
    scanning = with_effects(replace(op, scanned=len(stacks)), loop.inputs, loop.regions)
    loop.op = scanning  # type: ignore[assignment]  # fields, see RegionOp
    scanning.results_of(loop.regions, [value.type for value in loop.inputs])
