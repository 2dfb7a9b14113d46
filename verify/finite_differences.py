"""Compares gradients with finite differences: a judge of every gradient rule that knows none of them.

Along a random direction d of some parameters, (f(x + h d) - f(x - h d)) / 2h must equal the gradients applied to d, in
Float64 (`Doubled`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import (
    Builder,
    Constant,
    Graph,
    Node,
    Parameter,
    Value,
    copied_node,
    copied_parameter,
    depending,
    element_types,
)
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import COMPLEX128, EIGHTS, FLOAT64, DType, StackType, TensorType, TupleType, Type
from mspc.ops.control.custom import OwnGradient
from mspc.ops.control.structural import Gradient, MakeTuple, TupleGetItem
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op
from mspc.ops.tensor.reshape import Cast
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.faults.record import PLACE_WORDS, RegionFailure
from mspc.runtime.plan import copy_value
from mspc.runtime.regions.region import Call, Regions
from mspc.verify.difference import ComparedValue

# Makes a differentiated graph of one device in Float64, in which gradients are judged.


Array = Any


@dataclass(frozen=True)
class GradientQuery:
    """A request for gradients as the front end left it. readers: which nodes read which gradient. reason: why nothing
    judges it, "" if something does."""

    outputs: list[Value]
    targets: list[Value]
    sens: list[Value]
    readers: list[Node]
    reason: str = ""


def requests(graph: Graph) -> list[GradientQuery]:
    """Return the requests for gradients of a graph that is not differentiated yet."""
    found: list[GradientQuery] = []
    given: set[Value] = set()
    for each in graph.graphs():
        users = each.users()
        for node in each.nodes:
            if _gives_gradient(node) or any(value in given for value in node.inputs):
                given.add(node)
            if not isinstance(node.op, Gradient):
                continue
            count, last = node.op.outputs, len(node.inputs) - (node.op.outputs if node.op.has_sens else 0)
            readers = [user for user, _ in users.get(node, []) if isinstance(user.op, TupleGetItem)]
            reason = "a loop or a branch asks for it" if each is not graph else ""
            reason = "the script gives a gradient on the way to it, which may be any" if node in given else reason
            found.append(
                GradientQuery(node.inputs[:count], node.inputs[count:last], node.inputs[last:], readers, reason)
            )
    return found


def _gives_gradient(node: Node) -> bool:
    return isinstance(node.op, OwnGradient) or any(
        isinstance(inner.op, OwnGradient) for region in node.regions for each in region.graphs() for inner in each.nodes
    )


@dataclass
class Judged:
    """One request in the copy: outputs, sensitivities or none, and the gradient of every value that it asks for."""

    outputs: list[Value]
    sens: list[Value]
    gradients: dict[Value, Value]


class NotInFloat64(Exception):
    """A kernel does not take Float64. label: of its operator."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.label = label


class Tape:
    """Values inside of regions that differentiation takes for constants.

    Finite differences must take them for constants, too: a run records them, and runs with moved inputs replay them.
    """

    def __init__(self) -> None:
        self._values: dict[Node, list[Any]] = {}
        self._running: list[Any] = []
        self._place = 0
        self.replays = False

    def begin(self, node: Node) -> None:
        """Begin with a node of the graph that runs regions."""
        if not self.replays:
            self._values[node] = []
        self._running, self._place = self._values[node], 0

    def end(self) -> None:
        """Raise IndexError if the regions ran otherwise than in the run that was recorded."""
        if self._place != len(self._running):
            raise IndexError("fewer values than were recorded")

    def next(self, compute: Callable[[], Any]) -> Any:
        """Return the next value. Raise IndexError if more are asked for than were recorded."""
        if not self.replays:
            self._running.append(compute())
        self._place += 1
        return self._running[self._place - 1]


class Held(Op, abstract=True):
    """An operator whose results come from a tape."""

    def of(self, op: Op, tape: Tape) -> Held:
        """Return such an operator in the place of another one."""
        made = Held()
        object.__setattr__(made, "op", op)
        object.__setattr__(made, "tape", tape)
        return made

    @property
    def plain(self) -> Any:
        """The operator without the tape."""
        return vars(self)["op"]

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        run, tape = self.plain.kernel(be), vars(self)["tape"]
        return lambda *operands: tape.next(lambda: copy_value(run(*operands)))


