"""A graph's layouts as a problem of costs: a variable for every operator and parameter, tables between them.

What is reckoned is a whole step: every value is brought to its readers, and where the network is trained every gradient
goes the same way back, out of operators that are cut as the forward ones (`Domain.gradients`). A value with several
readers may be brought somewhere once for all of them, and its gradients be added there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from mspc.ir.graph import Constant, Node, Parameter, Value, element_layouts, element_types
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.control.structural import MakeTuple, TupleGetItem
from mspc.ops.op import Op
from mspc.passes.search.distances import Places
from mspc.passes.search.domains import domain_of, gradients_of
from mspc.passes.search.elimination import Factor, Table
from mspc.passes.sharding.choices import Choice, merge, multiplies, operand_types
from mspc.passes.sharding.layout_search import Search
from mspc.passes.sharding.placement import is_master
from mspc.passes.sharding.traffic import COLLECTIVE

SHARED = 1 << 13
"""Elements of the table of a value, its copy and a reader up to which copies are variables of their own."""
OF_WORK, OF_MEMORY = 1e-12, 1e-9
"""What a point of the iteration space and a byte of a parameter's slice count, in bytes sent: of plans that send the
same, that with the fewest changes of layout is taken, then that with less memory and work."""
NEVER = 1e18
"""Bytes of what must not be."""

Numbers = Any
"""Layouts by their numbers in `Places`, one for every choice."""


@dataclass(frozen=True, eq=False)
class Variable:
    """One decision: on an operator, on where a parameter is stored, on a copy of a value, or none where there is one
    choice.

    choices: of an operator. outputs: the layouts of every tensor; returned: the same without partial sums, as their
    gradients are wanted. operands, gradients: how an operator needs its operands, and how their gradients come out.
    """

    outputs: tuple[Numbers, ...]
    returned: tuple[Numbers, ...] = ()
    operands: tuple[Numbers, ...] = ()
    gradients: tuple[Numbers, ...] = ()
    choices: tuple[Choice, ...] = ()

    @property
    def size(self) -> int:
        return len(self.outputs[0])


@dataclass(frozen=True, eq=False)
class _Reader:
    """One reading of a tensor. writes: the reader changes it, so that it must be stored as it is needed."""

    variable: int
    needs: Numbers
    gradients: Numbers
    writes: bool = False


Source = tuple[Value, int]
"""What makes a tensor, and the tensor's place among its results."""


