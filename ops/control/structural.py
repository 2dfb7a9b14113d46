"""Operators that shape a graph: tuples, gradients, dependences, constraints of layouts, rows of data sets,
and boundaries of regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Graph, Node, Value
from mspc.ir.types import StackType, TensorType, TupleType, Type
from mspc.ops.bases import Unary
from mspc.ops.control.regions import COUNT, RegionOp, stacked_type
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, Gradients, NotDifferentiable, Op, sample
from mspc.sharding.rules import factor_names, same_rule

CALL = "call"
"""Attribute with a node's number, from 1, that gives its regions other random numbers than other nodes with these
regions."""


class MakeTuple(Op):
    """A tuple of tensors: `(a, b)`."""

    takes_complex = True
    is_view = True
    widens = False
    bprop = NotDifferentiable("differentiation looks through tuples")

    def infer(self, *types: Type) -> Type:
        return TupleType(tuple(t for t in types if isinstance(t, TensorType)))

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return inputs


class TupleGetItem(Op):
    """Element `index` of a tuple."""

    takes_complex = True
    index: int = 0
    is_view = True
    moves = True
    bprop = NotDifferentiable("differentiation looks through tuples")

    def infer(self, *types: Type) -> Type:
        (pair,) = types
        if not isinstance(pair, TupleType) or not 0 <= self.index < len(pair.elements):
            raise MspcError(f"TupleGetItem: there is no element {self.index} in {pair}")
        return pair.elements[self.index]

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0][self.index]


class TupleGetItems(Op):
    """Some elements of a tuple, a tuple again."""

    takes_complex = True
    indices: tuple[int, ...] = ()
    is_view = True
    bprop = NotDifferentiable("differentiation looks through tuples")

    def infer(self, *types: Type) -> Type:
        (whole,) = types
        if not isinstance(whole, TupleType) or not all(0 <= i < len(whole.elements) for i in self.indices):
            raise MspcError(f"TupleGetItems: there are no elements {self.indices} in {whole}")
        return TupleType(tuple(whole.elements[i] for i in self.indices))

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return tuple(inputs[0][i] for i in self.indices)


def extracted_elements(op: object) -> tuple[int, ...] | None:
    """Return the indices of the tuple elements that an operator extracts; None if it reads the tuple otherwise."""
    if isinstance(op, TupleGetItem):
        return (op.index,)
    return op.indices if isinstance(op, TupleGetItems) else None


class Depend(Op):
    """The first operand, once all others have run."""

    takes_complex = True
    is_view = True

    def infer(self, *types: Type) -> Type:
        return types[0]

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        return Reordered(self, tuple(orders), (orders[0],))

    def bprop(self, b: Builder, x: Value, *rest_and_grads: Any) -> Gradients:
        *rest, _, dout = rest_and_grads
        return (dout, *[None] * len(rest))

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return _first

    def aliased_operands(self, count: int) -> Sequence[int]:
        return (0,)


def _first(x: Any, *_: Any) -> Any:
    return x


class StopGradient(Op):
    """The operand; differentiation does not pass."""

    takes_complex = True
    linear_in = (0,)
    is_view = True

    def infer(self, *types: Type) -> Type:
        return types[0]

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (None,)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0]


class Gradient(Op):
    """A request that the pass `grad` replaces: gradients of the first `outputs` operands, with respect to the others.

    The last `outputs` operands are the sensitivities when `has_sens`; otherwise each is a tensor of ones, as in
    MindSpore. The result is a tuple with one gradient for every differentiated value (zeros if it has none).
    """

    takes_complex = True
    outputs: int = 1
    has_sens: bool = False
    bprop = NotDifferentiable("it is expanded before any outer gradient is taken")

    def infer(self, *types: Type) -> Type:
        last = len(types) - (self.outputs if self.has_sens else 0)
        return TupleType(tuple(t for t in types[self.outputs : last] if isinstance(t, TensorType)))


def items(b: Builder, value: Node, count: int) -> list[Value]:
    """Return the elements of a tuple."""
    return [b.emit(TupleGetItem(index), value) for index in range(count)]


def label_of_result(node: Node) -> str:
    """Return the label of a node; for an element of a tuple its number and the label of the operator."""
    if isinstance(node.op, TupleGetItem) and isinstance(node.inputs[0], Node):
        return f"result {node.op.index} of {node.inputs[0].label}"
    return node.label


class Bounded(Op):
    """The first operand. Its elements from the number `count`, operand 1, on along `axis` are padding, as the size of
    the dimension depends on data and is at most that of x. The pass `mask_bounds` replaces it."""

    takes_complex = True
    axis: int = 0
    integers = (1,)
    linear_in = (0,)
    is_view = True
    widens = False
    samples = (sample((8, 16), (), dtypes=("Float64", "Int64"), low=1, high=8),)

    def rule(self, x: TensorType, count: TensorType) -> str:
        names = " ".join(factor_names(len(x.shape)))
        return f"{names},  -> {names}"

    def bprop(self, b: Builder, x: Value, count: Value, out: Value, dout: Value) -> Gradients:
        return dout, None

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return _first

    def aliased_operands(self, count: int) -> Sequence[int]:
        return (0,)


class ShardingConstraint(Unary):
    """x itself, with the layout of the operator's strategy: `ShardingConstraint().shard(((2, 4),))(x)`. Neighbouring
    operators take their layouts from it, and a parameter read through it is stored in this layout. It redistributes
    nothing itself: once all forward layouts are decided, its readers read x from the nearest copy. Gradients follow
    their operands, not the constraint."""

    takes_complex = True
    constrains = True
    follows_neighbours = True
    linear_in = (0,)
    is_view = True
    widens = False
    cuda = "{0}"
    samples = (sample((8, 16)), sample(()), sample((8, 4), dtypes=("Int32",), gradient=False))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (dout,)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        return _first


def constrained(b: Builder, value: Value, entry: Any, instance: str = "") -> Node:
    """Return `value` constrained to `entry`, a tuple of numbers of slices or a NamedLayout."""
    node = b.emit(ShardingConstraint(), value, instance=instance)
    node.in_strategy = (entry,)
    return node


def is_constraint(value: Value) -> bool:
    """Whether a value is another one with a constrained layout."""
    return isinstance(value, Node) and bool(getattr(value.op, "constrains", False))


# Boundaries of regions in an opened graph -------------------------------------------------------------
# Operators that mark the boundaries of regions in an opened graph, in which the nodes of all regions are in one list.
# Passes that decide the layouts of all operators together work on it (`passes/lib/opened_graphs.py`). These operators
# exist only inside a pass: they are never printed or executed. `owner` is the original node, `kind` its name in
# messages about a required layout.
#     If:    Decide  Handed  Border  ..  Leave  Border  ..  Back  Border  Joined
#     loop:  Decide  Enter  StandIn  Handed  Turn  Border  [..  Decide  Border]  ..  Back  Keep  Border  [Turn]  Joined
#     Call:  Handed  Border  ..  Leave  Border  Joined
# Border is RegionBoundary, Turn is IterationNumber.


class _Marker(Op, abstract=True):
    """Base of the operators that mark the regions of a node, `owner`."""

    owner: Node
    has_side_effect = True


class RegionBoundary(_Marker, abstract=True):
    """Start of region number `region` of a node with operator `op`; after the last region, its end.

    changed: values that the regions overwrite. varying: values that differ between iterations.
    """

    op: RegionOp
    regions: tuple[Graph, ...] = ()
    region: int = 0
    changed: tuple[Value, ...] = ()
    varying: tuple[Value, ...] = ()

    @property
    def is_end(self) -> bool:
        """Whether the last region ends here."""
        return self.region == len(self.regions)

    def infer(self, *types: Type) -> Type:
        return TupleType(())


class Enter(_Marker, abstract=True):
    """Value of a parameter of a loop's regions in one iteration, if it differs between iterations: the carried value,
    or an entry of a scanned operand. number: of the operand, counted from the first carried one."""

    kind: str
    number: int
    scanned: bool = False
    takes_complex = True

    @property
    def words(self) -> str:
        """Return the words that precede a layout in a message about the layout that the operator needs."""
        return f"{self.kind} {'scans' if self.scanned else 'carries'} it"

    def rule(self, x: TensorType) -> str:
        if not self.scanned or isinstance(x, StackType):
            return same_rule(x.shape, 1)
        row = _row(x.shape[1:])
        return f"{' '.join(['1' if x.shape[0] == 1 else 'turn!', row]).strip()} -> {row}"

    def infer(self, *types: Any) -> Type:
        (x,) = types
        if not self.scanned:
            return x
        return x.entry if isinstance(x, StackType) else TensorType(x.dtype, x.shape[1:])


class StandIn(_Marker, abstract=True):
    """A declaration that in the regions of a loop operand 1, a parameter, is read in place of every entry of the stack
    that is operand 0: one entry represents all, which have the same layout. number: as in Enter."""

    number: int

    def infer(self, *types: Type) -> Type:
        return TupleType(())


class Handed(_Marker, abstract=True):
    """The values that regions read from outside, in the order of the node's operands."""

    def infer(self, *types: Type) -> Type:
        return TupleType(())


