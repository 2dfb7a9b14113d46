"""Values and optimizer states in host memory: which are stored there, and when they are copied."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from mspc.analysis.aliasing import Updates
from mspc.analysis.cost.nodes import seconds
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.ir.graph import FROM_HOST, OFFLOAD, STAGE, TO_HOST, WORK, Graph, Node, Parameter, Value, copied_node
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, Type
from mspc.ops.control.regions import Call
from mspc.ops.control.structural import MakeTuple, TupleGetItem, TupleGetItems
from mspc.ops.op import Op
from mspc.ops.tensor.host_memory import AssignOnHost, AwaitHost, FromHost, ToHost
from mspc.passes.communication.schedule_communication import ONE_HOST, ScheduleFacts
from mspc.passes.lib.schedules import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from mspc.passes.lib.stage_placement import chosen_schedule, has_weights_apart, kinds_of
from mspc.passes.lib.stage_programs import work_of
from mspc.passes.lib.timeline import ScheduleTimeline, Task, TaskCopies, copies_of, leaving, timeline

AUTO = 0


def _offload_mark(node: Node) -> tuple[str, str]:
    """Return (the cell with the mark, "" for an operator by itself; its distance). A fused node has the marks of its
    parts, of which the last makes its result."""
    mark = node.attrs.get(OFFLOAD, "")
    while isinstance(mark, tuple):
        mark = cast("tuple[Any, ...]", mark)[-1]
    cell, _, ahead = str(mark).rpartition(", ")
    return cell, ahead


def cell_of(node: Node) -> str:
    """Return the cell that has asked; "" if none has."""
    return _offload_mark(node)[0]


def marked_cells(graph: Graph) -> dict[str, str]:
    """Return the marked cells with their distances."""
    return {cell: ahead for cell, ahead in map(_offload_mark, graph.nodes) if cell}


def distance(node: Node, cells: Mapping[str, str]) -> int | None:
    """Return the number of operators between the fetch of a forward node's result and its reader, from its own mark or
    its cell's: nodes made by passes may have none. `AUTO` if the compiler decides; None if it stays."""
    if node.phase != "forward":
        return None
    ahead, scope = _offload_mark(node)[1], node.scope
    while not ahead and scope:
        ahead, scope = cells.get(scope, ""), scope.rpartition("/")[0]
    if not ahead:
        return None
    return int(ahead) if ahead.isdigit() else AUTO


# By the rates of a machine no operator waits for a copy if there is time enough; copies one way follow each other.


SAME = 1 - 1e-9
"""Times that are added up in another order may differ by so much."""


@dataclass(frozen=True, eq=False)
class HostCopies:
    """Values that are copied together.

    place: of the node after which they leave, or before which they are wanted back. earliest: the earliest place before
    which their memory is free, or they are fetched. distance: the number of operators of the main stream between,
    `AUTO` if times decide.
    """

    values: tuple[Value, ...]
    place: int
    earliest: int = 0
    distance: int = AUTO

    @property
    def length(self) -> float:
        """Seconds that the copies take."""
        return sum(seconds(Node(ToHost(), [value], value.type), ONE_HOST) for value in self.values)


