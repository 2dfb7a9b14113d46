"""These tables map the operators of a `.mindir` file, as MindSpore 2.10 has them, to those of mspc: the order of a
node's operands and fields, the fields that are attributes instead, and the words for which codes stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mspc.ir.types import DTYPES, DType

ORDER = ("Load", "Depend")
"""Operators that give their first input: what else they take is there for the order of effects."""
SAME = frozenset(
    """ACos Abs Acosh Add Asin Asinh Atan Atan2 Atanh BatchMatMulExt BitwiseAnd BitwiseOr BitwiseXor Ceil Cos Cosh
    Div DivNoNan Equal Erf Erfc Erfinv Exp Expm1 FastGeLU Flatten Floor FloorDiv FloorMod GatherNd GeLU
    Greater GreaterEqual HSigmoid HSwish Identity IsFinite IsInf IsNan Less LessEqual Lgamma Log Log1p
    LogicalAnd LogicalNot LogicalOr LogicalXor MaskedFill MatMulExt Max Maximum Min Minimum Mish Mod Mul
    MulNoNan Neg NotEqual OnesLike PReLU Pow ReLU ReLU6 RealDiv Reciprocal RemainderScalarTensor
    RemainderTensorScalar RemainderTensorTensor Rint Rsqrt SeLU Select SiLU Sigmoid
    SigmoidCrossEntropyWithLogits Sign Sin Sinh Softplus Softsign Sqrt Square SquaredDifference StopGradient
    Sub Tan Tanh TensorScatterAdd TensorScatterDiv TensorScatterMax TensorScatterMin TensorScatterMul
    TensorScatterSub TensorScatterUpdate Trunc TruncateDiv TruncateMod Xdivy Xlogy ZerosLike""".split()
)
"""Operators all of whose inputs are operands."""
OTHER_NAMES = {
    "Muls": "Mul", "Adds": "Add", "Subs": "Sub", "Divs": "Div", "LessScalar": "Less", "EqScalar": "Equal",
    "GreaterEqualScalar": "GreaterEqual", "FloorDivScalar": "FloorDiv", "PowTensorScalar": "Pow",
}  # fmt: skip
"""Operators that a file has under other names."""
SIGNATURES: dict[str, str] = {
    "Reshape": "0 shape",
    "Transpose": "0 perm",
    "Tile": "0 multiples",
    "BroadcastTo": "0 | shape",
    "ExpandDims": "0 axis",
    "Squeeze": "0 | axis",
    "Round": "0 =0",
    "MatMul": "0 1 | transpose_a transpose_b",
    "BatchMatMul": "0 1 | transpose_a transpose_b",
    "BiasAdd": "0 1 | data_format",
    "Softmax": "0 | axis",
    "LogSoftmax": "0 | axis",
    "ReduceMean": "0 axis | keep_dims",
    "ReduceSum": "0 axis | keep_dims =False",
    "ReduceMax": "0 axis | keep_dims",
    "ReduceMin": "0 axis | keep_dims",
    "ReduceProd": "0 axis | keep_dims",
    "ReduceAll": "0 axis | keep_dims",
    "ReduceAny": "0 axis | keep_dims",
    "Concat": "() | axis",
    "AddN": "()",
    "Split": "0 | axis output_num",
    "SplitWithSize": "0 split_sizes dim",
    "StridedSlice": "0 begin end strides | begin_mask end_mask ellipsis_mask new_axis_mask shrink_axis_mask",
    "Slice": "0 begin size",
    "Gather": "0 1 axis | batch_dims",
    "GatherD": "0 dim 1",
    "OneHot": "0 depth 1 2 | axis",
    "ScatterNd": "0 1 shape",
    "UnsortedSegmentSum": "0 1 num_segments",
    "TopK": "0 k",
    "Cast": "0 dst_type",
    "Argmax": "0 | axis output_type",
    "Argmin": "0 | axis output_type",
    "ArgMaxWithValue": "0 | axis keep_dims",
    "ArgMinWithValue": "0 | axis keep_dims",
    "CumSum": "0 axis | exclusive reverse",
    "CumProd": "0 axis | exclusive reverse",
    "ReverseV2": "0 | axis",
    "Triu": "0 | diagonal",
    "Elu": "0 | alpha",
    "HShrink": "0 | lambd",
    "SoftShrink": "0 | lambd",
    "BatchNorm": "0 1 2 3 4 | is_training epsilon momentum data_format",
    "LayerNorm": "0 1 2 | begin_norm_axis begin_params_axis epsilon",
    "RmsNorm": "0 1 | epsilon",
    "AvgPool": "0 | kernel_size strides pad_mode data_format",
    "PadV3": "0 paddings 1",
    "ResizeBilinearV2": "0 size | align_corners half_pixel_centers",
    "ResizeNearestNeighbor": "0 | size align_corners",
}
"""What nodes take: operands by their numbers, all as one tuple `()`, fields by their names, values that change nothing
here with `=`. The words behind the bar are handed to the Primitive's class, those before it to the Primitive."""
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "Conv2D": ("out_channel", "kernel_size", "mode", "pad_mode", "pad", "stride", "dilation", "group"),
    "MaxPool": ("kernel_size", "strides", "pad_mode"),
    "Stack": ("axis",),
    "Unstack": ("axis", "num"),
    "TopK": ("sorted",),
    "Tril": ("diagonal",),
    "Sort": ("axis", "descending"),
    "Pad": ("paddings",),
    "PadV3": ("mode", "paddings_contiguous"),
    "AvgPool3D": ("kernel_size", "strides", "pad_mode", "pad", "ceil_mode", "count_include_pad", "divisor_override"),
    "MaxPool3DWithArgmax": ("ksize", "strides", "pads", "dilation", "ceil_mode"),
    "DepthToSpace": ("block_size",),
    "SpaceToDepth": ("block_size",),
    "SparseSoftmaxCrossEntropyWithLogits": ("is_grad",),
}
"""Of operators: the fields that are attributes of the primitive."""
AS_TUPLE = frozenset({"Stack", "Concat", "AddN"})
"""Operators that take their operands as one tuple."""
_TYPES = {
    30: "Bool", 32: "Int8", 33: "Int16", 34: "Int32", 35: "Int64", 37: "UInt8", 38: "UInt16", 39: "UInt32",
    40: "UInt64", 42: "Float16", 43: "Float32", 44: "Float64", 45: "BFloat16",
}  # fmt: skip
_WORDS = {"data_format": ("NCHW", "NHWC"), "pad_mode": ("pad", "same", "valid")}
_TUPLES = {("Softmax", "axis"), ("Squeeze", "axis"), ("ReverseV2", "axis")}
"""Fields that are tuples in a file, whatever they are here."""
_ALL_DIMENSIONS = ("kernel_size", "strides", "stride", "dilation")


