"""Kinds of ATen that multiply matrices: matmuls, linear algebra, experts and attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mspc.ir.types import BOOL, FLOAT32, HALVES, INT32, real_of
from mspc.mindspore_api import mint, ops
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.mint.functions import as_dtype
from mspc.mindspore_api.mint.nn import functional
from mspc.readers.pytorch.kinds.complex_numbers import of_either, of_parts, tril, triu
from mspc.readers.pytorch.kinds.kind import row
from mspc.readers.pytorch.kinds.reductions import vector_norm
from mspc.readers.pytorch.kinds.shapes import conjugate_transposed, expanded, nothing
from mspc.readers.pytorch.known_values import KnownTensor, allows, band_of


def scaled_product(self: Any, product: Any, beta: Any, alpha: Any) -> Any:
    """beta * self + alpha * product."""
    if isinstance(alpha, complex) or isinstance(beta, complex):
        scales = [ops.Complex()(ops.cast(each.real, FLOAT32), ops.cast(each.imag, FLOAT32)) for each in (alpha, beta)]
        return product * scales[0] + self * scales[1]
    if not (self.dtype.is_float or self.dtype.is_complex):  # scales of integers are rounded towards 0 first
        beta, alpha = int(beta), int(alpha)
    scaled = product if alpha == 1 else ops.Mul()(product, alpha)
    if beta == 0:
        return scaled
    return ops.Add()(scaled, self if beta == 1 else ops.Mul()(self, beta))


def distances(x1: Any, x2: Any, p: Any) -> Any:
    """Return the distances of all rows of two matrices, or of those of two batches, which are broadcast."""
    front = np.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    shape = (*front, x1.shape[-2], x2.shape[-2])
    if 0 in shape:
        return ops.zeros(shape, x1.dtype)
    if len(front) < 2 and x1.shape[:-2] == x2.shape[:-2]:
        return ops.Cdist(float(p))(x1, x2)
    rows = [ops.Reshape()(expanded(x, (*front, *x.shape[-2:])), (math.prod(front), *x.shape[-2:])) for x in (x1, x2)]
    return ops.Reshape()(ops.Cdist(float(p))(*rows), shape)


def linear(input: Any, weight: Any, bias: Any) -> Any:
    """Return input @ weight^T + bias."""
    if not input.dtype.is_complex:
        return functional.linear(input, weight, bias)
    found = of_parts(functional.linear, (input, weight))
    return found if bias is None else found + bias


PRODUCTS = (
    row("linear.default", "input, weight, bias=None", linear),
    row("matmul.default", "self, other", lambda *operands: of_parts(ops.matmul, operands)),
    row("mm.default", "self, mat2", lambda *operands: of_parts(ops.MatMul(), operands)),
    row("bmm.default", "self, mat2", lambda *operands: of_parts(ops.BatchMatMul(), operands)),
    row("mv.default", "self, vec", lambda *operands: of_parts(mint.mv, operands)),
    row("dot.default", "self, tensor", lambda self, tensor: ops.ReduceSum()(ops.Mul()(self, tensor))),
    row("addmm.default", "self, mat1, mat2, beta=1, alpha=1",
        lambda self, mat1, mat2, beta, alpha: scaled_product(self, of_parts(ops.MatMul(), (mat1, mat2)), beta, alpha)),
    row("baddbmm.default", "self, batch1, batch2, beta=1, alpha=1",
        lambda self, batch1, batch2, beta, alpha: scaled_product(
            self, of_parts(ops.BatchMatMul(), (batch1, batch2)), beta, alpha)),
    row("addmv.default", "self, mat, vec, beta=1, alpha=1",
        lambda self, mat, vec, beta, alpha: scaled_product(
            self, of_parts(mint.mv, (mat, vec)), beta, alpha)),
    row("cdist.default", "x1, x2, p=2.0, -compute_mode=None", distances),
    row("_cdist_forward.default", "x1, x2, p, -compute_mode", distances),
    row("einsum.default", "equation, tensors, -path=None",
        lambda equation, tensors: of_parts(lambda *each: ops.einsum(equation, *each), tensors)),
    row("outer.default", "self, vec2", mint.outer),
)  # fmt: skip
"""Kinds of products."""


def matrix_norm(self: Any, order: Any, dim: Any, keepdim: Any, dtype: Any) -> Any:
    """Return the norm of matrices; of complex ones that of their absolute values, or of their singular values."""
    self, places = as_dtype(self, dtype), [d % len(self.shape) for d in dim]
    shape = tuple([1 if d in places else n for d, n in enumerate(self.shape) if keepdim or d not in places])
    if 0 in [self.shape[d] for d in places]:
        return ops.zeros(shape, real_of(self.dtype))
    if self.dtype.is_complex and order in _OF_SINGULAR_VALUES:
        _, values, _ = ops.LibraryFunction("svd", (False,))(ops.movedim(self, places, (-2, -1)))
        return ops.Reshape()(vector_norm(values, _OF_SINGULAR_VALUES[order], -1, False), shape)
    return ops.norm(ops.ComplexAbs()(self) if self.dtype.is_complex else self, order, tuple(places), keepdim)


_OF_SINGULAR_VALUES = {"nuc": 1, 2: math.inf, -2: -math.inf}
"""Norms of matrices that are vector norms of singular values."""


def norm(self: Any, order: Any, dim: Any, keepdim: Any, dtype: Any) -> Any:
    """Return the norm of vectors, or of matrices."""
    if order is None and dim is None:
        found = vector_norm(ops.Reshape()(self, (-1,)), 2, None, False, dtype)
        return ops.Reshape()(found, (1,) * len(self.shape)) if keepdim else found
    if not isinstance(order, str) and (len(self.shape) == 1 if dim is None else isinstance(dim, int) or len(dim) == 1):
        return vector_norm(self, 2 if order is None else order, dim, keepdim, dtype)
    return matrix_norm(self, "fro" if order is None else order, (-2, -1) if dim is None else dim, keepdim, dtype)


def shortened(self: Any, order: Any, dim: Any, most: Any) -> Any:
    """Return the tensor with slices along a dimension that have at most a norm."""
    wide = ops.cast(self, FLOAT32) if self.dtype in HALVES else self
    rest = [d for d in range(len(self.shape)) if d != dim % len(self.shape)]
    size = vector_norm(wide, float(order), rest, True)
    return ops.cast(ops.where(ops.Greater()(size, most), wide * (most / (size + 1e-7)), wide), self.dtype)


def matrix_power(self: Any, n: Any) -> Any:
    """Return square matrices to a power; complex ones factor by factor."""
    if not self.dtype.is_complex:
        return ops.matrix_power(self, n)
    found = expanded(ops.cast(ops.eye(self.shape[-1], self.shape[-1]), self.dtype), self.shape)
    for _ in range(abs(n)):
        found = of_parts(ops.matmul, (found, inverse(self) if n < 0 else self))
    return found


def no_error(matrix: Any) -> Any:
    """Return the numbers of errors in matrices: none."""
    return ops.zeros(matrix.shape[:-2], INT32)


def solved_each(matrix: Any, right: Any, left: Any) -> Any:
    """Return `solved`, also of vectors: one for each matrix."""
    if matrix.shape[:-1] == right.shape or len(right.shape) == 1:
        return ops.Squeeze(-1)(solved(matrix, ops.ExpandDims()(right, -1), True))
    return solved(matrix, right, left)


inverse = of_either(lambda matrix: ops.MatrixInverse()(matrix), "inverse")
determinant = of_either(lambda matrix: ops.MatrixDeterminant()(matrix), "det")
log_determinant = of_either(ops.slogdet, "slogdet")
"""(Signs of determinants, logarithms of their sizes)."""


def triangle(matrix: Any, upper: Any) -> Any:
    """Return the triangle of Cholesky."""
    if not matrix.dtype.is_complex:
        return ops.cholesky(matrix, upper)
    found = ops.LibraryFunction("complex_cholesky", ())(matrix)
    return conjugate_transposed(found) if upper else found


def solved(matrix: Any, right: Any, left: Any) -> Any:
    """x of matrix @ x = right, or of x @ matrix = right."""
    pair = (inverse(matrix), right) if left else (right, inverse(matrix))
    return of_parts(ops.matmul, pair)


def bilinear(input1: Any, input2: Any, weight: Any, bias: Any) -> Any:
    """input1 @ weight[k] @ input2 for every k, plus bias."""
    shape = (*input1.shape[:-1], weight.shape[0])
    x = ops.Reshape()(input1, (-1, input1.shape[-1]))
    y = ops.Reshape()(input2, (-1, input2.shape[-1]))
    rows = ops.MatMul()(x, ops.Reshape()(ops.Transpose()(weight, (1, 0, 2)), (weight.shape[1], -1)))
    rows = ops.Reshape()(rows, (-1, weight.shape[0], weight.shape[2]))
    found = ops.ReduceSum()(rows * ops.ExpandDims()(y, 1), -1)
    return ops.Reshape()(found if bias is None else found + bias, shape)


def of_triangle(matrix: Any, right: Any, upper: Any, left: Any, unitriangular: Any) -> Any:
    """x of matrix @ x = right, or of x @ matrix = right, if one half of the matrix is read."""
    half = triu(matrix) if upper else tril(matrix)
    if unitriangular:
        ones = ops.cast(ops.eye(matrix.shape[-1], matrix.shape[-1]), matrix.dtype)
        half = (triu(matrix, 1) if upper else tril(matrix, -1)) + ones
    return solved(half, right, left)


def squared(half: Any, upper: Any) -> Any:
    """Return the matrix with this triangle of Cholesky."""
    part = half + ops.stop_gradient((triu(half) if upper else tril(half)) - half)  # PyTorch's gradient is whole
    turned = conjugate_transposed(part)
    return of_parts(ops.matmul, (turned, part) if upper else (part, turned))


def trilinear(i1: Any, i2: Any, i3: Any, expand1: Any, expand2: Any, expand3: Any, sumdim: Any) -> Any:
    """Return the sum of the products of three tensors, each with new dimensions of size 1."""
    found = []
    for each, places in ((i1, expand1), (i2, expand2), (i3, expand3)):
        for place in places:
            each = ops.ExpandDims()(each, place)
        found.append(each)
    return ops.ReduceSum()(found[0] * found[1] * found[2], tuple(sumdim))


def crossed(self: Any, other: Any, dim: Any) -> Any:
    """Return the cross products of vectors."""
    return of_parts(lambda x, y: ops.cross(x, y, dim), (self, other))


MATRICES = (
    row("linalg_solve_triangular.default", "self, B, upper, left=True, unitriangular=False", of_triangle),
    row("linalg_slogdet.default", "A", log_determinant),
    row("linalg_matrix_power.default matrix_power.default", "self, n", matrix_power),
    row("cross.default", "self, other, dim=None", crossed),
    row("inner.default", "self, other", lambda *pair: of_parts(ops.inner, pair)),
    row("addr.default", "self, vec1, vec2, beta=1, alpha=1",
        lambda self, vec1, vec2, beta, alpha: scaled_product(self, mint.outer(vec1, vec2), beta, alpha)),
    row("addbmm.default", "self, batch1, batch2, beta=1, alpha=1",
        lambda self, batch1, batch2, beta, alpha: scaled_product(
            self, ops.ReduceSum()(of_parts(ops.BatchMatMul(), (batch1, batch2)), 0), beta, alpha)),
    row("dist.default", "self, other, p=2", lambda self, other, p: vector_norm(self - other, p, None, False, None)),
    row("pdist.default _pdist_forward.default", "self, p=2", lambda self, p: ops.pdist(self, float(p))),
    row("renorm.default", "self, p, dim, maxnorm", shortened),
    row("linalg_inv_ex.default", "A, -check_errors=False",
        lambda matrix: (inverse(matrix), no_error(matrix))),
    row("linalg_cholesky_ex.default", "self, upper=False, -check_errors=False",
        lambda self, upper: (triangle(self, upper), no_error(self))),
    row("linalg_solve_ex.default", "A, B, left=True, -check_errors=False",
        lambda matrix, right, left: (solved_each(matrix, right, left), no_error(matrix))),
    row("_linalg_solve_ex.default", "A, B, left=True, -check_errors=False",
        lambda *given: (solved_each(*given), None, None, None)),
    row("_linalg_det.default", "A", lambda matrix: (determinant(matrix), None, None)),
    row("_linalg_slogdet.default", "A", lambda matrix: (*log_determinant(matrix), None, None)),
    row("_linalg_check_errors.default", "-info, -api_name, -is_matrix", nothing),
    row("cholesky.default", "self, upper=False", triangle),
    row("cholesky_inverse.default", "self, upper=False", lambda self, upper: inverse(squared(self, upper))),
    row("cholesky_solve.default", "self, input2, upper=False",
        lambda self, input2, upper: of_parts(
            ops.matmul, (inverse(squared(input2, upper)), self))),
    row("_trilinear.default", "i1, i2, i3, expand1, expand2, expand3, sumdim, -unroll_dim=1", trilinear),
    row("linalg_inv.default", "A", lambda matrix: inverse(matrix)),
    row("inverse.default", "self", lambda self: inverse(self)),
    row("linalg_det.default", "A", determinant),
    row("det.default", "self", determinant),
    row("slogdet.default", "self", log_determinant),
    row("linalg_cholesky.default", "self, upper=False", triangle),
    row("linalg_solve.default", "A, B, left=True", solved_each),
    row("linalg_norm.default", "self, ord=None, dim=None, keepdim=False, dtype=None", norm),
    row("linalg_norm.ord_str", "self, ord, dim=None, keepdim=False, dtype=None", norm),
    row("linalg_matrix_norm.default", "self, ord, dim=(-2, -1), keepdim=False, dtype=None", matrix_norm),
    row("linalg_matrix_norm.str_ord", "self, ord='fro', dim=(-2, -1), keepdim=False, dtype=None", matrix_norm),
    row("linalg_cross.default", "self, other, dim=-1", crossed),
    row("tensordot.default", "self, other, dims_self, dims_other",
        lambda self, other, ours, theirs: of_parts(
            lambda x, y: ops.tensor_dot(x, y, (ours, theirs)), (self, other))),
    row("kron.default", "self, other", ops.kron),
    row("trace.default", "self", mint.trace),
    row("vdot.default", "self, other", mint.vdot),
    row("bilinear.default", "input1, input2, weight, bias=None", bilinear),
    row("pairwise_distance.default", "x1, x2, p=2.0, eps=1e-06, keepdim=False",
        lambda x1, x2, p, eps, keepdim: vector_norm(x1 - x2 + eps, p, -1, keepdim)),
)  # fmt: skip
"""Kinds of matrices."""


def grouped_product(rows: Any, matrices: Any, ends: Any) -> Any:
    """Return the rows [m, k] of every group, which ends at a row, times its matrix of [groups, k, n]; of rows [k, m]
    and [m, n] the products of every group."""
    if len(rows.shape) == 2 and len(matrices.shape) == 2 and ends is not None:
        return ops.GroupedOuter()(ops.Transpose()(rows, (1, 0)), matrices, ends)
    if len(rows.shape) != 2 or len(matrices.shape) != 3 or ends is None:
        raise ApiValueError("grouped products: only rows [m, k] by matrices [groups, k, n] with ends are read")
    return ops.GroupedProduct()(rows, matrices, ends)


EXPERTS = (
    row("transformers.grouped_mm_fallback.default", "input, weight, offs", grouped_product),
    row("torchtitan.deterministic_scatter_add.default", "out, index, src",
        lambda out, index, src: mint.scatter_add(out, 0, index, src)),
    row("_grouped_mm.default", "self, mat2, offs=None, !bias=None, -out_dtype=None", grouped_product),
)
"""Kinds of groups."""


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: Any, is_causal: Any, scale: Any, enable_gqa: Any
) -> Any:
    """Return softmax(query @ key^T * scale + mask) @ value. A Bool mask has the visible keys; a pair of numbers, how
    many keys before and after a query's own place."""
    if not enable_gqa:
        front = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
        query, key, value = [expanded(x, (*front, *x.shape[-2:])) for x in (query, key, value)]
    q, k, v = _in_four(query), _in_four(key), _in_four(value)
    if dropout_p > 0:
        out = _written_out(q, k, v, attn_mask, _factor(query, scale), is_causal, dropout_p)
    else:
        settings, shift, hidden = _settings(q, attn_mask, is_causal, scale)
        _, _, _, out = ops.FlashAttentionScore(*settings)(q, k, v, shift, None, None, hidden, None)
    shape = (*query.shape[:-1], value.shape[-1])
    return out if out.shape == shape else ops.Reshape()(out, shape)


