"""Gives every operator its stage, and says why if the script did not.

Input:  operators of cells with a `pipeline_stage` have the attribute `stage`, others have none.
Output: `stage` on all that belong to one, with `stage_from` if a rule gave it:

- forward operators belong to the latest stage of their operands, backward ones to that of the operator whose gradient
  they are, or else to the earliest of the gradients that they read;
- an update belongs to the stages of its parameter, and a parameter to those of the operators that read it
  (`updated_where_read`);
- operators that read values of no stage (data, constants, counters) have none: every stage that needs them computes
them;
- gradients of a parameter that several stages read are added up on each (`split_sums`), and then over stages.

A stage is a number, or several if each of them has a copy (updates of a tied weight). If stages have several chunks,
that of an operator of a micro-batch is the number of its chunk (`StagePlacement`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mspc.ir.diagnostics import MspcError, raise_all
from mspc.ir.graph import STAGE, STAGES, Graph, Node, Parameter, Value, mark_stages
from mspc.ops.control.regions import Loop, Scan, body_of
from mspc.ops.control.structural import Depend, MakeTuple, TupleGetItem
from mspc.ops.op import Op
from mspc.passes.base import WHOLE, Pass
from mspc.passes.lib.placement import readers_of, sources_of
from mspc.passes.lib.stage_chunks import (
    FROM,
    check_order,
    cross_borders,
    mark_apart,
    near_their_readers,
    place_parameters,
    split_sums,
    updated_parameters,
    updated_where_read,
)
from mspc.passes.lib.stage_placement import (
    CHUNKS,
    ONCE,
    StagePlacement,
    check_sums,
    has_weights_apart,
    micro_batch_loop,
    placement_of,
    table_of,
)

EVERYWHERE: frozenset[int] = frozenset()
"""The stages of values that every stage has, or can compute."""


class AssignStages(Pass):
    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        stages = int(graph.attrs.get(STAGES, 1))
        if stages < 2:
            return False
        loop, placement = micro_batch_loop(graph), placement_of(graph.attrs)
        of: dict[Value, frozenset[int]] = {}
        inside: dict[Value, int] = {}
        errors: list[MspcError] = []
        if loop is not None:
            check_sums(graph)
            body = body_of(loop)
            inside = chunks_of(loop, placement, errors)
            table = table_of(graph.attrs)
            if table is not None:
                check_order(body, inside, table, errors)
            cross_borders(body, inside)
            split_sums(graph, loop, inside)
            graph.attrs[CHUNKS] = 1 + max(inside.values(), default=0)
            of |= _of_parameters(graph, loop, inside, placement)
        else:
            _check_is_inference(graph, stages)
        for node in graph.nodes:
            if loop is not None and node.inputs[:1] == [loop]:
                value = body_of(loop).results[node.op.index]  # type: ignore[attr-defined]  # TupleGetItem
                of[node] = frozenset([placement.stage(inside[value])]) if value in inside else EVERYWHERE
        first = _all_outside(graph, of, placement, [])
        of |= updated_where_read(graph, first, loop, stages)
        last = _all_outside(graph, of, placement, errors)
        for node, found in last.items():
            mark_stages(node.attrs, found)
        if loop is not None:
            _place_exchanges(graph, last, _of_operands(loop, inside, placement), stages)
        place_parameters(graph, last, of, loop, stages)
        raise_all(errors)
        if loop is not None and has_weights_apart(graph.attrs):
            mark_apart(body_of(loop))
        return True


def _all_outside(
    graph: Graph, known: Mapping[Value, frozenset[int]], placement: StagePlacement, errors: list[MspcError]
) -> dict[Node, frozenset[int]]:  # fmt: skip
    """Return the stages of all operators that are in no micro-batch. known: of parameters, and of results of the
    loop."""
    of = dict(known)
    found: dict[Node, frozenset[int]] = {}
    for node in graph.nodes:
        if isinstance(node.op, Scan) and node.op.micro_batches:
            continue
        if node not in of:
            of[node] = _stages_outside(node, of, placement, errors)
        found[node] = of[node]
    return found


def chunks_of(loop: Node, placement: StagePlacement, errors: list[MspcError]) -> dict[Value, int]:
    """The chunks of the operators of a loop over micro-batches; those that are not there belong to none."""
    found: dict[Value, int] = {}
    nodes = body_of(loop).nodes
    _finish_gradients(body_of(loop))
    forward = [node for node in nodes if node.phase != "backward"]
    for node in forward:
        read = [(found[v], v) for v in node.inputs if v in found]
        given = node.attrs.get(STAGE)
        behind = max((chunk for chunk, _ in read), default=0)
        if isinstance(node.op, TupleGetItem):
            if read:
                found[node] = behind
        elif given is not None:
            chunk = placement.chunk(given, behind)
            if chunk is None or not placement.has(given):
                check_stage(node, given, read, placement.stages, errors)
            found[node] = given if chunk is None else chunk
        elif read:
            found[node] = behind
            node.attrs[FROM] = "the latest of what it reads"
    _with_weights(loop, forward, found)
    near_their_readers(body_of(loop), forward, found, placement, errors)
    _backward([node for node in nodes if node.phase == "backward"], found)
    body = body_of(loop)
    first, last = min(found.values(), default=0), max(found.values(), default=0)
    for value in body.results:
        if isinstance(value, Node) and value not in found:
            found[value] = last if value.phase == "backward" else first
            value.attrs[FROM] = "where gradients begin" if value.phase == "backward" else "where data come in"
    for node in nodes:
        if node in found:
            node.attrs[STAGE] = found[node]
    return found


def _finish_gradients(body: Graph) -> None:
    """Count the operators that bring a sum of gradients into the loop's layout among the gradients."""
    results = set(body.results)
    for node in body.nodes:
        made = [value for value in node.inputs if isinstance(value, Node)]
        if node in results and made and all(value.phase == "backward" for value in made):
            node.phase = "backward"


