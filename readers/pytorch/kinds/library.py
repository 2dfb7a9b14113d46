"""Kinds of ATen that are rows of the table in `ops/math/library.py`, or a few operators around one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mspc.ir.types import BOOL, COMPLEX128, FLOAT32, FLOAT64, HALVES, INT32, INT64, real_of
from mspc.mindspore_api import mint, ops
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.ops.function.math_func import quantile_along
from mspc.readers.pytorch.kinds.collectives import chunks_in_rows
from mspc.readers.pytorch.kinds.complex_numbers import by_parts, of_parts, raised, tril, triu
from mspc.readers.pytorch.kinds.creation import complex_number
from mspc.readers.pytorch.kinds.kind import row
from mspc.readers.pytorch.kinds.linear import inverse, log_determinant, of_triangle, shortened
from mspc.readers.pytorch.kinds.shapes import conjugate_transposed as adjoint
from mspc.readers.pytorch.kinds.shapes import exchanged, expanded, permuted, reshaped


def library(function: str, *operands: Any, settings: Any = ()) -> Any:
    """Return the result of a function of the table."""
    return ops.LibraryFunction(function, settings)(*operands)


def typed(value: Any, dtype: Any) -> Any:
    """Return a number, or a tensor of one element, without dimensions in an element type."""
    if isinstance(value, complex):
        return complex_number(value, (), dtype)
    if not isinstance(value, (int, float)):
        return ops.cast(ops.Reshape()(value, ()), dtype)
    if dtype.is_complex:
        return complex_number(value * 1.0 + 0j, (), dtype)
    return ops.Fill()(dtype, (), int(value) if dtype.is_integer else value)


def of_floats(function: str) -> Any:
    """Return an elementwise function of tensors or numbers, whose integers and Bool become Float32."""

    def of(*operands: Any) -> Any:
        dtype = None
        for x in operands:
            if not isinstance(x, (int, float)) and x.dtype.is_float:
                dtype = x.dtype if dtype is None or x.dtype.itemsize > dtype.itemsize else dtype
        dtype = FLOAT32 if dtype is None else dtype
        return library(function, *[typed(x, dtype) if isinstance(x, (int, float)) else ops.cast(x, dtype)
                                   for x in operands])  # fmt: skip

    return of


def product(left: Any, right: Any) -> Any:
    """Return the product of matrices, complex ones too."""
    return of_parts(ops.matmul, (left, right))


# Decompositions.


def svd(matrix: Any, full: Any) -> Any:
    """Return (U, singular values, V^H)."""
    m, n = matrix.shape[-2:]
    if matrix.dtype.is_complex or 0 in matrix.shape:
        return library("svd", matrix, settings=(full,))
    values, left, right = ops.svd(matrix, False, True)
    if full and m != n:  # the other vectors are not determined, and have no gradient
        whole = ops.stop_gradient(ops.svd(matrix, True, True)[1 if m > n else 2])
        if m > n:
            left = ops.Concat(-1)((left, whole[..., n:]))
        else:
            right = ops.Concat(-1)((right, whole[..., m:]))
    return left, values, exchanged(right, -2, -1)


def svd_of(self: Any, some: Any, compute_uv: Any) -> Any:
    """Return (U, singular values, V); without vectors U and V are zeros."""
    if compute_uv:
        left, values, right = svd(self, not some)
        return left, values, adjoint(right)
    m, n = self.shape[-2:]
    batch = self.shape[:-2]
    zeros = [ops.Fill()(self.dtype, (*batch, side, side), 0) for side in (m, n)]
    return zeros[0], singular_values(self), zeros[1]


def singular_values(matrix: Any) -> Any:
    """Return the singular values."""
    return svd(matrix, False)[1]


def lu(matrix: Any, pivot: Any = True) -> Any:
    """Return (L and U in one, pivots, no error)."""
    packed, pivots = library("lu", matrix, settings=(bool(pivot),))
    return packed, pivots, ops.zeros(matrix.shape[:-2], pivots.dtype)


def lu_parts(packed: Any, pivots: Any, unpacks_data: Any = True, unpacks_pivots: Any = True) -> Any:
    """Return (P, L, U)."""
    m, n = packed.shape[-2:]
    few = min(m, n)
    none = ops.zeros((0,), packed.dtype)
    p = ops.cast(library("permutation", pivots, settings=(m,)), packed.dtype) if unpacks_pivots else none
    if not unpacks_data:
        return p, none, none
    lower = tril(packed[..., :, :few], -1) + ops.eye(m, few, packed.dtype)
    return p, lower, triu(packed[..., :few, :])


def lu_solved(packed: Any, pivots: Any, right: Any, left: Any, is_adjoint: Any) -> Any:
    """Return x of A @ x = right, of a matrix that is given by its parts, or of x @ A = right."""
    if not left:
        return adjoint(lu_solved(packed, pivots, adjoint(right), True, not is_adjoint))
    p, lower, upper = lu_parts(packed, pivots)
    if is_adjoint:
        inner = of_triangle(adjoint(upper), right, False, True, False)
        return product(p, of_triangle(adjoint(lower), inner, True, True, True))
    inner = of_triangle(lower, product(adjoint(p), right), False, True, True)
    return of_triangle(upper, inner, True, True, False)


def reflections(self: Any, tau: Any, other: Any, left: Any, transpose: Any) -> Any:
    """Return Q @ other, or Q^H @ other, or the products from the other side. Q is a product of reflections."""
    if left:
        return library("reflected", self, tau, other, settings=(bool(transpose), bool(transpose)))
    return adjoint(library("reflected", self, tau, adjoint(other), settings=(not transpose, not transpose)))


def householder(self: Any, tau: Any, columns: Any = None) -> Any:
    """Return the first columns of the product of reflections, by default as many as `self` has."""
    ones = ops.eye(self.shape[-2], self.shape[-1] if columns is None else columns, self.dtype)
    return library("reflected", self, tau, expanded(ones, (*self.shape[:-2], *ones.shape)), settings=(False, False))


def full_qr(matrix: Any, mode: Any) -> Any:
    """Return (Q, R)."""
    m, n = matrix.shape[-2:]
    if mode != "r" and not matrix.dtype.is_complex and 0 not in matrix.shape:
        if m >= n:
            return ops.qr(matrix, mode)
        left, upper = ops.qr(matrix[..., :m], "reduced")
        return left, ops.Concat(-1)((upper, ops.matmul(exchanged(left, -2, -1), matrix[..., m:])))
    packed, tau = library("geqrf", matrix)
    few = min(matrix.shape[-2:])
    side = matrix.shape[-2] if mode == "complete" else few
    upper = triu(packed[..., :side, :])
    if mode == "r":
        return ops.zeros((0,), matrix.dtype), upper
    return householder(packed, tau, side), upper


def eigen(matrix: Any, half: Any) -> Any:
    """Return (eigenvalues, eigenvectors) of symmetric matrices."""
    return library("eigh", matrix, settings=(half.upper() == "L",))


def pseudo_inverse(self: Any, atol: Any, rtol: Any, hermitian: Any) -> Any:
    """Return pseudo-inverses; Hermitian matrices are made of one half."""
    return library("pinv", self, *limits_given(self, atol, rtol), settings=(bool(hermitian),))


def limits_given(self: Any, atol: Any, rtol: Any) -> Any:
    """Return the operands for limits that are given, numbers or tensors for each matrix: none, or both."""
    if atol is None and rtol is None:
        return []
    dtype = real_of(self.dtype)
    found = [None if x is None else ops.cast(x, dtype) for x in (atol, rtol)]
    zero = ops.zeros((), dtype)
    if found[1] is None:
        smallest = max(self.shape[-2:]) * (2.0**-52 if dtype.itemsize == 8 else 2.0**-23)
        own = ops.where(ops.Greater()(found[0], 0), ops.zeros_like(found[0]), ops.full_like(found[0], smallest))
        return [found[0], own]
    return [zero if found[0] is None else found[0], found[1]]


def rank(self: Any, atol: Any, rtol: Any, hermitian: Any) -> Any:
    """Return the ranks of matrices."""
    return library("matrix_rank", self, *limits_given(self, atol, rtol), settings=(bool(hermitian),))


def least_squares(self: Any, right: Any, rcond: Any, driver: Any) -> Any:
    """Return (solution, squared residuals, ranks, singular values)."""
    m, n = self.shape[-2:]
    is_vector = len(right.shape) == len(self.shape) - 1
    b = ops.ExpandDims()(right, -1) if is_vector else right
    x = product(library("pinv", self, settings=(False,)), b)
    none = ops.zeros((0,), real_of(self.dtype))
    off = product(self, x) - b
    squares = ops.ReduceSum()(ops.Square()(ops.Abs()(off) if not off.dtype.is_complex else ops.ComplexAbs()(off)), -2)
    residuals = squares if m > n and driver != "gelsy" and 0 not in self.shape else none
    found = ops.zeros((0,), INT64) if driver == "gels" else rank(self, None, None, False)
    values = singular_values(self) if driver in ("gelsd", "gelss") else none
    return ops.Squeeze(-1)(x) if is_vector else x, residuals, found, values


def condition(self: Any, p: Any) -> Any:
    """Return the condition numbers of matrices."""
    if p in (None, 2, -2):
        values = singular_values(self)
        return values[..., -1] / values[..., 0] if p == -2 else values[..., 0] / values[..., -1]
    return ops.matrix_norm(self, p) * ops.matrix_norm(inverse(self), p)


def tensor_solved(self: Any, other: Any, dims: Any) -> Any:
    """Return x with tensordot(self, x, x's dimensions) = other."""
    if dims is not None:
        places = [d % len(self.shape) for d in dims]
        self = permuted(self, (*[d for d in range(len(self.shape)) if d not in places], *places))
    size = math.prod(other.shape)
    shape = self.shape[len(other.shape) :]
    return reshaped(product(inverse(reshaped(self, (size, -1))), reshaped(other, (size, 1))), shape)


def tensor_inverse(self: Any, ind: Any) -> Any:
    """Return the inverse of a tensor as a matrix whose rows are the first `ind` dimensions."""
    size = math.prod(self.shape[:ind])
    return reshaped(inverse(reshaped(self, (size, -1))), (*self.shape[ind:], *self.shape[:ind]))


def in_a_chain(tensors: Any) -> Any:
    """Return the product of matrices; the first and the last one may be vectors."""
    found = tensors[0]
    for each in tensors[1:]:
        found = product(found, each)
    return found


def triangle_solved(self: Any, matrix: Any, upper: Any, transpose: Any, unitriangular: Any) -> Any:
    """Return (x of matrix @ x = self, or of its transpose, the matrix)."""
    batch = np.broadcast_shapes(self.shape[:-2], matrix.shape[:-2])
    a = expanded(matrix, (*batch, *matrix.shape[-2:]))
    b = expanded(self, (*batch, *self.shape[-2:]))
    half = exchanged(a, -2, -1) if transpose else a
    return of_triangle(half, b, upper != transpose, True, unitriangular), a


def log_of_determinant(self: Any) -> Any:
    """Return the logarithms of determinants."""
    if not self.dtype.is_complex:
        return ops.logdet(self)
    sign, size = log_determinant(self)
    return library("complex_log", sign) + ops.cast(size, sign.dtype)


DECOMPOSITIONS = (
    row("linalg_svd.default", "A, full_matrices=True, -driver=None", svd),
    row("_linalg_svd.default", "A, full_matrices=False, -compute_uv=True, -driver=None", svd),
    row("svd.default", "self, some=True, compute_uv=True", svd_of),
    row("linalg_svdvals.default", "A, -driver=None", singular_values),
    row("linalg_eigh.default", "self, UPLO='L'", eigen),
    row("linalg_eigvalsh.default", "self, UPLO='L'", lambda self, half: eigen(self, half)[0]),
    row("linalg_eig.default", "self", lambda self: library("eig", self)),
    row("linalg_eigvals.default", "self", lambda self: library("eigvals", self)),
    row("linalg_qr.default", "A, mode='reduced'", full_qr),
    row("qr.default", "self, some=True", lambda self, some: full_qr(self, "reduced" if some else "complete")),
    row("geqrf.default", "self", lambda self: library("geqrf", self)),
    row("linalg_lu_factor.default", "A, pivot=True", lambda matrix, pivot: lu(matrix, pivot)[:2]),
    row("linalg_lu_factor_ex.default", "A, pivot=True, -check_errors=False", lu),
    row("_lu_with_info.default", "self, pivot=True, -check_errors=True", lu),
    row("linalg_lu.default", "A, pivot=True", lambda matrix, pivot: lu_parts(*lu(matrix, pivot)[:2], True, pivot)),
    row("lu_unpack.default", "LU_data, LU_pivots, unpack_data=True, unpack_pivots=True", lu_parts),
    row("linalg_lu_solve.default", "LU, pivots, B, left=True, adjoint=False", lu_solved),
    row("lu_solve.default", "self, LU_data, LU_pivots",
        lambda self, packed, pivots: lu_solved(packed, pivots, self, True, False)),
    row("linalg_ldl_factor.default", "self, hermitian=False",
        lambda self, hermitian: library("ldl", self, settings=(hermitian,))),
    row("linalg_ldl_factor_ex.default", "self, hermitian=False, -check_errors=False", lambda self, hermitian: (
        *library("ldl", self, settings=(hermitian,)), ops.zeros(self.shape[:-2], INT32))),
    row("ormqr.default", "self, input2, input3, left=True, transpose=False", reflections),
    row("linalg_householder_product.default", "input, tau", householder),
    row("orgqr.default", "self, input2", householder),
    row("linalg_pinv.default linalg_pinv.rcond_tensor", "self, rcond, hermitian=False",
        lambda self, rcond, hermitian: pseudo_inverse(self, None, rcond, hermitian)),
    row("linalg_pinv.atol_rtol_tensor linalg_pinv.atol_rtol_float", "self, atol=None, rtol=None, hermitian=False",
        pseudo_inverse),
    row("pinverse.default", "self, rcond=1e-15", lambda self, rcond: pseudo_inverse(self, None, rcond, False)),
    row("linalg_matrix_rank.atol_rtol_tensor", "input, atol=None, rtol=None, hermitian=False", rank),
    row("linalg_matrix_rank.atol_rtol_float", "self, atol=None, rtol=None, hermitian=False", rank),
    *(row(f"linalg_matrix_rank.{form}", f"{first}, tol, hermitian=False",
          lambda self, tol, hermitian: rank(self, tol, 0.0, hermitian))
      for form, first in (("default", "self"), ("tol_tensor", "input"))),
    row("linalg_lstsq.default", "self, b, rcond=None, driver=None", least_squares),
    row("matrix_exp.default", "self", lambda self: library("matrix_exp", self)),
    row("linalg_cond.default", "self, p=None", condition),
    row("linalg_cond.p_str", "self, p", condition),
    row("linalg_tensorsolve.default", "self, other, dims=None", tensor_solved),
    row("linalg_tensorinv.default", "self, ind=2", tensor_inverse),
    row("linalg_multi_dot.default", "tensors", in_a_chain),
    row("linalg_vecdot.default", "x, y, dim=-1", lambda x, y, dim: ops.vecdot(x, y, axis=dim)),
    row("linalg_ldl_solve.default", "LD, pivots, B, hermitian=False",
        lambda packed, pivots, right, hermitian: library("ldl_solve", packed, pivots, right, settings=(hermitian,))),
    row("logdet.default", "self", log_of_determinant),
    row("triangular_solve.default", "self, A, upper=True, transpose=False, unitriangular=False", triangle_solved),
)  # fmt: skip
"""Kinds of decompositions of matrices."""


# Statistics, integrals and pieces.


def weighted_covariance(self: Any, correction: Any, fweights: Any, aweights: Any) -> Any:
    """Return the covariances of rows, of columns that count with weights."""
    x = self if len(self.shape) == 2 else reshaped(self, (1, -1))
    x = x if x.dtype.is_float or x.dtype.is_complex else ops.cast(x, FLOAT32)
    if aweights is not None and x.dtype in HALVES:
        x = ops.cast(x, aweights.dtype)
    # Sums of weights have the element type of the weights, as PyTorch's, which may be less precise than the rows'.
    real = real_of(x.dtype) if aweights is None else aweights.dtype
    weights = None
    for each in (fweights, aweights):
        if each is not None:
            weights = ops.cast(each, real) if weights is None else weights * ops.cast(each, real)
    count = x.shape[-1]
    if weights is None:
        centred = x - ops.ReduceSum(True)(x, 1) / max(count, 1)
        scale = max(count - correction, 0)
        found = product(centred, adjoint(centred))
        square = found * (1 / scale if scale else math.inf)
    else:
        total = ops.ReduceSum()(weights)
        average = ops.ReduceSum(True)(x * ops.cast(weights, x.dtype), 1) / ops.cast(total, x.dtype)
        centred = x - average
        less = total - correction
        if aweights is not None:
            own = ops.ReduceSum()(weights * aweights)
            less = total - own * correction / total
        scaled = adjoint(centred * ops.cast(weights, x.dtype))
        square = product(centred, scaled) / ops.cast(ops.Maximum()(less, ops.zeros_like(less)), x.dtype)
    return ops.Reshape()(square, ()) if square.shape == (1, 1) else square


def correlation(self: Any) -> Any:
    """Return the correlations of rows."""
    found = weighted_covariance(self, 1, None, None)
    if len(found.shape) < 2:
        return found / found
    sizes = ops.Sqrt()(ops.diagonal(ops.Real()(found) if found.dtype.is_complex else found, 0, 0, 1))
    made = found / ops.cast(ops.ExpandDims()(sizes, 1), found.dtype) / ops.cast(ops.ExpandDims()(sizes, 0), found.dtype)
    if made.dtype.is_complex:
        return ops.Complex()(ops.clamp(ops.Real()(made), -1.0, 1.0), ops.clamp(ops.Imag()(made), -1.0, 1.0))
    return ops.clamp(made, -1.0, 1.0)


def pieces(self: Any, dim: Any) -> Any:
    """Return the sums of neighbours along a dimension."""
    place = dim % len(self.shape)
    count = self.shape[place]
    return mint.narrow(self, place, 1, count - 1) + mint.narrow(self, place, 0, count - 1)


def trapezoids(y: Any, x: Any, dim: Any) -> Any:
    """Return the areas under neighbouring points; x: their places, or the distance of all."""
    y = y if y.dtype.is_float or y.dtype.is_complex else ops.cast(y, FLOAT32)
    if isinstance(x, (int, float)):
        return pieces(y, dim) * (x / 2)
    place = dim % len(y.shape)
    column = x
    if len(x.shape) == 1:
        column = reshaped(x, tuple([-1 if d == place else 1 for d in range(len(y.shape))]))
    own = place - len(y.shape) + len(column.shape)
    count = column.shape[own]
    step = mint.narrow(column, own, 1, count - 1) - mint.narrow(column, own, 0, count - 1)
    return pieces(y, dim) * step / 2


def integral(y: Any, x: Any, dim: Any) -> Any:
    """Return the area under points."""
    if y.shape[dim] == 0:
        return ops.ReduceSum()(y, dim)
    return ops.ReduceSum()(trapezoids(y, x, dim), dim)


def slopes(self: Any, spacing: Any, dim: Any, edge_order: Any) -> Any:
    """Return the derivatives along one or several dimensions, None for all, by neighbours on both sides. spacing: a
    distance, by default 1, or one for each dimension, or places as tensors."""
    x = self if self.dtype.is_float or self.dtype.is_complex else ops.cast(self, FLOAT32)
    dims = tuple(range(len(x.shape))) if dim is None else (dim,) if isinstance(dim, int) else dim
    steps = spacing if isinstance(spacing, (tuple, list)) else [1 if spacing is None else spacing] * len(dims)
    return [slope(x, step, d % len(x.shape), edge_order) for step, d in zip(steps, dims, strict=True)]


def slope(x: Any, step: Any, dim: Any, edge_order: Any) -> Any:
    """Return the derivative along a dimension."""
    count = x.shape[dim]

    def at(first: Any, size: Any) -> Any:
        return mint.narrow(x, dim, first, size)

    if isinstance(step, (int, float)):
        before, behind = step, step
        gaps = None
    else:
        gaps = reshaped(step[1:] - step[:-1], tuple([-1 if d == dim else 1 for d in range(len(x.shape))]))
        before, behind = mint.narrow(gaps, dim, 0, count - 2), mint.narrow(gaps, dim, 1, count - 2)
    if gaps is None:
        middle = (at(2, count - 2) - at(0, count - 2)) / (2 * step)
    else:
        left, right = -behind / (before * (before + behind)), before / (behind * (before + behind))
        middle = left * at(0, count - 2) + (behind - before) / (before * behind) * at(1, count - 2)
        middle = middle + right * at(2, count - 2)
    ends = []
    for place, sign in ((0, 1), (count - 1, -1)):
        if gaps is None:
            near, far = step, step
        else:
            near = mint.narrow(gaps, dim, 0 if sign > 0 else count - 2, 1)
            far = mint.narrow(gaps, dim, 1 if sign > 0 else count - 3, 1) if count > 2 else near
        if edge_order == 1:
            ends.append((at(place + sign, 1) - at(place, 1)) / near * sign)
        else:
            a, b = -(2 * near + far) / (near * (near + far)), (near + far) / (near * far)
            c = -near / (far * (near + far))
            ends.append((a * at(place, 1) + b * at(place + sign, 1) + c * at(place + 2 * sign, 1)) * sign)
    return ops.Concat(dim)((ends[0], middle, ends[1]) if count > 2 else (ends[0], ends[1]))


def on_a_diagonal(tensors: Any) -> Any:
    """Return matrices one behind another along a diagonal, among zeros."""
    kind = tensors[0].dtype
    blocks = [reshaped(x, (1, -1)) if len(x.shape) < 2 else x for x in tensors]
    widths = [x.shape[1] for x in blocks]
    rows = []
    for place, block in enumerate(blocks):
        before, behind = sum(widths[:place]), sum(widths[place + 1 :])
        zeros = [ops.Fill()(kind, (block.shape[0], n), 0) for n in (before, behind)]
        rows.append(ops.Concat(1)([x for x in (zeros[0], ops.cast(block, kind), zeros[1]) if x.shape[1]] or [block]))
    return ops.Concat(0)(rows)


def all_pairs(tensors: Any) -> Any:
    """Return all tuples of elements as rows."""
    if len(tensors) == 1:
        return tensors[0]
    grids = ops.meshgrid(*tensors, indexing="ij")
    return ops.Stack(1)([reshaped(each, (-1,)) for each in grids])


def chosen(self: Any, r: Any, repeats: Any) -> Any:
    """Return all selections of `r` elements in their order as rows."""
    count, rows = self.shape[0], [()]
    for _ in range(r):
        rows = [(*each, n) for each in rows for n in range((each[-1] + (0 if repeats else 1)) if each else 0, count)]
    if not rows or r == 0:
        return ops.zeros((0, r) if r else (0,), self.dtype)
    columns = [ops.stack([self[each[place]] for each in rows], 0) for place in range(r)]
    return ops.stack(columns, 1)


def summed_to(self: Any, size: Any) -> Any:
    """Return the sums over dimensions that a smaller shape has been broadcast in."""
    ahead = len(self.shape) - len(size)
    dims = tuple(range(ahead)) + tuple([ahead + d for d, n in enumerate(size) if n == 1 and self.shape[ahead + d] != 1])
    x = ops.cast(self, INT64) if self.dtype == BOOL else self
    return reshaped(ops.ReduceSum(True)(x, dims), tuple(size)) if dims else self


def powers(x: Any, count: Any) -> Any:
    """Return the powers of elements from 0 on."""
    x = x if x.shape else reshaped(x, (1,))
    size = x.shape[-1] if count is None else count
    x = x if x.dtype.is_float or x.dtype.is_complex else ops.cast(x, INT64)
    rows = [ops.ones_like(x)]
    for _ in range(size - 1):
        rows.append(rows[-1] * x)
    return ops.stack(rows, -1)


def quantiles(self: Any, q: Any, dim: Any, keepdim: Any, interpolation: Any, without_nan: Any) -> Any:
    """Return quantiles of several shares, which come first, or of one."""
    return quantile_along("quantile", self, ops.cast(q, self.dtype), dim, keepdim, without_nan, interpolation)


def spread_evenly(start: Any, end: Any, steps: Any, dtype: Any) -> Any:
    """Return numbers from start to end, which are numbers or tensors of one, at equal distances."""
    kind = FLOAT32 if dtype is None else dtype
    wide = kind if kind.is_float or kind.is_complex else FLOAT64
    first, last = [ops.cast(typed(x, kind), wide) for x in (start, end)]
    if steps == 0:
        return ops.zeros((0,), kind)
    if steps == 1:
        return ops.cast(ops.Reshape()(first, (1,)), kind)
    places = ops.arange(0, steps, 1)
    part = ops.cast(places, wide)
    step = (last - first) / (steps - 1)
    ahead = ops.Less()(places, steps // 2)
    found = by_parts(ops.where, None)(ahead, first + step * part, last - step * ((steps - 1) - part))
    return ops.cast(ops.trunc(found) if kind != wide else found, kind)


def spread_in_powers(start: Any, end: Any, steps: Any, base: Any, dtype: Any) -> Any:
    """Return powers of a base whose exponents are at equal distances."""
    kind = FLOAT32 if dtype is None else dtype
    wide = kind if kind.is_float or kind.is_complex else FLOAT64
    if not (kind.is_float or kind.is_complex):
        start, end = [int(x) if isinstance(x, (int, float)) else ops.cast(x, kind) for x in (start, end)]
    found = spread_evenly(start, end, steps, wide)
    power = raised(ops.Pow())
    made = power(typed(base, wide), found) if steps else found
    return ops.cast(made, kind)


def placed(function: str, self: Any, dim: Any, keepdim: Any) -> Any:
    """Return (chosen elements along a dimension, their places)."""
    place = dim % len(self.shape)
    found = library(function, self, settings=(place,))
    return found if keepdim else (ops.Squeeze(place)(found[0]), ops.Squeeze(place)(found[1]))


def segments(data: Any, reduce: Any, lengths: Any, indices: Any, offsets: Any, axis: Any, initial: Any) -> Any:
    """Return reductions of successive parts."""
    if lengths is None and offsets is None:
        raise ApiValueError("segment_reduce: lengths or offsets are read, and no indices")
    given = offsets if lengths is None else lengths
    return library("segment_reduce", data, ops.cast(given, INT64), settings=(reduce, axis, initial, lengths is None))


def different(self: Any, dim: Any, is_consecutive: Any, shapes: Any) -> Any:
    """Return (different elements or slices, the place of each element among them, how often each is there)."""
    place = None if dim is None else dim % len(self.shape)
    return library("unique", self, settings=(place, is_consecutive, shapes))


def counted(self: Any, bins: Any, range: Any, weight: Any, density: Any) -> Any:
    """Return (counts in bins along the last dimension's numbers, the edges of the bins of each). bins: their numbers,
    or the edges as tensors."""
    edges = [] if isinstance(bins[0], int) else list(bins)
    sizes = tuple([each.shape[0] - 1 for each in edges]) if edges else tuple(bins)
    weights = [] if weight is None else [weight]
    settings = (len(edges), sizes, () if range is None else tuple(range), bool(density))
    return library("histogram", self, *edges, *weights, settings=settings)


def masked(self: Any, mask: Any, indices: Any, fill: Any) -> Any:
    """Return elements at places, and a number if the mask does not hold."""
    found = self[limited(self, mask, indices)]
    return ops.where(whole_mask(mask, found), found, ops.full_like(found, fill))


def limited(self: Any, mask: Any, indices: Any) -> Any:
    """Return places within the tensor, 0 if the mask does not hold."""
    return tuple([
        slice(None) if each is None else ops.clamp(ops.where(mask, each, ops.zeros_like(each)), 0, self.shape[d] - 1)
        for d, each in enumerate(indices)])  # fmt: skip


def whole_mask(mask: Any, found: Any) -> Any:
    return reshaped(mask, mask.shape + (1,) * (len(found.shape) - len(mask.shape)))


def masked_added(self: Any, mask: Any, indices: Any, values: Any) -> Any:
    """Return the tensor with values added at places if a mask holds."""
    kept = ops.where(whole_mask(mask, values), values, ops.zeros_like(values))
    return self.index_put(limited(self, mask, indices), kept, True)


def renormalised(self: Any, indices: Any, max_norm: Any, norm_type: Any) -> Any:
    """Return (the table whose named rows have at most a norm, the same as written)."""
    there = ops.Reshape()(ops.arange(0, self.shape[0], 1), (-1, 1))
    named = ops.ReduceAny(True)(ops.Equal()(ops.cast(there, INT64), ops.cast(reshaped(indices, (1, -1)), INT64)), 1)
    return ops.where(named, shortened(self, norm_type, 0, max_norm), self)


_EVENLY = "dtype=None, -layout=None, -device=None, -pin_memory=None"

STATISTICS = (
    row("cov.default", "self, correction=1, fweights=None, aweights=None", weighted_covariance),
    row("corrcoef.default", "self", correlation),
    *(row(f"{name}.{overload}", f"y, {second}, dim=-1", function)
      for name, default, function in (
          ("trapz", "1.0", integral), ("trapezoid", "1", integral), ("cumulative_trapezoid", "1",
           lambda y, x, dim: by_parts(mint.cumsum, None)(trapezoids(y, x, dim), dim)))
      for overload, second in (("x", "x"), ("dx", f"dx={default}"))),
    row("gradient.scalarint", "self, spacing=None, dim=None, edge_order=1", slopes),
    row("gradient.array", "self, dim, edge_order=1",
        lambda self, dim, edge_order: slopes(self, None, dim, edge_order)),
    row("gradient.scalarrayint gradient.tensorarrayint", "self, spacing, dim=None, edge_order=1", slopes),
    row("gradient.scalararray gradient.scalarrayarray gradient.tensorarray", "self, spacing, dim, edge_order=1",
        slopes),
    row("quantile.default quantile.scalar", "self, q, dim=None, keepdim=False, interpolation='linear'",
        lambda *given: quantiles(*given, False)),
    row("nanquantile.default nanquantile.scalar", "self, q, dim=None, keepdim=False, interpolation='linear'",
        lambda *given: quantiles(*given, True)),
    row("nanmedian.dim", "self, dim, keepdim=False", lambda *given: placed("nanmedian", *given)),
    row("nanmedian.default", "self", lambda self: placed("nanmedian", reshaped(self, (-1,)), 0, False)[0]),
    row("mode.default", "self, dim=-1, keepdim=False", lambda *given: placed("mode", *given)),
    row("segment_reduce.default",
        "data, reduce, lengths=None, indices=None, offsets=None, axis=0, -unsafe=False, initial=None", segments),
    row("histogram.bin_ct", "self, bins=100, range=None, weight=None, density=False",
        lambda self, bins, *rest: counted(self, (bins,), *rest)),
    row("histogramdd.int_bins", "self, bins, range=None, weight=None, density=False",
        lambda self, bins, *rest: counted(self, (bins,) * self.shape[-1], *rest)),
    row("histogramdd.default", "self, bins, range=None, weight=None, density=False", counted),
    row("histogram.bins_tensor", "self, bins, weight=None, density=False", lambda self, edges, weight, density: counted(
        self, (edges,), None, weight, density)),
    row("histogramdd.TensorList_bins", "self, bins, range=None, weight=None, density=False", counted),
    row("nonzero_static.default", "self, size, fill_value=-1",
        lambda self, size, fill: library("nonzero_static", self, settings=(size, fill))),
    row("_unique.default", "self, -sorted=True, -return_inverse=False",
        lambda self, shapes: different(self, None, False, (*shapes, (0,)))[:2], is_counted=True),
    row("unique_dim.default", "self, dim, -sorted=True, -return_inverse=False, -return_counts=False",
        lambda self, dim, shapes: different(self, dim, False, shapes), is_counted=True),
    row("unique_dim_consecutive.default", "self, dim, -return_inverse=False, -return_counts=False",
        lambda self, dim, shapes: different(self, dim, True, shapes), is_counted=True),
    row("unique_consecutive.default", "self, -return_inverse=False, -return_counts=False, dim=None",
        lambda self, dim, shapes: different(self, dim, True, shapes), is_counted=True),
    row("count_nonzero.dim_IntList", "self, dim", lambda self, dim: mint.count_nonzero(self, tuple(dim))),
)  # fmt: skip
"""Kinds of statistics."""

INVERSE_NORMS = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}
"""The scaling of a transform that is computed by the inverse one."""


def of_hermitian(inverse: Any, plain: Any, one: Any) -> Any:
    """Return a function: the transform of a signal that has a real transform, or its inverse."""

    def of(self: Any, sizes: Any, dim: Any, norm: Any) -> Any:
        x = self if self.dtype.is_float or self.dtype.is_complex else ops.cast(self, FLOAT32)
        if one:
            sizes, dim = None if sizes is None else (sizes,), (dim,)
        if inverse:
            return ops.Conj()(plain(x, sizes, dim, INVERSE_NORMS[norm]))
        return plain(ops.Conj()(x) if x.dtype.is_complex else x, sizes, dim, INVERSE_NORMS[norm])

    return of


PIECES = (
    *(row(f"fft_{name}{dims}.default", f"self, {sizes}, norm=None", of_hermitian(inverse, function, not dims))
      for dims, sizes in (("", "n=None, dim=-1"), ("2", "s=None, dim=(-2, -1)"), ("n", "s=None, dim=None"))
      for name, inverse, function in (("hfft", False, ops.irfftn), ("ihfft", True, ops.rfftn))),
    row("block_diag.default", "tensors", on_a_diagonal),
    row("cartesian_prod.default", "tensors", all_pairs),
    row("combinations.default", "self, r=2, with_replacement=False", chosen),
    row("sum_to_size.default", "self, size", summed_to),
    row("linalg_vander.default", "x, N=None", powers),
    row("linspace.default linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor",
        f"start, end, steps, {_EVENLY}", spread_evenly),
    row("logspace.default logspace.Tensor_Tensor logspace.Tensor_Scalar logspace.Scalar_Tensor",
        f"start, end, steps, base=10.0, {_EVENLY}", spread_in_powers),
    row("_unsafe_masked_index.default", "self, mask, indices, fill", masked),
    row("_unsafe_masked_index_put_accumulate.default", "self, mask, indices, values", masked_added),
    row("_chunk_cat.default", "tensors, dim, num_chunks", chunks_in_rows),
    row("embedding_renorm_.default", "self, indices, max_norm, norm_type", renormalised, writes="self"),
)  # fmt: skip
"""Kinds that lay out pieces."""

_SPECIAL = (
    "bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 "
    "modified_bessel_k1 log_ndtr erfcx"
)
_OF_X = "airy_ai scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0"
_POLYNOMIALS = (
    "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
    "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l "
    "legendre_polynomial_p"
)


def wide_power(self: Any, exponent: Any) -> Any:
    """Return the power in double precision."""
    if not self.dtype.is_complex and not exponent.dtype.is_complex:
        return ops.float_power(self, exponent)
    return library("complex_pow", ops.cast(self, COMPLEX128), ops.cast(exponent, COMPLEX128))


SPECIAL = (
    *(row(f"special_{name}.default", "self", of_floats(name)) for name in _SPECIAL.split()),
    *(row(f"special_{name}.default", "x", of_floats(name)) for name in _OF_X.split()),
    *(row(f"special_{name}.default special_{name}.n_scalar special_{name}.x_scalar", "x, n", of_floats(name))
      for name in _POLYNOMIALS.split()),
    row("special_zeta.default special_zeta.other_scalar special_zeta.self_scalar", "self, other", of_floats("zeta")),
    row("igamma.default", "self, other", of_floats("igamma")),
    row("igammac.default", "self, other", of_floats("igammac")),
    row("nextafter.default", "self, other", of_floats("nextafter")),
    row("frexp.Tensor", "self", lambda self: library("frexp", self)),
    row("logaddexp2.default", "self, other", lambda self, other: ops.logaddexp(
        self * math.log(2), other * math.log(2)) / math.log(2)),
    row("float_power.Tensor_Tensor", "self, exponent", wide_power),
    row("float_power.Scalar", "self, exponent", lambda self, exponent: wide_power(
        typed(self, COMPLEX128 if isinstance(self, complex) else FLOAT64), exponent)),
    *(row(f"{name}.default", "self, other", lambda self, other, name=name: library(name, self, other))
      for name in ("gcd", "lcm")),
)  # fmt: skip
"""Kinds of special functions."""