def _factor(query: Any, scale: Any) -> Any:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _settings(query: Any, attn_mask: Any, is_causal: Any, scale: Any) -> Any:
    """Return (settings of an operator of attention, what it adds to scores, the keys that it hides)."""
    shift, hidden = _mask_parts(query, attn_mask)
    mode, before, behind = 2 if is_causal else 0, 2147483647, 2147483647
    if isinstance(attn_mask, tuple):
        mode, before, behind = 4, attn_mask[0], attn_mask[1]
    elif hidden is not None:
        mode, behind = 0, 0 if is_causal else behind
    return (query.shape[1], 1.0, _factor(query, scale), before, behind, 0, "BNSD", mode), shift, hidden


def _mask_parts(query: Any, attn_mask: Any) -> Any:
    """Return (the mask if it is added to scores, its hidden keys if it is of Bool), None for a band and for none."""
    if attn_mask is None or isinstance(attn_mask, tuple):
        return None, None
    mask = _in_four_by_ones(attn_mask)
    return (None, ops.LogicalNot()(mask)) if mask.dtype == BOOL else (ops.cast(mask, query.dtype), None)


def _in_four(x: Any) -> Any:
    """Return the tensor with all dimensions before the heads joined; a matrix is one head."""
    if len(x.shape) == 4:
        return x
    return ops.Reshape()(x, (math.prod(x.shape[:-3]), *(x.shape[-3:-2] or (1,)), *x.shape[-2:]))


