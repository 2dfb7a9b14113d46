"""Operators that mark the boundaries of regions in an opened graph, in which the nodes of all regions are in one list.

Passes that decide the layouts of all operators together work on it (`passes/lib/opened_graphs.py`). These operators
exist only inside a pass: they are never printed or executed. `owner` is the original node, `kind` its name in messages
about a required layout.

    If:    Decide  Handed  Border  ..  Leave  Border  ..  Back  Border  Joined
    loop:  Decide  Enter  StandIn  Handed  Turn  Border  [..  Decide  Border]  ..  Back  Keep  Border  [Turn]  Joined
    Call:  Handed  Border  ..  Leave  Border  Joined

Border is RegionBoundary, Turn is IterationNumber.
"""

from __future__ import annotations

from typing import Any

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import StackType, TensorType, TupleType, Type
from mspc.ops.control.regions import COUNT, RegionOp, stacked_type
from mspc.ops.control.structural import MakeTuple
from mspc.ops.op import Op
from mspc.sharding.rules import factor_names, same_rule


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
