"""Kinds of ATen that reduce dimensions: sums, sorts, scans and losses."""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.types import BOOL, FLOAT32, HALVES, INT64, real_of
from mspc.mindspore_api import mint, ops
from mspc.mindspore_api.mint.functions import as_dtype
from mspc.mindspore_api.mint.nn import functional
from mspc.readers.pytorch.kinds.complex_numbers import of_either
from mspc.readers.pytorch.kinds.creation import with_gradient_of
from mspc.readers.pytorch.kinds.indexing import counts_of_integers, multiplied
from mspc.readers.pytorch.kinds.kind import row


def axes(dim: Any) -> Any:
    """Dimensions as operators take them: none are all."""
    return () if dim is None else dim if isinstance(dim, int) else tuple(dim)


def total(self: Any, dim: Any = None, keepdim: Any = False, dtype: Any = None) -> Any:
    """Return the sum; integers and Bool add up to Int64."""
    counts_whole = dtype is None and not (self.dtype.is_float or self.dtype.is_complex)
    x = ops.cast(self, INT64) if counts_whole else as_dtype(self, dtype)
    return ops.ReduceSum(keepdim)(x, axes(dim))


def mean(self: Any, dim: Any = None, keepdim: Any = False, dtype: Any = None) -> Any:
    """Return the mean."""
    if self.dtype.is_complex:
        parts = [mean(each(self), dim, keepdim) for each in (ops.Real(), ops.Imag())]
        return ops.Complex()(parts[0], parts[1])
    return ops.ReduceMean(keepdim)(as_dtype(self, dtype), axes(dim))


def spread(self: Any, dim: Any, correction: Any, keepdim: Any) -> Any:
    """Return the variance: the sum of squared deviations over their number less `correction`, at least 0."""
    along = axes(dim) if dim is not None else ()
    if self.dtype.is_complex:
        parts = [spread(each(self), dim, correction, keepdim) for each in (ops.Real(), ops.Imag())]
        return parts[0] + parts[1]
    less = 1 if correction is None else correction
    dims = (along,) if isinstance(along, int) else along or tuple(range(len(self.shape)))
    count = math.prod([self.shape[d] for d in dims])
    if less == int(less) and less < count:
        return ops.var(self, None if dim is None else along, int(less), keepdim)
    scale = count / (count - less) if less < count else math.inf
    return ops.var(self, None if dim is None else along, 0, keepdim) * scale


def root(self: Any) -> Any:
    """Return the root of a variance; if that is 0 no gradient goes through."""
    nothing = ops.Equal()(self, 0)
    return ops.where(nothing, ops.zeros_like(self), ops.Sqrt()(ops.where(nothing, ops.ones_like(self), self)))


def median_of_all(self: Any) -> Any:
    """Return the median; all elements that are as large have an equal part of its gradient."""
    found = ops.stop_gradient(mint.median(self))
    if not self.dtype.is_float:
        return found
    same = ops.Equal()(self, found)
    total_of_same = ops.ReduceSum()(ops.where(same, self, ops.zeros_like(self)))
    return with_gradient_of(total_of_same / ops.ReduceSum()(ops.cast(same, self.dtype)), found)


def vector_norm(self: Any, ord: Any, dim: Any, keepdim: Any, dtype: Any = None) -> Any:
    self = ops.ComplexAbs()(self) if self.dtype.is_complex else self
    size = as_dtype(self, None if dtype is None else real_of(dtype))
    return ops.vector_norm(size, ord, None if dim is None else axes(dim), keepdim)


def log_of_sum(self: Any, dim: Any, keepdim: Any) -> Any:
    """Return the logarithm of the sum of exponentials; of complex numbers beside the greatest real part."""
    if not self.dtype.is_complex:
        return ops.logsumexp(self, axes(dim), keepdim)
    most = ops.stop_gradient(ops.ReduceMax(True)(ops.Real()(self), axes(dim)))
    most = ops.where(ops.IsFinite()(most), most, ops.zeros_like(most))
    found = of_either(ops.Exp(), "exp")(self - most)
    return of_either(ops.Log(), "log")(ops.ReduceSum(keepdim)(found, axes(dim))) + (
        most if keepdim else ops.ReduceSum()(most, axes(dim)))  # fmt: skip


