"""Padded dimensions of a graph: effects on operators, dimensions padded together, and the graph with its masks.

Dimensions are padded together along operators that work on every index alone. The graph is
rewritten node by node: operators that combine a padded dimension read a value there that changes nothing, others read
the value without padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import Any, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import PADDING, STAGE, STAGES, Builder, Constant, Graph, Node, Parameter, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BOOL, FLOAT16, INT32, DType, TensorType, TupleType
from mspc.ops.bases import Elementwise
from mspc.ops.control.structural import Depend, Gradient, MakeTuple, StopGradient, TupleGetItem
from mspc.ops.math.arithmetic import Add, Div, Less, Mul, Select
from mspc.ops.op import Op
from mspc.ops.tensor.creation import Range
from mspc.ops.tensor.moving import Pad
from mspc.ops.tensor.parts import Slice
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.passes.lib.choices import rule_of
from mspc.sharding.rules import Rule

Element = tuple[Value, int]
"""One tensor of a value: the value, and the index in its tuple, 0 for a tensor."""
Place = tuple[Value, int, int]
"""A dimension of an element."""
Sizes = dict[int, int]
"""Padded sizes by dimension."""


@dataclass
class PaddingPlan:
    """sizes: padded sizes of the dimensions of elements, as some readers take them. made: those of them that elements
    have from the start; others are copies. roles: of nodes, by factor. reasons: by element."""

    sizes: dict[Element, Sizes] = field(default_factory=dict[Element, Sizes])
    made: dict[Element, Sizes] = field(default_factory=dict[Element, Sizes])
    roles: dict[Node, tuple[Rule, dict[int, str]]] = field(default_factory=dict[Node, tuple[Rule, dict[int, str]]])
    reasons: dict[Element, str] = field(default_factory=dict[Element, str])


class PaddedGroups:
    """Dimensions that are padded together, or not at all."""

    def __init__(self) -> None:
        self._parents: dict[Place, Place] = {}

    def of(self, place: Place) -> Place:
        while (parent := self._parents.get(place, place)) != place:
            self._parents[place] = self._parents.get(parent, parent)
            place = parent
        return place

    def join(self, places: Sequence[Place]) -> None:
        for other in places[1:]:
            one, two = self.of(places[0]), self.of(other)
            if one != two:
                self._parents[two] = one


def elements_of(node: Node) -> list[Element]:
    """Return the tensors that a node reads, with tuples flattened."""
    return [(value, i) for value in node.inputs for i in range(len(element_types(value.type)))]


def places_of(rule: Rule, factor: int, read: Sequence[Element], node: Node) -> list[Place]:
    """Return the dimensions of a node's operands and results that are a factor."""
    made = [(node, i) for i in range(len(rule.outputs))]
    sides = ((rule.inputs, read), (rule.outputs, made))
    return [
        (value, i, d) for tensors, elements in sides for dims, (value, i) in zip(tensors, elements, strict=True)
        for d, dim in enumerate(dims) if dim == (factor,)
    ]  # fmt: skip


def grouped(graph: Graph, wanted: set[int], resized: bool = True) -> tuple[PaddingPlan, PaddedGroups, Iterable[Place]]:
    """Return a plan with roles alone, and the dimensions of the `wanted` sizes in groups. resized: padding makes them
    longer."""
    plan, groups = PaddingPlan(), PaddedGroups()
    places: dict[Place, None] = {}
    for node in graph.nodes:
        for together in _joined(node, wanted, plan, resized):
            groups.join(together)
            places.update(dict.fromkeys(together))
    return plan, groups, places


def is_made_padded(value: Value, i: int, dim: int, plan: PaddingPlan) -> bool:
    """Return whether the value itself is padded in a dimension, not a copy of it."""
    if isinstance(value, Parameter):
        return value.kind == "parameter"
    if not isinstance(value, Node):
        return False
    if value not in plan.roles:  # structural: it makes a tensor of its operand's version, and takes tuples as they are
        source = next((one for one, other in passed_elements(value) if other == (value, i)), (None, 0))[0]
        if source is None or not isinstance(source.type, TupleType):
            return source is not None
        index = value.op.index if isinstance(value.op, TupleGetItem) else i
        return is_made_padded(source, index, dim, plan)
    rule, roles = plan.roles[value]
    factors = rule.outputs[i][dim]
    return len(factors) == 1 and factors[0] in roles


