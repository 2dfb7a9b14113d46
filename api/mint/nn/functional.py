"""Functions of `mint.nn.functional`; compiled as those of `mint`."""

from __future__ import annotations

from typing import Any

from mspc.api import ops


def relu(input: Any, inplace: bool = False) -> Any:
    """max(0, input)."""
    return ops.ReLU()(input)


def relu6(input: Any, inplace: bool = False) -> Any:
    """min(max(0, input), 6)."""
    return ops.ReLU6()(input)


def silu(input: Any, inplace: bool = False) -> Any:
    """input * sigmoid(input)."""
    return ops.SiLU()(input)


def sigmoid(input: Any) -> Any:
    """1 / (1 + exp(-input))."""
    return ops.Sigmoid()(input)


def tanh(input: Any) -> Any:
    """The hyperbolic tangent."""
    return ops.Tanh()(input)


def gelu(input: Any, *, approximate: str = "none") -> Any:
    """input times the normal distribution function at it; by the tanh formula for "tanh"."""
    if approximate == "tanh":
        return ops.GeLU()(input)
    return input * (ops.Erf()(input * 0.7071067811865476) + 1.0) * 0.5


def softmax(input: Any, dim: int = -1, *, dtype: Any = None) -> Any:
    """exp(input) divided by its sum along `dim`."""
    return ops.Softmax(dim)(input if dtype is None else ops.cast(input, dtype))


def log_softmax(input: Any, dim: int = -1, *, dtype: Any = None) -> Any:
    """Logarithm of the softmax along `dim`."""
    return ops.LogSoftmax(dim)(input if dtype is None else ops.cast(input, dtype))


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """input @ weight.T + bias, weight [out, in]."""
    shape = input.shape
    out = ops.dense(ops.Reshape()(input, (-1, shape[-1])), weight, bias)
    return ops.Reshape()(out, (*shape[:-1], weight.shape[0]))


def embedding(input: Any, weight: Any) -> Any:
    """Rows of `weight`."""
    return ops.Gather()(weight, input, 0)


def layer_norm(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """`input` normalised over its last dimensions, times weight, plus bias."""
    return ops.layer_norm(input, normalized_shape, weight, bias, eps)


def dropout(input: Any, p: float = 0.5, training: bool = True) -> Any:
    """Elements set to 0 with probability p, the others divided by 1 - p."""
    return ops.dropout(input, p, training)


def mse_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """(input - target)^2, reduced."""
    return ops.mse_loss(input, target, reduction)


def l1_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """|input - target|, reduced."""
    return ops.l1_loss(input, target, reduction)


def cross_entropy(input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
                  label_smoothing: float = 0.0) -> Any:  # fmt: skip
    """Cross entropy of logits [n, classes] and class numbers [n] or probabilities [n, classes]."""
    return ops.cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)
