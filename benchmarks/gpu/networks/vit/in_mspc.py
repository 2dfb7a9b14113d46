"""ViT in MindSpore's style."""

import mspc as ms
from benchmarks.gpu.networks.sizes import SMOOTHING
from mspc import Parameter, nn, ops


class DropPath(nn.Cell):
    """Leaves out what a block adds, image by image."""

    def __init__(self, rate):
        super().__init__()
        self.dropout = nn.Dropout(p=rate)

    def construct(self, x):
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        return x * self.dropout(ops.ones(shape, ms.float32))


class Attention(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.heads, self.size = s.heads, s.width // s.heads
        self.scale = self.size**-0.5
        self.qkv, self.out = nn.Dense(s.width, 3 * s.width), nn.Dense(s.width, s.width)
        self.attn_drop, self.out_drop = nn.Dropout(p=s.dropout), nn.Dropout(p=s.dropout)
        self.q_matmul_k, self.attn_matmul_v = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()
        self.softmax = nn.Softmax(axis=-1)

    def construct(self, x):
        b, n, c = x.shape
        qkv = ops.reshape(self.qkv(x), (b, n, 3, self.heads, self.size))
        q, k, v = ops.unstack(ops.transpose(qkv, (2, 0, 3, 1, 4)), axis=0)
        attn = self.attn_drop(self.softmax(self.q_matmul_k(q, k) * self.scale))
        out = ops.transpose(self.attn_matmul_v(attn, v), (0, 2, 1, 3))
        return self.out_drop(self.out(ops.reshape(out, (b, n, c))))


class Mlp(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.fc1, self.fc2 = nn.Dense(s.width, 4 * s.width), nn.Dense(4 * s.width, s.width)
        self.act = nn.GELU(approximate=False)
        self.drop = nn.Dropout(p=s.dropout)

    def construct(self, x):
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class Block(nn.Cell):
    def __init__(self, s, drop_path):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm((s.width,), epsilon=1e-6), nn.LayerNorm((s.width,), epsilon=1e-6)
        self.attn, self.mlp = Attention(s), Mlp(s)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def construct(self, x):
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class Network(nn.Cell):
    """The loss of classes, read off one place in front of the patches."""

    def __init__(self, s):
        super().__init__()
        self.patches = nn.Conv2d(3, s.width, s.patch, s.patch, pad_mode="valid", has_bias=True)
        self.class_token = Parameter(ops.zeros((1, 1, s.width), ms.float32))
        self.position = Parameter(ops.zeros((1, (s.side // s.patch) ** 2 + 1, s.width), ms.float32))
        self.pos_drop = nn.Dropout(p=s.dropout)
        rates = [s.drop_path * i / (s.layers - 1) for i in range(s.layers)]
        self.blocks = nn.SequentialCell([Block(s, rate) for rate in rates])
        self.norm = nn.LayerNorm((s.width,), epsilon=1e-6)
        self.head = nn.Dense(s.width, s.classes)
        self.loss = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)

    def construct(self, images, classes):
        x = self.patches(images)
        b, c, h, w = x.shape
        x = ops.transpose(ops.reshape(x, (b, c, h * w)), (0, 2, 1))
        x = ops.concat((ops.tile(self.class_token, (b, 1, 1)).astype(x.dtype), x), axis=1) + self.position
        x = self.norm(self.blocks(self.pos_drop(x)))
        return self.loss(self.head(x[:, 0]), classes)