def _joined(node: Node, wanted: set[int], plan: PaddingPlan, resized: bool) -> Iterator[list[Place]]:
    """Yield dimensions of a node that can only be padded together; enter the roles of a node with a rule."""
    for one, other in passed_elements(node):
        type = element_types(one[0].type)[one[1]]
        yield from ([(*one, d), (*other, d)] for d, size in enumerate(type.shape) if size in wanted)
    rule = rule_of(node)
    if rule is None:
        return
    read, roles = elements_of(node), dict[int, str]()
    for factor, size in enumerate(rule.sizes):
        role = role_of(cast(Op, node.op), rule, factor) if size in wanted else None
        if role is not None:
            places = places_of(rule, factor, read, node)
            if places and (not resized or role in (LOOKUP, CLASSES) or _is_adaptable(node, rule, factor)):
                roles[factor] = role
                yield places
    plan.roles[node] = rule, roles


def _is_adaptable(node: Node, rule: Rule, factor: int) -> bool:
    """Return whether the operator works on one more index of a factor."""
    def longer(types: Sequence[TensorType], tensors: Sequence[Any]) -> list[TensorType]:
        return [
            type.with_shape(tuple(n + (dim == (factor,)) for n, dim in zip(type.shape, dims, strict=True)))
            for type, dims in zip(types, tensors, strict=True)
        ]

    inputs = [element_types(value.type)[i] for value, i in elements_of(node)]
    types = _as_operands(node.inputs, longer(inputs, rule.inputs))
    return adapted(cast(Op, node.op), types, longer(element_types(node.type), rule.outputs)) is not None


def _as_operands(values: Sequence[Value], types: Sequence[TensorType]) -> list[Any]:
    """Return the types of operands whose elements have these types."""
    found: list[Any] = []
    rest = list(types)
    for value in values:
        count = len(element_types(value.type))
        own, rest = rest[:count], rest[count:]
        found.append(TupleType(tuple(own)) if isinstance(value.type, TupleType) else own[0])
    return found


def passed_elements(node: Node) -> Iterator[tuple[Element, Element]]:
    """Yield operands and results of structural operators that are one tensor, or a tensor and its gradient."""
    op = node.op
    if isinstance(op, TupleGetItem):
        yield (node.inputs[0], op.index), (node, 0)
    elif isinstance(op, MakeTuple):
        yield from (((value, 0), (node, i)) for i, value in enumerate(node.inputs))
    elif isinstance(op, Depend | StopGradient):
        value = node.inputs[0]
        yield from (((value, i), (node, i)) for i in range(len(element_types(value.type))))
    elif isinstance(op, Gradient):
        for i in range(len(element_types(node.type))):
            value = node.inputs[op.outputs + i]
            if isinstance(value, Parameter) and value.kind == "parameter":
                yield (value, 0), (node, i)


