"""These losses want a class to be ahead of the others by a margin; they are cells."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.nn.loss import LossBase


class MultiMarginLoss(LossBase):
    """max(0, margin - own + other)^p over the other classes, see `ops.multi_margin_loss`; the weight of a call comes
    before that of the cell."""

    def __init__(self, p: int = 1, margin: float = 1.0, reduction: str = "mean", weight: Any = None) -> None:
        super().__init__(reduction)
        self.p, self.margin, self.weight = p, margin, weight

    def construct(self, x: Any, target: Any, weight: Any = None) -> Any:
        weight = self.weight if weight is None else weight
        return ops.multi_margin_loss(x, target, self.p, self.margin, weight, self.reduction)


class MultilabelMarginLoss(LossBase):
    """max(0, 1 - own + other) over pairs of a row's classes and all others, see `ops.multilabel_margin_loss`."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def construct(self, x: Any, target: Any) -> Any:
        return ops.multilabel_margin_loss(x, target, self.reduction)
