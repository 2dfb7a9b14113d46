"""ViT (Dosovitskiy et al. 2020), sharded over images and heads by strategies of operators."""

from typing import Any

from mspc import Parameter, Tensor, nn, ops
from mspc.common import dtype as mstype
from mspc.common.initializer import TruncatedNormal, initializer

IMAGE, PATCH, WIDTH, HEADS, CLASSES = 16, 4, 16, 4, 10


class Linear(nn.Cell):
    """A product and a bias over the last dimension; `shard` shards what comes in, or what comes out."""

    def __init__(self, ins: int, outs: int, has_bias: bool = True) -> None:
        super().__init__()
        self.weight = Parameter(initializer(TruncatedNormal(0.1), (outs, ins)), name="weight")
        self.has_bias = has_bias
        if has_bias:
            self.bias = Parameter(initializer("zeros", (outs,)), name="bias")
        self.matmul = ops.MatMul(transpose_b=True)
        self.add = ops.Add()

    def construct(self, x: Any) -> Any:
        shape = x.shape
        out = self.matmul(x.reshape((-1, shape[-1])), self.weight)
        if self.has_bias:
            out = self.add(out, self.bias)
        return out.reshape(shape[:-1] + (out.shape[-1],))  # noqa: RUF005

    def shard(self, dp: int, ins: int = 1, outs: int = 1) -> Any:
        self.matmul.shard(((dp, ins), (outs, ins)))
        self.add.shard(((dp, outs), (outs,)))
        return self


class Attention(nn.Cell):
    """Attention of x [groups, length, WIDTH] to itself."""

    def __init__(self, dim: int, heads: int, dp: int, mp: int) -> None:
        super().__init__()
        self.heads, self.size = heads, dim // heads
        self.scale = Tensor(self.size**-0.5, mstype.float32)
        self.q, self.k, self.v = (Linear(dim, dim).shard(dp, outs=mp) for _ in range(3))
        self.proj = Linear(dim, dim).shard(dp, ins=mp)
        strategy = (dp, mp, 1, 1)
        self.transpose = ops.Transpose().shard(((dp, 1, mp, 1),))
        self.merge = ops.Transpose().shard((strategy,))
        self.q_matmul_k = ops.BatchMatMul(transpose_b=True).shard((strategy, strategy))
        self.attn_matmul_v = ops.BatchMatMul().shard((strategy, strategy))
        self.softmax = ops.Softmax(axis=-1).shard((strategy,))
        self.attn_drop = nn.Dropout(p=0.0)

    def split(self, x: Any) -> Any:
        b, n, _ = x.shape
        return self.transpose(ops.reshape(x, (b, n, self.heads, self.size)), (0, 2, 1, 3))

    def construct(self, x: Any) -> Any:
        b, n, c = x.shape
        attn = self.q_matmul_k(ops.mul(self.split(self.q(x)), self.scale), self.split(self.k(x)))
        attn = self.attn_drop(self.softmax(attn))
        out = self.merge(self.attn_matmul_v(attn, self.split(self.v(x))), (0, 2, 1, 3))
        return self.proj(ops.reshape(out, (b, n, c)))


class Mlp(nn.Cell):
    def __init__(self, dim: int, dp: int, mp: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = Linear(dim, 2 * dim).shard(dp, outs=mp), Linear(2 * dim, dim).shard(dp, ins=mp)
        self.act = nn.GELU(approximate=False)

    def construct(self, x: Any) -> Any:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Cell):
    def __init__(self, dp: int, mp: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm((WIDTH,), epsilon=1e-6), nn.LayerNorm((WIDTH,), epsilon=1e-6)
        self.norm1.layer_norm.shard(((dp, 1, 1), (1,), (1,)))
        self.norm2.layer_norm.shard(((dp, 1, 1), (1,), (1,)))
        self.attn, self.mlp = Attention(WIDTH, HEADS, dp, mp), Mlp(WIDTH, dp, mp)

    def construct(self, x: Any) -> Any:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Cell):
    """[batch, patches, WIDTH]: a convolution whose windows do not overlap."""

    def __init__(self, dp: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, WIDTH, PATCH, PATCH, pad_mode="valid", has_bias=True)
        self.proj.conv2d.shard(((dp, 1, 1, 1), (1, 1, 1, 1)))
        self.proj.bias_add.shard(((dp, 1, 1, 1), (1,)))

    def construct(self, x: Any) -> Any:
        x = self.proj(x)
        b, c, h, w = x.shape
        return x.reshape((b, c, h * w)).transpose((0, 2, 1))


class ViT(nn.Cell):
    """The loss of classes, read off one place in front of the patches."""

    def __init__(self, dp: int = 1, mp: int = 1) -> None:
        super().__init__()
        count = (IMAGE // PATCH) ** 2
        self.patch_embedding = PatchEmbed(dp)
        self.cls_token = Parameter(initializer(TruncatedNormal(0.02), (1, 1, WIDTH)), name="cls")
        self.pos_embedding = Parameter(initializer(TruncatedNormal(0.02), (1, count + 1, WIDTH)), name="pos_embedding")
        self.tile = ops.Tile().shard(((dp, 1, 1),))
        self.concat = ops.Concat(axis=1).shard(((dp, 1, 1), (dp, 1, 1)))
        self.add = ops.Add().shard(((dp, 1, 1), (1, 1, 1)))
        self.blocks = nn.SequentialCell([Block(dp, mp) for _ in range(2)])
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-6)
        self.head = nn.Dense(WIDTH, CLASSES)
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)

    def construct(self, image: Any, label: Any) -> Any:
        x = self.patch_embedding(image)
        cls = self.tile(self.cls_token, (x.shape[0], 1, 1))
        x = self.blocks(self.add(self.concat((cls, x)), self.pos_embedding))
        return self.loss(self.head(self.norm(x)[:, 0]), label)
