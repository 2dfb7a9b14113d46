"""These metrics measure how alike sets and rows are."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.train.metrics.metric import Metric, OfPairs, rearrange_inputs

__all__ = ["CosineSimilarity", "Dice"]


class Dice(OfPairs):
    """Sum over batches of 2 (predictions * labels) / (predictions^2 + labels^2 + smooth), over the number of rows."""

    def __init__(self, smooth: float = 1e-5) -> None:
        super().__init__()
        if isinstance(smooth, bool) or not isinstance(smooth, int | float) or not smooth > 0:
            raise ApiValueError(f"Dice: smooth {smooth!r} must be a number above 0")
        self.smooth = smooth
        self.clear()

    def clear(self) -> None:
        self._total = 0.0
        self._count = 0

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        predicted, labels = self._two(inputs)
        if predicted.shape != labels.shape:
            raise ApiValueError(f"Dice.update: predictions have shape {predicted.shape}, labels {labels.shape}")
        first, second = (a.reshape(-1).astype(np.float64) for a in (predicted, labels))
        self._total += 2 * float(first @ second) / (float(first @ first + second @ second) + self.smooth)
        self._count += labels.shape[0]

    def eval(self) -> float:
        if not self._count:
            raise self._no_sample()
        return self._total / self._count


class CosineSimilarity(Metric):
    """The products [n, n] of the rows of the last batch with each other.

    Args:
        similarity: "cosine" divides rows by their lengths first, "dot" does not.
        reduction: "sum" or "mean" over the last dimension, or "none". zero_diagonal: a row's product with itself is 0.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind.
    """

    def __init__(self, similarity: str = "cosine", reduction: str = "none", zero_diagonal: bool = True) -> None:
        super().__init__()
        if similarity not in ("dot", "cosine"):
            raise ApiValueError(f"CosineSimilarity: similarity {similarity!r} is neither 'dot' nor 'cosine'")
        if reduction not in ("none", "sum", "mean"):
            raise ApiValueError(f"CosineSimilarity: reduction {reduction!r} is none of 'none', 'sum', 'mean'")
        if not isinstance(zero_diagonal, bool):
            raise ApiTypeError(f"CosineSimilarity: zero_diagonal must be True or False, not {zero_diagonal!r}")
        self.similarity = similarity
        self.reduction = reduction
        self.zero_diagonal = zero_diagonal
        self.clear()

    def clear(self) -> None:
        self._products: np.ndarray | None = None

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        rows = self._convert_data(inputs[0]) if len(inputs) == 1 else None
        if rows is None or rows.ndim != 2:
            raise ApiValueError("CosineSimilarity.update takes 1 input, rows [n, size]")
        if self.similarity == "cosine":
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        self._products = rows @ rows.T

    def eval(self) -> np.ndarray:
        if self._products is None:
            raise self._no_sample()
        found = self._products.copy()
        if self.zero_diagonal:
            np.fill_diagonal(found, 0)
        return {"none": found, "sum": found.sum(axis=-1), "mean": found.mean(axis=-1)}[self.reduction]