def _in_four_by_ones(mask: Any) -> Any:
    """Return the mask with dimensions of size 1 in front."""
    if len(mask.shape) == 4:
        return mask
    return ops.Reshape()(mask, (1,) * (4 - len(mask.shape)) + mask.shape)


def _written_out(query: Any, key: Any, value: Any, attn_mask: Any, factor: Any, is_causal: Any, dropout_p: Any) -> Any:
    """Return attention with dropped weights as separate operators, which the compiler fuses into one again.

    A query that sees no key gives zeros. Its scores are not masked, so that neither its softmax nor a gradient is NaN,
    and its result is replaced. (A causal mask hides no row.)
    """
    shift, hidden = _mask_parts(query, attn_mask)
    if isinstance(attn_mask, tuple):
        queries, keys = ops.arange(0, query.shape[2], 1), ops.arange(0, key.shape[2], 1)
        apart = ops.ExpandDims()(keys, 0) - ops.ExpandDims()(queries, 1)
        hidden = ops.LogicalOr()(ops.Less()(apart, -attn_mask[0]), ops.Greater()(apart, attn_mask[1]))
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key = ops.repeat_interleave(key, groups, 1)
        value = ops.repeat_interleave(value, groups, 1)
    scores = ops.BatchMatMul(False, True)(query, key) * factor
    is_masked = shift is not None or hidden is not None
    if is_causal:
        later = ops.Equal()(ops.tril(ops.ones((query.shape[2], key.shape[2]), query.dtype)), 0.0)
        hidden = later if hidden is None else ops.LogicalOr()(hidden, later)
    unseen = hidden
    if shift is not None:  # a row may be hidden by the addend and the rest together
        infinite = ops.Equal()(shift, -math.inf)
        unseen = infinite if hidden is None else ops.LogicalOr()(hidden, infinite)
    rows = ops.ReduceAll(True)(unseen, -1) if is_masked else None
    if shift is not None:
        scores = scores + ops.masked_fill(shift, rows, ops.cast(0.0, shift.dtype))
    if hidden is not None:
        masked = hidden if rows is None else ops.LogicalAnd()(hidden, ops.LogicalNot()(rows))
        scores = ops.masked_fill(scores, masked, ops.cast(-math.inf, scores.dtype))
    wide = ops.cast(scores, FLOAT32) if query.dtype in HALVES else scores  # as attention in one operator adds up
    weights = ops.dropout(ops.cast(ops.Softmax(-1)(wide), query.dtype), dropout_p, True)
    out = ops.BatchMatMul()(weights, value)
    return out if rows is None else ops.masked_fill(out, rows, ops.cast(0.0, out.dtype))