class Model:
    """The problem of one graph on one mesh. variables and factors are what `Elimination` takes; of: the variable of an
    operator or a parameter."""

    def __init__(self, search: Search, mesh: tuple[int, ...]) -> None:
        self.search, self.mesh = search, mesh
        self.variables: list[Variable] = []
        self.factors: list[Factor] = []
        self.of: dict[Value, int] = {}
        self._places: dict[int, Places] = {}
        self._domains: dict[Any, Variable] = {}
        self._tables: dict[Any, Table] = {}
        self.nodes = [node for node in search.graph.nodes if node.phase == "forward" and self._decides(node)]
        tied: dict[Any, int] = {}
        for node in self.nodes:
            variable = self._operator(node)
            key = (*(self._source(v) for v in node.inputs if not _is_state(v)), self.search.rules[node])
            if node.in_layouts is not None or variable.size**3 <= SHARED or len(key) < 2:
                self.of[node] = self._add(variable)
            else:  # twins, as the three products in front of an attention, are cut alike
                self.of[node] = tied[key] if key in tied else tied.setdefault(key, self._add(variable))
        readings = self._readings()
        for source, readers in readings.items():
            self._stored(source[0], readers)
        for source, readers in readings.items():
            self._edges(source, readers)
        for node in self.nodes:
            self._alone(node)

    # Variables

    def layout(self, value: Value, number: int) -> Layout:
        """The layout of a tensor by its number."""
        return self._places[len(value.tensor_type.shape)].layouts[number]

    def _decides(self, node: Node) -> bool:
        return self.search.rules[node] is not None and not cast(Op, node.op).operandwise

    def _add(self, variable: Variable) -> int:
        self.variables.append(variable)
        return len(self.variables) - 1

    def _operator(self, node: Node) -> Variable:
        rule = self.search.rules[node]
        assert rule is not None
        if node.in_layouts is not None:
            operands = cast("tuple[Layout, ...]", node.in_layouts)
            choices = (Choice(operands, element_layouts(node.layout), 0.0),)
            sources = tuple((dims, layout) for dims, layout in zip(rule.inputs, operands, strict=True) if dims)
            return self._numbered(choices, (gradients_of(rule, *merge(rule, sources, self.search.ranks)),))
        key = (rule, multiplies(rule, node))
        if key not in self._domains:
            domain = domain_of(rule, self.mesh, key[1])
            self._domains[key] = self._numbered(domain.choices, domain.gradients)
        return self._domains[key]

    def _numbered(self, choices: tuple[Choice, ...], gradients: tuple[tuple[Layout, ...], ...]) -> Variable:
        results, operands = range(len(choices[0].outputs)), range(len(choices[0].inputs))
        return Variable(
            tuple(self._numbers([c.outputs[i] for c in choices]) for i in results),
            tuple(self._numbers([c.outputs[i].without_partial() for c in choices]) for i in results),
            tuple(self._numbers([c.inputs[i] for c in choices]) for i in operands),
            tuple(self._numbers([g[i] for g in gradients]) for i in operands),
            choices,
        )

    def _numbers(self, layouts: Sequence[Layout]) -> Numbers:
        places = self._places.setdefault(len(layouts[0].dims), Places(self.mesh))
        return np.array([places.number(layout) for layout in layouts])

    def _stored(self, value: Value, readers: Sequence[_Reader]) -> None:
        """The variable of a parameter: stored as one of its readers needs it where nobody has decided on it."""
        if value in self.of:
            return
        if isinstance(value.layout, Layout):
            numbers = self._numbers([value.layout])
        else:
            numbers = np.array(list(dict.fromkeys(int(n) for reader in readers for n in reader.needs)))
        self.of[value] = self._add(Variable((numbers,), (numbers,)))

    # Who reads what

    def _readings(self) -> dict[Source, list[_Reader]]:
        found: dict[Source, dict[Any, _Reader]] = {}
        for node in self.nodes:
            variable = self.of[node]
            numbers = self.variables[variable]
            for i, value in enumerate(node.inputs):
                source = self._source(value)
                if source is not None:
                    writes = i in cast(Op, node.op).mutates
                    reader = _Reader(variable, numbers.operands[i], numbers.gradients[i], writes)
                    found.setdefault(source, {}).setdefault((variable, i), reader)
        for value, layout in self.search.traffic.required.items():
            source = self._source(value)
            if source is not None and (source in found or source[0] in self.of):
                numbers = self._numbers([layout])
                reader = _Reader(self._add(Variable((numbers,), (numbers,))), numbers, numbers)
                found.setdefault(source, {})[reader] = reader
        return {source: list(readers.values()) for source, readers in found.items()}

    def _source(self, value: Value) -> Source | None:
        """Where a tensor comes from, behind tuples and orderings; None for what costs nothing wherever it is wanted."""
        path: list[int] = []
        while isinstance(value, Node) and not self._decides(value):
            if isinstance(value.op, TupleGetItem):
                path.append(value.op.index)
                value = value.inputs[0]
            elif isinstance(value.op, MakeTuple) and path:
                value = value.inputs[path.pop()]
            elif value.inputs and self.search.rules[value] is None and not isinstance(value.op, MakeTuple):
                value = value.inputs[0]
            else:
                return None
        if isinstance(value, Constant) or (isinstance(value, Node) and value.phase != "forward"):
            return None
        return value, path.pop() if path else 0

    # Costs

    def _alone(self, node: Node) -> None:
        """What an operator's choices cost by themselves: bytes sent inside of it, there and back, and work."""
        op, variable = cast(Op, node.op), self.variables[self.of[node]]
        inside = type(op).moved_bytes is not Op.moved_bytes
        types = operand_types(node)

        def made() -> Table:
            found = np.array([choice.work * OF_WORK for choice in variable.choices])
            if inside:
                sent = [op.moved_bytes(types, choice.inputs) for choice in variable.choices]
                found += np.array(sent) * (2 if self.search.trains else 1)
            return found

        self._factor((self.of[node],), ("alone", op if inside else None, types, id(variable)), made)

    def _edges(self, source: Source, readers: Sequence[_Reader]) -> None:
        """The factors of one tensor and all that read it."""
        value, index = source
        own, variable, type = self.of[value], self.variables[self.of[value]], element_types(value.type)[index]
        outputs, returned = variable.outputs[index], variable.returned[index]
        if isinstance(value, Parameter) and not isinstance(value.layout, Layout):
            self._factor((own,), ("held", outputs.tobytes(), type), lambda: self._held(outputs, type))
        graded = self.search.trains and type.dtype.has_gradient
        if isinstance(value, Parameter):
            graded = graded and is_master(value) and value.trainable
        largest = max(len(reader.needs) for reader in readers)
        if 1 < len(readers) and len(outputs) * largest**2 <= SHARED:
            self._copied(own, outputs, "there", type, readers)
            if graded:
                self._copied(own, returned, "back", type, readers)
        else:
            for reader in readers:
                self._direct(own, outputs, "there", type, reader)
                if graded:
                    self._direct(own, returned, "back", type, reader)
        for reader in readers:
            if reader.writes:
                self._factor((own, reader.variable), ("writes", outputs.tobytes(), reader.needs.tobytes()),
                             lambda r=reader: np.where(outputs[:, None] == r.needs[None, :], 0.0, NEVER))  # fmt: skip

    def _held(self, outputs: Numbers, type: TensorType) -> Table:
        layouts = self._places[len(type.shape)].layouts
        return np.array([type.nbytes / math.prod(layouts[n].strategy) for n in outputs]) * OF_MEMORY

    def _direct(self, own: int, at: Numbers, way: str, type: TensorType, reader: _Reader) -> None:
        there = reader.needs if way == "there" else reader.gradients
        key = (way, at.tobytes(), there.tobytes(), len(type.shape), type.nbytes)
        self._factor((own, reader.variable), key, lambda: self._sent(way, at, there, type))

    def _copied(self, own: int, at: Numbers, way: str, type: TensorType, readers: Sequence[_Reader]) -> None:
        """A copy that all readers may take instead of the value; on the way back a place where gradients are added."""
        wanted = [reader.needs if way == "there" else reader.gradients for reader in readers]
        numbers = np.array(sorted({int(n) for need in wanted for n in need}))
        copy = self._add(Variable((numbers,), (numbers,)))
        size = (len(type.shape), type.nbytes)
        self._factor((own, copy), (way, at.tobytes(), numbers.tobytes(), *size),
                     lambda: self._sent(way, at, numbers, type))  # fmt: skip
        for reader, need in zip(readers, wanted, strict=True):

            def cheaper(need: Numbers = need) -> Table:
                direct, shared = self._sent(way, at, need, type), self._sent(way, numbers, need, type)
                return np.minimum(direct[:, None, :], shared[None, :, :])

            key = (way, at.tobytes(), numbers.tobytes(), need.tobytes(), *size)
            self._factor((own, copy, reader.variable), key, cheaper)

    def _sent(self, way: str, near: Numbers, far: Numbers, type: TensorType) -> Table:
        """[near, far]: bytes from the value to where it is wanted, or back from there."""
        distances = self._places[len(type.shape)].distances()
        shares = distances[np.ix_(near, far)] if way == "there" else distances[np.ix_(far, near)].T
        return np.minimum(shares * type.nbytes + COLLECTIVE * (shares > 0), NEVER)

    def _factor(self, variables: tuple[int, ...], key: Any, made: Callable[[], Table]) -> None:
        """Add a factor; alike ones have one table between them. Of a variable that stands twice the diagonal counts."""
        order = sorted(range(len(variables)), key=lambda i: (variables[i], i))
        key = (key, tuple(order), tuple(variables.index(v) for v in variables))
        table = self._tables.get(key)
        if table is None:
            table = np.transpose(made(), order)
            for i in range(len(order) - 1, 0, -1):
                if variables[order[i]] == variables[order[i - 1]]:
                    table = np.moveaxis(np.diagonal(table, axis1=i - 1, axis2=i), -1, i - 1)
            self._tables[key] = table = np.ascontiguousarray(table)
        self.factors.append(Factor(tuple(dict.fromkeys(variables[i] for i in order)), table))


def _is_state(value: Value) -> bool:
    return isinstance(value, Constant) or (isinstance(value, Parameter) and value.kind != "input")
