"""This module has activations as functions. Those made of several operators compute in Float32 where differences of
near numbers are taken."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiValueError
from mspc.api.ops.loss_arguments import check_form, check_number, wide


def gelu(input: Any, approximate: str = "none") -> Any:
    """input times the normal distribution function at it; by the tanh formula for approximate="tanh"."""
    check_form("gelu", approximate)
    if approximate == "tanh":
        return ops.GeLU()(input)
    _ = ops.cast(input, wide(input.dtype))
    return ops.cast(_ * (ops.Erf()(_ * 0.7071067811865476) + 1.0) * 0.5, input.dtype)


def elu(input_x: Any, alpha: float = 1.0) -> Any:
    """x where it is positive, alpha (exp(x) - 1) elsewhere."""
    check_number("elu", "alpha", alpha)
    return ops.Elu(float(alpha))(input_x)


def celu(x: Any, alpha: float = 1.0) -> Any:
    """x where it is positive, alpha (exp(x / alpha) - 1) elsewhere."""
    check_number("celu", "alpha", alpha)
    low = ops.Select()(x > 0, ops.zeros_like(x), x)
    return ops.Select()(x > 0, x, ops.Expm1()(low * (1.0 / alpha)) * alpha)


def leaky_relu(input: Any, alpha: float = 0.2) -> Any:
    """x where it is positive, alpha * x elsewhere."""
    check_number("leaky_relu", "alpha", alpha)
    return ops.Select()(input > 0, input, input * alpha)


def rrelu(input: Any, lower: float = 1 / 8, upper: float = 1 / 3) -> Any:
    """x where it is positive, elsewhere x times a slope sampled uniformly from [lower, upper) for every element; Xu et
    al. 2015."""
    check_number("rrelu", "lower", lower)
    check_number("rrelu", "upper", upper)
    if lower > upper:
        raise ApiValueError(f"rrelu(): lower {lower} is above upper {upper}")
    slopes = ops.uniform(input.shape, float(lower), float(upper), dtype=input.dtype)
    return ops.Select()(input > 0, input, input * ops.stop_gradient(slopes))


def hardshrink(input: Any, lambd: float = 0.5) -> Any:
    """x where its absolute value is above lambd, else 0."""
    check_number("hardshrink", "lambd", lambd)
    return ops.HShrink(float(lambd))(input)


def softshrink(input: Any, lambd: float = 0.5) -> Any:
    """x moved towards 0 by lambd, and 0 where it would pass it."""
    check_number("softshrink", "lambd", lambd, 0.0)
    return ops.SoftShrink(float(lambd))(input)


def tanhshrink(input: Any) -> Any:
    """x - tanh(x)."""
    _ = ops.cast(input, wide(input.dtype))
    return ops.cast(_ - ops.Tanh()(_), input.dtype)


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """x, not below min_val and not above max_val; its derivative at both is 0."""
    check_number("hardtanh", "min_val", min_val)
    check_number("hardtanh", "max_val", max_val, min_val)
    _ = ops.Select()(input <= min_val, ops.full_like(input, min_val), input)
    return ops.Select()(input >= max_val, ops.full_like(input, max_val), _)


def threshold(input: Any, thr: float, value: float) -> Any:
    """x where it is above thr, else value."""
    check_number("threshold", "thr", thr)
    check_number("threshold", "value", value)
    return ops.Select()(input <= thr, ops.full_like(input, value), input)


def softplus(input: Any, beta: float = 1, threshold: float = 20) -> Any:
    """log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold."""
    check_number("softplus", "beta", beta)
    check_number("softplus", "threshold", threshold)
    scaled = input if beta == 1 else input * beta
    _ = ops.Softplus()(scaled)
    return ops.Select()(scaled > threshold, input, _ if beta == 1 else _ / beta)


def glu(x: Any, axis: int = -1) -> Any:
    """The first half along `axis` times the sigmoid of the second."""
    first, second = ops.Split(axis, 2)(x)
    return first * ops.Sigmoid()(second)