def in_order(self: Any, dim: Any, descending: Any, stable: Any = None) -> Any:
    """Return (sorted elements, their places)."""
    return ops.SortExt()(self, dim, descending, True)


def counts(self: Any, bins: Any, min: Any, max: Any) -> Any:
    """Return how many elements lie in each of so many equal parts of min to max; of the last part the end belongs to
    it."""
    if not self.size:
        return ops.zeros((bins,), self.dtype)
    wide = ops.cast(self, FLOAT32) if self.dtype in HALVES else self
    if min >= max:
        return ops.cast(ops.histc(wide, bins, min, max), self.dtype)
    x = ops.Reshape()(wide, (-1, 1))
    place = ops.Floor()((x - min) * (bins / (max - min)))
    place = ops.where(ops.Equal()(x, max), ops.full_like(place, bins - 1), place)
    parts = ops.cast(ops.arange(0, bins, 1), place.dtype)
    return ops.cast(ops.ReduceSum()(ops.cast(ops.Equal()(place, parts), INT64), 0), self.dtype)


def ends(self: Any, dim: Any, keepdim: Any) -> Any:
    """Return the least and the greatest number."""
    along = () if dim is None else (dim,)
    return ops.ReduceMin(keepdim)(self, along), ops.ReduceMax(keepdim)(self, along)


def differences(self: Any, n: Any, dim: Any, prepend: Any, append: Any) -> Any:
    """Return the differences of neighbours along a dimension, n times."""
    place = dim % len(self.shape)
    whole = [x for x in (prepend, self, append) if x is not None and x.shape[place]] if n else [self]
    found = whole[0] if len(whole) == 1 else ops.Concat(place)(whole) if whole else self
    size = found.shape[place]
    if n >= size:
        return ops.zeros((*found.shape[:place], 0, *found.shape[place + 1 :]), found.dtype) if n else found
    if found.dtype == BOOL:
        for step in range(n):
            rows = size - 1 - step
            found = ops.NotEqual()(mint.narrow(found, place, 1, rows), mint.narrow(found, place, 0, rows))
        return found
    return ops.diff(found, n, place)


def of_truths_along(operator: Any) -> Any:
    """Return a reduction of truths along dimensions."""
    return lambda self, dim, keepdim: operator(keepdim)(ops.cast(self, BOOL), axes(dim))


