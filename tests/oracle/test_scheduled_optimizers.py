"""Optimizers and schedulers of `mindspore.experimental.optim`, against PyTorch's of the same names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Parameter, Tensor, mint, nn
from mspc.experimental import optim

torch = pytest.importorskip("torch")

DRAWS = np.random.default_rng(8)
START = DRAWS.standard_normal((2, 3)).astype(np.float32)
GRADIENTS = DRAWS.standard_normal((3, 2, 3)).astype(np.float32)

GROUPED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Adam", {"betas": (0.5, 0.8), "eps": 0.01}, {"amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {"maximize": True}, {"betas": (0.5, 0.8), "weight_decay": 0.3}),
    ("SGD", {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "dampening": 0.3, "maximize": True}),
]


@pytest.mark.parametrize(("name", "first", "second"), GROUPED, ids=[name for name, _, _ in GROUPED])
def test_groups_have_arguments_of_their_own(name: str, first: dict[str, Any], second: dict[str, Any]) -> None:
    own = [Parameter(Tensor(START), name=each) for each in ("a", "b")]
    others = [torch.nn.Parameter(torch.from_numpy(START.copy())) for _ in own]
    mine, theirs = (
        getattr(kind, name)([{"params": [a], **first}, {"params": [b], "lr": 0.02, **second}], 0.05)
        for kind, (a, b) in ((mint.optim, own), (torch.optim, others))
    )
    for gradient in GRADIENTS:
        mine((Tensor(gradient), Tensor(-gradient)))
        for other, sign in zip(others, (1, -1), strict=True):
            other.grad = torch.from_numpy(sign * gradient)
        theirs.step()
    for found, expected in zip(own, others, strict=True):
        np.testing.assert_allclose(found.asnumpy(), expected.detach().numpy(), rtol=2e-5, atol=2e-6)


def test_what_a_group_says_in_vain(capsys: Any) -> None:
    group = {"params": [Parameter(Tensor(START), name="a")], "rho": 0.5, "eps": 1e-3}
    mint.optim.Adam([group])
    said = "Adam: 'rho' of a group changes nothing here; it has params, lr, weight_decay, betas, eps, amsgrad, maximize"
    assert capsys.readouterr().err == f"warning: {said}\n"
    with pytest.raises(TypeError, match="Adam: amsgrad must be True or False, not 1"):
        mint.optim.Adam([group | {"amsgrad": 1}])


def both(rates: tuple[float, ...] = (0.1, 0.2)) -> tuple[Any, Any]:
    """Optimizers with a group for each rate."""
    own = [{"params": [Parameter(Tensor(START), name=f"w{i}")], "lr": rate} for i, rate in enumerate(rates)]
    other = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates]
    return optim.SGD(own, lr=1.0, momentum=0.5), torch.optim.SGD(other, lr=1.0, momentum=0.5)


def test_networks_train_by_the_rate_of_now() -> None:
    own = Parameter(Tensor(START), name="w")
    optimizer = optim.SGD([own], lr=0.1)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    optimizer((Tensor(GRADIENTS[0]),))
    scheduler.step()
    optimizer((Tensor(GRADIENTS[1]),))
    np.testing.assert_allclose(own.asnumpy(), START - 0.1 * GRADIENTS[0] - 0.05 * GRADIENTS[1], rtol=1e-6)


def test_optimizers_that_scripts_write() -> None:
    class Own(optim.Optimizer):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr, "scale": 1.0})

        def construct(self, gradients):
            for place, group in enumerate(self.param_groups):
                first = self.group_start_id[place]
                for i, parameter in enumerate(group["params"]):
                    step = gradients[first + i] * group["lr"] * group["scale"]
                    mspc.ops.assign(parameter, parameter - step)

    parameters = [Parameter(Tensor(START), name=name) for name in "ab"]
    optimizer = Own([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.5, "scale": 2.0}], 0.25)
    optimizer((Tensor(GRADIENTS[0]), Tensor(GRADIENTS[1])))
    np.testing.assert_allclose(parameters[0].asnumpy(), START - 0.25 * GRADIENTS[0], rtol=1e-6)
    np.testing.assert_allclose(parameters[1].asnumpy(), START - GRADIENTS[1], rtol=1e-6)


MISTAKES: list[tuple[Any, str]] = [
    (lambda: optim.lr_scheduler.StepLR(nn.ReLU(), 2),
     "StepLR: optimizer must be an optimizer of mindspore.experimental.optim, not ReLU"),
    (lambda: optim.lr_scheduler.LambdaLR(both()[0], [abs]),
     "LambdaLR: lr_lambda must be a function, or 2 of them, not [<built-in function abs>]"),
    (lambda: optim.Adam(3), "Adam: params must be a list of Parameters, not 3"),
    (lambda: optim.Optimizer([], {}), "Optimizer: defaults must be a dict with 'lr', not dict"),
    (lambda: both()[0].__class__([{"lr": 1}], 0.1), "SGD: a group must be a dict with 'params', not dict"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_named(wrong: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        wrong()
    assert caught.value.message == message  # type: ignore[attr-defined]
