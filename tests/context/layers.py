"""Layers of the networks that `drawn_network` draws; their scripts begin with this text."""

from __future__ import annotations

from typing import Any

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.ops import operations as P  # as public code

DEPTH = 2
"""The width of a head."""
_values = np.random.RandomState(3)


def weight(*shape: int) -> Parameter:
    return Parameter(Tensor(_values.randn(*shape) * 0.4, ms.float64))


def sharded(op: Any, strategy: Any) -> Any:
    """An operator with a strategy; on one device there is none."""
    return op if strategy is None else op.shard(strategy)


class Norm(nn.Cell):
    def __init__(self, width: int, root: bool) -> None:
        super().__init__()
        self.gamma, self.beta = weight(width), weight(width)
        self.norm = P.RmsNorm(1e-5) if root else P.LayerNorm(2, -1, 1e-5)
        self.root = root

    def construct(self, x: Any) -> Any:
        return self.norm(x, self.gamma)[0] if self.root else self.norm(x, self.gamma, self.beta)[0]


class Flash(nn.Cell):
    """One operator of attention. cut: the strategy of query, key and value, attributes by name beside it."""

    def __init__(self, heads: int, layout: str, mode: int, cut: Any, attributes: Any, masks: Any, window: Any) -> None:
        super().__init__()
        self.layout, self.masks = layout, masks
        before, behind = window
        self.op = P.FlashAttentionScore(heads, 1.0, 0.5, before, behind, input_layout=layout, sparse_mode=mode)
        if cut is not None:
            self.op.shard(cut)
            for name, value in attributes.items():
                self.op.add_prim_attr(name, value)

    def construct(self, query: Any, key: Any, value: Any, shift: Any, hidden: Any) -> Any:
        batch, queries, heads = query.shape[:3]
        q, k, v = self.lay(query), self.lay(key), self.lay(value)
        shift = shift if "shift" in self.masks else None
        hidden = hidden if "hidden" in self.masks else None
        ends = self.masks.get("ends")
        out = self.op(q, k, v, shift, None, None, hidden, None, ends, ends)[3]
        if self.layout == "SBH":
            return out.transpose(1, 0, 2)
        out = out.transpose(0, 2, 1, 3) if self.layout == "BNSD" else out
        return out.reshape(batch, queries, heads * DEPTH)

    def lay(self, x: Any) -> Any:
        batch, length, heads = x.shape[:3]
        if self.layout == "BNSD":
            return x.transpose(0, 2, 1, 3)
        if self.layout == "BSND":
            return x
        flat = x.reshape(batch, length, heads * DEPTH)
        return flat if self.layout == "BSH" else flat.transpose(1, 0, 2)


class Written(nn.Cell):
    """Attention operator by operator. cuts: strategies of the first product, the softmax and the second product.
    flat: heads are places of the batch."""

    def __init__(self, cuts: Any, causal: str, masks: Any, drop: float, scaled: str, group: int, flat: bool) -> None:
        super().__init__()
        first, softmax, last = cuts
        self.first, self.last = sharded(P.BatchMatMul(transpose_b=True), first), sharded(P.BatchMatMul(), last)
        self.softmax = sharded(P.Softmax(-1), softmax)
        self.drop = nn.Dropout(p=drop) if drop else None
        self.causal, self.masks, self.scaled, self.group, self.flat = causal, masks, scaled, group, flat

    def construct(self, query: Any, key: Any, value: Any, shift: Any, hidden: Any) -> Any:
        batch, queries, heads = query.shape[:3]
        keys = key.shape[1]
        q, k, v = query.transpose(0, 2, 1, 3), key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3)
        if self.group > 1:
            k, v = ops.repeat_interleave(k, self.group, 1), ops.repeat_interleave(v, self.group, 1)
        if self.flat:
            q, k, v = (x.reshape(-1, x.shape[2], DEPTH) for x in (q, k, v))
        if self.scaled == "query":
            q = q * 0.5
        scores = self.first(q, k)
        if self.scaled == "scores":
            scores = scores / 2.0
        far = np.triu(np.ones((queries, keys)), 1)
        if self.causal == "added":
            scores = scores + Tensor(far * -1e9, ms.float64)
        elif self.causal == "filled":
            scores = ops.masked_fill(scores, Tensor(far > 0), Tensor(-1e30, ms.float64))
        if "shift" in self.masks:
            scores = scores + shift
        if "hidden" in self.masks:
            scores = ops.masked_fill(scores, hidden, Tensor(-1e30, ms.float64))
        shares = self.softmax(scores)
        if self.drop is not None:
            shares = self.drop(shares)
        found = self.last(shares, v).reshape(batch, heads, queries, DEPTH)
        return found.transpose(0, 2, 1, 3).reshape(batch, queries, heads * DEPTH)


class Layer(nn.Cell):
    """A layer of a transformer. cuts: strategies of products of columns, of rows, and of both sums of residuals."""

    def __init__(
        self, width: int, heads: tuple[int, int], attention: nn.Cell, root: bool, drop: float, cuts: Any, crossed: bool
    ) -> None:
        super().__init__()
        columns, rows, add = cuts
        self.heads, self.crossed = heads, crossed
        self.first, self.second = Norm(width, root), Norm(width, root)
        self.wq, self.wk, self.wv = (weight(width, n * DEPTH) for n in (heads[0], heads[1], heads[1]))
        self.wo, self.up = weight(heads[0] * DEPTH, width), weight(width, 2 * width)
        self.down = weight(2 * width, width)
        self.attention = attention
        self.column = [sharded(P.MatMul(), columns) for _ in range(4)]
        self.row = [sharded(P.MatMul(), rows) for _ in range(2)]
        self.add, self.add_again = sharded(P.Add(), add), P.Add()
        self.drop = nn.Dropout(p=drop) if drop else None

    def product(self, op: Any, x: Any, matrix: Any) -> Any:
        found = op(x.reshape(-1, x.shape[-1]), matrix)
        return found.reshape(*x.shape[:-1], matrix.shape[-1])

    def dropped(self, x: Any) -> Any:
        return x if self.drop is None else self.drop(x)

    def apart(self, x: Any, heads: int) -> Any:
        return x.reshape(x.shape[0], x.shape[1], heads, DEPTH)

    def construct(self, x: Any, memory: Any, shift: Any, hidden: Any) -> Any:
        h = self.first(x)
        other = memory if self.crossed else h
        query = self.apart(self.product(self.column[0], h, self.wq), self.heads[0])
        key = self.apart(self.product(self.column[1], other, self.wk), self.heads[1])
        value = self.apart(self.product(self.column[2], other, self.wv), self.heads[1])
        found = self.product(self.row[0], self.attention(query, key, value, shift, hidden), self.wo)
        x = self.add(x, self.dropped(found))
        h = ops.tanh(self.product(self.column[3], self.second(x), self.up))
        return self.add_again(x, self.dropped(self.product(self.row[1], h, self.down)))


class Net(nn.Cell):
    def __init__(self, layers: Any, width: int) -> None:
        super().__init__()
        self.layers, self.last = nn.CellList(layers), Norm(width, True)

    def construct(self, x: Any, memory: Any, shift: Any, hidden: Any, wanted: Any) -> Any:
        for layer in self.layers:
            x = layer(x, memory, shift, hidden)
        return ops.square(self.last(x) - wanted).mean()