class HostTimes:
    """When the nodes of a graph begin and end, and which of them run on the main stream. later: by how much each begins
    later than its spans say; () for no time."""

    def __init__(self, graph: Graph, spans: Mapping[Node, tuple[float, float]], later: Sequence[float] = ()) -> None:
        self._count = len(graph.nodes)
        later = later or [0.0] * self._count
        places = [place for place, node in enumerate(graph.nodes) if node in spans]
        self._ends = {place: later[place] + sum(spans[graph.nodes[place]]) for place in places}
        self._main = [place for place in self._ends if "stream" not in graph.nodes[place].attrs]
        self._begins = [later[place] + spans[graph.nodes[place]][0] for place in self._main]
        self._free = [0.0, *(self._ends[place] for place in self._main[:-1])]
        """The end of everything that the main stream runs before each of its nodes."""
        self._works = [i for i, place in enumerate(self._main) if WORK in graph.nodes[place].attrs]
        self._backward = max((i for i in self._main if graph.nodes[i].phase == "backward"), default=0)

    def left(self, copies: Iterable[HostCopies]) -> dict[HostCopies, int]:
        """Return the places before which the memory of each is free: that of the first node that begins after the
        copy."""
        found: dict[HostCopies, int] = {}
        over = 0.0
        for each in sorted(copies, key=lambda copy: copy.place):
            over = max(over, self._ends[each.place]) + each.length
            number = self._first_behind(over * SAME)
            if each.distance != AUTO:
                number = bisect_right(self._main, each.place) + each.distance
            number = max(number, bisect_left(self._main, each.earliest))
            found[each] = self._main[number] if number < len(self._main) else self._count
        return found

    def _first_behind(self, time: float) -> int:
        """Return the first node of the main stream that begins after a time. Nodes that wait for nothing may precede
        work on a micro-batch: a fetch in time for the work is not to wait after them."""
        number = bisect_left(self._begins, time)
        work = bisect_left(self._works, number)
        if work == len(self._works):
            return number
        return max(number, min(bisect_left(self._free, time), self._works[work]))

    def fetched(self, copies: Iterable[HostCopies]) -> dict[HostCopies, int]:
        """Return the places before which each begins to come back, so that it arrives in time."""
        found: dict[HostCopies, int] = {}
        due = math.inf
        for each in sorted(copies, key=lambda copy: -copy.place):
            reader = min(bisect_left(self._main, each.place), len(self._main) - 1)
            due = min(due, self._begins[reader]) - each.length
            number = bisect_right(self._free, due) - 1 if each.distance == AUTO else reader - each.distance
            number = min(reader, max(0, number, bisect_left(self._main, each.earliest)))
            if each.place > self._backward:  # a fetch after all gradients takes none of the time before
                due = max(due, self._begins[number])
            found[each] = min(self._main[number], each.place)
        return found


LEAVE, FETCH_AT_ONCE, WAIT, FETCH, READ = range(5)
"""The order of nodes at one place: copies of the last node's results, copies that come back during other waits, waits
for earlier copies, copies that come back into the memory freed so, and their readers."""


