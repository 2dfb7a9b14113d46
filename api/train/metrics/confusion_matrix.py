"""A confusion matrix counts how often samples of one class were taken for another; further metrics follow from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.api.train.metrics.metric import OfPairs, check_classes, is_binary, rearrange_inputs
from mspc.api.train.metrics.rates import rate_named

__all__ = ["ConfusionMatrix", "ConfusionMatrixMetric"]

_OVER: dict[str, Any] = {"no_norm": None, "target": {"axis": 1}, "prediction": {"axis": 0}, "all": {"axis": (0, 1)}}
DECREASES = ("none", "mean", "sum", "mean_batch", "sum_batch", "mean_channel", "sum_channel")


class ConfusionMatrix(OfPairs):
    """Counts [labels, predictions] of classes.

    Predictions are classes, or [n, classes, ...] of which the likeliest counts; floating-point ones of the labels'
    shape are probabilities of class 1, chosen from `threshold` on.

    Args:
        normalize: "target" divides by the rows' sums, "prediction" by the columns', "all" by the number of samples;
            "no_norm" leaves counts.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind.
    """

    def __init__(self, num_classes: int, normalize: str = "no_norm", threshold: float = 0.5) -> None:
        super().__init__()
        if isinstance(num_classes, bool) or not isinstance(num_classes, int):
            raise ApiTypeError(f"ConfusionMatrix: num_classes must be an integer, not {num_classes!r}")
        if num_classes < 1:
            raise ApiValueError(f"ConfusionMatrix: num_classes {num_classes} must be at least 1")
        if normalize not in _OVER:
            raise ApiValueError(f"ConfusionMatrix: normalize {normalize!r} is not one of {', '.join(map(repr, _OVER))}")
        if not isinstance(threshold, float):
            raise ApiTypeError(f"ConfusionMatrix: threshold must be a float, not {threshold!r}")
        self.num_classes = num_classes
        self.normalize = normalize
        self.threshold = threshold
        self.clear()

    def clear(self) -> None:
        self.confusion_matrix = np.zeros((self.num_classes, self.num_classes))
        self._updated = False

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        predicted, labels = self._two(inputs)
        if predicted.ndim == labels.ndim + 1:
            predicted = predicted.argmax(axis=1)
        elif np.issubdtype(predicted.dtype, np.floating):
            predicted = predicted >= self.threshold
        if predicted.shape != labels.shape:
            raise ApiValueError(
                f"ConfusionMatrix.update: classes predicted have shape {predicted.shape}, labels {labels.shape}"
            )
        there, chosen = (check_classes(self, numbers.reshape(-1), self.num_classes) for numbers in (labels, predicted))
        counts = np.bincount(there * self.num_classes + chosen, minlength=self.num_classes**2)
        self.confusion_matrix += counts.reshape(self.num_classes, self.num_classes)
        self._updated = True

    def eval(self) -> np.ndarray:
        if not self._updated:
            raise self._no_sample()
        over = _OVER[self.normalize]
        if over is None:
            return self.confusion_matrix.copy()
        sums = self.confusion_matrix.sum(**over, keepdims=True)
        return np.divide(self.confusion_matrix, sums, out=np.zeros_like(self.confusion_matrix), where=sums != 0)


class ConfusionMatrixMetric(OfPairs):
    """A number made of true and false positives and negatives; predictions and labels are zeros and ones
    [n, channels, ...].

    Args:
        skip_channel: False leaves the first of several channels out.
        metric_name: "sensitivity", "specificity", "precision", "f1 score", ...: the usual names of such rates.
        calculation_method: True makes the number for every sample and channel and then takes the mean; False makes
            it of the counts of all samples.
        decrease: how the numbers of samples and channels are put together: "mean" or "sum".

    Raises:
        TypeError, ValueError: an argument is of the wrong kind, or there is no such rate.
    """

    def __init__(
        self, skip_channel: bool = True, metric_name: str = "sensitivity", calculation_method: bool = False,
        decrease: str = "mean",
    ) -> None:  # fmt: skip
        super().__init__()
        name = "ConfusionMatrixMetric"
        for what, value in (("skip_channel", skip_channel), ("calculation_method", calculation_method)):
            if not isinstance(value, bool):
                raise ApiTypeError(f"{name}: {what} must be True or False, not {value!r}")
        if not isinstance(metric_name, str):
            raise ApiTypeError(f"{name}: metric_name must be a string, not {metric_name!r}")
        if decrease not in DECREASES:
            raise ApiValueError(f"{name}: decrease {decrease!r} is not one of {', '.join(map(repr, DECREASES))}")
        if calculation_method and decrease not in ("mean", "sum"):
            raise ApiValueError(f"{name}: decrease={decrease!r} leaves no single number; use 'mean' or 'sum'")
        self.skip_channel = skip_channel
        self.metric_name = metric_name
        self.calculation_method = calculation_method
        self.decrease = decrease
        self._rate = rate_named(metric_name)
        self.clear()

    def clear(self) -> None:
        self._counts = np.zeros(4)
        self._total = 0.0
        self._weight = 0.0
        self._updated = False

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        predicted, labels = self._two(inputs)
        if predicted.shape != labels.shape or predicted.ndim < 2:
            raise ApiValueError(
                f"ConfusionMatrixMetric.update: predictions have shape {predicted.shape}, labels {labels.shape}; "
                "both are [n, channels, ...]"
            )
        if not is_binary(labels):
            raise ApiValueError("ConfusionMatrixMetric.update: all labels are 0 or 1")
        counts = self._counted(predicted, labels)
        self._updated = True
        single = predicted.ndim == 2 or (predicted.ndim == 3 and predicted.shape[-1] == 1)
        if not self.calculation_method or single:
            self._counts += counts.sum(axis=(0, 1))
            return
        numbers = self._rate(counts)
        value, weight = _mean(numbers) if self.decrease == "mean" else (np.nansum(numbers), (~np.isnan(numbers)).sum())
        self._total += float(value) * float(weight)
        self._weight += float(weight)

    def _counted(self, predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """[n, channels, 4]: true positives, false positives, true negatives, false negatives."""
        if not self.skip_channel and predicted.shape[1] > 1:
            predicted, labels = predicted[:, 1:], labels[:, 1:]
        chosen, there = (a.reshape(*a.shape[:2], -1).astype(np.float64) for a in (predicted, labels))
        right, wrong = (chosen + there == 2).sum(axis=2), (chosen + there == 0).sum(axis=2)
        positives = there.sum(axis=2)
        return np.stack([right, there.shape[2] - positives - wrong, wrong, positives - right], axis=-1)

    def eval(self) -> Any:
        if not self._updated:
            raise self._no_sample()
        if self._weight:
            return self._total / self._weight
        if self.calculation_method and not self._counts.any():
            raise ApiRuntimeError("ConfusionMatrixMetric: the rate is not defined for any sample")
        return self._rate(self._counts[None])


def _mean(numbers: np.ndarray) -> tuple[float, float]:
    """Mean over channels and then samples, of the numbers that there are, and the number of samples that have one."""
    known = ~np.isnan(numbers)
    channels = known.sum(axis=1)
    sums = np.where(known, numbers, 0.0).sum(axis=1)
    samples = int((channels > 0).sum())
    each = np.divide(sums, channels, out=np.zeros(len(sums)), where=channels > 0)
    return (float(each.sum()) / samples if samples else 0.0), float(samples)
