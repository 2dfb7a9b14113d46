"""Gradients beside finite differences: a judge of every gradient rule that knows none of them.

The graph of one device is copied behind differentiation, with every floating-point type as Float64. Along a random
direction d of some parameters, (f(x + h d) - f(x - h d)) / 2h must be what the gradients make of d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from mspc.engine.compared import Row
from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, element_types
from mspc.ir.types import FLOAT64, DType, TensorType, TupleType, Type
from mspc.ops.control.structural import Gradient, MakeTuple, TupleGetItem
from mspc.ops.op import NotDifferentiable, Op
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World

Array = Any
TOLERANCE = 1e-3
"""Difference from what is expected of a direction, relative to the size of that over all directions."""
STEPS = (1e-6, 1e-4, 1e-2)
"""Sizes of a step relative to the parameter; a larger one where kernels of an operator compute in Float32."""
DIRECTIONS = 12
"""The most directions; parameters beyond share one with their neighbours."""


@dataclass(frozen=True)
class Request:
    """A request for gradients as the front end left it. readers: which nodes read which gradient."""

    outputs: list[Value]
    wanted: list[Value]
    sens: list[Value]
    readers: list[Node]


def requests(graph: Graph) -> list[Request]:
    """The requests for gradients of a graph that is not differentiated yet."""
    users = graph.users()
    found: list[Request] = []
    for node in graph.nodes:
        if isinstance(node.op, Gradient):
            count, last = node.op.outputs, len(node.inputs) - (node.op.outputs if node.op.has_sens else 0)
            readers = [user for user, _ in users.get(node, []) if isinstance(user.op, TupleGetItem)]
            found.append(Request(node.inputs[:count], node.inputs[count:last], node.inputs[last:], readers))
    return found


@dataclass
class _Judged:
    """Of one request, in the copy: (outputs, sensitivities or none) and the gradient of every parameter."""

    outputs: list[Value]
    sens: list[Value]
    gradients: dict[Parameter, Value]


@dataclass
class Doubled:
    """A differentiated graph of one device as Float64, and what is to be judged in it."""

    graph: Graph
    judged: list[_Judged] = field(default_factory=list["_Judged"])

    @staticmethod
    def of(graph: Graph, asked: Sequence[Request]) -> Doubled:
        """The copy of a graph behind differentiation. asked: the requests that it had before."""
        copies: dict[Value, Value] = {}
        made = Graph(graph.name)

        def copied(value: Value) -> Value:
            if value not in copies and isinstance(value, Constant):
                type = value.tensor_type
                copies[value] = Constant(value.value, FLOAT64) if type.dtype.is_float else value
            return copies[value]

        for parameter in graph.parameters:
            copies[parameter] = Parameter(parameter.name, _wide(parameter.type), parameter.kind, parameter.trainable)
        made.parameters = [p for p in map(copied, graph.parameters) if isinstance(p, Parameter)]
        for node in graph.nodes:
            copy = Node(_wide_op(node.op), map(copied, node.inputs), _wide(node.type), node.name, node.instance)
            copy.phase, copy.frames = node.phase, node.frames
            copies[node] = copy
            made.nodes.append(copy)
        doubled = Doubled(made)
        present = set(graph.nodes)
        for request in asked:
            grads: dict[Parameter, Value] = {}
            for reader in request.readers:
                source = reader.inputs[0] if reader in present else None
                if isinstance(source, Node) and isinstance(source.op, MakeTuple):
                    assert isinstance(reader.op, TupleGetItem)
                    wanted = request.wanted[reader.op.index]
                    if isinstance(wanted, Parameter) and _is_float(wanted):
                        grads[copies[wanted]] = copied(source.inputs[reader.op.index])  # type: ignore[index]
            if grads and all(isinstance(v, Constant) or v in copies for v in [*request.outputs, *request.sens]):
                outputs, sens = [copied(v) for v in request.outputs], [copied(v) for v in request.sens]
                doubled.judged.append(_Judged(outputs, sens, grads))
        return doubled

    def rows(self, values: dict[str, Array], seed: int) -> tuple[list[Row], int]:
        """(a row for every direction in which gradients are wrong, the number of directions).

        values: of parameters, constants and inputs, by name.
        """

        def main(comm: LocalComm) -> tuple[list[Row], int]:
            backend = NumPyBackend(comm, step=1)
            rows: list[Row] = []
            count = 0
            for judged in self.judged:
                try:
                    found, directions = _Judge(self, judged, backend, values, seed).rows()
                except Exception:  # some kernel does not take Float64: the network itself runs, so nothing is wrong
                    continue
                rows, count = rows + found, count + directions
            return rows, count

        return World(1).run(main)[0]


class _Judge:
    """Judges one request at one place."""

    def __init__(
        self, doubled: Doubled, judged: _Judged, backend: NumPyBackend, values: dict[str, Array], seed: int
    ) -> None:
        self.judged, self.backend, self.graph = judged, backend, doubled.graph
        self.values = {p: _widened(values[p.name]) for p in self.graph.parameters}
        self.generator = np.random.default_rng(seed)
        needed = [*judged.outputs, *judged.sens]
        self.forward = _needed(self.graph, needed)
        self.base = self._evaluate(_needed(self.graph, [*needed, *judged.gradients.values()]), {}, hold=False)
        passing = [node for node in self.forward if not _passes_no_gradient(node)]
        moving = _depend(passing, judged.gradients)
        self.forward = [node for node in passing if node in moving or node.op.mutates]

    def rows(self) -> tuple[list[Row], int]:
        wanted = [p for p, g in self.judged.gradients.items() if np.isfinite(self._at(self.base, g)).all()]
        size = max(1, -(-len(wanted) // DIRECTIONS))
        groups = [wanted[i : i + size] for i in range(0, len(wanted), size)]
        found = [self._row(group) for group in groups]
        return [row for row in found if row is not None], len(groups)

    def _row(self, group: list[Parameter]) -> Row | None:
        """The row of one direction where the gradients are wrong."""
        direction = {p: self.generator.standard_normal(p.shape) * _scale(self.values[p]) for p in group}
        terms = [(self._at(self.base, self.judged.gradients[p]) * d) for p, d in direction.items()]
        expected = float(sum(term.sum() for term in terms))
        size = float(np.sqrt(sum(np.square(term).sum() for term in terms)))
        slopes: list[float] = []
        for step in STEPS:
            ends = [self._value({p: sign * step * d for p, d in direction.items()}) for sign in (1.0, -1.0)]
            slope = (ends[0] - ends[1]) / (2 * step)
            noise = 1e-12 * max(map(abs, ends)) / step
            if not np.isfinite(slope) or abs(slope - expected) <= TOLERANCE * size + noise:
                return None
            slopes.append(slope)
        apart = min(abs(slope - expected) for slope in slopes)
        if max(abs(a - b) for a in slopes for b in slopes) > 0.1 * apart:
            return None  # not smooth enough to be judged
        larger = max(size, abs(slopes[0]))
        names = ", ".join(p.name for p in group)
        return Row("derivative", names, group[0].shape, apart / larger if larger else apart, TOLERANCE)

    def _value(self, moved: dict[Parameter, Array]) -> float:
        """The sum of the outputs, each times its sensitivity, with the parameters moved."""
        values = self._evaluate(self.forward, moved, hold=True)
        total = 0.0
        for i, output in enumerate(self.judged.outputs):
            sens = self._at(self.base, self.judged.sens[i]) if self.judged.sens else 1.0
            total += float((np.asarray(self._at(values, output)) * sens).sum())
        return total

    def _evaluate(self, nodes: Sequence[Node], moved: dict[Parameter, Array], hold: bool) -> dict[Value, Array]:
        """Values of nodes. hold: all others, and what is read as distributions, keep their values."""
        values: dict[Value, Array] = {}
        if hold:
            values |= self.base
        values |= {p: np.array(a + moved[p] if p in moved else a) for p, a in self.values.items()}
        with np.errstate(all="ignore"):
            for node in nodes:
                inputs = [self._at(values, value) for value in node.inputs]
                for index in node.op.distributions if hold else ():
                    inputs[index] = self._at(self.base, node.inputs[index])
                values[node] = node.op.kernel(self.backend)(*inputs)  # type: ignore[attr-defined]
        return values

    def _at(self, values: dict[Value, Array], value: Value) -> Array:
        return value.value if isinstance(value, Constant) else values[value]


def _needed(graph: Graph, values: Sequence[Value]) -> list[Node]:
    """The nodes that the values need, in order, and those that change parameters on the way."""
    wanted = set(values)
    last = max((i for i, node in enumerate(graph.nodes) if node in wanted), default=-1)
    found: list[Node] = []
    for node in reversed(graph.nodes[: last + 1]):
        if node in wanted or (node.op.mutates and node.phase == "forward"):
            found.append(node)
            wanted.update(node.inputs)
    return found[::-1]


def _depend(nodes: Sequence[Node], roots: Any) -> set[Value]:
    found: set[Value] = set(roots)
    for node in nodes:
        if any(value in found for value in node.inputs):
            found.add(node)
    return found


def _passes_no_gradient(node: Node) -> bool:
    """Whether differentiation ends at a node: its result is no float, or its rule hands no gradient on."""
    if not any(t.dtype.is_float for t in element_types(node.type)):
        return True
    op = node.op
    if not isinstance(op, Op) or isinstance(op.bprop, NotDifferentiable):
        return not isinstance(op, MakeTuple | TupleGetItem)
    dout = tuple(_asked(t) for t in element_types(node.type)) if isinstance(node.type, TupleType) else _asked(node.type)
    try:
        grads = op.gradient(Builder(Graph("asked")), node.inputs, node, dout)
    except Exception:  # a rule may want more than it is shown here; its node is then taken for one that passes
        return False
    return all(grad is None for grad in grads)


def _asked(type: Type) -> Parameter | None:
    return Parameter("dout", type) if isinstance(type, TensorType) and type.dtype.is_float else None


def _scale(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array)))) or 1e-2 if array.size else 0.0


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_float


def _widened(array: Array) -> Array:
    array = np.asarray(array)
    return np.array(array, np.float64) if array.dtype.kind in "fV" else np.array(array)


def _wide(type: Type) -> Type:
    if isinstance(type, TupleType):
        return TupleType(tuple(t for t in map(_wide, type.elements) if isinstance(t, TensorType)))
    return TensorType(FLOAT64, type.shape) if isinstance(type, TensorType) and type.dtype.is_float else type


def _wide_op(op: Any) -> Any:
    changed = {
        f.name: FLOAT64
        for f in fields(op)
        if isinstance(getattr(op, f.name), DType) and getattr(op, f.name).is_float
    }
    return replace(op, **changed) if changed else op
