"""Recompute, within a fused kernel, values it would otherwise read from memory, if that moves fewer bytes.

Input:  `%1 = FusedElementwise(%x, ...) {body: ("Cast(x0, dst_type=Float32)", ...), returns: (0, 2)}`, and a kernel that
        reads %x and the conversion of %x, which is twice as large
Output: a kernel that reads %x alone and converts it itself; nobody stores the conversion

A value is recomputed from the operands or results of its own kernel, if unchanged since: always if
the reader has all of them already or they are smaller than the value. If all readers of the value can recompute it,
it need not be stored: then they may read more than the value has, as long as fewer bytes move than before and their
operands need not be stored longer instead (except for a little, as the means of channels beside an image).

Values compared for equality, as by the gradient of a maximum, are recomputed by the same lines from the same operands
alone: a kernel goes on with values in registers, and values made from its stored, rounded results are not equal.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from dataclasses import field
from typing import Any, cast

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, TupleType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import BodyLine, along_rows, by_element, reshapes, row_axes
from mspc.ops.fused.elementwise import FusedElementwise, space_of_steps, steps_of
from mspc.ops.fused.kernel import divided, row_of, space_of
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Reshape
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.fusion_groups import MAX_LINES, MAX_OPERANDS, NodeLines, Source, enough_rows
from mspc.passes.fusion.rewriter import parts_of

LITTLE = 64
"""A part of a value's bytes that may be stored longer beside what is stored in its place."""


class RecomputeElementwise(Pass):
    def run(self, graph: Graph) -> bool:
        kernels = _Kernels(graph)
        changed = False
        for kernel in kernels.of.values():
            for value in kernel.operands():
                changed = kernels.recompute(kernel, value) or changed
            changed = kernels.recompute_together(kernel) or changed
        if not changed:
            return False
        replaced: dict[Value, Value] = {}
        for kernel in kernels.of.values():
            kernel.put_back(kernels, replaced)
        graph.replace(replaced)
        remove_dead(graph)
        return True


@dataclass(eq=False)
class _Kernel:
    """An elementwise node.

    lines: (operator, operands). results: the lines whose values others read, by these values. position: in the graph.
    size, row, cuts: of the space of the lines, row 0 if it has no rows. ends: reductions that no line can read. by_row:
    lines with a value for every row. changed: lines were added.
    """

    node: Node
    position: int
    size: int
    row: int
    cuts: set[int]
    lines: list[tuple[Op, list[Source]]]
    results: dict[Value, int]
    ends: set[int]
    by_row: set[int]
    changed: bool = False

    def operands(self) -> list[Value]:
        """Return the values from outside, once each."""
        found = [s for _, sources in self.lines for s in sources if isinstance(s, Value)]
        return list(dict.fromkeys(found))

    def goes_along_rows(self, line: int) -> bool:
        """Return whether a line needs more than one element of a row, or is a row's value."""
        return line in self.by_row or along_rows(self.lines[line][0])

    def compares(self, value: Value) -> bool:
        """Return whether a line that takes all bits of its operands is computed from a value."""
        found = self._needed(line for line, (op, _) in enumerate(self.lines) if op.takes_all_bits)
        return any(value in self.lines[line][1] for line in found)

    def put_back(self, kernels: _Kernels, replaced: dict[Value, Value]) -> None:
        """Write the lines and the results that are still read to the node; a single one is the node itself."""
        live = {v: line for v, line in self.results.items() if kernels.is_read(v)}
        if not live or (not self.changed and len(live) == len(self.results)):
            return
        needed = self._needed(live.values())
        number = {old: new for new, old in enumerate(needed)}
        lines = [
            (op, tuple(s if isinstance(s, Value) else ("t", number[s[1]]) for s in sources))
            for op, sources in map(self.lines.__getitem__, needed)
        ]
        returns = list(dict.fromkeys(live.values()))
        node, types = self.node, {line: value.tensor_type for value, line in live.items()}
        node.attrs["fused"] = parts_of(node)
        kernel = NodeLines(lines, tuple(number[line] for line in returns))
        shows = len(lines) == 1 and reshapes(lines[0][0])  # and is no copy
        node.op, node.inputs = lines[0][0] if shows else kernel.fused(), list(kernel.operands)
        node.type = types[returns[0]] if len(returns) == 1 else TupleType(tuple(types[line] for line in returns))
        for value, line in live.items():
            if value is node:
                continue
            part = cast(Node, value)
            part.op = TupleGetItem(returns.index(line))
            if len(returns) == 1:
                node.name = part.name
                replaced[part] = node

    def _needed(self, lines: Iterable[int]) -> list[int]:
        found: dict[int, None] = {}

        def visit(line: int) -> None:
            if line in found:
                return
            for source in self.lines[line][1]:
                if not isinstance(source, Value):
                    visit(source[1])
            found[line] = None

        for line in sorted(lines):
            visit(line)
        plain = [line for line in found if line not in self.ends]
        return [*plain, *(line for line in found if line in self.ends)]


