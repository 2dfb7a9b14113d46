"""Recipes of `--optimizer` beside PyTorch: schedules, clipping, parameters without decay, Muon, Adafactor."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Tensor
from mspc.readers.pytorch import recipes
from mspc.readers.pytorch.exporting import export_made
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.recipes import recipe_of
from mspc.readers.pytorch.training import Training, compiled_as
from tests.graphs import FLOAT32, MspcError

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")
STEPS, WARMUP = 8, 3


class Net(torch.nn.Module):
    """Matrices, vectors and a stack of matrices, and a loss with gradients far above a norm of 1."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = torch.nn.Linear(6, 9), torch.nn.LayerNorm(9), torch.nn.Linear(9, 5)
        self.heads = torch.nn.Parameter(torch.randn(2, 5, 4) * 0.1)

    def forward(self, x: Any, y: Any) -> Any:
        rows = torch.einsum("bi,hij->bhj", self.down(torch.tanh(self.norm(self.up(x)))), self.heads)
        return {"loss": 20.0 * (rows.sum(1) - y).square().mean()}


def optimizers(name: str, module: Any, lr: float, **settings: Any) -> list[Any]:
    named = dict(module.named_parameters())
    vectors = [each for each in named.values() if each.ndim < 2]
    if name == "muon":
        matrices = [each for key, each in named.items() if each.ndim == 2 and key != "down.weight"]
        others = [each for each in named.values() if all(each is not other for other in matrices)]
        return [torch.optim.Muon(matrices, lr, 0.1, **settings), torch.optim.AdamW(others, lr, weight_decay=0.1)]
    decayed = [each for each in named.values() if each.ndim >= 2]
    groups = [{"params": decayed}, {"params": vectors, "weight_decay": 0.0}]
    return [{"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "adafactor": torch.optim.Adafactor}[name](
        groups, lr, **settings)]  # fmt: skip


def factor(kind: str, step: int, low: float) -> float:
    warm = min(step / WARMUP, 1.0) if kind != "none" else 1.0
    start = STEPS - 2 if kind == "wsd" else WARMUP
    share = min(max((step - start) / (STEPS - start), 0.0), 1.0)
    left = {"cosine": 0.5 + 0.5 * math.cos(math.pi * share), "linear": 1 - share, "wsd": 1 - share}.get(kind, 1.0)
    return warm * (low + (1 - low) * left)


RECIPES = {
    "adamw:lr=0.02,weight_decay=0.1,no_decay=vectors,max_norm=1.0,schedule=cosine,warmup=3,steps=8,min_lr=0.002":
        ("adamw", 0.02, {"weight_decay": 0.1}, 1.0, "cosine", 0.1),
    "sgd:lr=0.01,weight_decay=0.1,no_decay=vectors,schedule=wsd,warmup=3,steps=8,decay=2":
        ("sgd", 0.01, {"weight_decay": 0.1}, 0.0, "wsd", 0.0),
    "sgd:lr=0.01,momentum=0.9,nesterov=True,max_norm=0.5,warmup=3": (
        "sgd", 0.01, {"momentum": 0.9, "nesterov": True}, 0.5, "constant", 0.0),
    "adafactor:lr=0.5,weight_decay=0.1,no_decay=('*norm*', '*bias')": (
        "adafactor", 0.5, {"weight_decay": 0.1}, 0.0, "none", 0.0),
    "muon:lr=0.02,adamw='down.*',max_norm=1,schedule=linear,warmup=3,steps=8": (
        "muon", 0.02, {}, 1.0, "linear", 0.0),
    "muon:lr=0.02,adamw='down.*',nesterov=False,adjust_lr_fn='match_rms_adamw'": (
        "muon", 0.02, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}, 0.0, "none", 0.0),
}  # fmt: skip


