"""`mindspore.nn`: cells, which are layers, losses, optimizers, and what trains a network."""

from __future__ import annotations

import importlib
from typing import Any

from mspc.api.members import Members

_members = Members(__name__, optim="mspc.api.nn.optim")
__dir__ = _members.names


def __getattr__(name: str) -> Any:
    try:
        return _members.find(name)
    except AttributeError:
        layers = importlib.import_module("mspc.api.mint.nn")
        if name == "Linear":  # one class, which MindSpore has under both
            return layers.Linear
        if name.endswith("Ext") and hasattr(layers, name[:-3]):  # `nn.DropoutExt` is `mint.nn.Dropout`
            return getattr(layers, name[:-3])
        # MindSpore 1 had the metrics here; scripts of then are served, and `dir()` says what there is today.
        metrics = importlib.import_module("mspc.api.train.metrics")
        if name.startswith("_") or name not in metrics.__all__:
            raise
        return getattr(metrics, name)
