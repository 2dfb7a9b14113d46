"""The classes of a `.mindir` graph, as it is read and written, and its scalars that are known before it runs: loops
count their steps by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from mspc.checkpoint.mindir_operators import OTHER_NAMES, dtype_of_code
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType

REFERENCE = "REF::"
"""Stands before the name of a primitive, a graph or a node where a node has its operator."""
CALL, CHOICE, LOOP = "call", "choice", "loop"
"""Operators of nodes that call a graph, their first input, and of those that are made of calls: a choice by its input
has blocks `then` and `else`; a loop blocks `condition` and `body`, and in the attribute `carried` names that both read,
whose first values are its inputs. The results of both are tuples."""
ITEM = "TupleGetItem"


@dataclass(frozen=True)
class MindirNode:
    """A node: its name, its operator, the names of its inputs, and the operator's attributes."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class MindirBlock:
    """Nodes that a node runs; they read names around them, too. outputs: names."""

    nodes: tuple[MindirNode, ...]
    outputs: tuple[str, ...]


def all_nodes(nodes: Iterable[MindirNode]) -> Iterator[MindirNode]:
    """These nodes and those in their blocks."""
    waiting = [iter(nodes)]
    while waiting:
        node = next(waiting[-1], None)
        if node is None:
            waiting.pop()
            continue
        yield node
        waiting += [iter(block.nodes) for block in node.attributes.values() if isinstance(block, MindirBlock)]


@dataclass(frozen=True)
class MindirGraph:
    """A graph. name: by which others call it. inputs, outputs: names.

    parameters: (the name that nodes know, the script's name, the value). constants: values by name; without one it is
    a mark of MindSpore's for the order of effects. types: of inputs that are tensors, where the file tells them. marks:
    inputs that are such marks.
    """

    name: str
    inputs: tuple[str, ...]
    parameters: tuple[tuple[str, str, np.ndarray], ...]
    constants: dict[str, Any]
    nodes: tuple[MindirNode, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType] = field(default_factory=dict[str, TensorType])
    marks: frozenset[str] = frozenset()


_RESULTS: dict[str, Callable[..., Any]] = {
    "Less": np.less, "LessEqual": np.less_equal, "Greater": np.greater, "GreaterEqual": np.greater_equal,
    "Equal": np.equal, "NotEqual": np.not_equal, "Add": np.add, "Sub": np.subtract, "Mul": np.multiply,
    "FloorDiv": np.floor_divide, "FloorMod": np.mod, "LogicalAnd": np.logical_and, "LogicalOr": np.logical_or,
    "LogicalNot": np.logical_not,
}  # fmt: skip


def is_scalar(value: Any) -> bool:
    """Whether a constant is one number."""
    return isinstance(value, bool | int | float) or (isinstance(value, np.ndarray) and value.ndim == 0)


def scalar_result(operator: str, operands: Sequence[Any]) -> np.ndarray | None:
    """What an operator gives of known scalars, or None where that is not known here."""
    if operator == "Cast" and len(operands) == 2:
        try:
            return np.asarray(operands[0]).astype(dtype_of_code(operands[1]).numpy)
        except KeyError:
            return None
    function = _RESULTS.get(OTHER_NAMES.get(operator, operator))
    if function is None or len(operands) != getattr(function, "nin", 0):
        return None
    try:
        with np.errstate(all="ignore"):
            return np.asarray(function(*operands))
    except (TypeError, OverflowError):
        return None