def _backward(nodes: Sequence[Node], found: dict[Value, int]) -> None:
    """Place gradients: they go from later stages to earlier ones; operators of forward values alone that gradients read
    go to the first reader."""
    own = set(nodes)
    for node in nodes:
        read = [found[v] for v in node.inputs if v in own and v in found]
        if isinstance(node.op, TupleGetItem) and node.inputs[0] in found:
            found[node] = found[node.inputs[0]]
        elif node.forward is not None and node.forward in found:
            found[node] = found[node.forward]
            node.attrs[FROM] = "the operator whose gradient it is"
        elif read:
            found[node] = min(read)
            node.attrs[FROM] = "the earliest gradient that it reads"
    readers = readers_of(nodes)
    for node in reversed(nodes):
        needed = [found[reader] for reader in readers.get(node, ()) if reader in found]
        if node not in found and needed:
            found[node] = max(needed)
            node.attrs[FROM] = "the latest gradient that reads it"


def _with_weights(loop: Node, forward: Sequence[Node], found: dict[Value, int]) -> None:
    """Place operators that read parameters and nothing of a stage on the earliest stage that reads them: only there the
    parameters are updated."""
    parameters = zip(loop.inputs, body_of(loop).parameters, strict=True)
    held: set[Value] = {
        inside
        for operand, inside in parameters
        if any(isinstance(each, Parameter) and each.kind == "parameter" for each in sources_of(operand))
    }
    readers = readers_of(forward)
    for node in forward:
        if node not in found and any(value in held for value in node.inputs):
            held.add(node)
    for node in reversed(forward):
        if node in held:
            found[node] = min((found[each] for each in readers.get(node, ()) if each in found), default=0)
            node.attrs[FROM] = "the earliest that reads it, as it reads parameters"


def check_stage(
    node: Node, given: int, read: Iterable[tuple[int, Value]], stages: int, errors: list[MspcError]
) -> None:  # fmt: skip
    """Add an error if a script gives an operator an impossible stage."""
    if not 0 <= given < stages:
        notes = [f"stages are 0 to {stages - 1}, as pipeline_stages is {stages}"]
        errors.append(
            node.error(
                f"{node.label} is in a cell of stage {given}, which there is not", notes, ValueError, code="E0502"
            )
        )
        return
    later = [(stage, value) for stage, value in read if stage > given]
    if later:
        stage, value = later[0]
        label = value.label if isinstance(value, Node) else value.name
        errors.append(node.error(
            f"{node.label} is in a cell of stage {given}, but reads {label} of stage {stage}: values flow forward",
            [f"give its cell stage {stage} or a later one, or that of {label} stage {given} or an earlier one"],
            ValueError,
        ))  # fmt: skip


