"""A batch in parts has the loss and the gradients of the whole batch, also where labels or a mask say what counts."""

from collections.abc import Callable
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
from mspc.readers.pytorch.training import Training, compiled_as

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")
F = torch.nn.functional
PARTS, ROWS = 4, 4
WEIGHTS = torch.tensor([1.0, 0.5, 2.0, 1.5, 0.25])


class Net(torch.nn.Module):
    """A loss of what a layer gives and of labels. `decomposed`: the exporter writes the loss in small operators."""

    def __init__(self, loss: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(6, 5)
        self.register_buffer("weights", WEIGHTS)
        self.loss = loss

    def forward(self, x: Any, labels: Any) -> Any:
        return {"loss": self.loss(self.layer(x), labels, self.weights)}


LOSSES = {
    "mean": lambda y, labels, weights: F.cross_entropy(y, labels),
    "weights": lambda y, labels, weights: F.cross_entropy(y, labels, weights, label_smoothing=0.1),
    "nll": lambda y, labels, weights: 2 * F.nll_loss(F.log_softmax(y, -1), labels, ignore_index=-100),
    "mask": lambda y, labels, weights: (y.square().sum(-1) * (mask := (labels >= 0).to(y.dtype))).sum() / mask.sum(),
    "clamped": lambda y, labels, weights: (y[:, 0] * (mask := labels >= 0)).sum() / mask.sum().clamp(min=1),
    "without": lambda y, labels, weights: (y[:, 0] * ~(no := labels < 0)).sum() / (no.numel() - no.sum()),
    "a factor": lambda y, labels, weights: y.square().sum() / 2 + 0.5 * y.sum() / y.numel(),
    "sum": lambda y, labels, weights: 0.3 * F.cross_entropy(y, labels, weights, reduction="sum") + weights.sum(),
    "sum of rows": lambda y, labels, weights: (y.square().mean(-1) * (labels >= 0)).sum() / 7 + y.tanh().mean(),
    "divided by rows": lambda y, labels, weights: F.mse_loss(y, weights.expand_as(y), reduction="sum") / y.shape[0],
    "rows, columns": lambda y, labels, weights: (y + WEIGHTS.detach()).square().sum(0).mean() + y.abs().mean(0).sum(),
    "each": lambda y, labels, weights: (y.square().sum(-1) * (labels >= 0) / (labels >= 0).sum()).sum(),
}  # fmt: skip


def batch() -> tuple[Any, Any]:
    torch.manual_seed(1)
    x, labels = torch.randn(PARTS * ROWS, 6), torch.randint(0, 5, (PARTS * ROWS,))
    labels[[0, 1, 2, 5, 8, 9, 10, 11]] = -100  # the third part has none
    return x, labels


def gradients(network: Any, inputs: tuple[Any, ...]) -> tuple[float, list[np.ndarray]]:
    parameters = list(network.trainable_params())
    value, grads = mspc.value_and_grad(network, None, parameters)(*[Tensor(each.numpy()) for each in inputs])
    return float(value.asnumpy()), [each.asnumpy() for each in grads]


@pytest.mark.share(2)
@pytest.mark.parametrize("decomposed", [False, True])
def test_a_ratio_of_sums_is_that_of_the_whole_batch(decomposed: bool, tmp_path: Path) -> None:
    x, labels = batch()
    for name, loss in LOSSES.items():
        module = Net(loss)
        exported = torch.export.export(module, (x[:ROWS], labels[:ROWS]))
        torch.export.save(exported.run_decompositions() if decomposed else exported, tmp_path / f"{name}.pt2")
        program = read_program(tmp_path / f"{name}.pt2")
        value, found = gradients(compiled_as(program, Training("loss", accumulate=PARTS)).network, (x, labels))
        whole = module(x, labels)["loss"]
        wanted = torch.autograd.grad(whole, [module.layer.weight, module.layer.bias])
        assert value == pytest.approx(float(whole), rel=1e-5), name
        for mine, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("accumulate", [1, PARTS])
def test_labels_that_are_an_input_more(accumulate: int, tmp_path: Path) -> None:
    x, labels = batch()
    torch.manual_seed(0)
    module = torch.nn.Linear(6, 5)
    example = x[: len(x) // accumulate]
    program = read_program(export_made((module, (example,)), tmp_path / "m.pt2", "m.py:make").path)
    network = compiled_as(program, Training("cross_entropy", accumulate=accumulate)).network
    value, found = gradients(network, (x, labels))
    whole = F.cross_entropy(module(x), labels)
    assert value == pytest.approx(float(whole), rel=1e-5)
    np.testing.assert_allclose(found[0], torch.autograd.grad(whole, [module.weight])[0].numpy(), rtol=1e-4, atol=1e-6)


OTHERS = {
    "root": lambda y, labels, weights: F.cross_entropy(y, labels).sqrt(),
    "times 1 / count": lambda y, labels, weights: y[:, 0].dot((labels >= 0).to(y.dtype)) * (1 / (labels >= 0).sum()),
    "exponential": lambda y, labels, weights: y.square().mean().exp(),
    "product": lambda y, labels, weights: y.square().mean() * y.abs().mean(),
    "deviation": lambda y, labels, weights: y.mean() + y.std(0).mean(),
    "pairs": lambda y, labels, weights: (y @ y.t()).square().mean(),
    "16 rows or a factor": lambda y, labels, weights: F.cross_entropy(y, labels, reduction="sum") / 16,
    "labels of each row": lambda y, labels, weights: y.sum() / ((labels >= 0).sum() / y.shape[0]),
    "one sum twice": lambda y, labels, weights: (total := y.square().sum()) / (labels >= 0).sum() + total,
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_rows_that_are_combined_otherwise_are_named(name: str, tmp_path: Path, capsys: Any) -> None:
    x, labels = batch()
    program = read_program(export_made((Net(OTHERS[name]), (x[:ROWS], labels[:ROWS])), tmp_path / "m.pt2", "").path)
    compiled_as(program, Training("loss", accumulate=PARTS))
    said = capsys.readouterr().err
    assert f"{Path(__file__).name}:" in said
    assert "the loss of a step is the mean of the parts' losses" in said


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
