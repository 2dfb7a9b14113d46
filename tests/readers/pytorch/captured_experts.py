"""A network like DeepSeek-V3 in pipeline stages, whose experts are divided over ranks by hand, and its first step.

    mspc capture tests/readers/pytorch/captured_experts.py --ranks 256 --out DIR -- 8 32 large

Arguments: stages, ranks with experts, size, fault. All experts get equal numbers of rows.
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import mspc.capture

STAGES, SHARDS = map(int, sys.argv[1:3])
SIZE, FAULT = (*sys.argv[3:], "")[:2]
LARGE = (64, 3, 256, 8, 4096, 8, 129280, 7168, 18432, 2048, 128, 1536, 512, 128, 64)
SMALL = (2, 1, 4, 2, 8, 2, 32, 16, 24, 12, 2, 12, 8, 8, 4)
(LAYERS, DENSE, EXPERTS, CHOSEN, LENGTH, PARTS, WORDS, WIDTH, INNER, OF_EXPERTS, HEADS, QUERY, KEYS, PLAIN, TURNED) = (
    LARGE if SIZE == "large" else SMALL
)
angles = torch.arange(LENGTH)[:, None] * 10000.0 ** -(torch.arange(0, TURNED, 2) / TURNED)
cosine, sine = (torch.cat([each, each], -1) for each in (angles.cos(), angles.sin()))


def rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


def linear(width: int, inner: int) -> nn.Linear:
    return nn.Linear(width, inner, bias=False)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query_down, self.query_norm = linear(WIDTH, QUERY), nn.RMSNorm(QUERY)
        self.query_up = linear(QUERY, HEADS * (PLAIN + TURNED))
        self.key_down, self.key_norm = linear(WIDTH, KEYS + TURNED), nn.RMSNorm(KEYS)
        self.key_up = linear(KEYS, HEADS * 2 * PLAIN)
        self.out = linear(HEADS * PLAIN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query = self.query_up(self.query_norm(self.query_down(x))).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        plain, turned = query.split([PLAIN, TURNED], -1)
        query = torch.cat([plain, rotated(turned)], -1)
        latent, turned = self.key_down(x).split([KEYS, TURNED], -1)
        both = self.key_up(self.key_norm(latent)).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        key, value = both.split([PLAIN, PLAIN], -1)
        turned = rotated(turned.unsqueeze(1)).expand(-1, HEADS, -1, -1)
        key = torch.cat([key, turned], -1)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(found.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = linear(WIDTH, inner), linear(WIDTH, inner), linear(inner, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Exchange(torch.autograd.Function):
    """Rows for the experts of each rank go to it."""

    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        found = torch.empty_like(rows)
        dist.all_to_all_single(found, rows.contiguous(), group=experts_group)
        return found

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return Exchange.forward(ctx, gradient)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        own = EXPERTS // (SHARDS if dist.is_initialized() else 1)
        self.router, self.shared = linear(WIDTH, EXPERTS), Feed(OF_EXPERTS)
        self.gate, self.up = (nn.Parameter(torch.empty(own, WIDTH, OF_EXPERTS)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(own, OF_EXPERTS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        # Tokens go to all experts in turn, as with a perfect balance of the load.
        chosen = torch.arange(tokens.shape[0] * CHOSEN).view(-1, CHOSEN) % EXPERTS
        scores = self.router(tokens).sigmoid().gather(1, chosen)
        scores = scores / scores.sum(-1, keepdim=True)
        rows = tokens.repeat_interleave(CHOSEN, 0).view(-1, EXPERTS, WIDTH).transpose(0, 1)
        if dist.is_initialized():
            own = EXPERTS // SHARDS
            rows = Exchange.apply(rows.reshape(SHARDS, own, -1, WIDTH)).transpose(0, 1).reshape(own, -1, WIDTH)
        found = torch.bmm(F.silu(torch.bmm(rows, self.gate)) * torch.bmm(rows, self.up), self.down)
        if dist.is_initialized():
            found = Exchange.apply(found.view(own, SHARDS, -1, WIDTH).transpose(0, 1)).reshape(EXPERTS, -1, WIDTH)
        found = found.transpose(0, 1).reshape(-1, CHOSEN, WIDTH)
        return (found * scores.unsqueeze(-1)).sum(1).view(x.shape) + self.shared(x)


class Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.feed = Attention(), Feed(INNER) if number < DENSE else Experts()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.feed(self.second(x))


class Network(nn.Module):
    """The layers of one stage, with the names of the whole network."""

    def __init__(self, stage: int, stages: int) -> None:
        super().__init__()
        count = LAYERS // stages
        if stage == 0:
            self.words = nn.Embedding(WORDS, WIDTH)
        numbers = range(stage * count, (stage + 1) * count)
        self.layers = nn.ModuleDict({str(number): Layer(number) for number in numbers})
        if stage == stages - 1:
            self.norm, self.head = nn.RMSNorm(WIDTH), linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x) if hasattr(self, "words") else x
        for layer in self.layers.values():
            x = layer(x)
        return self.head(self.norm(x)) if hasattr(self, "head") else x


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


tokens, labels = (torch.randint(0, WORDS, (SHARDS * PARTS, LENGTH)) for _ in range(2))
if dist.is_initialized():
    mesh = init_device_mesh("cpu", (STAGES, SHARDS), mesh_dim_names=("stage", "expert"))
    experts_group = mesh["expert"].get_group()
    stage, place = mesh["stage"].get_local_rank(), mesh["expert"].get_local_rank()
    network = Network(stage, STAGES)
    tokens, labels = tokens[place * PARTS :][:PARTS], labels[place * PARTS :][:PARTS]
    pipeline = PipelineStage(network, stage, STAGES, torch.device("cpu"), group=mesh["stage"].get_group())
    schedule = Schedule1F1B(pipeline, PARTS, loss_fn=loss_of)

    def passes() -> Tensor | None:
        losses = []
        schedule.step(*([tokens] if stage == 0 else []), target=labels, losses=losses)
        for parameter in network.parameters():
            if parameter.ndim == 3:
                parameter.grad.div_(1 if FAULT == "scale" else SHARDS)
            else:
                dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, group=experts_group)
        return torch.stack(losses).mean() if losses else None

else:
    network = Network(0, 1)

    def passes() -> Tensor:
        loss = loss_of(network(tokens), labels)
        loss.backward()
        return loss


optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
mspc.capture.step([network], {"tokens": tokens, "labels": labels}, optimizer=optimizer, run=passes)
