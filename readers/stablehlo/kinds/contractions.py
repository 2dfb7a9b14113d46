"""Products of matrices, convolutions and factorizations, with their operands as mspc's operators take them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api import ops
from mspc.readers.stablehlo.emitter import HloEmitter, Known, attribute, tensor
from mspc.readers.stablehlo.kinds.kind import Kinds, flag, integers, integers_in, rows
from mspc.readers.stablehlo.kinds.scalar_kinds import converted_to
from mspc.readers.stablehlo.kinds.shapes import padded_by
from mspc.readers.stablehlo.module import HloOperation, Words


def dot_dimensions(operation: HloOperation, rank: int) -> tuple[tuple[int, ...], ...]:
    """Return the batch dimensions of both operands, and the contracted ones of both. rank: of the first operand."""
    if operation.name.endswith(".dot"):
        return (), (), (rank - 1,), (0,)
    numbers = operation.attributes.get("dot_dimension_numbers")
    if isinstance(numbers, Words):
        names = ("lhs_batching_dimensions", "rhs_batching_dimensions", "lhs_contracting_dimensions",
                 "rhs_contracting_dimensions")  # fmt: skip
        return tuple(integers_in(numbers.fields.get(name, []), name) for name in names)
    found = list[tuple[int, ...]]()
    for name in ("batching_dims", "contracting_dims"):
        pair = operation.attributes.get(name, ([], []))
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise MspcError(f"{operation.name}: {name} is no pair of lists")
        found += [integers_in(each, name) for each in pair]
    return tuple(found)


def product(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return a product over some dimensions, for each index of the batch dimensions."""
    lhs_batch, rhs_batch, lhs_sum, rhs_sum = dot_dimensions(operation, len(e.shape_of(given[0])))
    type = tensor(operation.types[0])
    left, right = (converted_to(e, each, type.dtype) for each in given[:2])
    shapes = e.shape_of(left), e.shape_of(right)
    if not all((*shapes[0], *shapes[1])):
        return [Known(np.zeros((1,) * type.rank, type.dtype.numpy), type.shape)]
    left_rows = [d for d in range(len(shapes[0])) if d not in (*lhs_batch, *lhs_sum)]
    right_rows = [d for d in range(len(shapes[1])) if d not in (*rhs_batch, *rhs_sum)]
    a, turned_a = _matrix(e, left, lhs_batch, left_rows, lhs_sum)
    b, turned_b = _matrix(e, right, rhs_batch, right_rows, rhs_sum)
    operator = (ops.BatchMatMul if lhs_batch else ops.MatMul)(turned_a, not turned_b)
    if not type.dtype.is_complex:
        return [e.reshaped(e.call(operator, e.whole(a), e.whole(b)), type.shape)]
    real, imag = ([e.call(part(), e.whole(x)) for x in (a, b)] for part in (ops.Real, ops.Imag))
    products = [e.call(operator, x, y) for x in (real[0], imag[0]) for y in (real[1], imag[1])]
    found = e.call(ops.Complex(), e.call(ops.Sub(), products[0], products[3]), e.call(ops.Add(), *products[1:3]))
    return [e.reshaped(found, type.shape)]


def _matrix(
    e: HloEmitter, x: Any, batch: Sequence[int], own: Sequence[int], summed: Sequence[int]
) -> tuple[Any, bool]:  # fmt: skip
    """Return an operand as a batch of matrices [own, summed], or transposed [summed, own] if it is in that order."""
    shape = e.shape_of(x)
    plain, turned = (*batch, *own, *summed), (*batch, *summed, *own)
    natural = tuple(range(len(shape)))
    is_turned = plain != natural and turned == natural
    x = e.transposed(x, turned if is_turned else plain)
    sizes = [math.prod(shape[d] for d in dims) for dims in (own, summed)]
    matrix = (*(shape[d] for d in batch), *(reversed(sizes) if is_turned else sizes))
    return e.reshaped(x, matrix), is_turned


