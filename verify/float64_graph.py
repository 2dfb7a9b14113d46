"""Makes a differentiated graph of one device in Float64, in which gradients are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Any

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import COMPLEX128, FLOAT64, DType, TensorType, TupleType, Type
from mspc.ops.control.custom import OwnGradient
from mspc.ops.control.structural import Gradient, MakeTuple, TupleGetItem
from mspc.ops.op import NotDifferentiable, Op
from mspc.runtime.backend import NumPyBackend

Array = Any


@dataclass(frozen=True)
class Request:
    """A request for gradients as the front end left it. readers: which nodes read which gradient."""

    outputs: list[Value]
    wanted: list[Value]
    sens: list[Value]
    readers: list[Node]


def requests(graph: Graph) -> list[Request]:
    """The requests for gradients of a graph that is not differentiated yet, but for those through a gradient that the
    script gives, which may be any."""
    users = graph.users()
    found: list[Request] = []
    given: set[Value] = set()
    for node in graph.nodes:
        if isinstance(node.op, OwnGradient) or any(value in given for value in node.inputs):
            given.add(node)
        elif isinstance(node.op, Gradient):
            count, last = node.op.outputs, len(node.inputs) - (node.op.outputs if node.op.has_sens else 0)
            readers = [user for user, _ in users.get(node, []) if isinstance(user.op, TupleGetItem)]
            found.append(Request(node.inputs[:count], node.inputs[count:last], node.inputs[last:], readers))
    return found


@dataclass
class Judged:
    """Of one request, in the copy: outputs, sensitivities or none, and the gradient of every parameter."""

    outputs: list[Value]
    sens: list[Value]
    gradients: dict[Parameter, Value]


@dataclass
class Doubled:
    """A differentiated graph of one device as Float64, and what is to be judged in it."""

    graph: Graph
    judged: list[Judged] = field(default_factory=list[Judged])

    @staticmethod
    def of(graph: Graph, asked: Sequence[Request]) -> Doubled:
        """The copy of a graph behind differentiation. asked: the requests that it had before."""
        copies: dict[Value, Value] = {}
        made = Graph(graph.name)
        of_network = {value for node in graph.nodes if node.phase == "forward" for value in node.inputs}

        def copied(value: Value) -> Value:
            if value not in copies and isinstance(value, Constant):
                dtype = value.tensor_type.dtype
                rounded = value in of_network or value.given is None  # gradients' own, as 1 / n of a mean, are not
                number = value.value if rounded else value.given
                copies[value] = Constant(number, _doubled(dtype)) if dtype.has_gradient else value
            return copies[value]

        for parameter in graph.parameters:
            wide = wide_type(parameter.type)
            copies[parameter] = Parameter(parameter.name, wide, parameter.kind, parameter.trainable)
        made.parameters = [p for p in map(copied, graph.parameters) if isinstance(p, Parameter)]
        for node in graph.nodes:
            copy = Node(wide_op(node.op), map(copied, node.inputs), wide_type(node.type), node.name, node.instance)
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
                        grads[copies[wanted]] = copied(source.inputs[reader.op.index])
            if grads and all(isinstance(v, Constant) or v in copies for v in [*request.outputs, *request.sens]):
                outputs, sens = [copied(v) for v in request.outputs], [copied(v) for v in request.sens]
                doubled.judged.append(Judged(outputs, sens, grads))
        return doubled

    def run(
        self, backend: NumPyBackend, parameters: Mapping[Parameter, Array], wanted: Sequence[Value]
    ) -> dict[Value, Array]:
        """What `wanted` needs, in the order of the graph. parameters: of all, as Float64 (`widened`)."""
        values: dict[Value, Array] = {p: np.array(array) for p, array in parameters.items()}
        with np.errstate(all="ignore"):
            for node in needed(self.graph, wanted):
                inputs = [v.value if isinstance(v, Constant) else values[v] for v in node.inputs]
                values[node] = node.op.kernel(backend)(*inputs)
        return values


def needed(graph: Graph, values: Sequence[Value]) -> list[Node]:
    """The nodes that the values need, in order, and those that change parameters on the way."""
    wanted = set(values)
    last = max((i for i, node in enumerate(graph.nodes) if node in wanted), default=-1)
    found: list[Node] = []
    for node in reversed(graph.nodes[: last + 1]):
        if node in wanted or (node.op.mutates and node.phase == "forward"):
            found.append(node)
            wanted.update(node.inputs)
    return found[::-1]


def passes_no_gradient(node: Node) -> bool:
    """Whether differentiation ends at a node: its result is no float, or its rule hands no gradient on."""
    if not any(t.dtype.has_gradient for t in element_types(node.type)):
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
    return Parameter("dout", type) if isinstance(type, TensorType) and type.dtype.has_gradient else None


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_float


def widened(array: Array) -> Array:
    """A copy of an array, floats as Float64 and complex numbers as Complex128."""
    array = np.asarray(array)
    return np.array(array, {"f": np.float64, "V": np.float64, "c": np.complex128}.get(array.dtype.kind))


def _doubled(dtype: DType) -> DType:
    return FLOAT64 if dtype.is_float else COMPLEX128 if dtype.is_complex else dtype


def wide_type(type: Type) -> Type:
    """The type with floating-point numbers as Float64."""
    if isinstance(type, TupleType):
        return TupleType(tuple(t for t in map(wide_type, type.elements) if isinstance(t, TensorType)))
    return TensorType(_doubled(type.dtype), type.shape) if isinstance(type, TensorType) else type


def wide_op(op: Any) -> Any:
    """The operator with floating-point types among its fields as Float64."""
    wide = {f.name: _wide_field(getattr(op, f.name)) for f in fields(op)}
    changed = {name: value for name, value in wide.items() if value is not getattr(op, name)}
    return replace(op, **changed) if changed else op


_PLAIN = frozenset((bool, float, int, str))


def _wide_field(value: Any) -> Any:
    """A field with element types doubled; the same object where there are none to double."""
    if isinstance(value, DType):
        return _doubled(value)
    if isinstance(value, TensorType):
        return value if _doubled(value.dtype) is value.dtype else wide_type(value)
    if isinstance(value, tuple):
        if _PLAIN.issuperset(map(type, value)):  # as groups of many ranks
            return value
        wide = tuple(map(_wide_field, value))
        return value if all(a is b for a, b in zip(wide, value, strict=True)) else wide
    return value
