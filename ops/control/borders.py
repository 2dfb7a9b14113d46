"""These operators mark the borders of regions in a graph that is opened: all nodes of its regions in one list.

Passes that look at the layouts of all operators together work on it (`passes/lib/opened_graphs.py`). They exist
inside of a pass alone: no text has them, and nothing runs them. Each names its `owner`, the node as it was opened, and
those that need operands in a layout the `kind` of it.

    If:    Decide  Handed  Border  ..  Leave  Border  ..  Back  Border  Joined
    loop:  Decide  Enter  StandIn  Handed  Turn  Border  [..  Decide  Border]  ..  Back  Keep  Border  [Turn]  Joined
    Call:  Handed  Border  ..  Leave  Border  Joined
"""

from __future__ import annotations

from typing import Any

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import StackType, TensorType, TupleType, Type
from mspc.ops.control.regions import COUNT, RegionOp, kept_type
from mspc.ops.control.structural import MakeTuple
from mspc.ops.op import Op
from mspc.sharding.rules import factor_names, same_rule


class Border(Op, abstract=True):
    """The begin of region number `region` of a node, which is of `op`; behind the last region, its end.

    changed: values that the regions overwrite. varying: those that stand for others from turn to turn.
    """

    owner: Node
    op: RegionOp
    regions: tuple[Graph, ...] = ()
    region: int = 0
    changed: tuple[Value, ...] = ()
    varying: tuple[Value, ...] = ()
    has_side_effect = True

    @property
    def is_end(self) -> bool:
        """Whether the last region ends here."""
        return self.region == len(self.regions)

    def infer(self, *types: Type) -> Type:
        return TupleType(())


class Enter(Op, abstract=True):
    """What a parameter of a loop's regions is at a turn, where turns differ: the value that is carried to it, or its
    entry of what is scanned. number: of the operand, from the first that is carried."""

    owner: Node
    kind: str
    number: int
    scanned: bool = False
    takes_complex = True
    has_side_effect = True

    @property
    def words(self) -> str:
        """What the operator needs, before a layout in words."""
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


class StandIn(Op, abstract=True):
    """Says that in the regions of a loop operand 1, a parameter, is read in the place of every entry of the stack that
    is operand 0: one of them stands for all, which lie alike. number: as in Enter."""

    owner: Node
    number: int
    has_side_effect = True

    def infer(self, *types: Type) -> Type:
        return TupleType(())


class Handed(Op, abstract=True):
    """What regions read from outside, in the order in which the node has it."""

    owner: Node
    has_side_effect = True

    def infer(self, *types: Type) -> Type:
        return TupleType(())


class Turn(Op, abstract=True):
    """The number of the turn; behind a loop how many there were."""

    owner: Node
    is_count: bool = False
    has_side_effect = True

    def infer(self, *types: Type) -> Type:
        return COUNT


class Decide(Op, abstract=True):
    """A condition, or a number of turns, which all ranks know."""

    owner: Node
    has_side_effect = True

    @property
    def words(self) -> str:
        """As in Enter."""
        return "what the program does next depends on it, so that all ranks have it"

    def rule(self, condition: TensorType) -> str:
        return " -> "


class Leave(Op, abstract=True):
    """A result of the first region, for a node that hands on results of one region."""

    owner: Node
    kind: str
    number: int
    takes_complex = True
    has_side_effect = True

    @property
    def words(self) -> str:
        """As in Enter."""
        return f"a result of {self.kind} is"

    def rule(self, x: TensorType) -> str:
        return same_rule(x.shape, 1)

    def infer(self, *types: Any) -> Type:
        return types[0]


class Back(Op, abstract=True):
    """Operand 1, a result of the last region, in the layout of operand 0: what another region left in its place, or
    what was carried to the turn."""

    owner: Node
    kind: str
    number: int
    is_carried: bool
    takes_complex = True
    has_side_effect = True

    @property
    def words(self) -> str:
        """As in Enter."""
        return f"a turn of {self.kind} hands it on" if self.is_carried else f"the other branch of {self.kind} leaves it"

    def infer(self, *types: Type) -> Type:
        return types[0]


class Keep(Op, abstract=True):
    """A result of the body of which every turn's is kept, as all of them: `turns` along a first dimension, or in a
    stack where that is -1."""

    owner: Node
    kind: str
    number: int
    turns: int
    linear_in = (0,)
    takes_complex = True
    has_side_effect = True

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
        return kept_type(x, self.turns)


MARKS = (Enter, Decide, Leave, Back, Keep)
"""Operators of borders that need an operand in a layout."""


class Joined(MakeTuple, abstract=True):
    """The results of a node with regions, side by side."""

    owner: Node
    has_side_effect = True


def next_turns(graph: Graph) -> dict[Value, Value]:
    """For every value that a loop of an opened graph carries, at the begin of a turn, its value at the end of one."""
    backs = (node for node in graph.nodes if isinstance(node.op, Back) and node.op.is_carried)
    return {node.inputs[0]: node.inputs[1] for node in backs}


def _row(shape: tuple[int, ...]) -> str:
    names = factor_names(len(shape))
    return " ".join("1" if size == 1 else name for size, name in zip(shape, names, strict=True))