REDUCTIONS = (
    row("aminmax.default", "self, dim=None, keepdim=False", ends),
    row("nanmean.default", "self, dim=None, keepdim=False, dtype=None",
        lambda self, dim, keepdim, dtype: ops.nanmean(self, dim, keepdim, dtype=dtype)),
    row("logcumsumexp.default", "self, dim", ops.logcumsumexp),
    row("msort.default", "self", lambda self: in_order(self, 0, False)[0]),
    row("sum.default", "self, dtype=None", lambda self, dtype: total(self, None, False, dtype)),
    row("sum.dim_IntList", "self, dim, keepdim=False, dtype=None", total),
    row("mean.default", "self, dtype=None", lambda self, dtype: mean(self, None, False, dtype)),
    row("mean.dim", "self, dim, keepdim=False, dtype=None", mean),
    row("prod.default", "self, dtype=None",
        lambda self, dtype: multiplied(ops.Reshape()(self, (-1,)), 0, False, dtype)),
    row("prod.dim_int", "self, dim, keepdim=False, dtype=None", multiplied),
    *(each
      for name, function in (
          ("var", spread), ("std", lambda *given: root(spread(*given))),
          ("var_mean", lambda self, dim, correction, keepdim: (
              spread(self, dim, correction, keepdim), mean(self, dim, keepdim))),
          ("std_mean", lambda self, dim, correction, keepdim: (
              root(spread(self, dim, correction, keepdim)), mean(self, dim, keepdim))),
      )
      for each in (
          row(f"{name}.correction", "self, dim=None, correction=None, keepdim=False", function),
          row(f"{name}.dim", "self, dim, unbiased=True, keepdim=False", lambda self, dim, unbiased, keepdim,
              function=function: function(self, dim, int(unbiased), keepdim)),
          row(f"{name}.default", "self, unbiased=True",
              lambda self, unbiased, function=function: function(self, None, int(unbiased), False)),
      )),
    row("amax.default", "self, dim=(), keepdim=False",
        lambda self, dim, keepdim: ops.ReduceMax(keepdim)(self, axes(dim))),
    row("amin.default", "self, dim=(), keepdim=False",
        lambda self, dim, keepdim: ops.ReduceMin(keepdim)(self, axes(dim))),
    row("max.default", "self", lambda self: ops.ReduceMax()(self)),
    row("min.default", "self", lambda self: ops.ReduceMin()(self)),
    row("max.dim", "self, dim, keepdim=False", lambda self, dim, keepdim: ops.MaxDim()(self, dim, keepdim)),
    row("min.dim", "self, dim, keepdim=False", lambda self, dim, keepdim: ops.MinDim()(self, dim, keepdim)),
    row("argmax.default", "self, dim=None, keepdim=False", mint.argmax),
    row("argmin.default", "self, dim=None, keepdim=False", mint.argmin),
    *(each for name, operator in (("all", ops.ReduceAll), ("any", ops.ReduceAny)) for each in (
        row(f"{name}.default", "self", lambda self, operator=operator: operator()(ops.cast(self, BOOL))),
        row(f"{name}.dim", "self, dim, keepdim=False", of_truths_along(operator)),
        row(f"{name}.dims", "self, dim=None, keepdim=False", of_truths_along(operator)))),
    row("norm.ScalarOpt_dim", "self, p, dim, keepdim=False", vector_norm),
    row("linalg_vector_norm.default", "self, ord=2, dim=None, keepdim=False, dtype=None", vector_norm),
    row("norm.ScalarOpt_dim_dtype", "self, p, dim, keepdim, dtype", vector_norm),
    row("norm.ScalarOpt_dtype", "self, p, dtype", lambda self, p, dtype: vector_norm(self, p, None, False, dtype)),
    row("norm.Scalar", "self, p=2", lambda self, p: vector_norm(self, p, None, False)),
    row("median.default", "self", median_of_all),
    row("median.dim", "self, dim, keepdim=False", mint.median),
    row("kthvalue.default", "self, k, dim=-1, keepdim=False", mint.kthvalue),
    row("cummax.default", "self, dim", mint.cummax),
    row("cummin.default", "self, dim", mint.cummin),
    row("nansum.default", "self, dim=None, keepdim=False, dtype=None",
        lambda self, dim, keepdim, dtype: mint.nansum(self, dim, keepdim, dtype=dtype)),
    row("logsumexp.default", "self, dim, keepdim=False", log_of_sum),
    row("cumsum.default", "self, dim, dtype=None", mint.cumsum),
    row("cumprod.default", "self, dim, dtype=None", lambda self, dim, dtype: mint.cumprod(self, dim, dtype)
        if not self.dtype.is_complex else ops.LibraryFunction("complex_cumprod", (dim % len(self.shape),))(self)),
    row("diff.default", "self, n=1, dim=-1, prepend=None, append=None", differences),
    row("sort.default", "self, dim=-1, descending=False", in_order),
    row("sort.stable", "self, stable, dim=-1, descending=False",
        lambda self, stable, dim, descending: in_order(self, dim, descending)),
    row("argsort.default", "self, dim=-1, descending=False",
        lambda self, dim, descending: in_order(self, dim, descending)[1]),
    row("argsort.stable", "self, stable, dim=-1, descending=False",
        lambda self, stable, dim, descending: in_order(self, dim, descending)[1]),
    row("topk.default", "self, k, dim=-1, largest=True, sorted=True", mint.topk),
    row("histc.default", "self, bins=100, min=0, max=0", counts),
    row("bincount.default", "self, weights=None, minlength=0, bound=None", counts_of_integers, is_counted=True),
    row("count_nonzero.default", "self, dim=None", mint.count_nonzero),
)  # fmt: skip
"""Kinds of sums, extrema and orders."""