class IterationNumber(_Marker, abstract=True):
    """Number of the iteration; after a loop the number of iterations."""

    is_count: bool = False

    def infer(self, *types: Type) -> Type:
        return COUNT


class Decide(_Marker, abstract=True):
    """A condition, or a number of iterations, which all ranks know."""

    @property
    def words(self) -> str:
        """As in Enter."""
        return "what the program does next depends on it, so that all ranks have it"

    def rule(self, condition: TensorType) -> str:
        return " -> "


class Leave(_Marker, abstract=True):
    """A result of the first region, for a node that returns results of one region."""

    kind: str
    number: int
    takes_complex = True

    @property
    def words(self) -> str:
        """As in Enter."""
        return f"a result of {self.kind} is"

    def rule(self, x: TensorType) -> str:
        return same_rule(x.shape, 1)

    def infer(self, *types: Any) -> Type:
        return types[0]


class Back(_Marker, abstract=True):
    """Operand 1, a result of the last region, in the layout of operand 0: the result of another region in its place, or
    the value carried to the iteration."""

    kind: str
    number: int
    is_carried: bool
    takes_complex = True

    @property
    def words(self) -> str:
        """As in Enter."""
        return f"a turn of {self.kind} hands it on" if self.is_carried else f"the other branch of {self.kind} leaves it"

    def infer(self, *types: Type) -> Type:
        return types[0]


