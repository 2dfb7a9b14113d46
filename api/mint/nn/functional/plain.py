"""This module has activations, layers and losses as functions."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiValueError
from mspc.api.mint.known_arguments import implicit_dim, not_in_place
from mspc.api.ops.function_arguments import ints


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


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """x where it is positive, alpha (exp(x) - 1) elsewhere."""
    not_in_place("elu", inplace)
    return ops.elu(input, alpha)


def threshold(input: Any, threshold: float, value: float, inplace: bool = False) -> Any:
    """x where it is above the threshold, else value."""
    not_in_place("threshold", inplace)
    return ops.threshold(input, threshold, value)


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


def kl_div(input: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    """target (log(target) - input), where `target` is given as its logarithm if `log_target`."""
    if log_target:
        target = ops.exp(target)
    return ops.kl_div(input, target, reduction)