REFUSED = (TypeError, ValueError, MspcError)
"""Exceptions that kernels raise for operands of an element type that they do not take."""


def _checked(node: Node, run: Callable[..., Any]) -> Callable[..., Any]:

    def kernel(*operands: Any) -> Any:
        try:
            return run(*operands)
        except REFUSED as error:
            raise NotInFloat64(node.label) from error

    return kernel


def value_at(values: Mapping[Value, Array], value: Value) -> Array:
    """Return the value of a node, a parameter or a constant."""
    return value.value if isinstance(value, Constant) else values[value]


@dataclass
class Doubled:
    """A differentiated graph of one device as Float64, and the requests to judge in it. unjudged: gradients that are
    not judged, with the reasons."""

    graph: Graph
    judged: list[Judged] = field(default_factory=list[Judged])
    tape: Tape = field(default_factory=Tape)
    unjudged: dict[str, str] = field(default_factory=dict[str, str])

    @staticmethod
    def of(graph: Graph, asked: Sequence[GradientQuery]) -> Doubled:
        """Return the copy of a graph after differentiation. asked: the requests that it had before."""
        doubled = Doubled(Graph(graph.name))
        copies = doubled._widen(graph, doubled.graph, {})
        present = set(graph.nodes)

        def copied(value: Value) -> Value:
            return value if isinstance(value, Constant) and value not in copies else copies[value]

        for request in asked:
            if request.reason:
                doubled.unjudged |= {name_of(value): request.reason for value in request.targets if _is_float(value)}
                continue
            grads: dict[Value, Value] = {}
            for reader in request.readers:
                source = reader.inputs[0] if reader in present else None
                if isinstance(source, Node) and isinstance(source.op, MakeTuple):
                    assert isinstance(reader.op, TupleGetItem)
                    wanted = request.targets[reader.op.index]
                    if wanted in copies and not isinstance(wanted, Constant) and _is_float(wanted):
                        grads[copies[wanted]] = copied(source.inputs[reader.op.index])
            if grads and all(isinstance(v, Constant) or v in copies for v in [*request.outputs, *request.sens]):
                outputs, sens = [copied(v) for v in request.outputs], [copied(v) for v in request.sens]
                doubled.judged.append(Judged(outputs, sens, grads))
        return doubled

    def _widen(
        self, graph: Graph, made: Graph, regions: dict[Graph, Graph], inside: bool = False
    ) -> dict[Value, Value]:
        """Fill a graph with the copy of another one; the copies by the values that they are of. regions: copies of the
        graphs that nodes run. inside: it is such a graph."""
        copies: dict[Value, Value] = {}
        of_network = {value for node in graph.nodes if node.phase == "forward" for value in node.inputs}

        def copied(value: Value) -> Value:
            if value not in copies and isinstance(value, Constant):
                dtype = value.tensor_type.dtype
                rounded = value in of_network or value.given is None  # gradients' own, as 1 / n of a mean, are not
                number = value.value if rounded else value.given
                copies[value] = Constant(number, _doubled(dtype)) if dtype.has_gradient else value
            return copies[value]

        for parameter in graph.parameters:
            copies[parameter] = own = copied_parameter(parameter)
            own.type = wide_type(parameter.type)
            made.parameters.append(own)
        for node in graph.nodes:
            inputs = list(map(copied, node.inputs))
            if inside:
                inputs = [self._from_tape(made, v) if i in node.op.distributions else v for i, v in enumerate(inputs)]
            op = wide_op(node.op)
            if inside and not node.regions and not isinstance(node.op, MakeTuple | TupleGetItem):
                op = Held().of(op, self.tape) if passes_no_gradient(node) else op
            copies[node] = copy = copied_node(node, inputs, op)
            copy.type, copy.forward, copy.layout = wide_type(node.type), None, None
            for region in node.regions:
                if region not in regions:
                    regions[region] = own_region = Graph(region.name)
                    own_region.attrs, own_region.returns_tuple = dict(region.attrs), region.returns_tuple
                    self._widen(region, own_region, regions, True)
            copy.regions = tuple(regions[region] for region in node.regions)
            made.nodes.append(copy)
        made.results = list(map(copied, graph.results))
        return copies

    def _from_tape(self, made: Graph, value: Value) -> Value:
        """Return the value from the tape, in a region."""
        node = Node(Held().of(Cast(dst_type=value.tensor_type.dtype), self.tape), [value], value.type, "", "")
        made.nodes.append(node)
        return node

    def kernels(self, backend: NumPyBackend, call: Call | None = None) -> Callable[[Node], Callable[..., Any]]:
        """Return the kernels of the graph's nodes, also of those that run regions. They raise NotInFloat64. call: runs
        the kernels in regions."""
        regions = Regions(self.graph, backend, [0] * PLACE_WORDS, compiles=False)

        def kernel(node: Node) -> Callable[..., Any]:
            if not node.regions:
                return _checked(node, node.op.kernel(backend))  # type: ignore[attr-defined]  # operators have kernels
            run = known[node] = known.get(node) or regions.kernel(node)
            for region in regions.prepared:
                region.hook(call)

            def taped(*operands: Any) -> Any:
                self.tape.begin(node)
                try:
                    found = copy_value(run(*operands))
                except RegionFailure as failure:
                    if isinstance(failure.cause, IndexError) and self.tape.replays:
                        raise failure.cause from None
                    raise NotInFloat64(failure.node.label) from failure
                self.tape.end()
                return found

            return taped

        known: dict[Node, Callable[..., Any]] = {}
        return kernel

    def run(
        self, backend: NumPyBackend, parameters: Mapping[Parameter, Array], wanted: Sequence[Value],
        call: Call | None = None,
    ) -> dict[Value, Array]:  # fmt: skip
        """Compute the nodes that `wanted` needs, in order. parameters: of all, as Float64 (`widened`). call: see
        `kernels`."""
        values: dict[Value, Array] = {p: np.array(array) for p, array in parameters.items()}
        kernel = self.kernels(backend, call)
        self.tape.replays = False
        with np.errstate(all="ignore"):
            for node in needed(self.graph, wanted):
                inputs = [value_at(values, value) for value in node.inputs]
                values[node] = kernel(node)(*inputs)
        return values


