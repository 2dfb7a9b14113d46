"""Attributes and methods of tensors inside `construct`: `x.shape`, `x.reshape(...)`, `x.sum(axis=1)`.

A method is one function here; its arguments after `t` (the tracer) and `x` are the user's.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mspc.compiler.frontend.operators import matmul, reshape
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import TensorMethod, describe, nearest
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import BOOL, FLOAT16, FLOAT32, INT32, INT64, DType, dtype_of
from mspc.ops.arguments import axes_in, axis_in, ints_of


def attribute(tracer: Tracer, x: Value, name: str) -> Any:
    """`x.name`: something known at compile time, another tensor, or a method to be called.

    Raises:
        MspcError: tensors have no such attribute.
    """
    known = ATTRIBUTES.get(name)
    if known is not None:
        return known(tracer, x)
    if name in METHODS:
        return TensorMethod(x, name)
    if name in OUTSIDE:
        raise tracer.error(f"x.{name} needs the contents of a tensor, which are not known at compile time")
    raise tracer.error(
        f"a tensor has no attribute '{name}'", nearest(name, [*ATTRIBUTES, *METHODS]), kind=AttributeError
    )


def call_method(tracer: Tracer, method: TensorMethod, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`x.name(*args, **kwargs)`.

    Raises:
        MspcError: the arguments do not fit.
    """
    function = METHODS[method.name]
    try:
        inspect.signature(function).bind(tracer, method.value, *args, **kwargs)
    except TypeError as error:
        raise tracer.error(f"Tensor.{method.name}(): {error}", kind=TypeError) from None
    return function(tracer, method.value, *args, **kwargs)


def _transposed(t: Tracer, x: Value) -> Any:
    return transpose(t, x)


ATTRIBUTES: dict[str, Callable[[Tracer, Value], Any]] = {
    "shape": lambda t, x: x.shape,
    "dtype": lambda t, x: x.tensor_type.dtype,
    "ndim": lambda t, x: len(x.shape),
    "size": lambda t, x: x.tensor_type.size,
    "itemsize": lambda t, x: x.tensor_type.dtype.itemsize,
    "nbytes": lambda t, x: x.tensor_type.nbytes,
    "T": _transposed,
    "mT": lambda t, x: swapaxes(t, x, -1, -2),
    "name": lambda t, x: x.name,
}
OUTSIDE = ("asnumpy", "numpy", "item", "tolist", "value", "data", "init_data", "set_data")


def _unary(operator: str) -> Callable[..., Any]:
    def method(t: Tracer, x: Value) -> Any:
        return t.emit(t.op(operator), x)

    return method


def _binary(operator: str) -> Callable[..., Any]:
    def method(t: Tracer, x: Value, other: Any) -> Any:
        return t.emit(t.op(operator), x, other)

    return method


def _axes(t: Tracer, what: str, x: Value, axis: Any) -> tuple[int, ...]:
    """The axes of a reduction; None means all."""
    given = () if axis is None else ints_of(what, "axis", axis)
    return axes_in(what, given, len(x.shape))


def _reduction(operator: str, of_bool: DType | None = None) -> Callable[..., Any]:
    def method(t: Tracer, x: Value, axis: Any = None, keep_dims: bool = False, **spelled: Any) -> Any:
        keep = _keep(t, operator, keep_dims, spelled)
        if of_bool is not None and x.tensor_type.dtype == BOOL:
            x = t.cast(x, of_bool)
        axes = located(t, lambda: _axes(t, operator, x, axis))
        return t.emit(t.op(operator, axis=axes, keep_dims=keep), x)

    return method


def _keep(t: Tracer, operator: str, keep: Any, spelled: Mapping[str, Any]) -> bool:
    for name, value in spelled.items():
        if name not in ("keepdims", "keepdim"):
            raise t.error(f"{operator}: unexpected argument '{name}'", kind=TypeError)
        keep = value
    return bool(keep)


def located(t: Tracer, compute: Callable[[], Any]) -> Any:
    """`compute()`, with the current place given to errors that have none."""
    try:
        return compute()
    except MspcError as error:
        if error.location is not None:
            raise
        raise t.error(error.message, error.notes, error.kind or ValueError) from None


def _sum(
    t: Tracer, x: Value, axis: Any = None, dtype: Any = None, keepdims: bool = False, **spelled: Any
) -> Any:
    if dtype is not None:
        x = t.cast(x, dtype_of(dtype))
    for name, value in spelled.items():
        if name not in ("keep_dims", "keepdim"):
            raise t.error(f"Tensor.sum(): unexpected argument '{name}'", kind=TypeError)
        keepdims = value
    return _reduction("ReduceSum", INT64)(t, x, axis, keepdims)


def reshape_method(t: Tracer, x: Value, *shape: Any) -> Any:
    found = shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
    op, operands = located(t, lambda: t.op("Reshape").call(x, tuple(found)))
    return t.emit(op, *operands)


def reshape_as(t: Tracer, x: Value, other: Any) -> Any:
    return reshape_method(t, x, tuple(t.value(other).shape))


