"""Makes programs of small sizes: the same nodes, numbers replaced, in Float64.

The programs of one device and of all kinds of ranks get their divisors together (`program_sizes.py`), so that a slice
is the same slice of the same tensor. If an operator does not take the small sizes, or gives a type of another shape
than divided, its dimensions keep their sizes, and all is done again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, copied_node, element_types
from mspc.ir.types import TensorType, Type
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import NeighborExchange
from mspc.ops.collective.point_to_point import ReceiveFromStage
from mspc.ops.collective.row_exchange import FetchRows, SendRows
from mspc.ops.control.regions import Scan, While
from mspc.ops.fused.body import BodyLine, line_of
from mspc.ops.fused.elementwise import FusedElementwise, step_types, steps_of
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.fused.updates import FusedUpdate, GroupedUpdate
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import BroadcastTo
from mspc.verify.finite_differences import wide_op, wide_type
from mspc.verify.scale.operator_sizes import Dim, Number, resized, row_of
from mspc.verify.scale.program_sizes import Dims, Divisors, Product, Sizing, keep_constants, tie
from mspc.verify.scale.rank_kinds import STRUCTURE, RankKind, told_apart

# Gives every reader of a made-up tensor one of its own, as two readers may read it as slices of different tensors.


def made_apart(graph: Graph, constants: dict[int, tuple[Constant, ...]]) -> None:
    """Copy nodes without operands, and constants of several elements, for each of their readers, in a graph and its
    regions. constants: by identity those of which ranks have their own; gets those of the copies."""
    for each in graph.graphs():
        _made_apart(each, constants)


def _made_apart(graph: Graph, constants: dict[int, tuple[Constant, ...]]) -> None:
    nodes: list[Node] = []
    taken: set[Value] = set()

    def own(value: Value) -> Value:
        if isinstance(value, Constant) and value.shape:
            if value not in taken:
                taken.add(value)
                return value
            made = Constant(value.value, value.tensor_type.dtype)
            if id(value) in constants:
                constants[id(made)] = constants[id(value)]
            return made
        if not isinstance(value, Node) or not _is_uniform(value) or value not in taken:
            taken.add(value)
            return value
        copy = copied_node(value, value.inputs, value.op)
        nodes.append(copy)
        return copy

    for node in graph.nodes:
        node.inputs = [own(v) for v in node.inputs]
        nodes.append(node)
    graph.results = [own(v) for v in graph.results]
    graph.nodes = nodes


def _is_uniform(node: Node) -> bool:
    """Return whether all elements are one number, which no value says."""
    if not node.inputs:
        return isinstance(node.op, Op) and node.op.uniform() is not None
    return isinstance(node.op, BroadcastTo) and isinstance(node.inputs[0], Constant) and not node.inputs[0].shape


WITH_SIZES = (FetchRows, NeighborExchange, ReceiveFromStage, SendRows)
"""Collectives that have sizes in their fields."""


class Unfit(Exception):
    """Something does not take its small sizes. values: those whose dimensions have to keep theirs."""

    def __init__(self, values: Sequence[Value], reason: str) -> None:
        super().__init__(reason)
        self.values, self.reason = values, reason


class Resized:
    """Small programs of one sizing."""

    def __init__(self, sizing: Sizing) -> None:
        self.sizing = sizing
        self._graphs: dict[Graph, Graph] = {}
        self._of: dict[Value, Value] = {}
        self.ops: dict[int, tuple[Any, ...]] = {}
        self.constants: dict[int, tuple[Constant, ...]] = {}

    def kind(self, kind: RankKind) -> RankKind:
        """Return a kind with small programs. Raise Unfit."""
        self.ops, self.constants = {}, {}
        graph = self.graph(kind.graph, kind)
        return RankKind(kind.ranks, graph, dict(self.ops), dict(self.constants), kind.mesh)

    def graph(self, graph: Graph, kind: RankKind | None = None) -> Graph:
        """Return the small program of a graph. Raise Unfit."""
        if graph in self._graphs:
            return self._graphs[graph]
        made = self._graphs[graph] = Graph(graph.name)
        made.attrs, made.returns_tuple = dict(graph.attrs), graph.returns_tuple
        for parameter in graph.parameters:
            own = Parameter(
                parameter.name, self.sizing.type(parameter), parameter.kind, parameter.trainable, parameter.layout,
                None if parameter.global_type is None else self._global(parameter),
            )  # fmt: skip
            own.attrs = dict(parameter.attrs)
            self._of[parameter] = own
            made.parameters.append(own)
        for node in graph.nodes:
            made.nodes.append(self._node(node, kind))
        made.results = [self._value(v, kind) for v in graph.results]
        for value, own in zip(graph.results, made.results, strict=True):
            own.layout = value.layout
        return made

    def _global(self, parameter: Parameter) -> Type:
        tensor = parameter.global_type
        assert isinstance(tensor, TensorType)
        try:
            shape = self.sizing.shape(tensor, self.sizing.dims(parameter)[0])
        except ValueError as error:
            raise Unfit([parameter], str(error)) from error
        return wide_type(TensorType(tensor.dtype, shape))

    def _value(self, value: Value, kind: RankKind | None) -> Value:
        if not isinstance(value, Constant):
            return self._of[value]
        if value not in self._of:
            self._of[value] = self._constant(value, value)
        made = self._of[value]
        own = kind.constants.get(id(value)) if kind is not None else None
        if own is not None and id(made) not in self.constants:
            self.constants[id(made)] = tuple(self._constant(c, value) for c in own)
        return made

    def _constant(self, value: Constant, of: Constant) -> Constant:
        shape = self.sizing.shape(value.tensor_type, self.sizing.dims(of)[0])
        if any(n % small for n, small in zip(value.shape, shape, strict=True) if small):
            raise Unfit([of], "a constant has segments of several sizes")
        array = exact(thinned(value.value, shape))
        if (along := self.sizing.places.get(of)) is not None:
            array = np.full_like(array, self.sizing.small(along, int(array)))
        dtype = wide_type(value.tensor_type)
        assert isinstance(dtype, TensorType)
        return Constant(array, dtype.dtype)

    def _node(self, node: Node, kind: RankKind | None) -> Node:
        inputs = [self._value(v, kind) for v in node.inputs]
        try:
            wanted = self.sizing.type(node)
            op = self._op(node, node.op)
            made = Node(op, inputs, wanted, node.name, node.instance, node.scope, node.frames, node.phase)
            made.regions = tuple(self.graph(region, kind) for region in node.regions)
            self._check(node, made)
            own = kind.ops.get(id(node.op)) if kind is not None else None
            if own is not None:
                distinct, numbers = told_apart(own)
                small = [self._op(node, each) for each in distinct]
                # An operator that several nodes share has its numbers by each of them.
                made.op = op = replace(op)
                self.ops[id(op)] = tuple(small[number] for number in numbers)
        except (ValueError, MspcError, AssertionError, TypeError, IndexError) as error:
            reason = error.message if isinstance(error, MspcError) else str(error)
            raise Unfit([*node.inputs, node], f"{node.label}: {reason}") from error
        made.attrs = dict(node.attrs)
        self._of[node] = made
        return made

    def _op(self, node: Node, op: Any) -> Any:
        if isinstance(op, Scan) and not op.micro_batches:
            op = replace(op, turns=self.sizing.small(self.sizing.turns.get(op.turns, ()), op.turns))
        if node.regions or (isinstance(op, Collective) and not isinstance(op, WITH_SIZES)):
            return _in_float64(op)
        types = [t for v in node.inputs for t in element_types(v.type)]
        operands = [d for v in node.inputs for d in self.sizing.dims(v)]
        if isinstance(op, FusedElementwise):
            return self._resized_lines(node, op, types, operands)
        return self._resized(op, types, operands, list(element_types(node.type)), self.sizing.dims(node))

    def _resized(
        self, op: Any, types: Sequence[TensorType], operands: Dims, results: Sequence[TensorType], made: Dims
    ) -> Any:
        if isinstance(op, FusedUpdate | GroupedUpdate):
            return _wide_lines(op)
        if isinstance(op, STRUCTURE):
            return op
        row = row_of(op, types, results)

        def dim_of(dim: Dim) -> Product:
            return (made if dim.of_result else operands)[dim.tensor][dim.dimension]

        def small(number: Number) -> int:
            times = math.prod(self.sizing.divisor(dim_of(dim)) for dim in number.over)
            return self.sizing.small(dim_of(number.along), number.value * times)

        return _in_float64(resized(op, row.numbers, small))

    def _resized_lines(
        self, node: Node, op: FusedElementwise, types: Sequence[TensorType], operands: Dims
    ) -> FusedElementwise:
        steps, found = steps_of(op), step_types(op, types)
        dims = self.sizing.line_dims.get(node) or [[()] * step.rank for step in found]
        lines: list[BodyLine] = []
        for number, step in enumerate(steps):
            given = [(types if k == "x" else found)[i] for k, i in step.operands]
            read = [(operands if k == "x" else dims)[i] for k, i in step.operands]
            own = self._resized(step.op, given, read, [found[number]], [dims[number]])
            lines.append(BodyLine(own, step.operands))
        return FusedElementwise.of(lines, op.returns)

    def _check(self, node: Node, made: Node) -> None:
        op: Any = made.op
        if made.regions:
            inferred = op.results_of(made.regions, [v.type for v in made.inputs])
        else:
            inferred = _inferred(op, tuple(v.type for v in made.inputs))
        got, wanted = element_types(inferred), element_types(made.type)
        if [t.shape for t in got] != [t.shape for t in wanted]:
            raise ValueError(f"gives {inferred}, not {made.type}")


@lru_cache(maxsize=65536)
def _inferred(op: Op, types: tuple[Any, ...]) -> Type:
    return op.infer(*types)


def _in_float64(op: Any) -> Any:
    made = wide_op(op)
    return replace(made, wide=False) if isinstance(made, FusedMatMul) and made.wide else made


def _wide_lines(op: FusedUpdate | GroupedUpdate) -> Op:
    """Return an update of lines, with these in Float64."""
    if isinstance(op, FusedUpdate):
        return replace(op, body=tuple(line_of(wide_op(step.op), step.operands) for step in op.lines()))
    member = op.member
    wide = _wide_lines(member) if isinstance(member, FusedUpdate) else wide_op(member)
    return replace(op, update=line_of(wide, ()))


def thinned(array: Any, shape: Sequence[int]) -> Any:
    """Return as many elements of an array as a small tensor has, evenly spread over it."""
    steps = [max(n, 1) // max(small, 1) for n, small in zip(np.shape(array), shape, strict=True)]
    return np.array(np.asarray(array)[tuple(slice(None, None, step) for step in steps)], order="C")


def exact(array: Any) -> Any:
    """Convert floats to Float64. A rounded reciprocal of a whole number, as of a mean over ranks, becomes exact."""
    if array.dtype.kind not in "fV" or array.dtype == np.float64:
        return array
    with np.errstate(all="ignore"):
        wide = array.astype(np.float64)
        whole = np.where(np.isfinite(1 / wide), np.round(1 / wide), 0.0)
        reciprocal = np.where(whole != 0, 1 / whole, 0.0)
    return np.where((whole != 0) & (reciprocal.astype(array.dtype) == array), reciprocal, wide)


def small_programs(
    one: Graph, kinds: Sequence[RankKind], full_size: Sequence[Value] | None = (), one_way: bool = False
) -> tuple[Graph, list[RankKind], Sizing]:
    """Make the small programs of one device and of all kinds of ranks. full_size: values whose dimensions keep their
    sizes; None for all. one_way: there is room for rows that are routed if all go one way. Raise Unfit if a program
    does not take Float64 even at its own sizes."""
    made_apart(one, {})
    for kind in kinds:
        made_apart(kind.graph, kind.constants)
    sizing = Sizing(Divisors(one_way=one_way, are_ones=full_size is None))
    if full_size is not None:
        sizing.add(one)
        for kind in kinds:
            sizing.add(kind.graph, kind)
            sizing.same_results(one, kind.graph)
            tie(sizing, one, kind.graph)
        for graph in (one, *(kind.graph for kind in kinds)):
            sizing.keep_joined(graph.parameters)
        sizing.keep(full_size)
        keep_constants(sizing)
    while True:
        sizing.resolve()
        made = Resized(sizing)
        try:
            return made.graph(one), [made.kind(kind) for kind in kinds], sizing
        except Unfit as error:
            if not sizing.keep(error.values):
                raise


Array = Any


def first_weights(one: Graph, small: Graph, values: Sequence[Any], seed: int) -> dict[str, Array]:
    """Make first values for the small program: trained weights and optimizer states are random numbers, so that no two
    are equal; counters and scalars are the script's own. All are the script's own if values decide how often a loop
    runs.

    values: the program's first values (`output.first_values`).
    """
    own = any(isinstance(node.op, While) for node in one.all_nodes())
    found: dict[str, Array] = {}
    by_name = {value.name: value for value in values}
    for number, (real, parameter) in enumerate(zip(one.parameters, small.parameters, strict=True)):
        if parameter.kind == "input":
            continue
        assert isinstance(parameter.type, TensorType)
        found[parameter.name] = _first(
            real, parameter, by_name[parameter.name], None if own else np.random.default_rng([seed, number])
        )
    return found


def _first(real: Parameter, parameter: Parameter, value: Any, generator: np.random.Generator | None) -> Array:
    assert isinstance(parameter.type, TensorType)
    type = parameter.type
    if generator is not None and parameter.kind == "parameter" and type.dtype.is_float and type.shape:
        if parameter.trainable:
            return generator.uniform(-0.5, 0.5, type.shape) + (1.0 if len(type.shape) == 1 else 0.0)
        return generator.uniform(0.1, 0.2, type.shape)
    array = np.asarray(value.make())
    return thinned(array, type.shape).astype(type.dtype.numpy)