def name_of(value: Value) -> str:
    """Return the name of a value, or the label of its operator."""
    return value.name or (value.label if isinstance(value, Node) else "")


def needed(graph: Graph, values: Sequence[Value]) -> list[Node]:
    """Return the nodes that the values need, in order, and those that change parameters on the way."""
    wanted = set(values)
    last = max((i for i, node in enumerate(graph.nodes) if node in wanted), default=-1)
    found: list[Node] = []
    for node in reversed(graph.nodes[: last + 1]):
        if node in wanted or (node.op.mutates and node.phase == "forward"):
            found.append(node)
            wanted.update(node.inputs)
    return found[::-1]


def passes_no_gradient(node: Node) -> bool:
    """Return whether differentiation ends at a node: its result is no float, or its rule hands no gradient on. It goes
    through the regions of one that runs some."""
    if node.regions:
        return False
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
    """Return a copy of an array, floats as Float64 and complex numbers as Complex128."""
    array = np.asarray(array)
    return np.array(array, {"f": np.float64, "V": np.float64, "c": np.complex128}.get(array.dtype.kind))


def _doubled(dtype: DType) -> DType:
    if dtype in EIGHTS:
        return dtype  # a network rounds to 8 bits as it says
    return FLOAT64 if dtype.is_float else COMPLEX128 if dtype.is_complex else dtype