class Insertions:
    """Nodes that are made now and put into the graph by `apply`. count: how many there are."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ahead: list[list[tuple[int, Node]]] = [[] for _ in range(len(graph.nodes) + 1)]
        self.count = 0

    def put(
        self, place: int, op: Op, inputs: Sequence[Value], type: Type, like: Node, phase: str, stream: str = "",
        order: int = LEAVE,
    ) -> Node:  # fmt: skip
        """Add a new node before the one at `place`, at the lines of `like`."""
        made = Node(op, inputs, type, scope=like.scope, frames=like.frames, phase=phase)
        if stream:
            made.attrs["stream"] = stream
        self.add(place, made, order)
        return made

    def add(self, place: int, node: Node, order: int = READ) -> None:
        """Add an existing node before the one at `place`."""
        self._ahead[place].append((order, node))
        self.count += 1

    def apply(self) -> None:
        """Put them into the graph: at one place by their order, and else as they came."""
        nodes: list[Node] = []
        for place, ahead in enumerate(self._ahead):
            nodes += [node for _, node in sorted(ahead, key=lambda item: item[0])]
            nodes += self._graph.nodes[place : place + 1]
        self._graph.nodes = nodes


class HostReading(NamedTuple):
    """A node reads a tensor: its place, and which operand. element: of a tuple that is the operand; -1 of none."""

    place: int
    operand: int
    element: int = -1


@dataclass(frozen=True, eq=False)
class StoredValue:
    """A tensor that gradients read again.

    maker: the node that makes it, within the graph of a call. made: the place of the node in the graph, taken: that of
    the value, which may be one of several results. shown: nodes with results in its memory, itself and views. readers:
    by their places. back: the first reader after the gap.
    """

    value: Node
    maker: Node
    made: int
    taken: int
    shown: tuple[Node, ...]
    readers: tuple[HostReading, ...]
    back: int

    @property
    def is_called(self) -> bool:
        """Return whether a call has made it."""
        own = self.value.inputs[0] if isinstance(self.value.op, TupleGetItem) else self.value
        return own is not self.maker

    @property
    def wanted(self) -> int:
        """The place of the first node that reads it again."""
        return self.readers[self.back].place


def take_apart_calls(graph: Graph) -> bool:
    """Let several results of a call that are handed on as a tuple be taken one by one, and put into one again; whether
    there are any."""
    if not any(isinstance(node.op, Call) for node in graph.nodes):
        return False
    insertions = Insertions(graph)
    items: dict[tuple[Value, int], Node] = {}
    taken: dict[Value, Value] = {}
    places = {node: place for place, node in enumerate(graph.nodes)}
    for node in places:
        if isinstance(node.op, TupleGetItem):
            items[node.inputs[0], node.op.index] = node
    for place, node in enumerate(graph.nodes):
        call = node.inputs[0] if isinstance(node.op, TupleGetItems) else None
        if not isinstance(call, Node) or not isinstance(call.op, Call) or call.phase != "forward":
            continue
        assert isinstance(node.op, TupleGetItems)
        parts: list[Value] = []
        for index in node.op.indices:
            item = items.get((call, index))
            if item is None or places.get(item, place) > place:
                op = TupleGetItem(index)
                item = insertions.put(place, op, [call], op.infer(call.type), node, "forward")  # type: ignore[arg-type]  # the call gives a tuple, as operators of structure take it
                items[call, index] = item
            parts.append(item)
        taken[node] = insertions.put(place, MakeTuple(), parts, node.type, node, "forward")
    insertions.apply()
    graph.nodes = [node for node in graph.nodes if node not in taken]
    graph.replace(taken)
    return bool(taken)


class HostStores:
    """The tensors of a graph that gradients read again."""

    def __init__(self, graph: Graph) -> None:
        self._nodes, self._returned = graph.nodes, set(graph.results)
        self._made_inside: dict[Graph, list[Node | None]] = {}
        self._uses: dict[Value, list[HostReading]] = {}
        self._place: dict[Value, int] = {}
        for place, node in enumerate(graph.nodes):
            self._place[node] = place
            for operand, value in enumerate(node.inputs):
                self._uses.setdefault(value, []).append(HostReading(place, operand))

    def __iter__(self) -> Iterator[StoredValue]:
        """Iterate in run order."""
        for place, node in enumerate(self._nodes):
            if not isinstance(node.type, TensorType):
                continue
            made, index = (node.inputs[0], node.op.index) if isinstance(node.op, TupleGetItem) else (node, 0)
            maker = self._maker(made, index)
            if maker is None or (made is not node and self._is_taken_twice(made, index)):
                continue
            found = self._with_views(node)
            if found is None or not self._returned.isdisjoint(found[0]):
                continue
            shown, readers = found
            back = next((i for i, r in enumerate(readers) if self._nodes[r.place].phase != "forward"), None)
            if back is not None:
                yield StoredValue(node, maker, self._place[made], place, shown, readers, back)

    def _maker(self, made: Value, index: int) -> Node | None:
        """Return the node that has made a new tensor without gaps between rows, or None; None too if the tensor is also
        another result."""
        if not isinstance(made, Node) or "row_pitch" in made.attrs or made.op.is_view or made.phase != "forward":
            return None
        if not made.regions:
            return None if made.op.mutates else made
        if not isinstance(made.op, Call):
            return None
        (region,) = made.regions
        if region not in self._made_inside:
            found = [_base(value) for value in region.results]
            times = Counter(found)
            self._made_inside[region] = [each[0] if each is not None and times[each] == 1 else None for each in found]
        return self._made_inside[region][index]

    def _is_taken_twice(self, made: Value, index: int) -> bool:
        """Return whether a result of several is also taken by another node, or with others."""
        ops = [self._nodes[reading.place].op for reading in self._uses[made]]
        return made in self._returned or sum(not isinstance(op, TupleGetItem) or op.index == index for op in ops) > 1

    def _with_views(self, value: Node) -> tuple[tuple[Node, ...], tuple[HostReading, ...]] | None:
        """Return (the value and views of it, its readers); None if views show more than it, except for tuples that
        nodes read as such."""
        shown, readers = [value], list[HostReading]()
        for each in shown:
            for reading in self._uses.get(each, ()):
                node = self._nodes[reading.place]
                if isinstance(node.op, MakeTuple):
                    further = self._uses.get(node, ())
                    if node in self._returned or any(self._nodes[other.place].op.is_view for other in further):
                        return None
                    readers += [other._replace(element=reading.operand) for other in further]
                elif not node.op.is_view:
                    readers.append(reading)
                elif len(node.inputs) > 1 or not isinstance(node.type, TensorType):
                    return None
                else:
                    shown.append(node)
        return tuple(shown), tuple(sorted(readers))


def _base(value: Value) -> tuple[Node, int] | None:
    """Return the node that has made the memory of a result, and the number of its result."""
    index = 0
    while isinstance(value, Node) and value.op.is_view and len(value.inputs) == 1:
        index = value.op.index if isinstance(value.op, TupleGetItem) else 0
        value = value.inputs[0]
    if not isinstance(value, Node) or value.op.is_view or value.op.mutates or value.regions:
        return None
    return (value, index) if value.phase == "forward" else None


# A rank's graph has no other stage, so all stages are assumed to work as long as this one. Waits for other stages are
# time for copies to the host and back.


Spans = Mapping[Node, tuple[float, float]]
"""The begin of nodes, and their seconds, with nothing to wait for."""


class StageClock:
    """The clock of a stage's program. leaving: its forwards with values that may leave for the host."""

    def __init__(self, graph: Graph, spans: Spans) -> None:
        self._nodes, self._stage = graph.nodes, int(graph.attrs[STAGE])
        self._calls = {work_of(node): node for node in graph.nodes if WORK in node.attrs}
        self._ends: dict[Node, float] = {}
        """The end of the work before each."""
        end = spans[next(iter(self._calls.values()))][0]
        for call in self._calls.values():
            self._ends[call], end = end, sum(spans[call])
        self._schedule = chosen_schedule(graph.attrs, 1 + max(number for _, _, number in self._calls))
        self._own = self._schedule.chunks_of(self._stage)
        times: dict[tuple[int, str], list[float]] = {}
        for (kind, chunk, _), call in self._calls.items():
            times.setdefault((chunk, kind), []).append(sum(spans[call]) - self._ends[call])
        self._times = {key: sum(found) / len(found) for key, found in times.items()}
        self._is_apart = has_weights_apart(graph.attrs)
        on_way = (self._calls.get((FORWARD, *each)) for each in leaving(self._schedule, self._stage))
        self.leaving = {call for call in on_way if call is not None}

    def line(self, seconds: Mapping[Node, float], waits: bool = True) -> ScheduleTimeline:
        """Return the timeline of all stages. seconds: of the copies of each forward's values, if they leave. waits: as
        of `copies_of`."""
        of_chunks: dict[int, float] = {}
        for call, time in seconds.items():
            of_chunks.setdefault(work_of(call)[1], time)
        durations: dict[tuple[int, str], float] = {}
        copies: dict[Task, TaskCopies] = {}
        for stage in range(self._schedule.stages):
            alike = dict(zip(self._schedule.chunks_of(stage), self._own, strict=True))
            for chunk, own in alike.items():
                for action in self._schedule.entries[stage]:
                    kinds = kinds_of(action.kind, self._is_apart)
                    durations[chunk, action.kind] = sum(self._time(own, kind, stage == self._stage) for kind in kinds)
            own_seconds = {chunk: of_chunks.get(own, 0.0) for chunk, own in alike.items()}
            copies |= copies_of(self._schedule, stage, own_seconds, waits)
        return timeline(self._schedule, durations, copies=copies if of_chunks else None)

    def _time(self, chunk: int, kind: str, is_own: bool) -> float:
        """Return the seconds of work on a chunk, by this stage or another one: nobody waits for the gradients of the
        first chunk's inputs, so that all of them are with those of weights."""
        if is_own or not self._is_apart or (chunk, INPUT_GRADIENT) in self._times or kind == FORWARD:
            return self._times.get((chunk, kind), 0.0)
        return self._times.get((chunk, WEIGHT_GRADIENT), 0.0) / 2

    def later(self, line: ScheduleTimeline) -> list[float]:
        """By how much later each node of the graph begins by a timeline than with nothing to wait for."""
        begins: dict[Node, float] = {}
        for span in line.spans[self._stage]:
            begin, action = span.start, span.action
            for kind in kinds_of(action.kind, self._is_apart):
                call = self._calls.get((kind, action.chunk, action.micro_batch))
                if call is not None:
                    begins[call] = begin
                    begin += self._times[action.chunk, kind]
        found: list[float] = []
        first = min(self._ends.values())
        shift = 0.0
        for place, node in enumerate(self._nodes):
            if node in begins:
                shift = max(shift, begins[node] + first - self._ends[node])
                found += [shift] * (place + 1 - len(found))
        return found + [shift] * (len(self._nodes) - len(found))


