"""A step of LLaMA 3 8B under FSDP and tensor parallelism, for `mspc capture`; sequences are divided between blocks.

    mspc capture benchmarks/pytorch/llama_step.py --ranks 64 --out DIR -- 8 8     # data, tensor; layers
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor import parallel as styles

import mspc.capture

DATA, TENSOR, LAYERS = map(int, (*sys.argv[1:], "32")[:3])
WIDTH, HEADS, INNER, WORDS, HEAD = 4096, (32, 8), 14336, 128256, 128
LENGTH = 8192
angles = torch.arange(LENGTH)[:, None] * 500000.0 ** -(torch.arange(0, HEAD, 2) / HEAD)
cosine, sine = (torch.cat([each, each], -1) for each in (angles.cos(), angles.sin()))


def rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = (nn.Linear(WIDTH, HEADS[1] * HEAD, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        parts = (each(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for each in (self.query, self.key, self.value))
        q, k, v = parts
        k, v = (each.repeat_interleave(HEADS[0] // HEADS[1], 1) for each in (rotated(k), v))
        found = F.scaled_dot_product_attention(rotated(q), k, v, is_causal=True)
        return self.out(found.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.feed = Attention(), Feed()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.feed(self.second(x))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.RMSNorm(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def divide(network: Network) -> None:
    """Divide a network over a mesh of ranks."""
    mesh = init_device_mesh("cpu", (DATA, TENSOR), mesh_dim_names=("data", "tensor"))
    columns, sequence = styles.ColwiseParallel(), styles.SequenceParallel()
    rows = styles.RowwiseParallel(output_layouts=Shard(1))
    gathered = styles.PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    plan = {
        "first": sequence, "attention": gathered, "attention.query": columns, "attention.key": columns,
        "attention.value": columns, "attention.out": rows, "second": sequence, "feed": gathered, "feed.gate": columns,
        "feed.up": columns, "feed.down": rows,
    }  # fmt: skip
    ends = {
        "words": styles.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": sequence,
        "head": styles.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }  # fmt: skip
    for layer in network.layers:
        if TENSOR > 1:
            styles.parallelize_module(layer, mesh["tensor"], plan)
        fully_shard(layer, mesh=mesh["data"])
    if TENSOR > 1:
        styles.parallelize_module(network, mesh["tensor"], ends)
    fully_shard(network, mesh=mesh["data"])


network = Network()
tokens, labels = (torch.randint(0, WORDS, (DATA, LENGTH)) for _ in range(2))
if dist.is_initialized():
    divide(network)
    place = dist.get_rank() // TENSOR
    tokens, labels = tokens[place : place + 1], labels[place : place + 1]
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
mspc.capture.step(network, {"tokens": tokens, "labels": labels}, optimizer=optimizer)
