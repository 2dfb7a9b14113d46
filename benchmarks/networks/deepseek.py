"""DeepSeek-V3 in MindSpore's style, one step of AdamW: ranks share the batch, the experts and the widths of products.

    mspc verify --scale benchmarks/networks/deepseek.py --ranks 2048 -- full sorted 32 8 8
    mspc run benchmarks/networks/deepseek.py --ranks 8 --simulate -- small sorted 2 2 2

What stands behind `--` is SIZE FORM DATA EXPERTS TENSOR LAYERS. SIZE is a row of `SIZES`: the network as published
(671B: keys, values and queries are made of short vectors, with rotary places beside them; shared experts; the best 8 of
256 experts out of the best 4 of 8 groups), or the same layers small. FORM is as in experts.py: `sorted` or `tables`.
DATA by EXPERTS ranks share the batch, EXPERTS ranks the experts, and TENSOR ranks the heads and hidden widths. With
LAYERS there are only so many, of which one has no experts.
"""

import sys
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.common.initializer import Normal, initializer

SIZES = {
    "full": {
        "layers": 61, "dense": 3, "width": 7168, "heads": 128, "size": 128, "turned": 64, "latent": 512,
        "queries": 1536, "dense_hidden": 18432, "hidden": 2048, "experts": 256, "chosen": 8, "groups": 8, "kept": 4,
        "vocabulary": 129280, "length": 4096, "half": ms.bfloat16,
    },
    "small": {
        "layers": 3, "dense": 1, "width": 32, "heads": 4, "size": 8, "turned": 4, "latent": 16, "queries": 24,
        "dense_hidden": 48, "hidden": 16, "experts": 16, "chosen": 4, "groups": 4, "kept": 2, "vocabulary": 64,
        "length": 16, "half": ms.float32,
    },
}  # fmt: skip
FORM = sys.argv[2]
DATA, PARTS, TENSOR = map(int, sys.argv[3:6])
S = SimpleNamespace(**SIZES[sys.argv[1]])
if len(sys.argv) > 6:
    S.layers, S.dense = int(sys.argv[6]), 1
HALF, WIDE = S.half, ms.float32
RANKS = DATA * PARTS * TENSOR
OUTER = DATA * PARTS
BATCH = OUTER
ROWS = BATCH * S.length
ROOM = 1.25 if HALF == ms.bfloat16 else 1e9
ON, OFF = Tensor(1.0, WIDE), Tensor(0.0, WIDE)
FREQUENCIES = 10000.0 ** -(np.arange(0, S.turned, 2) / S.turned)
ANGLES = np.outer(np.arange(S.length), np.concatenate([FREQUENCIES, FREQUENCIES])).astype(np.float32)

