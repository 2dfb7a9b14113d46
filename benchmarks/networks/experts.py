"""Language models of experts in MindSpore's style, one step of AdamW: ranks share the batch and updates, and some of
them the experts.

    mspc compile benchmarks/networks/experts.py --ranks 64 -- mixtral sorted 8
    mspc compile benchmarks/networks/experts.py --ranks 64 -- deepseek tables 64
    mspc run benchmarks/networks/experts.py --ranks 8 --simulate -- small-deepseek sorted 4 20

What stands behind `--` is SIZE FORM PARTS STEPS SEQUENCES. SIZE is a row of `SIZES`: Mixtral 8x7B and DeepSeek-V3 as
they are published, one between, and the same layers small, in Float32. FORM: rows in the order of their experts and
products of groups of rows (`sorted`, nothing is dropped), or room for a number of tokens of each sequence with every
expert (`tables`). PARTS ranks share the experts. STEPS steps are made of one batch, of SEQUENCES sequences for every
rank.
"""

import sys
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.common.initializer import Normal, initializer
from mindspore.communication import get_group_size, init

SIZES = {
    "mixtral": {
        "layers": 32, "dense": 0, "width": 4096, "heads": 32, "size": 128, "keys": 8, "latent": 0, "hidden": 14336,
        "experts": 8, "chosen": 2, "groups": 1, "kept": 1, "shared": 0, "sigmoid": False, "vocabulary": 32000,
        "length": 4096, "half": ms.bfloat16,
    },
    "deepseek": {
        "layers": 61, "dense": 3, "width": 7168, "heads": 128, "size": 128, "keys": 128, "latent": 512, "hidden": 2048,
        "experts": 256, "chosen": 8, "groups": 8, "kept": 4, "shared": 2048, "sigmoid": True, "vocabulary": 129280,
        "length": 4096, "half": ms.bfloat16,
    },
    "medium-mixtral": {
        "layers": 4, "dense": 0, "width": 2048, "heads": 16, "size": 128, "keys": 4, "latent": 0, "hidden": 7168,
        "experts": 8, "chosen": 2, "groups": 1, "kept": 1, "shared": 0, "sigmoid": False, "vocabulary": 32000,
        "length": 2048, "half": ms.bfloat16,
    },
    "small-mixtral": {
        "layers": 2, "dense": 0, "width": 32, "heads": 4, "size": 8, "keys": 2, "latent": 0, "hidden": 64,
        "experts": 8, "chosen": 2, "groups": 1, "kept": 1, "shared": 0, "sigmoid": False, "vocabulary": 64,
        "length": 16, "half": ms.float32,
    },
    "small-deepseek": {
        "layers": 3, "dense": 1, "width": 32, "heads": 4, "size": 8, "keys": 4, "latent": 16, "hidden": 24,
        "experts": 16, "chosen": 4, "groups": 4, "kept": 2, "shared": 24, "sigmoid": True, "vocabulary": 64,
        "length": 16, "half": ms.float32,
    },
}  # fmt: skip
NAME, FORM, PARTS = sys.argv[1], sys.argv[2], int(sys.argv[3])
STEPS, SEQUENCES = (int(sys.argv[i]) if len(sys.argv) > i else 1 for i in (4, 5))
S = SimpleNamespace(**SIZES[NAME])
HALF, WIDE = S.half, ms.float32
DENSE_HIDDEN = {"deepseek": 18432}.get(NAME, 2 * S.hidden)