def with_statistics(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: Any, is_causal: Any, scale: Any
) -> Any:
    """Return (the result, the logarithm of the sum of exp(score), nothing for each other result of ATen)."""
    if dropout_p > 0:
        return (attention(query, key, value, attn_mask, dropout_p, is_causal, scale, True), *(None,) * 8)
    settings, shift, hidden = _settings(query, attn_mask, is_causal, scale)
    total, _, _, out = ops.FlashAttentionScore(*settings)(query, key, value, shift, None, None, hidden, None)
    return (out, ops.Squeeze(-1)(total), *(None,) * 7)


def in_columns(found: Any) -> Any:
    """Return results whose logarithms have a last dimension of size 1, as those of cuDNN have."""
    return found if found[1] is None else (found[0], ops.ExpandDims()(found[1], -1), *found[2:])


def in_blocks(found: Any, is_computed: Any) -> Any:
    """Return results whose logarithms are padded to a multiple of 32 queries, as on a GPU, or left out."""
    if found[1] is None or not is_computed:
        return (found[0], *(None,) * 8)
    return (found[0], ops.pad(found[1], (0, -found[1].shape[2] % 32)), *found[2:])


def attention_gradients(
    dout: Any, query: Any, key: Any, value: Any, attn_mask: Any, out: Any, logsumexp: Any, is_causal: Any, scale: Any
) -> Any:  # fmt: skip
    """Return the gradients of attention in query, key, value and mask. Weights are exp(score - logsumexp): the keys may
    be a part of those that `out` has seen."""
    settings, shift, hidden = _settings(query, attn_mask, is_causal, scale)
    names = tuple([name for name, each in (("real_shift", shift), ("attn_mask", hidden)) if each is not None])
    masks = [each for each in (shift, hidden) if each is not None]
    settings = (*settings, names, 0, 0, 0, (0, key.shape[2]))
    total = ops.Reshape()(logsumexp[:, :, : query.shape[2]], (*query.shape[:3], 1))
    operands = (query, key, value, dout, *masks, total, out)
    found = ops.FlashAttentionScoreGrad(*settings)(*operands)
    return (*found, None if shift is None else ops.FlashAttentionScoreShiftGrad(*settings)(*operands))


