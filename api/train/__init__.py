"""Model, callbacks, checkpoints, metrics, as `mindspore.train`."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "model": ("Model",),
    "amp": (
        "DynamicLossScaler", "LossScaler", "StaticLossScaler", "all_finite", "auto_mixed_precision",
        "build_train_network", "custom_mixed_precision",
    ),
    "loss_scale_manager": ("DynamicLossScaleManager", "FixedLossScaleManager", "LossScaleManager"),
    "callback": (
        "Callback", "CheckpointConfig", "LearningRateScheduler", "LossMonitor", "ModelCheckpoint",
        "RunContext",
        "TimeMonitor",
    ),
    "serialization": ("load_checkpoint", "load_param_into_net", "save_checkpoint"),
    "metrics": ("MAE", "MSE", "Accuracy", "Loss", "Metric", "Top1CategoricalAccuracy", "get_metrics"),
}  # fmt: skip
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"mspc.api.train.{_HOME[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"mspc.api.train.{name}")
    raise AttributeError(f"train has no {name!r}; it has {', '.join(__all__)}")
