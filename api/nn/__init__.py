"""Cells: layers, losses, optimizers and what trains them."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "cell": ("Cell",),
    "container": ("CellDict", "CellList", "SequentialCell"),
    "activation": (
        "GELU", "Identity", "LeakyReLU", "LogSoftmax", "PReLU", "ReLU", "ReLU6", "SiLU", "Sigmoid", "Softmax", "Tanh",
        "get_activation",
    ),
    "basic": ("Dense", "Dropout", "Embedding", "Flatten", "LayerNorm", "RMSNorm"),
    "embedding_lookup": ("EmbeddingLookup", "MultiFieldEmbeddingLookup"),
    "loss": (
        "BCELoss", "CrossEntropyLoss", "L1Loss", "LossBase", "MSELoss", "NLLLoss", "RMSELoss", "SmoothL1Loss",
        "SoftmaxCrossEntropyWithLogits",
    ),
    "wrap": (
        "ForwardValueAndGrad", "GradAccumulationCell", "MicroBatchInterleaved",
        "ParameterUpdate", "TrainOneStepCell", "WithEvalCell",
        "WithLossCell",
    ),
    "loss_scale": (
        "DynamicLossScaleUpdateCell", "FixedLossScaleUpdateCell", "TrainOneStepWithLossScaleCell",
    ),
    "optim": (
        "FTRL", "SGD", "Adagrad", "Adam", "AdamWeightDecay", "Lamb", "LazyAdam", "Momentum", "Optimizer", "RMSProp",
    ),
    "learning_rate_schedule": (
        "CosineDecayLR", "ExponentialDecayLR", "LearningRateSchedule", "PolynomialDecayLR", "WarmUpLR",
    ),
    "dynamic_lr": (
        "cosine_decay_lr", "exponential_decay_lr", "natural_exp_decay_lr", "piecewise_constant_lr",
        "polynomial_decay_lr", "warmup_lr",
    ),
}  # fmt: skip
_HOME = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = (*_MODULES, "utils")

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        found = getattr(importlib.import_module(f"mspc.api.nn.{_HOME[name]}"), name)
        globals()[name] = found
        return found
    if name in _SUBMODULES:
        return importlib.import_module(f"mspc.api.nn.{name}")
    raise AttributeError(f"nn has no {name!r}; it has {', '.join(__all__)}")