class Keep(_Marker, abstract=True):
    """The results of the body of all iterations: `turns` along a first dimension, or in a stack if that is -1."""

    kind: str
    number: int
    turns: int
    linear_in = (0,)
    takes_complex = True

    @property
    def words(self) -> str:
        """As in Enter."""
        return f"{self.kind} keeps every turn's"

    def rule(self, x: TensorType) -> str:
        if self.turns < 0 or isinstance(x, StackType):
            return same_rule(x.shape, 1)
        row = _row(x.shape)
        lead = "1" if self.turns == 1 else f"turn={self.turns}!"
        return f"{row} -> {f'{lead} {row}'.strip()}"

    def infer(self, *types: Any) -> Type:
        (x,) = types
        return stacked_type(x, self.turns)


MARKS = (Enter, Decide, Leave, Back, Keep)
"""Operators of borders that need an operand in a layout."""


class Joined(MakeTuple, abstract=True):
    """The results of a node with regions, as a tuple."""

    owner: Node
    has_side_effect = True


def carried_values(graph: Graph) -> dict[Value, Value]:
    """Return, for every value carried by a loop of an opened graph, the value at the end of an iteration, by the value
    at its start."""
    backs = (node for node in graph.nodes if isinstance(node.op, Back) and node.op.is_carried)
    return {node.inputs[0]: node.inputs[1] for node in backs}


def _row(shape: tuple[int, ...]) -> str:
    names = factor_names(len(shape))
    return " ".join("1" if size == 1 else name for size, name in zip(shape, names, strict=True))
