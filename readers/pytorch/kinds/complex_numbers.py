"""Kinds of ATen of complex numbers: by their parts if they are linear, else by functions of the library's table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from mspc.ir.types import COMPLEX64, DType, real_of
from mspc.mindspore_api import ops
from mspc.readers.pytorch.kinds.creation import complex_number
from mspc.readers.pytorch.kinds.kind import Kind


def is_complex(value: Any) -> Any:
    """Return whether a value, or one in a list, is a complex tensor."""
    if isinstance(value, (tuple, list)):
        return any([is_complex(each) for each in value])
    return hasattr(value, "dtype") and hasattr(value, "shape") and value.dtype.is_complex


def part_of(value: Any, real: Any) -> Any:
    """Return the real or the imaginary part of an operand; integers, Bool and settings as they are."""
    if isinstance(value, (tuple, list)):
        return [part_of(each, real) for each in value] if is_complex(value) else value
    if isinstance(value, complex):
        return value.real if real else value.imag
    if isinstance(value, DType):
        return real_of(value)
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return value
    if value.dtype.is_complex:
        return ops.Real()(value) if real else ops.Imag()(value)
    return value if real or not value.dtype.is_float else ops.zeros_like(value)


def joined_parts(real: Any, imaginary: Any) -> Any:
    """Return complex results of their parts."""
    if isinstance(real, (tuple, list)):
        return [joined_parts(*pair) for pair in zip(real, imaginary, strict=True)]
    return ops.Complex()(real, imaginary)


def by_parts(function: Any, filler: Any) -> Any:
    """Return a function that is linear in its tensors together, also of complex ones. filler: the place of a number
    that belongs to them, None if there is none."""

    def of(*args: Any) -> Any:
        if not any([is_complex(each) for each in args]):
            return function(*args)
        sides = [[part_of(each, real) for each in args] for real in (True, False)]
        if filler is not None and isinstance(args[filler], (int, float)):
            sides[1][filler] = 0
        return joined_parts(function(*sides[0]), function(*sides[1]))

    return of


def of_parts(product: Any, operands: Any) -> Any:
    """Return a product of several tensors, in each of which it is linear; complex ones by their real and imaginary
    parts."""
    for place, each in enumerate(operands):
        if each.dtype.is_complex:
            first = of_parts(product, (*operands[:place], ops.Real()(each), *operands[place + 1 :]))
            second = of_parts(product, (*operands[:place], ops.Imag()(each), *operands[place + 1 :]))
            if not first.dtype.is_complex:
                return ops.Complex()(first, second)
            return ops.Complex()(ops.Real()(first) - ops.Imag()(second), ops.Imag()(first) + ops.Real()(second))
    return product(*operands)


tril, triu = by_parts(ops.tril, None), by_parts(ops.triu, None)
"""Triangles of matrices, complex ones too."""


def of_either(function: Any, name: Any) -> Any:
    """Return a function that is one of the table for complex numbers."""
    return lambda *args: (
        ops.LibraryFunction(f"complex_{name}", ())(args[0]) if is_complex(args[0]) else function(*args))  # fmt: skip


def compared(function: Any) -> Any:
    """Return a comparison of a tensor with another one or a number."""
    return lambda self, other: function(self, other if not isinstance(other, complex) else complex_number(
        other, (), self.dtype if self.dtype.is_complex else COMPLEX64))  # fmt: skip


def raised(function: Any) -> Any:
    """Return the power, of complex numbers by the table."""

    def of(self: Any, exponent: Any) -> Any:
        if not any([is_complex(each) or isinstance(each, complex) for each in (self, exponent)]):
            return function(self, exponent)
        kind = self.dtype if is_complex(self) else exponent.dtype if is_complex(exponent) else None
        if kind is None:
            return function(self, exponent)
        return ops.LibraryFunction("complex_pow", ())(*[ops.cast(each, kind) for each in (self, exponent)])

    return of


_LINEAR = """
    index.Tensor index_put.default _unsafe_index_put.default _unsafe_index.Tensor index_select.default gather.default
    scatter.src scatter_add.default index_add.default index_copy.default take.default put.default take_along_dim.default
    masked_scatter.default where.self tril.default triu.default flip.default fliplr.default flipud.default
    roll.default rot90.default diag.default diag_embed.default diagonal.default linalg_diagonal.default
    diagonal_scatter.default diagflat.default trace.default cumsum.default mean.default mean.dim diff.default
    as_strided.default as_strided_scatter.default unfold.default repeat_interleave.self_int
    repeat_interleave.self_Tensor im2col.default col2im.default select_scatter.default slice_scatter.default
    block_diag.default sum_to_size.default reflection_pad1d.default reflection_pad2d.default reflection_pad3d.default
    replication_pad1d.default replication_pad2d.default replication_pad3d.default channel_shuffle.default
    pixel_shuffle.default pixel_unshuffle.default trapz.dx trapezoid.dx
    cumulative_trapezoid.dx gradient.scalarint gradient.scalararray gradient.array
    gradient.scalarrayint gradient.scalarrayarray movedim.int movedim.intlist meshgrid.default
    meshgrid.indexing tensor_split.sections tensor_split.indices combinations.default cartesian_prod.default
    _unsafe_masked_index_put_accumulate.default nansum.default unbind.int select.int slice.Tensor narrow.Tensor
""".split()
_FILLED = {
    "masked_fill.Scalar": 2, "masked_fill.Tensor": 2, "index_fill.int_Scalar": 3, "index_fill.int_Tensor": 3,
    "scatter.value": 3, "_unsafe_masked_index.default": 3, "constant_pad_nd.default": 2, "pad.default": 3,
    "where.ScalarOther": 2, "where.ScalarSelf": 1,
}  # fmt: skip
"""Kinds of a number that fills: the place of the number."""
_ANALYTIC = """
    exp log sqrt sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh expm1 log1p log2 log10 exp2 sigmoid
    reciprocal rsqrt square silu sinc
""".split()


def with_complex_numbers(kinds: Iterable[Kind]) -> list[Kind]:
    """Return the rows with targets that take complex numbers, too."""
    return [_with_complex(kind, kind.name.removeprefix("aten.")) for kind in kinds]


def _with_complex(kind: Kind, name: str) -> Kind:
    target = kind.target
    if name in _LINEAR or name in _FILLED:
        put = None if kind.put is None else by_parts(kind.put, None)
        return replace(kind, target=by_parts(target, _FILLED.get(name)), put=put)
    if name.removesuffix(".default") in _ANALYTIC:
        return replace(kind, target=of_either(target, name.removesuffix(".default")))
    if name in ("eq.Scalar", "ne.Scalar"):
        return replace(kind, target=compared(target))
    if name in ("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar"):
        return replace(kind, target=raised(target))
    return kind
