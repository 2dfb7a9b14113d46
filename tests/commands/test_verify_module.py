"""`mspc verify --torch --against torch` holds one device against the module itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.serving import invoke

pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

MODEL = """
import pathlib

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("scale", torch.full((8,), 2.0))
        self.factor = factor

    def forward(self, x, y=None):
        z = self.norm(torch.tanh(self.first(x))) * self.scale * self.factor
        z = self.second(self.drop(z))
        return z if y is None else {"logits": z, "loss": nn.functional.mse_loss(z, y)}


class Ties(Net):
    def forward(self, x):
        z = self.first(x)
        return z.gather(1, (z * 0.0).topk(2).indices).sum()


class Noisy(Net):
    def forward(self, x):
        z = self.first(x)
        z = z * z.new_empty((4, 1)).bernoulli_(0.7).div_(0.7) + 0.1 * torch.randn_like(z)
        z = nn.functional.gumbel_softmax(z) * torch.empty_like(z).uniform_(0.9, 1.1) * (torch.rand(4, 1) < 0.7)
        z = z[torch.randperm(4)] + torch.randint(2, 5, (8,))
        z = nn.functional.alpha_dropout(nn.functional.dropout1d(z[None], 0.2), 0.3, self.training)[0]
        return nn.functional.scaled_dot_product_attention(z, z, z, dropout_p=0.2).sum()


class Leaking(Net):
    def forward(self, x):
        return nn.functional.rrelu(self.first(x), training=True).sum()


def noisy(leaking=False):
    return (Leaking if leaking else Noisy)(1.0).train(), (torch.randn(4, 6),)


def ties():
    return Ties(1.0), (torch.randn(4, 6),)


def make(train=False, loss=True):
    # Each call has other weights, which are the program's while they are compared.
    inputs = (torch.randn(4, 6), torch.randn(4, 3)) if loss else (torch.randn(4, 6),)
    return Net(1.0).train(train), inputs


def changing():
    seen = pathlib.Path("seen")
    factor = 1.01 if seen.exists() else 1.0
    seen.touch()
    return Net(factor).eval(), (torch.randn(4, 6), torch.randn(4, 3))
"""


@pytest.fixture(autouse=True)
def folder(own_folder: Path) -> Path:
    Path("model.py").write_text(MODEL)
    return own_folder


def verify(target: str, *flags: str) -> Any:
    return invoke("verify", f"model.py:{target}", "--torch", "--against", "torch", *flags)


@pytest.mark.parametrize(
    ("target", "flags", "rows"),
    [
        ("make", ["--optimizer", "adamw"], {"result", *(f"{cell}.{kind}" for cell in ("first", "norm", "second")
                                                        for kind in ("weight", "bias"))}),
        ("make(loss=False)", ["--loss", "cross_entropy"], {"result"}),
    ],
)  # fmt: skip
def test_results_and_gradients(target: str, flags: list[str], rows: set[str]) -> None:
    done = verify(target, *flags, "--json", "rows.json")
    assert done.exit_code == 0, done.output
    found = json.loads(Path("rows.json").read_text())["values"]
    assert {row["name"] for row in found if row["kind"].startswith("module")} == rows
    assert all(row["difference"] < 1e-5 for row in found if row["kind"].startswith("module"))


def test_a_module_that_computes_something_else() -> None:
    """Its results are a hundredth larger when it is made once more."""
    done = verify("changing", "--optimizer", "sgd")
    assert done.exit_code == 1, done.output
    assert "values differ between one device and PyTorch" in done.output


@pytest.mark.parametrize("target", ["make(train=True)", "noisy"])
def test_the_module_draws_the_programs_numbers(target: str) -> None:
    done = verify(target, "--optimizer", "sgd", "--all")
    assert done.exit_code == 0, done.output
    assert "module's gradient" in done.stdout


def test_an_operator_that_takes_no_numbers() -> None:
    done = verify("noisy(leaking=True)", "--optimizer", "sgd")
    assert done.exit_code == 2
    assert "the module draws numbers by rrelu_with_noise" in done.output


def test_the_module_takes_the_first_of_equal_elements_as_the_program_does() -> None:
    done = verify("ties", "--optimizer", "sgd")
    assert done.exit_code == 0, done.output


def test_micro_batches_cannot_be_compared() -> None:
    done = verify("make", "--optimizer", "sgd", "--accumulate", "2")
    assert done.exit_code == 2
    assert "it takes no --precision and no --accumulate" in done.output
