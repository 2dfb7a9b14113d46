"""One of the training steps of `drawn_plans.py`, for `mspc capture`. Argument: the seed of its plan."""

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import mspc.capture
from tests.verify.drawn_plans import drawn

PLAN = drawn(int(sys.argv[1]))
WIDTH, HEADS, WORDS, ROWS, LENGTH = 8, 4, 16, 8, 8
MANY = dist.is_initialized()
NAMES, SIZES = zip(*PLAN.mesh, strict=True)
MESH = init_device_mesh("cpu", SIZES, mesh_dim_names=NAMES) if MANY else None
PLACES = {axis: MESH[axis].get_local_rank() if MESH else 0 for axis in NAMES}
GROUPS = {axis: MESH[axis].get_group() for axis in NAMES} if MESH else {}
EXPERTS = PLAN.size("data")


def own(x: Tensor, axis: str, dim: int) -> Tensor:
    """The slice of this rank."""
    return x.chunk(PLAN.size(axis), dim)[PLACES[axis]] if MESH and axis in NAMES else x


def differentiated(forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """A function with this gradient."""

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return forward(x)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return backward(gradient.contiguous())

    return Made.apply


def gathered(x: Tensor) -> Tensor:
    return functional.all_gather_tensor(x.contiguous(), 1, GROUPS["context"])


def scattered(x: Tensor) -> Tensor:
    return functional.reduce_scatter_tensor(x, "sum", 1, GROUPS["context"])


def exchanged(x: Tensor) -> Tensor:
    parts = [len(x) // EXPERTS] * EXPERTS
    return functional.all_to_all_single(x, parts, parts, GROUPS["data"])


over_context = differentiated(gathered, scattered)
over_experts = differentiated(exchanged, exchanged)


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=PLAN.bias), nn.Linear(2 * WIDTH, WIDTH, bias=PLAN.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Gated(Feed):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2 * WIDTH, bias=PLAN.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) * self.scale


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=PLAN.bias) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH, bias=PLAN.bias)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.query(x), self.key(x), self.value(x)
        if MESH and "context" in NAMES:
            parts = parts[0], *map(over_context, parts[1:])
        q, k, v = (each.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in parts)
        mask = own(torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), "context", 0)
        scores = (q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5).masked_fill(mask, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """The n-th part of each rank's tokens is of expert n, which is on rank n."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(own(torch.randn(EXPERTS, WIDTH, 2 * WIDTH) / 4, "data", 0))
        self.down = nn.Parameter(own(torch.randn(EXPERTS, 2 * WIDTH, WIDTH) / 4, "data", 0))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        if MESH:
            rows = over_experts(rows)[None]
        else:
            rows = rows.view(EXPERTS, EXPERTS, -1, WIDTH).transpose(0, 1).reshape(EXPERTS, -1, WIDTH)
        found = torch.relu(rows @ self.up) @ self.down
        if MESH:
            found = over_experts(found[0])
        else:
            found = found.view(EXPERTS, EXPERTS, -1, WIDTH).transpose(0, 1)
        return found.reshape(x.shape)


KINDS = {"feed": Feed, "gated": Gated, "attention": Attention, "norm": Norm, "experts": Experts}


class Layer(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.norm, self.block = nn.LayerNorm(WIDTH), KINDS[kind]()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(self.norm(x))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH) if PLAN.words else nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(map(Layer, PLAN.blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS if PLAN.words else WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def divide_over_tensor(network: Network) -> None:
    """Tensor parallelism of linear layers, and of sequences between them."""
    between = Shard(1) if PLAN.sequence else Replicate()
    columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=between)
    plans = {
        "feed": {"up": columns, "down": rows},
        "gated": {"gate": columns, "up": columns, "down": rows},
        "attention": {"query": columns, "key": columns, "value": columns, "out": rows},
        "norm": {},
    }
    for kind, layer in zip(PLAN.blocks, network.layers, strict=True):
        plan: dict[str, Any] = {f"block.{name}": style for name, style in plans[kind].items()}
        if PLAN.sequence:
            plan["norm"] = SequenceParallel()
            plan["block"] = (
                PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
                if kind != "norm" else SequenceParallel(use_local_output=True)
            )  # fmt: skip
        parallelize_module(layer, MESH["tensor"], plan)
    if PLAN.sequence:
        rows = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        words = rows if PLAN.words else ColwiseParallel(output_layouts=between)
        head = ColwiseParallel(input_layouts=between, output_layouts=Replicate())
        parallelize_module(network, MESH["tensor"], {"words": words, "norm": SequenceParallel(), "head": head})


def loss_of(out: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(out.flatten(0, 1), y.flatten()) if PLAN.words else ((out - y) ** 2).mean()
    return loss / PLAN.micro


def summed(x: Tensor, axis: str) -> Tensor:
    return functional.all_reduce(x, "sum", GROUPS[axis])


def gradients() -> list[Tensor]:
    return [each.grad for each in network.parameters() if each.grad is not None]


def average(*_: Any) -> None:
    """Average the gradients over the ranks that have other rows."""
    axes = [axis for axis in NAMES if axis != "tensor"]
    for gradient in gradients() if axes else ():
        own = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        total = own
        for axis in axes:
            total = summed(total, axis)
        own.copy_(total / math.prod(map(PLAN.size, axes)))


def average_of_experts(*_: Any) -> None:
    for layer in network.layers:
        for parameter in layer.block.parameters() if isinstance(layer.block, Experts) else ():
            parameter.grad.div_(EXPERTS)


def clip(*_: Any) -> None:
    """Clip the norm of all gradients."""
    if PLAN.way in ("ddp", "fsdp", "hsdp") and "tensor" not in NAMES:
        nn.utils.clip_grad_norm_(network.parameters(), 0.1)
        return
    total = torch.zeros(())
    for gradient in gradients():
        axes: list[str] = []
        if isinstance(gradient, DTensor):
            places = [Replicate() if place.is_partial() else place for place in gradient.placements]
            names = zip(places, gradient.device_mesh.mesh_dim_names, strict=True)
            axes = [axis for place, axis in names if not place.is_replicate()]
            gradient = gradient.redistribute(placements=places).to_local()
        square = (gradient**2).sum()
        for axis in axes:
            square = summed(square, axis)
        total = total + square
    for gradient in gradients():
        own = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        own.mul_((0.1 / (total.sqrt() + 1e-6)).clamp(max=1.0))


torch.manual_seed(0)
network: nn.Module = Network()
if PLAN.frozen:
    network.words.requires_grad_(False)
shape = (PLAN.micro, ROWS, LENGTH) if PLAN.words else (PLAN.micro, ROWS, LENGTH, WIDTH)
x, y = (torch.randint(0, WORDS, shape) if PLAN.words else torch.randn(shape) for _ in range(2))
for name in NAMES if MANY else ():
    if name != "tensor":
        dim = 2 if name == "context" else 1
        x, y = own(x, name, dim), own(y, name, dim)
hooks = []
if MESH:
    if "tensor" in NAMES:
        divide_over_tensor(network)
    if PLAN.way == "ddp":
        network = DistributedDataParallel(network)
    elif PLAN.way in ("fsdp", "hsdp", "experts"):
        mesh = MESH["copies", "data"] if PLAN.way == "hsdp" else MESH["data"]
        apart = {p for each in network.layers if isinstance(each.block, Experts) for p in each.block.parameters()}
        for layer in network.layers:
            fully_shard(layer, mesh=mesh, ignored_params=apart)
        fully_shard(network, mesh=mesh, ignored_params=apart)
        hooks.append(average_of_experts)
    else:
        hooks.append(average)
if PLAN.clips:
    hooks.append(clip)
made: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1), "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01), "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
}  # fmt: skip
optimizer = made[PLAN.optimizer]([p for p in network.parameters() if p.requires_grad])
for hook in hooks:
    optimizer.register_step_pre_hook(hook)
if PLAN.micro == 1 and PLAN.way != "ddp":
    mspc.capture.step(network, (x[0],), loss=lambda out: loss_of(out, y[0]), optimizer=optimizer)
else:
    model = torch.compile(network, backend=mspc.capture.backend())
    for _ in range(2):
        optimizer.zero_grad()
        for place in range(PLAN.micro):
            loss_of(model(x[place]), y[place]).backward()
        optimizer.step()
