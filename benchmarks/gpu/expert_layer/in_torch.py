"""A layer of experts in PyTorch with its grouped products, eager or compiled, and plain products of the same FLOP."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu.expert_layer.sizes import Sizes, values
from benchmarks.gpu.networks.program import Program, resident

PRODUCT = getattr(F, "grouped_mm", None) or torch._grouped_mm  # pyright: ignore[reportPrivateUsage]  # older releases have the second alone


class Layer(nn.Module):
    """Matrices lie as public layers have them, [experts, out, in], and are read transposed."""

    def __init__(self, sizes: Sizes, given: dict[str, Any], device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.experts, self.chosen = sizes.experts, sizes.chosen
        for name in sizes.shapes:
            tensor = torch.from_numpy(given.pop(name)).to(device).to(dtype)
            setattr(self, name, nn.Parameter(tensor.mT.contiguous() if tensor.ndim == 3 else tensor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax((x @ self.router).float(), -1)
        weights, experts = scores.topk(self.chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        flat = experts.flatten()
        order = flat.argsort(stable=True)
        ends = F.one_hot(flat, self.experts).sum(0).cumsum(0).to(torch.int32)
        rows = x.index_select(0, order // self.chosen)
        hidden = F.silu(PRODUCT(rows, self.gate.mT, offs=ends)) * PRODUCT(rows, self.up.mT, offs=ends)
        found = PRODUCT(hidden, self.down.mT, offs=ends)
        found = torch.zeros_like(found).index_copy(0, order, found).view(-1, self.chosen, x.shape[-1])
        out = (found.float() * weights.unsqueeze(-1)).sum(1).to(x.dtype)
        return out.float().square().mean()


def layer(sizes: Sizes, device: str, dtype: str, mode: str) -> Program:
    """The layer and its gradients; compiled where there is a mode."""
    place, kind = _place(device), torch.bfloat16 if dtype == "bf16" else torch.float32
    given = values(sizes)
    x = torch.from_numpy(given.pop("tokens")).to(place).to(kind).requires_grad_()
    network = Layer(sizes, given, place, kind)
    forward = torch.compile(network, mode=mode) if mode else network
    read = {**dict(network.named_parameters()), "tokens": x}

    def step() -> torch.Tensor:
        for parameter in read.values():
            parameter.grad = None
        loss = forward(x)
        loss.backward()
        return loss.detach().clone()

    def ending() -> dict[str, Any]:
        peak = _peak(device)()
        step()
        found = {name: float(p.grad.float().norm()) for name, p in read.items() if p.grad is not None}
        return {"peak": peak, "norms": found}

    return Program(step, float, _wait(device), _peak(device), sizes.shapes, ending=ending)


def dense(sizes: Sizes, device: str, dtype: str) -> Program:
    """Nine products of all rows by one matrix, which are as many operations; their operands are of the layer's kind."""
    place, kind = _place(device), torch.bfloat16 if dtype == "bf16" else torch.float32
    drawn = torch.Generator(place).manual_seed(1)

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=place, generator=drawn).to(kind)

    narrow, wide = made(sizes.rows, sizes.width), made(sizes.rows, sizes.hidden)
    opening, closing = made(sizes.width, sizes.hidden), made(sizes.hidden, sizes.width)
    forward = [(narrow, opening), (narrow, opening), (wide, closing)]
    backward = [(a, b.mT) for a, b in ((narrow, closing), (wide, opening), (wide, opening))]
    outer = [(wide.mT, narrow), (narrow.mT, wide), (narrow.mT, wide)]
    products = [(a, b, torch.empty(a.shape[0], b.shape[1], device=place, dtype=kind))
                for a, b in (*forward, *backward, *outer)]  # fmt: skip

    def step() -> torch.Tensor:
        for a, b, out in products:
            torch.mm(a, b, out=out)
        return products[0][2][0, 0].float()

    return Program(step, float, _wait(device), _peak(device), sizes.shapes)


def _place(device: str) -> str:
    if device == "gpu" and not torch.cuda.is_available():
        raise ModuleNotFoundError("PyTorch finds no GPU")
    return "cuda" if device == "gpu" else "cpu"


def _wait(device: str) -> Any:
    return torch.cuda.synchronize if device == "gpu" else lambda: None


def _peak(device: str) -> Any:
    return torch.cuda.max_memory_allocated if device == "gpu" else resident
