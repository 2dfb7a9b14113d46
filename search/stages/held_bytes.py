"""Bytes that the program of a stage holds all the time, and that it keeps of each micro-batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mspc.ir.graph import MICRO_BATCH, OFFLOAD, WORK, Constant, Graph, Node, Value
from mspc.ops.collective.point_to_point import ReceiveFromStage
from mspc.ops.control.regions import MakeStack
from mspc.ops.control.structural import MakeTuple, taken_elements
from mspc.passes.lib.schedules import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT


def held_bytes(graph: Graph) -> tuple[float, float]:
    """Bytes that a rank has from the first micro-batch to the last (of parameters and their states, and of what all
    micro-batches read that was made of them, as gathered and converted ones; of sums of gradients)."""
    stored = [p for p in graph.parameters if p.kind == "parameter" and OFFLOAD not in p.attrs]
    work = [node for node in graph.nodes if WORK in node.attrs]
    calls = [[node for node in work if node.attrs[MICRO_BATCH] == number] for number in (0, 1)]
    of_parameters: set[Value] = set(stored)
    for node in graph.nodes:
        read = [value for value in node.inputs if not isinstance(value, Constant)]
        if read and WORK not in node.attrs and of_parameters.issuperset(read):
            of_parameters.add(node)
    given = {part for node in calls[0] for value in node.inputs for part in _parts_of(value)}
    made = [v for v in given if isinstance(v, Node) and v in of_parameters and not _shows(v)]
    sums = [v for node in calls[1] for v in node.inputs if isinstance(v, Node) and _goes_on(v, node)]
    if not calls[1]:
        sums = [p for p in stored if p.trainable]
    return float(sum(v.type.nbytes for v in (*stored, *made))), float(sum(v.type.nbytes for v in sums))


def _parts_of(value: Value) -> Sequence[Value]:
    return value.inputs if isinstance(value, Node) and isinstance(value.op, MakeTuple) else [value]


def _shows(node: Node) -> bool:
    return node.op.is_view or isinstance(node.op, MakeStack)


def _goes_on(value: Node, call: Node) -> bool:
    """Whether a call is given what another call of its graph has made."""
    source = value.inputs[0] if taken_elements(value.op) is not None else None
    return isinstance(source, Node) and source.regions == call.regions


def kept_bytes(work: Sequence[Node]) -> tuple[float, float, float]:
    """Bytes that the gradients of a micro-batch read of its forward work, and of what came from other stages for that;
    of them what the gradients of weights read, where they are apart; what these read of the gradients of inputs, and of
    what came for those."""
    kinds: dict[Value, str] = {node: str(node.attrs[WORK]) for node in work}
    came = {value for node in work if kinds[node] == FORWARD for value in node.inputs}
    kept: set[Value] = set()
    late: set[Value] = set()
    between: set[Value] = set()
    for node in work:
        for value in node.inputs:
            made = _kind_of(value, kinds, came)
            if kinds[node] != FORWARD and made == FORWARD:
                kept.add(value)
            if kinds[node] == WEIGHT_GRADIENT and made in (FORWARD, INPUT_GRADIENT):
                (late if made == FORWARD else between).add(value)
    of_kept, of_late, of_between = (float(sum(v.type.nbytes for v in each)) for each in (kept, late, between))
    return of_kept, of_late, of_between


def _kind_of(value: Value, kinds: Mapping[Value, str], came: Collection[Value]) -> str:
    """The kind of work that a value is handed on by, or came from another stage for; "" of what is of no micro-batch.
    came: what forward work reads."""
    if not isinstance(value, Node):
        return ""
    if isinstance(value.op, ReceiveFromStage):
        return FORWARD if value in came else INPUT_GRADIENT
    return kinds.get(value.inputs[0], "") if taken_elements(value.op) is not None else ""
