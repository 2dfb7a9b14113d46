"""Gives the dimensions of all values of some programs their divisors, by what the operators say (`dimensions.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import StackType, TensorType, TupleType, Type
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, Broadcast, NeighborExchange, ReduceScatter
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.ops.collective.row_exchange import FetchRows, SendRows
from mspc.ops.control.regions import Call, If, Loop, MakeStack, RegionOp
from mspc.ops.control.structural import Depend, MakeTuple, StopGradient, TupleGetItem, TupleGetItems
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.fused.grouped_update import GroupedUpdate
from mspc.ops.fused.update import FusedUpdate
from mspc.ops.nn.experts import AddRows, TakeRows
from mspc.verify.float64_graph import wide_type
from mspc.verify.scale.choices import choices, named_by
from mspc.verify.scale.computed_places import has_multiples
from mspc.verify.scale.dimensions import Divisors, Product
from mspc.verify.scale.kinds import RankKind, told_apart
from mspc.verify.scale.readers import Readers
from mspc.verify.scale.resizing import row_of
from mspc.verify.scale.rules import follow_rule
from mspc.verify.scale.said_of_sizes import Dim, Row
from mspc.verify.scale.traded import Traded

Dims = list[list[Product]]
"""For each tensor of a value the divisors of its dimensions."""
WITH_GROUPS = (AllGather, AllReduce, AlltoAll, Broadcast, ReduceScatter)
"""Collectives whose results have the dimensions of their operands, in other sizes."""


@dataclass
class Sizing:
    """The divisors of all dimensions of some programs."""

    divisors: Divisors = field(default_factory=Divisors)
    _dims: dict[Value, Dims] = field(default_factory=dict[Value, Dims])
    _named: dict[str, Dims] = field(default_factory=dict[str, Dims])
    _sent: dict[tuple[int, int, int], Dims] = field(default_factory=dict[tuple[int, int, int], Dims])
    _traded: Traded = field(default_factory=Traded)
    _done: set[Graph] = field(default_factory=set[Graph])
    found: dict[int, int] = field(default_factory=dict[int, int])
    _halves: list[Product] = field(default_factory=list[Product])
    _line_dims: dict[Node, Dims] = field(default_factory=dict[Node, Dims])
    """Of the lines of fused operators."""

    def dims(self, value: Value) -> Dims:
        """The divisors of a value's dimensions."""
        known = self._dims.get(value)
        if known is None:
            known = self._dims[value] = [[self.divisors.new() for _ in t.shape] for t in element_types(value.type)]
            for tensor, own in zip(element_types(value.type), known, strict=True):
                self._sized(tensor, own)
        return known

    def _sized(self, tensor: TensorType, dims: Sequence[Product]) -> None:
        for n, dim in zip(tensor.shape, dims, strict=True):
            self.divisors.divides(dim, n)

    def add(self, graph: Graph, kind: RankKind | None = None) -> None:
        """Note what the nodes of a program say. kind: whose program it is, None for one device."""
        for parameter in graph.parameters:
            own = self.dims(parameter)
            known = self._named.setdefault(parameter.name, own)
            self.same(known, own)
        self._graph(graph, kind)

    def same_results(self, one: Graph, other: Graph) -> None:
        """Let the results of two programs be of the same dimensions."""
        for a, b in zip(one.results, other.results, strict=False):
            if len(a.shape) == len(b.shape):
                self.same(self.dims(a), self.dims(b))

    def same(self, one: Dims, other: Dims) -> None:
        """Let tensors be of the same dimensions."""
        for a, b in zip(one, other, strict=True):
            for x, y in zip(a, b, strict=True):
                self.divisors.equal(x, y)

    def _graph(self, graph: Graph, kind: RankKind | None) -> None:
        if graph in self._done:
            return
        self._done.add(graph)
        for node in graph.nodes:
            self._node(node, kind)
        chosen = choices(graph.nodes)
        readers = Readers(graph) if chosen else None
        for node in chosen:
            assert readers is not None
            self._chosen(node, *named_by(node, readers))

    def _chosen(self, node: Node, named: Sequence[tuple[Node, Dim]], are_all: bool) -> None:
        """Let what numbers of chosen ones name be of one dimension with that of which these are."""
        whole = self.dims(node.inputs[0])[0][-1]
        size = node.inputs[0].shape[-1]
        for reader, dim in named:
            value: Value = reader if dim.of_result else reader.inputs[dim.tensor]
            if value.shape[dim.dimension] != size:  # a slice, or another table
                self.divisors.freeze(whole)
            self.divisors.equal(whole, self.dims(value)[0][dim.dimension])
        if not are_all:
            self.divisors.freeze(whole)

    def _node(self, node: Node, kind: RankKind | None) -> None:
        op: Any = node.op
        if isinstance(op, MakeTuple):
            self.same([d for v in node.inputs for d in self.dims(v)], self.dims(node))
        elif isinstance(op, TupleGetItem):
            self.same([self.dims(node.inputs[0])[op.index]], self.dims(node))
        elif isinstance(op, TupleGetItems):
            whole = self.dims(node.inputs[0])
            self.same([whole[i] for i in op.indices], self.dims(node))
        elif isinstance(op, Depend | StopGradient):
            self.same(self.dims(node.inputs[0]), self.dims(node))
        elif isinstance(op, MakeStack):
            for value in node.inputs:
                self.same(self.dims(value), self.dims(node))
        elif node.regions:
            self._regions(node, op, kind)
        else:
            operands = [d for v in node.inputs for d in self.dims(v)]
            types = [t for v in node.inputs for t in element_types(v.type)]
            ops = kind.ops_of(op) if kind is not None else (op,)
            if isinstance(op, FetchRows | SendRows | TakeRows | AddRows) and has_multiples(node.inputs[1]):
                self._keep_rows(op, operands, self.dims(node))
            if isinstance(op, NeighborExchange) and kind is not None:
                for one, other in self._traded.same(ops, operands, self.dims(node), kind):
                    self.same([one], [other])
            for own in told_apart(ops)[0]:
                if isinstance(own, FusedElementwise):
                    lines = self._line_dims[node] = self._lines(own, types, operands, self._line_dims.get(node))
                    self.same([lines[i] for i in own.returns], self.dims(node))
                    continue
                self._operator(own, types, operands, list(element_types(node.type)), self.dims(node), kind)

    def _keep_rows(self, op: Any, operands: Dims, made: Dims) -> None:
        """Let a table have as many rows as it has: it is looked up at places that would be behind the last one."""
        table = operands[0] if isinstance(op, FetchRows | TakeRows) else made[0]
        self.divisors.freeze(table[0])

    def _operator(
        self, op: Any, types: Sequence[TensorType], operands: Dims, results: Sequence[TensorType], made: Dims,
        kind: RankKind | None = None,
    ) -> None:  # fmt: skip
        if isinstance(op, FusedUpdate):
            lines = self._lines(op, types, operands)
            self.same([lines[i] for i in op.writes], made)
            self.same(operands[: len(op.writes)], made)
        elif isinstance(op, GroupedUpdate):
            count = op.member.outputs
            for number, start in enumerate(range(0, len(types), op.width)):
                own = slice(start, start + op.width)
                place = slice(number * count, (number + 1) * count)
                self._operator(op.member, types[own], operands[own], results[place], made[place])
        elif isinstance(op, SendToStage | ReceiveFromStage):
            self._message(op, operands, made, results, kind)
        elif isinstance(op, Collective):
            self._collective(op, types, operands, results, made)
        else:
            row = row_of(op, types, results)
            self._row(row, operands, made)
            if row.by_rule:
                follow_rule(self.divisors, op, types, operands, made)

    def _row(self, row: Row, operands: Dims, made: Dims) -> None:
        def product(dim: Dim) -> Product:
            return (made if dim.of_result else operands)[dim.tensor][dim.dimension]

        for dim in row.frozen:
            self.divisors.freeze(product(dim))
        for a, b in row.same:
            self.divisors.equal(product(a), product(b))
        for number in row.numbers:
            if not number.over:
                self.divisors.divides(product(number.along), number.value)
        for dim, size in row.sizes:
            self.divisors.divides(product(dim), size)
        for dim, size, least in row.least:
            self.divisors.leaves(product(dim), size, least)
        for dim, size, other, of, ways in row.room:
            self.divisors.has_room(product(dim), size, product(other), of, ways)
        self._halves += [product(dim) for dim in row.halves]

    def _lines(
        self, op: FusedElementwise | FusedUpdate, types: Sequence[TensorType], operands: Dims, known: Dims | None = None
    ) -> Dims:
        """The dimensions of every line's result; `known` of an operator whose lines are the same but for numbers."""
        found: list[TensorType] = []
        dims: Dims = []
        for number, step in enumerate(steps_of(op) if isinstance(op, FusedElementwise) else op.lines()):
            given = [(types if k == "x" else found)[i] for k, i in step.operands]
            own = step.op.infer(*given)
            assert isinstance(own, TensorType)
            found.append(own)
            dims.append([self.divisors.new() for _ in own.shape] if known is None else known[number])
            self._sized(own, dims[-1])
            read = [(operands if k == "x" else dims)[i] for k, i in step.operands]
            self._operator(step.op, given, read, [own], [dims[-1]])
        return dims

    def line_dims(self, node: Node) -> Dims:
        """The dimensions of the lines of a fused operator."""
        return self._line_dims[node]

    def _collective(
        self, op: Collective, types: Sequence[TensorType], operands: Dims, results: Sequence[TensorType], made: Dims
    ) -> None:
        if isinstance(op, NeighborExchange):  # slices of one tensor, or of alike ones
            tensors = [*operands, *made]
            for dims in tensors:
                if len(dims) == len(tensors[0]):
                    self.same([tensors[0]], [dims])
            self._row(row_of(op, types, results), operands, made)
        elif isinstance(op, FetchRows | SendRows):
            self._row(row_of(op, types, results), operands, made)
        elif isinstance(op, WITH_GROUPS) and len(operands) == len(made):
            self.same(operands, made)
        else:
            for dim in (d for dims in (*operands, *made) for d in dims):
                self.divisors.freeze(dim)

    def _message(
        self, op: Any, operands: Dims, made: Dims, results: Sequence[TensorType], kind: RankKind | None
    ) -> None:
        assert kind is not None
        if operands:
            self.same(operands, made)
        else:
            self._row(row_of(op, (), results), operands, made)
        back = 0 if isinstance(op, SendToStage) else op.distance
        for rank in kind.ranks:  # kinds of two stages need not be the same ranks
            other = self._sent.setdefault((rank - back, op.distance, op.sr_tag), made)
            if other is not made and len(other[0]) == len(made[0]):
                self.same(other, made)

    def _regions(self, node: Node, op: RegionOp, kind: RankKind | None) -> None:
        if isinstance(op, Call):
            region = node.regions[0]
            given = [[d] for v in node.inputs for d in self.dims(v)]
            for dims, parameter in zip(given, region.parameters, strict=True):
                self.same(dims, self.dims(parameter))
            self._graph(region, kind)
            self.same([d for v in region.results for d in self.dims(v)], self.dims(node))
            return
        if isinstance(op, If):
            for region in node.regions:
                for value, parameter in zip(node.inputs[1:], region.parameters, strict=True):
                    self.same(self.dims(value), self.dims(parameter))
                self._graph(region, kind)
                self.same([d for v in region.results for d in self.dims(v)], self.dims(node))
            return
        assert isinstance(op, Loop)
        for region in node.regions:
            for index, value in enumerate(node.inputs):
                place = op.inside(0, index)
                if place is None or place >= len(region.parameters):
                    continue
                outer, inner = self.dims(value), self.dims(region.parameters[place])
                if index in op.scanned_operands and not isinstance(value.type, StackType):
                    self.divisors.freeze(outer[0][0])
                    outer = [outer[0][1:]]
                self.same(outer, inner)
            self._graph(region, kind)
        self._loop_results(node, op)

    def _loop_results(self, node: Node, op: Loop) -> None:
        body = node.regions[-1]
        made = self.dims(node)
        behind = len(made) - op.stacked
        for place, value in enumerate(body.results):
            own = self.dims(value)[0]
            if place < op.carried:
                self.same([own], [made[place]])
                continue
            outer = made[behind + place - op.carried]
            if len(outer) == len(own) + 1:
                self.divisors.freeze(outer[0])
                outer = outer[1:]
            self.same([own], [outer])

    # The small programs

    def all_dims(self) -> Mapping[Value, Dims]:
        """The divisors of the dimensions of all values, operands ahead of what is made of them."""
        return self._dims

    def keep(self, values: Iterable[Value]) -> bool:
        """Let all dimensions of some values keep their sizes; whether any of them did not."""
        before = len(self.divisors.frozen)
        for value in values:
            for dim in (dim for dims in self.dims(value) for dim in dims):
                self.divisors.freeze(dim)
        return len(self.divisors.frozen) > before

    def resolve(self) -> None:
        """Choose the divisors."""
        self.found = self.divisors.values()
        for product in self._halves:
            for unknown in self.divisors.resolved(product):
                n = self.found.get(unknown, 1)
                self.found[unknown] = n // 2 if n % 2 == 0 else 1

    def divisor(self, product: Product) -> int:
        """The number by which a dimension is divided."""
        return self.divisors.value(product, self.found)

    def shape(self, tensor: TensorType, dims: Sequence[Product]) -> tuple[int, ...]:
        """The shape divided. Raises ValueError where it cannot be."""
        found: list[int] = []
        for n, dim in zip(tensor.shape, dims, strict=True):
            by = self.divisor(dim)
            if n % by:
                raise ValueError(f"{n} does not divide by {by}")
            found.append(n // by)
        return tuple(found)

    def type(self, value: Value) -> Type:
        """The type of a value in the small program."""
        dims = self.dims(value)
        if isinstance(value.type, TupleType):
            return TupleType(
                tuple(self._tensor(t, own) for t, own in zip(value.type.elements, dims, strict=True))
            )
        assert isinstance(value.type, TensorType)
        return self._tensor(value.type, dims[0])

    def _tensor(self, tensor: TensorType, dims: Sequence[Product]) -> TensorType:
        wide = wide_type(TensorType(tensor.dtype, self.shape(tensor, dims)))
        assert isinstance(wide, TensorType)
        if isinstance(tensor, StackType):
            return StackType(wide.dtype, wide.shape, tensor.depth)
        return wide
