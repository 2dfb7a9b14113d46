"""Stages of a network: boundaries, parameters that several stages read, and a graph for each chunk."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple

from mspc.analysis.cost.nodes import work_of
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import STAGE, Constant, Graph, Node, Parameter, Value, copied_node, free_name, mark_stages
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.control.regions import MakeStack, Scan, body_of, with_effects
from mspc.ops.control.structural import Depend, TupleGetItem
from mspc.ops.math.arithmetic import AddN
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Cast
from mspc.passes.base import live_values
from mspc.passes.lib.placement import readers_of
from mspc.passes.lib.ranks import local_type
from mspc.passes.lib.schedule_tables import ScheduleTable
from mspc.passes.lib.schedules import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action
from mspc.passes.lib.stage_placement import StagePlacement


def in_order(graph: Graph) -> None:
    """Sort a graph's nodes so that each comes after its operands, and otherwise stays at its place."""
    own = set(graph.nodes)
    done: set[Value] = set()
    waiting: dict[Value, list[Node]] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        stack = [node]
        while stack:
            each = stack.pop()
            missing = next((value for value in each.inputs if value in own and value not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(each)
                continue
            nodes.append(each)
            done.add(each)
            stack.extend(reversed(waiting.pop(each, ())))
    graph.nodes = nodes


# Values cross stages at their smallest: if stage 0 has `%3 = ReLU(%2)` sharded over 4 ranks and `%4 = AllGather(%3)`,
# which only stage 1 reads, the AllGather moves to stage 1, so that every rank sends its slice; so do all operators of
# one tensor that enlarge it and belong to no cell with a stage. If stage 0 has `%9 = AddN(%5, %7, %8)`, a gradient with
# %7 and %8 of stage 1, stage 1 gets `%10 = AddN(%7, %8)`, and stage 0 `AddN(%5, %10)`; also if %8 is of stage 2 and
# stage 1 reads it anyway, as gradients along residuals.


FROM = "stage_from"
"""Attribute: which rule has given a node its stage."""
_ADDED = "the one whose gradients it adds up, so that their sum alone is sent"


def cross_borders(body: Graph, stages: dict[Value, int]) -> None:
    """Give operators that enlarge tensors to the stages that read them, and sums of gradients to those that send
    them."""
    _add_up(body, stages)
    readers = readers_of(body.nodes)
    kept = set(body.results)
    for node in reversed(body.nodes):
        if FROM not in node.attrs or node in kept or node.op.mutates or node not in stages:
            continue
        own = {stages[reader] for reader in readers.get(node, ()) if reader in stages}
        later = node.phase != "backward"
        nearest = (min if later else max)(own, default=stages[node])
        is_behind = nearest > stages[node] if later else nearest < stages[node]
        read = [value for value in node.inputs if not isinstance(value, Constant)]
        if is_behind and len(read) == 1 and 0 < _slice_bytes(read[0]) < _slice_bytes(node):
            node.attrs[STAGE] = stages[node] = nearest
            node.attrs[FROM] = "who reads it, since it is larger than what it is made of"


def _add_up(body: Graph, stages: dict[Value, int]) -> None:
    """Let a stage add up its terms of a gradient before it hands them on."""
    readers: dict[Value, set[int]] = {}
    for node in body.nodes:
        for value in node.inputs if node in stages and not isinstance(node.op, AddN) else ():
            readers.setdefault(value, set()).add(stages[node])
    nodes: list[Node] = []
    for node in body.nodes:
        if isinstance(node.op, AddN) and node.phase == "backward" and node in stages:
            own = stages[node]
            for stage in sorted({stages[v] for v in node.inputs if stages.get(v, own) > own}, reverse=True):
                terms = [  # its own, and those of later stages that it reads
                    value for value in node.inputs
                    if (made_in := stages.get(value, -1)) == stage
                    or (made_in > stage and stage in readers.get(value, ()))
                ]  # fmt: skip
                if len(terms) == len(node.inputs):
                    node.attrs[STAGE] = stages[node] = stage
                    node.attrs[FROM] = _ADDED
                elif len(terms) > 1:
                    nodes.append(_sum_of(node, terms, stage, stages))
        nodes.append(node)
    body.nodes = nodes


def _sum_of(node: Node, terms: list[Value], stage: int, stages: dict[Value, int]) -> Node:
    """Return a sum of some terms of `node`, which reads it in place of the first."""
    made = copied_node(node, terms)
    made.attrs[STAGE] = stages[made] = stage
    made.attrs[FROM] = _ADDED
    first = next(k for k, value in enumerate(node.inputs) if value in terms)
    kept = [k for k, value in enumerate(node.inputs) if k == first or value not in terms]
    if node.in_layouts is not None:  # they are one layout: terms of a sum are laid out alike
        made.in_layouts = node.in_layouts[: len(terms)]
        node.in_layouts = node.in_layouts[: len(kept)]
    node.inputs = [made if k == first else node.inputs[k] for k in kept]
    return made


def _slice_bytes(value: Value) -> int:
    return local_type(value.type, value).nbytes if isinstance(value.type, TensorType) else 0


# Operators of a cell's parameters alone could run in the first of a stage's chunks, but a parameter that micro-batches
# change must be read and changed in the same one: there micro-batches pass in their order.


def near_their_readers(
    body: Graph, forward: Sequence[Node], found: dict[Value, int], placement: StagePlacement, errors: list[MspcError]
) -> None:  # fmt: skip
    """Move operators that read nothing of a chunk to the latest chunk of their stage that is not after their readers,
    and to that of an operator which changes their operands. found: the chunks of operators."""
    readers = readers_of(forward)
    movable = {node for node in forward if node in found and not any(value in found for value in node.inputs)}
    for node in reversed(forward):
        if node in movable:
            nearest = min((found[each] for each in readers.get(node, ()) if each in found), default=found[node])
            stage = placement.stage(found[node])
            own = [each for each in range(found[node], nearest + 1) if placement.stage(each) == stage]
            found[node] = max(own, default=found[node])
    for parameter in body.parameters:
        mine = [node for node in readers.get(parameter, ()) if node in found]
        changing = [node for node in mine if any(node.inputs[index] is parameter for index in node.op.mutates)]
        if changing:
            _join_readers(parameter, changing[0], mine, movable, found, placement, errors)


def check_order(body: Graph, found: Mapping[Value, int], table: ScheduleTable, errors: list[MspcError]) -> None:
    """Note if a table runs micro-batches out of order through a chunk that changes a parameter, as a moving average: it
    would go through other values than on one device. found: the chunks of operators."""
    changing: dict[int, tuple[Node, Parameter]] = {}
    for node in body.nodes:
        for value in (node.inputs[index] for index in node.op.mutates):
            if isinstance(value, Parameter) and node in found:
                changing.setdefault(found[node], (node, value))
    for entries, places in zip(table.schedule.entries, table.lines, strict=True):
        last: dict[int, Action] = {}
        for action, place in zip(entries, places, strict=True):
            if action.kind != FORWARD or action.chunk not in changing:
                continue
            before = last.setdefault(action.chunk, action)
            if action.micro_batch < before.micro_batch:
                node, parameter = changing[action.chunk]
                errors.append(MspcError(
                    f"{action} comes after {before}, and {node.label} changes {parameter.name} in every "
                    "micro-batch, so that their order decides its value",
                    place, [f"run the forwards of chunk {action.chunk} in the order of the micro-batches"],
                    kind=ValueError,
                ))  # fmt: skip
                break
            last[action.chunk] = action


def _join_readers(
    parameter: Parameter, changing: Node, mine: Sequence[Node], movable: set[Node], found: dict[Value, int],
    placement: StagePlacement, errors: list[MspcError],
) -> None:  # fmt: skip
    """Bring the readers of a parameter into the chunk that changes it."""
    fixed = [node for node in mine if node not in movable]
    chunk = found[changing] if changing in fixed or not fixed else found[fixed[0]]
    for node in mine:
        if node in movable and placement.stage(chunk) == placement.stage(found[node]):
            found[node] = chunk
    apart = next((node for node in mine if found[node] != chunk), None)
    if apart is not None:
        errors.append(apart.error(
            f"{apart.label} of stage {placement.stage(found[apart])} reads {parameter.name}, which micro-batches "
            f"change on stage {placement.stage(chunk)}",
            ["put both into one stage: a micro-batch would have to wait for the one before to come back"],
            ValueError,
        ))  # fmt: skip


# A stage reads a parameter if one of its own operators needs it, directly or through values of no stage. All stages
# that read it must update it. So the moments of a weight are updated on its stage alone, and a loss scale, which every
# stage reads, on all of them, though the overflow that changes it is computed on one.


Stages = frozenset[int]


def updated_where_read(graph: Graph, of: Mapping[Node, Stages], loop: Node | None, stages: int) -> dict[Value, Stages]:
    """Return the stages of parameters that are updated on fewer stages than read them; none if that is all stages. of:
    the stages of the operators outside of micro-batches, none for those that every stage can compute."""
    everyone = frozenset(range(stages))
    reading = _reading_stages(graph, of, loop, everyone)
    found: dict[Value, Stages] = {}
    for value, where in _updating_stages(graph, of, everyone).items():
        both = where | reading.get(value, Stages())
        if both != where:
            found[value] = Stages() if both == everyone else both
    return found


def updated_parameters(node: Node) -> list[Parameter]:
    """Return the parameters that a node overwrites, those of stacks, too."""
    found: list[Parameter] = []
    for index in node.op.mutates:
        value = node.inputs[index]
        parts = value.inputs if isinstance(value, Node) and isinstance(value.op, MakeStack) else [value]
        found += [part for part in parts if isinstance(part, Parameter)]
    return found


def place_parameters(
    graph: Graph, of: Mapping[Node, Stages], known: Mapping[Value, Stages], loop: Node | None, stages: int
) -> None:  # fmt: skip
    """Note the stages of parameters that not all stages hold: those that read or update them. known: of those that
    micro-batches read."""
    everyone = frozenset(range(stages))
    reading, updating = _reading_stages(graph, of, loop, everyone), _updating_stages(graph, of, everyone)
    for parameter in graph.parameters:
        if parameter.kind != "parameter":
            continue
        found = known.get(parameter, Stages()) | reading.get(parameter, Stages()) | updating.get(parameter, Stages())
        if found and found != everyone:
            mark_stages(parameter.attrs, found)


def _reading_stages(
    graph: Graph, of: Mapping[Node, Stages], loop: Node | None, everyone: Stages
) -> dict[Value, Stages]:
    """Return the stages that read each value outside of micro-batches, except by updates of it."""
    wanted: dict[Value, Stages] = dict.fromkeys(graph.results, everyone)
    for node in reversed(graph.nodes):
        if node is loop:
            continue
        mutated = {node.inputs[index] for index in node.op.mutates}
        own = of[node] or (everyone if mutated else wanted.get(node, Stages()))
        for value in node.inputs[:1] if isinstance(node.op, Depend) else node.inputs:
            if value not in mutated:
                wanted[value] = wanted.get(value, Stages()) | own
    return wanted


def _updating_stages(graph: Graph, of: Mapping[Node, Stages], everyone: Stages) -> dict[Value, Stages]:
    """Return the stages on which parameters are updated; those common to all updates if there are several."""
    found: dict[Value, Stages] = {}
    for node in graph.nodes:
        for parameter in updated_parameters(node) if node in of else ():  # the loop is in none
            found[parameter] = found.get(parameter, everyone) & (of[node] or everyone)
    return found


# If a loop over micro-batches carries `%9 = AddN(%total, %5, %8)`, with %5 of stage 0 and %8 of stage 3, it carries a
# total for each stage instead, `%9 = AddN(%total, %5)` and `%10 = AddN(%total_1, %8)`, and `AddN` of both follows.


def split_sums(graph: Graph, loop: Node, inside: dict[Value, int]) -> None:
    """Split the sums of a loop over several stages. inside: the stages of its operators, to which those of new ones are
    added."""
    op, body = loop.op, body_of(loop)
    assert isinstance(op, Scan)
    users = {value for node in body.nodes for value in node.inputs}
    more: list[tuple[int, Parameter, Node]] = []
    for number in range(op.carried):
        total, result = body.parameters[number], body.results[number]
        if not isinstance(result, Node) or not isinstance(result.op, AddN) or total not in result.inputs:
            continue
        if result in users:
            continue
        terms = [term for value in result.inputs if value is not total for term in _terms(body, value, inside)]
        stages = sorted({inside[term] for term in terms if term in inside})
        if len(stages) < 2:
            continue
        first, *others = stages
        for stage in others:
            own = Parameter(f"{total.name}_of_stage_{stage}", total.type, "input", layout=total.layout)
            made = copied_node(result, [own, *(t for t in terms if inside.get(t) == stage)])
            made.attrs[STAGE] = inside[made] = stage
            body.nodes.append(made)
            more.append((number, own, made))
        result.inputs = [total, *(t for t in terms if inside.get(t, first) == first)]
        result.attrs[STAGE] = inside[result] = first
    if more:
        _carry(graph, loop, more)
    in_order(body)
    live = live_values(body.nodes, body.results, lambda node: node.op.has_side_effect or node.op.mutates)
    body.nodes = [node for node in body.nodes if node in live]


@iterative
def _terms(body: Graph, value: Value, inside: dict[Value, int]) -> Generator[Any, list[Value], list[Value]]:
    """Return the terms of a sum if they are of several stages."""
    if not isinstance(value, Node):
        return [value]
    if isinstance(value.op, AddN) and len({inside[v] for v in value.inputs if v in inside}) > 1:
        found: list[Value] = []
        for each in value.inputs:
            found += yield body, each, inside
        return found
    if isinstance(value.op, Cast):
        terms = yield body, value.inputs[0], inside
        if len(terms) > 1:
            made: list[Value] = []
            for term in terms:
                cast = copied_node(value, [term])
                if term in inside:
                    cast.attrs[STAGE] = inside[cast] = inside[term]
                body.nodes.append(cast)
                made.append(cast)
            return made
    return [value]


def _carry(graph: Graph, loop: Node, more: list[tuple[int, Parameter, Node]]) -> None:
    """Let the loop carry further totals, which start like those they belong to, and add all up after it."""
    op, body = loop.op, body_of(loop)
    assert isinstance(op, Scan)
    at, layouts = op.carried, loop.layout if isinstance(loop.layout, tuple) else ()
    needed = loop.in_layouts
    for k, (number, own, made) in enumerate(more):
        body.parameters.insert(at + k, own)
        body.results.insert(at + k, made)
        loop.inputs.insert(at + k, loop.inputs[number])
        if layouts:
            layouts = (*layouts[: at + k], layouts[number], *layouts[at + k :])
        if needed is not None:
            needed = (*needed[: at + k], needed[number], *needed[at + k :])
    changed = replace(op, carried=op.carried + len(more))
    loop.op = with_effects(changed, loop.inputs, loop.regions)  # type: ignore[assignment]  # fields, see RegionOp
    loop.type = changed.results_of(loop.regions, [v.type for v in loop.inputs])
    loop.layout, loop.in_layouts = layouts or loop.layout, needed
    nodes: list[Node] = []
    sums: dict[Value, Value] = {}
    for node in graph.nodes:
        node.inputs = [sums.get(v, v) for v in node.inputs]
        nodes.append(node)
        if node.inputs[:1] != [loop]:
            continue
        assert isinstance(node.op, TupleGetItem)
        index = node.op.index
        if index >= at:
            node.op = TupleGetItem(index + len(more))
        parts: list[Value] = [node]
        for k, (number, _, _) in enumerate(more):
            if number == index:
                part = copied_node(node, [loop], TupleGetItem(at + k))
                part.attrs.pop("gradient_for", None)
                nodes.append(part)
                parts.append(part)
        if len(parts) > 1:
            total = copied_node(node, parts, AddN())
            node.attrs.pop("gradient_for", None)
            total.attrs["reason"] = "stages add up the gradient of what all of them read"
            nodes.append(total)
            sums[node] = total
    graph.nodes = nodes
    graph.results = [sums.get(v, v) for v in graph.results]


# The kinds of graphs of a chunk are `F`, its forward operators, and `B`, those of its gradients; in schedules that have
# them apart `I`, the gradients that other chunks wait for, and `W`, the rest: the gradients of weights, except for
# cheap ones. Nodes of no chunk go into every graph that reads them, and free ones are copied into those of gradients.
# Other values that a graph reads of another one are parameters of it, and results of the other.


_WORDS = {
    FORWARD: "forward", BACKWARD: "backward", INPUT_GRADIENT: "input_gradients", WEIGHT_GRADIENT: "weight_gradients",
}  # fmt: skip


WITH_INPUTS = "with_input_gradients"
"""Attribute of nodes that run with gradients of inputs, until graphs are made."""


class Key(NamedTuple):
    """kind: of the work. chunk: its number."""

    kind: str
    chunk: int


@dataclass
class ChunkGraph:
    """The work of a kind of one chunk, on one micro-batch.

    graph: its nodes. given: parameters of the body that it reads; read: values of other graphs; its own parameters
    stand for these in this order. results: values of the body that it returns.
    """

    key: Key
    graph: Graph
    given: list[Parameter] = field(default_factory=list[Parameter])
    read: list[Node] = field(default_factory=list[Node])
    results: list[Node] = field(default_factory=list[Node])


@dataclass
class Chunks:
    """The graphs of a body. made_in: the graphs that make values for others, and results."""

    graphs: dict[Key, ChunkGraph]
    made_in: dict[Value, Key]


def chunk_graphs(body: Graph, apart: bool = False) -> Chunks:
    """Return the graphs of all chunks of a body. apart: gradients of weights have graphs of their own."""
    members = _chunk_nodes(body)
    if apart:
        members = {key: nodes for each in members.items() for key, nodes in _split_gradients(body, *each)}
    made_in: dict[Value, Key] = {}
    for key in sorted(members):  # of a node in several graphs the forward one hands it on
        made_in |= dict.fromkeys(members[key], key)
    for key, own in members.items():
        if key.kind != FORWARD:
            _make_again(body, own)
    graphs = {key: ChunkGraph(key, Graph(f"{body.name}_{_WORDS[key.kind]}_{key.chunk}")) for key in sorted(members)}
    wanted: dict[Key, dict[Node, None]] = {key: {} for key in graphs}
    for key, chunk in graphs.items():
        own = members[key]
        given: dict[Parameter, None] = {}
        read: dict[Node, None] = {}
        for node in body.nodes:
            for value in node.inputs if node in own else ():
                if isinstance(value, Parameter):
                    given[value] = None
                elif isinstance(value, Node) and value not in own:
                    read[value] = None
                    wanted[made_in[value]][value] = None
        chunk.given, chunk.read = list(given), list(read)
    for value in body.results:
        if isinstance(value, Node):
            wanted[made_in[value]][value] = None
    for key, chunk in graphs.items():
        chunk.results = list(wanted[key])
        _fill(chunk, body, members[key])
    return Chunks(graphs, made_in)


def mark_apart(body: Graph) -> None:
    """Mark the nodes that run with gradients of inputs, in the graph of all ranks: a rank may only send in an exchange
    that another one reads, and all ranks have to meet in one order."""
    for each in _chunk_nodes(body).items():
        for key, nodes in _split_gradients(body, *each):
            for node in nodes if key.kind == INPUT_GRADIENT else ():
                node.attrs[WITH_INPUTS] = True


def _chunk_nodes(body: Graph) -> dict[Key, set[Node]]:
    """Return the nodes of each graph; nodes of no chunk go before their readers, first of all in the forward graph."""
    readers = readers_of(body.nodes)
    of: dict[Node, set[Key]] = {}
    first = Key(FORWARD, min((int(n.attrs[STAGE]) for n in body.nodes if STAGE in n.attrs), default=0))
    for node in reversed(body.nodes):
        made = _tuple_of(node)
        if STAGE in made.attrs:
            of[node] = {Key(BACKWARD if made.phase == "backward" else FORWARD, int(made.attrs[STAGE]))}
            continue
        keys = {key for reader in readers.get(node, ()) for key in of.get(reader, ())}
        if node in body.results or node.op.has_side_effect or node.op.mutates:
            keys |= {first}
        of[node] = {key for key in keys if key.kind == FORWARD or Key(FORWARD, key.chunk) not in keys}
    members: dict[Key, set[Node]] = {}
    for node in body.nodes:
        for key in of[node]:
            members.setdefault(key, set()).add(node)
    return members


def _tuple_of(node: Node) -> Node:
    """Return the node that makes the tuple of an element: graphs hand on elements, no tuples."""
    while isinstance(node.op, TupleGetItem) and isinstance(node.inputs[0], Node):
        node = node.inputs[0]
    return node


def _split_gradients(body: Graph, key: Key, own: set[Node]) -> list[tuple[Key, set[Node]]]:
    """Split the gradients that other chunks read, with everything they are made of, from the others. Marked nodes are
    decided."""
    if key.kind != BACKWARD:
        return [(key, own)]
    marked: set[Value] = {node for node in own if node.attrs.get(WITH_INPUTS)}
    read = marked.union(v for node in body.nodes if node not in own for v in node.inputs if v in own)
    needed = own & live_values([node for node in body.nodes if node in own], read)
    inputs = {node for node in own if _tuple_of(node) in needed or node in needed}
    if inputs and not marked:
        inputs |= _cheap_gradients(body, own - inputs)
    pairs = [(Key(INPUT_GRADIENT, key.chunk), inputs), (Key(WEIGHT_GRADIENT, key.chunk), own - inputs)]
    return [pair for pair in pairs if pair[1]]


def _cheap_gradients(body: Graph, nodes: set[Node]) -> set[Node]:
    """Return the gradients of weights that need no matmul, as of norms and biases: they take less time beside their
    operands, with other gradients, than it takes to store these."""
    late: set[Node] = set()
    for node in body.nodes:
        if node in nodes and (node.regions or work_of(node) or any(value in late for value in node.inputs)):
            late.add(node)
    early = [node for node in body.nodes if node in nodes and node not in late]
    return {*early} & live_values(early, body.results)


def _make_again(body: Graph, own: set[Node]) -> None:
    """Add to a graph of gradients the nodes that cost nothing to compute from operands it has, instead of storing their
    results: views, casts and broadcasts of one smaller tensor."""
    for node in reversed(body.nodes):
        for value in node.inputs if node in own else ():
            if isinstance(value, Node) and value not in own and _is_free(value):
                own.add(value)


def _is_free(node: Node) -> bool:
    op = node.op
    if isinstance(op, TupleGetItem) or not isinstance(op, Op) or not isinstance(node.type, TensorType):
        return False
    if op.is_view:
        return True
    made_of = [value for value in node.inputs if not isinstance(value, Constant)]
    plain = not (node.regions or op.draws or op.mutates or op.has_side_effect or op.is_collective or work_of(node))
    return plain and len(made_of) == 1 and 0 < made_of[0].type.nbytes < node.type.nbytes


def _fill(chunk: ChunkGraph, body: Graph, own: set[Node]) -> None:
    graph = chunk.graph
    graph.returns_tuple = True
    of: dict[Value, Value] = {}
    taken: set[str] = set()
    for value in (*chunk.given, *chunk.read):
        name = free_name(value.name or "received", taken)
        of[value] = parameter = Parameter(name, value.type, "input")
        graph.parameters.append(parameter)
    for node in body.nodes:
        if node in own:
            of[node] = copy = copied_node(node, [v if isinstance(v, Constant) else of[v] for v in node.inputs])
            copy.attrs.pop(WITH_INPUTS, None)
            graph.nodes.append(copy)
    graph.results = [of[value] for value in chunk.results]
