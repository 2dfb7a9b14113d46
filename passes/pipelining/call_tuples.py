"""What the calls of a stage's program hand to each other as tuples: parameters that all calls of a graph read, values
that a graph keeps for others on each micro-batch, and totals that it goes on with on the next one.

A tuple is one operand, so that the program grows by micro-batches alone, not by micro-batches times tensors. One tensor
alone stays an operand, as do constants, which graphs take in, parameters that a graph overwrites, and stacks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from mspc.ir.graph import Constant, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import StackType
from mspc.ops.control.loops import Scan
from mspc.ops.control.regions import overwritten_parameters
from mspc.passes.pipelining.chunk_graphs import ChunkGraph, Key

FEWEST = 2
"""Tensors that are worth a tuple."""


@dataclass
class CallTuples:
    """Of one chunk's graph.

    whole: parameters that all calls read. totals: those of totals, whose new values the graph makes. read: values of
    other graphs of the stage, with these. Each of them is one operand, behind those that come by themselves, which are
    `single_given` and `single_read`. kept: results that other graphs read so. apart: those that are taken out by
    themselves on every micro-batch.
    """

    whole: list[Parameter] = field(default_factory=list[Parameter])
    totals: list[Parameter] = field(default_factory=list[Parameter])
    read: list[tuple[Key, list[Node]]] = field(default_factory=list["tuple[Key, list[Node]]"])
    single_given: list[Parameter] = field(default_factory=list[Parameter])
    single_read: list[Node] = field(default_factory=list[Node])
    kept: list[list[Node]] = field(default_factory=list["list[Node]"])
    apart: set[Value] = field(default_factory=set[Value])


def call_tuples(
    graphs: Mapping[Key, ChunkGraph], made_in: Mapping[Value, Key], stage_of: Mapping[Key, int], op: Scan,
    parameters: Sequence[Parameter], results: Sequence[Value], operands: Sequence[Value],
) -> dict[Key, CallTuples]:  # fmt: skip
    """For every graph, whose parameters are put into the order of its operands.

    Args:
        made_in: the graphs that make values. stage_of: their stages. op: the loop. parameters, results: of its body.
        operands: of its node.
    """
    places = {parameter: i for i, parameter in enumerate(parameters)}
    written = _overwritten(graphs.values())
    found = {key: CallTuples() for key in graphs}
    readers: dict[Node, list[Key]] = {}
    for key, chunk in graphs.items():
        for value in chunk.read:
            if stage_of[made_in[value]] == stage_of[key] and not isinstance(value.type, StackType):
                readers.setdefault(value, []).append(key)
    for key, chunk in graphs.items():
        alike: dict[tuple[Key, ...], list[Node]] = {}
        for value in chunk.results:
            if value in readers:
                alike.setdefault(tuple(readers[value]), []).append(value)
        for keys, values in alike.items():
            if len(values) >= FEWEST:
                found[key].kept.append(values)
                for reader in keys:
                    found[reader].read.append((key, values))
    for key, chunk in graphs.items():
        own = found[key]
        made = set(chunk.results)
        for parameter in chunk.given:
            place = places[parameter]
            if isinstance(parameter.type, StackType) or parameter in written:
                continue
            if place < op.carried:
                if results[place] in made:
                    own.totals.append(parameter)
            elif place not in op.scanned_operands and not isinstance(operands[place], Constant):
                own.whole.append(parameter)
        own.whole = own.whole if len(own.whole) >= FEWEST else []
        own.totals = own.totals if len(own.totals) >= FEWEST else []
        _put_in_order(chunk, own)
        totals = {places[parameter] for parameter in own.totals}
        own.apart.update(value for place, value in enumerate(results) if place not in totals)
    for own in found.values():
        for value in own.single_read:
            found[made_in[value]].apart.add(value)
    return found


def _overwritten(chunks: Collection[ChunkGraph]) -> set[Parameter]:
    """The parameters of the body that a graph overwrites."""
    return {chunk.given[number] for chunk in chunks for number in overwritten_parameters(chunk.graph)}


def _put_in_order(chunk: ChunkGraph, own: CallTuples) -> None:
    """Put a graph's parameters into the order of its operands."""
    together: set[Value] = {*own.whole, *own.totals, *(value for _, values in own.read for value in values)}
    own.single_given = [parameter for parameter in chunk.given if parameter not in together]
    own.single_read = [value for value in chunk.read if value not in together]
    inside = dict(zip((*chunk.given, *chunk.read), chunk.graph.parameters, strict=True))
    order: list[Value] = [*own.single_given, *own.single_read, *own.whole, *own.totals]
    order += [value for _, values in own.read for value in values]
    chunk.graph.parameters = [inside[value] for value in order]