def wide_type(type: Type) -> Type:
    """Return the type with floating-point numbers as Float64, but for those of 8 bits."""
    if isinstance(type, TupleType):
        return TupleType(tuple(t for t in map(wide_type, type.elements) if isinstance(t, TensorType)))
    if isinstance(type, StackType):
        return StackType(_doubled(type.dtype), type.shape, type.depth)
    return TensorType(_doubled(type.dtype), type.shape) if isinstance(type, TensorType) else type


def wide_op(op: Any) -> Any:
    """Return the operator with floating-point types among its fields as Float64."""
    wide = {f.name: _wide_field(getattr(op, f.name)) for f in fields(op)}
    changed = {name: value for name, value in wide.items() if value is not getattr(op, name)}
    return replace(op, **changed) if changed else op


_PLAIN = frozenset((bool, float, int, str))


def _wide_field(value: Any) -> Any:
    """Double the element types in a field; return the same object if there are none."""
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


TOLERANCE = 1e-3
"""Difference from the expected slope of a direction, relative to its size over all directions."""
STEPS = (1e-6, 1e-4, 1e-2)
"""Sizes of a step relative to the parameter; the larger ones serve kernels that compute in Float32."""
DRAWS = 20
"""Random directions of which one has to have a slope."""
DIRECTIONS = 12
"""The most directions; parameters beyond share one with their neighbours."""


@dataclass
class Directions:
    """rows: of every direction in which gradients are wrong. count: how many directions were compared. unjudged: the
    gradients that were not, with the reasons."""

    rows: list[ComparedValue] = field(default_factory=list[ComparedValue])
    count: int = 0
    unjudged: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, other: Directions) -> None:
        """Add the directions of other inputs. One that is judged for some inputs is judged."""
        both = self.unjudged.keys() & other.unjudged.keys() if self.count or self.unjudged else other.unjudged.keys()
        self.unjudged = {name: reason for name, reason in (self.unjudged | other.unjudged).items() if name in both}
        self.rows += other.rows
        self.count += other.count


def directions(doubled: Doubled, values: dict[str, Array], seed: int) -> Directions:
    """Compare all gradients with finite differences. values: of parameters, constants and inputs, by name."""

    def main(comm: LocalComm) -> Directions:
        backend = NumPyBackend(comm, step=1)
        found = Directions(unjudged=dict(doubled.unjudged))
        for judged in doubled.judged:
            try:
                _Judge(doubled, judged, backend, values, seed, found).compare()
            except NotInFloat64 as error:  # the network itself runs
                reason = f"{error.label} does not compute in Float64"
                found.unjudged |= {name_of(wanted): reason for wanted in judged.gradients}
        return found

    return World(1).run(main)[0]