def with_known_mask(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an attention without a mask that hides nothing, or only later keys."""
    name = "attn_mask" if "attn_mask" in given else "attn_bias"
    mask = given.get(name)
    seen = allows(mask) if isinstance(mask, KnownTensor) and not given.get("is_causal") else None
    if seen is None:
        return given
    if seen.all():
        return given | {name: None}
    band = band_of(seen, *mask.shape[-2:])
    if band is not None:
        causal = band[1] == 0 and band[0] == mask.shape[-1] - 1
        return given | ({name: None, "is_causal": True} if causal else {name: band})
    return given | {name: KnownTensor(seen, seen.shape, BOOL)}


ATTENTION = (
    row("scaled_dot_product_attention.default",
        "query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False", attention,
        known=with_known_mask),
    row("_scaled_dot_product_flash_attention_for_cpu.default",
        "query, key, value, dropout_p=0.0, is_causal=False, attn_mask=None, scale=None",
        lambda query, key, value, dropout_p, is_causal, attn_mask, scale: with_statistics(
            query, key, value, attn_mask, dropout_p, is_causal, scale), known=with_known_mask),
    row("_scaled_dot_product_flash_attention.default",
        "query, key, value, dropout_p=0.0, is_causal=False, -return_debug_mask=False, scale=None",
        lambda query, key, value, dropout_p, is_causal, scale: with_statistics(
            query, key, value, None, dropout_p, is_causal, scale)),
    row("_scaled_dot_product_efficient_attention.default",
        "query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, scale=None",
        lambda query, key, value, mask, is_computed, *settings: in_blocks(
            with_statistics(query, key, value, mask, *settings), is_computed), known=with_known_mask),
    row("_scaled_dot_product_cudnn_attention.default",
        "query, key, value, attn_bias, -compute_log_sumexp, dropout_p=0.0, is_causal=False, -return_debug_mask=False, "
        "scale=None", lambda *given: in_columns(with_statistics(*given)), known=with_known_mask),
    row("_scaled_dot_product_flash_attention_for_cpu_backward.default",
        "grad_out, query, key, value, out, logsumexp, !dropout_p=0.0, is_causal, attn_mask=None, scale=None",
        lambda dout, query, key, value, out, logsumexp, is_causal, mask, scale: attention_gradients(
            dout, query, key, value, mask, out, logsumexp, is_causal, scale)[:3], known=with_known_mask),
    row("_scaled_dot_product_flash_attention_backward.default",
        "grad_out, query, key, value, out, logsumexp, -cum_seq_q, -cum_seq_k, -max_q, -max_k, !dropout_p=0.0, "
        "is_causal, -philox_seed, -philox_offset, scale=None",
        lambda dout, query, key, value, out, logsumexp, is_causal, scale: attention_gradients(
            dout, query, key, value, None, out, logsumexp, is_causal, scale)[:3]),
    row("_scaled_dot_product_cudnn_attention_backward.default",
        "grad_out, query, key, value, out, logsumexp, -philox_seed, -philox_offset, attn_bias, -cum_seq_q, -cum_seq_k, "
        "-max_q, -max_k, !dropout_p=0.0, is_causal, scale=None",
        lambda dout, query, key, value, out, logsumexp, mask, is_causal, scale: attention_gradients(
            dout, query, key, value, mask, out, logsumexp, is_causal, scale)[:3]),
    row("_scaled_dot_product_efficient_attention_backward.default",
        "grad_out_, query, key, value, attn_bias, out, logsumexp, -philox_seed, -philox_offset, !dropout_p=0.0, "
        "-grad_input_mask, is_causal=False, scale=None", attention_gradients, known=with_known_mask),
)  # fmt: skip
"""Kinds of attention."""