class PaddedGraph:
    """Rewrites a graph by a plan, node by node."""

    def __init__(self, graph: Graph, plan: PaddingPlan) -> None:
        self.graph, self.plan = graph, plan
        self.builder = Builder(graph, [])
        self.given: dict[Element, tuple[int, ...]] = {}
        """Shapes before padding."""
        self.zeros: set[Place] = set()
        self.versions: dict[tuple[Value, int, tuple[int, ...]], Value] = {}
        gradients = [i for i, node in enumerate(graph.nodes) if isinstance(node.op, Gradient)]
        self.last_gradient = gradients[-1] if gradients else len(graph.nodes)
        self.node: Node | None = None
        """The node that is rewritten."""
        self.is_update = False
        """Whether no gradient is taken of the node that is rewritten."""

    def rewrite(self) -> None:
        for (value, i), sizes in self.plan.sizes.items():
            self.given[value, i] = element_types(value.type)[i].shape
            if isinstance(value, Parameter) and (value, i) in self.plan.made:
                value.global_type, value.type = value.type, _resized(value.tensor_type, sizes)
                value.attrs[PADDING] = self.plan.reasons[value, i]
                self.zeros.update((value, i, d) for d in sizes)
        for number, node in enumerate(self.graph.nodes):
            self.node, self.is_update = node, number > self.last_gradient
            self.builder.like(node).phase = node.phase
            first = len(self.builder.nodes)
            self._rewrite(node)
            for made in self.builder.nodes[first:]:
                if made is not node and STAGE in node.attrs:
                    made.attrs[STAGE] = node.attrs[STAGE]
        self.builder.phase = "forward"
        self.graph.results = [self.result(value) for value in self.graph.results]
        old = set(self.graph.nodes)
        for node in self.builder.nodes:
            if node not in old:
                node.attrs[PADDING] = True
        self.graph.nodes = self.builder.nodes

    def _rewrite(self, node: Node) -> None:
        rule, roles = self.plan.roles.get(node, (None, dict[int, str]()))
        if rule is None:
            self._rewrite_structural(node)
            return
        read, inputs, zeros = elements_of(node), list[Value](), list[dict[int, bool]]()
        taken = [{d: roles[dim[0]] for d, dim in enumerate(dims) if len(dim) == 1 and dim[0] in roles
                  and d in self.plan.sizes.get(element, {})}
                 for dims, element in zip(rule.inputs, read, strict=True)]  # fmt: skip
        made = {d for i in range(len(rule.outputs)) for d in self.plan.made.get((node, i), {})}
        if not any(taken) and not made:
            operands = [self.plain(value) for value in node.inputs]
            self._refuse_copies(node, operands)
            node.inputs = operands
            self.builder.nodes.append(node)
            return
        for index, ((value, i), dims) in enumerate(zip(read, taken, strict=True)):
            held, zero = self._operand(node, index, (value, i), dims, self._all_zero(read, rule, roles))
            inputs.append(held)
            zeros.append(zero)
        if any(role == LOOKUP for dims in taken for role in dims.values()):
            inputs[1] = self._from_the_end(inputs[1], node, read[0], taken[0])
        self._apply(node, rule, roles, inputs, zeros)

    def _from_the_end(self, places: Value, node: Node, table: Element, roles: dict[int, str]) -> Value:
        """Return places in a padded table, of which negative ones count from the end of the rows without padding."""
        b, dtype = self.builder, places.tensor_type.dtype
        dim, first = next(d for d, role in roles.items() if role == LOOKUP), len(b.nodes)
        size = self.inside(table, dim)
        if not dtype.is_integer or not isinstance(size, int):
            return places
        shifted = b.emit(Add(), places, b.constant(size, dtype))
        found = b.emit(Select(), b.emit(Less(), places, b.constant(0, dtype)), shifted, places)
        for made in b.nodes[first:]:
            made.attrs["reason"] = f"negative places of {node.label} count from the end of {size} rows"
        return found

    def _all_zero(self, read: Sequence[Element], rule: Rule, roles: dict[int, str]) -> set[int]:
        """Return the factors to sum over of which several operands are zero in the padding."""
        found: set[int] = set()
        for factor, role in roles.items():
            places = [(value, i, d) for dims, (value, i) in zip(rule.inputs, read, strict=True)
                      for d, dim in enumerate(dims) if dim == (factor,)]  # fmt: skip
            if role == ZERO and len(places) > 1 and self.zeros.issuperset(places):
                found.add(factor)
        return found

    def _operand(
        self, node: Node, index: int, element: Element, roles: dict[int, str], zero_factors: set[int]
    ) -> tuple[Value, dict[int, bool]]:
        """Return an operand with padding as a node reads it, and which padded dimensions of it are zero there."""
        value, i = element
        op, zero = cast(Op, node.op), dict[int, bool]()
        held = self.version(value, i, tuple(sorted(roles)))
        rule = self.plan.roles[node][0]
        for d, role in sorted(roles.items()):
            zero[d] = (value, i, d) in self.zeros
            fill = self._fill(op, index, role, held.tensor_type)
            if fill is None or index in op.mutates:
                continue
            if fill == 0 and zero[d] and (self.is_update or role == EACH or rule.inputs[index][d][0] in zero_factors):
                continue
            size = self.inside(element, d)
            held = self.masked(held, d, size, fill, f"{op.name} reads no padding")
            zero[d] = fill == 0
        return held, zero

    def inside(self, element: Element, dim: int) -> int | Value:
        """Return the number of elements along a dimension that are no padding."""
        return self.given[element][dim]

    def _fill(self, op: Op, index: int, role: str, type: TensorType) -> Any:
        """Return the value that padding of an operand must have, or None for any."""
        if role == EACH:
            if op.mutates or (op.name in GATHERS and index == 1):
                return fill_of(ZERO, type.dtype)
            return None if op.name in _DIVISIONS and index == 0 else _SINGULAR.get(op.name)
        if role in (LOOKUP, CLASSES):
            return None
        if op.name == "SoftmaxCrossEntropyWithLogits" and index == 1:
            return fill_of(ZERO, type.dtype)
        return fill_of(ZERO if role == MEAN else role, type.dtype)

    def masked(self, value: Value, dim: int, size: int | Value, fill: Any, reason: str) -> Value:
        """Return the value with `fill` from index `size` of a dimension on."""
        b, shape, type = self.builder, value.shape, value.tensor_type
        first = len(b.nodes)
        places = b.emit(Range(limit=shape[dim], maxlen=max(shape[dim], 1000000), dtype=INT32))
        inside: Value = b.emit(Less(), places, size if isinstance(size, Value) else b.constant(size, INT32))
        if len(shape) - dim > 1:
            inside = b.emit(Reshape((shape[dim], *(1,) * (len(shape) - dim - 1))), inside)
        found = b.emit(Select(), inside, value, b.constant(fill, type.dtype))
        for made in b.nodes[first:]:
            held = "an unknown number of" if isinstance(size, Value) else size
            made.attrs["reason"] = f"{reason}: dimension {dim} has {held} elements, padded to {shape[dim]}"
        return found

    def _apply(
        self, node: Node, rule: Rule, roles: dict[int, str], inputs: Sequence[Value], zeros: Sequence[dict[int, bool]]
    ) -> None:
        """Append a node with padded operands and results."""
        read, rest, operands = elements_of(node), list(inputs), list[Value]()
        for value in node.inputs:
            count = len(element_types(value.type))
            own, rest = rest[:count], rest[count:]
            is_tuple = isinstance(value.type, TupleType)
            operands.append(self.builder.emit(MakeTuple(), *own) if is_tuple else own[0])
        before = element_types(node.type)
        types = [_resized(type, self.plan.made.get((node, i), {})) for i, type in enumerate(before)]
        op = adapted(cast(Op, node.op), cast(Any, [value.type for value in operands]), types)
        assert op is not None, f"{node.label} cannot be padded to {types}"
        self._refuse_copies(node, operands)
        node.op, node.inputs = op, operands
        node.type = TupleType(tuple(types)) if isinstance(node.type, TupleType) else types[0]
        self.builder.nodes.append(node)
        for i, dims in enumerate(rule.outputs):
            for d in self.plan.made.get((node, i), {}):
                factor = dims[d][0]
                each = [
                    next((zero.get(d, False) for d, dim in enumerate(own) if dim == (factor,)), None)
                    for own, zero in zip(rule.inputs, zeros, strict=True)
                ]
                off = operands[-1] if roles.get(factor) == CLASSES else None  # of no class, as padding is
                if leaves_zero(op, each) or (isinstance(off, Constant) and not off.value.any()):
                    self.zeros.add((node, i, d))
        of_padding = [
            (element, d) for element, dims in zip(read, rule.inputs, strict=True) for d, dim in enumerate(dims)
            if len(dim) == 1 and roles.get(dim[0]) == MEAN and d in self.plan.sizes.get(element, {})
        ]  # fmt: skip
        if of_padding:
            self._scale(node, of_padding)

    def _scale(self, node: Node, of_padding: Sequence[tuple[Element, int]]) -> None:
        """Let readers of a mean read it multiplied by the padded number of elements over that without padding."""
        b, dtype = self.builder, node.tensor_type.dtype
        found, first = node, len(b.nodes)
        for element, d in of_padding:
            size, held = self.plan.sizes[element][d], self.inside(element, d)
            factor: Value = b.constant(size / held, dtype) if isinstance(held, int) else b.emit(
                Div(), b.constant(size, dtype), b.emit(Cast(dtype), held)
            )  # fmt: skip
            found = b.emit(Mul(), found, factor)
        for made in b.nodes[first:]:
            made.attrs["reason"] = "a mean over padding, which is zero, is a mean of fewer elements"
        self.versions[node, 0, tuple(sorted(self.plan.made.get((node, 0), {})))] = found

    def _refuse_copies(self, node: Node, operands: Sequence[Value]) -> None:
        """Raise MspcError if the node would change a slice of a padded parameter."""
        for index in cast(Op, node.op).mutates:
            if operands[index] is not node.inputs[index]:
                raise node.error(f"{node.label} changes {node.inputs[index].name}, which is padded, and cannot",
                                 notes=["shard it into a number of slices that divides it"], code="E0401")  # fmt: skip

    def _rewrite_structural(self, node: Node) -> None:
        passed, operands = dict(passed_elements(node)), list[Value]()
        for index, value in enumerate(node.inputs):
            own = [(value, i) for i in range(len(element_types(value.type)))]
            if isinstance(node.op, Depend) and index > 0:
                operands.append(value)  # whose elements it does not read
            elif not any(element in passed for element in own):
                self._check_gradient(node, index)
                operands.append(self.plain(value))
            elif isinstance(value.type, TupleType):
                operands.append(value)  # made by a node that gives its elements padded, as they are read here
            else:
                operands.append(self.version(value, 0, tuple(sorted(self.plan.sizes.get((value, 0), {})))))
        self._refuse_copies(node, operands)
        node.inputs = operands
        made = [_resized(type, self.plan.made.get((node, i), {})) for i, type in enumerate(element_types(node.type))]
        if made:
            node.type = TupleType(tuple(made)) if isinstance(node.type, TupleType) else made[0]
        self.builder.nodes.append(node)
        for one, other in passed.items():
            for d in self.plan.made.get(other, {}):
                if (*one, d) in self.zeros or isinstance(node.op, Gradient):
                    self.zeros.add((*other, d))

    def _check_gradient(self, node: Node, index: int) -> None:
        """Raise MspcError if a gradient is taken with respect to a padded value that is not stored."""
        op, value = node.op, node.inputs[index]
        if isinstance(op, Gradient) and index >= op.outputs and self.plan.made.get((value, 0)):
            raise node.error(
                f"the gradient of a value is asked for that is padded: {self.plan.reasons[value, 0]}",
                notes=["shard it into a number of slices that divides it"], code="E0401",
            )

    def result(self, value: Value) -> Value:
        """Return a value as the graph returns it."""
        return self.plain(value)

    def plain(self, value: Value) -> Value:
        """Return a value without padding."""
        count = len(element_types(value.type))
        if not any(self.plan.made.get((value, i)) for i in range(count)):
            return self.versions.get((value, 0, ()), value)
        if not isinstance(value.type, TupleType):
            return self.version(value, 0, ())
        return self.builder.emit(MakeTuple(), *(self.version(value, i, ()) for i in range(count)))

    def version(self, value: Value, i: int, dims: tuple[int, ...]) -> Value:
        """Return an element of a value, padded in these dimensions."""
        known = self.versions.get((value, i, dims))
        if known is not None:
            return known
        sizes, given = self.plan.sizes.get((value, i), {}), self.given.get((value, i), ())
        has = tuple(sorted(self.plan.made.get((value, i), {})))
        found = self.versions.get((value, i, has), value)
        if isinstance(value.type, TupleType):
            found = self.builder.emit(TupleGetItem(i), value)
        if has == dims:
            return found
        b, first = self.builder, len(self.builder.nodes)
        if not {*has} <= {*dims}:
            kept = tuple(n if d in dims else m for d, (n, m) in enumerate(zip(found.shape, given, strict=True)))
            found = b.emit(Slice((0,) * len(kept), kept), found)
        if not {*dims} <= {*has}:
            pairs = tuple((0, sizes[d] - n if d in dims else 0) for d, n in enumerate(found.shape))
            found = b.emit(Pad(pairs), found)
            self.zeros.update((value, i, d) for d in dims if d not in has)
        for made in b.nodes[first:]:
            does = "pads" if isinstance(made.op, Pad) else "removes the padding of"
            made.attrs["reason"] = f"{does} {self.plan.reasons[value, i]}"
        # A stored parameter may change between two readers, and stages would send each other copies of any other.
        if not isinstance(value, Parameter) or not (value.kind == "parameter" or STAGES in self.graph.attrs):
            self.versions[value, i, dims] = found
        return found


