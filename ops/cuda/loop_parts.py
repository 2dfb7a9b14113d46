"""What a loop over elements reads, and what it reduces."""

from __future__ import annotations

from typing import Any

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import FLOAT32, FLOAT64, INT32, INT64, UINT32, UINT64, DType
from mspc.ops.cuda.moved import MovedRead
from mspc.ops.cuda.source import accumulating_type

PARTIAL = {
    "float": FLOAT32, "double": FLOAT64, "int": INT32, "unsigned int": UINT32, "long long": INT64,
    "unsigned long long": UINT64,
}  # fmt: skip
"""Element types of partial totals by their C++ types."""


@dataclass(frozen=True, slots=True)
class LoopOperand:
    """An operand as a loop reads it: its name, element type, and strides in elements along the loop's dimensions.

    moved: what is read instead where elements lie at other places.
    """

    name: str
    dtype: DType
    strides: tuple[int, ...]
    array: Any
    moved: MovedRead | None = None


@dataclass(frozen=True, slots=True)
class LoopReduction:
    """A reduction: of the chain's value `value`, by `how` (Sum, Product, Largest, Smallest), into `array`.

    count: what the total is divided by, a mean's number of elements. accumulates: the element type that is reduced.
    """

    value: str
    how: str
    count: int
    accumulates: DType
    dtype: DType
    array: Any

    @property
    def type(self) -> str:
        """The C++ type of the total."""
        return accumulating_type(self.accumulates)
