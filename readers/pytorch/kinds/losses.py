"""Kinds of losses. `reduction` is 0 for every element, 1 for the mean, 2 for the sum."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.mint.nn import functional
from mspc.readers.pytorch.kinds.kind import row


def reduced(reduction: Any) -> Any:
    """The name of a reduction."""
    return ("none", "mean", "sum")[reduction]


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
        lambda self, target, weight, reduction: functional.binary_cross_entropy(
            self, target, weight, reduced(reduction))),
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
        lambda self, target, reduction, log_target: functional.kl_div(self, target, reduced(reduction), log_target)),
)  # fmt: skip
"""Kinds of losses."""
