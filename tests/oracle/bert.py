"""A BERT-like encoder in MindSpore's spelling: cells of `nn`, functions of `ops` and methods of tensors.

Where it is split, the cells' own operators are given strategies, as scripts do with `dense.matmul.shard(...)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mspc import nn, ops

BATCH, SEQUENCE, WIDTH, HEADS, HIDDEN, VOCABULARY, LAYERS = 8, 8, 32, 4, 64, 40, 2
IGNORED = -1


@dataclass(frozen=True)
class Options:
    """data, tensor: ranks that share the batch and the layers, where `sharded`. fused: attention is one function.
    approximate: GELU by the tanh formula."""

    data: int = 1
    tensor: int = 1
    sharded: bool = False
    fused: bool = False
    approximate: bool = False


def split_columns(dense: nn.Dense, o: Options) -> nn.Dense:
    """Every rank of a tensor group computes some of the columns."""
    if o.sharded:
        dense.matmul.shard(((o.data, 1), (o.tensor, 1)))
        if dense.has_bias:
            dense.bias_add.shard(((o.data, o.tensor), (o.tensor,)))
    return dense


def split_rows(dense: nn.Dense, o: Options) -> nn.Dense:
    """Every rank of a tensor group has a part of each sum."""
    if o.sharded:
        dense.matmul.shard(((o.data, o.tensor), (1, o.tensor)))
        dense.bias_add.shard(((o.data, 1), (1,)))
    return dense


def norm(o: Options) -> nn.LayerNorm:
    cell = nn.LayerNorm((WIDTH,), epsilon=1e-12)
    if o.sharded:
        cell.layer_norm.shard(((o.data, 1, 1), (1,), (1,)))
    return cell


class Embeddings(nn.Cell):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.position_embeddings = nn.Embedding(SEQUENCE, WIDTH)
        self.token_type_embeddings = nn.Embedding(2, WIDTH, use_one_hot=True)
        if o.sharded:
            self.word_embeddings.gather.shard(((o.tensor, 1), (o.data, 1)))
        self.layer_norm, self.dropout = norm(o), nn.Dropout(p=0.0)

    def construct(self, ids: Any, types: Any) -> Any:
        places = ops.arange(ids.shape[1]).expand_dims(0)
        x = self.word_embeddings(ids) + self.token_type_embeddings(types) + self.position_embeddings(places)
        return self.dropout(self.layer_norm(x))


class SelfAttention(nn.Cell):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.query, self.key, self.value = (split_columns(nn.Dense(WIDTH, WIDTH), o) for _ in range(3))
        self.output, self.layer_norm = split_rows(nn.Dense(WIDTH, WIDTH), o), norm(o)
        self.fused = o.fused

    def heads(self, x: Any) -> Any:
        return x.view(x.shape[0], x.shape[1], HEADS, -1).transpose(0, 2, 1, 3)

    def construct(self, x: Any, mask: Any) -> Any:
        query, key, value = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        factor = float(query.shape[-1]) ** -0.5
        if self.fused:
            hidden = (mask < 0.5).broadcast_to((x.shape[0], 1, x.shape[1], x.shape[1]))
            mixed = ops.flash_attention_score(
                query, key, value, HEADS, attn_mask=hidden, scalar_value=factor, input_layout="BNSD"
            )
        else:
            scores = ops.matmul(query, key.swapaxes(-1, -2)) * factor + (1.0 - mask) * -1e9
            mixed = ops.matmul(ops.softmax(scores, axis=-1), value)
        mixed = mixed.transpose(0, 2, 1, 3).reshape(x.shape)
        return self.layer_norm(x + self.output(mixed))


class Layer(nn.Cell):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.attention = SelfAttention(o)
        self.intermediate, self.output = (
            split_columns(nn.Dense(WIDTH, HIDDEN), o),
            split_rows(nn.Dense(HIDDEN, WIDTH), o),
        )
        self.gelu, self.layer_norm = nn.GELU(approximate=o.approximate), norm(o)

    def construct(self, x: Any, mask: Any) -> Any:
        x = self.attention(x, mask)
        return self.layer_norm(x + self.output(self.gelu(self.intermediate(x))))


class Bert(nn.Cell):
    """ids, types, mask [batch, sequence], hidden words [batch, sequence] (`IGNORED` where a word is shown) and
    whether the second sentence follows [batch], all Int32 -> the sum of both mean cross entropies."""

    def __init__(self, o: Options) -> None:
        super().__init__()
        self.embeddings = Embeddings(o)
        self.layers = nn.CellList([Layer(o) for _ in range(LAYERS)])
        self.pooler, self.follows = nn.Dense(WIDTH, WIDTH, activation="tanh"), nn.Dense(WIDTH, 2)
        self.transform, self.transform_norm = nn.Dense(WIDTH, WIDTH, activation="gelu"), norm(o)
        self.word_bias = nn.Dense(1, VOCABULARY, has_bias=False)
        self.words, self.sentences = nn.CrossEntropyLoss(ignore_index=IGNORED), nn.CrossEntropyLoss()

    def construct(self, ids: Any, types: Any, mask: Any, hidden: Any, follows: Any) -> Any:
        seen = mask.astype("float32").expand_dims(1).expand_dims(1)
        x = self.embeddings(ids, types)
        for layer in self.layers:
            x = layer(x, seen)
        y = self.transform_norm(self.transform(x))
        bias = self.word_bias.weight.reshape((-1,))
        logits = ops.matmul(y, self.embeddings.word_embeddings.embedding_table.T) + bias
        loss = self.words(logits.reshape((-1, VOCABULARY)), hidden.reshape((-1,)))
        return loss + self.sentences(self.follows(self.pooler(x[:, 0])), follows)


def batch() -> tuple[np.ndarray, ...]:
    """The inputs of `Bert`, all drawn from one seed; every sequence but the first ends in padding."""
    draw = np.random.default_rng(5)
    ids = draw.integers(1, VOCABULARY, (BATCH, SEQUENCE))
    mask = np.arange(SEQUENCE) < np.arange(SEQUENCE, SEQUENCE - BATCH, -1)[:, None].clip(3)
    hidden = np.where((draw.random(ids.shape) < 0.4) & mask, ids, IGNORED)
    types = np.arange(SEQUENCE) >= draw.integers(1, SEQUENCE, BATCH)[:, None]
    found = (ids * mask, types, mask, hidden, draw.integers(0, 2, BATCH))
    return tuple(array.astype(np.int32) for array in found)