def transpose(t: Tracer, x: Value, *axes: Any) -> Any:
    if len(axes) == 1 and isinstance(axes[0], list | tuple):
        axes = tuple(axes[0])
    perm = located(t, lambda: ints_of("Transpose", "perm", axes)) if axes and axes != (None,) else None
    return t.emit(t.op("Transpose", perm=perm or tuple(reversed(range(len(x.shape))))), x)


def swapaxes(t: Tracer, x: Value, axis0: int, axis1: int) -> Any:
    rank = len(x.shape)
    a, b = (located(t, lambda axis=axis: axis_in("swapaxes", axis, rank)) for axis in (axis0, axis1))
    perm = list(range(rank))
    perm[a], perm[b] = b, a
    return t.emit(t.op("Transpose", perm=tuple(perm)), x)


def flatten(t: Tracer, x: Value, order: str = "C", *, start_dim: int = 0, end_dim: int = -1) -> Any:
    if order != "C":
        raise t.error(f"Tensor.flatten(): order '{order}' is not supported, only 'C'", kind=ValueError)
    rank = len(x.shape)
    if rank == 0:
        return reshape(t, x, (1,))
    first, last = (located(t, lambda dim=dim: axis_in("flatten", dim, rank)) for dim in (start_dim, end_dim))
    return reshape(t, x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


def expand_dims(t: Tracer, x: Value, axis: int) -> Any:
    return t.emit(t.op("ExpandDims", axis=axis), x)


def squeeze(t: Tracer, x: Value, axis: Any = None) -> Any:
    axes = () if axis is None else located(t, lambda: ints_of("Squeeze", "axis", axis))
    return t.emit(t.op("Squeeze", axis=axes), x)


def broadcast_to(t: Tracer, x: Value, *shape: Any) -> Any:
    found = shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
    op, operands = located(t, lambda: t.op("BroadcastTo").call(x, tuple(found)))
    return t.emit(op, *operands)


def expand_as(t: Tracer, x: Value, other: Any) -> Any:
    return broadcast_to(t, x, tuple(t.value(other).shape))


def tile(t: Tracer, x: Value, *reps: Any) -> Any:
    found = reps[0] if len(reps) == 1 and isinstance(reps[0], list | tuple) else reps
    op, operands = located(t, lambda: t.op("Tile").call(x, tuple(found)))
    return t.emit(op, *operands)


def split(t: Tracer, x: Value, split_size_or_sections: Any, axis: int = 0) -> Any:
    dim = located(t, lambda: axis_in("split", axis, len(x.shape)))
    size = x.shape[dim]
    if isinstance(split_size_or_sections, int):
        step = split_size_or_sections
        if step < 1:
            raise t.error(f"Tensor.split(): the size of a part must be positive, not {step}", kind=ValueError)
        if size % step == 0:
            result = t.emit(t.op("Split", axis=dim, output_num=size // step), x)
            return result if isinstance(result, tuple) else (result,)
        sections = [min(step, size - start) for start in range(0, size, step)]
    else:
        sections = list(
            located(t, lambda: ints_of("split", "split_size_or_sections", split_size_or_sections))
        )
    if sum(sections) != size:
        raise t.error(
            f"Tensor.split(): the parts {tuple(sections)} do not add up to {size}, the size "
            f"of dimension {dim}",
            kind=ValueError,
        )
    parts: list[Any] = []
    start = 0
    for section in sections:
        begin, end = [0] * len(x.shape), list(x.shape)
        begin[dim], end[dim] = start, start + section
        start += section
        op = t.op("StridedSlice", begin=tuple(begin), end=tuple(end), strides=(1,) * len(x.shape))
        parts.append(t.emit(op, x))
    return tuple(parts)


def chunk(t: Tracer, x: Value, chunks: int, axis: int = 0) -> Any:
    dim = located(t, lambda: axis_in("chunk", axis, len(x.shape)))
    return split(t, x, -(-x.shape[dim] // chunks), dim)


def astype(t: Tracer, x: Value, dtype: Any, copy: bool = True) -> Any:
    try:
        target = dtype_of({float: FLOAT32, int: INT64, bool: BOOL}.get(dtype, dtype))
    except (MspcError, TypeError):
        raise t.error(
            f"{describe(dtype)} is not an element type", ["for example mindspore.float32"],
            kind=TypeError,
        ) from None
    return t.cast(x, target)


def type_as(t: Tracer, x: Value, other: Any) -> Any:
    return t.cast(x, t.value(other).tensor_type.dtype)


def _to(dtype: DType) -> Callable[..., Any]:
    return lambda t, x: t.cast(x, dtype)


def variance(t: Tracer, x: Value, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:
    axes = located(t, lambda: _axes(t, "var", x, axis))
    count = math.prod(x.shape[a] for a in axes)
    mean = t.emit(t.op("ReduceMean", axis=axes, keep_dims=True), x)
    square = t.emit(t.op("Square"), t.emit(t.op("Sub"), x, mean))
    if not ddof:
        return t.emit(t.op("ReduceMean", axis=axes, keep_dims=keepdims), square)
    total = t.emit(t.op("ReduceSum", axis=axes, keep_dims=keepdims), square)
    return t.emit(t.op("Mul"), total, 1.0 / (count - ddof))


def deviation(t: Tracer, x: Value, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:
    return t.emit(t.op("Sqrt"), variance(t, x, axis, ddof, keepdims))


def clip(t: Tracer, x: Value, min: Any = None, max: Any = None) -> Any:
    if min is None and max is None:
        raise t.error("Tensor.clip() needs a minimum or a maximum", kind=ValueError)
    if min is not None:
        x = t.emit(t.op("Maximum"), x, min)
    return x if max is None else t.emit(t.op("Minimum"), x, max)


def masked_fill(t: Tracer, x: Value, mask: Any, value: Any) -> Any:
    return t.emit(t.op("Select"), mask, t.value(value, x.tensor_type.dtype), x)


def power(t: Tracer, x: Value, exponent: Any) -> Any:
    return t.emit(t.op("Pow"), x, exponent)


def _arg(operator: str) -> Callable[..., Any]:
    def method(t: Tracer, x: Value, axis: Any = None, keepdims: bool = False) -> Any:
        if axis is None:
            x, axis = reshape(t, x, (x.tensor_type.size,)), 0
        found = t.emit(t.op(operator, axis=axis), x)
        return expand_dims(t, found, axis) if keepdims else found

    return method


METHODS: dict[str, Callable[..., Any]] = {
    "reshape": reshape_method, "view": reshape_method, "reshape_as": reshape_as, "view_as": reshape_as,
    "flatten": flatten, "ravel": lambda t, x: reshape(t, x, (x.tensor_type.size,)),
    "transpose": transpose, "permute": transpose, "swapaxes": swapaxes, "swapdims": swapaxes,
    "t": lambda t, x: transpose(t, x),
    "expand_dims": expand_dims, "unsqueeze": lambda t, x, dim: expand_dims(t, x, dim), "squeeze": squeeze,
    "broadcast_to": broadcast_to, "expand": broadcast_to, "expand_as": expand_as, "tile": tile,
    "split": split, "chunk": chunk,
    "astype": astype, "to": astype, "type": astype, "type_as": type_as, "float": _to(FLOAT32),
    "int": _to(INT32),
    "long": _to(INT64), "half": _to(FLOAT16), "bool": _to(BOOL),
    "sum": _sum, "mean": _reduction("ReduceMean"), "prod": _reduction("ReduceProd"),
    "max": _reduction("ReduceMax"), "min": _reduction("ReduceMin"), "amax": _reduction("ReduceMax"),
    "amin": _reduction("ReduceMin"), "all": _reduction("ReduceAll"), "any": _reduction("ReduceAny"),
    "var": variance, "std": deviation, "argmax": _arg("Argmax"), "argmin": _arg("Argmin"),
    "abs": _unary("Abs"), "exp": _unary("Exp"), "log": _unary("Log"), "sqrt": _unary("Sqrt"),
    "rsqrt": _unary("Rsqrt"), "square": _unary("Square"), "tanh": _unary("Tanh"),
    "sigmoid": _unary("Sigmoid"),
    "relu": _unary("ReLU"), "round": _unary("Round"), "floor": _unary("Floor"), "ceil": _unary("Ceil"),
    "sign": _unary("Sign"), "neg": _unary("Neg"), "sin": _unary("Sin"), "cos": _unary("Cos"),
    "erf": _unary("Erf"),
    "reciprocal": _unary("Reciprocal"), "isnan": _unary("IsNan"), "isinf": _unary("IsInf"),
    "isfinite": _unary("IsFinite"), "logical_not": _unary("LogicalNot"),
    "clip": clip, "clamp": clip, "masked_fill": masked_fill,
    "add": _binary("Add"), "sub": _binary("Sub"), "subtract": _binary("Sub"), "mul": _binary("Mul"),
    "multiply": _binary("Mul"), "div": _binary("Div"), "divide": _binary("Div"),
    "true_divide": _binary("Div"),
    "floor_divide": _binary("FloorDiv"), "pow": power, "maximum": _binary("Maximum"),
    "minimum": _binary("Minimum"), "equal": _binary("Equal"), "eq": _binary("Equal"),
    "ne": _binary("NotEqual"),
    "not_equal": _binary("NotEqual"), "lt": _binary("Less"), "less": _binary("Less"),
    "gt": _binary("Greater"),
    "greater": _binary("Greater"), "le": _binary("LessEqual"), "ge": _binary("GreaterEqual"),
    "logical_and": _binary("LogicalAnd"), "logical_or": _binary("LogicalOr"),
    "matmul": lambda t, x, tensor2: matmul(t, x, tensor2), "mm": lambda t, x, mat2: matmul(t, x, mat2),
    "bmm": lambda t, x, mat2: matmul(t, x, mat2),
    "copy": lambda t, x: x, "contiguous": lambda t, x: x, "clone": lambda t, x: x,
    "dim": lambda t, x: len(x.shape), "ndimension": lambda t, x: len(x.shape),
    "numel": lambda t, x: x.tensor_type.size,
    "is_floating_point": lambda t, x: x.tensor_type.dtype.is_float,
}  # fmt: skip
