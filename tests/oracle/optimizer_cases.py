"""Defines a case of a training step: numbers made by mspc, and the same by PyTorch or a formula written down apart."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
STEPS = 6
SHAPES = ((3,), (4, 5))
SCALE = 64.0


@dataclass(frozen=True)
class Case:
    """One compared training step. mine: mspc's numbers. theirs: the judge's, given PyTorch. before: the first values,
    if the change is compared too. source: names the judge."""

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
    from mspc.mindspore_api.common.parameter import Parameter
    from mspc.mindspore_api.common.tensor import Tensor

    return [Parameter(Tensor(array.copy()), name) for array, name in zip(START, names, strict=True)]


def taken(
    make: Callable[[list[Any], float], Any], scale: float = 1.0, names: Sequence[str] = ("a", "b")
) -> Array:
    """[steps, numbers]: the parameters after every step of an optimizer of mspc. make: the
    optimizer of parameters and of the scale that gradients come with."""
    from mspc.mindspore_api.common.tensor import Tensor

    parameters = weights(names)
    optimizer = make(parameters, scale)
    found: list[Array] = []
    for gradients in GRADIENTS:
        optimizer(tuple(Tensor(gradient * np.float32(scale)) for gradient in gradients))
        found.append(flat([p.asnumpy() for p in parameters]))
    return np.stack(found)


def by_torch(torch: Any, make: Callable[[list[Any]], Any]) -> Array:
    """The same of an optimizer of PyTorch."""
    parameters = [torch.nn.Parameter(torch.tensor(array.astype(np.float64))) for array in START]
    optimizer = make(parameters)
    found: list[Array] = []
    for gradients in GRADIENTS:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.tensor(gradient.astype(np.float64))
        optimizer.step()
        found.append(flat([p.detach().numpy() for p in parameters]))
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


# Compares every optimizer of mspc with PyTorch's.


TINY = 1e-12
"""MindSpore adds eps at another place than PyTorch in some optimizers; this one is too small to matter."""


Mine = Callable[[list[Any], float], Any]
Theirs = Callable[[Any, list[Any]], Any]


def _case(name: str, mine: Mine, theirs: Theirs, scale: float = 1.0) -> Case:
    return Case(name, lambda: taken(mine, scale), lambda torch: by_torch(torch, lambda p: theirs(torch.optim, p)),
                before=BEFORE)  # fmt: skip


def _from_ones(o: Any, p: list[Any], centered: bool) -> Any:
    """PyTorch's RMSprop with MindSpore's first mean square, 1."""
    made = o.RMSprop(p, 0.05, 0.8, TINY, 0.05, 0.5, centered, foreach=False)
    for each in p:
        made.state[each] = {
            "step": each.new_zeros(()), "square_avg": each.detach() * 0 + 1,
            "momentum_buffer": each.detach() * 0, "grad_avg": each.detach() * 0,
        }  # fmt: skip
    return made


def _two(p: list[Any]) -> list[dict[str, Any]]:
    return [{"params": [p[1]], "lr": 0.2, "weight_decay": 0.1}, {"params": [p[0]]}]


def optimizers() -> list[Case]:
    """Make a case for every optimizer that PyTorch has, with weight decay and, if it takes one, a loss scale."""
    return [*_with_moments(), *_adaptive(), *_with_its_arguments()]


def _with_moments() -> list[Case]:
    from mspc.mindspore_api import nn

    return [
        _case("nn.SGD", lambda p, s: nn.SGD(p, 0.1, 0.9, 0.3, 0.05, loss_scale=s),
              lambda o, p: o.SGD(p, 0.1, 0.9, 0.3, 0.05), SCALE),
        _case("nn.SGD nesterov", lambda p, s: nn.SGD(p, 0.1, 0.9, 0.0, 0.05, True, s),
              lambda o, p: o.SGD(p, 0.1, 0.9, 0.0, 0.05, True), SCALE),
        _case("nn.Momentum", lambda p, s: nn.Momentum(p, 0.1, 0.9, 0.05, s),
              lambda o, p: o.SGD(p, 0.1, 0.9, weight_decay=0.05), SCALE),
        _case("nn.Momentum nesterov", lambda p, s: nn.Momentum(p, 0.1, 0.9, 0.05, s, True),
              lambda o, p: o.SGD(p, 0.1, 0.9, weight_decay=0.05, nesterov=True), SCALE),
        _case("nn.Momentum in groups", lambda p, s: nn.Momentum([*_two(p), {"order_params": p}], 0.1, 0.9, 0.03),
              lambda o, p: o.SGD([_two(p)[0], {"params": [p[0]], "weight_decay": 0.03}], 0.1, 0.9)),
        _case("nn.Adam", lambda p, s: nn.Adam(p, 0.05, eps=TINY, weight_decay=0.05, loss_scale=s),
              lambda o, p: o.Adam(p, 0.05, eps=TINY, weight_decay=0.05), SCALE),
        _case("nn.Adam lazy", lambda p, s: nn.Adam(p, 0.05, eps=TINY, use_lazy=True, loss_scale=s),
              lambda o, p: o.Adam(p, 0.05, eps=TINY), SCALE),
        _case("nn.LazyAdam", lambda p, s: nn.LazyAdam(p, 0.05, eps=TINY, weight_decay=0.05, loss_scale=s),
              lambda o, p: o.Adam(p, 0.05, eps=TINY, weight_decay=0.05), SCALE),
    ]  # fmt: skip


def _adaptive() -> list[Case]:
    from mspc.mindspore_api import nn

    return [
        _case("nn.Adagrad", lambda p, s: nn.Adagrad(p, 0.1, 0.05, True, s, 0.05),
              lambda o, p: o.Adagrad(p, 0.05, 0.0, 0.05, 0.1, TINY), SCALE),
        _case("nn.RMSProp", lambda p, s: nn.RMSProp(p, 0.05, 0.8, 0.5, TINY, False, False, s, 0.05),
              lambda o, p: _from_ones(o, p, False), SCALE),
        _case("nn.RMSProp centered", lambda p, s: nn.RMSProp(p, 0.05, 0.8, 0.5, TINY, False, True, s, 0.05),
              lambda o, p: _from_ones(o, p, True), SCALE),
    ]  # fmt: skip


def _with_its_arguments() -> list[Case]:
    from mspc.mindspore_api.mint import optim as mint

    return [
        _case("mint.optim.Adam", lambda p, s: mint.Adam(p, 0.05, (0.8, 0.9), 1e-3, 0.05),
              lambda o, p: o.Adam(p, 0.05, (0.8, 0.9), 1e-3, 0.05)),
        _case("mint.optim.Adam amsgrad", lambda p, s: mint.Adam(p, 0.05, (0.8, 0.5), 1e-3, 0.05, True, maximize=True),
              lambda o, p: o.Adam(p, 0.05, (0.8, 0.5), 1e-3, 0.05, True, maximize=True)),
        _case("mint.optim.AdamW", lambda p, s: mint.AdamW(p, 0.05, (0.8, 0.9), 1e-3, 0.05, amsgrad=True),
              lambda o, p: o.AdamW(p, 0.05, (0.8, 0.9), 1e-3, 0.05, True)),
        _case("mint.optim.AdamW in groups", lambda p, s: mint.AdamW(_two(p[::-1]), 0.1, weight_decay=0.03),
              lambda o, p: o.AdamW(_two(p[::-1]), 0.1, weight_decay=0.03)),
        Case("mint.optim.AdamW of parameters of norms",
             lambda: taken(lambda p, s: mint.AdamW(p, 0.1, weight_decay=0.03), names=("beta", "gamma")),
             lambda torch: by_torch(torch, lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.03)), before=BEFORE),
        _case("mint.optim.SGD", lambda p, s: mint.SGD(p, 0.1, 0.9, 0.2, 0.05, maximize=True),
              lambda o, p: o.SGD(p, 0.1, 0.9, 0.2, 0.05, maximize=True)),
    ]  # fmt: skip


# Compares learning rates with PyTorch's schedules, or their formulas: of cells and of lists.


COUNT = 10


def rates() -> list[Case]:
    """A case for every schedule."""
    from mspc.mindspore_api import nn

    def cell(name: str, make: Callable[[], Any], formula: Callable[[int], float], source: str) -> Case:
        wanted = np.array([formula(step) for step in range(COUNT)])
        return Case(f"nn.{name}", lambda: _of_steps(make()), lambda torch: wanted, source)

    def listed(name: str, found: Callable[[], Sequence[float]], formula: Callable[[int], float], source: str) -> Case:
        wanted = np.array([formula(step) for step in range(COUNT)])
        return Case(f"nn.{name}", lambda: np.array(found()), lambda torch: wanted, source)

    documented = "MindSpore's documentation"
    cosine = "Loshchilov and Hutter 2017, equation 5, held at its end"
    return [
        cell("ExponentialDecayLR", lambda: nn.ExponentialDecayLR(0.4, 0.5, 4), lambda t: 0.4 * 0.5 ** (t / 4),
             documented),
        cell("ExponentialDecayLR in stairs", lambda: nn.ExponentialDecayLR(0.4, 0.5, 4, True),
             lambda t: 0.4 * 0.5 ** (t // 4), documented),
        cell("CosineDecayLR", lambda: nn.CosineDecayLR(0.1, 0.4, 8),
             lambda t: 0.1 + 0.15 * (1 + math.cos(math.pi * min(t, 8) / 8)), cosine),
        cell("PolynomialDecayLR", lambda: nn.PolynomialDecayLR(0.4, 0.1, 8, 2.0),
             lambda t: 0.3 * (1 - min(t, 8) / 8) ** 2 + 0.1, documented),
        cell("WarmUpLR", lambda: nn.WarmUpLR(0.4, 5), lambda t: 0.4 * min(t, 5) / 5, documented),
        listed("exponential_decay_lr", lambda: nn.exponential_decay_lr(0.4, 0.5, COUNT, 2, 3),
               lambda t: 0.4 * 0.5 ** (t // 2 / 3), documented),
        listed("exponential_decay_lr in stairs", lambda: nn.exponential_decay_lr(0.4, 0.5, COUNT, 2, 3, True),
               lambda t: 0.4 * 0.5 ** (t // 2 // 3), documented),
        listed("cosine_decay_lr", lambda: nn.cosine_decay_lr(0.1, 0.4, COUNT, 2, 4),
               lambda t: 0.1 + 0.15 * (1 + math.cos(math.pi * min(t // 2, 4) / 4)), cosine),
    ]  # fmt: skip
def _of_steps(schedule: Any) -> Array:
    """The rates of the steps of an optimizer, measured with gradients of ones."""
    from mspc.mindspore_api import nn
    from mspc.mindspore_api.common.parameter import Parameter
    from mspc.mindspore_api.common.tensor import Tensor

    weight = Parameter(Tensor(np.zeros(1, np.float32)), "w")
    optimizer, values = nn.SGD([weight], schedule), [0.0]
    for _ in range(COUNT):
        optimizer((Tensor(np.ones(1, np.float32)),))
        values.append(float(weight.asnumpy()[0]))
    return -np.diff(values)


# Compares optimizers that PyTorch has not, or has otherwise, with their formulas, in Float64.


State = dict[str, Array]


def formulas() -> list[Case]:
    """A case for each, with its source."""
    from mspc.mindspore_api import nn

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
        case("nn.LARS", lambda p, s: nn.LARS(nn.Momentum(p, 0.1, 0.9, 0.05, s), 1e-5, 0.2), _layerwise,
             "You, Gitman and Ginsburg 2017, algorithm 1", SCALE, ("bias", "b")),
        case("nn.LARS with use_clip",
             lambda p, s: nn.LARS(nn.Momentum(p, 0.1, 0.9, 0.05, s), 1e-5, 0.05, True), _clipped,
             "You, Gitman and Ginsburg 2017, algorithm 1, its rate over that of the optimizer at most 1", SCALE,
             ("bias", "b")),
        case("nn.Momentum with a decay of each step", lambda p, s: nn.Momentum(p, 0.1, 0.9, _decay_of_steps()),
             _decayed_by_steps, "MindSpore's documentation of nn.Optimizer"),
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
    from mspc.mindspore_api import nn
    from mspc.mindspore_api.common.parameter import Parameter
    from mspc.mindspore_api.common.tensor import Tensor

    parameter = Parameter(Tensor(WIDE.copy()), "a")
    nn.SGD([{"params": [parameter], "grad_centralization": True}], 0.1)((Tensor(PULL),))
    return parameter.asnumpy()


def _decay_of_steps() -> Any:
    from mspc.mindspore_api import nn, ops
    from mspc.mindspore_api.common.dtype import float32

    class Decay(nn.Cell):
        def construct(self, step: Any) -> Any:
            return ops.cast(step, float32) * 0.01

    return Decay()


def _decayed_by_steps(state: State, w: Array, g: Array, t: int, i: int) -> Array:
    state["v"] = 0.9 * state.get("v", 0.0) + g + 0.01 * (t - 1) * w
    return w - 0.1 * state["v"]


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
