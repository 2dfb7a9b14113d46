"""Layers of experts in the forms that public networks write them in; drawn scripts begin with this text.

Tokens are [batch, length, width] in Float64. Every layer gives (what experts make of the tokens, its balancing losses).
"""

from typing import Any

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops

DRAWN = np.random.RandomState(1)
ON, OFF = Tensor(1.0, ms.float64), Tensor(0.0, ms.float64)


def weight(*shape: int) -> Tensor:
    """First values of a parameter."""
    return Tensor(DRAWN.randn(*shape) * 0.3)


class Router(nn.Cell):
    """(weights of the experts that every token [tokens, width] chooses, their numbers, balancing losses).

    ties: experts have equal weights in pairs. unwanted: so many experts that no token chooses. groups, kept: experts
    are in groups, of which a token may choose from the best `kept`. bias: a constant that counts in the choice alone.
    load: how many tokens have chosen every expert, added up over calls.
    """

    def __init__(self, s: Any) -> None:
        super().__init__()
        drawn = weight(s.width, s.experts).asnumpy()
        if s.ties:
            drawn[:, 1::2] = drawn[:, : 2 * (s.experts // 2) : 2]
        self.weight = Parameter(Tensor(drawn), name="weight")
        self.unwanted = Tensor(np.where(np.arange(s.experts) < s.unwanted, -1e3, 0.0))
        self.bias = Tensor(DRAWN.randn(s.experts) * 0.3 * s.bias)
        self.load = Parameter(Tensor(np.zeros(s.experts)), name="load", requires_grad=False)
        self.s = s

    def construct(self, x: Any) -> Any:
        s = self.s
        logits = ops.matmul(x, self.weight) + self.unwanted
        scores = ops.sigmoid(logits) if s.sigmoid else ops.softmax(logits, -1)
        chosen_by = scores + self.bias + (self.unwanted if s.sigmoid else 0.0)
        if s.groups > 1:
            grouped = chosen_by.reshape(-1, s.groups, s.experts // s.groups)
            best = ops.topk(grouped, min(2, s.experts // s.groups))[0].sum(-1)
            _, kept = ops.topk(best, s.kept)
            mask = ops.one_hot(kept, s.groups, ON, OFF).sum(1)
            mask = ops.repeat_interleave(mask, s.experts // s.groups, 1)
            chosen_by = ops.masked_fill(chosen_by, mask == 0.0, -1e4)
        _, experts = ops.topk(chosen_by, s.chosen)
        weights = ops.gather_elements(scores, 1, experts)
        if s.normalised:
            weights = weights / (weights.sum(-1, keepdims=True) + 1e-9)
        share = ops.one_hot(experts, s.experts, ON, OFF).sum(1).mean(0)
        ops.assign_add(self.load, share)
        even = (share * scores.mean(0)).sum() * s.experts
        z = ops.logsumexp(logits, -1)
        return weights * s.scale, experts.astype(ms.int32), 0.01 * even + 0.001 * (z * z).mean()


class OneHot(nn.Cell):
    """Tokens in groups, each with room for some of every expert, by products with tensors of zeros and ones."""

    def __init__(self, s: Any) -> None:
        super().__init__()
        self.router, self.s = Router(s), s
        self.up = Parameter(weight(s.experts, s.width, s.hidden), name="up")
        self.down = Parameter(weight(s.experts, s.hidden, s.width), name="down")
        self.first, self.second = ops.BatchMatMul(), ops.BatchMatMul()
        if s.cut is not None:
            self.first.shard(((s.cut[1], s.cut[0], 1), (s.cut[1], 1, s.cut[2])))
            self.second.shard(((s.cut[1], s.cut[0], s.cut[2]), (s.cut[1], s.cut[2], 1)))

    def construct(self, x: Any) -> Any:
        s = self.s
        groups, length = x.shape[0], x.shape[1]
        weights, experts, losses = self.router(x.reshape(-1, s.width))
        taken = ops.one_hot(experts, s.experts, ON, OFF).reshape(groups, length * s.chosen, s.experts)
        place = ops.cumsum(taken, 1) * taken - 1.0
        room = ops.one_hot(place.astype(ms.int32), s.capacity, ON, OFF)
        room = room * (taken * (place < s.capacity).astype(ms.float64)).expand_dims(-1)
        room = room.reshape(groups, length, s.chosen, s.experts, s.capacity)
        combine = (room * weights.reshape(groups, length, s.chosen, 1, 1)).sum(2)
        dispatch = ops.stop_gradient(room.sum(2)).reshape(groups, length, -1)
        given = ops.matmul(dispatch.transpose(0, 2, 1), x).reshape(groups, s.experts, s.capacity, s.width)
        given = given.transpose(1, 0, 2, 3).reshape(s.experts, groups * s.capacity, s.width)
        found = self.second(ops.silu(self.first(given, self.up)), self.down)
        found = found.reshape(s.experts, groups, s.capacity, s.width).transpose(1, 0, 2, 3)
        out = ops.matmul(combine.reshape(groups, length, -1), found.reshape(groups, -1, s.width))
        return out, losses


class Slots(nn.Cell):
    """Each expert has room for some of all tokens, into which rows are scattered and from which they are gathered."""

    def __init__(self, s: Any) -> None:
        super().__init__()
        self.router, self.s = Router(s), s
        self.up = Parameter(weight(s.experts, s.width, s.hidden), name="up")
        self.gate = Parameter(weight(s.experts, s.width, s.hidden), name="gate")
        self.down = Parameter(weight(s.experts, s.hidden, s.width), name="down")
        self.first, self.second, self.third = ops.BatchMatMul(), ops.BatchMatMul(), ops.BatchMatMul()
        if s.cut is not None:
            for product in (self.first, self.second):
                product.shard(((s.cut[1], 1, 1), (s.cut[1], 1, s.cut[2])))
            self.third.shard(((s.cut[1], 1, s.cut[2]), (s.cut[1], s.cut[2], 1)))

    def construct(self, x: Any) -> Any:
        s = self.s
        tokens, shape = x.reshape(-1, s.width), x.shape
        weights, experts, losses = self.router(tokens)
        flat = experts.reshape(-1)
        taken = ops.one_hot(flat, s.experts, ON, OFF)
        place = ((ops.cumsum(taken, 0) - 1.0) * taken).sum(-1).astype(ms.int32)
        room = s.experts * s.capacity
        slot = ops.where(place < s.capacity, flat * s.capacity + place, room)
        rows = ops.repeat_interleave(tokens, s.chosen, axis=0)
        given = self.scattered(rows, slot, room).reshape(s.experts, s.capacity, s.width)
        hidden = ops.silu(self.first(given, self.gate)) * self.second(given, self.up)
        found = self.third(hidden, self.down).reshape(room, s.width)
        found = ops.cat((found, ops.zeros((1, s.width), found.dtype)), axis=0)
        out = ops.gather(found, slot, 0) * weights.reshape(-1, 1)
        return out.reshape(-1, s.chosen, s.width).sum(1).reshape(shape), losses

    def scattered(self, rows: Any, slot: Any, room: int) -> Any:
        way = self.s.way
        if way == "elements":
            zeros = ops.zeros((room + 1, self.s.width), rows.dtype)
            index = ops.broadcast_to(slot.expand_dims(-1), rows.shape)
            return ops.tensor_scatter_elements(zeros, index, rows, 0)[:room]
        if way == "update":
            zeros = ops.zeros((room + 1, self.s.width), rows.dtype)
            return ops.tensor_scatter_update(zeros, slot.expand_dims(-1), rows)[:room]
        return ops.unsorted_segment_sum(rows, slot, room + 1)[:room]


class Sorted(nn.Cell):
    """Rows in the order of their experts, and products of groups of rows; nothing is dropped."""

    def __init__(self, s: Any) -> None:
        super().__init__()
        self.router, self.s = Router(s), s
        self.up = Parameter(weight(s.experts, s.width, 2 * s.hidden), name="up")
        self.down = Parameter(weight(s.experts, s.hidden, s.width), name="down")
        self.up_bias = Parameter(weight(s.experts, 2 * s.hidden), name="up_bias")
        self.first, self.second = (ops.auto_generate.GroupedMatmul(3, 0) for _ in range(2))
        if s.cut is not None:
            outer, parts, inner = s.cut
            bias = ((parts, inner),) if s.biased else ()
            self.first.shard(((outer, 1), (parts, 1, inner), *bias, (1,)))
            self.second.shard(((outer, inner), (parts, inner, 1), (1,)))

    def construct(self, x: Any) -> Any:
        s = self.s
        tokens, shape = x.reshape(-1, s.width), x.shape
        weights, experts, losses = self.router(tokens)
        flat = experts.reshape(-1)
        ends = ops.cumsum(ops.one_hot(flat, s.experts, ON, OFF).sum(0), 0).astype(ms.int64)
        if s.way == "permute":
            rows, back = ops.moe_token_permute(tokens, experts)
            made = self.experts(rows, ends)
            out = ops.moe_token_unpermute(made, back, weights)
            return out.reshape(shape), losses
        count = flat.shape[0]
        order = ops.argsort(flat.astype(ms.int64) * count + ops.arange(0, count, 1, dtype=ms.int64))
        source = order // s.chosen
        made = self.experts(ops.gather(tokens, source, 0), ends)
        if s.way == "gather":
            out = ops.gather(made, ops.argsort(order), 0) * weights.reshape(-1, 1)
            out = out.reshape(-1, s.chosen, s.width).sum(1)
        elif s.way == "weighted":
            made = made * ops.gather(weights.reshape(-1), order, 0).expand_dims(-1)
            out = ops.gather(made, ops.argsort(order), 0).reshape(-1, s.chosen, s.width).sum(1)
        else:
            made = made * ops.gather(weights.reshape(-1), order, 0).expand_dims(-1)
            out = ops.unsorted_segment_sum(made, source, tokens.shape[0])
        return out.reshape(shape), losses

    def experts(self, rows: Any, ends: Any) -> Any:
        bias = [self.up_bias] if self.s.biased else None
        hidden = self.first([rows], [self.up], bias, None, None, None, None, ends)[0]
        size = self.s.hidden
        hidden = ops.silu(hidden[:, :size]) * hidden[:, size:]
        return self.second([hidden], [self.down], None, None, None, None, None, ends)[0]


class Tables(nn.Cell):
    """Tokens in groups, by tables: the tokens of every place of every expert, and the place of every choice."""

    def __init__(self, s: Any) -> None:
        super().__init__()
        self.router, self.s = Router(s), s
        self.up = Parameter(weight(s.experts, s.width, s.hidden), name="up")
        self.down = Parameter(weight(s.experts, s.hidden, s.width), name="down")
        self.routing = ops.TopKRouter()
        self.first, self.second = ops.BatchMatMul(), ops.BatchMatMul()
        self.dispatch, self.combine = ops.Gather(batch_dims=1), ops.Gather(batch_dims=1)
        if s.cut is not None:
            outer, parts, inner = s.cut
            self.first.shard(((outer, parts, 1, 1), (parts, 1, inner)))
            self.second.shard(((outer, parts, 1, inner), (parts, inner, 1)))

    def construct(self, x: Any) -> Any:
        s = self.s
        groups, length = x.shape[0], x.shape[1]
        weights, experts, losses = self.router(x.reshape(-1, s.width))
        tables, places = self.routing(experts.reshape(groups, length, s.chosen), s.capacity, s.experts, s.drop_type)
        padded = ops.concat((ops.zeros((groups, 1, s.width), x.dtype), x), 1)
        given = self.dispatch(padded, tables, 1)
        found = self.second(ops.gelu(self.first(given, self.up)), self.down)
        found = ops.concat((ops.zeros((groups, s.experts, 1, s.width), x.dtype), found), 2)
        found = found.reshape(groups, -1, s.width)
        out = self.combine(found, places, 1) * weights.reshape(groups, length, s.chosen, 1)
        return out.sum(2), losses


class Net(nn.Cell):
    """Layers of experts beside a product of all tokens, the experts that all share; trained towards y."""

    def __init__(self, settings: Any) -> None:
        super().__init__()
        kinds = {"one_hot": OneHot, "slots": Slots, "sorted": Sorted, "tables": Tables}
        self.layers = nn.CellList([kinds[s.form](s) for s in settings])
        self.shared = Parameter(weight(settings[0].width, settings[0].width), name="shared")
        self.has_shared = settings[0].shared

    def construct(self, x: Any, y: Any) -> Any:
        total = 0.0
        for layer in self.layers:
            out, losses = layer(x)
            if self.has_shared:
                out = out + ops.tanh(ops.matmul(x, self.shared))
            x, total = x + out, total + losses
        difference = x - y
        return (difference * difference).mean() + total
