"""Greedy generation as one compiled loop, in MindSpore's style."""

from __future__ import annotations

import math
from typing import Any

import mspc as ms
from benchmarks.gpu.generation.sizes import Sizes, first_value, prompt_of, rotations
from mspc import Parameter, Tensor, nn, ops


def dense(inputs: int, outputs: int, dtype: Any) -> nn.Dense:
    return nn.Dense(inputs, outputs, has_bias=False, dtype=dtype)


class Norm(nn.Cell):
    def __init__(self, width: int, dtype: Any) -> None:
        super().__init__()
        self.weight = Parameter(ops.ones((width,), dtype))

    def construct(self, x: Any) -> Any:
        wide = x.astype(ms.float32)
        return (wide * ops.rsqrt(wide.pow(2).mean(-1, keep_dims=True) + 1e-6)).astype(x.dtype) * self.weight


class Attention(nn.Cell):
    def __init__(self, s: Sizes, dtype: Any) -> None:
        super().__init__()
        self.s = s
        self.q, self.o = dense(s.width, s.width, dtype), dense(s.width, s.width, dtype)
        self.k, self.v = (dense(s.width, s.key_heads * s.size, dtype) for _ in range(2))

    def split(self, x: Any, heads: int) -> Any:
        return x.view(x.shape[0], -1, heads, self.s.size).swapaxes(1, 2)

    def turned(self, x: Any, cosines: Any, sines: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * cosines + ops.cat((-second, first), -1) * sines

    def construct(self, x: Any, keys: Any, values: Any, place: Any, rotary: Any, hidden: Any) -> Any:
        """x[batch, length, width] at `place`, a number for one token and None for a prompt."""
        s = self.s
        query = self.turned(self.split(self.q(x), s.heads), *rotary)
        key = self.turned(self.split(self.k(x), s.key_heads), *rotary)
        value = self.split(self.v(x), s.key_heads)
        if place is None:
            keys[:, :, : x.shape[1]] = key
            values[:, :, : x.shape[1]] = value
        else:
            keys[:, :, place] = key[:, :, 0]
            values[:, :, place] = value[:, :, 0]
        group = s.heads // s.key_heads
        scores = ops.matmul(query, keys.repeat_interleave(group, 1).swapaxes(-1, -2)) / math.sqrt(s.size)
        scores = scores.masked_fill(hidden, -1e9)
        shares = ops.softmax(scores.astype(ms.float32), -1).astype(x.dtype)
        mixed = ops.matmul(shares, values.repeat_interleave(group, 1)).swapaxes(1, 2)
        return self.o(mixed.reshape(x.shape)), keys, values


class Layer(nn.Cell):
    def __init__(self, s: Sizes, dtype: Any) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = Norm(s.width, dtype), Attention(s, dtype), Norm(s.width, dtype)
        self.w1, self.w3 = dense(s.width, s.hidden, dtype), dense(s.width, s.hidden, dtype)
        self.w2 = dense(s.hidden, s.width, dtype)

    def construct(self, x: Any, *rest: Any) -> Any:
        mixed, keys, values = self.attention(self.norm1(x), *rest)
        x = x + mixed
        y = self.norm2(x)
        return x + self.w2(ops.silu(self.w1(y)) * self.w3(y)), keys, values


class Decoder(nn.Cell):
    def __init__(self, s: Sizes, dtype: Any) -> None:
        super().__init__()
        self.s, self.dtype = s, dtype
        self.embedding = nn.Embedding(s.vocabulary, s.width, dtype=dtype)
        self.layers = nn.CellList([Layer(s, dtype) for _ in range(s.layers)])
        self.norm, self.head = Norm(s.width, dtype), dense(s.width, s.vocabulary, dtype)
        cosines, sines = rotations(s)
        self.cosines, self.sines = Tensor(cosines).astype(dtype), Tensor(sines).astype(dtype)

    def construct(self, tokens: Any, place: Any, keys: Any, values: Any) -> Any:
        """The likeliest tokens[batch, 1] (Int32) behind tokens[batch, length], and the caches."""
        length = tokens.shape[1]
        at = ops.arange(length) if place is None else place.reshape(1)
        rotary = self.cosines[at], self.sines[at]
        hidden = ops.arange(self.s.places) > at.reshape(-1, 1)
        x = self.embedding(tokens)
        for i, layer in enumerate(self.layers):
            x, keys[i], values[i] = layer(x, keys[i], values[i], place, rotary, hidden)
        return self.head(self.norm(x[:, -1])).argmax(-1).astype(ms.int32).expand_dims(1)


class Generator(nn.Cell):
    def __init__(self, s: Sizes, dtype: Any) -> None:
        super().__init__()
        self.s, self.dtype = s, dtype
        self.decoder = Decoder(s, dtype)

    def construct(self, prompt: Any) -> Any:
        s, batch = self.s, prompt.shape[0]
        shape = (batch, s.key_heads, s.places, s.size)
        keys = [ops.zeros(shape, self.dtype) for _ in range(s.layers)]
        values = [ops.zeros(shape, self.dtype) for _ in range(s.layers)]
        tokens = ops.zeros((batch, s.most), ms.int32)
        token = self.decoder(prompt, None, keys, values)
        tokens[:, 0] = token[:, 0]
        count = ops.ones((), ms.int32)
        while count < s.most:
            token = self.decoder(token, count + (s.prompt - 1), keys, values)
            tokens[:, count] = token[:, 0]
            count += 1
        return tokens


def program(sizes: Sizes, batch: int, dtype: str, device: str) -> Any:
    """What generates once, and returns the tokens."""
    ms.set_context(mode=ms.GRAPH_MODE, device_target=device.upper())
    kind = {"bf16": ms.bfloat16, "f32": ms.float32}[dtype]
    network = Generator(sizes, kind)
    network.set_train(False)
    for name, parameter in network.parameters_dict().items():
        value = first_value(name.replace("embedding_table", "weight"), parameter.shape)
        parameter.set_data(Tensor(value).astype(kind))
    prompt = Tensor(prompt_of(sizes, batch))
    return lambda: network(prompt).asnumpy()