class _Judge:
    """Judges one request at one place."""

    def __init__(
        self, doubled: Doubled, judged: Judged, backend: NumPyBackend, values: dict[str, Array], seed: int,
        found: Directions,
    ) -> None:  # fmt: skip
        self.judged, self.graph, self.found = judged, doubled.graph, found
        # A constant that only dead nodes read has no value: the reference has dropped it.
        self.values = {p: widened(values[p.name]) for p in self.graph.parameters if p.name in values}
        self.generator = np.random.default_rng(seed)
        read = [*judged.outputs, *judged.sens]
        self.forward = needed(self.graph, read)
        self.base = doubled.run(backend, self.values, [*read, *judged.gradients.values()])
        self.kernel, self.tape = doubled.kernels(backend), doubled.tape
        self.tape.replays = True
        passing = [node for node in self.forward if node in judged.gradients or not passes_no_gradient(node)]
        moving = {*judged.gradients, *depending(passing, judged.gradients)}
        self.forward = [node for node in passing if node in moving or node.op.mutates]

    def compare(self) -> None:
        """Compare the gradients of the request, and note the results."""
        wanted = [v for v, g in self.judged.gradients.items() if np.isfinite(value_at(self.base, g)).all()]
        for value in self.judged.gradients.keys() - set(wanted):
            self.found.unjudged[name_of(value)] = "it is not finite"
        size = max(1, -(-len(wanted) // DIRECTIONS))
        for group in [wanted[i : i + size] for i in range(0, len(wanted), size)]:
            try:
                reason = self._compare_direction(group)
            except IndexError:  # of the tape
                reason = "loops run otherwise nearby"
            if reason:
                self.found.unjudged |= dict.fromkeys(map(name_of, group), reason)
            else:
                self.found.count += 1

    def _compare_direction(self, group: list[Value]) -> str:
        """Compare along one direction, and say why that judges nothing, or ""."""
        direction, expected, size = self._direction(group)
        slopes: list[float] = []
        sides: list[float] = []
        unmoved = self._value({})
        for step in STEPS:
            ends = [self._value({v: sign * step * d for v, d in direction.items()}) for sign in (1.0, -1.0)]
            sides.append(abs(ends[0] - 2 * unmoved + ends[1]) / step)
            slope = (ends[0] - ends[1]) / (2 * step)
            noise = 1e-12 * max(map(abs, ends)) / step
            if not np.isfinite(slope):
                return "values nearby are not finite"
            if abs(slope - expected) <= TOLERANCE * size + noise:
                return ""
            slopes.append(slope)
        apart = min(abs(slope - expected) for slope in slopes)
        # The largest step may reach other branches or experts, and the smallest may be lost in rounding. So two slopes
        # that agree are enough, unless they are 0, as those of rounded values are, whose gradients are declared.
        pairs = list(itertools.pairwise(slopes))
        agree = [abs(a - b) <= 0.1 * apart for a, b in pairs]
        steep = [same and abs(a) > TOLERANCE * size for same, (a, _) in zip(agree, pairs, strict=True)]
        if not all(agree) and not any(steep):
            return "values are not smooth enough nearby"
        if min(sides) > 0.1 * apart:
            return "values have a corner here"  # as of ReLU at 0: the slopes on its two sides differ, however near
        larger = max(size, abs(slopes[0]))
        names = ", ".join(map(name_of, group))
        apart = apart / larger if larger else apart
        self.found.rows.append(ComparedValue("derivative", names, group[0].shape, apart, TOLERANCE))
        return ""

    def _direction(self, group: list[Value]) -> tuple[dict[Value, Array], float, float]:
        """Return a random direction, the slope along it that the gradients make, and the size of that over all
        directions.

        Directions with a slope near 0 are drawn again: along these a gradient that is wrong by a factor is as good as
        the right one.
        """
        here = {v: np.asarray(value_at(self.base, v)) for v in group}  # of a stack, one array
        for _ in range(DRAWS):
            direction = {v: self.generator.standard_normal(a.shape) * _scale(a) for v, a in here.items()}
            terms = [(value_at(self.base, self.judged.gradients[v]) * d) for v, d in direction.items()]
            expected = float(sum(term.sum() for term in terms))
            size = float(np.sqrt(sum(np.square(term).sum() for term in terms)))
            if abs(expected) >= 0.5 * size:
                break
        return direction, expected, size

    def _value(self, moved: dict[Value, Array]) -> float:
        """Return the sum of the outputs, each times its sensitivity, after values have moved."""
        values = self._evaluate(moved)
        total = 0.0
        for i, output in enumerate(self.judged.outputs):
            sens = value_at(self.base, self.judged.sens[i]) if self.judged.sens else 1.0
            total += float((np.asarray(value_at(values, output)) * sens).sum())
        return total

    def _evaluate(self, moved: dict[Value, Array]) -> dict[Value, Array]:
        """Return all values after some have moved; those that pass no gradient, and distributions that are read,
        stay."""
        values = self.base | {p: np.array(a + moved[p] if p in moved else a) for p, a in self.values.items()}
        with np.errstate(all="ignore"):
            for node in self.forward:
                if node in self.judged.gradients:
                    own = np.asarray(self.base[node]) + moved.get(node, 0.0)
                    values[node] = list(own) if isinstance(self.base[node], list) else own
                    continue
                inputs = [value_at(values, value) for value in node.inputs]
                for index in node.op.distributions:
                    inputs[index] = value_at(self.base, node.inputs[index])
                values[node] = self.kernel(node)(*inputs)
        return values


def _scale(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array)))) or 1e-2 if array.size else 0.0
