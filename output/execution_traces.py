"""Traces of the predicted step: execution traces of Chakra, one file for each rank, and a trace for Perfetto.

A file of Chakra (et_def.proto of MLCommons) is a sequence of protocol buffers, each after its length: the metadata, and
the nodes in their order. Nodes of the graphs that a step calls stand in their place, once for every call; a loop or a
branch without communication is one node. Dependencies of control are the orders of the streams. Times are those of a
machine's rates; a stage's work on a micro-batch begins when the schedule has its operands.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.nodes import moved_bytes, operations_of, seconds, work_of
from mspc.analysis.cost.timeline import RECEIVED
from mspc.compiler.driver import Compiled
from mspc.compiler.rank_graphs import RankStages, copied
from mspc.ir.files.tensors import put_bytes, put_integer, put_text, put_varint
from mspc.ir.graph import WORK, Graph, Node, OpLike, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.base import Collective, Ranks
from mspc.ops.collective.collectives import NeighborExchange
from mspc.ops.collective.point_to_point import Send, SendToStage
from mspc.ops.control.regions import ONCE, Call, If, Loop, RegionOp
from mspc.output.dumps import GROUPS, PERFETTO, OutputFolder
from mspc.output.stage_times import stage_times
from mspc.passes.lib.ranks import own_op
from mspc.passes.lib.stage_programs import work_of as task_of
from mspc.passes.lib.timeline import Task
from mspc.runtime.profile import STREAMS, NodeTiming, nodes_of, trace

VERSION = "0.0.4"
"""Version of the schema that the metadata name."""
COMPUTES, SENDS, RECEIVES, COLLECTIVE = 4, 5, 6, 7
"""Numbers of `NodeType`."""
COLLECTIVES = {
    "AllReduce": 0, "Reduce": 1, "AllGather": 2, "CollectiveGather": 3, "CollectiveScatter": 4, "Broadcast": 5,
    "AlltoAll": 6, "AlltoAllV": 6, "FetchRows": 6, "SendRows": 6, "ReduceScatter": 7, "Barrier": 9,
}  # fmt: skip
"""Numbers of `CollectiveCommType`."""
BOOL, STRING, INT32, INT64, UINT64 = 27, 29, 7, 9, 15
"""Fields of `AttributeProto` for a value of a type."""
MESSAGES = 32
"""Shift of the number of a message in the identifier of a node that is one of an exchange."""
EXCHANGE_TAG = 1 << 30
"""Tag of the messages of exchanges, which have none."""


@dataclass(slots=True)
class TraceEntry:
    """One run of a node. data, after: numbers of the entries whose results it reads, and after which it is started."""

    node: Node
    stream: str
    begin: float
    seconds: float
    data: tuple[int, ...]
    after: tuple[int, ...]


class PredictedStep:
    """The entries of a step of one rank's graph, in the order in which they start; the number of an entry is its place
    from 1. starts: seconds at which works on micro-batches begin."""

    def __init__(self, graph: Graph, machine: Machine, starts: Mapping[Task, float]) -> None:
        self.entries: list[TraceEntry] = []
        self._starts = starts
        known: dict[Graph, tuple[float, float]] = {}
        rates = machine.under(graph.attrs)
        self._seconds = cache(lambda node: seconds(node, rates, known))
        self._over: list[float] = [0.0]
        self._last: dict[object, int] = {}
        """The last entry of each stream."""
        self._run(graph, {})

    def _run(self, graph: Graph, made: dict[Value, tuple[int, ...]]) -> tuple[int, ...]:
        """Add the entries of a graph and return those of its results. made: entries of its parameters."""
        for node in graph.nodes:
            data = _merged(made.get(value, ()) for value in node.inputs)
            if node.op.is_view:
                made[node] = data
            elif isinstance(node.op, Call) or any(
                inner.op.is_collective for region in node.regions for each in region.graphs() for inner in each.nodes
            ):
                if WORK in node.attrs:
                    self._over[0] = max(self._over[0], self._starts.get(task_of(node), 0.0))
                made[node] = self._run_regions(node, made)
            else:
                made[node] = (self._add(node, data),)
        return _merged(made.get(value, ()) for value in graph.results)

    def _run_regions(self, node: Node, made: Mapping[Value, tuple[int, ...]]) -> tuple[int, ...]:
        """Add the entries of the graphs that a node runs: all iterations of a loop, one if their number is not known,
        and the longer of two branches."""
        op, passed = node.op, ()
        assert isinstance(op, RegionOp)
        longest = max(node.regions, key=lambda region: len(region.nodes))
        for _ in range(ONCE.inside(node, len(node.regions) - 1).count if isinstance(op, Loop) else 1):
            for number, region in enumerate(node.regions):
                if isinstance(op, If) and region is not longest:
                    continue
                own: dict[Value, tuple[int, ...]] = dict.fromkeys(region.parameters, passed)
                places = op.places(number, [each.type for each in node.inputs])
                for value, place in ((value, i) for value, each in zip(node.inputs, places, strict=True) for i in each):
                    parameter = region.parameters[place]
                    own[parameter] = _merged((own[parameter], made.get(value, ())))
                passed = self._run(region, own) or passed
        return passed

    def _add(self, node: Node, data: tuple[int, ...]) -> int:
        stream = node.attrs.get("stream")
        time = self._seconds(node)
        ready = max((self._over[number] for number in data), default=0.0)
        before = [self._last.get(stream, 0)]
        if stream and node.op.name != RECEIVED:
            before.append(self._last.get(None, 0))
        begin = max(ready, *(self._over[number] for number in before), 0.0 if stream else self._over[0])
        after = tuple(sorted({*before} - {0, *data}))
        self.entries.append(TraceEntry(node, str(stream or STREAMS[0]), begin, time, data, after))
        self._over.append(begin + time)
        self._last[stream] = len(self.entries)
        return len(self.entries)


def _merged(several: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted({*chain.from_iterable(several)}))


@cache
def _attribute(name: str, field: int, value: int | str) -> bytes:
    own = put_text(field, value) if isinstance(value, str) else put_integer(field, value)
    return put_bytes(10, put_text(1, name) + own)


def _head(number: int, kind: int, entry: TraceEntry, data: Iterable[int] = ()) -> bytes:
    """Return the fields of a node that are the same on all ranks of a kind. Orders of streams are among the
    dependencies of data, too: the public feeder reads no others, and ranks must call collectives in one order. data:
    numbers of nodes, if not those of the entry."""
    lists = ((4, entry.after), (5, sorted({*(data or entry.data), *entry.after})))
    dependencies = [put_bytes(place, b"".join(map(put_varint, several))) for place, several in lists if several]
    times = put_integer(6, round(1e6 * entry.begin)), put_integer(7, round(1e6 * entry.seconds))
    start = put_integer(1, number), put_text(2, entry.node.label), put_integer(3, kind)
    return b"".join((*start, *dependencies, *times, _attribute("is_cpu_op", BOOL, 0)))


def _amounts(node: Node) -> bytes:
    """Return the operations of a node, with those of the graphs that it runs, and the bytes that it moves."""
    work = [ONCE.inside(node, i).count * operations_of(region).hardware for i, region in enumerate(node.regions)]
    work_done = work_of(node) if not work else max(work) if isinstance(node.op, If) else sum(work)
    return _attribute("num_ops", INT64, int(work_done)) + _attribute("tensor_size", UINT64, int(moved_bytes(node)))


def _delimited(message: bytes) -> bytes:
    return put_varint(len(message)) + message


RankStep = tuple[int, Graph, PredictedStep]


Piece = bytes | Callable[[int, Callable[[Node], OpLike], Callable[[Node], int]], bytes]
"""Part of a file: the same on all ranks of a kind, or made from a rank, and functions from nodes of the kind to the
rank's operator and to the number of its group."""