def _resized(type: TensorType, sizes: Sizes) -> TensorType:
    return type.with_shape(tuple(sizes.get(d, n) for d, n in enumerate(type.shape)))


# Effects of padding on operators ----------------------------------------------------------------------
# Whether one can work on a padded dimension, and the values that padding must have.
# Padding is at the end of a dimension, and never reaches a value that is not padding: operators that work on every
# index of the dimension alone (`EACH`) may leave anything in it, and operators that combine its elements read a value
# there that changes nothing. Gradients of padding are zero then, and so are padded parameters after every update.


EACH, ZERO, ONE, LOWEST, HIGHEST = "each", "zero", "one", "lowest", "highest"
"""Roles of a dimension: every index is computed alone, or padding must have this value before the operator."""
LOOKUP, CLASSES, MEAN = "lookup", "classes", "mean"
"""Further roles: rows that integers name, of which none is padding; a result's classes, of which none is hit; a mean,
which is scaled by the padded and the given size."""

_EXTREMES = {
    "ReduceMax": LOWEST, "ReduceMin": HIGHEST, "ReduceProd": ONE, "ReduceAll": ONE, "ReduceAny": ZERO, "L2Loss": ZERO,
    "ReduceMean": MEAN,
}  # fmt: skip
_PLACES = {
    "Argmax": LOWEST, "ArgMaxWithValue": LOWEST, "Argmin": HIGHEST, "ArgMinWithValue": HIGHEST, "Softmax": LOWEST,
    "LogSoftmax": LOWEST,
}  # fmt: skip
_CROSS_ENTROPIES = ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
GATHERS = ("Gather", "IndexSelect", "SparseGatherV2")
_POINTWISE = frozenset((
    "Adam", "AdamWeightDecay", "ApplyGradientDescent", "ApplyMomentum", "ArgMaxWithValue", "ArgMinWithValue", "Argmax",
    "Argmin", "Assign", "AssignAdd", "AssignSub", "BatchMatMul", "BatchMatMulExt", "BiasAdd", "Bounded", "BroadcastTo",
    "Concat", "ExpandDims", "Fill", "Gather", "IndexSelect", "LayerNorm", "LogSoftmax", "MatMul", "MatMulExt",
    "OneHot", "Ones", "ReduceAll", "ReduceAny", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "Reshape", "RmsNorm", "SGD", "Slice", "Softmax", "SoftmaxCrossEntropyWithLogits", "SparseGatherV2",
    "SparseSoftmaxCrossEntropyWithLogits", "Split", "Squeeze", "Stack", "StackExt", "StridedSlice", "Transpose",
    "Zeros",
))  # fmt: skip
"""Operators other than elementwise ones whose result at an index of a dimension that they do not combine depends on
nothing but the operands at that index."""
_SINGULAR = {
    "Acosh": 2.0, "Div": 1.0, "RealDiv": 1.0, "FloorDiv": 1.0, "FloorMod": 1.0, "Mod": 1.0, "TruncateDiv": 1.0,
    "TruncateMod": 1.0, "Inv": 1.0, "Reciprocal": 1.0, "Log": 1.0, "Rsqrt": 1.0,
    "Sqrt": 1.0, "Pow": 1.0, "Xlogy": 1.0, "Atan2": 1.0, "Hypot": 1.0, "DivNoNan": 1.0,
}  # fmt: skip
"""Elementwise operators that have no finite result or gradient at 0, with an operand for which they have both."""
_DIVISIONS = frozenset((
    "Div", "RealDiv", "FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod", "DivNoNan", "Xlogy",
))  # fmt: skip
_ZERO_AT_ZERO = frozenset((
    "Abs", "Add", "AddExt", "AddN", "Asin", "Asinh", "Atan", "Atanh", "Cast", "Ceil", "Concat", "Elu", "Erf", "Expm1",
    "FastGeLU", "Floor", "GeLU", "HSwish", "Identity", "Log1p", "Maximum", "Minimum", "Mish", "Neg", "ReLU",
    "ReLU6", "Rint", "Round", "SeLU", "ShardingConstraint", "SiLU", "Sign", "Sin", "Sinh", "SoftShrink", "Softsign",
    "Square", "SquaredDifference", "Stack", "Sub", "SubExt", "Tan", "Tanh", "Trunc",
))  # fmt: skip
_ONE_IS_ENOUGH = frozenset(("Mul", "MatMul", "MatMulExt", "BatchMatMul", "BatchMatMulExt"))
"""Operators whose result is zero if one of their operands is."""


