"""Trains a network on 4 processes of gloo, captures its second step, and writes the losses from there on.

Arguments: the folder, then names of networks: "llama" in tensor parallelism and FSDP, "gpt2" in FSDP, "experts" whose
experts are on ranks of their own, "stages" whose layers are on a rank each.
"""

import json
import os
import sys
import traceback
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import mspc.capture

RANKS, STEPS, ROWS, LENGTH, WIDTH, HEADS, WORDS = 4, 5, 2, 6, 16, 4, 30


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight


class Attention(nn.Module):
    def __init__(self, rotates: bool) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=not rotates) for _ in range(4))
        angles = torch.arange(LENGTH)[:, None] / 100 ** (torch.arange(2) / 2)
        self.register_buffer("angles", angles if rotates else None)

    def _turned(self, x: Tensor) -> Tensor:
        if self.angles is None:
            return x
        first, second = x.chunk(2, -1)
        cos, sin = self.angles.cos(), self.angles.sin()
        return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)

    def forward(self, x: Tensor) -> Tensor:
        parts = (self.query(x), self.key(x), self.value(x))
        q, k, v = (each.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in parts)
        scores = self._turned(q) @ self._turned(k).transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        found = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        return self.out(found.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Moved(torch.autograd.Function):
    """Sends the n-th part of the rows to rank n."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        parts = [x.shape[0] // RANKS] * RANKS
        return functional.wait_tensor(functional.all_to_all_single(x, parts, parts, dist.group.WORLD))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return Moved.forward(ctx, gradient.contiguous())


class Experts(nn.Module):
    """One expert per rank; every rank sends each expert as many tokens, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, RANKS)
        torch.manual_seed(1 + dist.get_rank())
        self.expert = Gated()
        torch.manual_seed(9)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        weights = self.router(rows).softmax(-1)
        chosen = torch.arange(len(rows)) * RANKS // len(rows)
        found = Moved.apply(self.expert(Moved.apply(rows)))
        return (found * weights.gather(1, chosen[:, None])).view_as(x)


class Layer(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        norm = nn.LayerNorm if kind == "gpt2" else lambda _: RMSNorm()
        self.norm1, self.norm2 = norm(WIDTH), norm(WIDTH)
        self.attention = Attention(kind != "gpt2")
        wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * WIDTH, WIDTH))
        self.feed = {"llama": Gated, "experts": Experts}.get(kind, lambda: wide)()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Network(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH) if kind == "gpt2" else None
        self.layers = nn.ModuleList(Layer(kind) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        x = self.words(words)
        if self.places is not None:
            x = x + self.places(torch.arange(LENGTH))
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Stage(nn.Module):
    """A layer, on the first rank after the embedding and on the last one before the head."""

    def __init__(self) -> None:
        super().__init__()
        rank = dist.get_rank()
        self.words = nn.Embedding(WORDS, WIDTH) if rank == 0 else nn.Identity()
        self.layers = nn.ModuleDict({str(rank): Layer("gpt2")})
        self.head = nn.Linear(WIDTH, WORDS, bias=False) if rank == RANKS - 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        for layer in self.layers.values():
            x = layer(x)
        return self.head(x)


def classified(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def passes(schedule: ScheduleGPipe, words: Tensor, labels: Tensor) -> Tensor | None:
    """Run the forward and backward passes of all micro-batches; return the loss on the last rank."""
    found: list[Tensor] = []
    schedule.step(*([words] if dist.get_rank() == 0 else []), target=labels, losses=found)
    return torch.stack(found).mean() if found else None


def parallel(network: Network, kind: str) -> None:
    """Shard a network over the ranks."""
    own = {each for name, each in network.named_parameters() if "expert" in name}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor")) if kind == "llama" else None
    for layer in network.layers:
        if mesh is not None:
            columns = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
            columns |= {f"feed.{name}": ColwiseParallel() for name in ("gate", "up")}
            rows = {name: RowwiseParallel() for name in ("attention.out", "feed.down")}
            parallelize_module(layer, mesh["tensor"], columns | rows)
            fully_shard(layer, mesh=mesh["data"])
        else:
            fully_shard(layer, ignored_params=own)
    fully_shard(network, mesh=None if mesh is None else mesh["data"], ignored_params=own)


def train(kind: str, folder: Path) -> list[float]:
    """Return the losses of this rank. The step is captured after a first one, which makes the states of AdamW."""
    torch.manual_seed(0)
    network = Stage() if kind == "stages" else Network(kind)
    schedule = None
    if kind == "stages":
        stage = PipelineStage(network, dist.get_rank(), RANKS, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, ROWS, loss_fn=classified)
    else:
        parallel(network, kind)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    data = np.load(folder / "data.npz")
    batches = [torch.from_numpy(data[name].reshape(STEPS, RANKS, ROWS, LENGTH)[:, dist.get_rank()]) for name in data]
    os.chdir(folder)
    losses: list[float] = []
    for words, labels in zip(*batches, strict=True):
        optimizer.zero_grad()
        run = partial(passes, schedule, words, labels) if schedule else None
        if not losses:
            loss = mspc.capture.step(network, (words, labels), optimizer=optimizer, run=run)
        else:
            loss = run() if run else network(words, labels)
            if not run:
                loss.backward()
            optimizer.step()
        losses.append(0.0 if loss is None else loss.item())
    return losses


def main(rank: int, folder: Path, kinds: list[str]) -> None:
    """Train the networks as one of the ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for kind in kinds:
        found = train(kind, folder / kind)
        (folder / kind / f"losses_{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    root, kinds = Path(sys.argv[1]).resolve(), sys.argv[2:]
    os.environ.pop("MSPC_CAPTURE", None)
    for kind in kinds:
        alike = {"llama": 2, "stages": RANKS}.get(kind, 1)  # ranks that have the same rows
        words = np.random.default_rng(0).integers(0, WORDS, (2, STEPS, RANKS // alike, ROWS, LENGTH))
        words = words.repeat(alike, 2).reshape(2, STEPS * RANKS * ROWS, LENGTH)
        (root / kind).mkdir()
        np.savez(root / kind / "data.npz", input_0=words[0], input_1=words[1])
    for rank in range(RANKS):  # processes that share the import of PyTorch
        if not os.fork():
            status = 1
            try:
                main(rank, root, kinds)
                status = 0
            finally:
                if status:
                    traceback.print_exc()
                os._exit(status)
    if any([os.wait()[1] for _ in range(RANKS)]):
        raise SystemExit("a rank failed")
