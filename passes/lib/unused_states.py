"""Optimizers' states that a run does not need are read and stored nowhere.

Input: a rank's graph as it runs, and the numbers that its scalar Parameters hold, which only a run knows. Output: the
same graph with updates that leave out the states which those numbers make meaningless, as a momentum of 0 makes SGD's.
The run may use it as long as the numbers stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from mspc.analysis.aliasing import updated_parameters
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.fused.body import line_of, read_line
from mspc.ops.fused.updates import FusedUpdate, GroupedUpdate, gradient_index, member_of
from mspc.ops.op import Op
from mspc.ops.optim.optimizer import StatelessBody, Update
from mspc.ops.tensor.reshape import Cast

NumberOf = Callable[[Parameter], float | None]


@dataclass(frozen=True)
class StatelessNode:
    """A node whose members all do without states. scalars: the Parameters whose numbers say so."""

    node: Node
    replacement: StatelessBody
    scalars: Sequence[Parameter]

    def apply(self, node: Node) -> None:
        """Change the node, or one that is a copy of it: it reads the operands that are left."""
        update, members = self._stateless_update(), _members(node)
        op: Op = GroupedUpdate.of(update, len(members)) if isinstance(node.op, GroupedUpdate) else update
        node.op = op
        node.inputs = [member[place] for member in members for place in self.replacement.operands]

    def _stateless_update(self) -> FusedUpdate:
        """Return the replacement as an operator, which widens the gradient first if that is narrower."""
        operands, lines = self.replacement
        update, types = _update_of(self.node), [value.tensor_type for value in _members(self.node)[0]]
        gradient = gradient_index(update)
        written = list(lines)
        if gradient in operands and types[gradient].dtype != types[0].dtype:
            narrow = ("x", operands.index(gradient))
            written = [line_of(Cast(types[0].dtype), [narrow])]
            for step in map(read_line, lines):
                moved = [("t", 0) if p == narrow else (p[0], p[1] + (p[0] == "t")) for p in step.operands]
                written.append(line_of(step.op, moved))
        numbers = tuple(place for place, index in enumerate(operands) if index in update.scalars)
        return FusedUpdate(tuple(written), (len(written) - 1,), numbers)


def stateless_nodes(graph: Graph, number_of: NumberOf) -> list[StatelessNode]:
    """Return the updates that can do without their states. A state must be replicated and no other node's: a checkpoint
    then has its first value. number_of: the present value of a scalar Parameter that no node changes, None if that
    varies."""
    changed = {parameter for parameters in updated_parameters(graph).values() for parameter in parameters}
    uses = Counter(value for node in graph.nodes for value in node.inputs if isinstance(value, Parameter))
    uses.update(value for value in graph.results if isinstance(value, Parameter))
    numbers: dict[Parameter, float | None] = {}

    def number(value: Value) -> float | None:
        if not isinstance(value, Parameter) or value.kind != "parameter" or value in changed:
            return None
        if value not in numbers:
            numbers[value] = number_of(value)
        return numbers[value]

    found: list[StatelessNode] = []
    for node in graph.nodes:
        members = _members(node)
        if not members:
            continue
        update = _update_of(node)
        each = {update.without_states(lambda place, own=own: number(own[place])) for own in members}
        replacement = each.pop()
        if each or replacement is None:
            continue
        left = replacement.operands
        computed = [place for place in left if place in (*update.mutates, *update.scalars)]
        if len({own[place].tensor_type.dtype for own in members for place in computed}) > 1:
            continue  # a half and its rate in Float32: lines of fused operators take no two types
        states = [own[place] for own in members for place in update.mutates if place not in left]
        if all(_is_own(state, uses) for state in states):
            read = {own[place] for own in members for place in update.scalars if place not in left}
            scalars = [value for value in numbers if value in read]
            found.append(StatelessNode(node, replacement, scalars))
    return found


def drop_unused_parameters(graph: Graph) -> None:
    """Parameters of a script that no node reads any more leave the graph."""
    used = {value for node in graph.nodes for value in node.inputs} | set(graph.results)
    graph.parameters = [p for p in graph.parameters if p.kind != "parameter" or p in used]


def _members(node: Node) -> Sequence[Sequence[Value]]:
    if isinstance(node.op, GroupedUpdate):
        return node.op.members(node.inputs)
    return [node.inputs] if isinstance(node.op, Update) else []


def _update_of(node: Node) -> Update:
    """Return the update that all members of a node do."""
    update = member_of(node.op)
    assert update is not None
    return update


def _is_own(state: Value, uses: Counter[Parameter]) -> bool:
    if not isinstance(state, Parameter) or state.kind != "parameter" or uses[state] != 1:
        return False
    return not isinstance(state.layout, Layout) or state.layout.is_replicated
