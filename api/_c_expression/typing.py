"""This module has kinds of element types, as `isinstance(x.dtype, typing.Float)` asks for them."""

from mspc.api.common.dtype import Type, tensor_type, type_none
from mspc.api.common.dtype_kinds import BFloat, Bool, Complex, Float, Int, Number, UInt

TensorType, TypeNone = tensor_type, type_none
__all__ = ["BFloat", "Bool", "Complex", "Float", "Int", "Number", "TensorType", "Type", "TypeNone", "UInt"]
