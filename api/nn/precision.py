"""`Cell.to_float` and `amp` say in which element type operators compute; the compiler reads it here."""

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
