"""Holds one call against one of PyTorch, for tests that say themselves what they try: cells, losses, what has a state.

Unlike `judging.py`, which goes through tables of stateless names with every element type, it raises at the first
difference, takes any callable, and measures by the largest element.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import mspc as ms
from mspc import Tensor, ops

CLOSE = {np.dtype(np.float64): 1e-10, np.dtype(np.float32): 2e-5, np.dtype(np.float16): 4e-3}
"""How far results may lie apart, relative to their largest element."""


def floats(seed: int, *shape: int, dtype: Any = np.float64, low: float = -3.0, high: float = 3.0) -> np.ndarray:
    """Numbers drawn evenly from [low, high)."""
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


def near(found: Any, expected: Any, what: str = "", tolerance: float | None = None) -> None:
    """Equal in shape, in what is not finite, and elsewhere within the tolerance of the element type."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{what}: {found.shape}, not {expected.shape}"
    allowed = CLOSE.get(found.dtype, 0.0) if tolerance is None else tolerance
    wide = found.astype(np.float64), expected.astype(np.float64)
    finite = wide[1][np.isfinite(wide[1])]
    scale = max(1.0, float(np.abs(finite).max(initial=0.0)))
    np.testing.assert_allclose(*wide, rtol=allowed, atol=allowed * scale, err_msg=what)


def same(mine: Callable[..., Any], theirs: Callable[..., Any], arrays: Sequence[np.ndarray],
         *, grads: Sequence[int] | None = None, tolerance: float | None = None) -> None:  # fmt: skip
    """`mine` on Tensors equals `theirs` on PyTorch's, and so do the gradients of a weighted sum of the result.

    grads: the arguments whose gradients are compared, those of floating point unless given.
    """
    places = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"] if grads is None else list(grads)
    judged = [torch.tensor(a, requires_grad=i in places) for i, a in enumerate(arrays)]
    expected = theirs(*judged)
    weights = np.random.default_rng(99).uniform(0.5, 1.5, tuple(expected.shape)).astype(arrays[0].dtype)
    tensors = [Tensor(a) for a in arrays]
    near(mine(*tensors).asnumpy(), expected.detach().numpy(), "value", tolerance)
    if not places:
        return
    (expected * torch.tensor(weights)).sum().backward()
    held = Tensor(weights)

    def total(*inputs: Any) -> Any:
        return (mine(*inputs) * held).sum()

    found = ops.grad(total, tuple(places))(*tensors)
    for i, gradient in zip(places, found if isinstance(found, tuple) else (found,), strict=True):
        near(gradient.asnumpy(), judged[i].grad.numpy(), f"gradient in argument {i}", tolerance)


def tensor(array: np.ndarray) -> Any:
    """The same array as a Tensor."""
    return ms.Tensor(array)
