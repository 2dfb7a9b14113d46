"""Optimizers: cells that turn gradients into new values of parameters. One family per file."""

from mspc.nn.optim.adam import Adam, AdamWeightDecay
from mspc.nn.optim.momentum import Momentum
from mspc.nn.optim.optimizer import Optimizer
from mspc.nn.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamWeightDecay", "Momentum", "Optimizer"]
