"""Removes unneeded values at the boundaries of regions: results that no node reads, operands that no region reads,
constants that are handed in, and values that are handed in twice.

Input:  `%1 = If(%0, %x, %y, Tensor(2.0)) {regions: @then, @else}` of which nobody reads result 1, and no region %y
Output: `%1 = If(%0, %x) {regions: @then, @else}`, whose regions return one tensor, and hold the 2.0 they read

A loop goes on carrying values that another result, or its condition, depends on. Nodes that run the same regions are
changed together, if they do not need the same values. A tuple that only calls read loses the elements that they do not
read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ir.types import TupleType, Type
from mspc.ir.varying import VaryingConstant
from mspc.ops.control.regions import Effects, If, Loop, RegionOp, While, with_effects
from mspc.ops.control.structural import MakeTuple, TupleGetItem, TupleGetItems, extracted_elements
from mspc.passes.base import live_values, runs_anyway


def simplify_borders(program: Graph) -> bool:
    """Simplify all nodes of a program that run regions, outer ones first, and return whether anything changed. The
    caller removes nodes inside of the regions that are dead then."""
    graphs = program.graphs()
    reads = _Reads(graphs)
    groups: dict[tuple[Graph, ...], list[Node]] = {}
    for graph in graphs:
        for node in graph.nodes:
            if node.regions:
                groups.setdefault(node.regions, []).append(node)
    met = Counter(region for regions in groups for region in regions)
    changed = False
    for regions, nodes in groups.items():
        if all(met[region] == 1 for region in regions) and _are_alike(nodes):
            changed |= _Border(regions, nodes, reads, "rank" not in program.attrs).simplify()
    reads.renumber_gradients()
    return changed


def _are_alike(nodes: Sequence[Node]) -> bool:
    """Return whether nodes have equal operators, and operands of equal types, as far as that counts at a boundary."""
    told: dict[tuple[int, ...], Node] = {}  # by ids, which calls of one graph share: hashes take long
    for node in nodes:
        told.setdefault((id(node.op), *[id(value.type) for value in node.inputs]), node)
    return len({(_plain(node), _tuples(node)) for node in told.values()}) == 1


def _plain(node: Node) -> RegionOp:
    """Return the operator without fields that follow from its operands."""
    effects = {"mutates": (), "has_side_effect": False, "is_collective": False}
    return replace(cast(RegionOp, node.op), **effects)


def _tuples(node: Node) -> tuple[tuple[int, int], ...]:
    types = enumerate(value.type for value in node.inputs)
    return tuple((place, len(type.elements)) for place, type in types if isinstance(type, TupleType))


class _Reads:
    """Who reads which results of nodes that run regions, in a program of these graphs."""

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self.items: dict[Node, list[Node]] = {}
        self.whole: set[Value] = set()
        """Nodes whose tuple is read as it is."""
        self.of_tuples: dict[Value, list[Node | None]] = {}
        """Who reads the tuples that calls may be given; None if one is returned."""
        self._gradients: dict[Node, list[Node]] = {}
        self._moved: dict[Node, dict[int, int]] = {}
        for graph in graphs:
            for value in graph.results:
                if isinstance(value, Node) and value.regions:
                    self.whole.add(value)
                elif isinstance(value.type, TupleType):
                    self.of_tuples.setdefault(value, []).append(None)
            for node in graph.nodes:
                if node.forward is not None and node.forward.regions and node.forward_input >= 0:
                    self._gradients.setdefault(node.forward, []).append(node)
                for value in node.inputs:
                    if isinstance(value, Node) and value.regions:
                        if extracted_elements(node.op) is not None:
                            self.items.setdefault(value, []).append(node)
                        else:
                            self.whole.add(value)
                    elif isinstance(value.type, TupleType):
                        self.of_tuples.setdefault(value, []).append(node)

    def numbers(self, node: Node) -> set[int]:
        if node in self.whole:
            return set(range(len(node.type.elements)))  # type: ignore[union-attr]  # it is a tuple
        return {number for item in self.items.get(node, ()) for number in extracted_elements(item.op) or ()}

    def can_narrow(self, value: Value, by: Sequence[Node]) -> bool:
        """Return whether a tuple may lose elements that these nodes do not read, each of which reads it once."""
        made = isinstance(value, Node) and isinstance(value.op, MakeTuple | TupleGetItems) and value.layout is None
        readers = self.of_tuples.get(value, ())
        return made and len(readers) == len(set(readers)) and set(readers) <= set(by)

    def remember_operands(self, node: Node, kept: Sequence[int]) -> None:
        """Which operands a node has left."""
        before = self._moved.get(node)
        if before is None:
            self._moved[node] = {number: place for place, number in enumerate(kept)}
        else:
            self._moved[node] = {number: kept.index(place) for number, place in before.items() if place in kept}

    def renumber_gradients(self) -> None:
        """Let gradients of operands name them by their new numbers."""
        for forward, moved in self._moved.items():
            for node in self._gradients.get(forward, ()):
                node.forward_input = moved.get(node.forward_input, -1)


class _Border:
    """The nodes that run some regions. shown: whether nodes with a strategy stay, used or not."""

    def __init__(self, regions: tuple[Graph, ...], nodes: list[Node], reads: _Reads, shown: bool) -> None:
        self.regions = regions
        self.nodes = nodes
        self.reads = reads
        self.shown = shown

    @property
    def op(self) -> RegionOp:
        return cast(RegionOp, self.nodes[0].op)

    def simplify(self) -> bool:
        changed = self.drop_results()
        changed |= self.take_in()
        return self.drop_operands() or changed

    # Results --------------------------------------------------------------------------------------------------

    def drop_results(self) -> bool:
        """Drop results that nobody reads, and with them values that loops carry for nothing."""
        op = self.op
        read = {number for node in self.nodes for number in self.reads.numbers(node)}
        counts = 1 if isinstance(op, While) and op.returns_count else 0
        body = self.regions[-1]
        kept = set(range(len(body.results))) & read
        if isinstance(op, Loop):
            kept = {i for i in range(op.carried) if i in read}
            kept |= {k for k in range(op.carried, op.carried + op.stacked) if k + counts in read}
            self.carry_on(op, kept)
        results = sorted(kept)
        outside = list(results)
        changed: RegionOp = op
        gone: list[int] = []
        if isinstance(op, Loop):
            carried = [i for i in results if i < op.carried]
            gone = [op.first + i for i in range(op.carried) if i not in kept]
            changed = replace(op, carried=len(carried), stacked=len(results) - len(carried))
            if isinstance(changed, While):
                is_read = op.carried in read and counts > 0
                changed = replace(changed, counted=is_read and not changed.stacked)
                stacks = [k + 1 for k in results if k >= op.carried]
                outside = [*carried, *([op.carried] if changed.returns_count else []), *stacks]
        if len(kept) == len(body.results) and changed == op:
            return False
        for region in self.regions if not isinstance(op, Loop) else (body,):
            region.results = [region.results[k] for k in results]
            region.returns_tuple = True
        for node in self.nodes:
            for item in self.reads.items.get(node, ()):
                if isinstance(item.op, TupleGetItems):
                    item.op = TupleGetItems(tuple(map(outside.index, item.op.indices)))
                else:
                    assert isinstance(item.op, TupleGetItem)
                    item.op = TupleGetItem(outside.index(item.op.index))
            if isinstance(node.layout, tuple) and node.layout:
                node.layout = tuple(node.layout[k] for k in outside)
        self.remove(gone, changed)
        return True

    def carry_on(self, op: Loop, kept: set[int]) -> None:
        """Add to the results that are kept the values that a later iteration needs."""
        body = self.regions[-1]
        asked = {
            i for region in self.regions[:-1] for read in [_read(region)] for i in range(op.carried)
            if region.parameters[i] in read
        }  # fmt: skip
        kept |= asked
        shown = {node for node in body.nodes if self.shown and node.in_strategy is not None and node.phase == "forward"}
        count = -1
        while len(kept) != count:
            count = len(kept)
            live = live_values(body.nodes, [body.results[k] for k in kept], lambda n: n in shown or runs_anyway(n))
            kept |= {i for i in range(op.carried) if body.parameters[op.leading + i] in live}

    # Operands -------------------------------------------------------------------------------------------------

    def captured(self) -> range:
        op = self.op
        first = op.scanned_operands.stop if isinstance(op, Loop) else 1 if isinstance(op, If) else 0
        return range(first, len(self.nodes[0].inputs))

    def take_in(self) -> bool:
        """Let regions have constants of their own, and read one parameter for a value that is handed in twice."""
        if any(node.layout is not None for node in self.nodes):
            return False
        written = {index for node in self.nodes for index in node.op.mutates}
        kept: dict[tuple[Value, ...], int] = {}
        read = list(map(_read, self.regions))
        taken: list[dict[Value, Value]] = [{} for _ in self.regions]
        for operand in self.captured():
            if operand in written or isinstance(self.nodes[0].inputs[operand].type, TupleType):
                continue
            constant = self.same_constant(operand)
            handed = tuple(node.inputs[operand] for node in self.nodes)
            twin = kept.setdefault(handed, operand) if constant is None else None
            if twin == operand:
                continue
            for number, region in enumerate(self.regions):
                place = self.op.inside(number, operand)
                other = None if twin is None else self.op.inside(number, twin)
                if place is None:
                    continue
                value = constant if other is None else region.parameters[other]
                assert value is not None
                if region.parameters[place] in read[number]:
                    taken[number][region.parameters[place]] = value
        for region, mapping in zip(self.regions, taken, strict=True):
            if mapping:
                region.replace(mapping)
        return any(taken)

    def same_constant(self, operand: int) -> Constant | None:
        """Return the constant that all nodes hand in, if they do."""
        values = [node.inputs[operand] for node in self.nodes]
        first = values[0]
        if not isinstance(first, Constant) or isinstance(first, VaryingConstant):
            return None
        same = all(
            isinstance(v, Constant) and v.type == first.type and v.value.tobytes() == first.value.tobytes()
            for v in values
        )
        return first if same else None

    def drop_operands(self) -> bool:
        """Operands that no region reads, and elements of those that are tuples."""
        narrowed = [self.narrow(operand) for operand, _ in _tuples(self.nodes[0])]
        op = self.op
        candidates = [*(op.scanned_operands if isinstance(op, Loop) else ()), *self.captured()]
        read: set[int] = set()
        for number, region in enumerate(self.regions):
            found = _read(region)
            places = enumerate(self.places(number))
            read |= {operand for operand, inside in places if any(region.parameters[p] in found for p in inside)}
        gone = [operand for operand in candidates if operand not in read]
        if not gone:
            if any(narrowed):
                self.remove((), op)
            return any(narrowed)
        if isinstance(op, Loop):
            op = replace(op, scanned=op.scanned - sum(operand in op.scanned_operands for operand in gone))
        self.remove(gone, op)
        return True

    def places(self, number: int) -> list[range]:
        """For every operand the numbers of the parameters of region `number` that stand for it."""
        return self.op.places(number, [value.type for value in self.nodes[0].inputs])

    def narrow(self, operand: int) -> bool:
        """Take the elements that the region does not read out of an operand, a tuple."""
        (region,) = self.regions
        inside, read = self.places(0)[operand], _read(region)
        kept = [element for element, place in enumerate(inside) if region.parameters[place] in read]
        tuples = dict.fromkeys(node.inputs[operand] for node in self.nodes)
        if not 0 < len(kept) < len(inside) or not all(self.reads.can_narrow(value, self.nodes) for value in tuples):
            return False
        gone = set(inside) - {inside[element] for element in kept}
        region.parameters = [p for place, p in enumerate(region.parameters) if place not in gone]
        left = region.parameters[inside.start : inside.start + len(kept)]
        type = TupleType(tuple(parameter.tensor_type for parameter in left))
        for value in tuples:
            assert isinstance(value, Node)
            if isinstance(value.op, TupleGetItems):
                value.op = TupleGetItems(tuple(value.op.indices[element] for element in kept))
            else:
                value.inputs = [value.inputs[element] for element in kept]
            value.type = type
        return True

    def remove(self, gone: Sequence[int], changed: RegionOp) -> None:
        """Take operands and their parameters away; the nodes have the operator `changed` then."""
        left = set(gone)
        known: dict[Graph, Effects] = {}
        type: Type | None = None
        for number, region in enumerate(self.regions):
            inside = self.places(number)
            places = {place for operand in gone for place in inside[operand]}
            region.parameters = [p for i, p in enumerate(region.parameters) if i not in places]
        for node in self.nodes:
            kept = [i for i in range(len(node.inputs)) if i not in left]
            if len(kept) < len(node.inputs):
                self.reads.remember_operands(node, kept)
            node.inputs = [node.inputs[i] for i in kept]
            if node.in_layouts is not None:
                node.in_layouts = tuple(node.in_layouts[i] for i in kept)
            own = with_effects(changed, node.inputs, self.regions, known)
            node.op = own  # type: ignore[assignment]  # fields, see RegionOp
            if type is None:
                type = own.results_of(self.regions, [value.type for value in node.inputs])
            node.type = type


def _read(region: Graph) -> set[Value]:
    """Return the values that a region reads or returns."""
    return {*region.results, *(value for node in region.nodes for value in node.inputs)}