def _layout(operation: HloOperation, rank: int) -> tuple[list[int], list[int], list[int]]:
    """Return the order of dimensions that brings images to [batch, features, ...], kernels to [outputs, inputs, ...],
    and results from [batch, features, ...]."""
    numbers = operation.attributes.get("dim_numbers") or operation.attributes.get("dimension_numbers")
    found = numbers.entries[0] if isinstance(numbers, Words) and numbers.entries else numbers
    if not isinstance(found, tuple) or len(found) != 3 or any(len(each) != rank for each in found):
        raise MspcError(f"{operation.name}: dim_numbers do not fit {rank} dimensions")
    images, kernels, results = found
    places = list(range(rank - 2))
    try:
        return ([images.index(each) for each in ("b", "f", *places)], [kernels.index(each) for each in (
            "o", "i", *places)], [("b", "f", *places).index(each) for each in results])  # fmt: skip
    except ValueError:
        raise MspcError(f"{operation.name}: dim_numbers name other dimensions than b, f, i, o and numbers") from None


def _window(operation: HloOperation, rank: int) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
    """Return (strides, padding, dilations of images, of kernels) of a convolution, and the reversed dimensions."""
    ones = (1,) * rank
    window = operation.attributes.get("window")
    own = window if isinstance(window, dict) else operation.attributes
    names = (("stride", "window_strides"), ("lhs_dilate", "lhs_dilation"), ("rhs_dilate", "rhs_dilation"))
    strides, base, apart = (
        next((integers_in(own[name], name) for name in pair if name in own), ones) for pair in names
    )
    pads = rows(own.get("pad", own.get("padding")), rank)
    turned = own.get("reverse", own.get("window_reversal"))
    reversals = tuple(map(bool, turned)) if isinstance(turned, list) else (False,) * rank
    return (strides, pads, base, apart), reversals