ms.set_seed(1)
ms.set_context(mode=ms.GRAPH_MODE)
MODE = {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation", "full_batch": True}
ms.set_auto_parallel_context(**MODE if RANKS > 1 else {})


def sharded(operator, *strategy):
    """The operator with a strategy, where there are ranks."""
    return operator.shard(strategy) if RANKS > 1 else operator


def weight(*shape):
    """A weight that is sampled when a rank needs its slice."""
    return Parameter(initializer(Normal(0.02), shape, HALF))


class Linear(nn.Cell):
    """Rows times a matrix (out, in). parts: into how many slices ranks divide its columns and its rows."""

    def __init__(self, inputs, outputs, parts=(1, 1), dtype=None):
        super().__init__()
        self.weight = Parameter(initializer(Normal(0.02), (outputs, inputs), dtype or HALF))
        self.product = sharded(ops.MatMul(transpose_b=True), (OUTER, parts[1]), parts)

    def construct(self, x):
        return self.product(x, self.weight)


def columns(inputs, outputs):
    """A product of which each of the tensor's ranks has some columns."""
    return Linear(inputs, outputs, (TENSOR, 1))


def rows(inputs, outputs):
    """A product of which each of the tensor's ranks adds up some rows."""
    return Linear(inputs, outputs, (1, TENSOR))


class Norm(nn.Cell):
    """x / sqrt(mean of x^2) in Float32, times a learnt vector."""

    def __init__(self, width=S.width):
        super().__init__()
        self.weight = Parameter(initializer("ones", [width], HALF))

    def construct(self, x):
        wide = ops.cast(x, WIDE)
        wide = wide * ops.rsqrt(ops.mean(ops.square(wide), -1, True) + 1e-6)
        return self.weight * ops.cast(wide, HALF)


class Attention(nn.Cell):
    """Causal attention. Queries, and keys with values, are made of a short vector of each token; a part of queries and
    of keys is turned by its place, and all heads share that of keys."""

    def __init__(self):
        super().__init__()
        self.query_short, self.query_norm = Linear(S.width, S.queries), Norm(S.queries)
        self.query, self.query_turned = columns(S.queries, S.heads * S.size), columns(S.queries, S.heads * S.turned)
        self.short, self.norm, self.key_turned = Linear(S.width, S.latent), Norm(S.latent), Linear(S.width, S.turned)
        self.key, self.value = columns(S.latent, S.heads * S.size), columns(S.latent, S.heads * S.size)
        self.scores = sharded(ops.BatchMatMul(transpose_b=True), *2 * [(OUTER, TENSOR, 1, 1)])
        self.mixed = sharded(ops.BatchMatMul(), *2 * [(OUTER, TENSOR, 1, 1)])
        self.one_head = sharded(ops.Cast(), (OUTER, 1, 1, 1))
        self.out = rows(S.heads * S.size, S.width)
        self.mask = Tensor(np.triu(np.full((S.length, S.length), -1e9, np.float32), 1))

    def heads(self, x, count):
        return ops.transpose(ops.reshape(x, (BATCH, S.length, count, -1)), (0, 2, 1, 3))

    def turned(self, x, cos, sin):
        first, second = x[..., : S.turned // 2], x[..., S.turned // 2 :]
        return x * cos + ops.concat((-second, first), -1) * sin

    def construct(self, x, cos, sin):
        queries, keys = self.query_norm(self.query_short(x)), self.norm(self.short(x))
        query, key, value = (self.heads(y, S.heads) for y in (self.query(queries), self.key(keys), self.value(keys)))
        places = self.turned(self.heads(self.query_turned(queries), S.heads), cos, sin)
        shared = self.one_head(ops.reshape(self.key_turned(x), (BATCH, 1, S.length, S.turned)), HALF)
        shared = self.turned(shared, cos, sin)
        shared = ops.broadcast_to(shared, (BATCH, S.heads, S.length, S.turned))
        scores = self.scores(ops.concat((query, places), -1), ops.concat((key, shared), -1))
        shares = ops.softmax(ops.cast(scores * (S.size + S.turned) ** -0.5, WIDE) + self.mask, -1)
        mixed = self.mixed(ops.cast(shares, HALF), value)
        return self.out(ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (ROWS, S.heads * S.size)))


class Gated(nn.Cell):
    """SwiGLU of all tokens."""

    def __init__(self, hidden):
        super().__init__()
        self.gate, self.up, self.down = columns(S.width, hidden), columns(S.width, hidden), rows(hidden, S.width)

    def construct(self, x):
        return self.down(ops.silu(self.gate(x)) * self.up(x))


class Router(nn.Cell):
    """(weights, experts, balancing loss) of tokens [tokens, width], in Float32."""

    def __init__(self):
        super().__init__()
        self.gate = Linear(S.width, S.experts, dtype=WIDE)
        self.bias = Parameter(initializer("zeros", [S.experts], WIDE), requires_grad=False)
        self.even = sharded(ops.Mul(), (1,), (1,))

    def construct(self, x):
        scores = ops.sigmoid(self.gate(ops.cast(x, WIDE)))
        by = scores + self.bias
        grouped = by.reshape(-1, S.groups, S.experts // S.groups)
        _, kept = ops.topk(ops.topk(grouped, 2)[0].sum(-1), S.kept)
        mask = ops.repeat_interleave(ops.one_hot(kept, S.groups, ON, OFF).sum(1), S.experts // S.groups, 1)
        _, experts = ops.topk(ops.masked_fill(by, mask == 0.0, 0.0), S.chosen)
        weights = ops.gather_elements(scores, 1, experts)
        share = ops.one_hot(experts, S.experts, ON, OFF).sum(1).mean(0)
        weights = 2.5 * weights / weights.sum(-1, keepdims=True)
        return weights, experts.astype(ms.int32), self.even(share, scores.mean(0)).sum()


class SortedExperts(nn.Cell):
    """Rows in the order of their experts."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = (weight(S.experts, S.width, S.hidden) for _ in range(2))
        self.down = weight(S.experts, S.hidden, S.width)
        self.products = [ops.auto_generate.GroupedMatmul(3, 0) for _ in range(3)]
        if RANKS > 1:
            for product in self.products[:2]:
                product.shard(((DATA, 1), (PARTS, 1, TENSOR), (1,)))
            self.products[2].shard(((DATA, TENSOR), (PARTS, TENSOR, 1), (1,)))
            for product in self.products:
                product.add_prim_attr("most_rows", ROOM)

    def product(self, number, rows, matrix, ends):
        return self.products[number]([rows], [matrix], None, None, None, None, None, ends)[0]

    def construct(self, x, weights, experts):
        rows, back = ops.moe_token_permute(x, experts)
        ends = ops.cumsum(ops.one_hot(experts.reshape(-1), S.experts, ON, OFF).sum(0), 0).astype(ms.int64)
        hidden = ops.silu(self.product(0, rows, self.gate, ends)) * self.product(1, rows, self.up, ends)
        return ops.moe_token_unpermute(self.product(2, hidden, self.down, ends), back, weights)


class TableExperts(nn.Cell):
    """Room for some tokens of every sequence with every expert: 1.25 times what even routing gives."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = (weight(S.experts, S.width, S.hidden) for _ in range(2))
        self.down = weight(S.experts, S.hidden, S.width)
        self.capacity = -(-S.length * S.chosen * 5 // (4 * S.experts))
        self.routing = ops.TopKRouter()
        self.first, self.second = (
            sharded(ops.BatchMatMul(), (DATA, PARTS, 1, 1), (PARTS, 1, TENSOR)) for _ in range(2)
        )
        self.third = sharded(ops.BatchMatMul(), (DATA, PARTS, 1, TENSOR), (PARTS, TENSOR, 1))
        self.dispatch, self.combine = ops.Gather(batch_dims=1), ops.Gather(batch_dims=1)

    def construct(self, x, weights, experts):
        tables, places = self.routing(experts.reshape(BATCH, S.length, S.chosen), self.capacity, S.experts, 0)
        x = x.reshape(BATCH, S.length, S.width)
        sent = self.dispatch(ops.concat((ops.zeros((BATCH, 1, S.width), x.dtype), x), 1), tables, 1)
        found = self.third(ops.silu(self.first(sent, self.gate)) * self.second(sent, self.up), self.down)
        found = ops.concat((ops.zeros((BATCH, S.experts, 1, S.width), x.dtype), found), 2)
        found = self.combine(found.reshape(BATCH, -1, S.width), places, 1)
        shares = ops.cast(weights, HALF).reshape(BATCH, S.length, S.chosen, 1)
        return (found * shares).sum(2).reshape(ROWS, S.width)


class Experts(nn.Cell):
    """The experts of each token, and the one that all share."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = Router(), SortedExperts() if FORM == "sorted" else TableExperts()
        self.shared = Gated(S.hidden)

    def construct(self, x):
        weights, experts, even = self.router(x)
        return self.experts(x, weights, experts) + self.shared(x), even


class Dense(nn.Cell):
    """One product of all tokens in place of experts."""

    def __init__(self):
        super().__init__()
        self.dense = Gated(S.dense_hidden)

    def construct(self, x):
        return self.dense(x), OFF * 1.0


class Layer(nn.Cell):
    """Attention, then a feed-forward, each behind a norm and with a residual."""

    @ms.lazy_inline
    def __init__(self, forward):
        super().__init__()
        self.attention_norm, self.attention, self.norm, self.forward = Norm(), Attention(), Norm(), forward

    def construct(self, x, total, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        found, even = self.forward(self.norm(x))
        return x + found, total + even


class Network(nn.Cell):
    """The mean cross entropy of the next word, and how unevenly experts are chosen."""

    def __init__(self):
        super().__init__()
        self.table = weight(S.vocabulary, S.width)
        self.lookup = sharded(ops.Gather(), (1, 1), (OUTER, 1))
        self.layers = nn.CellList([Layer(Dense() if i < S.dense else Experts()) for i in range(S.layers)])
        for layer in self.layers:
            layer.recompute()
        self.norm, self.head = Norm(), columns(S.width, S.vocabulary)
        self.angles = Tensor(ANGLES)
        self.shares = sharded(ops.LogSoftmax(-1), (OUTER, TENSOR))
        self.said = sharded(ops.GatherD(), (OUTER, TENSOR), (OUTER, 1))

    def construct(self, words, labels):
        x = ops.reshape(self.lookup(self.table, words, 0), (ROWS, S.width))
        cos, sin = ops.cast(ops.cos(self.angles), HALF), ops.cast(ops.sin(self.angles), HALF)
        total = OFF * 1.0
        for layer in self.layers:
            x, total = layer(x, total, cos, sin)
        shares = self.shares(ops.cast(self.head(self.norm(x)), WIDE))
        return 0.01 * total - self.said(shares, 1, ops.reshape(labels, (-1, 1))).mean()


network = Network()
step = nn.TrainOneStepCell(network, mint.optim.AdamW(network.trainable_params(), 1e-3))
text = np.arange(BATCH * (S.length + 1)).reshape(BATCH, S.length + 1) % S.vocabulary
print("loss", step(Tensor(text[:, :-1], ms.int64), Tensor(text[:, 1:], ms.int64)))
