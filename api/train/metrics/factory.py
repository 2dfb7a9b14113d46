"""This module makes metrics by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.api.errors import ApiKeyError, ApiTypeError, ApiValueError
from mspc.api.train import metrics as metrics_package
from mspc.api.train.metrics.metric import Metric
from mspc.ir.diagnostics import did_you_mean

__all__ = ["get_metric_fn", "get_metrics", "names"]

_BY_NAME = {
    "accuracy": "Accuracy", "acc": "Accuracy", "loss": "Loss", "mae": "MAE", "mse": "MSE", "precision": "Precision",
    "recall": "Recall", "F1": "F1", "top_1_accuracy": "Top1CategoricalAccuracy",
    "top_5_accuracy": "Top5CategoricalAccuracy", "topk": "TopKCategoricalAccuracy",
    "confusion_matrix": "ConfusionMatrix", "confusion_matrix_metric": "ConfusionMatrixMetric",
    "cosine_similarity": "CosineSimilarity", "dice": "Dice", "perplexity": "Perplexity", "roc": "ROC", "auc": "auc",
}  # fmt: skip
"""Classes and functions of `mspc.api.train.metrics`, whose modules are imported when a metric is made."""


def names() -> list[str]:
    """The names that `get_metric_fn` knows."""
    return sorted(_BY_NAME)


def get_metric_fn(name: str, *args: Any, **kwargs: Any) -> Any:
    """The metric of a name, made with these arguments. Raises KeyError for an unknown name."""
    if name not in _BY_NAME:
        raise ApiKeyError(_unknown(name), did_you_mean(str(name), _BY_NAME))
    return _maker(name)(*args, **kwargs)


def get_metrics(metrics: Any) -> dict[str, Metric]:
    """Metrics by name, in a fixed order: those of a dict, or made for a set or list of names.

    Raises:
        TypeError: `metrics` is of the wrong kind. ValueError: an unknown name, or one that needs arguments.
    """
    if metrics is None:
        return {}
    if isinstance(metrics, dict):
        for key, value in metrics.items():
            if not isinstance(key, str) or not isinstance(value, Metric):
                raise ApiTypeError(f"metrics holds {key!r}: {type(value).__name__}, not a name and a Metric")
        return dict(metrics)
    if not isinstance(metrics, set | frozenset | list | tuple):
        raise ApiTypeError(f"metrics must be a dict or a set of names, not {type(metrics).__name__}")
    return {name: _of_name(name) for name in (sorted(metrics, key=str) if isinstance(metrics, set) else metrics)}


def _of_name(name: Any) -> Metric:
    if not isinstance(name, str) or name not in _BY_NAME:
        raise ApiValueError(_unknown(name), did_you_mean(str(name), _BY_NAME))
    try:
        made = _maker(name)()
    except TypeError:
        made = None
    if not isinstance(made, Metric):
        raise ApiValueError(f"metric {name!r} needs arguments", [f"pass {{{name!r}: ...}} with the metric itself"])
    return made


def _maker(name: str) -> Callable[..., Any]:
    return getattr(metrics_package, _BY_NAME[name])


def _unknown(name: Any) -> str:
    return f"unknown metric {name!r}; known are {', '.join(_BY_NAME)}"
