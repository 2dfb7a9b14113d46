"""Three steps of a module on one device and on four processes, as a written plan places it.

Argument: the folder of the plan. Prints the losses of both. With `capture`, the module's step is captured instead.
"""

import copy
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return ((x - y) ** 2).mean()


def losses(net: nn.Module, inputs: Sequence[Tensor], number: Callable[[Tensor], float]) -> Iterator[float]:
    optimizer = torch.optim.SGD(net.parameters(), 0.1, foreach=False)
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(*inputs)
        loss.backward()
        optimizer.step()
        yield number(loss.detach())


def run(rank: int, folder: str, plan: Any) -> None:
    store = dist.FileStore(os.path.join(folder, "store"), 4)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
    ranks, divided = plan.mesh("cpu"), "dp" in plan.mesh("cpu").mesh_dim_names
    group = ranks.get_group("dp") if divided else None
    rows = ranks.get_local_rank("dp") if divided else 0
    own = [each.chunk(2)[rows] if divided else each for each in (x, y)]

    def mean(loss: Any) -> float:
        value = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
        if group is not None:
            dist.all_reduce(value, group=group)
            value /= 2
        return float(value)

    found = list(losses(plan.parallelize(copy.deepcopy(net), ranks), plan.distribute(own, ranks), mean))
    if rank == 0:
        print(json.dumps([list(losses(net, (x, y), float)), found]), flush=True)


torch.manual_seed(0)
net, x, y = Net(), torch.randn(8, 8), torch.randn(8, 8)
if sys.argv[1] == "capture":
    import mspc.capture

    mspc.capture.step(net, (x, y), optimizer=torch.optim.SGD(net.parameters(), 0.1))
else:
    sys.path.insert(0, sys.argv[1])
    written = importlib.import_module("plan")
    processes = []
    for place in range(4):
        processes.append(os.fork())
        if not processes[-1]:
            run(place, sys.argv[1], written)
            os._exit(0)
    sys.exit(max(os.waitpid(process, 0)[1] for process in processes))