def convolution(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return a convolution, grouped, dilated, or one of the gradients of another."""
    type, rank = tensor(operation.types[0]), len(e.shape_of(given[0]))
    images, kernels, results = _layout(operation, rank)
    (strides, pads, base, apart), reversals = _window(operation, rank - 2)
    groups = operation.attributes.get("feature_group_count", 1)
    parts = operation.attributes.get("batch_group_count", 1)
    x = e.transposed(converted_to(e, given[0], type.dtype), images)
    kernel = e.transposed(converted_to(e, given[1], type.dtype), kernels)
    turned = tuple(d + 2 for d, each in enumerate(reversals) if each)
    if turned:
        kernel = e.call(ops.ReverseV2(turned), e.whole(kernel))
    if parts > 1:  # parts of the batch are groups of features
        n, features, *sizes = e.shape_of(x)
        x = e.reshaped(x, (parts, n // parts, features, *sizes))
        x = e.reshaped(e.transposed(x, (1, 0, *range(2, rank + 1))), (n // parts, parts * features, *sizes))
        groups = parts
    if not all(type.shape):
        return [Known(np.zeros((1,) * type.rank, type.dtype.numpy), type.shape)]
    found = _convolved(e, x, kernel, (strides, pads, base, apart), groups)
    return [e.transposed(found, results)]


def _convolved(e: HloEmitter, x: Any, kernel: Any, window: tuple[Any, ...], groups: int) -> Any:
    """Return a convolution of images [batch, features, ...]."""
    strides, pads, base, apart = window
    x_type, sizes = e.type_of(x), e.shape_of(kernel)
    rank = len(sizes) - 2
    zero = e.number(0, x_type.dtype)
    if not x_type.dtype.is_float or rank not in (1, 2):
        raise MspcError(f"mspc convolves floats along one or two dimensions, not {x_type.dtype} along {rank}")
    if {*base} != {1}:
        x = padded_by(e, x, zero, (0,) * (rank + 2), (0,) * (rank + 2), (0, 0, *(n - 1 for n in base)))
    low, high = [max(0, a) for a, _ in pads], [max(0, b) for _, b in pads]
    if any(n < 0 for pair in pads for n in pair):
        x = padded_by(e, x, zero, (0, 0, *(min(0, a) for a, _ in pads)), (0, 0, *(min(0, b) for _, b in pads)),
                      (0,) * (rank + 2))  # fmt: skip
    if rank == 1:
        x, kernel = (e.reshaped(each, (*e.shape_of(each)[:2], 1, e.shape_of(each)[2])) for each in (x, kernel))
        strides, apart, low, high = (1, *strides), (1, *apart), [0, *low], [0, *high]
    operator = ops.Conv2D(
        out_channel=sizes[0], kernel_size=e.shape_of(kernel)[2:], pad_mode="pad",
        pad=(low[0], high[0], low[1], high[1]), stride=tuple(strides), dilation=tuple(apart), group=groups,
    )  # fmt: skip
    found = e.call(operator, e.whole(x), e.whole(kernel))
    own = e.shape_of(found)
    return e.reshaped(found, (*own[:2], own[3])) if rank == 1 else found


def solved(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the solution of linear equations with a triangular matrix."""
    value = attribute(operation, "transpose_a", default="NO_TRANSPOSE")
    transposed = str(value.entries[-1] if isinstance(value, Words) else value)
    settings = (flag(operation, "left_side"), flag(operation, "lower"), flag(operation, "unit_diagonal"), transposed)
    return [e.host("triangular_solve", settings, *given)]


def transformed(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return a Fourier transform."""
    value = attribute(operation, "type", "fft_type", default="FFT")
    kind = str(value.entries[-1] if isinstance(value, Words) else value)
    lengths = integers(operation, "length", "fft_length")
    return [e.host("fft", (kind, lengths, tensor(operation.types[0]).dtype.name.lower()), given[0])]


def factored(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the Cholesky factor."""
    found = _lower(e, given[0])
    if flag(operation, "lower"):
        return [found]
    rank = len(e.shape_of(given[0]))
    return [e.transposed(found, (*range(rank - 2), rank - 1, rank - 2))]


def _lower(e: HloEmitter, x: Any) -> Any:
    """Return the lower Cholesky factor."""
    is_complex = e.type_of(x).dtype.is_complex
    return e.call(ops.LibraryFunction("complex_cholesky", ()) if is_complex else ops.Cholesky(), e.whole(x))


def _library(name: str, e: HloEmitter, options: Sequence[Any], *given: Any) -> Any:
    return e.call(ops.LibraryFunction(name, tuple(options)), *given)


def _orthogonal(e: HloEmitter, options: Mapping[str, str], x: Any, factors: Any) -> Sequence[Any]:
    one = e.constant(np.eye(*e.shape_of(x)[-2:], dtype=e.type_of(x).dtype.numpy))
    return [_library("reflected", e, (False, False), x, factors, one)]


def _singular(e: HloEmitter, options: Mapping[str, str], x: Any) -> Sequence[Any]:
    left, values, right = _library("svd", e, (options["mode"] != "S",), x)
    return [x, values, left, right]


def _triangular(e: HloEmitter, options: Mapping[str, str], *given: Any) -> Sequence[Any]:
    transposed = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}[options["trans_x"]]
    sides = (options["side"] == "L", options["uplo"] == "L", options["diag"] == "U")
    return [e.host("triangular_solve", (*sides, transposed), *given)]


ROUTINES: Mapping[str, Callable[..., Sequence[Any]]] = {
    "potrf": lambda e, options, x: [{"L": _lower}[options["uplo"]](e, x)],  # JAX asks for no upper factor
    "getrf": lambda e, options, x: _library("lu", e, (True,), x),
    "geqrf": lambda e, options, x: _library("geqrf", e, (), x), "orgqr": _orthogonal, "ungqr": _orthogonal,
    "gesdd": _singular, "trsm": _triangular,
    **dict.fromkeys(("syevd", "heevd"), lambda e, options, x: _library("eigh", e, (options["uplo"] == "L",), x)[::-1]),
}
"""Results of LAPACK's routines, for options that are letters, by names without the letter of the element type."""


def routine(name: str, e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the results of a routine. The last says if it failed: mspc's functions raise an error instead."""
    options = {key: chr(value) for key, value in attribute(operation, "mhlo.backend_config", default={}).items()}
    found = list(ROUTINES[name](e, options, *map(e.whole, given)))
    others = map(tensor, operation.types[len(found) :])
    return [*found, *(Known(np.zeros((1,) * type.rank, type.dtype.numpy), type.shape) for type in others)]


CONTRACTION_KINDS: Kinds = {
    **{f"lapack.{name}": partial(routine, name) for name in ROUTINES},
    "dot_general": product, "dot": product, "convolution": convolution, "triangular_solve": solved,
    "fft": transformed, "cholesky": factored,
}  # fmt: skip