# `reduction` of a loss is 0 for every element, 1 for the mean, 2 for the sum.


def reduced(reduction: Any) -> Any:
    """Return the name of a reduction."""
    return ("none", "mean", "sum")[reduction]


def of_target(loss: Any) -> Any:
    """Return a loss of results and targets alone, by the number of its reduction."""
    return lambda self, target, reduction: loss(self, target, reduced(reduction))


def in_rows(loss: Any, self: Any, target: Any, labels: Any, reduction: Any) -> Any:
    """Return a loss of rows, also of one row, or one number, without a batch. labels: the shape of one row's target."""
    if len(self.shape) > 1:
        return loss(self, target)
    found = loss(ops.Reshape()(self, (1, -1)), ops.Reshape()(target, labels))
    return found if reduction else ops.Reshape()(found, target.shape if len(labels) == 1 else ())


def of_each(found: Any, reduction: Any) -> Any:
    """Return the losses of all elements, their mean or their sum."""
    return (found, ops.ReduceMean()(found), ops.ReduceSum()(found))[reduction] if reduction else found


def weight_of(self: Any, target: Any, weight: Any, reduction: Any, ignored: Any) -> Any:
    """Return the sum of the weights of all labels that are not ignored, 0 for losses without a reduction."""
    if reduction == 0:
        return ops.zeros((), self.dtype)
    seen = ops.NotEqual()(target, ignored)
    labels = ops.where(seen, target, ops.zeros_like(target))
    each = ops.ones(target.shape, self.dtype) if weight is None else ops.Gather()(weight, labels, 0)
    return ops.ReduceSum()(ops.where(seen, each, ops.zeros_like(each)))


def divergence(self: Any, target: Any, reduction: Any, log_target: Any) -> Any:
    """target (log target - self), which is differentiated by both; a target of 0 adds nothing."""
    if log_target:
        return of_each(ops.Exp()(target) * (target - self), reduction)
    return of_each(ops.xlogy(target, target) - target * self, reduction)


def of_counts(self: Any, target: Any, log_input: Any, full: Any, eps: Any, reduction: Any) -> Any:
    """Return the negative logarithm of a Poisson distribution; full: with Stirling's term for the logarithm of a
    factorial."""
    loss = ops.Exp()(self) - target * self if log_input else self - target * ops.Log()(self + eps)
    if full:
        several = ops.maximum(target, ops.ones_like(target))
        factorial = several * ops.Log()(several) - several + 0.5 * ops.Log()(6.283185307179586 * several)
        loss = loss + ops.where(ops.Greater()(target, 1), factorial, ops.zeros_like(target))
    return of_each(loss, reduction)


def of_truths(self: Any, target: Any, weight: Any, reduction: Any) -> Any:
    """Binary cross entropy, which is differentiated by the target, too."""
    loss = functional.binary_cross_entropy(self, target, weight, "none")
    other = ops.stop_gradient(ops.clamp(ops.Log1p()(-self), -100.0) - ops.clamp(ops.Log()(self), -100.0))
    moved = (target - ops.stop_gradient(target)) * (other if weight is None else other * weight)
    return of_each(loss + moved, reduction)


