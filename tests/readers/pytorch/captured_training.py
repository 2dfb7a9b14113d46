"""A network of PyTorch in tensor parallelism and FSDP, whose first step is captured. Arguments: data, tensor, fault,
and rows of the first linear layer, which ranks may have unevenly."""

import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import mspc.capture

DATA, TENSOR, FAULT = int(sys.argv[1]), int(sys.argv[2]), (sys.argv[3:] or [""])[0]
WIDTH, ROWS = 8, 16
INNER = int((sys.argv[4:] or [2 * WIDTH])[0])


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Summed(torch.autograd.Function):
    """Sums over the ranks that were forgotten, or doubled, by hand."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
            if FAULT == "doubled sum":
                x = Summed.apply(x)  # the doubled sum
        return ((x - y) ** 2).mean()


torch.manual_seed(0)
network = Network()
x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
if DATA * TENSOR > 1:
    mesh = init_device_mesh("cpu", (DATA, TENSOR), mesh_dim_names=("data", "tensor"))
    if TENSOR > 1:
        for layer in network.layers:
            parallelize_module(layer, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if DATA > 1:
        for layer in network.layers:
            fully_shard(layer, mesh=mesh["data"])
        fully_shard(network, mesh=mesh["data"])
        if FAULT == "divided twice":
            network.layers[1].set_gradient_divide_factor(2.0 * DATA)
    part = dist.get_rank() // TENSOR * (ROWS // DATA)
    x, y = x[part : part + ROWS // DATA], y[part : part + ROWS // DATA]
optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
mspc.capture.step(network, (x, y), optimizer=optimizer)
