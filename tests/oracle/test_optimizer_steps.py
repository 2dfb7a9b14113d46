"""Optimizers against PyTorch and formulas: cases that `optimizer_cases` has not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, mint, nn

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near  # noqa: E402  # it imports PyTorch
from tests.oracle.optimizer_cases import GRADIENTS, START  # noqa: E402

T = torch.optim


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
def test_weights_in_bfloat16(kind: str) -> None:
    """Weights, gradients and states are in bfloat16, as PyTorch has them; each step rounds them once or twice."""
    settings: dict[str, Any] = {"weight_decay": 0.05} | ({"momentum": 0.9} if kind == "SGD" else {})
    halves = [Parameter(Tensor(array).astype(ms.bfloat16), name) for array, name in zip(START, "ab", strict=True)]
    optimizer = getattr(mint.optim, kind)(halves, 0.1, **settings)
    theirs = [torch.nn.Parameter(torch.tensor(array).bfloat16()) for array in START]
    judge = getattr(T, kind)(theirs, 0.1, **settings)
    for gradients in GRADIENTS:
        optimizer(tuple(Tensor(gradient).astype(ms.bfloat16) for gradient in gradients))
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = torch.tensor(gradient).bfloat16()
        judge.step()
    for mine, other in zip(halves, theirs, strict=True):
        assert mine.dtype == ms.bfloat16
        near(mine.astype(ms.float32).asnumpy(), other.detach().float().numpy(), "all steps", 0.05)


@pytest.mark.parametrize("kind", ["Momentum", "Lamb", "AdamWeightDecay"])
def test_centralized_gradients(kind: str, capsys: Any) -> None:
    """The gradients of groups that ask for it, less their means where the second dimension is a multiple of 16; after
    the weight decay where that is added to the gradient."""
    shapes = {"a": (3, 16, 2), "b": (3, 5, 2), "c": (16,), "d": (2, 16)}
    w = {name: floats(i, *shape, dtype=np.float32) for i, (name, shape) in enumerate(shapes.items())}
    g = {name: floats(9 + i, *shape, dtype=np.float32) for i, (name, shape) in enumerate(shapes.items())}

    def moved(asked: bool, gradients: dict[str, np.ndarray]) -> list[np.ndarray]:
        own = [Parameter(Tensor(array), name) for name, array in w.items()]
        groups = [{"params": own[:3], "grad_centralization": asked}, {"params": own[3:]}]
        arguments = (0.1, 0.9, 0.3) if kind == "Momentum" else (0.1,)
        getattr(nn, kind)(groups, *arguments)(tuple(map(Tensor, gradients.values())))
        return [p.asnumpy() for p in own]

    decay = 0.3 if kind == "Momentum" else 0.0
    pulled = g["a"] + decay * w["a"]
    by_hand = g if kind == "AdamWeightDecay" else g | {"a": g["a"] - pulled.mean((1, 2), keepdims=True)}
    for mine, theirs in zip(moved(True, g), moved(False, by_hand), strict=True):
        near(mine, theirs, kind, 1e-5)
    said = "warning: AdamWeightDecay: grad_centralization changes nothing, as in MindSpore\n"
    assert capsys.readouterr().err == (said if kind == "AdamWeightDecay" else "")
