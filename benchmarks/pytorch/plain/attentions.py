"""Attention as users write it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.pytorch.plain.registry import BATCH, module

LENGTH, WIDTH, HEADS = 12, 16, 4


def tokens() -> dict[str, Tensor]:
    return {"x": torch.randn(BATCH, LENGTH, WIDTH), "y": torch.randn(BATCH, LENGTH, WIDTH)}


@module(tokens)
class OwnAttention(nn.Module):
    """Products, a mask in a buffer, softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        b, t, c = x.size()
        q, k, v = self.qkv(x).split(WIDTH, dim=2)
        q, k, v = (z.view(b, t, HEADS, c // HEADS).transpose(1, 2) for z in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        mixed = F.softmax(scores, dim=-1) @ v
        return {"loss": F.mse_loss(self.out(mixed.transpose(1, 2).contiguous().view(b, t, c)), y)}


@module(tokens)
class EinsumAttention(nn.Module):
    """einsum for both products, and a bias of relative places that is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(0.3 * torch.randn(WIDTH, HEADS, 4)) for _ in range(3))
        self.o = nn.Parameter(0.3 * torch.randn(HEADS, 4, WIDTH))
        self.bias = nn.Embedding(2 * LENGTH - 1, HEADS)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        q, k, v = (torch.einsum("btc,chd->bhtd", x, w) for w in (self.q, self.k, self.v))
        places = torch.arange(x.shape[1], device=x.device)
        bias = self.bias(places[None, :] - places[:, None] + LENGTH - 1).permute(2, 0, 1)
        weights = (torch.einsum("bhqd,bhkd->bhqk", q, k) / 2 + bias).softmax(-1)
        out = torch.einsum("bhqk,bhkd,hdc->bqc", weights, v, self.o)
        return {"loss": ((out - y) ** 2).mean()}


@module(tokens)
class TorchAttention(nn.Module):
    """nn.MultiheadAttention with a mask that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        out, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        return {"loss": F.mse_loss(out, y)}


@module(tokens)
class AttentionWithWeights(nn.Module):
    """nn.MultiheadAttention that returns its weights, of keys of another width."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, kdim=8, vdim=8, batch_first=True, add_bias_kv=True)
        self.narrow = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        memory = self.narrow(x)
        out, weights = self.attention(x, memory, memory, average_attn_weights=True)
        return {"loss": F.mse_loss(out, y) + weights.square().sum() / 100}


@module(tokens)
class EncoderDecoder(nn.Module):
    """nn.Transformer with its masks."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Transformer(WIDTH, HEADS, 1, 1, 32, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
        return {"loss": F.mse_loss(self.network(x, y, tgt_mask=mask, tgt_is_causal=True), y)}


@module(tokens)
class Flags(nn.Module):
    """scaled_dot_product_attention: a scale, shared heads, a mask of Bool, a mask that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 16)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        b, t, _ = x.shape
        q = self.q(x).view(b, t, HEADS, 4).transpose(1, 2)
        k, v = (z.view(b, t, 2, 4).transpose(1, 2) for z in self.kv(x).chunk(2, -1))
        seen = torch.ones(t, t, dtype=torch.bool).tril(2)
        one = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=0.3, enable_gqa=True)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        two = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        near = -(torch.arange(t)[:, None] - torch.arange(t)[None]).abs().float()
        three = F.scaled_dot_product_attention(q, k, v, attn_mask=near)
        return {"loss": F.mse_loss((one + two + three).transpose(1, 2).flatten(2), y)}


@module(tokens)
class RotaryComplex(nn.Module):
    """Places that are rotated into pairs by complex numbers, as LLaMA's first code does."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        angles = torch.outer(torch.arange(LENGTH).float(), 10.0 ** -torch.arange(2).float())
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def rotate(self, z: Tensor) -> Tensor:
        pairs = torch.view_as_complex(z.float().reshape(*z.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turns[None, :, None]).flatten(3).type_as(z)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        q, k = (self.rotate(f(x).view(*x.shape[:2], HEADS, 4)).transpose(1, 2) for f in (self.q, self.k))
        v = y.view(*y.shape[:2], HEADS, 4).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return {"loss": F.l1_loss(out, y) + F.mse_loss(out, x)}


@module(tokens)
class LinearAttention(nn.Module):
    """Keys and values are summed up along the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.cumsum(k.unsqueeze(-1) * v.unsqueeze(-2), dim=1)
        scale = torch.cumsum(k, dim=1)
        out = torch.matmul(q.unsqueeze(-2), state).squeeze(-2) / (q * scale).sum(-1, keepdim=True)
        return {"loss": F.smooth_l1_loss(out, y)}


@module(lambda: tokens() | {"lengths": torch.randint(3, LENGTH, (BATCH,))})
class PaddedAttention(nn.Module):
    """Rows of different lengths: a mask of keys, and a mean of what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x: Tensor, y: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        there = torch.arange(x.shape[1])[None] < lengths[:, None]
        out = self.layer(x, src_key_padding_mask=~there)
        pooled = (out * there.unsqueeze(-1)).sum(1) / there.sum(1, keepdim=True)
        return {"loss": F.mse_loss(pooled, y.mean(1))}


@module(tokens)
class LocalWindows(nn.Module):
    """Windows of the sequence by unfold, and a learnt temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        k, v = self.kv(F.pad(x, (0, 0, 2, 2))).unfold(1, 5, 1).chunk(2, dim=2)
        scores = (self.q(x).unsqueeze(-1) * k).sum(2) * self.temperature.exp()
        return {"loss": F.mse_loss((v * scores.softmax(-1).unsqueeze(2)).sum(-1), y)}