def _of_parameters(
    graph: Graph, loop: Node, inside: Mapping[Value, int], placement: StagePlacement
) -> dict[Value, frozenset[int]]:  # fmt: skip
    """Return the stages of parameters: those of the operators in the loop that depend on them."""
    wanted = _of_operands(loop, inside, placement)
    for node in reversed(graph.nodes[: graph.nodes.index(loop)]):
        for value in node.inputs if node in wanted else ():
            wanted[value] = wanted.get(value, EVERYWHERE) | wanted[node]
    return {
        value: found
        for value, found in wanted.items()
        if found and isinstance(value, Parameter) and value.kind != "input"
    }


def _of_operands(loop: Node, inside: Mapping[Value, int], placement: StagePlacement) -> dict[Value, frozenset[int]]:
    """Return the stages of the operators in the loop that read each of its operands."""
    op, body = loop.op, body_of(loop)
    assert isinstance(op, Loop)
    read: dict[Value, set[int]] = {}
    for node in body.nodes:
        for value in node.inputs:
            if isinstance(value, Parameter) and node in inside:
                read.setdefault(value, set()).add(placement.stage(inside[node]))
    first = placement.stage(min(inside.values(), default=0))
    for value in body.results[op.carried :]:  # a result as it is: one stage has it, which others get it from
        if isinstance(value, Parameter):
            read.setdefault(value, {first})
    wanted: dict[Value, frozenset[int]] = {}
    for operand, parameter in zip(loop.inputs, body.parameters, strict=True):
        wanted[operand] = wanted.get(operand, EVERYWHERE) | frozenset(read.get(parameter, ()))
    return wanted


def _place_exchanges(
    graph: Graph, of: Mapping[Node, frozenset[int]], read: Mapping[Value, frozenset[int]], stages: int
) -> None:  # fmt: skip
    """Give exchanges that more stages could run the stages that read them: a rank that only sends does not see who
    does. read: of operands of the loop."""
    everyone = frozenset(range(stages))
    wanted: dict[Value, frozenset[int]] = {**read, **dict.fromkeys(graph.results, everyone)}
    for node in reversed(graph.nodes):
        if node not in of:
            continue
        able, reading = of[node] or everyone, wanted.get(node, EVERYWHERE)
        own = of[node] or (everyone if node.op.mutates else reading)
        if _exchanges(node) and not node.op.mutates and EVERYWHERE < reading < able:
            own = reading
            mark_stages(node.attrs, own)
            node.attrs[FROM] = "who reads it"
        for value in node.inputs[:1] if isinstance(node.op, Depend) else node.inputs:
            wanted[value] = wanted.get(value, EVERYWHERE) | own


def _exchanges(node: Node) -> bool:
    return isinstance(node.op, Op) and (node.op.is_collective or type(node.op).expand is not Op.expand)


def _check_is_inference(graph: Graph, stages: int) -> None:
    """Raise MspcError if a graph without micro-batches has gradients."""
    node = next((node for node in graph.nodes if node.phase == "backward"), None)
    if node is not None:
        raise node.error(
            f"a network of {stages} stages is trained in micro-batches, and there are none",
            ["wrap the network, before the training step: PipelineCell(network, micro_size)"],
            RuntimeError,
        )


def _stages_outside(
    node: Node, of: Mapping[Value, frozenset[int]], placement: StagePlacement, errors: list[MspcError]
) -> frozenset[int]:  # fmt: skip
    """Return the stages of an operator that is in no micro-batch."""
    read = [(min(of[v]), v) for v in node.inputs if of.get(v)]
    given = node.attrs.get(STAGE)
    if given is not None and node.phase == "forward":
        given = placement.stage(given) if placement.numbered else given
        check_stage(node, given, read if placement.shape == ONCE else (), placement.stages, errors)
        return frozenset([given])
    updated = [of[parameter] for parameter in updated_parameters(node) if parameter in of]
    if updated:
        return next(filter(None, updated), EVERYWHERE)
    operands = node.inputs[:1] if isinstance(node.op, Depend) else node.inputs
    sets = [of[v] for v in operands if of.get(v)]
    if not sets or isinstance(node.op, MakeTuple):
        return EVERYWHERE
    common = sets[0].intersection(*sets[1:])
    if common or node.phase != "forward":
        return common
    node.attrs[FROM] = "the latest of what it reads"
    return frozenset([max(map(max, sets))])
