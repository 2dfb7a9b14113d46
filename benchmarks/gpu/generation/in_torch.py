"""The same in PyTorch: caches of fixed sizes, a step that torch.compile captures."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.gpu.generation.sizes import Sizes, first_value, prompt_of, rotations


def dense(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.s = s
        self.q, self.o = dense(s.width, s.width), dense(s.width, s.width)
        self.k, self.v = dense(s.width, s.key_heads * s.size), dense(s.width, s.key_heads * s.size)

    def split(self, x: Any, heads: int) -> Any:
        return x.view(x.shape[0], -1, heads, self.s.size).transpose(1, 2)

    def turned(self, x: Any, cosines: Any, sines: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * cosines + torch.cat((-second, first), -1) * sines

    def forward(self, x: Any, keys: Any, values: Any, at: Any, rotary: Any, seen: Any) -> Any:
        s = self.s
        query = self.turned(self.split(self.q(x), s.heads), *rotary)
        keys.index_copy_(2, at, self.turned(self.split(self.k(x), s.key_heads), *rotary))
        values.index_copy_(2, at, self.split(self.v(x), s.key_heads))
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=seen, enable_gqa=True)
        return self.o(mixed.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = Norm(s.width), Attention(s), Norm(s.width)
        self.w1, self.w3 = dense(s.width, s.hidden), dense(s.width, s.hidden)
        self.w2 = dense(s.hidden, s.width)

    def forward(self, x: Any, *rest: Any) -> Any:
        x = x + self.attention(self.norm1(x), *rest)
        y = self.norm2(x)
        return x + self.w2(functional.silu(self.w1(y)) * self.w3(y))


class Decoder(nn.Module):
    def __init__(self, s: Sizes, dtype: Any) -> None:
        super().__init__()
        self.s = s
        self.embedding = nn.Embedding(s.vocabulary, s.width)
        self.layers = nn.ModuleList([Layer(s) for _ in range(s.layers)])
        self.norm, self.head = Norm(s.width), dense(s.width, s.vocabulary)
        for name, value in zip(("cosines", "sines"), rotations(s), strict=True):
            self.register_buffer(name, torch.from_numpy(value).to(dtype), persistent=False)

    def forward(self, tokens: Any, at: Any, keys: Any, values: Any) -> Any:
        rotary = self.cosines[at], self.sines[at]
        seen = torch.arange(self.s.places, device=tokens.device) <= at.reshape(-1, 1)
        x = self.embedding(tokens)
        for layer, own_keys, own_values in zip(self.layers, keys, values, strict=True):
            x = layer(x, own_keys, own_values, at, rotary, seen)
        return self.head(self.norm(x[:, -1])).argmax(-1, keepdim=True)


def program(sizes: Sizes, batch: int, dtype: str, device: str, mode: str = "reduce-overhead") -> Any:
    """What generates once, and returns the tokens. mode: of torch.compile; "" for none."""
    place = "cuda" if device == "gpu" else "cpu"
    kind = {"bf16": torch.bfloat16, "f32": torch.float32}[dtype]
    model = Decoder(sizes, kind)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(first_value(f"decoder.{name}", tuple(parameter.shape))))
    model = model.to(place, kind).eval()
    step = torch.compile(model, mode=mode, fullgraph=True) if mode else model
    shape = (batch, sizes.key_heads, sizes.places, sizes.size)
    keys = [torch.zeros(shape, device=place, dtype=kind) for _ in range(sizes.layers)]
    values = [torch.zeros(shape, device=place, dtype=kind) for _ in range(sizes.layers)]
    for cache in (*keys, *values) if mode else ():
        torch._dynamo.mark_static_address(cache)
    prompt = torch.from_numpy(prompt_of(sizes, batch)).to(place).long()

    @torch.inference_mode()
    def generate() -> Any:
        for cache in (*keys, *values):
            cache.zero_()
        tokens = torch.zeros((batch, sizes.most), dtype=torch.long, device=place)
        token = model(prompt, torch.arange(sizes.prompt, device=place), keys, values)
        tokens[:, :1] = token
        at = torch.tensor([sizes.prompt], device=place)
        for count in range(1, sizes.most):
            token = step(token.clone(), at, keys, values)
            tokens[:, count : count + 1] = token
            at += 1
        return tokens.cpu().numpy()

    return generate
