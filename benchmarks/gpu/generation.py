"""Tokens per second of greedy generation: a decoder as LLaMA's and its loop, compiled as one program.

    python -m benchmarks.gpu.generation [--batch 1 16] [--dtype bf16] [--device gpu] [--small]

A decoder of 12 layers of width 1024, 128 tokens of prompt, 256 that follow; the best of several runs counts.
"""

from __future__ import annotations

import argparse
import math
import time
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops


@dataclass(frozen=True)
class Sizes:
    """prompt: tokens ahead of the `most` that are generated, greedily."""

    layers: int = 12
    width: int = 1024
    hidden: int = 2816
    heads: int = 16
    key_heads: int = 8
    vocabulary: int = 32000
    prompt: int = 128
    most: int = 256

    @property
    def size(self) -> int:
        return self.width // self.heads

    @property
    def places(self) -> int:
        return self.prompt + self.most


SMALL = Sizes(2, 64, 128, 8, 4, 96, 8, 24)


def first_value(name: str, shape: tuple[int, ...]) -> Any:
    """Float32 first value of a weight, the same in every program."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    return generator.standard_normal(shape, np.float32) * np.float32(1.5 / np.sqrt(shape[-1]))


def prompt_of(sizes: Sizes, batch: int) -> Any:
    """Int32 tokens [batch, prompt]."""
    return np.random.default_rng(7).integers(0, sizes.vocabulary, (batch, sizes.prompt)).astype(np.int32)


def rotations(sizes: Sizes) -> tuple[Any, Any]:
    """Cosines and sines [places, size]."""
    frequencies = 10000.0 ** (-np.arange(0, sizes.size, 2, dtype=np.float32) / sizes.size)
    angles = np.arange(sizes.places, dtype=np.float32)[:, None] * np.concatenate([frequencies, frequencies])
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


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
    """Return a function that generates once, and returns the tokens."""
    ms.set_context(mode=ms.GRAPH_MODE, device_target=device.upper())
    kind = {"bf16": ms.bfloat16, "f32": ms.float32}[dtype]
    network = Generator(sizes, kind)
    network.set_train(False)
    for name, parameter in network.parameters_dict().items():
        value = first_value(name.replace("embedding_table", "weight"), parameter.shape)
        parameter.set_data(Tensor(value).astype(kind))
    prompt = Tensor(prompt_of(sizes, batch))
    return lambda: network(prompt).asnumpy()


def main() -> None:
    """Print a line for every batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "f32"])
    parser.add_argument("--device", default="gpu", choices=["gpu", "cpu"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for batch in options.batch:
        generate = program(SMALL if options.small else Sizes(), batch, options.dtype, options.device)
        generate()
        seconds: list[float] = []
        for _ in range(options.repeats):
            begin = time.perf_counter()
            tokens = generate()
            seconds.append(time.perf_counter() - begin)
        print(f"batch {batch:3} {tokens.size / min(seconds):9.0f} tokens/s, {min(seconds):.3f} to {max(seconds):.3f} s")


if __name__ == "__main__":
    main()