@dataclass
class _Again:
    """A value as it would be computed again: lines of its kernel in order, and the values that they read.

    more: bytes of those that the reader does not read by itself.
    """

    lines: list[int] = field(default_factory=list[int])
    leaves: dict[Value, None] = field(default_factory=dict[Value, None])
    stops: dict[int, Value] = field(default_factory=dict[int, Value])
    more: int = 0


class _Kernels:
    """All elementwise nodes of a graph, and the makers and readers of values. A view of a kernel's result is a line of
    the kernels that read all its elements one by one."""

    def __init__(self, graph: Graph) -> None:
        self.updates = Updates(graph)
        self.users = graph.users()
        self.returned = set(graph.results)
        self.position: dict[Value, int] = {node: i for i, node in enumerate(graph.nodes)}
        self.of: dict[Node, _Kernel] = {}
        self.makers: dict[Value, _Kernel] = {}
        self.shown: dict[Value, Value] = {}
        for node in graph.nodes:
            kernel = self._kernel(node)
            if kernel is not None:
                self.of[node] = kernel
                self.makers.update(dict.fromkeys(kernel.results, kernel))
            elif reshapes(node.op) and (root := self.shown.get(node.inputs[0], node.inputs[0])) in self.makers:
                self.shown[node] = root
        self.readers: dict[Value, set[_Kernel | None]] = {value: set() for value in self.makers}
        for node in graph.nodes:
            kernel = self.of.get(node)
            if kernel is None and node in self.shown and self._only_kernels_read(node):
                continue
            for value in node.inputs if kernel is None else kernel.operands():
                if value in self.readers:
                    self.readers[value].add(kernel)

    @iterative
    def _only_kernels_read(self, view: Node) -> Generator[Any, bool, bool]:
        """Return True if only kernels read a view; they can read the value it shows instead."""
        if view in self.returned:
            return False
        for user, _ in self.users.get(view, ()):
            kernel = self.of.get(user)
            if kernel is None and not (user in self.shown and (yield self, user)):
                return False
            if kernel is not None and kernel.size != view.tensor_type.size:
                return False
        return True

    def _kernel(self, node: Node) -> _Kernel | None:
        position, returns = self.position[node], (0,)
        if isinstance(node.op, FusedElementwise):
            steps, returns = steps_of(node.op), node.op.returns
            space = space_of_steps(node.op, [value.tensor_type for value in node.inputs])
        elif (step := self._single(node)) is not None:
            steps = (step,)
            space = space_of([step.op.name], steps, [value.tensor_type for value in node.inputs], [node.tensor_type])
        else:
            return None
        results: dict[Value, int] = {node: returns[0]}
        if len(returns) > 1:
            users = [user for user, _ in self.users.get(node, ())]
            if node in self.returned or not all(isinstance(user.op, TupleGetItem) for user in users):
                return None
            results = {user: returns[cast(TupleGetItem, user.op).index] for user in users}
        lines: list[tuple[Op, list[Source]]] = []
        views: dict[Value, Source] = {}
        size, row = math.prod(space.dims), space.row if space.columns else 0
        place: list[int] = []
        for step in steps:
            sources: list[Source] = []
            for kind, i in step.operands:
                source: Source = node.inputs[i] if kind == "x" else ("t", place[i])
                if isinstance(source, Value) and source.tensor_type.size == size:
                    source = self._seen_through(source, lines, views)
                sources.append(source)
            place.append(len(lines))
            lines.append((step.op, sources))
        ends = {place[i] for i, step in enumerate(steps) if step.reduces and i not in space.by_row}
        by_row = {place[i] for i in space.by_row}
        cuts = {math.prod(space.dims[d:]) for d in range(1, len(space.dims))}
        made = {value: place[i] for value, i in results.items()}
        return _Kernel(node, position, size, row, cuts, lines, made, ends, by_row)

    def _single(self, node: Node) -> BodyLine | None:
        """Return the line of a node in no group, or None."""
        member = (by_element(node.op) or along_rows(node.op)) and isinstance(node.type, TensorType)
        if not member or not all(isinstance(value.type, TensorType) for value in node.inputs):
            return None
        types = [value.tensor_type for value in node.inputs]
        axes = row_axes(cast(Op, node.op), types) if along_rows(node.op) else None
        if axes is not None and not row_of(types[0].shape, axes):
            return None
        return BodyLine(cast(Op, node.op), tuple(("x", i) for i in range(len(node.inputs))))

    def _seen_through(self, value: Value, lines: list[tuple[Op, list[Source]]], views: dict[Value, Source]) -> Source:
        """Return a line that shows a kernel's result as `value` does, or the value itself."""
        root = self.shown.get(value)
        if root is None:
            return value
        if value not in views:
            views[value] = ("t", len(lines))
            lines.append((Reshape(value.shape), [root]))
        return views[value]

    def is_read(self, value: Value) -> bool:
        """Return whether anybody still reads a value."""
        return value in self.returned or bool(self.readers[value])

    def recompute(self, kernel: _Kernel, value: Value) -> bool:
        """Recompute a value in a kernel that reads it, or in all that do, if that is better; return True if it is."""
        found = self._best(kernel, value)
        if found is None:
            return False
        nbytes = value.tensor_type.nbytes
        if found.more < nbytes or (self._alone(kernel, value) and found.more <= nbytes):
            self._inline(kernel, value, found)
            return True
        readers = self._readers_of(value)
        every = [self._best(reader, value) for reader in readers]
        known = [again for again in every if again is not None]
        if not readers or len(known) < len(every):
            return False
        # Nobody stores the value then, which saves a write; what it is made of may have to be stored for longer.
        leaves = dict.fromkeys(leaf for again in known for leaf in again.leaves)
        if sum(again.more for again in known) >= nbytes * (len(readers) + 1):
            return False
        if self._stored_longer(leaves, readers[-1]) > nbytes + nbytes // LITTLE:
            return False
        for reader, again in zip(readers, known, strict=True):
            self._inline(reader, value, again)
        return True

    def recompute_together(self, kernel: _Kernel) -> bool:
        """Recompute all values that a kernel alone reads, if that is better although it is not for each; return True if
        it is."""
        values = [v for v in kernel.operands() if v in self.makers and self._alone(kernel, v)]
        found = {value: again for value in values if (again := self._best(kernel, value)) is not None}
        if len(found) < 2:
            return False
        own = set(kernel.operands()) - found.keys()
        leaves = dict.fromkeys(leaf for again in found.values() for leaf in again.leaves if leaf not in own)
        nbytes = sum(value.tensor_type.nbytes for value in found)
        more = sum(leaf.tensor_type.nbytes for leaf in leaves)
        if more >= 2 * nbytes or self._stored_longer(leaves, kernel) > nbytes + nbytes // LITTLE:
            return False
        for value in found:
            again = self._best(kernel, value)
            if again is None:
                break
            self._inline(kernel, value, again)
        return True

    def _stored_longer(self, leaves: Iterable[Value], reader: _Kernel) -> int:
        """Return the bytes that are stored only because of a reader."""
        return sum(leaf.tensor_type.nbytes for leaf in leaves if self._ends(leaf) < reader.position)

    def _alone(self, kernel: _Kernel, value: Value) -> bool:
        return value not in self.returned and self.readers[value] == {kernel}

    def _readers_of(self, value: Value) -> list[_Kernel]:
        """Return the kernels that read a value if nothing else does, else none."""
        readers = self.readers[value]
        if value in self.returned or None in readers:
            return []
        return sorted(cast("set[_Kernel]", readers), key=lambda kernel: kernel.position)

    def _ends(self, value: Value) -> int:
        if not isinstance(value, Node) or value in self.returned:
            return len(self.position)
        readers = [kernel.position for kernel in self.readers.get(value, ()) if kernel is not None]
        return max([*readers, *(self.position[user] for user, _ in self.users.get(value, ()))], default=-1)

    def _best(self, kernel: _Kernel, value: Value) -> _Again | None:
        """Return the recomputation of a value in a kernel that reads fewest bytes, or None."""
        maker = self.makers.get(value)
        if maker is None or maker is kernel or not value.tensor_type.size == kernel.size == maker.size:
            return None
        line = maker.results[value]
        if line in maker.ends or line in maker.by_row:
            return None
        own = set(kernel.operands()) - {value}
        ways = [self._again(maker, line, stored) for stored in ((False,) if kernel.compares(value) else (True, False))]
        ways = [again for again in ways if again.lines and self._may(kernel, maker, again, own)]
        for again in ways:
            again.more = sum(leaf.tensor_type.nbytes for leaf in again.leaves if leaf not in own)
        return min(ways, key=lambda again: again.more, default=None)

    def _again(self, maker: _Kernel, line: int, stored: bool) -> _Again:
        """Return the recomputation of a line from the operands of its kernel, or with `stored` from its other
        results."""
        again = _Again()
        others = {i: v for v, i in maker.results.items() if i != line and self.is_read(v)} if stored else {}

        def visit(number: int) -> None:
            if number in others:
                again.stops[number] = others[number]
                again.leaves[others[number]] = None
                return
            if number in again.lines:
                return
            for source in maker.lines[number][1]:
                if isinstance(source, Value):
                    again.leaves[source] = None
                else:
                    visit(source[1])
            again.lines.append(number)

        visit(line)
        return again

    def _may(self, kernel: _Kernel, maker: _Kernel, again: _Again, own: set[Value]) -> bool:
        """Return True if there is room, and the operands are unchanged."""
        leaves = list(again.leaves)
        room = len(kernel.lines) + len(again.lines) <= MAX_LINES and len(own.union(leaves)) <= MAX_OPERANDS
        row = maker.row if any(maker.goes_along_rows(line) for line in again.lines) else 0
        if row and (kernel.ends or kernel.row not in (0, row) or not enough_rows(kernel.size, row)):
            return False
        if divided(kernel.size, {*kernel.cuts, *maker.cuts}) is None:
            return False
        return room and not self.updates.between(leaves, maker.position, kernel.position)

    def _inline(self, kernel: _Kernel, value: Value, again: _Again) -> None:
        maker = self.makers[value]
        known = {(op, tuple(map(_key, sources))): i for i, (op, sources) in enumerate(kernel.lines)
                 if i not in kernel.ends}  # fmt: skip
        number: dict[int, Source] = dict(again.stops)
        for old in again.lines:
            op, sources = maker.lines[old]
            read = [source if isinstance(source, Value) else number[source[1]] for source in sources]
            key = (op, tuple(map(_key, read)))
            if key not in known:
                known[key] = len(kernel.lines)
                kernel.lines.append((op, read))
            number[old] = ("t", known[key])
        for _, sources in kernel.lines:
            sources[:] = [number[maker.results[value]] if source is value else source for source in sources]
        kernel.changed = True
        kernel.cuts |= maker.cuts
        kernel.by_row |= {cast("tuple[str, int]", number[old])[1] for old in again.lines if old in maker.by_row}
        if any(maker.goes_along_rows(old) for old in again.lines):
            kernel.row = maker.row
        self.readers[value].discard(kernel)
        for leaf in again.leaves:
            if leaf in self.readers:
                self.readers[leaf].add(kernel)


def _key(source: Source) -> object:
    return id(source) if isinstance(source, Value) else source