def role_of(op: Op, rule: Rule, factor: int) -> str | None:
    """Return the role of a factor if it is padded, or None if it must not be padded."""
    tensors = (*rule.inputs, *rule.outputs)
    if any(factor in dim and dim != (factor,) for dims in tensors for dim in dims):
        return None
    if op.seeds or not (isinstance(op, Elementwise) or op.name in _POINTWISE):
        return None
    read, made = (any((factor,) in dims for dims in side) for side in (rule.inputs, rule.outputs))
    if op.name in _PLACES and (factor,) in [rule.inputs[0][axis] for axis in _axes(op)]:
        return _PLACES[op.name]
    if op.name in _CROSS_ENTROPIES and rule.inputs[0][1] == (factor,):
        return LOWEST
    if op.name in GATHERS and rule.inputs[0][cast(Any, op).axis] == (factor,) and not made:
        return LOOKUP
    if op.name == "OneHot" and not read:
        return CLASSES
    if made:
        everywhere = all((factor,) in dims for dims in rule.outputs)
        free = factor not in rule.frozen and (read or "shape" in op.attributes())
        return EACH if everywhere and free else None
    if op.name in _EXTREMES:
        return _EXTREMES[op.name]
    summed = rule.reduction == "sum" and all(
        i in op.linear_in for i, dims in enumerate(rule.inputs) if (factor,) in dims
    )
    return ZERO if summed and factor not in rule.frozen else None


