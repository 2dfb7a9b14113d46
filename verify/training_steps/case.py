"""Defines a case of a training step: numbers made by mspc, and the same by PyTorch or a formula written down apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass

Array = Any
STEPS = 6
SHAPES = ((3,), (4, 5))
SCALE = 64.0


@dataclass(frozen=True)
class Case:
    """mine: the numbers that mspc makes. theirs: those of the judge, given PyTorch. before: what both began with, where
    the change is compared too. source: what the judge is."""

    name: str
    mine: Callable[[], Array]
    theirs: Callable[[Any], Array]
    source: str = "PyTorch"
    before: Array | None = None


def floats(seed: int, shape: Sequence[int]) -> Array:
    """Float32 numbers of either sign."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


START = [floats(i, shape) for i, shape in enumerate(SHAPES)]
GRADIENTS = [[floats(10 + 10 * step + i, shape) for i, shape in enumerate(SHAPES)] for step in range(STEPS)]


def flat(arrays: Sequence[Array]) -> Array:
    """All numbers of some arrays, one after the other."""
    return np.concatenate([np.asarray(a, np.float64).reshape(-1) for a in arrays])


BEFORE = np.stack([flat(START)] * STEPS)


def weights(names: Sequence[str] = ("a", "b")) -> list[Any]:
    """Parameters of mspc."""
    from mspc.api.common.parameter import Parameter
    from mspc.api.common.tensor import Tensor

    return [Parameter(Tensor(array.copy()), name) for array, name in zip(START, names, strict=True)]


def taken(
    make: Callable[[list[Any], float], Any], scale: float = 1.0, names: Sequence[str] = ("a", "b"), state: str = ""
) -> Array:
    """[steps, numbers]: the parameters after every step of an optimizer of mspc, or a state of theirs. make: the
    optimizer of parameters and of the scale that gradients come with."""
    from mspc.api.common.tensor import Tensor

    parameters = weights(names)
    optimizer = make(parameters, scale)
    found: list[Array] = []
    for gradients in GRADIENTS:
        optimizer(tuple(Tensor(gradient * np.float32(scale)) for gradient in gradients))
        found.append(flat([p.asnumpy() for p in (getattr(optimizer, state) if state else parameters)]))
    return np.stack(found)


def by_torch(torch: Any, make: Callable[[list[Any]], Any], decay: float = 0.0, state: str = "") -> Array:
    """The same of an optimizer of PyTorch. decay: added to gradients where it knows no weight decay."""
    parameters = [torch.nn.Parameter(torch.tensor(array.astype(np.float64))) for array in START]
    optimizer = make(parameters)
    found: list[Array] = []
    for gradients in GRADIENTS:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.tensor(gradient.astype(np.float64)) + decay * parameter.detach()
        optimizer.step()
        found.append(flat([(optimizer.state[p][state] if state else p).detach().numpy() for p in parameters]))
    return np.stack(found)


Rule = Callable[[dict[str, Array], Array, Array, int, int], Array]
"""(states of a parameter, the parameter, its gradient, step from 1, number of the parameter) -> the new parameter."""


def by_rule(rule: Rule) -> Array:
    """The same by a formula, in Float64; states begin as {}."""
    values, states = [array.astype(np.float64) for array in START], [dict[str, Array]() for _ in START]
    found: list[Array] = []
    for step, gradients in enumerate(GRADIENTS, 1):
        for i, gradient in enumerate(gradients):
            values[i] = rule(states[i], values[i], gradient.astype(np.float64), step, i)
        found.append(flat(values))
    return np.stack(found)
