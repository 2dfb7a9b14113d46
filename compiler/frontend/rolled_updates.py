"""Behind cells that became one graph: gradients are asked for whole stacks of parameters, and what is then done for the
parameters of every cell alike, as an optimizer does, becomes one loop over the cells.

Input:  `%1 = MakeStack(%w0, %w1)` that a loop scans; `%3 = Gradient(%2, %w0, %w1)`, `%4 = TupleGetItem(%3) {index: 0}`,
        `%5 = Adam(%w0, .., %4)`, and the same for `%w1`
Output: `%3 = Gradient(%2, %1)`, `%4 = TupleGetItem(%3) {index: 0}`, a stack, and `%5 = Scan(%1, .., %4)` whose body is
        `Adam` of one cell's parameters
"""

from __future__ import annotations

from collections.abc import Sequence

from mspc.compiler.frontend.values import Unrolled
from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.loops import MakeStack, Scan
from mspc.ops.control.outlining import outlined
from mspc.ops.control.regions import emit_regions
from mspc.ops.control.structural import Depend, Gradient, TupleGetItem


def roll_updates(graph: Graph) -> None:
    """Ask for gradients of stacks, and let loops do what is done with them.

    Raises:
        Unrolled: what is done for the parameters of one cell differs from what is done for those of another, or
        something else reads a single parameter: the cells have to be inlined.
    """
    stacks = [node for node in graph.nodes if isinstance(node.op, MakeStack)]
    if not stacks:
        return
    members: dict[Value, tuple[Node, int]] = {w: (stack, i) for stack in stacks for i, w in enumerate(stack.inputs)}
    requests = [node for node in graph.nodes if isinstance(node.op, Gradient)]
    if len(requests) > 1:
        raise Unrolled
    grads: dict[Value, tuple[Node, int]] = {}
    for request in requests:
        grads = _of_stacks(graph, request, stacks, members)
    _roll(graph, members, grads)
    _order_parameters(graph)
    used = [value for node in graph.nodes if not isinstance(node.op, MakeStack) for value in node.inputs]
    if any(value in members for value in (*used, *graph.results)):
        raise Unrolled


def _of_stacks(
    graph: Graph, request: Node, stacks: Sequence[Node], members: dict[Value, tuple[Node, int]]
) -> dict[Value, tuple[Node, int]]:
    """Let a request ask for stacks in the place of their members: what read the gradient of a member, with the node
    that is the gradient of its stack now, and its number."""
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
    return found


@dataclass
class _Chains:
    """What is done for the parameters of every cell. of: the cell of a node. nodes: of every cell, in run order."""

    of: dict[Value, int]
    nodes: list[list[Node]]


def _roll(
    graph: Graph, members: dict[Value, tuple[Node, int]], grads: dict[Value, tuple[Node, int]]
) -> None:
    """Put a loop over the cells in the place of what is done for each."""
    chains = _chains(graph, members, grads)
    first, *others = chains.nodes
    if not first and not any(others):
        if grads:
            raise Unrolled  # they are returned one by one
        return
    varying: dict[Value, list[Value]] = {}
    for chain in others:
        _match(first, chain, varying, chains, {**members, **grads})
    entries: list[Value] = []
    scanned: list[Value] = []
    b = Builder(graph, [])
    b.like(first[-1]).phase = first[-1].phase
    for value, counterparts in varying.items():
        entries.append(Value(value.type, value.name))
        scanned.append(_stack(b, [value, *counterparts], members, grads))
    stand_ins = dict(zip(varying, entries, strict=True))
    for node in first:
        node.inputs = [stand_ins.get(value, value) for value in node.inputs]
    body, captured = outlined(_free_name(graph), first, [], entries)
    loop = emit_regions(b, Scan(scanned=len(scanned), turns=len(chains.nodes)), [*scanned, *captured], [body])
    gone = {node for chain in chains.nodes for node in chain}
    at = max(graph.nodes.index(node) for node in chains.nodes[-1])
    graph.nodes[at + 1 : at + 1] = b.nodes
    graph.nodes = [node for node in graph.nodes if node not in gone]
    for node in graph.nodes:
        if isinstance(node.op, Depend) and any(value in gone for value in node.inputs):
            kept = [value for value in node.inputs if value not in gone]
            if node.inputs[0] in gone:
                raise Unrolled
            node.inputs = [*kept, loop]
        elif node is not loop and any(value in gone for value in node.inputs):
            raise Unrolled
    if any(value in gone for value in graph.results):
        raise Unrolled


def _chains(
    graph: Graph, members: dict[Value, tuple[Node, int]], grads: dict[Value, tuple[Node, int]]
) -> _Chains:
    turns = {len(stack.inputs) for stack, _ in members.values()}
    if len(turns) > 1:
        raise Unrolled
    found = _Chains({value: number for value, (_, number) in (members | grads).items()}, [[] for _ in range(*turns)])
    for node in graph.nodes:
        if isinstance(node.op, MakeStack | Depend):
            continue
        cells = {found.of[value] for value in node.inputs if value in found.of}
        if len(cells) > 1:
            raise Unrolled
        for cell in cells:
            found.of[node] = cell
            found.nodes[cell].append(node)
    return found


def _match(
    first: Sequence[Node], chain: Sequence[Node], varying: dict[Value, list[Value]], chains: _Chains,
    stacked: dict[Value, tuple[Node, int]],
) -> None:
    """Note what the first cell's nodes read where the nodes of another one read something else."""
    if len(first) != len(chain):
        raise Unrolled
    same: dict[Value, Value] = {}
    for one, other in zip(first, chain, strict=True):
        if (one.op, one.phase, one.type, len(one.inputs)) != (other.op, other.phase, other.type, len(other.inputs)):
            raise Unrolled
        for value, counterpart in zip(one.inputs, other.inputs, strict=True):
            if value in same:
                if same[value] is not counterpart:
                    raise Unrolled
                continue
            if isinstance(value, Constant) or isinstance(counterpart, Constant):
                _same_constant(value, counterpart)
                continue
            same[value] = counterpart
            if value is counterpart and value not in chains.of:
                continue
            if value.type != counterpart.type or not (isinstance(value, Parameter) or value in stacked):
                raise Unrolled
            varying.setdefault(value, []).append(counterpart)
        same[one] = other


def _same_constant(one: Value, other: Value) -> None:
    if not (isinstance(one, Constant) and isinstance(other, Constant) and one.type == other.type):
        raise Unrolled
    if one.value.tobytes() != other.value.tobytes():
        raise Unrolled


def _stack(
    b: Builder, values: list[Value], members: dict[Value, tuple[Node, int]], grads: dict[Value, tuple[Node, int]]
) -> Value:
    """The stack of what the cells have in one place."""
    for known in (members, grads):
        if values[0] in known:
            stack = known[values[0]][0]
            if any(known.get(value) != (stack, number) for number, value in enumerate(values)):
                raise Unrolled
            return stack
    return b.emit(MakeStack(), *values, name=values[0].name)


def _order_parameters(graph: Graph) -> None:
    """Put the parameters of a stack one behind the other, where the first of them is: texts then show them as one."""
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


def _free_name(graph: Graph) -> str:
    taken = {each.name for each in graph.graphs()}
    return next(f"update_{i}_body" for i in range(1, len(taken) + 2) if f"update_{i}_body" not in taken)
