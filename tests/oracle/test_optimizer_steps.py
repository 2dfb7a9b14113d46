"""Optimizers against PyTorch and formulas: cases that `optimizer_cases` has not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, mint, nn

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near  # noqa: E402  # it imports PyTorch

SHAPES = ((3,), (4, 5))
STEPS = 10
GRADS = [[floats(10 * step + i, *shape, dtype=np.float32) for i, shape in enumerate(SHAPES)] for step in range(STEPS)]


def start() -> list[np.ndarray]:
    return [floats(i, *shape, dtype=np.float32) for i, shape in enumerate(SHAPES)]


def weights(names: Any = ("a", "b")) -> list[Parameter]:
    return [Parameter(Tensor(array), name) for array, name in zip(start(), names, strict=True)]


def taken(optimizer: Any, parameters: Any, scale: float = 1.0) -> list[list[np.ndarray]]:
    """The parameters after every step of a compiled optimizer."""
    found = []
    for gradients in GRADS:
        optimizer(tuple(Tensor(gradient * np.float32(scale)) for gradient in gradients))
        found.append([p.asnumpy() for p in parameters])
    return found


def judged(make: Any) -> list[list[np.ndarray]]:
    """The same of an optimizer of PyTorch."""
    parameters = [torch.nn.Parameter(torch.tensor(array)) for array in start()]
    optimizer = make(parameters)
    found = []
    for gradients in GRADS:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
        found.append([p.detach().numpy().copy() for p in parameters])
    return found


def agree(found: Any, expected: Any) -> None:
    for step, (one, other) in enumerate(zip(found, expected, strict=True), 1):
        for mine, theirs in zip(one, other, strict=True):
            near(mine, theirs, f"step {step}", 1e-5)


T = torch.optim


@pytest.mark.parametrize("compression", [False, True])
def test_adafactor_finds_its_own_rate(compression: bool) -> None:
    parameters = weights()
    optimizer = nn.AdaFactor(parameters, beta1=0.7, warmup_init=True, compression=compression)
    assert [row.dtype == ms.float16 for row in optimizer.rows] == [compression, False]
    found = taken(optimizer, parameters)
    w = [a.astype(float) for a in start()]
    m = [np.zeros_like(a) for a in w]
    squares, row, column = np.zeros(3), np.zeros(4), np.zeros(5)
    for step, gradients in enumerate(GRADS, 1):
        keep = 1 - step**-0.8
        for i, g in enumerate(gradients):
            rate = min(1e-6 * step, step**-0.5) * max(1e-3, float(np.sqrt(np.mean(w[i] ** 2))))
            if i == 0:
                squares = keep * squares + (1 - keep) * (g * g + 1e-30)
                u = g / np.sqrt(squares)
            else:
                row = keep * row + (1 - keep) * (g * g + 1e-30).mean(1)
                column = keep * column + (1 - keep) * (g * g + 1e-30).mean(0)
                u = g / np.sqrt(np.outer(row, column) / row.mean())
            u = u / max(1.0, float(np.sqrt(np.mean(u**2)))) * rate
            m[i] = 0.7 * m[i] + 0.3 * u
            w[i] = w[i] - m[i]
            near(found[step - 1][i], w[i], f"step {step}", 1e-6)


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
def test_weights_in_bfloat16(kind: str) -> None:
    """Weights, gradients and states are in bfloat16, as PyTorch has them; each step rounds them once or twice."""
    settings: dict[str, Any] = {"weight_decay": 0.05} | ({"momentum": 0.9} if kind == "SGD" else {})
    halves = [Parameter(Tensor(array).astype(ms.bfloat16), name) for array, name in zip(start(), "ab", strict=True)]
    optimizer = getattr(mint.optim, kind)(halves, 0.1, **settings)
    theirs = [torch.nn.Parameter(torch.tensor(array).bfloat16()) for array in start()]
    judge = getattr(T, kind)(theirs, 0.1, **settings)
    for gradients in GRADS:
        optimizer(tuple(Tensor(gradient).astype(ms.bfloat16) for gradient in gradients))
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = torch.tensor(gradient).bfloat16()
        judge.step()
    for mine, other in zip(halves, theirs, strict=True):
        assert mine.dtype == ms.bfloat16
        near(mine.astype(ms.float32).asnumpy(), other.detach().float().numpy(), "ten steps", 0.05)


def test_adafactor_rounds_the_squares_that_it_compresses() -> None:
    def run(compression: bool) -> Any:
        parameters = weights()
        return taken(nn.AdaFactor(parameters, compression=compression), parameters)

    compressed, exact = run(True), run(False)
    for step, (ours, theirs) in enumerate(zip(compressed, exact, strict=True)):
        moved = np.abs(theirs[0].astype(float) - start()[0]).max()
        apart = np.abs(ours[0].astype(float) - theirs[0]).max()
        assert (apart > 0) == (step > 0), f"step {step}: the first squares are used before they are rounded"
        assert apart < 1e-3 * moved
        np.testing.assert_array_equal(ours[1], theirs[1])


def test_groups() -> None:
    parameters = weights(("beta", "gamma"))
    groups = [{"params": [parameters[0]], "lr": 0.2, "weight_decay": 0.1}, {"params": [parameters[1]]}]
    found = taken(mint.optim.AdamW(groups, 0.1, weight_decay=0.03), parameters)
    agree(found, judged(lambda p: T.AdamW([{"params": [p[0]], "lr": 0.2, "weight_decay": 0.1}, {"params": [p[1]]}],
                                          0.1, weight_decay=0.03)))  # fmt: skip
    parameters = weights(("beta", "gamma"))
    agree(taken(mint.optim.AdamW(parameters, 0.1, weight_decay=0.03), parameters),
          judged(lambda p: T.AdamW(p, 0.1, weight_decay=0.03)))  # fmt: skip


@pytest.mark.parametrize("kind", ["Momentum", "Lamb", "AdamWeightDecay"])
def test_centralized_gradients(kind: str, capsys: Any) -> None:
    """The gradients of groups that ask for it, less their means where the second dimension is a multiple of 16; after
    the weight decay where that is added to the gradient."""
    shapes = {"a": (3, 16, 2), "b": (3, 5, 2), "c": (16,), "d": (2, 16)}
    w = {name: floats(i, *shape, dtype=np.float32) for i, (name, shape) in enumerate(shapes.items())}
    g = {name: floats(9 + i, *shape, dtype=np.float32) for i, (name, shape) in enumerate(shapes.items())}

    def moved(asked: bool, gradients: dict[str, np.ndarray]) -> list[np.ndarray]:
        own = [Parameter(Tensor(array), name) for name, array in w.items()]
        groups = [{"params": own[:3], "grad_centralization": asked}, {"params": own[3:]}]
        arguments = (0.1, 0.9, 0.3) if kind == "Momentum" else (0.1,)
        getattr(nn, kind)(groups, *arguments)(tuple(map(Tensor, gradients.values())))
        return [p.asnumpy() for p in own]

    decay = 0.3 if kind == "Momentum" else 0.0
    pulled = g["a"] + decay * w["a"]
    by_hand = g if kind == "AdamWeightDecay" else g | {"a": g["a"] - pulled.mean((1, 2), keepdims=True)}
    for mine, theirs in zip(moved(True, g), moved(False, by_hand), strict=True):
        near(mine, theirs, kind, 1e-5)
    said = "warning: AdamWeightDecay: grad_centralization changes nothing, as in MindSpore\n"
    assert capsys.readouterr().err == (said if kind == "AdamWeightDecay" else "")


def test_weight_decay_from_the_step() -> None:
    class Decay(nn.Cell):
        def construct(self, step: Any) -> Any:
            return ms.ops.cast(step, ms.float32) * 0.01

    parameters = weights()
    found = taken(nn.Momentum(parameters, 0.1, 0.9, Decay()), parameters)
    w, v = [a.astype(float) for a in start()], [0.0, 0.0]
    for step, gradients in enumerate(GRADS):
        for i, g in enumerate(gradients):
            v[i] = 0.9 * v[i] + g + 0.01 * step * w[i]
            w[i] = w[i] - 0.1 * v[i]
            near(found[step][i], w[i], f"step {step}", 1e-5)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda p: nn.Adam(p, use_lasy=True), TypeError, "Adam has no argument 'use_lasy'"),
        (lambda p: nn.Adam(p, use_amsgrad=1), TypeError, "Adam: use_amsgrad must be True or False, not 1"),
        (lambda p: nn.Adam(p, use_amsgrad=True, use_nesterov=True), ValueError,
         "Adam: use_amsgrad goes with neither use_nesterov nor use_lazy nor use_offload"),
        (lambda p: nn.Adadelta(p, rho=1.5), ValueError, "Adadelta: rho 1.5 must be at most 1"),
        (lambda p: nn.LARS(p), TypeError, "LARS: optimizer must be an Optimizer, not list"),
        (lambda p: nn.AdaFactor(p, 0.1), ValueError,
         "AdaFactor: learning_rate must be None with relative_step, and a rate without"),
        (lambda p: nn.AdaFactor(p, compression=1), TypeError, "AdaFactor: compression must be True or False, not 1"),
        (lambda p: mint.optim.AdamW(p, betas=(0.9, 1.0)), ValueError, "AdamW: betas (0.9, 1.0) must be in [0, 1)"),
        (lambda p: nn.SGD([{"params": p}, {"order_params": p[:1]}]), ValueError,
         "SGD: order_params must hold each parameter of the groups once"),
        (lambda p: nn.SGD([{"params": p, "grad_centralization": 1}]), TypeError,
         "SGD: grad_centralization must be True or False, not 1"),
    ],
)  # fmt: skip
def test_mistakes(make: Any, error: Any, message: str) -> None:
    with pytest.raises(error) as raised:
        make(weights())
    assert raised.value.message == message