@dataclass
class ChakraTraces:
    """Writer of Chakra's execution traces. A kind of ranks is encoded once; of every rank only its groups and the other
    ends of its messages are. groups: ranks of every group of collectives, by its number; 0 stands for all ranks. steps:
    graph and step of the first rank of each stage."""

    machine: Machine
    ranks: int
    starts: Sequence[Mapping[Task, float]]
    groups: dict[Ranks, int] = field(default_factory=dict[Ranks, int])
    steps: dict[int, RankStep] = field(default_factory=dict[int, "RankStep"])
    _pieces: dict[int, tuple[Graph, list[Piece]]] = field(default_factory=dict[int, "tuple[Graph, list[Piece]]"])

    def of(self, rank: int, stages: RankStages, last: str) -> bytes:
        """Return the trace of a rank. last: name of the pass after which its graph is executable."""
        kind = stages.of_kind[last].graph
        if id(kind) not in self._pieces:
            self._pieces[id(kind)] = kind, list(self._pieces_of(kind, rank, stages))
        own = cache(lambda node: own_op(node.op, rank, stages.parts))
        group = cache(lambda node: self._group(own(node)))
        pieces = self._pieces[id(kind)][1]
        return b"".join([each if isinstance(each, bytes) else each(rank, own, group) for each in pieces])

    def _pieces_of(self, kind: Graph, rank: int, stages: RankStages) -> Iterator[Piece]:
        graph = copied(kind, rank, stages.parts)
        pairs = zip(graph.graphs(), kind.graphs(), strict=True)
        of_kind = {node: other for one, two in pairs for node, other in zip(one.nodes, two.nodes, strict=True)}
        stage = rank * len(self.starts) // self.ranks
        step = PredictedStep(graph, self.machine, self.starts[stage])
        self.steps.setdefault(stage, (rank, graph, step))
        amounts = cache(_amounts)
        done: list[bytes] = [_delimited(put_text(1, VERSION))]
        for number, entry in enumerate(step.entries, 1):
            if not isinstance(entry.node.op, Collective):
                done.append(_delimited(_head(number, COMPUTES, entry) + amounts(entry.node)))
            else:
                yield b"".join(done)
                done.clear()
                yield self._communication(number, entry, of_kind[entry.node])
        yield b"".join(done)

    def _communication(self, number: int, entry: TraceEntry, kind: Node) -> Piece:
        op = entry.node.op
        if op.name not in COLLECTIVES:
            return lambda rank, own, _: b"".join(map(_delimited, _messages(number, entry, rank, own(kind))))
        assert isinstance(op, Collective)
        size = op.travelling([value.type.nbytes for value in entry.node.inputs], entry.node.type.nbytes)
        head = _head(number, COLLECTIVE, entry) + _attribute("comm_type", INT64, COLLECTIVES[op.name])
        head += _attribute("comm_size", INT64, int(size))
        of_group = cache(lambda group: _delimited(head + _attribute("pg_name", STRING, str(group))))
        return lambda rank, own, group: of_group(group(kind))

    def _group(self, op: OpLike) -> int:
        assert isinstance(op, Collective)
        if len(op.members) in (0, self.ranks):
            return 0
        return self.groups.setdefault(op.members, len(self.groups) + 1)


