"""These rates are made of true and false positives and negatives, by their usual names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mspc.api.errors import ApiValueError

__all__: tuple[str, ...] = ()

Rate = Callable[[np.ndarray], np.ndarray]
"""Takes counts [..., 4]: true positives, false positives, true negatives, false negatives; NaN where it is not
defined."""


def rate_named(name: str) -> Rate:
    """The rate of that name, in any spelling of spaces and capitals. Raises ValueError for an unknown one."""
    key = name.strip().lower().replace(" ", "_")
    found = next((rate for names, rate in _RATES.items() if key in names.split()), None)
    if found is None:
        known = ", ".join(names.split()[0] for names in _RATES)
        raise ApiValueError(f"ConfusionMatrixMetric: unknown metric_name {name!r}; known are {known}")
    return lambda counts: found(*np.moveaxis(np.asarray(counts, np.float64), -1, 0))


def _over(part: Any, total: Any) -> Any:
    return np.divide(part, total, out=np.full(np.shape(part), np.nan), where=np.asarray(total) != 0)


def _sensitivity(tp: Any, fp: Any, tn: Any, fn: Any) -> Any:
    return _over(tp, tp + fn)


def _specificity(tp: Any, fp: Any, tn: Any, fn: Any) -> Any:
    return _over(tn, tn + fp)


def _precision(tp: Any, fp: Any, tn: Any, fn: Any) -> Any:
    return _over(tp, tp + fp)


def _negative_value(tp: Any, fp: Any, tn: Any, fn: Any) -> Any:
    return _over(tn, tn + fn)


def _threshold(tp: Any, fp: Any, tn: Any, fn: Any) -> Any:
    found, cleared = _sensitivity(tp, fp, tn, fn), _specificity(tp, fp, tn, fn)
    return _over(np.sqrt(found * (1 - cleared)) + cleared - 1, found + cleared - 1)


def _correlation(tp: Any, fp: Any, tn: Any, fn: Any) -> Any:
    return _over(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


_RATES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "sensitivity recall hit_rate true_positive_rate tpr": _sensitivity,
    "specificity selectivity true_negative_rate tnr": _specificity,
    "precision positive_predictive_value ppv": _precision,
    "negative_predictive_value npv": _negative_value,
    "miss_rate false_negative_rate fnr": lambda tp, fp, tn, fn: _over(fn, tp + fn),
    "fall_out false_positive_rate fpr": lambda tp, fp, tn, fn: _over(fp, fp + tn),
    "false_discovery_rate fdr": lambda tp, fp, tn, fn: _over(fp, fp + tp),
    "false_omission_rate for": lambda tp, fp, tn, fn: _over(fn, fn + tn),
    "prevalence_threshold pt": _threshold,
    "threat_score critical_success_index ts csi": lambda tp, fp, tn, fn: _over(tp, tp + fn + fp),
    "accuracy acc": lambda tp, fp, tn, fn: _over(tp + tn, tp + fp + tn + fn),
    "balanced_accuracy ba": lambda *n: (_sensitivity(*n) + _specificity(*n)) / 2,
    "f1_score f1": lambda tp, fp, tn, fn: _over(2 * tp, 2 * tp + fn + fp),
    "matthews_correlation_coefficient mcc": _correlation,
    "fowlkes_mallows_index fm": lambda *n: np.sqrt(_precision(*n) * _sensitivity(*n)),
    "informedness bookmaker_informedness bm": lambda *n: _sensitivity(*n) + _specificity(*n) - 1,
    "markedness deltap mk": lambda *n: _precision(*n) + _negative_value(*n) - 1,
}
