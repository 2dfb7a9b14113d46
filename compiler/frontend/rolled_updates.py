"""Behind cells that became one graph: gradients are asked for whole stacks of parameters, and what is then done for the
parameters of every cell alike, as an optimizer does, becomes one loop over the cells.

Input:  `%1 = MakeStack(%w0, %w1)` that a loop scans; `%3 = Gradient(%2, %w0, %w1)`, `%4 = TupleGetItem(%3) {index: 0}`,
        `%5 = Adam(%w0, .., %4)`, and the same for `%w1`
Output: `%3 = Gradient(%2, %1)`, `%4 = TupleGetItem(%3) {index: 0}`, a stack, and `%5 = Scan(%1, .., %4)` whose body is
        `Adam` of one cell's parameters
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mspc.compiler.frontend.meetings import Grouped, grouped, is_alike, without_unread
from mspc.compiler.frontend.values import Unrolled
from mspc.ir.builder import Builder
from mspc.ir.graph import STAGE, Constant, Graph, Node, Parameter, Value, asks_for_host
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.control.regions import MakeStack, Scan, emit_regions, outlined
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
    if asks_for_host(graph):
        raise Unrolled  # a loop over the cells would have all of what lives on the host on the device at once
    members: dict[Value, tuple[Node, int]] = {w: (stack, i) for stack in stacks for i, w in enumerate(stack.inputs)}
    if len(members) != sum(len(stack.inputs) for stack in stacks):
        raise Unrolled  # gradients are asked for one stack
    requests = [node for node in graph.nodes if isinstance(node.op, Gradient)]
    if len(requests) > 1:
        raise Unrolled
    grads: dict[Value, tuple[Node, int]] = {}
    stack_of: dict[Node, Node] = {}
    for request in requests:
        grads, stack_of = _of_stacks(graph, request, stacks, members)
    for group in _groups(stacks):
        own = {weight: place for weight, place in members.items() if place[0] in group}
        _roll(graph, own, {value: place for value, place in grads.items() if stack_of[place[0]] in group})
    _order_parameters(graph)
    used = [value for node in graph.nodes if not isinstance(node.op, MakeStack) for value in node.inputs]
    if any(value in members for value in (*used, *graph.results)):
        raise Unrolled


def _of_stacks(
    graph: Graph, request: Node, stacks: Sequence[Node], members: dict[Value, tuple[Node, int]]
) -> tuple[dict[Value, tuple[Node, int]], dict[Node, Node]]:
    """Let a request ask for stacks in the place of their members. Returns what read the gradient of a member, with the
    node that is the gradient of its stack now, and its number; and the stacks, by these nodes."""
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


def _groups(stacks: Sequence[Node]) -> list[set[Node]]:
    """Stacks whose entries belong to the same cells: all, or where stages have loops of their own those of one."""
    found: dict[object, set[Node]] = {}
    for stack in stacks:
        key = None if STAGE not in stack.attrs else (stack.attrs[STAGE], len(stack.inputs))
        found.setdefault(key, set()).add(stack)
    return list(found.values())


@dataclass
class _Chains:
    """What is done for the parameters of every cell. of: the cell of a value. nodes: of every cell, in run order.
    stage: of a node, how many meetings stand ahead of it. changing: what other nodes overwrite from the first one on.
    """

    of: dict[Value, int]
    nodes: list[list[Node]]
    stage: dict[Value, int]
    changing: set[Value]


def _roll(graph: Graph, members: dict[Value, tuple[Node, int]], grads: dict[Value, tuple[Node, int]]) -> None:
    """Put a loop over the cells in the place of what is done for each up to a meeting of all, and from there on."""
    turns = {len(stack.inputs) for stack, _ in members.values()}
    if len(turns) > 1:
        raise Unrolled
    known = {value: number for value, (_, number) in (members | grads).items()}
    found = grouped(graph, max(turns), known)
    chains = _chains(graph, found, max(turns))
    first, *others = chains.nodes
    if not first and not any(others):
        if grads:
            raise Unrolled  # they are returned one by one
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
            meeting.over_stack(Builder(graph, nodes).like(node), stages.kept[meeting.parts[0]])
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
    """Makes the loops. first: what is done for the first cell, by stages. kept: of its results that are read in another
    stage, where those of all cells lie, one behind the other. loops: those that were made."""

    def __init__(
        self, graph: Graph, chains: _Chains, varying: dict[Value, list[Value]],
        stack: Callable[[Builder, list[Value]], Value],
    ) -> None:  # fmt: skip
        self.graph, self.varying, self.stack = graph, varying, stack
        self.turns = len(chains.nodes)
        self.stage = chains.stage
        self.of_stage: dict[int, list[list[Node]]] = {}
        for number, chain in enumerate(chains.nodes):
            for node in chain:
                stage = chains.stage[node]
                if stage not in self.of_stage:
                    self.of_stage[stage] = [[] for _ in range(self.turns)]
                self.of_stage[stage][number].append(node)
        self.kept: dict[Value, Value] = {}
        self.wanted: dict[int, list[Node]] = {}
        self.loops: dict[int, Node] = {}
        later = (v for node in chains.nodes[0] for v in node.inputs if self.stage.get(v, 1 << 30) < self.stage[node])
        self.keep(later)

    def keep(self, values: Iterable[Value]) -> None:
        """Let what is read of the first cell in another stage be a result of its loop. Raises Unrolled."""
        for value in values:
            if not isinstance(value, Node) or not isinstance(value.type, TensorType) or value.op.mutates:
                raise Unrolled
            wanted = self.wanted.setdefault(self.stage[value], [])
            if value not in wanted:
                wanted.append(value)

    def emit(self, nodes: list[Node], stage: int) -> None:
        """Append the loop of a stage, and its results. Raises Unrolled."""
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
                scanned.append(self.kept[value])
        for node in first:
            node.inputs = [entries.get(value, value) for value in node.inputs]
        wanted = self.wanted.get(stage, [])
        body, captured = outlined(_free_name(self.graph, nodes), first, wanted, list(entries.values()))
        op = Scan(scanned=len(scanned), stacked=len(wanted), turns=self.turns)
        loop = self.loops[stage] = emit_regions(b, op, [*scanned, *captured], [body])
        for index, value in enumerate(wanted):
            self.kept[value] = b.emit(TupleGetItem(index), loop, name=value.name)


def _refuse_crossing(graph: Graph, chains: Sequence[Sequence[Node]]) -> None:
    """Raises Unrolled where a node among those of the cells overwrites what they read, or reads what they overwrite."""
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
    """Note what the first cell's nodes read where the nodes of another one read something else, and its nodes where
    theirs stand."""
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


def _free_name(graph: Graph, nodes: Sequence[Node]) -> str:
    taken = {each.name for each in graph.graphs()} | {region.name for node in nodes for region in node.regions}
    return next(f"update_{i}_body" for i in range(1, len(taken) + 2) if f"update_{i}_body" not in taken)
