"""Holds a whole language model against one of PyTorch's modules: the loss, and its gradient in every parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mspc import Tensor, nn, ops
from mspc.ir.types import INT32
from tests.mindspore_api.nn.training import Training
from tests.oracle.against import near

CLOSE = 1e-5
"""How far numbers may lie apart, relative to the largest of their tensor."""


class Step(nn.Cell):
    """(loss, its gradient in every parameter)."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__()
        self.both = ops.value_and_grad(network, None, network.trainable_params())

    def construct(self, *inputs: Any) -> Any:
        return self.both(*inputs)


def compare(mine: nn.Cell, theirs: Any, inputs: tuple[np.ndarray, ...], ranks: int, mode: str,
            other_name: Callable[[str], str] = str) -> None:  # fmt: skip
    """Both with the same weights, drawn by their place. inputs: whole numbers. other_name: mine for PyTorch's name of
    a parameter.

    A gradient that is next to nothing beside the largest of all, as that of a key's bias, is held to that one's
    rounding.
    """
    judged = {other_name(name): parameter for name, parameter in theirs.named_parameters()}
    own = {parameter.name: parameter for parameter in mine.trainable_params()}
    assert sorted(own) == sorted(judged)
    generator = np.random.default_rng(7)
    for name, parameter in judged.items():
        value = generator.uniform(-0.3, 0.3, tuple(parameter.shape)).astype(np.float32)
        parameter.data = torch.tensor(value)
        own[name].set_data(Tensor(value))
    expected = theirs(*(torch.tensor(array).long() for array in inputs))
    expected.backward()
    training = Training(Step(mine), [array.shape for array in inputs], ranks, mode, dtypes=[INT32] * len(inputs))
    loss, gradients = training.run([inputs])[0]
    near(loss, expected.detach().numpy(), "loss", CLOSE)
    largest = max(float(parameter.grad.abs().max()) for parameter in judged.values())
    for name, gradient in zip(own, gradients, strict=True):
        wanted = judged[name].grad.numpy()
        scale = max(float(np.abs(wanted).max()), 1e-3 * largest)
        near(gradient / scale, wanted / scale, f"the gradient of {name}", CLOSE)
