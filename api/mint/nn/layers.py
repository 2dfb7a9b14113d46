"""The arguments of these cells of `mint.nn` differ from those of `nn`."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import nn, ops
from mspc.api.common.initial_values import HeUniform, Normal, Uniform
from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.mint.known_arguments import not_in_place
from mspc.api.mint.nn import functional
from mspc.api.nn.cell import Cell
from mspc.api.nn.cell_arguments import number, parameter, positive
from mspc.api.ops.function_arguments import element_type
from mspc.ir.types import FLOAT32


class Linear(Cell):
    """x @ weight.T + bias; weight is [out_features, in_features], sampled uniformly as in He et al. 2015."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, weight_init: Any = None, bias_init: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_features = positive("Linear", "in_features", in_features)
        self.out_features = positive("Linear", "out_features", out_features)
        dtype = FLOAT32 if dtype is None else dtype
        weight_init = HeUniform(5**0.5) if weight_init is None else weight_init
        self.weight = parameter(weight_init, (out_features, in_features), dtype, "weight")
        self.bias = None
        if bias:
            bias_init = Uniform(in_features**-0.5) if bias_init is None else bias_init
            self.bias = parameter(bias_init, (out_features,), dtype, "bias")

    def construct(self, input: Any) -> Any:
        return functional.linear(input, self.weight, self.bias)


class GELU(Cell):
    """x times the normal distribution function at x; by the tanh formula for approximate="tanh"."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ApiValueError(f"GELU: approximate {approximate!r} is neither 'none' nor 'tanh'")
        self.approximate = approximate

    def construct(self, input: Any) -> Any:
        return functional.gelu(input, approximate=self.approximate)


class PReLU(nn.PReLU):
    """x where it is positive, weight * x elsewhere; one weight of the type `dtype`, or one for each channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, dtype: Any = None) -> None:
        count = positive("PReLU", "num_parameters", num_parameters)
        kind = FLOAT32 if dtype is None else element_type(dtype)
        super().__init__(count, Tensor([number("PReLU", "init", init, -math.inf)] * count, kind))


class Softmax(Cell):
    """exp(x) divided by its sum along `dim`, None: 0 of 0, 1 or 3 dimensions, else 1."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def construct(self, input: Any) -> Any:
        return functional.softmax(input, self.dim)


class LogSoftmax(Cell):
    """Logarithm of the softmax along `dim`, None: 0 of 0, 1 or 3 dimensions, else 1."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def construct(self, input: Any) -> Any:
        return functional.log_softmax(input, self.dim)


class Embedding(Cell):
    """Rows of a table [num_embeddings, embedding_dim] at the indices.

    Args:
        padding_idx: a row that is 0 at the start, and gets no gradient. _weight: the table; sampled from the normal
            distribution of deviation 1 unless given. _freeze: whether it is not trained.

    Raises:
        ValueError: max_norm, scale_grad_by_freq or sparse is set; norm_type is that of max_norm.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: Any = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False, _weight: Any = None,
        _freeze: bool = False, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = (
            positive("Embedding", "num_embeddings", num_embeddings),
            positive("Embedding", "embedding_dim", embedding_dim),
        )
        if max_norm is not None or scale_grad_by_freq or sparse:
            raise ApiValueError("Embedding: max_norm, scale_grad_by_freq and sparse are not supported")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ApiValueError(f"Embedding: padding_idx {padding_idx} is no row of {num_embeddings}")
        kind = FLOAT32 if dtype is None else dtype
        self.weight = parameter(Normal(1.0) if _weight is None else _weight, sizes, kind, "weight")
        if padding_idx is not None and _weight is None:
            rows = self.weight.asnumpy().copy()
            rows[padding_idx] = 0
            self.weight.set_data(Tensor(rows))
        self.weight.requires_grad = not _freeze
        self.padding_idx = padding_idx

    def construct(self, input: Any) -> Any:
        return functional.embedding(input, self.weight, self.padding_idx)


class LayerNorm(Cell):
    """x normalised to mean 0 and variance 1 over its last dimensions, those of normalized_shape, times weight, plus
    bias. With elementwise_affine False there is neither, with `bias` False no bias."""

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, value in (("elementwise_affine", elementwise_affine), ("bias", bias)):
            if not isinstance(value, bool):
                raise ApiTypeError(f"LayerNorm: {name} must be True or False, not {value!r}")
        sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.sizes = tuple(positive("LayerNorm", "normalized_shape", n) for n in sizes)
        kind = FLOAT32 if dtype is None else dtype
        self.weight = parameter("ones", self.sizes, kind, "weight") if elementwise_affine else None
        self.bias = parameter("zeros", self.sizes, kind, "bias") if elementwise_affine and bias else None
        self.layer_norm = ops.LayerNorm(-len(sizes), -len(sizes), eps)

    def construct(self, input: Any) -> Any:
        weight = ops.ones(self.sizes, input.dtype) if self.weight is None else self.weight
        bias = ops.zeros(self.sizes, input.dtype) if self.bias is None else self.bias
        out, _, _ = self.layer_norm(input, weight, bias)
        return out


class Dropout(nn.Dropout):
    """In training, elements set to 0 with probability p, the others divided by 1 - p; else the input."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        not_in_place("Dropout", inplace)
        super().__init__(p=p)


class ReLU6(nn.ReLU6):
    """min(max(0, x), 6)."""

    def __init__(self, inplace: bool = False) -> None:
        not_in_place("ReLU6", inplace)
        super().__init__()


class SiLU(nn.SiLU):
    """x * sigmoid(x)."""

    def __init__(self, inplace: bool = False) -> None:
        not_in_place("SiLU", inplace)
        super().__init__()


class ELU(nn.ELU):
    """x where it is positive, alpha (exp(x) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        not_in_place("ELU", inplace)
        super().__init__(alpha)


class Threshold(nn.Threshold):
    """x where it is above the threshold, else value."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        not_in_place("Threshold", inplace)
        super().__init__(threshold, value)


class GLU(nn.GLU):
    """The first half along `dim` times the sigmoid of the second."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """Cross entropy of logits [n, classes, ...] and class numbers [n, ...] or probabilities [n, classes, ...]."""


class NLLLoss(nn.NLLLoss):
    """Negative of the log-probability [n, classes, ...] of the targets' classes [n, ...]."""


class SmoothL1Loss(nn.SmoothL1Loss):
    """0.5 d^2 / beta where |d| < beta, |d| - 0.5 beta elsewhere, for d = input - target."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(beta, reduction)


class BCEWithLogitsLoss(nn.BCEWithLogitsLoss):
    """Binary cross entropy of sigmoid(input) and targets, times weight; targets of 1 count pos_weight times."""

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction, weight, pos_weight)


class KLDivLoss(Cell):
    """target (log(target) - input), where `target` is given as its logarithm if `log_target`."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__()
        self.reduction, self.log_target = reduction, log_target

    def construct(self, input: Any, target: Any) -> Any:
        return functional.kl_div(input, target, self.reduction, self.log_target)
