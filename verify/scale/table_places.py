"""Finds constants that are places in tables: the first and the last row that a rank has, which become smaller with it.

A rank that has some rows of a table subtracts the number of its first one from the numbers of rows, and compares these
with its first and last one, as PyTorch does for an embedding whose rows are divided.
"""

from __future__ import annotations

from collections.abc import Iterator

from mspc.ir.graph import Constant, Node, Value
from mspc.ir.types import TensorType
from mspc.ops.math.arithmetic import Add, Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual, Select, Sub
from mspc.ops.op import Op
from mspc.ops.tensor.embedding import Gather, GatherGrad
from mspc.ops.tensor.reshape import Cast
from mspc.verify.scale.operator_sizes import Dim, in_dim, out_dim
from mspc.verify.scale.rank_kinds import RankKind
from mspc.verify.scale.readers import Readers

COMPARISONS = (Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual)
SHIFTS = (Add, Cast, Select, Sub)
"""Operators whose result names rows of the table that their operands name."""


def places_in_tables(kind: RankKind) -> Iterator[tuple[Node, Dim, Constant]]:
    """Yield (a node that reads rows of a table or adds to them, its dimension of the rows, a constant that is a place
    there) of a kind. Each rank has another place, and all are multiples of the number of a rank's rows: other numbers,
    as that of a word, are on all ranks as on one device."""
    readers: Readers | None = None
    for node in (node for graph in kind.graph.graphs() for node in graph.nodes if kind.constants):
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
                waiting += [each for each in new if _is_whole(each) and not isinstance(each, Constant)]
    return [each for each in seen if isinstance(each, Constant)]


def _shifts(node: Node) -> bool:
    return _is_whole(node) and (isinstance(node.op, SHIFTS) or (isinstance(node.op, Op) and node.op.reshapes))


def _is_whole(value: Value) -> bool:
    return isinstance(value.type, TensorType) and not value.type.dtype.is_float and value.type.dtype.name != "Bool"