def _messages(number: int, entry: TraceEntry, rank: int, op: OpLike) -> Iterator[bytes]:
    """Yield the message of a node, or those of an exchange and a node without work that follows them all."""
    node = entry.node
    assert isinstance(op, Collective)
    if isinstance(op, NeighborExchange):
        back = zip(op.recv_rank_ids, element_types(node.type), strict=True)
        ends = [(SENDS, rank, to, value.type.nbytes) for to, value in zip(op.send_rank_ids, node.inputs, strict=True)]
        ends += [(RECEIVES, of, rank, type.nbytes) for of, type in back]
        tag, ends = EXCHANGE_TAG, [each for each in ends if each[1] != each[2]]
    else:
        (source, target), tag = op.channel(rank)
        sends = isinstance(op, Send | SendToStage)
        ends = [(SENDS if sends else RECEIVES, source, target, (node.inputs[0] if sends else node).type.nbytes)]
    several = isinstance(op, NeighborExchange)
    ids = [i << MESSAGES | number if several else number for i in range(1, len(ends) + 1)]
    for own, (kind, source, target, size) in zip(ids, ends, strict=True):
        named = (("comm_src", source), ("comm_dst", target), ("comm_tag", tag))
        attributes = b"".join(_attribute(name, INT32, value) for name, value in named)
        yield _head(own, kind, entry) + attributes + _attribute("comm_size", INT64, size)
    if several:
        done = replace(entry, begin=entry.begin + entry.seconds, seconds=0.0)
        yield _head(number, COMPUTES, done, ids) + _attribute("num_ops", INT64, 0)


def perfetto(steps: Iterable[RankStep]) -> dict[str, Any]:
    """Return Chrome's trace of the predicted step of some ranks, in the form of a profile's."""
    timings: dict[int, list[list[NodeTiming]]] = {}
    graphs: dict[int, Graph] = {}
    for rank, graph, step in steps:
        graphs[rank] = graph
        index = {node: number for number, (node, _) in enumerate(nodes_of(graph))}
        timings[rank] = [[
            NodeTiming(index[entry.node], entry.stream, 1e3 * entry.begin, 1e3 * entry.seconds)
            for entry in step.entries
        ]]  # fmt: skip
    return trace(timings, graphs)


def write_traces(folder: Path, program_of: Callable[[int], Compiled], wanted: Sequence[int], machine: Machine) -> None:
    """Write `trace.RANK.et` of the wanted ranks, the groups of their collectives, and Perfetto's trace of the first
    rank of each stage. program_of: returns the program of a rank. Raise MspcError if the folder cannot be written."""
    first = program_of(wanted[0])
    per_stage, count = first.config.ranks, first.config.pipeline_stages
    starts: list[dict[Task, float]] = [{} for _ in range(count)]
    if count > 1:
        graphs = [first.rank_graph(stage * per_stage) for stage in range(count)]
        for found, spans in zip(starts, stage_times(graphs, machine).spans, strict=True):
            found |= {(s.action.kind, s.action.chunk, s.action.micro_batch): s.start for s in spans}
    traces = ChakraTraces(machine, per_stage * count, starts)
    with OutputFolder(folder) as output:
        for rank in wanted:
            graphs_of = program_of(rank).rank_graphs
            output.write(f"trace.{rank}.et", traces.of(rank, graphs_of.of(rank, ()), graphs_of.passes[-1]))
        output.write(GROUPS, json.dumps({str(number): ranks for ranks, number in traces.groups.items()}) + "\n")
        output.write(PERFETTO, json.dumps(perfetto(traces.steps.values())) + "\n")
        output.commit()
