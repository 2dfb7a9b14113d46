"""A LLaMA-like language model in MindSpore's spelling: RMSNorm, rotary embedding, grouped queries, SwiGLU.

Operators stand as primitives with strategies, data parallel by tensor parallel. A part that has more than one spelling
in public code is chosen by `Options`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mspc import Parameter, Tensor, nn, ops

BATCH, SEQUENCE, WIDTH, HEADS, GROUPS, HIDDEN, VOCABULARY, LAYERS = 4, 8, 64, 8, 4, 48, 32, 2
DEPTH = WIDTH // HEADS
SHARED = HEADS // GROUPS
"""Heads of queries that look at one head of keys."""


@dataclass(frozen=True)
class Options:
    """data, tensor: ranks that share the batch and the layers. tied: the head is the embedding's table. fused: norms
    and attention are single operators. adjacent: the rotary embedding turns neighbouring elements, else those half a
    head apart. sharded: operators have strategies."""

    data: int = 1
    tensor: int = 1
    tied: bool = False
    fused: bool = False
    adjacent: bool = False
    sharded: bool = True

    def cut(self, operator: Any, *strategy: tuple[int, ...]) -> Any:
        return operator.shard(strategy) if self.sharded else operator


def angles(adjacent: bool) -> np.ndarray:
    """[sequence, depth] angles by which the elements of a head are turned."""
    rates = 10000.0 ** (-np.arange(0, DEPTH, 2) / DEPTH)
    half = np.outer(np.arange(SEQUENCE), rates)
    return np.repeat(half, 2, axis=1) if adjacent else np.concatenate((half, half), axis=1)


def weight(*shape: int) -> Parameter:
    return Parameter(Tensor(np.zeros(shape, np.float32)))


class RMSNorm(nn.Cell):
    def __init__(self, o: Options) -> None:
        super().__init__()
        rows, one = (o.data, 1, 1), (1,)
        self.weight = weight(WIDTH)
        self.fused = o.fused
        self.norm = o.cut(ops.RmsNorm(1e-5), rows, one)
        self.square = o.cut(ops.Square(), rows)
        self.mean = o.cut(ops.ReduceMean(keep_dims=True), rows)
        self.add = o.cut(ops.Add(), rows, ())
        self.rsqrt = o.cut(ops.Rsqrt(), rows)
        self.mul, self.scale = o.cut(ops.Mul(), rows, rows), o.cut(ops.Mul(), rows, one)

    def construct(self, x: Any) -> Any:
        if self.fused:
            return self.norm(x, self.weight)[0]
        factor = self.rsqrt(self.add(self.mean(self.square(x), -1), 1e-5))
        return self.scale(self.mul(x, factor), self.weight)


class Rotary(nn.Cell):
    def __init__(self, o: Options) -> None:
        super().__init__()
        heads = (o.data, o.tensor, 1, 1)
        turns = angles(o.adjacent)
        self.cos, self.sin = Tensor(np.cos(turns).astype(np.float32)), Tensor(np.sin(turns).astype(np.float32))
        self.adjacent = o.adjacent
        self.neg = o.cut(ops.Neg(), heads)
        self.slice = o.cut(ops.StridedSlice(), heads)
        self.concat = o.cut(ops.Concat(-1), heads, heads)
        self.mul, self.add = o.cut(ops.Mul(), heads, (1, 1)), o.cut(ops.Add(), heads, heads)

    def turned(self, x: Any) -> Any:
        if self.adjacent:
            even, odd = x[..., 0::2], x[..., 1::2]
            return ops.stack((-odd, even), axis=-1).reshape(x.shape)
        b, n, s, d = x.shape
        low = self.slice(x, (0, 0, 0, 0), (b, n, s, d // 2), (1, 1, 1, 1))
        high = self.slice(x, (0, 0, 0, d // 2), (b, n, s, d), (1, 1, 1, 1))
        return self.concat((self.neg(high), low))

    def construct(self, x: Any) -> Any:
        return self.add(self.mul(x, self.cos), self.mul(self.turned(x), self.sin))


class Attention(nn.Cell):
    def __init__(self, o: Options) -> None:
        super().__init__()
        columns, rows = ((o.data, 1), (o.tensor, 1)), ((o.data, o.tensor), (1, o.tensor))
        heads, split = (o.data, o.tensor, 1, 1), (o.data, 1, o.tensor, 1)
        self.wq, self.wo = weight(WIDTH, WIDTH), weight(WIDTH, WIDTH)
        self.wk, self.wv = weight(GROUPS * DEPTH, WIDTH), weight(GROUPS * DEPTH, WIDTH)
        self.project = o.cut(ops.MatMul(transpose_b=True), *columns)
        self.out = o.cut(ops.MatMul(transpose_b=True), *rows)
        self.split, self.merge = o.cut(ops.Transpose(), split), o.cut(ops.Transpose(), heads)
        self.rotary, self.fused = Rotary(o), o.fused
        self.tile = o.cut(ops.Tile(), (o.data, o.tensor, 1, 1, 1))
        self.scores = o.cut(ops.BatchMatMul(transpose_b=True), heads, heads)
        self.scale, self.hide = o.cut(ops.Mul(), heads, ()), o.cut(ops.Add(), heads, (1, 1))
        self.softmax, self.mix = o.cut(ops.Softmax(), heads), o.cut(ops.BatchMatMul(), heads, heads)
        self.flash = ops.operations.nn_ops.FlashAttentionScore(HEADS, scale_value=DEPTH**-0.5, input_layout="BNSD")
        if o.sharded:
            self.flash.shard((heads, heads, heads, (1, 1)))
        hidden = np.triu(np.ones((SEQUENCE, SEQUENCE)), 1)
        self.hidden, self.mask = Tensor(hidden.astype(np.uint8)), Tensor((hidden * -1e9).astype(np.float32))

    def heads(self, x: Any, weights: Any, count: int) -> Any:
        return self.split(self.project(x, weights).reshape((BATCH, SEQUENCE, count, DEPTH)), (0, 2, 1, 3))

    def repeat(self, x: Any) -> Any:
        """Every head of keys or values once for each head of queries that looks at it."""
        x = self.tile(x.reshape((BATCH, GROUPS, 1, SEQUENCE, DEPTH)), (1, 1, SHARED, 1, 1))
        return x.reshape((BATCH, HEADS, SEQUENCE, DEPTH))

    def construct(self, x: Any) -> Any:
        x = x.reshape((BATCH * SEQUENCE, WIDTH))
        query, key = self.rotary(self.heads(x, self.wq, HEADS)), self.rotary(self.heads(x, self.wk, GROUPS))
        value = self.heads(x, self.wv, GROUPS)
        if self.fused:
            mixed = self.flash(query, key, value, None, None, None, self.hidden)[3]
        else:
            scores = self.hide(self.scale(self.scores(query, self.repeat(key)), DEPTH**-0.5), self.mask)
            mixed = self.mix(self.softmax(scores), self.repeat(value))
        mixed = self.merge(mixed, (0, 2, 1, 3)).reshape((BATCH * SEQUENCE, WIDTH))
        return self.out(mixed, self.wo).reshape((BATCH, SEQUENCE, WIDTH))


class FeedForward(nn.Cell):
    def __init__(self, o: Options) -> None:
        super().__init__()
        columns, rows = ((o.data, 1), (o.tensor, 1)), ((o.data, o.tensor), (1, o.tensor))
        both = (o.data, o.tensor)
        self.w1, self.w2, self.w3 = weight(HIDDEN, WIDTH), weight(WIDTH, HIDDEN), weight(HIDDEN, WIDTH)
        self.gate = o.cut(ops.MatMul(transpose_b=True), *columns)
        self.up = o.cut(ops.MatMul(transpose_b=True), *columns)
        self.down = o.cut(ops.MatMul(transpose_b=True), *rows)
        self.silu, self.mul = o.cut(ops.SiLU(), both), o.cut(ops.Mul(), both, both)

    def construct(self, x: Any) -> Any:
        x = x.reshape((BATCH * SEQUENCE, WIDTH))
        x = self.down(self.mul(self.silu(self.gate(x, self.w1)), self.up(x, self.w3)), self.w2)
        return x.reshape((BATCH, SEQUENCE, WIDTH))


class Layer(nn.Cell):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(o), Attention(o)
        self.ffn_norm, self.feed_forward = RMSNorm(o), FeedForward(o)
        self.add = o.cut(ops.Add(), (o.data, 1, 1), (o.data, 1, 1))

    def construct(self, x: Any) -> Any:
        x = self.add(x, self.attention(self.attention_norm(x)))
        return self.add(x, self.feed_forward(self.ffn_norm(x)))


class Llama(nn.Cell):
    """words, next words [batch, sequence] (Int32) -> the mean cross entropy."""

    def __init__(self, o: Options) -> None:
        super().__init__()
        table = (o.tensor, 1) if o.tied else (1, o.tensor)
        self.table = weight(VOCABULARY, WIDTH)
        self.embed = o.cut(ops.Gather(), table, (o.data, 1))
        self.layers = nn.CellList([Layer(o) for _ in range(LAYERS)])
        self.norm = RMSNorm(o)
        if not o.tied:
            self.head = weight(VOCABULARY, WIDTH)
        self.tied = o.tied
        self.logits = o.cut(ops.MatMul(transpose_b=True), (o.data, 1), (o.tensor, 1))
        self.loss = nn.CrossEntropyLoss()

    def construct(self, words: Any, next_words: Any) -> Any:
        x = self.embed(self.table, words, 0)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x).reshape((BATCH * SEQUENCE, WIDTH))
        head = self.table if self.tied else self.head
        return self.loss(self.logits(x, head), next_words.reshape((BATCH * SEQUENCE,)))