ms.set_seed(1)
ms.set_context(mode=ms.GRAPH_MODE)
init()
RANKS = get_group_size()
MODE = {"parallel_mode": "semi_auto_parallel", "full_batch": True, "enable_parallel_optimizer": True}
ms.set_auto_parallel_context(**MODE if RANKS > 1 else {"parallel_mode": "stand_alone"})
OUTER = max(RANKS // PARTS, 1)
BATCH = SEQUENCES * (RANKS if STEPS == 1 else 8)
WORST = PARTS * min(S.chosen, S.experts // PARTS) / S.chosen  # no token chooses an expert twice
ROOM = 1.25 if STEPS == 1 and HALF != WIDE else max(WORST, 1.0)  # what is not trained is routed evenly
ON, OFF = Tensor(1.0, WIDE), Tensor(0.0, WIDE)


def weight(*shape):
    """A weight that is sampled when a rank needs its slice."""
    return Parameter(initializer(Normal(0.02), shape, HALF))


class Linear(nn.Cell):
    """x times a matrix (out, in)."""

    def __init__(self, inputs, outputs, dtype=None):
        super().__init__()
        self.weight = Parameter(initializer(Normal(0.02), (outputs, inputs), dtype or HALF))
        self.product = ops.MatMul(transpose_b=True)

    def construct(self, x):
        found = self.product(ops.reshape(x, (-1, x.shape[-1])), self.weight)
        return ops.reshape(found, (*x.shape[:-1], found.shape[-1]))


class Norm(nn.Cell):
    """x / sqrt(mean of x^2) in Float32, times a learnt vector."""

    def __init__(self, width=S.width):
        super().__init__()
        self.weight = Parameter(initializer("ones", [width], HALF))

    def construct(self, x):
        wide = ops.cast(x, WIDE)
        wide = wide * ops.rsqrt(ops.mean(ops.square(wide), -1, True) + 1e-6)
        return self.weight * ops.cast(wide, HALF)


CAUSAL = Tensor(np.triu(np.full((S.length, S.length), -1e9, np.float32), 1))


class Attention(nn.Cell):
    """Causal attention; keys and values of several heads are shared, or made of a short vector of each token."""

    def __init__(self):
        super().__init__()
        self.query, self.out = Linear(S.width, S.heads * S.size), Linear(S.heads * S.size, S.width)
        if S.latent:
            self.short, self.norm = Linear(S.width, S.latent), Norm(S.latent)
        self.key, self.value = (Linear(S.latent or S.width, S.keys * S.size) for _ in range(2))
        self.mask = CAUSAL

    def heads(self, x, count):
        return ops.transpose(ops.reshape(x, (BATCH, S.length, count, S.size)), (0, 2, 1, 3))

    def repeated(self, x):
        shape = (BATCH, S.keys, S.heads // S.keys, S.length, S.size)
        return ops.reshape(ops.broadcast_to(ops.expand_dims(x, 2), shape), (BATCH, S.heads, S.length, S.size))

    def construct(self, x):
        source = self.norm(self.short(x)) if S.latent else x
        query = self.heads(self.query(x), S.heads)
        key, value = (self.repeated(self.heads(made(source), S.keys)) for made in (self.key, self.value))
        scores = ops.BatchMatMul(transpose_b=True)(query, key) * S.size**-0.5
        shares = ops.softmax(ops.cast(scores, WIDE) + self.mask, -1)
        mixed = ops.BatchMatMul()(ops.cast(shares, HALF), value)
        return self.out(ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (BATCH, S.length, S.heads * S.size)))


class Gated(nn.Cell):
    """SwiGLU of all tokens."""

    def __init__(self, hidden):
        super().__init__()
        self.gate, self.up, self.down = Linear(S.width, hidden), Linear(S.width, hidden), Linear(hidden, S.width)

    def construct(self, x):
        return self.down(ops.silu(self.gate(x)) * self.up(x))


class Router(nn.Cell):
    """(weights, experts, balancing loss) of tokens [tokens, width], in Float32."""

    def __init__(self):
        super().__init__()
        self.gate = Linear(S.width, S.experts, WIDE)
        self.bias = Parameter(initializer("zeros", [S.experts], WIDE), requires_grad=False)

    def construct(self, x):
        logits = self.gate(ops.cast(x, WIDE))
        scores = ops.sigmoid(logits) if S.sigmoid else ops.softmax(logits, -1)
        by = scores
        if S.groups > 1:
            by = scores + self.bias
            grouped = by.reshape(-1, S.groups, S.experts // S.groups)
            _, kept = ops.topk(ops.topk(grouped, 2)[0].sum(-1), S.kept)
            mask = ops.repeat_interleave(ops.one_hot(kept, S.groups, ON, OFF).sum(1), S.experts // S.groups, 1)
            by = ops.masked_fill(by, mask == 0.0, 0.0)
        _, experts = ops.topk(by, S.chosen)
        weights = ops.gather_elements(scores, 1, experts)
        share = ops.one_hot(experts, S.experts, ON, OFF).sum(1).mean(0)
        return weights / weights.sum(-1, keepdims=True), experts.astype(ms.int32), (share * scores.mean(0)).sum()


class SortedExperts(nn.Cell):
    """Rows in the order of their experts."""

    def __init__(self):
        super().__init__()
        self.up, self.down = weight(S.experts, S.width, 2 * S.hidden), weight(S.experts, S.hidden, S.width)
        self.first, self.second = (ops.auto_generate.GroupedMatmul(3, 0) for _ in range(2))
        if RANKS > 1:
            for product in (self.first, self.second):
                product.shard(((OUTER, 1), (PARTS, 1, 1), (1,)))
                product.add_prim_attr("most_rows", ROOM)

    def construct(self, x, weights, experts):
        rows, back = ops.moe_token_permute(x.reshape(-1, S.width), experts)
        ends = ops.cumsum(ops.one_hot(experts.reshape(-1), S.experts, ON, OFF).sum(0), 0).astype(ms.int64)
        hidden = self.first([rows], [self.up], None, None, None, None, None, ends)[0]
        hidden = ops.silu(hidden[:, : S.hidden]) * hidden[:, S.hidden :]
        found = self.second([hidden], [self.down], None, None, None, None, None, ends)[0]
        return ops.moe_token_unpermute(found, back, weights).reshape(x.shape)


class TableExperts(nn.Cell):
    """Room for some tokens of every sequence with every expert: 1.25 times what even routing gives."""

    def __init__(self):
        super().__init__()
        self.up, self.down = weight(S.experts, S.width, 2 * S.hidden), weight(S.experts, S.hidden, S.width)
        self.capacity = -(-S.length * S.chosen * 5 // (4 * S.experts))  # as ROOM
        self.routing, self.first, self.second = ops.TopKRouter(), ops.BatchMatMul(), ops.BatchMatMul()
        self.dispatch, self.combine = ops.Gather(batch_dims=1), ops.Gather(batch_dims=1)
        if RANKS > 1:
            for product in (self.first, self.second):
                product.shard(((OUTER, PARTS, 1, 1), (PARTS, 1, 1)))

    def construct(self, x, weights, experts):
        tables, places = self.routing(experts.reshape(BATCH, S.length, S.chosen), self.capacity, S.experts, 0)
        padded = ops.concat((ops.zeros((BATCH, 1, S.width), x.dtype), x), 1)
        hidden = self.first(self.dispatch(padded, tables, 1), self.up)
        found = self.second(ops.silu(hidden[..., : S.hidden]) * hidden[..., S.hidden :], self.down)
        found = ops.concat((ops.zeros((BATCH, S.experts, 1, S.width), x.dtype), found), 2)
        found = self.combine(found.reshape(BATCH, -1, S.width), places, 1)
        return (found * ops.cast(weights, HALF).reshape(BATCH, S.length, S.chosen, 1)).sum(2)


class Experts(nn.Cell):
    """The experts of each token, and those that all share."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = Router(), SortedExperts() if FORM == "sorted" else TableExperts()
        self.shared = Gated(S.shared) if S.shared else None

    def construct(self, x):
        weights, experts, even = self.router(x.reshape(-1, S.width))
        found = self.experts(x, weights, experts)
        return (found if self.shared is None else found + self.shared(x)), even


class Layer(nn.Cell):
    """Attention, then experts, each behind a norm and with a residual."""

    @ms.lazy_inline
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention, self.norm, self.experts = Norm(), Attention(), Norm(), Experts()

    def construct(self, x, total):
        x = x + self.attention(self.attention_norm(x))
        found, even = self.experts(self.norm(x))
        return x + found, total + even


class DenseLayer(nn.Cell):
    """Attention, then a product of all tokens."""

    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention, self.norm = Norm(), Attention(), Norm()
        self.dense = Gated(DENSE_HIDDEN)

    def construct(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.dense(self.norm(x))


class Network(nn.Cell):
    """The mean cross entropy of the next word, and how unevenly experts are chosen."""

    def __init__(self):
        super().__init__()
        self.table = weight(S.vocabulary, S.width)
        self.dense = nn.CellList([DenseLayer() for _ in range(S.dense)])
        self.layers = nn.CellList([Layer() for _ in range(S.layers - S.dense)])
        self.norm, self.head = Norm(), Linear(S.width, S.vocabulary)

    def construct(self, words, labels):
        x, total = ops.gather(self.table, words, 0), ON * 0.0
        for layer in self.dense:
            x = layer(x)
        for layer in self.layers:
            x, total = layer(x, total)
        logits = ops.reshape(ops.cast(self.head(self.norm(x)), WIDE), (-1, S.vocabulary))
        said = ops.gather_elements(ops.log_softmax(logits, -1), 1, ops.reshape(labels, (-1, 1)))
        return 0.01 * total - said.mean()


network = Network()
step = nn.TrainOneStepCell(network, mint.optim.AdamW(network.trainable_params(), 1e-3))
drawn = np.random.RandomState(3).randint(0, S.vocabulary, (BATCH, S.length + 1)) if STEPS > 1 else None
text = np.zeros((BATCH, S.length + 1), np.int32) if drawn is None else drawn
for _ in range(STEPS):
    print("loss", step(Tensor(text[:, :-1], ms.int64), Tensor(text[:, 1:], ms.int64)))
