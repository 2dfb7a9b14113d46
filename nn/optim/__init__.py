"""Optimizers: cells that turn gradients into new values of parameters. One family per file."""

from mspc.nn.optim.adam import Adam, AdamWeightDecay, LazyAdam
from mspc.nn.optim.adaptive import FTRL, Adagrad, RMSProp
from mspc.nn.optim.lamb import Lamb
from mspc.nn.optim.momentum import Momentum
from mspc.nn.optim.optimizer import Optimizer
from mspc.nn.optim.sgd import SGD

__all__ = [
    "FTRL", "SGD", "Adagrad", "Adam", "AdamWeightDecay", "Lamb", "LazyAdam", "Momentum", "Optimizer", "RMSProp",
]  # fmt: skip
