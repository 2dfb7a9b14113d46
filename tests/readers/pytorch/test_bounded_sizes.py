"""Sizes that depend on data: with a bound their padding is nowhere seen, in results and gradients beside PyTorch's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc.ir.diagnostics import MspcError

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
X = torch.linspace(-1, 1.3, 24).reshape(6, 4)[torch.tensor([3, 0, 5, 1, 4, 2])]
WORDS = torch.tensor([3, 1, 3, 2])


def rows(module: Any, x: Any) -> Any:
    """Rows with a positive sum through two layers, combined in several ways."""
    places = torch.nonzero(x.sum(1) > 0).squeeze(1)
    h = torch.relu(module.two(torch.index_select(module.one(x), 0, places)))
    return h.mean(0).sum() + torch.softmax(h, 0).max() + h.amax(0).sum() + (h.T @ h).sum()


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int, str]] = {
    "rows": (rows, (X,), 5, ""),
    "all rows": (rows, (X,), 6, ""),
    "masked_select": (lambda m, x: torch.masked_select(m.one(x), x[:, :3] > 0).sum(), (X,), 18, ""),
    "repeat_interleave": (
        lambda m, x, n: torch.repeat_interleave(m.one(x), n, 0).sum(), (X, torch.tensor([1, 2, 0, 3, 1, 1])), 12, "",
    ),
    "where": (lambda m, x: m.one(x)[torch.where(x.sum(1) > 0)[0]].square().mean(), (X,), 6, ""),
    "unique": (lambda m, x: torch.unique(x, return_inverse=True), (WORDS,), 4, ""),
    "bincount": (lambda m, x: torch.bincount(x).float().max(), (WORDS,), 9, ""),
    "returned": (lambda m, x: torch.masked_select(x, x > 0), (X,), 20, ""),
    "only checked": (lambda m, x, n: (torch._check(n.max().item() <= 9), m.one(x).sum())[1], (X, WORDS), 0, ""),
    "too small": (lambda m, x: torch.masked_select(x, x > 0), (X,), 3, "more than the bound 3"),
    "no bound": (lambda m, x: torch.masked_select(x, x > 0), (X,), 0, "--size u0=N"),
    "a reader of padding": (lambda m, x: torch.masked_select(x, x > 0).cumsum(0), (X,), 20, "reads padding"),
    "a number of elements": (lambda m, x: x.sum() / torch.nonzero(x).shape[0], (X,), 24, "reads the size u0"),
}  # fmt: skip
"""A function of a module and inputs, the inputs, the bound, and the error."""


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


@pytest.mark.parametrize("name", CASES)
def test_padding_is_not_seen(name: str, tmp_path: Path) -> None:
    function, inputs, bound, error = CASES[name]
    torch.manual_seed(0)
    module = Net(function)
    torch.export.save(torch.export.export(module, inputs), tmp_path / "net.pt2")
    arrays = [ms.Tensor(each.numpy()) for each in inputs]
    if error:
        with pytest.raises((MspcError, RuntimeError), match=error):
            ms.load_torch(tmp_path / "net.pt2", sizes={"u0": bound} if bound else None)(*arrays)
        return
    net = ms.load_torch(tmp_path / "net.pt2", sizes={"u0": bound} if bound else None)
    wanted, found = module(*inputs), net(*arrays)
    pairs = zip(wanted, found, strict=True) if isinstance(wanted, tuple) else [(wanted, found)]
    for one, other in pairs:
        held = other.asnumpy()[tuple(map(slice, one.shape))]
        np.testing.assert_allclose(held, one.detach().numpy(), 1e-5, 1e-6)
        assert np.count_nonzero(held) == np.count_nonzero(other.asnumpy())
    if not isinstance(wanted, tuple) and wanted.requires_grad:
        gradients = ms.grad(net, None, net.trainable_params())(*arrays)
        judged = dict(module.named_parameters())
        for parameter, gradient in zip(net.trainable_params(), gradients, strict=True):
            own = torch.autograd.grad(module(*inputs), judged[parameter.name], allow_unused=True)[0]
            np.testing.assert_allclose(gradient.asnumpy(), 0 if own is None else own.numpy(), 1e-4, 1e-5)
