"""In which element type the operators of a network compute: what `Cell.to_float` and `amp` leave for the compiler."""

from __future__ import annotations

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType

__all__: tuple[str, ...] = ()


@dataclass(frozen=True)
class Precision:
    """Element types of operators by their names.

    dtype: what floating-point operands of the operators `narrow` are cast to. wide: operators that compute in
    Float32. widens: results of `narrow` are cast back to Float32 at once.
    """

    dtype: DType
    narrow: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()
    widens: bool = False
