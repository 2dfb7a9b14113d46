"""These metrics are means over samples: errors, losses, perplexity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.train.metrics.metric import Metric, OfPairs, check_classes, rearrange_inputs

__all__ = ["MAE", "MSE", "Loss", "Perplexity"]


class _Mean(Metric):
    """A sum over samples, divided by their number."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        self._total = 0.0
        self._count = 0

    def eval(self) -> float:
        if not self._count:
            raise self._no_sample()
        return self._total / self._count


class Loss(_Mean):
    """Mean of the batches' losses."""

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        if len(inputs) != 1:
            raise ApiValueError(f"Loss.update takes 1 input, the loss of a batch, not {len(inputs)}")
        self._total += float(self._convert_data(inputs[0]).mean(dtype=np.float64))
        self._count += 1


class _Errors(_Mean, OfPairs):
    """Of predictions and labels of one size."""

    def _differences(self, inputs: tuple[Any, ...]) -> np.ndarray:
        """labels - predictions, and one sample more for every row. Raises ValueError where they are not as many."""
        predicted, labels = self._two(inputs)
        if predicted.size != labels.size:
            raise ApiValueError(
                f"{type(self).__name__}.update: predictions have shape {predicted.shape}, labels {labels.shape}"
            )
        self._count += labels.shape[0]
        return labels.reshape(predicted.shape).astype(np.float64) - predicted.astype(np.float64)


class MSE(_Errors):
    """Sum of squared errors over the number of rows."""

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        self._total += float(np.square(self._differences(inputs)).sum())


class MAE(_Errors):
    """Sum of absolute errors over the number of rows."""

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        self._total += float(np.abs(self._differences(inputs)).sum())


class Perplexity(_Mean, OfPairs):
    """exp of the mean of -log of the probabilities that were given to the labels.

    Probabilities are [..., classes], labels [...]; those of `ignore_label` do not count. Probabilities below 1e-10
    count as that.
    """

    def __init__(self, ignore_label: int | None = None) -> None:
        if ignore_label is not None and (isinstance(ignore_label, bool) or not isinstance(ignore_label, int)):
            raise ApiTypeError(f"Perplexity: ignore_label must be an integer or None, not {ignore_label!r}")
        self.ignore_label = ignore_label
        super().__init__()

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        given, labels = self._two(inputs)
        classes = given.shape[-1]
        if labels.size * classes != given.size:
            raise ApiValueError(
                f"Perplexity.update: probabilities have shape {given.shape}, labels {labels.shape}; "
                "for probabilities [..., classes] labels are [...]"
            )
        flat = labels.reshape(-1)
        counted = np.ones(flat.shape, bool) if self.ignore_label is None else flat != self.ignore_label
        numbers = check_classes(self, flat[counted], classes)
        chosen = given.reshape(-1, classes)[counted, numbers].astype(np.float64)
        self._total -= float(np.log(np.maximum(1e-10, chosen)).sum())
        self._count += numbers.size

    def eval(self) -> float:
        return math.exp(super().eval())
