"""Planner of the memory of a rank's step: parameters have memory of their own, all other values share one arena by live
ranges.

Input:  %0 = MatMul(%x, %w); %1 = Tanh(%0); %2 = Reshape(%1); %3 = MatMul(%2, %w); returned is ReduceSum(%3). Output:
%0, %1 and %2 share memory, as Tanh works in place and Reshape is a view; %3 has other memory.

Streams. Nodes run in order on the main stream, or on the side stream that their attribute `stream` names:
"communication", or "reduction" for sums of gradients. A node of a side stream starts once all earlier nodes of the main
stream are complete (an event recorded at its position). Any node starts once the collectives of other streams that
`MemoryPlan.waits` names for it are complete, and with each all earlier ones of its stream. The first reader of a
collective's result waits in this way, and so does a node that updates a parameter that a collective reads. At the end
of a step the main stream waits for the others. Therefore memory that a node of a side stream reads or writes is not
written by a node of another stream before the main stream has waited for it, or before the end of the step. The result
of a collective uses memory that all nodes before it have released, or that only earlier collectives of the stream
"communication" used, if it runs there too. Messages between stages have a stream of their own, "messages", for which
the main stream waits when a later message is received. Copies to and from the host have the streams "to_host" and
"from_host"; at AwaitHost the main stream waits for a copy, so that the memory is free.

Copies of parameters, the `shadow_weights`, have their own memory in the arena in all steps: updates write them for the
next step. If anything else wrote to the parameters, their nodes run in order before a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from mspc.analysis.aliasing import marked_shadow_weights
from mspc.ir.graph import OFFLOAD, Constant, Graph, Node, Parameter, Value, element_types
from mspc.ir.types import DType, StackType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.regions import Loop, MakeStack, body_of
from mspc.ops.control.structural import MakeTuple, extracted_elements
from mspc.ops.op import Op
from mspc.runtime.arena import MemoryBlock, ResultMemory, assign_with_adjacent, peak_bytes_by_class, peak_live_bytes
from mspc.runtime.memory import (
    COMMUNICATION,
    MESSAGES,
    Allocation,
    GradientSlices,
    MemoryPlan,
    equal_results,
    is_awaited,
    is_on_host,
    is_received,
    is_sent,
    read_elsewhere,
    row_pitches,
    side_stream,
    sources_of,
    updated_operands,
    works_on,
)
from mspc.runtime.memory_classes import CLASSES, TEMPORARY, Part, Parts, StepClasses, constant_bytes, optimizer_states

if TYPE_CHECKING:
    from mspc.runtime.memory import OutsideResults, ResultPlaces

BUCKET_ALIGNMENT = 32
"""Alignment in bytes of the members of a bucket. The gaps are reduced with them; nothing reads them."""


BytesInside = Callable[[Node, Mapping[Graph, int]], int]
"""Function that returns the bytes a node needs while its regions run, given the arena sizes of the regions."""


def plan_memory(
    graph: Graph, alignment: int = 256, inside: BytesInside | None = None,
    carried: Mapping[Parameter, Value] | None = None, early: bool = False, outside: bool = False,
    slices: GradientSlices | None = None,
) -> MemoryPlan:  # fmt: skip
    """Return the memory plan of a rank's execute graph, which has local types.

    inside: bytes inside a node with regions; by default as on a CPU. carried: for a loop's body, the results that
    should be in the memory of parameters, if an operator can overwrite its operand. early: messages of other stages may
    arrive before they are read, as between GPUs, and have their memory from the start of a step. outside: the caller
    supplies memory for results. slices: gradients that are read inside larger matrices.
    """
    planner = _Planner(graph, inside=inside, slices=slices)
    planner.early = early
    if carried:
        from mspc.runtime.memory import CarriedResults  # late: only GPUs place the carried values of loops

        planner.carried = CarriedResults(graph, carried, planner.parts)
    if outside:
        planner.results_outside()
    return planner.plan(alignment)


def peak_of(graph: Graph, alignment: int = 256) -> int:
    """Return the peak bytes of `plan_memory`, without the division into classes."""
    planner = _Planner(graph)
    stored = sum(p.type.nbytes for p in graph.parameters if OFFLOAD not in p.attrs)
    return planner.place_all(alignment) + constant_bytes(graph) + stored


class _Planner:
    """Planner of a graph's memory: finds aliases, live ranges and waits, then assigns blocks to cells and offsets to
    blocks."""

    def __init__(self, graph: Graph, arenas: dict[Graph, int] | None = None,
                 inside: BytesInside | None = None, slices: GradientSlices | None = None) -> None:  # fmt: skip
        self.graph, self.slices = graph, slices or GradientSlices()
        self.bytes_inside = inside
        self.carried: ResultPlaces | None = None
        self.early = False
        self.arenas: dict[Graph, int] = {} if arenas is None else arenas
        """Bytes of the arenas of graphs that nodes run, once they are known."""
        self.replaced: dict[Graph, dict[int, int]] = {}
        """For results of such graphs the numbers of operands that they may overwrite."""
        self.nodes = graph.nodes
        self.side = [side_stream(node) for node in graph.nodes]
        self.shadow_weights = marked_shadow_weights(graph)
        copies = self.shadow_weights.copies
        self.copy_of: dict[Value, Node] = {p.parameter: node for node, pieces in copies.items() for p in pieces}
        self.cells: list[ResultMemory] = []
        self.shown = self._find_parts({})
        self.copied = late_readers(graph, self.shown)
        self.parts = self._find_parts(self.copied) if self.copied else self.shown
        self.over: Mapping[int, int] = {}
        """For a node of a side stream, the index from which the main stream knows that it is over."""
        self.waits: Mapping[Node, tuple[Node, ...]] = {}
        self.blocks: list[MemoryBlock] = []
        self.buckets: dict[Node, list[MemoryBlock]] = {}
        self.inside: dict[Node, MemoryBlock] = {}

    def place_all(self, alignment: int) -> int:
        """Assign blocks to cells and offsets to blocks. Return the bytes of the arena."""
        self._find_accesses()
        self.waits, self.over = find_waits(self.nodes, self._runs, self.parts, self.copy_of, self.early)
        for index, node in enumerate(self.nodes):
            if node.regions:
                self._plan_inside(node, alignment)
            if self._runs(node):
                self._give_blocks(index, node)
            if node.regions:
                from mspc.runtime.memory_plan import bytes_inside  # late: most programs have no regions

                block = self.inside[node] = self._new((self.bytes_inside or bytes_inside)(node, self.arenas))
                self._extend(block, [index])
        for cell in self.cells:
            if cell.block is not None:
                self._extend(cell.block, cell.accesses)
        landing = (node for node in self.nodes if self.early and is_received(node))
        for block in (cell.block for n in (*self.shadow_weights.copies, *landing) for cell in self._cells(n)):
            assert block is not None
            block.start = 0
        several = [self._cells(node) for node in self.nodes if node.regions]  # each may have a hundred results
        on_host = [block for block in self.blocks if block.on_host]
        if not on_host:
            return assign_with_adjacent(self.blocks, several, alignment)
        assign_with_adjacent(on_host, (), alignment)
        return assign_with_adjacent([block for block in self.blocks if not block.on_host], several, alignment)

    def plan(self, alignment: int) -> MemoryPlan:
        arena = self.place_all(alignment)
        classes = StepClasses(self.graph, self.parts, self._runs, sources_of).of_all()
        sizes = {"weights": 0, "states": 0, "inputs": 0}
        sizes |= peak_bytes_by_class(self.cells, classes, CLASSES, {TEMPORARY: [*self.inside.values()]})
        states = optimizer_states(self.graph, self.parts)
        on_host = [p for p in self.graph.parameters if OFFLOAD in p.attrs]
        for p in self.graph.parameters:
            if p in on_host:
                continue
            sizes["inputs" if p.kind == "input" else "states" if p in states else "weights"] += p.type.nbytes
        every = {part: self._place(part) for part in dict.fromkeys(chain.from_iterable(self.parts.values()))}
        return MemoryPlan(
            places={value: tuple([every[part] for part in parts]) for value, parts in self.parts.items()},
            arena=arena,
            lower_bound=peak_live_bytes([block for block in self.blocks if not block.on_host]),
            buckets={
                node: Allocation("arena", None, m[0].offset, m[-1].offset + m[-1].nbytes - m[0].offset)
                for node, m in self.buckets.items()
            },
            waits=self.waits,
            copied={node: tuple(self._place(part) for part in self.shown[node]) for node in self.copied},
            constants=constant_bytes(self.graph),
            outside=getattr(self.carried, "places", ()),
            inside={node: Allocation("arena", None, b.offset, b.nbytes) for node, b in self.inside.items()},
            shadow_weights=self.shadow_weights,
            slices=self.slices,
            host_arena=max((b.offset + b.nbytes for b in self.blocks if b.on_host), default=0),
            kept_on_host=sum(p.type.nbytes for p in on_host),
            classes={
                node: tuple(classes[part] if isinstance(part, int) else "" for part in self.parts[node])
                for node in self.nodes if self._runs(node)
            },
            **sizes,
        )

    # Aliases

    def _runs(self, node: Node) -> bool:
        return node in self.copied or not (node.op.is_view or self.slices.source(node))

    def _find_parts(self, copied: Mapping[Node, None]) -> dict[Value, tuple[Part, ...]]:
        """Return the memory of every value; nodes in `copied` have their own."""
        self.cells = []
        known: dict[Graph, dict[int, int]] = {}
        parts: dict[Value, tuple[Part, ...]] = {p: (p,) for p in self.graph.parameters}
        for value in self.graph.results:
            if isinstance(value, Constant):
                parts[value] = (value,)
        for index, node in enumerate(self.nodes):
            for value in node.inputs:
                if isinstance(value, Constant):
                    parts[value] = (value,)
            shown = self._alias_of(node, parts)
            if shown is None or node in copied:
                fresh: list[Part] = []
                alike = equal_results(node, known)
                for number, (type, pitch) in enumerate(zip(element_types(node.type), row_pitches(node), strict=True)):
                    if number in alike:
                        fresh.append(fresh[alike[number]])
                        continue
                    fresh.append(len(self.cells))
                    self.cells.append(ResultMemory(type, [index], pitch, on_host=is_on_host(node)))
                shown = tuple(fresh)
            parts[node] = shown
        return parts

    def _alias_of(self, node: Node, parts: Mapping[Value, tuple[Part, ...]]) -> tuple[Part, ...] | None:
        """Return the memory that the node's result aliases, or None if it has its own."""
        op = node.op
        if (taken := extracted_elements(op)) is not None:
            return tuple(parts[node.inputs[0]][i] for i in taken)
        if isinstance(op, MakeTuple | MakeStack):
            return tuple(part for value in node.inputs for part in parts[value])
        if node.op.is_view or is_sent(node) or is_awaited(node):
            return parts[node.inputs[0]]
        if (source := self.slices.source(node)) is not None:
            return parts[source] * len(element_types(node.type))
        operands = updated_operands(node)
        return tuple(parts[node.inputs[i]][0] for i in operands) if operands else None

    # Lifetimes

    def _find_accesses(self) -> None:
        for index, node in enumerate(self.nodes):
            if not self._runs(node):
                continue
            for value in (*node.inputs, node):
                for part in self.parts[value]:
                    if isinstance(part, int) and self.cells[part].accesses[-1] != index:
                        self.cells[part].accesses.append(index)
        for value in (*self.graph.results, *self.shadow_weights.copies):
            for cell in self._cells(value):
                cell.accesses.append(len(self.nodes))

    def _cells(self, value: Value) -> list[ResultMemory]:
        return [self.cells[part] for part in self.parts[value] if isinstance(part, int)]

    # Blocks

    def _give_blocks(self, index: int, node: Node) -> None:
        """Assign blocks to the node's cells: the block of an operand whose last use is here, if the operator allows it,
        else new ones."""
        parts = dict.fromkeys(p for p in self.parts[node] if isinstance(p, int) and self.cells[p].accesses[0] == index)
        own = [p for p in parts if self.cells[p].block is None]
        if not own:
            return
        if isinstance(node.op, AllReduce) and len(node.inputs) > 1:
            self._bucket(index, node)
        taken: list[MemoryBlock] = []
        replaced = self._replaced(index, node)
        sources = sources_of(node, len(self.parts[node]))
        number_of = {part: number for number, part in reversed([*enumerate(self.parts[node])])}
        for part in sorted(own, key=lambda part: len(sources[number_of[part]])):
            cell, operands = self.cells[part], sources[number_of[part]]
            if self.carried is not None and cell.block is None and node not in self.copied:
                cell.parameter = self.carried.place(index, node, operands, part, cell.type)
            if cell.parameter is not None:
                continue
            if cell.block is None:
                cell.block = replaced.get(part) or self._overwritten(index, node, operands, cell, taken)
                cell.block = cell.block or self._new(cell.nbytes, cell.on_host)
            taken.append(cell.block)

    def results_outside(self) -> OutsideResults:
        """Let results be in memory supplied by the caller."""
        from mspc.runtime.memory import OutsideResults  # late: most programs have no regions

        def size_of(part: int) -> int:
            return 0 if self.cells[part].pitch else self.cells[part].nbytes

        self.carried = found = OutsideResults(self.graph, self.parts, size_of)
        return found

    def _plan_inside(self, node: Node, alignment: int) -> None:
        """Plan the regions of a node. On a GPU, results of regions that run once are in memory of the node."""
        for region in node.regions:
            if region in self.arenas:
                continue
            planner = _Planner(region, self.arenas, self.bytes_inside)
            outside = self.bytes_inside is not None and not isinstance(node.op, Loop) and planner.results_outside()
            self.arenas[region] = planner.place_all(alignment)
            if outside and len(node.regions) == 1:
                self.replaced[region] = outside.replaces

    def _new(self, nbytes: int, on_host: bool = False) -> MemoryBlock:
        block = MemoryBlock(nbytes, len(self.nodes), on_host=on_host)
        self.blocks.append(block)
        return block

    def _overwritten(
        self, index: int, node: Node, operands: Sequence[Value], made: ResultMemory, taken: Sequence[MemoryBlock]
    ) -> MemoryBlock | None:
        """Return the block of one of `operands` that a result may overwrite, or None."""
        if node in self.copied or node in self.shadow_weights.copies:
            return None
        if node.regions:
            return None
        if not isinstance(node.op, AllReduce):
            if not (isinstance(node.op, Op) and node.op.in_place):
                return None
        barred = {part for value in read_elsewhere(node) for part in self.parts[value]}
        for part in (part for value in operands for part in self.parts[value]):
            if isinstance(part, int) and part not in barred and self._dies(part, index, made.type.dtype, made.nbytes):
                block = self.cells[part].block
                if block is not None and not any(block is other for other in taken):
                    # A smaller operand is read for several elements, and a smaller result is written while other
                    # elements are still being computed.
                    return block if isinstance(node.op, AllReduce) or works_on(node, made.type.size) else None
        return None

    def _replaced(self, index: int, node: Node) -> dict[Part, MemoryBlock]:
        """Return, for results of the region that a node runs, the blocks of operands that they may overwrite."""
        pairs = self.replaced.get(node.regions[0], {}) if node.regions and node not in self.copied else {}
        every = [part for value in node.inputs for part in self.parts[value]] if pairs else []
        if not pairs or len(every) != len(node.regions[0].parameters):  # one for each parameter of the graph
            return {}
        times, found = Counter(every), dict[Part, MemoryBlock]()
        for number, operand in pairs.items():
            part, own = every[operand], self.parts[node][number]
            if isinstance(part, int) and isinstance(own, int) and times[part] == 1:
                block, cell = self.cells[part].block, self.cells[own]
                if block is not None and self._dies(part, index, cell.type.dtype, cell.nbytes):
                    found[own] = block
        return found

    def _dies(self, part: int, index: int, dtype: DType, nbytes: int) -> bool:
        """Return whether the node at `index` is the last to access the cell, and may overwrite it by a result of this
        size."""
        cell = self.cells[part]
        if cell.accesses[-1] != index or cell.type.dtype != dtype or cell.nbytes != nbytes:
            return False
        others = [i for i in cell.accesses[:-1] if self.side[i] and self.side[i] != self.side[index]]
        return all(self.over.get(i, len(self.nodes)) <= index for i in others)

    def _bucket(self, index: int, node: Node) -> None:
        """Tie the operands' blocks together and let the results use them, if the last use of every operand is here."""
        members: list[MemoryBlock] = []
        for value in node.inputs:
            part = self.parts[value][0]
            if not isinstance(part, int) or not self._dies(part, index, value.tensor_type.dtype, value.type.nbytes):
                return
            block = self.cells[part].block
            if block is None or block.tied is not None or any(block is other for other in members):
                return
            members.append(block)
        distance = 0
        for number, block in enumerate(members):
            size = -(-block.nbytes // BUCKET_ALIGNMENT) * BUCKET_ALIGNMENT
            block.tied = (index, distance)
            block.reserved = size if number < len(members) - 1 else block.nbytes
            distance += size
        for part, block in zip(self.parts[node], members, strict=True):
            assert isinstance(part, int)
            self.cells[part].block = block
        self.buckets[node] = members

    def _extend(self, block: MemoryBlock, accesses: Sequence[int]) -> None:
        """Keep the block live while these nodes run."""
        if accesses[0] < block.start:
            block.start = accesses[0]
            block.on_side = self.side[accesses[0]] == COMMUNICATION
        last = accesses[-1]
        block.last = max(block.last, last)
        free = behind = last + 1
        for i in accesses:
            if i < len(self.nodes) and self.side[i]:
                over = self.over.get(i, len(self.nodes))
                free = max(free, over)
                if self.side[i] != COMMUNICATION:
                    behind = max(behind, over)
        block.free_on_side = max(block.free_on_side, behind)
        block.free = max(block.free, free)

    # Places

    def _place(self, part: Part) -> Allocation:
        if isinstance(part, Value):
            return Allocation("kept", part, 0, part.type.nbytes)
        cell = self.cells[part]
        if cell.parameter is not None:
            return Allocation("kept", cell.parameter, 0, cell.nbytes)
        assert cell.block is not None
        return Allocation("host" if cell.on_host else "arena", None, cell.block.offset, cell.nbytes, cell.pitch)


def find_waits(
    nodes: Sequence[Node], runs: Callable[[Node], bool], parts: Parts, copy_of: Mapping[Value, Node], early: bool
) -> tuple[dict[Node, tuple[Node, ...]], dict[int, int]]:  # fmt: skip
    """Return (for a node, the nodes of other streams that must be complete before it starts; for the index of a node of
    a side stream, the index from which the main stream has waited for it). runs: whether a node is launched. parts:
    memory of every value. copy_of: the node that stores a copy of a parameter. early: see `plan_memory`."""
    found: dict[Node, tuple[Node, ...]] = {}
    over: dict[int, int] = {}
    made: dict[Part, int] = {}
    read: dict[tuple[str, Part], int] = {}
    running: dict[str, list[int]] = {}
    sides = [side_stream(node) for node in nodes]
    for index, node in enumerate(nodes):
        if not runs(node):
            continue
        side = sides[index]
        latest: dict[str, int] = {}
        for value in node.inputs:
            for part in parts[value]:
                if part in made:
                    name = sides[made[part]]
                    latest[name] = max(latest.get(name, -1), made[part])
        for operand in node.op.mutates:
            value = node.inputs[operand]
            written = [parts[value][0], *parts.get(copy_of.get(value, value), ())]
            for name in running:
                latest[name] = max(latest.get(name, -1), *(read.get((name, part), -1) for part in written))
        sending = running.get(MESSAGES, ())
        if is_received(node) and len(sending) > early:  # between GPUs the last one may still run
            latest[MESSAGES] = max(latest.get(MESSAGES, -1), sending[-1 - early])
        waits: list[Node] = []
        for name, last in latest.items():
            queue = running.get(name, [])
            if name == side or not queue or last < queue[0]:
                continue
            waits.append(nodes[last])
            while not side and queue and queue[0] <= last:
                over[queue.pop(0)] = index
        if waits:
            found[node] = tuple(waits)
        if side:
            running.setdefault(side, []).append(index)
            read.update({(side, part): index for value in node.inputs for part in parts[value]})
            made.update(dict.fromkeys(parts[node], index))
    return found, over


def late_readers(graph: Graph, shown: Parts) -> dict[Node, None]:
    """Return the nodes whose result aliases a parameter and is read after, or by, a later update of that parameter.
    shown: the memory of every value if nothing is copied."""
    updates: dict[Part, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        for part in _written(node, shown):
            if isinstance(part, Parameter):
                updates.setdefault(part, []).append(index)
    if not updates:
        return {}
    reach: dict[Value, int] = {value: len(graph.nodes) for value in graph.results}
    found: list[Node] = []
    for index in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[index]
        until = reach.get(node, index)
        for part in shown[node]:
            if isinstance(part, Parameter) and any(index < k <= until for k in updates.get(part, ())):
                found.append(node)
                break
        # The operand of a copy is read here; that of a view is read until the view's last reader.
        shows = node.op.is_view and not (found and found[-1] is node)
        mutates = set(node.op.mutates)
        for operand, value in enumerate(node.inputs):
            if operand not in mutates and isinstance(value, Node):
                reach[value] = max(reach.get(value, 0), until if shows else index)
    return dict.fromkeys(reversed(found))


def _written(node: Node, shown: Mapping[Value, tuple[Part, ...]]) -> list[Part]:
    """Return the memory that a node overwrites."""
    return [shown[node.inputs[operand]][0] for operand in node.op.mutates]


DEVICE_ALIGNMENT = 256
"""Bytes to which places on a GPU are aligned."""


def bytes_inside(node: Node, arenas: Mapping[Graph, int]) -> int:
    """Return the bytes for values of the node's regions: of the largest region, as one runs at a time, and for a loop
    the values carried from the previous iteration. Results of a region are counted as results of the node.

    arenas: sizes of the regions' arenas, which include their results.
    """
    op = node.op
    if not isinstance(op, Loop):
        return max(max(0, arenas[region] - _bytes_of_results(region)) for region in node.regions)
    body = body_of(node)
    carried = body.results[: op.carried]
    several = op.known_iterations([value.type for value in node.inputs]) != 1
    kept = sum(value.type.nbytes for value in carried) if several else 0
    inside = arenas[body] + kept - _bytes_of_results(body, op.carried)
    return max(0, inside, *(arenas[region] for region in node.regions[:-1]))


def _bytes_of_results(graph: Graph, count: int | None = None) -> int:
    """Return the bytes of the first `count` results made by nodes, each once."""
    made: set[Value] = {value for value in graph.results[:count] if isinstance(value, Node)}
    return sum(value.type.nbytes for value in made)


def device_bytes_inside(node: Node, arenas: Mapping[Graph, int]) -> int:
    """Return the same on a GPU: all results of a region are in its arena, carried values use the memory of the node's
    results, and the entries of an iteration have separate memory, which comes first."""
    return device_bytes_of_entries(node) + max(arenas[region] for region in node.regions)


def device_bytes_of_entries(node: Node) -> int:
    """Return the bytes on a GPU for the entries that an iteration of a loop reads."""
    op = node.op
    if not isinstance(op, Loop):
        return 0
    types = [body_of(node).parameters[op.leading + op.carried + i].type for i in range(op.scanned)]
    sizes = [type.nbytes for type in types if not isinstance(type, StackType)]
    return sum(-(-size // DEVICE_ALIGNMENT) * DEVICE_ALIGNMENT for size in sizes)
