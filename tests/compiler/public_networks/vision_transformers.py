"""ViT (Dosovitskiy et al. 2020) and Swin (Liu et al. 2021), sharded over images and heads by strategies of
operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc import Parameter, Tensor, nn, numpy, ops
from mspc.common import dtype as mstype
from mspc.common.initializer import TruncatedNormal, initializer

IMAGE, PATCH, WIDTH, HEADS, CLASSES, WINDOW = 16, 4, 16, 4, 10, 2


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
    """Attention of x [groups, length, WIDTH] to itself, with a bias of every pair of places."""

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

    def construct(self, x: Any, bias: Any = None, mask: Any = None) -> Any:
        b, n, c = x.shape
        attn = self.q_matmul_k(ops.mul(self.split(self.q(x)), self.scale), self.split(self.k(x)))
        if bias is not None:
            attn = attn + bias
        if mask is not None:
            windows = mask.shape[0]
            attn = attn.view(b // windows, windows, self.heads, n, n) + mask.expand_dims(1).expand_dims(0)
            attn = attn.view(-1, self.heads, n, n)
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


def window_partition(x: Any, size: int) -> Any:
    """[windows, size * size, channels] of [batch, height, width, channels]."""
    b, h, w, c = x.shape
    x = ops.reshape(x, (b, h // size, size, w // size, size, c))
    return ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, size * size, c))


def window_reverse(windows: Any, size: int, h: int, w: int) -> Any:
    c = windows.shape[-1]
    x = ops.reshape(windows, (-1, h // size, w // size, size, size, c))
    return ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, h, w, c))


class SwinBlock(nn.Cell):
    """Attention within windows, which every other block moves by half a window, round the edges."""

    def __init__(self, dim: int, side: int, heads: int, shift: int, dp: int, mp: int) -> None:
        super().__init__()
        self.dim, self.side, self.shift, self.heads = dim, side, shift, heads
        self.norm1, self.norm2 = nn.LayerNorm([dim]), nn.LayerNorm([dim])
        self.attn, self.mlp = Attention(dim, heads, dp, mp), Mlp(dim, dp, mp)
        reach = 2 * WINDOW - 1
        self.relative_position_bias_table = Parameter(
            initializer(TruncatedNormal(0.02), (reach * reach, heads)), name="relative_position_bias_table"
        )
        grid = np.stack(np.meshgrid(np.arange(WINDOW), np.arange(WINDOW), indexing="ij")).reshape(2, -1)
        apart = (grid[:, :, None] - grid[:, None, :]).transpose(1, 2, 0) + WINDOW - 1
        index = (apart[..., 0] * reach + apart[..., 1]).reshape(-1)
        self.relative_position_index = Parameter(Tensor(index, mstype.int32), requires_grad=False, name="index")
        self.attn_mask = None
        if shift > 0:
            regions = np.zeros((1, side, side, 1), np.float32)
            cuts = (slice(0, -WINDOW), slice(-WINDOW, -shift), slice(-shift, None))
            for i, (rows, columns) in enumerate((r, c) for r in cuts for c in cuts):
                regions[:, rows, columns, :] = i
            parts = regions.reshape(1, side // WINDOW, WINDOW, side // WINDOW, WINDOW, 1)
            parts = parts.transpose(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW * WINDOW)
            self.attn_mask = Tensor(np.where(parts[:, None] != parts[:, :, None], -100.0, 0.0), mstype.float32)

    def bias(self) -> Any:
        n = WINDOW * WINDOW
        found = ops.gather(self.relative_position_bias_table, self.relative_position_index, 0)
        return ops.expand_dims(ops.transpose(ops.reshape(found, (n, n, -1)), (2, 0, 1)), 0)

    def construct(self, x: Any) -> Any:
        b, n, c = x.shape
        shortcut = x
        x = ops.reshape(self.norm1(x), (b, self.side, self.side, c))
        if self.shift > 0:
            x = numpy.roll(x, (-self.shift, -self.shift), (1, 2))
        x = self.attn(window_partition(x, WINDOW), self.bias(), self.attn_mask)
        x = window_reverse(x, WINDOW, self.side, self.side)
        if self.shift > 0:
            x = numpy.roll(x, (self.shift, self.shift), (1, 2))
        x = shortcut + ops.reshape(x, (b, n, c))
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Cell):
    """Half as high and wide: four neighbours become one place of twice the width."""

    def __init__(self, dim: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.norm = nn.LayerNorm([4 * dim])
        self.reduction = nn.Dense(4 * dim, 2 * dim, has_bias=False)

    def construct(self, x: Any) -> Any:
        b, n, c = x.shape
        x = ops.reshape(x, (b, self.side, self.side, c))
        x = ops.concat((x[:, 0::2, 0::2, :], x[:, 1::2, 0::2, :], x[:, 0::2, 1::2, :], x[:, 1::2, 1::2, :]), axis=-1)
        return self.reduction(self.norm(ops.reshape(x, (b, n // 4, 4 * c))))


class Swin(nn.Cell):
    """The loss of classes, of the mean over all places."""

    def __init__(self, dp: int = 1, mp: int = 1) -> None:
        super().__init__()
        side = IMAGE // PATCH
        self.patch_embed, self.patch_norm = PatchEmbed(dp), nn.LayerNorm([WIDTH])
        self.layers = nn.CellList([
            SwinBlock(WIDTH, side, HEADS, 0, dp, mp), SwinBlock(WIDTH, side, HEADS, WINDOW // 2, dp, mp),
            PatchMerging(WIDTH, side), SwinBlock(2 * WIDTH, side // 2, HEADS, 0, dp, mp),
        ])  # fmt: skip
        self.norm = nn.LayerNorm([2 * WIDTH])
        self.head = nn.Dense(2 * WIDTH, CLASSES)
        self.loss = nn.CrossEntropyLoss()

    def construct(self, image: Any, label: Any) -> Any:
        x = self.patch_norm(self.patch_embed(image))
        for layer in self.layers:
            x = layer(x)
        return self.loss(self.head(ops.mean(self.norm(x), 1)), label)
