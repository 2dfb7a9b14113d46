"""Three steps of a module on one device and on four processes, as a written plan places it.

Argument: the folder of the plan, and `Words` for a language model. Prints the losses of both. With `capture`, the
module's step is captured instead.
"""

import contextlib
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
from torch.nn import functional


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


class Heads(nn.Module):
    """Attention whose queries and keys are normalised in each head."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.query_norm, self.key_norm = nn.RMSNorm(4), nn.RMSNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).view(*x.shape[:2], -1, 4).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        found = functional.scaled_dot_product_attention(self.query_norm(query), self.key_norm(key), value)
        return x + self.out(found.transpose(1, 2).flatten(2))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(8, 16), nn.ModuleList(Heads() for _ in range(2))
        self.head = nn.Linear(16, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found = self.words(x)
        for layer in self.layers:
            found = layer(found)
        return functional.cross_entropy(self.head(found).flatten(0, 1), y.flatten())


def make_words() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Words(), (torch.randint(8, (4, 6)), torch.randint(8, (4, 6)))


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

    inputs = plan.distribute(own, ranks) if hasattr(plan, "distribute") else own
    with plan.loss_parallel() if hasattr(plan, "loss_parallel") else contextlib.nullcontext():
        found = list(losses(plan.parallelize(copy.deepcopy(net), ranks), inputs, mean))
    if rank == 0:
        print(json.dumps([list(losses(net, (x, y), float)), found]), flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    net, (x, y) = make_words() if "Words" in sys.argv else (Net(), (torch.randn(8, 8), torch.randn(8, 8)))
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
