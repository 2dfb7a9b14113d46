"""Finds by which whole numbers the dimensions of programs may be divided so that they stay the same programs.

Every dimension of every value has a divisor, a product of unknowns. Operators say by their rules which dimensions are
the same, and of which others one is made (a reshape); slices, joins and collectives change a dimension's size and leave
its divisor. An unknown divides all sizes and all offsets of the dimensions that it alone is the divisor of. Flat
buffers join the elements of several tensors along one dimension, of which each segment has a divisor of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import field
from operator import mul
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Node, Value, element_types
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import StackType, TensorType, TupleType, Type
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, Broadcast, NeighborExchange, ReduceScatter
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.ops.collective.row_exchange import FetchRows, SendRows
from mspc.ops.control.regions import Call, If, Loop, MakeStack, RegionOp, Scan
from mspc.ops.control.structural import Depend, MakeTuple, StopGradient, TupleGetItem, TupleGetItems
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.fused.updates import FusedUpdate, GroupedUpdate
from mspc.ops.math.arithmetic import Add, Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual, Select, Sub
from mspc.ops.nn.experts import AddRows, TakeRows
from mspc.ops.op import Op
from mspc.ops.tensor.embedding import Gather, GatherGrad
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.ops.tensor.selection import TopK
from mspc.verify.finite_differences import wide_type
from mspc.verify.scale.operator_sizes import Dim, Row, in_dim, out_dim, row_of
from mspc.verify.scale.rank_kinds import RankKind, told_apart
from mspc.verify.scale.readers import Readers, counted_for, has_multiples, is_range, is_whole, named_by, turns_places

Product = tuple[int, ...]
"""Unknowns by their numbers; the product of none is 1."""
Segments = tuple[tuple[Product, int], ...]
"""The divisors and real sizes of the segments of a joined dimension, which repeat if ranks gather it."""
WANTED = (3, 4, 2, 5)
"""The numbers of parts to leave of a dimension, in rotation, so that dimensions differ if they can."""

SOME = 8
"""From so many slices of a dimension on a slice has no more elements than it must."""
CROWDED = 4
"""No way gets more than this many times the mean of all ways."""
SPARE = 8
"""Standard deviations above it, for few values."""
MANY = 16
"""From so many slices of a dimension on a slice may be one element."""
COMPARISONS = (Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual)
SHIFTS = (Add, Cast, Select, Sub)
"""Operators whose result names rows of the table that their operands name."""


@dataclass
class Divisors:
    """The unknowns. frozen: those that are 1. one_way: rows that are routed have room if all go one way. are_ones: all
    are 1."""

    one_way: bool = False
    are_ones: bool = False
    frozen: set[int] = field(default_factory=set[int])
    _is: dict[int, Product] = field(default_factory=dict[int, Product])
    """Unknowns that are a product of others."""
    _joined: dict[int, Segments] = field(default_factory=dict[int, Segments])
    """Unknowns that are no numbers: each segment of their dimensions has its own divisor."""
    _open: list[tuple[Product, Product]] = field(default_factory=list["tuple[Product, Product]"])
    """Products of several unknowns that are to be the same number."""
    _numbers: list[tuple[Product, int]] = field(default_factory=list["tuple[Product, int]"])
    wholes: list[tuple[Product, int]] = field(default_factory=list["tuple[Product, int]"])
    """Sizes of the parameters of one device, of which ranks have slices; flattened values have larger ones."""
    _least: list[tuple[Product, int, int]] = field(default_factory=list["tuple[Product, int, int]"])
    """The least that has to be left of a size."""
    _roomy: list[tuple[Product, int, Product, int, int]] = field(
        default_factory=list["tuple[Product, int, Product, int, int]"]
    )
    """Pairs of sizes, of which the first must have room for the entries of the second once both are divided."""
    _count: int = 0

    def new(self) -> Product:
        """Return an unknown of its own."""
        self._count += 1
        return () if self.are_ones else (self._count - 1,)

    def resolved(self, product: Product) -> Product:
        """Return the product in unknowns that are no product of others, without those that are 1."""
        found: list[int] = []
        for unknown in product:
            if (own := self._is.get(unknown)) is None:
                if unknown not in self.frozen:
                    found.append(unknown)
            elif self.frozen.isdisjoint(own) and self._is.keys().isdisjoint(own):  # as of most dimensions
                found += own
            else:
                return self._followed(product)
        return tuple(found)

    @iterative
    def _followed(self, product: Product) -> Generator[Any, Product, Product]:
        found: list[int] = []
        for unknown in product:
            if unknown in self._is:
                own = self._is[unknown] = yield self, self._is[unknown]
                found += own
            elif unknown not in self.frozen:
                found.append(unknown)
        return tuple(found)

    def freeze(self, product: Iterable[int]) -> None:
        """Let a product be 1, and all segments of joined dimensions."""
        unknowns = [*self.resolved(tuple(product))]
        for unknown in unknowns:
            self.frozen.add(unknown)
            unknowns += [own for segment, _ in self._joined.get(unknown, ()) for own in self.resolved(segment)]

    def equal(self, one: Product, other: Product) -> None:
        """Let two products be the same number. If both have several unknowns, `settle` decides."""
        one, other = _without_common_ends(self.resolved(one), self.resolved(other))
        if one == other:
            return
        if self._joined and not self._joined.keys().isdisjoint((*one, *other)):
            self._equal_joined(one, other)
        elif len(one) == 1 and one[0] not in other:
            self._is[one[0]] = other
        elif len(other) == 1 and other[0] not in one:
            self._is[other[0]] = one
        else:
            self._open.append((one, other))

    def _equal_joined(self, one: Product, other: Product) -> None:
        """Let two dimensions be the same, of which one at least has segments; both keep their sizes if they differ."""
        if len(one) == len(other) == 1:
            a, b = (self._joined.get(unknown, ()) for unknown in (*one, *other))
            if not b and not self._holds(a, other[0]):
                self._is[other[0]] = one
                return
            if not a and not self._holds(b, one[0]):
                self._is[one[0]] = other
                return
            if [size for _, size in a] == [size for _, size in b]:
                self._is[other[0]] = one
                for (mine, _), (theirs, _) in zip(a, b, strict=True):
                    self.equal(mine, theirs)
                return
        self.freeze((*one, *other))

    def settle(self) -> None:
        """Decide on products of several unknowns that are the same number, those first that others have decided on: as
        many unknowns are the same one by one; different numbers of them are if some have one size together, as the
        heads of 8 groups of 16 and all 128, else all are 1."""
        sizes = {product[0]: size for product, size in self._numbers if len(product) == 1}
        for one, other in self._open:
            is_alike = [sizes.get(unknown) for unknown in one] == [sizes.get(unknown) for unknown in other]
            if is_alike and not all(self.resolved((unknown,)) for unknown in (*one, *other)):
                for a, b in zip(one, other, strict=True):  # else the rest of one would be the whole of the other
                    self.equal((a,), (b,))
        while self._open:
            before, self._open = self._open, []
            for one, other in before:
                self.equal(one, other)
            if len(self._open) < len(before):
                continue
            alike = next((pair for pair in self._open if len(pair[0]) == len(pair[1])), None)
            one, other = alike or self._open[0]
            self._open.remove((one, other))
            sizes = self.largest() if alike is None else {}
            first, second = ([*itertools.accumulate((sizes.get(own, 0) for own in each), mul)] for each in (one, other))
            at = next((i for i, n in enumerate(first[:-1]) if n and n in second[:-1]), None)
            if alike is not None:
                for a, b in zip(one, other, strict=True):
                    self.equal((a,), (b,))
            elif at is None:
                self.freeze((*one, *other))
            else:
                self.equal(one[: at + 1], other[: second.index(first[at]) + 1])
                self.equal(one[at + 1 :], other[second.index(first[at]) + 1 :])

    def _holds(self, segments: Segments, unknown: int) -> bool:
        """Return whether a segment, or a segment of it, has this unknown."""
        owns = [own for segment, _ in segments for own in self.resolved(segment)]
        return unknown in owns or any(self._holds(self._joined.get(own, ()), unknown) for own in owns)

    def segments(self, product: Product) -> Segments:
        """Return the segments of a joined dimension; () of any other."""
        own = self.resolved(product) if self._joined else ()
        return self._joined.get(own[0], ()) if len(own) == 1 else ()

    def join(self, whole: Product, segments: Segments) -> None:
        """Let a dimension be made of segments. If no segment is of several unknowns, or joined, or all have one
        product, as parts of one exchange, all have one divisor: so they may be sliced anywhere."""
        is_single = all(len(self.resolved(part)) < 2 and not self.segments(part) for part, _ in segments)
        if is_single or len({self.resolved(part) for part, _ in segments}) == 1:
            for part, _ in segments:
                self.equal(part, whole)
            return
        made = self.new()
        self._joined[made[0]] = segments
        self.equal(whole, made)

    def cut(self, whole: Product, part: Product, start: int, size: int) -> None:
        """Let a dimension be a slice of another: of one segment, or of some whole ones."""
        segments = self.segments(whole)
        period = sum(n for _, n in segments)
        if not segments or (start % period == 0 and size % period == 0):
            self.equal(whole, part)
            return
        start, place, found = start % period, 0, list[tuple[Product, int]]()
        for segment, n in segments:
            if start < place + n and place < start + size:
                found.append((segment, n))
            place += n
        if start + size > period:
            self.freeze((*whole, *part))
        elif len(found) == 1:
            self.equal(part, found[0][0])
        elif sum(n for _, n in found) == size:
            self.join(part, tuple(found))
        else:
            self.freeze((*whole, *part))

    def made_of(self, whole: Product, factors: Product, sizes: Sequence[int]) -> None:
        """Let a dimension be the product of others. Segments repeat within it, or are all in the innermost one."""
        segments = self.segments(whole) or self.segments(factors[-1:])
        if segments and len(factors) > 1:
            if sizes[-1] % sum(n for _, n in segments) == 0:
                self.freeze(factors[:-1])
                factors = factors[-1:]
            else:
                self._unjoin(whole)
                self._unjoin(factors[-1:])
        self.equal(whole, factors)

    def _unjoin(self, product: Product) -> None:
        """Let all segments of a joined dimension have one divisor, so that they may be sliced anywhere."""
        segments = self.segments(product)
        if segments:
            del self._joined[self.resolved(product)[0]]
        for part, _ in segments:  # two segments may be told to differ, which freezes the product
            self._unjoin(part)
            self.equal(part, product)

    def _unjoined(self, product: Product, number: int) -> tuple[Product, int]:
        """Return a product in resolved unknowns, and the number that it divides; of a joined dimension those of the
        segment in which the place is."""
        while segments := self.segments(product):
            number %= sum(n for _, n in segments)
            for segment, n in segments:
                product = segment
                if number < n:
                    break
                number -= n
        return self.resolved(product), number

    def small(self, product: Product, values: dict[int, int], number: int) -> int:
        """Return a size, or a place, along a divided dimension. Raise ValueError if it cannot be divided."""
        segments = self.segments(product)
        if not segments:
            by = self.value(product, values)
            if number % by:
                raise ValueError(f"{number} does not divide by {by}")
            return number // by
        rounds, rest = divmod(number, sum(n for _, n in segments))
        found = rounds * sum(self.small(segment, values, n) for segment, n in segments) if rounds else 0
        for segment, n in segments:
            if rest <= 0:
                break
            found += self.small(segment, values, min(rest, n))
            rest -= n
        return found

    def divides(self, product: Product, number: int) -> None:
        """Let a product divide a number."""
        if number:
            self._numbers.append((product, number))

    def leaves(self, product: Product, number: int, least: int) -> None:
        """Let at least so much of a size be left."""
        self._least.append((product, number, least))

    def has_room(self, product: Product, number: int, other: Product, of: int, ways: int = 1) -> None:
        """Let the rest of a size have room for the entries of another that are routed there, if it is too small by
        itself: for all, or for many times the mean if all ways are alike."""
        self._roomy.append((product, number, other, of, ways))

    def largest(self, numbers: Sequence[tuple[Product, int]] | None = None) -> dict[int, int]:
        """Return the largest number that an unknown divides by itself; of all unknowns, once `settle` has decided."""
        found: dict[int, int] = {}
        for product, number in self._numbers if numbers is None else numbers:
            for unknown in own if len(own := self.resolved(product)) == 1 and own[0] not in self._joined else ():
                found[unknown] = max(found.get(unknown, 1), number)
        return found

    def values(self) -> dict[int, int]:
        """Return a number for every unknown: as large as may be with some parts left of each dimension."""
        self.settle()
        numbers: dict[int, int] = {}
        largest: dict[int, int] = {}
        several: list[tuple[Product, int]] = []
        wholes = self.largest(self.wholes)
        for product, number in {self._unjoined(*each) for each in set(self._numbers)}:
            own = product if number else ()
            if len(own) == 1:
                numbers[own[0]] = math.gcd(numbers.get(own[0], 0), number)
                largest[own[0]] = max(largest.get(own[0], 0), number)
            elif own:
                several.append((own, number))
        found: dict[int, int] = {}
        for place, (unknown, number) in enumerate(sorted(numbers.items())):
            slices = wholes.get(unknown, largest[unknown]) // number
            found[unknown] = number if slices >= MANY else number // _parts(number, place, slices >= SOME)
        for own, number in several:  # whatever numbers the unknowns have alone, together they divide this, too
            while number % math.prod(found.get(v, 1) for v in own):
                worst = max(own, key=lambda v: found.get(v, 1))
                found[worst] = _lesser(found.get(worst, 1))
        for product, number, least in self._least:
            self._lessen(product, found, number // least)
        for product, number, other, of, ways in self._roomy:
            rows = of // self.value(other, found)
            self._lessen(product, found, number // (rows if self.one_way else _room_for(rows, ways)))
        return found

    def _lessen(self, product: Product, found: dict[int, int], most: int) -> None:
        """Let a product be no more than a number, by lesser ones of its unknowns."""
        own = self.resolved(product)
        while own and math.prod(found.get(v, 1) for v in own) > max(most, 1):
            worst = max(own, key=lambda v: found.get(v, 1))
            found[worst] = _lesser(found[worst])

    def value(self, product: Product, values: dict[int, int]) -> int:
        """Return the number of a product."""
        return math.prod(values.get(unknown, 1) for unknown in self.resolved(product))


def _without_common_ends(one: Product, other: Product) -> tuple[Product, Product]:
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    return one, other


def _parts(number: int, place: int, few: bool) -> int:
    """Return how many parts of a number are left: a small divisor of it, and not 1 if there is another. few: 2 are as
    good as more."""
    wanted = (2, 3) if few else WANTED[place % len(WANTED) :] + WANTED[: place % len(WANTED)]
    for parts in wanted:
        if number % parts == 0:
            return parts
    return next((parts for parts in range(2, min(number, 4096) + 1) if number % parts == 0), number)


def _room_for(rows: int, ways: int) -> int:
    """Return the room that is left for rows that go one of some ways each: few do not go as evenly as many."""
    even = -(-rows // ways)
    return min(rows, max(CROWDED * even, even + SPARE * (math.isqrt(even) + 1)))


def _lesser(number: int) -> int:
    """Return the largest number below a number that divides it; 1 for 1."""
    for by in range(2, math.isqrt(number) + 1):
        if number % by == 0:
            return number // by
    return 1


# The rule of an operator relates the divisors of its dimensions.


ReadDims = Sequence[Sequence[Product]]


def follow_rule(divisors: Divisors, op: Op, types: Sequence[TensorType], operands: ReadDims, made: ReadDims) -> None:
    """Note which dimensions of operands and results are the same, and which are products of others; all of an operator
    without a rule keep their sizes."""
    try:
        rule = op.parsed_rule(*types)
    except (MspcError, NotImplementedError, AttributeError):
        for dims in (*operands, *made):
            for dim in dims:
                divisors.freeze(dim)
        return
    sides = [*zip(rule.inputs, operands, strict=True), *zip(rule.outputs, made, strict=False)]
    # Dimensions of one factor come first: they determine the factors of the others.
    pairs = [(names, dim) for side, dims in sides for names, dim in zip(side, dims, strict=True)]
    factors: dict[int, Product] = {}
    for names, dim in sorted(pairs, key=lambda pair: len(pair[0]) > 1):
        product: list[int] = []
        sizes = [rule.sizes[factor] for factor in names]
        for factor in names:  # none if a dimension is of size 1, broadcast or sharded until one element is left
            if factor not in factors:
                factors[factor] = divisors.new()
                divisors.divides(factors[factor], rule.sizes[factor])
            product += factors[factor]
        if names:
            divisors.made_of(dim, tuple(product), sizes)


# Exchanges relate the dimensions of tensors that ranks of several kinds send each other.


TradedDims = Sequence[list[Product]]
Pair = tuple[int, int]


@dataclass
class Traded:
    """The messages of one rank to another, by number. A tensor is met twice, by both ends."""

    _counts: dict[tuple[Pair, bool], int] = field(default_factory=dict[tuple[Pair, bool], int])
    _dims: dict[tuple[Pair, int], list[Product]] = field(default_factory=dict[tuple[Pair, int], list[Product]])

    def same(
        self, ops: Sequence[Any], operands: TradedDims, made: TradedDims, kind: RankKind
    ) -> Iterator[tuple[list[Product], list[Product]]]:
        """Yield the dimensions at both ends of an exchange, which are the same, as the kind comes to it. ops: as every
        rank has it, or one for all. An exchange within the kind yields nothing: all its dimensions are the same."""
        if all(rank in kind.place for op in ops for rank in (*op.send_rank_ids, *op.recv_rank_ids)):
            return
        for place, rank in enumerate(kind.ranks):
            op = ops[place if len(ops) > 1 else 0]
            ends = [(dims, (rank, to), True) for dims, to in zip(operands, op.send_rank_ids, strict=True)]
            ends += [(dims, (of, rank), False) for dims, of in zip(made, op.recv_rank_ids, strict=True)]
            for dims, pair, sends in ends:
                number = self._counts[pair, sends] = self._counts.get((pair, sends), -1) + 1
                other = self._dims.setdefault((pair, number), dims)
                if other is not dims and len(other) == len(dims):
                    yield other, dims


# The dimensions of all values of some programs get their divisors by the rows of the operators.


Dims = list[list[Product]]
"""For each tensor of a value the divisors of its dimensions."""
WITH_GROUPS = (AllGather, AllReduce, AlltoAll, Broadcast, ReduceScatter)
"""Collectives whose results have the dimensions of their operands, in other sizes."""


@dataclass
class Sizing:
    """The divisors of all dimensions of some programs."""

    divisors: Divisors = field(default_factory=Divisors)
    all_dims: dict[Value, Dims] = field(default_factory=dict[Value, Dims])
    """The divisors of the dimensions of all values, operands before results."""
    _named: dict[str, Dims] = field(default_factory=dict[str, Dims])
    _sent: dict[tuple[int, int, int], Dims] = field(default_factory=dict[tuple[int, int, int], Dims])
    _traded: Traded = field(default_factory=Traded)
    _done: set[Graph] = field(default_factory=set[Graph])
    found: dict[int, int] = field(default_factory=dict[int, int])
    turns: dict[int, Product] = field(default_factory=dict[int, Product])
    """The divisors of the numbers of iterations of scans, which are equal in all programs; 1 for other loops."""
    line_dims: dict[Node, Dims] = field(default_factory=dict[Node, Dims])
    """Dimensions of the lines of fused operators."""
    places: dict[Constant, Product] = field(default_factory=dict[Constant, Product])
    """Constants that are places along a dimension."""

    def dims(self, value: Value) -> Dims:
        """Return the divisors of a value's dimensions."""
        known = self.all_dims.get(value)
        if known is None:
            known = self.all_dims[value] = [[self.divisors.new() for _ in t.shape] for t in element_types(value.type)]
            for tensor, own in zip(element_types(value.type), known, strict=True):
                self._sized(tensor, own)
        return known

    def _all_dims(self, values: Iterable[Value]) -> Dims:
        return [dims for value in values for dims in self.dims(value)]

    def _freeze(self, tensors: Dims) -> None:
        """Let all dimensions of tensors keep their sizes."""
        self.divisors.freeze(unknown for dims in tensors for dim in dims for unknown in dim)

    def _sized(self, tensor: TensorType, dims: Sequence[Product]) -> None:
        for n, dim in zip(tensor.shape, dims, strict=True):
            self._divides(dim, n)

    def add(self, graph: Graph, kind: RankKind | None = None) -> None:
        """Note the constraints of a program's nodes. kind: whose program it is, None for one device."""
        for parameter in graph.parameters:
            own = self.dims(parameter)
            known = self._named.setdefault(parameter.name, own)
            self.same(known, own)
            self.divisors.wholes += zip(own[0], parameter.shape, strict=True) if kind is None else ()
        self._graph(graph, kind)
        for node, dim, constant in () if kind is None else places_in_tables(kind):
            along = self.dims(node if dim.of_result else node.inputs[dim.tensor])[0][dim.dimension]
            self.places[constant] = along
            for own in kind.constants[id(constant)]:
                self.divisors.divides(along, int(own.value))

    def same_results(self, one: Graph, other: Graph) -> None:
        """Let the results of two programs be of the same dimensions."""
        for a, b in zip(one.results, other.results, strict=False):
            if len(a.shape) == len(b.shape) and b.type.nbytes:
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
        chosen = [node for node in graph.nodes if isinstance(node.op, TopK) or turns_places(node)]
        exchanges = [node for node in graph.nodes if isinstance(node.op, AlltoAll)]
        readers = Readers(graph) if chosen or exchanges else None
        for node in chosen:
            assert readers is not None
            self._chosen(node, *named_by(node, readers))
        for node in exchanges:
            assert readers is not None
            self._slices_of_ranks(node, readers)

    def _slices_of_ranks(self, node: Node, readers: Readers) -> None:
        """Leave dimensions that number the slices of an exchange as they are: its own up to the ranks of the group, and
        those of a reshape before or after it, from the outermost one on. Larger ones have several entries of each rank.
        """
        op: Any = node.op
        for value, dim in zip((node.inputs[0], node), op.dims_of(len(node.shape)), strict=True):
            self._divides(self.dims(value)[0][dim], value.shape[dim] // op.group_size)
            begin = math.prod(value.shape[:dim])
            for far in _reshaped(value, readers if value is node else None):
                for own, done in zip(self.dims(far)[0], itertools.accumulate(far.shape, mul), strict=True):
                    if begin < done <= begin * op.group_size:
                        self.divisors.freeze(own)

    def _divides(self, dim: Product, number: int) -> None:
        """Let the divisor of a dimension divide a number, and be known at once if that is 1."""
        if number == 1:
            self.divisors.freeze(dim)
        self.divisors.divides(dim, number)

    def _keep_turns(self, node: Node, dims: Sequence[Product]) -> None:
        """Keep whole turns of the places in a range, row by row, and all of others."""
        places, number = node.inputs
        turn = int(number.value) if isinstance(number, Constant) and not number.shape and is_range(places) else 0
        for dim, size in zip(reversed(dims), reversed(places.shape), strict=True) if turn > 0 else ():
            if turn % size == 0 or size % turn == 0:
                self._divides(dim, max(size // turn, 1))
                turn = max(turn // size, 1)
            else:  # turns and rows overlap
                turn = 0
                break
        self.divisors.freeze(() if turn == 1 else (unknown for dim in dims for unknown in dim))

    def _chosen(self, node: Node, named: Sequence[tuple[Node, Dim]], are_all: bool) -> None:
        """Unify the dimension indexed by top-k indices with the dimension they were taken from; one that is indexed by
        places in turns keeps its size."""
        if not isinstance(node.op, TopK):
            for reader, dim in named:
                table = reader if dim.of_result else reader.inputs[dim.tensor]
                self.divisors.freeze(self.dims(table)[0][dim.dimension])
            return
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
            self.same(self._all_dims(node.inputs), self.dims(node))
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
            operands = self._all_dims(node.inputs)
            types = [t for v in node.inputs for t in element_types(v.type)]
            ops = kind.ops_of(op) if kind is not None else (op,)
            if isinstance(op, FetchRows | SendRows | TakeRows | AddRows) and has_multiples(node.inputs[1]):
                table = operands if isinstance(op, FetchRows | TakeRows) else self.dims(node)
                self.divisors.freeze(table[0][0])  # lookups would be past the end of a shorter table
            if turns_places(node):
                self._keep_turns(node, [dim for dims in operands for dim in dims])
            self._freeze(self._all_dims(counted_for(node)))
            if isinstance(op, NeighborExchange) and kind is not None:
                for one, other in self._traded.same(ops, operands, self.dims(node), kind):
                    self.same([one], [other])
            for own in told_apart(ops)[0]:
                if isinstance(own, FusedElementwise):
                    lines = self.line_dims[node] = self._lines(own, types, operands, self.line_dims.get(node))
                    self.same([lines[i] for i in own.returns], self.dims(node))
                    continue
                self._operator(own, types, operands, list(element_types(node.type)), self.dims(node), kind)

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
        for whole, part, start, size in row.cuts:
            self.divisors.cut(product(whole), product(part), start, size)
        if row.joined:
            self.divisors.join(product(row.joined[0]), tuple((product(dim), n) for dim, n in row.joined[1]))
        for number in row.numbers:
            if not number.over:
                self.divisors.divides(product(number.along), number.value)
        for dim, size in row.sizes:
            self.divisors.divides(product(dim), size)
        for dim, size, least in row.least:
            self.divisors.leaves(product(dim), size, least)
        for dim, size, other, of, ways in row.room:
            self.divisors.has_room(product(dim), size, product(other), of, ways)

    def _lines(
        self, op: FusedElementwise | FusedUpdate, types: Sequence[TensorType], operands: Dims, known: Dims | None = None
    ) -> Dims:
        """Return the dimensions of every line's result; `known` of an operator whose lines are the same but for
        numbers."""
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
            self._freeze([*operands, *made])

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
        if isinstance(op, Call | If):
            given = self._all_dims(node.inputs[1:] if isinstance(op, If) else node.inputs)
            for region in node.regions:
                self.same(given, self._all_dims(region.parameters))
                self._graph(region, kind)
                self.same(self._all_dims(region.results), self.dims(node))
            return
        assert isinstance(op, Loop)
        count = op.turns if isinstance(op, Scan) and not op.micro_batches else 1
        turns = self.turns.setdefault(count, self.divisors.new())
        self._divides(turns, count)
        self.divisors.leaves(turns, count, min(count, 2))
        for region in node.regions:
            for index, value in enumerate(node.inputs):
                place = op.inside(0, index)
                if place is None or place >= len(region.parameters):
                    continue
                outer, inner = self.dims(value), self.dims(region.parameters[place])
                if index in op.scanned_operands and isinstance(value.type, StackType):
                    self.divisors.freeze(turns)
                elif index in op.scanned_operands:
                    self.divisors.equal(outer[0][0], turns)
                    outer = [outer[0][1:]]
                self.same(outer, inner)
            self._graph(region, kind)
        self._loop_results(node, op, turns)

    def _loop_results(self, node: Node, op: Loop, turns: Product) -> None:
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
                self.divisors.equal(outer[0], turns)
                outer = outer[1:]
            self.same([own], [outer])

    # The small programs

    def keep(self, values: Iterable[Value]) -> bool:
        """Let all dimensions of some values keep their sizes; whether any of them did not."""
        before = len(self.divisors.frozen)
        self._freeze(self._all_dims(values))
        return len(self.divisors.frozen) > before

    def keep_joined(self, values: Iterable[Value]) -> None:
        """Let joined dimensions of some values keep their sizes: slices of stored values are of even sizes."""
        for dim in (dim for dims in self._all_dims(values) for dim in dims if self.divisors.segments(dim)):
            self.divisors.freeze(dim)

    def resolve(self) -> None:
        """Choose the divisors."""
        self.found = self.divisors.values()

    def divisor(self, product: Product) -> int:
        """Return the number by which a dimension is divided."""
        return self.divisors.value(product, self.found)

    def shape(self, tensor: TensorType, dims: Sequence[Product]) -> tuple[int, ...]:
        """Return the divided shape. Raises ValueError if it cannot be divided."""
        return tuple(self.small(dim, n) for n, dim in zip(tensor.shape, dims, strict=True))

    def small(self, product: Product, number: int) -> int:
        """Return a size, or a place, along a divided dimension. Raise ValueError if it cannot be divided."""
        return self.divisors.small(product, self.found, number)

    def type(self, value: Value) -> Type:
        """Return the type of a value in the small program."""
        dims = self.dims(value)
        if isinstance(value.type, TupleType):
            return TupleType(tuple(self._tensor(t, own) for t, own in zip(value.type.elements, dims, strict=True)))
        assert isinstance(value.type, TensorType)
        return self._tensor(value.type, dims[0])

    def _tensor(self, tensor: TensorType, dims: Sequence[Product]) -> TensorType:
        wide = wide_type(TensorType(tensor.dtype, self.shape(tensor, dims)))
        assert isinstance(wide, TensorType)
        if isinstance(tensor, StackType):
            return StackType(wide.dtype, wide.shape, tensor.depth)
        return wide


# Lets dimensions keep their sizes that only constants have: one device and ranks need not make these smaller alike.


def keep_constants(sizing: Sizing) -> None:
    """Freeze dimensions that only constants have, and values computed from them."""
    sizing.divisors.settle()
    made: set[Value] = set()
    for value in sizing.all_dims:
        if isinstance(value, Constant) or (isinstance(value, Node) and _is_of(value, made)):
            made.add(value)
    apart = (dims for value, dims in sizing.all_dims.items() if value not in made)
    others = {unknown for dims in apart for unknown in _unknowns(sizing, dims)}
    own = {unknown for value in made for unknown in _unknowns(sizing, sizing.all_dims[value])}
    sizing.divisors.freeze(own - others)


def _is_of(node: Node, made: set[Value]) -> bool:
    """Return whether a node is made of constants, or of nothing."""
    return not node.regions and not isinstance(node.op, Collective) and made.issuperset(node.inputs)


def _unknowns(sizing: Sizing, dims: Dims) -> list[int]:
    return [unknown for tensor in dims for dim in tensor for unknown in sizing.divisors.resolved(dim)]


# Lets values of two programs be of the same dimensions that stand for the same value of the script.


@dataclass(frozen=True)
class Tied:
    """A tensor of a program, and its dimensions. phase: of its node."""

    type: TensorType
    dims: list[Product]
    phase: str


def tie(sizing: Sizing, one: Graph, other: Graph) -> None:
    """Tie two programs: otherwise a dimension of which a rank has one element looks like one of size 1, as the heads if
    every rank has one."""
    known, ranks = _by_place(sizing, one), int(other.attrs.get("ranks", 1))
    for place, values in _by_place(sizing, other).items():
        wholes = known.get(place, ())
        is_sure = len({whole.type for whole in wholes}) == 1  # passes may reorder values of one place of a JAX step
        for whole, own in _pairs(wholes, values):
            pairs = list(zip(whole.type.shape, own.type.shape, strict=True))
            is_piece = all(mine and n % mine == 0 for n, mine in pairs)
            pieces = math.prod(n // mine for n, mine in pairs) if is_piece else 0
            # Several gradients are at one place: of these only those with one element along a dimension that has more.
            is_known = is_sure and own.phase != "backward"
            if pieces and ranks % pieces == 0 and (is_known or any(m == 1 < n for n, m in pairs)):
                sizing.same([whole.dims], [own.dims])


def _by_place(sizing: Sizing, graph: Graph) -> dict[Hashable, list[Tied]]:
    """Return the tensors of a program by their operators' places in the script."""
    found: dict[Hashable, list[Tied]] = {}
    for node in (node for node in graph.all_nodes() if node.frames):
        place = (node.scope, node.op.name, node.phase, tuple(map(str, node.frames)), node.instance)
        for number, (tensor, dims) in enumerate(zip(element_types(node.type), sizing.dims(node), strict=True)):
            found.setdefault((place, number), []).append(Tied(tensor, dims, node.phase))
    return found


def _pairs(known: Sequence[Tied], values: Sequence[Tied]) -> Iterator[tuple[Tied, Tied]]:
    """Pair values of one place: one by one, or all if one device has them of one type."""
    pairs: Iterable[tuple[Tied, Tied]] = ()
    if len(known) == len(values):
        pairs = zip(known, values, strict=True)
    elif len({value.type for value in known}) == 1:
        pairs = ((known[0], value) for value in values)
    return (pair for pair in pairs if len(pair[0].dims) == len(pair[1].dims))


def places_in_tables(kind: RankKind) -> Iterator[tuple[Node, Dim, Constant]]:
    """Yield (a node that reads rows of a table or adds to them, its dimension of the rows, a constant that is a place
    there) of a kind. Each rank has another place, and all are multiples of the number of a rank's rows: other numbers,
    as that of a word, are on all ranks as on one device."""
    readers: Readers | None = None
    for node in (node for node in kind.graph.all_nodes() if kind.constants):
        if isinstance(node.op, Gather | GatherGrad):
            readers = readers or Readers(kind.graph)
            rows = (node if isinstance(node.op, GatherGrad) else node.inputs[0]).shape
            axis = node.op.axis % len(rows)
            dim = out_dim(axis) if isinstance(node.op, GatherGrad) else in_dim(0, axis)
            for constant in _beside(node.inputs[1], readers):
                own = kind.constants.get(id(constant), ())
                if own and all(each.value.size == 1 and int(each.value) % rows[axis] == 0 for each in own):
                    yield node, dim, constant


def _beside(places: Value, readers: Readers) -> list[Constant]:
    """Return the constants that are added to places, or compared with them."""
    seen: dict[Value, None] = {places: None}
    waiting = [places]
    for value in waiting:
        made = [value] if isinstance(value, Node) and _shifts(value) else []
        for node in (*made, *(each for each in readers.of(value) if isinstance(each, Node))):
            is_compared = isinstance(node.op, COMPARISONS)
            if is_compared or _shifts(node):
                new = [each for each in (*node.inputs, *([] if is_compared else [node])) if each not in seen]
                seen.update(dict.fromkeys(new))
                waiting += [each for each in new if is_whole(each) and not isinstance(each, Constant)]
    return [each for each in seen if isinstance(each, Constant)]


def _shifts(node: Node) -> bool:
    return is_whole(node) and (isinstance(node.op, SHIFTS) or (isinstance(node.op, Op) and node.op.reshapes))


def _reshaped(value: Value, readers: Readers | None) -> Iterator[Value]:
    """Yield the operands of reshapes that make a value, or results of reshapes that read it, also past casts."""
    waiting = [value]
    for at in waiting:
        for each in (at,) if readers is None else readers.of(at):
            far = each if readers is not None else next(iter(getattr(each, "inputs", ())), each)
            if isinstance(getattr(each, "op", None), Reshape):
                yield far
            elif isinstance(far.type, TensorType) and far.shape == value.shape and far not in waiting:
                waiting.append(far)