def _axes(op: Op) -> tuple[int, ...]:
    axis = cast(Any, op).axis
    return axis if isinstance(axis, tuple) else (axis,)


def adapted(op: Op, types: Sequence[TensorType], results: Sequence[TensorType]) -> Op | None:
    """Return the operator for operands of padded types and these results, or None if it has other results then."""
    attributes, shape = op.attributes(), results[0].shape
    if op.name in ("Reshape", "BroadcastTo", "Fill", "Zeros", "Ones"):
        op = replace(cast(Any, op), shape=shape)
    elif op.name == "OneHot":
        axis = attributes["axis"]
        op = replace(cast(Any, op), depth=shape[axis])
    elif op.name == "Slice":
        op = replace(cast(Any, op), size=shape)
    try:
        made = op.infer(*types)
    except MspcError:
        return None
    return op if [t.shape for t in element_types(made)] == [t.shape for t in results] else None


def fill_of(role: str, dtype: DType) -> Any:
    """Return the value that padding of an element type must have. It is half of the extremes of floats, so that
    differences to it are finite, and zero times it is zero."""
    if role in (LOWEST, HIGHEST):
        if dtype.is_float:
            extreme = float(np.finfo(np.float16 if dtype == FLOAT16 else np.float32).max)
            return (-extreme if role == LOWEST else extreme) / 2
        limits = np.iinfo(dtype.numpy) if np.dtype(dtype.numpy).kind in "iu" else None
        return role == HIGHEST if limits is None else limits.min if role == LOWEST else limits.max
    one = 1 if role == ONE else 0
    return bool(one) if dtype == BOOL else one


def leaves_zero(op: Op, zeros: Sequence[bool | None]) -> bool:
    """Return whether the padding of the result is zero. zeros: whether that of each operand is; None for operands
    without the dimension."""
    padded = [zero for zero in zeros if zero is not None]
    if op.name in _ONE_IS_ENOUGH:
        return any(padded)
    if op.name in _DIVISIONS:
        return zeros[0] is True
    if op.name in _ZERO_AT_ZERO:
        return len(padded) == len(zeros) and all(padded)
    if op.name in GATHERS:
        return zeros[0] is True
    return bool(padded) and all(padded) and (op.moves or 0 in op.linear_in)