def words_of(operator: str) -> tuple[list[str], list[str]]:
    """The words of an operator in `SIGNATURES`, before and behind the bar."""
    before, _, behind = SIGNATURES[operator].partition("|")
    return before.split(), behind.split()


def dtype_of_code(code: Any) -> DType:
    """The element type of a number. Raises KeyError for an unknown one."""
    return DTYPES[_TYPES[code]]


def field_value(name: str, value: Any) -> Any:
    """The value of a field. Raises KeyError or IndexError for an unknown code."""
    if name == "output_type":
        return dtype_of_code(value)
    if name in _WORDS and isinstance(value, int):
        return _WORDS[name][value]
    if name == "pad_mode":
        return value.lower()
    if name in _ALL_DIMENSIONS and len(value) in (4, 5):
        return value[2:]  # of batch and channels, too
    return value[0] if name == "axis" and isinstance(value, tuple) and len(value) == 1 else value


def fields_of_attributes(operator: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are attributes of a primitive."""
    return {
        name: field_value(name, attributes[name])
        for name in ATTRIBUTES.get(operator, ())
        if attributes.get(name) is not None
    }


def input_of_field(operator: str, name: str, value: Any) -> Any:
    """The input of a node that stands for a field."""
    if isinstance(value, DType):
        return next(code for code, dtype in _TYPES.items() if dtype == value.name)
    if name in _WORDS:
        return _WORDS[name].index(value.lower() if name == "pad_mode" else value or _WORDS[name][0])
    if (operator, name) in _TUPLES and not isinstance(value, tuple):
        return (value,)
    if name in ("kernel_size", "strides") and not isinstance(value, tuple):
        return (value, value)
    return value


def attributes_of_fields(operator: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a primitive that MindSpore reads of an operator with these fields."""
    found = {name: fields[name] for name in ATTRIBUTES.get(operator, ())}
    if operator not in ("Conv2D", "MaxPool"):
        return found
    for name in _ALL_DIMENSIONS:
        if name in found and not isinstance(found[name], tuple):
            found[name] = (found[name], found[name])
        if name in found and (operator, name) != ("Conv2D", "kernel_size"):
            found[name] = (1, 1, *found[name])
    if operator == "MaxPool":
        return found | {"pad_mode": found["pad_mode"].upper(), "format": fields["data_format"] or "NCHW"}
    pad = found["pad"] if isinstance(found["pad"], tuple) else (found["pad"],) * 4
    return found | {"pad": pad, "groups": found["group"], "format": fields["data_format"] or "NCHW"}
