"""Modules that compute gradients in `forward`: losses and gradients beside PyTorch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Tensor
from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.exporting import export_made
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.network import ImportedNetwork

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")
nn = torch.nn


class Penalty(nn.Module):
    """The norm of a gradient, its scale without a gradient, and a moving mean."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 3), nn.LogSoftmax(-1))
        self.register_buffer("mean", torch.ones(()))

    def forward(self, x: Any) -> Any:
        x = x.detach().requires_grad_()
        found = self.net(x)
        (slope,) = torch.autograd.grad(found[:, 0].sum(), x, create_graph=True)
        with torch.no_grad():
            scale = slope.norm()
            self.mean.lerp_(scale, 0.1)
        return ((slope.norm(dim=1) - 1).square() * scale).mean() + (found * found.detach()).mean()


class Laplacian(nn.Module):
    """The trace of the Hessian of a row, by `torch.func`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 1))

    def forward(self, x: Any) -> Any:
        slope = torch.func.grad(lambda row: self.net(row).sum())
        return torch.vmap(lambda row: torch.func.jacrev(slope)(row).trace())(x).square().mean()


class InnerStep(nn.Module):
    """The loss after a step of an inner training, as meta-learning has it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        def loss(weight: Any, bias: Any) -> Any:
            return (x @ weight.T + bias).tanh().square().mean()

        own = self.net.weight, self.net.bias
        slopes = torch.func.grad(loss, argnums=(0, 1))(*own)
        return loss(*[each - 0.1 * slope for each, slope in zip(own, slopes, strict=True)])


MODULES = {
    "inner step": InnerStep,
    "autograd.grad": lambda: Penalty(nn.GELU("tanh")),
    "torch.func": Laplacian,
}


@pytest.mark.parametrize("name", MODULES)
def test_gradients_of_gradients_are_pytorchs(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = MODULES[name](), torch.randn(5, 4)
    network = ImportedNetwork(read_program(export_made((module, (x,)), tmp_path / "m.pt2", "m.py:make").path))
    loss, grads = mspc.value_and_grad(network, None, network.trainable_params())(Tensor(x.numpy()))
    theirs = module(x)
    theirs.backward()
    np.testing.assert_allclose(loss.asnumpy(), theirs.item(), rtol=1e-5)
    wanted = dict(module.named_parameters())
    for weight, grad in zip(network.trainable_params(), grads, strict=True):
        other = np.zeros(weight.shape) if wanted[weight.name].grad is None else wanted[weight.name].grad.numpy()
        np.testing.assert_allclose(grad.asnumpy(), other, rtol=1e-4, atol=1e-6, err_msg=weight.name)
    for each in network.get_parameters():
        if each.name == "mean":
            assert each.asnumpy() == pytest.approx(module.mean.item(), rel=1e-5)


class Overwritten(nn.Module):
    """A write to a weight, which the recorded operators would not have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Any) -> Any:
        found = self.weight * x
        self.weight.data.mul_(0.5)
        return torch.autograd.grad((found**2).sum(), self.weight, create_graph=True)[0].sum()


def test_overwritten_tensors_without_gradients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match=r"PyTorch cannot export m\.py:make"):
        export_made((Overwritten(), (torch.ones(3),)), tmp_path / "m.pt2", "m.py:make")
