"""Experts on ranks of their own, and a sequence in slices, by collectives of the script; one step is captured.

Arguments: "experts", "counted", "context" or "flex", and a fault. "counted" sorts the rows of experts by their numbers,
which ranks exchange; "flex" is attention with a function of its mask.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor.experimental._context_parallel._cp_custom_ops import flex_cp_allgather
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import mspc.capture

KIND, FAULT = sys.argv[1], (sys.argv[2:] or [""])[0]
ROWS, LENGTH, WIDTH, EXPERTS, HEADS = 4, 8, 8, 4, 2
RANKS, RANK = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)


def exchanged(x: Tensor) -> Tensor:
    """Send the n-th part of the rows to rank n."""
    if RANKS == 1:
        return x
    parts = [x.shape[0] // RANKS] * RANKS
    return functional.all_to_all_single_autograd(x.contiguous(), parts, parts, dist.group.WORLD)


def by_expert(counts: Tensor, total: int) -> Tensor:
    """Return the places of rows in the order of experts. counts: of the rows that lie there, for each rank and expert.
    """
    counts = exchanged(counts).view(RANKS, -1)
    begins = (counts.flatten().cumsum(0) - counts.flatten()).view_as(counts).t().reshape(-1)
    counts = counts.t().reshape(-1)
    part = torch.arange(len(counts)).repeat_interleave(counts, output_size=total)
    return begins[part] + torch.arange(total) - (counts.cumsum(0) - counts)[part]


class Experts(nn.Module):
    """As many tokens for each expert: each rank has room for so many of them."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        own = slice(RANK * EXPERTS // RANKS, (RANK + 1) * EXPERTS // RANKS)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * WIDTH)[own].clone())
        self.down = nn.Parameter(torch.randn(EXPERTS, 2 * WIDTH, WIDTH)[own].clone())

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        weights = self.router(rows).softmax(-1).unflatten(0, (-1, EXPERTS)).diagonal(dim1=1, dim2=2)
        sent = rows.unflatten(0, (-1, EXPERTS)).transpose(0, 1)  # expert, its tokens
        come = exchanged(sent).unflatten(0, (RANKS, -1))
        if KIND == "counted":
            counts = torch.ones(sent.shape[:2], dtype=torch.int64).sum(1)
            places = by_expert(counts, len(rows))
            mine = come.flatten(0, 2)[places].view(len(self.up), -1, WIDTH)
        else:
            mine = come.transpose(0, 1).flatten(1, 2)
        found = torch.relu(mine @ self.up) @ self.down
        back = found.unflatten(1, (RANKS, -1))
        if FAULT != "order":
            back = back.transpose(0, 1)
        if KIND == "counted" and FAULT != "order":
            back = torch.empty_like(rows)
            back[places] = found.flatten(0, 1)
        back = back.reshape(sent.shape)
        return x + (exchanged(back).transpose(0, 1) * weights[..., None]).reshape(x.shape)


class Attention(nn.Module):
    """Causal attention of a slice of the sequence to the keys of all slices."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.inward, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        begin = 0 if FAULT == "offset" else RANK * x.shape[1]
        x = x + self.places[begin : begin + x.shape[1]]
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.inward(x).chunk(3, -1))
        if KIND == "flex":
            mask = create_block_mask(lambda b, h, i, j: i + begin >= j, None, None, x.shape[1], LENGTH, device="cpu")
            k, v = (k, v) if RANKS == 1 else flex_cp_allgather(k, v, 2, dist.group.WORLD.group_name)
            return x + self.out(flex_attention(q, k, v, block_mask=mask).transpose(1, 2).flatten(2))
        if RANKS > 1:
            k, v = (functional.all_gather_tensor_autograd(each.contiguous(), 2, dist.group.WORLD) for each in (k, v))
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        later = torch.arange(LENGTH)[None, :] > torch.arange(begin, begin + x.shape[1])[:, None]
        found = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        return x + self.out(found.transpose(1, 2).flatten(2))


torch.manual_seed(0)
network = Attention() if KIND in ("context", "flex") else Experts()
x, y = torch.randn(ROWS, LENGTH, WIDTH), torch.randn(ROWS, LENGTH, WIDTH)
x, y = (each.chunk(RANKS, int(KIND in ("context", "flex")))[RANK] for each in (x, y))


def passes() -> Tensor:
    loss = F.mse_loss(network(x), y)
    loss.backward()
    for name, parameter in network.named_parameters() if RANKS > 1 else ():
        if name in ("up", "down"):
            parameter.grad /= 1 if FAULT == "scale" else RANKS  # it has the gradients of all ranks
        else:
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
    return loss


optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
mspc.capture.step(network, {"x": x, "y": y}, optimizer=optimizer, run=passes)