@pytest.mark.parametrize("text", RECIPES)
def test_a_recipe_trains_as_in_pytorch(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Muon's iterations are in Float32 on both sides: the order of sums changes much of what BFloat16 rounds."""
    monkeypatch.setattr(recipes, "BFLOAT16", FLOAT32)
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    name, lr, settings, max_norm, schedule, low = RECIPES[text]
    module = Net()
    x, y = torch.randn(4, 6), torch.randn(4, 4)
    program = read_program(export_made((module, (x, y)), tmp_path / "m.pt2", "m.py:make").path)
    step = compiled_as(program, Training("loss", optimizer=text)).network
    theirs = optimizers(name, module, lr, **settings)
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, lambda t: factor(schedule, t, low)) for each in theirs]
    for _ in range(STEPS):
        loss = module(x, y)["loss"]
        module.zero_grad()
        loss.backward()
        if max_norm:
            torch.nn.utils.clip_grad_norm_(module.parameters(), max_norm)
        for each in (*theirs, *schedules):
            each.step()
        mine = float(step(Tensor(x.numpy()), Tensor(y.numpy())).asnumpy())
        assert mine == pytest.approx(loss.item(), rel=1e-4)
    mine = {each.name: each.asnumpy() for each in step.trainable_params()}
    for key, each in module.named_parameters():
        np.testing.assert_allclose(mine[key], each.detach().numpy(), rtol=2e-4, atol=1e-5, err_msg=key)


def test_muon_iterates_in_bfloat16(tmp_path: Path) -> None:
    module = torch.nn.Linear(6, 9, bias=False)
    x, y = torch.randn(64, 6), torch.randn(64, 9)  # a gradient of full rank
    program = read_program(export_made((module, (x,)), tmp_path / "m.pt2", "m.py:make").path)
    step = compiled_as(program, Training("mse", optimizer="muon:lr=1.0,weight_decay=0")).network
    before = module.weight.detach().clone().numpy()
    optimizer = torch.optim.Muon(module.parameters(), 1.0, 0.0)
    torch.nn.functional.mse_loss(module(x), y).backward()
    optimizer.step()
    step(Tensor(x.numpy()), Tensor(y.numpy()))
    (mine,) = [each.asnumpy() - before for each in step.trainable_params()]
    theirs = module.weight.detach().numpy() - before
    assert 0 < np.abs(mine - theirs).max() < 0.05 * np.abs(theirs).max()


def test_sgd_without_momentum_has_no_states(tmp_path: Path) -> None:
    program = read_program(export_made((Net(), (torch.randn(4, 6), torch.randn(4, 4))), tmp_path / "m.pt2", "m").path)
    step = compiled_as(program, Training("loss", optimizer="sgd:lr=0.1")).network
    trained = {each.name for each in step.trainable_params()}
    assert {each.name for each in step.get_parameters()} - trained == {"global_step", "learning_rate"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adamw:schedule=cosin,steps=9", "there is no schedule 'cosin'"),
        ("adamw:schedule=cosine", "the schedule cosine needs steps"),
        ("adamw:schedule=wsd,steps=9", "the schedule wsd needs decay"),
        ("adamw:schedule=linear,steps=9,decay=2", "decay of the optimizer adamw has no meaning for"),
        ("adamw:schedule=wsd,steps=9,warmup=5,decay=6", "warmup 5 + decay 6 of the optimizer adamw is more than its 9"),
        ("adamw:schedule=linear,steps=9.5", "steps of the optimizer adamw is 9.5; it is a number of steps"),
        ("adamw:max_norm=0", "max_norm"),
        ("adamw:adamw='x'", "the optimizer adamw has no 'adamw'"),
        ("adamw:no_decay=3", "no_decay of the optimizer adamw is 3; it is a name's pattern, or several"),
        ("muon:adjust_lr_fn='matched'", "Muon has no adjust_lr_fn 'matched'"),
        ("adamw:no_decay='nrom*'", "no parameter's name matches 'nrom*'"),
    ],
)
def test_wrong_recipes_are_named(text: str, message: str) -> None:
    parameter = mspc.Parameter(Tensor(np.ones((2, 2), np.float32)), name="norm")
    with pytest.raises((MspcError, ValueError), match=message.replace("*", r"\*").replace("+", r"\+")):
        recipe_of(text).optimizer([parameter], {id(parameter)})
