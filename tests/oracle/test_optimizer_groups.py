"""Groups of parameters of `mindspore.mint.optim`, against PyTorch's optimizers of the same names."""

from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, mint

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


MISTAKES: list[tuple[Any, str]] = [
    (lambda: mint.optim.Adam(3), "Adam: params must be a list of Parameters, not 3"),
    (lambda: mint.optim.SGD([{"lr": 1}], 0.1), "SGD: a group must be a dict with 'params', not dict"),
]


@pytest.mark.parametrize(("wrong", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_named(wrong: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        wrong()
    assert caught.value.message == message  # type: ignore[attr-defined]
