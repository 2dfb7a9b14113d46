"""Compares operators that update parameters with formulas in PyTorch's arithmetic: what the operands that they
overwrite hold afterwards.

Sources: Kingma and Ba 2015; Loshchilov and Hutter 2019; Sutskever et al. 2013; MindSpore's documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Tensor = Any
Formula = Callable[..., tuple[Tensor, ...]]
"""(operator, operands) -> new values of the operands that it overwrites, in the order of `mutates`."""


def update_formulas(torch: Any) -> Mapping[str, Formula]:
    """By operator's name."""

    def momentum(op: Any, w: Tensor, v: Tensor, rate: Tensor, g: Tensor, mu: Tensor) -> tuple[Tensor, ...]:
        g = g * op.gradient_scale
        v = mu * v + g
        return w - rate * (g + mu * v if op.use_nesterov else v), v

    def sgd(op: Any, w: Tensor, g: Tensor, rate: Tensor, v: Tensor, mu: Tensor, fresh: Tensor) -> tuple[Tensor, ...]:
        g = g + op.weight_decay * w
        if not float(mu) > 0:
            return w - rate * g, v, fresh
        v = torch.where(fresh > 0, g, mu * v + (1 - op.dampening) * g)
        return w - rate * (g + mu * v if op.nesterov else v), v, torch.zeros_like(fresh)

    def adam(op: Any, w: Tensor, m: Tensor, v: Tensor, power1: Tensor, power2: Tensor, rate: Tensor, beta1: Tensor,
             beta2: Tensor, eps: Tensor, g: Tensor) -> tuple[Tensor, ...]:  # fmt: skip
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        step = beta1 * m + (1 - beta1) * g if op.use_nesterov else m
        return w - rate * (1 - power2) ** 0.5 / (1 - power1) * step / (v**0.5 + eps), m, v

    def decoupled(op: Any, w: Tensor, m: Tensor, v: Tensor, rate: Tensor, beta1: Tensor, beta2: Tensor, eps: Tensor,
                  decay: Tensor, g: Tensor) -> tuple[Tensor, ...]:  # fmt: skip
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        return w - rate * (m / (v**0.5 + eps) + decay * w), m, v

    return {
        "Assign": lambda op, w, value: (value.to(w.dtype).expand(w.shape),),
        "AssignAdd": lambda op, w, value: (w + value.to(w.dtype),),
        "AssignSub": lambda op, w, value: (w - value.to(w.dtype),),
        "ApplyMomentum": momentum,
        "SGD": sgd,
        "Adam": adam,
        "AdamWeightDecay": decoupled,
    }
