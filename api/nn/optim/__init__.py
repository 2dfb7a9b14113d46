"""Optimizers: cells that turn gradients into new values of parameters."""

from mspc.api.nn.optim.adam import Adam, AdamWeightDecay, LazyAdam
from mspc.api.nn.optim.adaptive import FTRL, Adagrad, RMSProp
from mspc.api.nn.optim.lamb import Lamb
from mspc.api.nn.optim.momentum import Momentum
from mspc.api.nn.optim.optimizer import Optimizer
from mspc.api.nn.optim.sgd import SGD

__all__ = [
    "FTRL", "SGD", "Adagrad", "Adam", "AdamWeightDecay", "Lamb", "LazyAdam", "Momentum", "Optimizer", "RMSProp",
]  # fmt: skip