AHEAD = 2
"""How many updates before its own a state is fetched at the earliest: each is under way while another is used."""
BEHIND = 1
"""The number of updates after which the memory of states copied back is free at the latest, before the next states are
fetched."""


@dataclass(frozen=True, eq=False)
class _Unit:
    """Updates whose states are fetched together. first, last: places of the nodes that read them. ahead: how many units
    before it they are fetched at the earliest. there, back: the copies."""

    first: int
    last: int
    ahead: int
    there: HostCopies
    back: HostCopies


class HostStates:
    """The states of a graph that live on the host."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        for state in (p for p in graph.results if isinstance(p, Parameter)):
            state.attrs.pop(OFFLOAD, None)  # who reads results reads them on the device
        changed = Updates(graph).numbers
        self._units: list[_Unit] = []
        for number, (first, last, states) in enumerate(_spans(graph)):
            ahead = max(int(state.attrs[OFFLOAD]) or AHEAD for state in states)
            earliest = self._units[number - ahead].last + 1 if number >= ahead else 0
            written = tuple(state for state in states if state in changed)
            back = HostCopies(tuple(states), first, min(earliest, first))
            self._units.append(_Unit(first, last, ahead, HostCopies(written, last, last + 1), back))

    @property
    def leaving(self) -> list[HostCopies]:
        return [unit.there for unit in self._units]

    @property
    def fetched(self) -> list[HostCopies]:
        return [unit.back for unit in self._units]

    def insert(self, insertions: Insertions, left: Mapping[HostCopies, int], fetched: Mapping[HostCopies, int]) -> None:
        """Insert the copies. left, fetched: before which places memory is free, and states are fetched."""
        nodes = self._graph.nodes
        begins = [fetched[unit.back] for unit in self._units]
        for number, unit in enumerate(self._units):
            like, own = nodes[unit.first], dict[Value, Value]()
            for state in unit.back.values:
                begin = begins[number]
                own[state] = insertions.put(begin, FromHost(), [state], state.type, like, "update", FROM_HOST, FETCH)
            for node in nodes[unit.first : unit.last + 1]:
                node.inputs = [own.get(value, value) for value in node.inputs]
            later = number + BEHIND + unit.ahead
            free = min(left[unit.there], begins[later] if later < len(begins) else len(nodes))
            for state in unit.there.values:
                inputs, behind, like = [state, own[state]], unit.last + 1, nodes[unit.last]
                made = insertions.put(behind, AssignOnHost(), inputs, state.type, like, "update", TO_HOST, LEAVE)
                if free < len(nodes):
                    insertions.put(max(free, behind), AwaitHost(), [made], state.type, like, "update", order=WAIT)


def _spans(graph: Graph) -> list[tuple[int, int, list[Parameter]]]:
    """Return spans of nodes that read states, (first, last, states), none within another, in their order."""
    spans: dict[Parameter, tuple[int, int]] = {}
    reached: dict[Value, Iterable[Parameter]] = {}
    for place, node in enumerate(graph.nodes):
        for value in node.inputs:
            held = (value,) if isinstance(value, Parameter) and OFFLOAD in value.attrs else reached.get(value, ())
            for state in held:
                spans[state] = spans.get(state, (place, place))[0], place
            if held and node.op.is_view:
                reached[node] = held
    found: list[tuple[int, int, list[Parameter]]] = []
    for state, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        if found and first <= found[-1][1]:
            begin, end, states = found.pop()
            found.append((begin, max(end, last), [*states, state]))
        else:
            found.append((first, last, [state]))
    return found


# A value leaves right after its node. Its memory is free once the copy is over by the rates of a machine, or as many
# operators later as the script says; it is fetched likewise. A value that would be wanted back before it has left
# stays.


LONGER = 5e-3
"""The share by which copies may make the step of a pipeline longer."""
MAX_BUS_SHARE = 1 / 2
"""The share of the bus's capacity from which on forwards wait for it, so that memory is free early."""