def of_triplets(
    anchor: Any, positive: Any, negative: Any, margin: Any, p: Any, eps: Any, swap: Any, reduction: Any
) -> Any:
    """Return the loss of distances that are not less than others by a margin; swap: the nearer one of two others."""
    near, far = [vector_norm(anchor - each + eps, p, -1, False) for each in (positive, negative)]
    if swap:
        far = ops.Minimum()(far, vector_norm(positive - negative + eps, p, -1, False))
    return of_each(ops.clamp(near - far + margin, 0.0), reduction)


LOSSES = (
    row("cross_entropy_loss.default", "self, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0",
        lambda self, target, weight, reduction, ignored, smoothing: functional.cross_entropy(
            self, target, weight, ignored, reduced(reduction), smoothing)),
    row("nll_loss.default nll_loss_nd.default nll_loss2d.default",
        "self, target, weight=None, reduction=1, ignore_index=-100",
        lambda self, target, weight, reduction, ignored: functional.nll_loss(
            self, target, weight, ignored, reduced(reduction))),
    row("mse_loss.default", "self, target, reduction=1", of_target(functional.mse_loss)),
    row("l1_loss.default", "self, target, reduction=1", of_target(functional.l1_loss)),
    row("smooth_l1_loss.default", "self, target, reduction=1, beta=1.0",
        lambda self, target, reduction, beta: functional.smooth_l1_loss(self, target, reduced(reduction), beta)),
    row("binary_cross_entropy.default", "self, target, weight=None, reduction=1", of_truths),
    row("binary_cross_entropy_with_logits.default", "self, target, weight=None, pos_weight=None, reduction=1",
        lambda self, target, weight, pos_weight, reduction: functional.binary_cross_entropy_with_logits(
            self, target, weight, reduced(reduction), pos_weight)),
    row("huber_loss.default", "self, target, reduction=1, delta=1.0",
        lambda self, target, reduction, delta: ops.huber_loss(self, target, reduced(reduction), delta)),
    row("soft_margin_loss.default", "self, target, reduction=1", of_target(functional.soft_margin_loss)),
    row("nll_loss_forward.default nll_loss2d_forward.default", "self, target, weight, reduction, ignore_index",
        lambda self, target, weight, reduction, ignored: (functional.nll_loss(
            self, target, weight, ignored, reduced(reduction)), weight_of(self, target, weight, reduction, ignored))),
    row("kl_div.default", "self, target, reduction=1, log_target=False", divergence),
    row("poisson_nll_loss.default", "input, target, log_input, full, eps, reduction", of_counts),
    row("margin_ranking_loss.default", "input1, input2, target, margin=0.0, reduction=1",
        lambda first, second, target, margin, reduction: of_each(  # at the margin itself there is a gradient
            ops.clamp(margin - target * (first - second), 0.0), reduction)),
    row("hinge_embedding_loss.default", "self, target, margin=1.0, reduction=1",
        lambda self, target, margin, reduction: ops.hinge_embedding_loss(
            self, target, float(margin), reduced(reduction))),
    row("cosine_embedding_loss.default", "input1, input2, target, margin=0.0, reduction=1",
        lambda first, second, target, margin, reduction: ops.cosine_embedding_loss(
            first, second, target, float(margin), reduced(reduction))),
    row("triplet_margin_loss.default",
        "anchor, positive, negative, margin=1.0, p=2.0, eps=1e-06, swap=False, reduction=1", of_triplets),
    row("multi_margin_loss.default", "self, target, p=1, margin=1, weight=None, reduction=1",
        lambda self, target, p, margin, weight, reduction: in_rows(
            lambda rows, labels: ops.multi_margin_loss(rows, labels, p, margin, weight, reduced(reduction)),
            self, target, (1,), reduction)),
    row("multilabel_margin_loss.default", "self, target, reduction=1", lambda self, target, reduction: in_rows(
        lambda rows, labels: ops.multilabel_margin_loss(rows, labels, reduced(reduction)), self, target, (1, -1),
        reduction)),
)  # fmt: skip
"""Kinds of losses."""
