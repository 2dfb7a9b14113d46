"""Activations, layers and losses as functions."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiValueError
from mspc.api.mint.arguments import implicit_dim, not_in_place
from mspc.api.ops.arguments import ints


def relu(input: Any, inplace: bool = False) -> Any:
    """max(0, input)."""
    not_in_place("relu", inplace)
    return ops.ReLU()(input)


def relu6(input: Any, inplace: bool = False) -> Any:
    """min(max(0, input), 6)."""
    not_in_place("relu6", inplace)
    return ops.ReLU6()(input)


def silu(input: Any, inplace: bool = False) -> Any:
    """input * sigmoid(input)."""
    not_in_place("silu", inplace)
    return ops.SiLU()(input)


def sigmoid(input: Any) -> Any:
    """1 / (1 + exp(-input))."""
    return ops.Sigmoid()(input)


def tanh(input: Any) -> Any:
    """The hyperbolic tangent."""
    return ops.Tanh()(input)


def gelu(input: Any, *, approximate: str = "none") -> Any:
    """input times the normal distribution function at it; by the tanh formula for "tanh"."""
    return ops.gelu(input, approximate)


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """x where it is positive, alpha (exp(x) - 1) elsewhere."""
    not_in_place("elu", inplace)
    return ops.elu(input, alpha)


def leaky_relu(input: Any, negative_slope: float = 0.01) -> Any:
    """x where it is positive, negative_slope * x elsewhere."""
    return ops.leaky_relu(input, negative_slope)


def prelu(input: Any, weight: Any) -> Any:
    """x where it is positive, weight * x elsewhere."""
    return ops.prelu(input, weight)


def selu(input: Any) -> Any:
    """scale * x above 0, scale * alpha (exp(x) - 1) elsewhere."""
    return ops.selu(input)


def mish(input: Any) -> Any:
    """x * tanh(log(1 + exp(x)))."""
    return ops.mish(input)


def hardswish(input: Any) -> Any:
    """x * min(max(x + 3, 0), 6) / 6."""
    return ops.hardswish(input)


def hardsigmoid(input: Any) -> Any:
    """min(max(x + 3, 0), 6) / 6."""
    return ops.hardsigmoid(input)


def hardshrink(input: Any, lambd: float = 0.5) -> Any:
    """x where its absolute value is above lambd, else 0."""
    return ops.hardshrink(input, lambd)


def softshrink(input: Any, lambd: float = 0.5) -> Any:
    """x moved towards 0 by lambd, and 0 where it would pass it."""
    return ops.softshrink(input, lambd)


def tanhshrink(input: Any) -> Any:
    """x - tanh(x)."""
    return ops.tanhshrink(input)


def threshold(input: Any, threshold: float, value: float, inplace: bool = False) -> Any:
    """x where it is above the threshold, else value."""
    not_in_place("threshold", inplace)
    return ops.threshold(input, threshold, value)


def logsigmoid(input: Any) -> Any:
    """log(1 / (1 + exp(-x)))."""
    return ops.logsigmoid(input)


def softplus(input: Any, beta: float = 1, threshold: float = 20) -> Any:
    """log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold."""
    return ops.softplus(input, beta, threshold)


def glu(input: Any, dim: int = -1) -> Any:
    """The first half along `dim` times the sigmoid of the second."""
    return ops.glu(input, dim)


def softmax(input: Any, dim: int | None = None, dtype: Any = None) -> Any:
    """exp(input) divided by its sum along `dim`; see `implicit_dim` for None."""
    dim = implicit_dim(len(input.shape)) if dim is None else dim
    return ops.Softmax(dim)(input if dtype is None else ops.cast(input, dtype))


def log_softmax(input: Any, dim: int | None = None, *, dtype: Any = None) -> Any:
    """Logarithm of the softmax along `dim`; see `implicit_dim` for None."""
    dim = implicit_dim(len(input.shape)) if dim is None else dim
    return ops.LogSoftmax(dim)(input if dtype is None else ops.cast(input, dtype))


def one_hot(tensor: Any, num_classes: int = -1) -> Any:
    """Rows of a unit matrix, chosen by integers, of their type; the number of classes must be given."""
    if num_classes < 1:
        raise ApiValueError("one_hot(): num_classes must be given: a shape that depends on values is not known here")
    return ops.one_hot(tensor, num_classes, ops.cast(1, tensor.dtype), ops.cast(0, tensor.dtype), -1)


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """input @ weight.T + bias, weight [out, in]."""
    shape = input.shape
    out = ops.dense(ops.Reshape()(input, (-1, shape[-1])), weight, bias)
    return ops.Reshape()(out, (*shape[:-1], weight.shape[0]))


def embedding(
    input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
) -> Any:  # fmt: skip
    """Rows of `weight`. That of padding_idx gets no gradient.

    Raises:
        ValueError: max_norm or scale_grad_by_freq, with which rows or gradients are scaled; norm_type is that of
        max_norm. """
    if max_norm is not None or scale_grad_by_freq:
        raise ApiValueError("embedding(): rows and gradients are not scaled: max_norm must be None, and "
                            "scale_grad_by_freq False")  # fmt: skip
    rows = ops.Gather()(weight, input, 0)
    if padding_idx is None:
        return rows
    place = padding_idx + weight.shape[0] if padding_idx < 0 else padding_idx
    return ops.Select()(ops.ExpandDims()(ops.Equal()(input, place), -1), ops.stop_gradient(rows), rows)


def layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """`input` normalised over its last dimensions, times weight, 1 unless given, plus bias, 0 unless given."""
    sizes = ints("mint.nn.functional.layer_norm", "normalized_shape", normalized_shape)
    weight = ops.ones(sizes, input.dtype) if weight is None else weight
    bias = ops.zeros(sizes, input.dtype) if bias is None else bias
    return ops.layer_norm(input, sizes, weight, bias, eps)


def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Elements set to 0 with probability p, the others divided by 1 - p."""
    not_in_place("dropout", inplace)
    return ops.dropout(input, p, training)


def mse_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """(input - target)^2, reduced."""
    return ops.mse_loss(input, target, reduction)


def l1_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """|input - target|, reduced."""
    return ops.l1_loss(input, target, reduction)


def smooth_l1_loss(input: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """0.5 d^2 / beta where |d| < beta, |d| - 0.5 beta elsewhere, d = input - target."""
    return ops.smooth_l1_loss(input, target, beta, reduction)


def cross_entropy(input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
                  label_smoothing: float = 0.0) -> Any:  # fmt: skip
    """Cross entropy of logits [n, classes, ...] and class numbers [n, ...] or probabilities [n, classes, ...]."""
    return ops.cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


def nll_loss(input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> Any:
    """Negative log-probability input[n, classes, ...] of the target classes [n, ...]."""
    return ops.nll_loss(input, target, weight, ignore_index, reduction)


def binary_cross_entropy(input: Any, target: Any, weight: Any = None, reduction: str = "mean") -> Any:
    """Binary cross entropy of probabilities; logarithms are not below -100."""
    return ops.binary_cross_entropy(input, target, weight, reduction)


def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    """Binary cross entropy of sigmoid(input); targets of 1 count pos_weight times."""
    return ops.binary_cross_entropy_with_logits(input, target, weight, pos_weight, reduction)


def kl_div(input: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    """target (log(target) - input), where `target` is given as its logarithm if `log_target`."""
    if log_target:
        target = ops.exp(target)
    return ops.kl_div(input, target, reduction)
