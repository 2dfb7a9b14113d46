"""Kinds of losses. `reduction` is 0 for every element, 1 for the mean, 2 for the sum."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.mint.nn import functional
from mspc.readers.pytorch.kinds.kind import row


def reduced(reduction: Any) -> Any:
    """The name of a reduction."""
    return ("none", "mean", "sum")[reduction]


def of_each(found: Any, reduction: Any) -> Any:
    """The losses of all elements, their mean or their sum."""
    return (found, ops.ReduceMean()(found), ops.ReduceSum()(found))[reduction] if reduction else found


def divergence(self: Any, target: Any, reduction: Any, log_target: Any) -> Any:
    """target (log target - self), which is differentiated by both; a target of 0 adds nothing."""
    if log_target:
        return of_each(ops.Exp()(target) * (target - self), reduction)
    return of_each(ops.xlogy(target, target) - target * self, reduction)


def of_counts(self: Any, target: Any, log_input: Any, full: Any, eps: Any, reduction: Any) -> Any:
    """The negative logarithm of a Poisson distribution; full: with Stirling's term for the logarithm of a factorial."""
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


LOSSES = (
    row("cross_entropy_loss.default", "self, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0",
        lambda self, target, weight, reduction, ignored, smoothing: functional.cross_entropy(
            self, target, weight, ignored, reduced(reduction), smoothing)),
    row("nll_loss.default nll_loss_nd.default", "self, target, weight=None, reduction=1, ignore_index=-100",
        lambda self, target, weight, reduction, ignored: functional.nll_loss(
            self, target, weight, ignored, reduced(reduction))),
    row("mse_loss.default", "self, target, reduction=1",
        lambda self, target, reduction: functional.mse_loss(self, target, reduced(reduction))),
    row("l1_loss.default", "self, target, reduction=1",
        lambda self, target, reduction: functional.l1_loss(self, target, reduced(reduction))),
    row("smooth_l1_loss.default", "self, target, reduction=1, beta=1.0",
        lambda self, target, reduction, beta: functional.smooth_l1_loss(self, target, reduced(reduction), beta)),
    row("binary_cross_entropy.default", "self, target, weight=None, reduction=1",
        of_truths),
    row("binary_cross_entropy_with_logits.default", "self, target, weight=None, pos_weight=None, reduction=1",
        lambda self, target, weight, pos_weight, reduction: functional.binary_cross_entropy_with_logits(
            self, target, weight, reduced(reduction), pos_weight)),
    row("huber_loss.default", "self, target, reduction=1, delta=1.0",
        lambda self, target, reduction, delta: ops.huber_loss(self, target, reduced(reduction), delta)),
    row("soft_margin_loss.default", "self, target, reduction=1",
        lambda self, target, reduction: functional.soft_margin_loss(self, target, reduced(reduction))),
    row("nll_loss2d.default", "self, target, weight=None, reduction=1, ignore_index=-100",
        lambda self, target, weight, reduction, ignored: functional.nll_loss(
            self, target, weight, ignored, reduced(reduction))),
    row("nll_loss_forward.default nll_loss2d_forward.default", "self, target, weight, reduction, ignore_index",
        lambda self, target, weight, reduction, ignored: (functional.nll_loss(
            self, target, weight, ignored, reduced(reduction)), None)),
    row("kl_div.default", "self, target, reduction=1, log_target=False",
        divergence),
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
        "anchor, positive, negative, margin=1.0, p=2.0, eps=1e-06, swap=False, reduction=1",
        lambda anchor, positive, negative, margin, p, eps, swap, reduction: ops.triplet_margin_loss(
            anchor, positive, negative, float(margin), float(p), eps, swap, reduced(reduction))),
    row("multi_margin_loss.default", "self, target, p=1, margin=1, weight=None, reduction=1",
        lambda self, target, p, margin, weight, reduction: ops.multi_margin_loss(
            self, target, p, margin, weight, reduced(reduction))),
    row("multilabel_margin_loss.default", "self, target, reduction=1",
        lambda self, target, reduction: ops.multilabel_margin_loss(self, target, reduced(reduction))),
)  # fmt: skip
"""Kinds of losses."""