class HostValues:
    """The values of a graph to store on the host."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._tuples: dict[tuple[int, int], dict[int, Node]] = {}
        cells: dict[str, str] = {}
        for each in graph.graphs():
            cells |= marked_cells(each)
        self._chosen: list[tuple[StoredValue, HostCopies, HostCopies]] = []
        for value in HostStores(graph):
            ahead = distance(value.maker, cells)
            if ahead is not None:
                ahead = AUTO if value.is_called else ahead  # calls are no operators: times say it
                last = max((reading.place for reading in value.readers[: value.back]), default=value.taken)
                there = HostCopies((value.value,), value.made, last + 1, ahead)
                self._chosen.append((value, there, HostCopies((value.value,), value.wanted, 0, ahead)))

    @property
    def leaving(self) -> list[HostCopies]:
        return [there for _, there, _ in self._chosen]

    @property
    def fetched(self) -> list[HostCopies]:
        return [back for _, _, back in self._chosen]

    def stay_in_time(self, clock: StageClock) -> ScheduleTimeline:
        """Let values leave only as far as the copies take no time of a step, the first values of each call, and return
        the timeline of all stages. If most of them may leave as early as possible, forwards wait for them; else nothing
        waits."""
        lengths: dict[Node, list[float]] = {}
        number: list[int] = []
        for value, there, _ in self._chosen:
            own = lengths.setdefault(self._graph.nodes[value.made], [])
            number.append(len(own))
            own.append(there.length)
        most = max(map(len, lengths.values()), default=0)
        seconds = [{c: sum(own[:n]) for c, own in lengths.items() if c in clock.leaving} for n in range(most + 1)]
        idle = clock.line(seconds[0])
        longest = idle.makespan * (1 + LONGER)

        def in_time(waits: bool) -> int:
            return bisect_left(range(1, most + 1), True, key=lambda n: clock.line(seconds[n], waits).makespan > longest)

        count, paced = max(1, in_time(False)), in_time(True)  # of the first some leave in time at least
        found = idle
        if most and sum(seconds[paced].values()) >= MAX_BUS_SHARE * sum(seconds[min(count, most)].values()):
            found, count = clock.line(seconds[paced]), paced
        self._chosen = [
            each for each, place in zip(self._chosen, number, strict=True)
            if place < count and self._graph.nodes[each[0].made] in clock.leaving
        ]  # fmt: skip
        return found

    def insert(self, insertions: Insertions, left: Mapping[HostCopies, int], fetched: Mapping[HostCopies, int]) -> None:
        """Insert the copies. left, fetched: before which places memory is free, and values are fetched."""
        for value, there, back in self._chosen:
            if left[there] < fetched[back]:
                self._keep(insertions, value, left[there], fetched[back])
        for (place, operand), elements in self._tuples.items():
            reader = self._graph.nodes[place]
            whole = reader.inputs[operand]
            assert isinstance(whole, Node)
            own = copied_node(whole, [elements.get(i, value) for i, value in enumerate(whole.inputs)])
            insertions.add(place, own, READ)
            reader.inputs[operand] = own

    def _keep(self, insertions: Insertions, each: StoredValue, free: int, begin: int) -> None:
        nodes, value, type, like = self._graph.nodes, each.value, each.value.type, each.maker
        host = insertions.put(each.taken + 1, ToHost(), [value], type, like, "forward", TO_HOST, LEAVE)
        host = insertions.put(free, AwaitHost(), [host], type, like, "forward", order=WAIT)
        reader = nodes[each.wanted]
        order = FETCH_AT_ONCE if each.is_called else FETCH
        back = insertions.put(begin, FromHost(), [host], type, reader, "backward", FROM_HOST, order)
        again: dict[Value, Node] = {value: back}

        @iterative
        def shown(value: Value) -> Generator[Any, Node, Node]:
            """Return a view of the fetched tensor that corresponds to a view of the stored one."""
            if value not in again:
                assert isinstance(value, Node)
                again[value] = copied_node(value, [(yield (value.inputs[0],))])
                again[value].phase = "backward"
                insertions.add(begin, again[value], order)
            return again[value]

        for place, operand, element in each.readers[each.back :]:
            read = nodes[place].inputs[operand]
            if element < 0:
                nodes[place].inputs[operand] = shown(read)
            else:
                assert isinstance(read, Node)
                self._tuples.setdefault((place, operand), {})[element] = shown(read.inputs[element])


# Updates of states on the host run as soon as their gradients are known, so that the copies of states run beside the
# remaining gradients.


def update_early(graph: Graph) -> None:
    """Move updates of states on the host, and the nodes of the update phase that they need, as early as possible. They
    wait for a sum over ranks no earlier than it ends by the rates of a machine."""
    nodes, needs = graph.nodes, ScheduleFacts(graph).needs
    # Nodes that communicate or run graphs stay.
    moving: set[int] = set()
    for place in range(len(nodes) - 1, -1, -1):
        node = nodes[place]
        overwritten = [node.inputs[i] for i in node.op.mutates]
        if place not in moving and not any(isinstance(v, Parameter) and OFFLOAD in v.attrs for v in overwritten):
            continue
        if node.phase == "update" and not (node.op.is_collective or node.regions or "stream" in node.attrs):
            moving.add(place)
            moving.update(other for other in needs[place] if nodes[other].phase == "update")
        else:
            moving.discard(place)
    spans = StreamTimeline(graph, ONE_HOST).spans
    main = [place for place, node in enumerate(nodes) if node in spans and "stream" not in node.attrs]
    begins = [spans[nodes[place]][0] for place in main]
    behind = list(range(len(nodes)))  # the node that each comes after; itself if it stays
    for place in sorted(moving):
        last = 0
        for other in needs[place]:
            last = max(last, behind[other])
            if "stream" in nodes[other].attrs and nodes[other] in spans:
                number = bisect_left(begins, sum(spans[nodes[other]]))
                last = max(last, main[number - 1] if number else 0)
        behind[place] = min(last, place)
    graph.nodes = [nodes[i] for i in sorted(range(len(nodes)), key=lambda i: (behind[i], i in moving, i))]
