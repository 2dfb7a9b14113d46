"""What is asked of a node that runs regions when it is differentiated, and how it is answered."""

from __future__ import annotations

from typing import NamedTuple

from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import FLOAT32, StackType, TensorType
from mspc.ops.control.regions import RegionOp


class Source(NamedTuple):
    """What an operand of the backward node is.

    kind: the "gradient" of a result of the node, a "result" of it, an "operand" of it, "wide zeros" for the sum of
    gradients of an operand, or the "zero gradient" of a result. number: of that result or operand.
    """

    kind: str
    number: int


@dataclass(frozen=True, eq=False)
class RegionGradient:
    """How a node is differentiated.

    op, regions: of the node from now on. backward, backward_regions: of the node that computes gradients; sources: its
    operands. grads: which of its results is the gradient of which operand. note: what is saved and why.
    """

    op: RegionOp
    regions: tuple[Graph, ...]
    backward: RegionOp
    backward_regions: tuple[Graph, ...]
    sources: tuple[Source, ...]
    grads: dict[int, int]
    note: str


class Request(NamedTuple):
    """What is wanted of a node: gradients of operands, by number, for gradients of results."""

    op: RegionOp
    regions: tuple[Graph, ...]
    wanted: tuple[int, ...]
    given: tuple[int, ...]


def wide_type(type: TensorType) -> TensorType:
    """The type in which the gradients that all turns of a loop have of one value are added up."""
    narrow = type.dtype.is_float and type.dtype.itemsize < FLOAT32.itemsize
    return TensorType(FLOAT32, type.shape) if narrow and not isinstance(type, StackType) else type
