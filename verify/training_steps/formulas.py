"""Compares optimizers that PyTorch has not, or has otherwise, with their formulas, in Float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.verify.training_steps.case import BEFORE, SCALE, Case, Rule, by_rule, floats, taken

Array = Any
State = dict[str, Array]


def formulas() -> list[Case]:
    """A case for each, with its source."""
    from mspc.api import nn

    def case(name: str, mine: Any, rule: Rule, source: str, scale: float = 1.0, names: Any = ("a", "b")) -> Case:
        return Case(name, lambda: taken(mine, scale, names), lambda torch: by_rule(rule), source, BEFORE)

    return [
        case("nn.AdamWeightDecay", lambda p, s: nn.AdamWeightDecay(p, 0.05, 0.8, 0.9, 1e-6, 0.05), _decoupled,
             "Loshchilov and Hutter 2019, algorithm 2, without the corrections"),
        case("nn.Adam amsgrad",
             lambda p, s: nn.Adam(p, 0.05, 0.5, 0.6, 1e-6, weight_decay=0.05, loss_scale=s, use_amsgrad=True), _amsgrad,
             "Reddi, Kale and Kumar 2018, with the rate of MindSpore's documentation", SCALE),
        case("nn.Adam nesterov",
             lambda p, s: nn.Adam(p, 0.05, 0.5, 0.6, 1e-6, use_nesterov=True, loss_scale=s), _nesterov,
             "MindSpore's documentation of ops.Adam", SCALE),
        case("nn.Lamb", lambda p, s: nn.Lamb(p, 0.05, 0.8, 0.9, 1e-6, 0.1), _lamb, "You et al. 2020, algorithm 2"),
        case("nn.FTRL", lambda p, s: nn.FTRL(p, 0.2, 0.1, -0.5, 0.4, 0.1, loss_scale=s), _follow_leader,
             "McMahan et al. 2013, algorithm 1", SCALE),
        case("nn.ProximalAdagrad", lambda p, s: nn.ProximalAdagrad(p, 0.2, 0.1, 0.05, 0.3, False, s, 0.05), _proximal,
             "Duchi and Singer 2009, section 3, with Adagrad's rate", SCALE),
        case("nn.LARS", lambda p, s: nn.LARS(nn.Momentum(p, 0.1, 0.9, 0.05, s), 1e-5, 0.2), _layerwise,
             "You, Gitman and Ginsburg 2017, algorithm 1", SCALE, ("bias", "b")),
        case("nn.LARS with use_clip",
             lambda p, s: nn.LARS(nn.Momentum(p, 0.1, 0.9, 0.05, s), 1e-5, 0.05, True), _clipped,
             "You, Gitman and Ginsburg 2017, algorithm 1, its rate over that of the optimizer at most 1", SCALE,
             ("bias", "b")),
        case("nn.AdaFactor with a rate of its own", lambda p, s: nn.AdaFactor(p, beta1=0.7, warmup_init=True),
             _factored, "Shazeer and Stern 2018, algorithms 4 and 5"),
        case("nn.SGD, its weight decay apart from the loss scale",
             lambda p, s: nn.SGD(p, 0.1, weight_decay=0.3, loss_scale=s), lambda _, w, g, t, i: w - 0.1 * (g + 0.3 * w),
             "w - lr (g + decay w)", SCALE),
        case("nn.Momentum without decay of beta", lambda p, s: nn.Momentum(p, 0.1, 0.0, 0.3), lambda _, w, g, t, i: (
             w - 0.1 * (g + (0.3 * w if i else 0.0))), "MindSpore's documentation of nn.Optimizer", 1.0, ("beta", "b")),
        case("nn.SGD with a list of rates", lambda p, s: nn.SGD(p, list(RATES)), lambda _, w, g, t, i: (
             w - RATES[min(t, len(RATES)) - 1] * g), "one rate a step, the last one for all behind it"),
        Case("nn.SGD with grad_centralization", _centralized, lambda torch: WIDE - 0.1 * (
             PULL - PULL.mean(1, keepdims=True)), "Yong et al. 2020, equation 1", WIDE),
    ]  # fmt: skip


RATES = (0.3, 0.1, 0.2)
WIDE, PULL = floats(1, (3, 16)), floats(2, (3, 16)) + np.float32(1)
"""A parameter that MindSpore centralizes, and its gradient."""


def _centralized() -> Array:
    from mspc.api import nn
    from mspc.api.common.parameter import Parameter
    from mspc.api.common.tensor import Tensor

    parameter = Parameter(Tensor(WIDE.copy()), "a")
    nn.SGD([{"params": [parameter], "grad_centralization": True}], 0.1)((Tensor(PULL),))
    return parameter.asnumpy()


def _means(state: State, gradient: Array, first: float, second: float) -> tuple[Array, Array]:
    """The running means of a gradient and of its square."""
    state["m"] = first * state.get("m", 0.0) + (1 - first) * gradient
    state["v"] = second * state.get("v", 0.0) + (1 - second) * gradient**2
    return state["m"], state["v"]


def _decoupled(state: State, w: Array, g: Array, t: int, i: int) -> Array:
    m, v = _means(state, g, 0.8, 0.9)
    return w - 0.05 * (m / (np.sqrt(v) + 1e-6) + 0.05 * w)


def _amsgrad(state: State, w: Array, g: Array, t: int, i: int) -> Array:
    m, v = _means(state, g + 0.05 * w, 0.5, 0.6)
    state["most"] = np.maximum(state.get("most", 0.0), v)
    return w - 0.05 * np.sqrt(1 - 0.6**t) / (1 - 0.5**t) * m / (np.sqrt(state["most"]) + 1e-6)


def _nesterov(state: State, w: Array, g: Array, t: int, i: int) -> Array:
    m, v = _means(state, g, 0.5, 0.6)
    return w - 0.05 * np.sqrt(1 - 0.6**t) / (1 - 0.5**t) * (0.5 * m + 0.5 * g) / (np.sqrt(v) + 1e-6)


def _lamb(state: State, w: Array, g: Array, t: int, i: int) -> Array:
    m, v = _means(state, g, 0.8, 0.9)
    step = m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.9**t)) + 1e-6) + 0.1 * w
    return w - 0.05 * np.linalg.norm(w) / np.linalg.norm(step) * step


def _follow_leader(state: State, w: Array, g: Array, t: int, i: int) -> Array:
    before = state.get("n", 0.2)
    state["n"] = before + g**2
    state["z"] = state.get("z", 0.0) + g - (np.sqrt(state["n"]) - np.sqrt(before)) / 0.1 * w
    z = state["z"]
    return np.where(np.abs(z) > 0.4, (np.sign(z) * 0.4 - z) / (np.sqrt(state["n"]) / 0.1 + 2 * 0.1), 0.0)


def _proximal(state: State, w: Array, g: Array, t: int, i: int) -> Array:
    g = g + 0.05 * w
    state["a"] = state.get("a", 0.2) + g**2
    rate = 0.1 / np.sqrt(state["a"])
    stepped = w - rate * g
    return np.sign(stepped) * np.maximum(0, np.abs(stepped) - rate * 0.05) / (1 + rate * 0.3)


def _layerwise(state: State, w: Array, g: Array, t: int, i: int) -> Array:
    if i == 1:  # the other one is a bias
        size = np.linalg.norm(w)
        g = (g + 0.05 * w) * 0.2 * size / (np.linalg.norm(g) + 0.05 * size + 1e-5)
    state["v"] = 0.9 * state.get("v", 0.0) + g
    return w - 0.1 * state["v"]


def _clipped(state: State, w: Array, g: Array, t: int, i: int) -> Array:
    if i == 1:
        size = np.linalg.norm(w)
        ratio = 0.05 * size / (np.linalg.norm(g) + 0.05 * size + 1e-5)
        g = (g + 0.05 * w) * min(ratio / 0.1, 1.0)
    state["v"] = 0.9 * state.get("v", 0.0) + g
    return w - 0.1 * state["v"]


def _factored(state: State, w: Array, g: Array, t: int, i: int) -> Array:
    keep, square = 1 - t**-0.8, g**2 + 1e-30
    rate = min(1e-6 * t, t**-0.5) * max(1e-3, float(np.sqrt(np.mean(w**2))))
    if g.ndim < 2:
        state["v"] = keep * state.get("v", 0.0) + (1 - keep) * square
        update = g / np.sqrt(state["v"])
    else:
        state["r"] = keep * state.get("r", 0.0) + (1 - keep) * square.mean(1)
        state["c"] = keep * state.get("c", 0.0) + (1 - keep) * square.mean(0)
        update = g / np.sqrt(np.outer(state["r"], state["c"]) / state["r"].mean())
    update = update / max(1.0, float(np.sqrt(np.mean(update**2)))) * rate
    state["m"] = 0.7 * state.get("m", 0.0) + 0.3 * update
    return w - state["m"]
