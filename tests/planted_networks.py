"""Networks that errors are planted for: each is written so that some passes have work to do on it."""

HEAD = '''
import mindspore as ms, numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
ms.set_seed(1)
'''
RECOMPUTED = HEAD + '''
class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("xavier_uniform", [16, 16]))
        self.gain = Parameter(initializer("ones", [16]))
        self.up = ops.MatMul().shard(((2, 1), (1, 2)))
        self.norm = ops.RmsNorm().shard(((2, 2), (2,)))
        self.drop = ops.Dropout(keep_prob=0.8).shard(((2, 2),))

    def construct(self, x):
        return ops.tanh(self.drop(self.norm(self.up(x, self.w), self.gain)[0])[0]) + x


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(2)])
        for layer in self.layers:
            layer.recompute()

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return ops.square(x).mean()


net = Net()
net.set_train()
nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 0.01))(Tensor(np.ones((8, 16)), ms.float32))
'''
"""Layers that are computed again, with a norm over a dimension that is sharded."""
LOOPS = HEAD + '''
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("xavier_uniform", [8, 8]), name="w")
        self.v = Parameter(initializer("xavier_uniform", [8, 8]), name="v")
        self.mm = ops.MatMul().shard(((2, 1), (1, 2)))
        self.drop = ops.Dropout(keep_prob=0.9)

    def construct(self, x, n):
        i, given = ops.zeros((), ms.int32), x
        while i < n:
            same = ops.matmul(self.v, self.w)
            x = ops.tanh(self.mm(x, self.w) + ops.matmul(x, same) * 0.1) * (1.0 + 0.5 * ops.cast(i, ms.float32))
            x = self.drop(x)[0] + ops.stop_gradient(ops.sigmoid(x))
            i = i + 1
        if given.sum() > 0:
            x = ops.sin(self.mm(x, self.v))
        else:
            x = ops.cos(self.mm(x, self.w)) * 2.0
        return ops.mean(ops.square(x))


net = Net()
net.set_train()
step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
step(Tensor(np.ones((4, 8)), ms.float32), Tensor(3, ms.int32))
'''
"""A loop whose iterations nobody counts, and a branch."""
EXPERTS = HEAD + '''
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.gate = Parameter(initializer(Normal(0.5), (8, 4), ms.float32))
        self.up = Parameter(initializer(Normal(0.5), (4, 8, 8), ms.float32))
        self.product = ops.auto_generate.GroupedMatmul(3, 0)
        self.product.shard(((1, 1), (4, 1, 1), (1,)))

    def construct(self, tokens):
        weights, experts = ops.topk(ops.softmax(ops.matmul(tokens, self.gate)), 2)
        rows, back = ops.moe_token_permute(tokens, experts.astype(ms.int32))
        on, off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
        ends = ops.cumsum(ops.one_hot(experts.reshape(-1), 4, on, off).sum(0), 0).astype(ms.int64)
        found = self.product([rows], [self.up], None, None, None, None, None, ends)[0]
        return ops.square(ops.moe_token_unpermute(found, back, weights)).mean()


net = Net()
nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 1e-3))(Tensor(np.ones((32, 8)), ms.float32))
'''
"""Experts on four ranks, to which rows are routed."""
FOLDED = HEAD + '''
class Layer(nn.Cell):
    @ms.lazy_inline
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("xavier_uniform", [8, 8]))
        self.mm, self.drop = ops.MatMul().shard(((2, 1), (1, 2))), ops.Dropout(keep_prob=0.9)

    def construct(self, x):
        return self.drop(ops.tanh(self.mm(x, self.w)))[0] + x


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(3)])

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return ops.square(x).mean()


net = Net()
net.set_train()
nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 0.01))(Tensor(np.ones((4, 8)), ms.float32))
'''
"""Equal layers that become one graph."""
NETWORK = '''
import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
ms.set_seed(1)


class Net(nn.Cell):
    """x[64, 32], less the largest of its row -> two layers with a mask between -> [64, 16]"""

    def __init__(self):
        super().__init__()
        self.w1 = Parameter(initializer("xavier_uniform", [32, 64]))
        self.w2 = Parameter(initializer("xavier_uniform", [64, 16]))
        self.gain = Parameter(initializer("ones", [16]))
        self.turn = Parameter(initializer("ones", [16]))
        self.peak = ops.ReduceMax(keep_dims=True).shard(((2, 4),))
        self.less = ops.Sub().shard(((8, 1), (8, 1)))
        self.up = ops.MatMul().shard(((2, 1), (1, 4)))
        self.tanh = ops.Tanh().shard(((2, 4),))
        self.drop = ops.Dropout(keep_prob=0.8, Seed0=3).shard(((2, 4),))
        self.down = ops.MatMul().shard(((2, 4), (4, 1)))
        self.scale = ops.Mul().shard(((8, 1), (1,)))
        self.turned = ops.Mul().shard(((1, 8), (8,)))

    def construct(self, x):
        hidden = self.tanh(self.up(self.less(x, self.peak(x, 1)), self.w1))
        kept, _ = self.drop(hidden)
        return self.turned(self.scale(self.down(kept, self.w2), self.gain), self.turn)


class Loss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.loss = nn.MSELoss()

    def construct(self, x, y):
        return self.loss(self.net(x), y)


net = Net()
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
step = nn.TrainOneStepWithLossScaleCell(Loss(net), optimizer, nn.DynamicLossScaleUpdateCell(8.0, 2, 2))
step(Tensor(np.ones([64, 32]), ms.float32), Tensor(np.ones([64, 16]), ms.float32))
'''
"""Two layers with a mask between them, a maximum over ranks and the scale of a loss."""
PARALLEL = """
import mindspore as ms
import numpy as np
from mindspore import nn, ops, Tensor

ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
ms.set_seed(1)


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Dense(16, 8), nn.BatchNorm1d(8), nn.Dense(8, 4)
        self.drop = nn.Dropout(p=0.5)

    def construct(self, x, y):
        return ((self.last(self.drop(ops.relu(self.norm(self.first(x))))) - y) ** 2).mean()


net = Loss()
net.set_train()
optimizer = nn.Adam(net.trainable_params(), 0.01)
nn.TrainOneStepCell(net, optimizer)(Tensor(np.ones((4, 16)), ms.float32), Tensor(np.ones((4, 4)), ms.float32))
"""
"""A network in data parallel mode: what updates, masks, statistics and reductions share."""
PARTED = PARALLEL.replace("self.drop = nn.Dropout(p=0.5)", "self.drop = self.heads = nn.Dropout(p=0.5)").replace(
    "construct(self, x, y):",
    """construct(self, x, y):
        by_heads = ops.transpose(x.reshape(-1, 4, 4), (1, 0, 2)).reshape(-1, 4)
        x = ops.transpose(self.heads(by_heads).reshape(4, -1, 4), (1, 0, 2)).reshape(-1, 16)""",
)
"""The same with a mask of parts that each begin with rows, in data parallel mode."""
NETWORKS = {
    "network": (NETWORK, 8), "parallel": (PARALLEL, 2), "parted": (PARTED, 2), "folded": (FOLDED, 4),
    "recomputed": (RECOMPUTED, 4), "loops": (LOOPS, 4), "experts": (EXPERTS, 4),
}  # fmt: skip
"""Every network with its number of ranks."""
