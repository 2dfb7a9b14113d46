"""Activations in place, and functions that `ops` has with the same arguments."""

from __future__ import annotations

from typing import Any

from mspc.api import ops


def relu_(input: Any) -> Any:
    """The tensor becomes max(0, input)."""
    return ops.assign(input, ops.ReLU()(input))


def elu_(input: Any, alpha: float = 1.0) -> Any:
    """The tensor becomes itself where it is positive, alpha (exp(x) - 1) elsewhere."""
    return ops.assign(input, ops.elu(input, alpha))


def hardtanh_(input: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """The tensor becomes itself kept between two values."""
    return ops.assign(input, ops.hardtanh(input, min_val, max_val))


def threshold_(input: Any, threshold: float, value: float) -> Any:
    """The tensor becomes itself above the threshold, `value` elsewhere."""
    return ops.assign(input, ops.threshold(input, threshold, value))


def sigmoid_(input: Any) -> Any:
    """The tensor becomes 1 / (1 + exp(-input))."""
    return ops.assign(input, ops.Sigmoid()(input))


def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Dimensions start_dim to end_dim made one."""
    return ops.flatten(input, start_dim=start_dim, end_dim=end_dim)


def upsample(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None
) -> Any:
    """Images in another size; see `ops.upsample`."""
    return ops.upsample(input, size, scale_factor, mode, align_corners)


def cosine_embedding_loss(input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: str = "mean") -> Any:
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1; see `ops.cosine_embedding_loss`."""
    return ops.cosine_embedding_loss(input1, input2, target, margin, reduction)


def soft_margin_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """log(1 + exp(-target * input)); see `ops.soft_margin_loss`."""
    return ops.soft_margin_loss(input, target, reduction)
