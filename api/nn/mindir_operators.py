"""What operators of a MindIR file are here: which of their inputs are attributes of the operator, and which codes stand
for which words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mspc.ir.types import DTYPES, DType

__all__: tuple[str, ...] = ()

ORDER = ("Load", "Depend")
"""Operators that give their first input: what else they take is there for the order of effects."""
SAME = frozenset(
    """Abs Add ArgMaxWithValue Ceil Cos Div DivNoNan Equal Erf Exp Flatten Floor FloorDiv GeLU Greater GreaterEqual
    HSigmoid HSwish Less LessEqual Log LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul Neg NotEqual Pow RealDiv
    ReLU ReLU6 Reciprocal Reshape Round Rsqrt Select Sigmoid Sign Sin Softplus Sqrt Square SquaredDifference Sub Tanh
    Tile Transpose BroadcastTo ExpandDims""".split()
)
"""Operators all of whose inputs are inputs here."""
OTHER_NAMES = {"Muls": "Mul", "Adds": "Add", "Subs": "Sub", "Divs": "Div", "SiLU": "SiLU"}
FIELDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "MatMul": (2, ("transpose_a", "transpose_b")),
    "BatchMatMul": (2, ("transpose_a", "transpose_b")),
    "BiasAdd": (2, ("data_format",)),
    "Softmax": (1, ("axis",)),
    "LogSoftmax": (1, ("axis",)),
    "ReduceMean": (2, ("keep_dims",)),
    "ReduceSum": (2, ("keep_dims", "")),
    "ReduceMax": (2, ("keep_dims",)),
    "ReduceMin": (2, ("keep_dims",)),
    "ReduceProd": (2, ("keep_dims",)),
    "Concat": (1, ("axis",)),
    "Split": (1, ("axis", "output_num")),
    "StridedSlice": (4, ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")),
    "Gather": (3, ("batch_dims",)),
    "Cast": (2, ()),
    "Argmax": (1, ("axis", "output_type")),
    "BatchNorm": (5, ("is_training", "epsilon", "momentum", "data_format")),
    "LayerNorm": (3, ("begin_norm_axis", "begin_params_axis", "epsilon")),
    "AvgPool": (1, ("kernel_size", "strides", "pad_mode", "data_format")),
}
"""Of operators: how many inputs are inputs here, and the fields that the others are; "" for one without effect."""
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "Conv2D": ("out_channel", "kernel_size", "mode", "pad_mode", "pad", "stride", "dilation", "group"),
    "MaxPool": ("kernel_size", "strides", "pad_mode"),
    "Stack": ("axis",),
    "Squeeze": ("axis",),
}
"""Of operators: the attributes that are fields here."""
_TYPES = {
    30: "Bool", 32: "Int8", 33: "Int16", 34: "Int32", 35: "Int64", 37: "UInt8", 38: "UInt16", 39: "UInt32",
    40: "UInt64", 42: "Float16", 43: "Float32", 44: "Float64", 45: "BFloat16",
}  # fmt: skip
_WORDS = {"data_format": ("NCHW", "NHWC"), "pad_mode": ("pad", "same", "valid")}


def dtype_of_code(code: Any) -> DType:
    """The element type of a number. Raises KeyError for an unknown one."""
    return DTYPES[_TYPES[code]]


def field_value(name: str, value: Any) -> Any:
    """The value of a field. Raises KeyError or IndexError for a code that stands for nothing here."""
    if name == "output_type":
        return dtype_of_code(value)
    if name in _WORDS and isinstance(value, int):
        return _WORDS[name][value]
    if name == "pad_mode":
        return value.lower()
    if name in ("kernel_size", "strides", "stride", "dilation") and len(value) == 4:
        return value[2:]  # of batch and channels, too
    return value[0] if name == "axis" and isinstance(value, tuple) and len(value) == 1 else value


def fields_of_attributes(operator: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that stand among the attributes of a primitive."""
    return {
        name: field_value(name, attributes[name])
        for name in ATTRIBUTES.get(operator, ())
        if attributes.get(name) is not None
    }
