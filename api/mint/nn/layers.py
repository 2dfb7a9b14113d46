"""Cells of `mint.nn` whose arguments differ from those of `nn`."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import nn, ops
from mspc.api.common.initial_values import HeUniform, Uniform
from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiValueError
from mspc.api.mint.nn import functional
from mspc.api.nn.arguments import number, parameter, positive
from mspc.api.nn.cell import Cell
from mspc.api.ops.arguments import element_type
from mspc.ir.types import FLOAT32


class Linear(Cell):
    """x @ weight.T + bias; weight is [out_features, in_features], drawn uniformly as in He et al. 2015."""

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
    """Rows of a table [num_embeddings, embedding_dim] at the indices."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: Any = None, _weight: Any = "normal",
        dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = (
            positive("Embedding", "num_embeddings", num_embeddings),
            positive("Embedding", "embedding_dim", embedding_dim),
        )
        if padding_idx is not None:
            raise ApiValueError("Embedding: padding_idx is not supported")
        self.weight = parameter(_weight, sizes, dtype, "weight")
        self.gather = ops.Gather()

    def construct(self, input: Any) -> Any:
        return self.gather(self.weight, input, 0)


class LayerNorm(Cell):
    """x normalised to mean 0 and variance 1 over its last dimensions, those of normalized_shape, times weight, plus
    bias."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, dtype: Any = FLOAT32) -> None:
        super().__init__()
        sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        sizes = tuple(positive("LayerNorm", "normalized_shape", n) for n in sizes)
        self.weight = parameter("ones", sizes, dtype, "weight")
        self.bias = parameter("zeros", sizes, dtype, "bias")
        self.layer_norm = ops.LayerNorm(-len(sizes), -len(sizes), eps)

    def construct(self, input: Any) -> Any:
        out, _, _ = self.layer_norm(input, self.weight, self.bias)
        return out


class Dropout(nn.Dropout):
    """In training, elements set to 0 with probability p, the others divided by 1 - p; else the input."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p=p)


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
