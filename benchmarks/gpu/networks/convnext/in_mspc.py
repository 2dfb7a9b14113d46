"""ConvNeXt in MindSpore's style."""

import mspc as ms
from benchmarks.gpu.networks.sizes import SMOOTHING, dropped_paths
from benchmarks.gpu.networks.vit.in_mspc import DropPath
from mspc import Parameter, nn, ops


class ChannelNorm(nn.Cell):
    """LayerNorm over the channels of images [n, c, h, w]."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm((channels,), epsilon=1e-6)

    def construct(self, x):
        return ops.transpose(self.norm(ops.transpose(x, (0, 2, 3, 1))), (0, 3, 1, 2))


class Block(nn.Cell):
    def __init__(self, width, drop_path):
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, pad_mode="pad", padding=3, group=width, has_bias=True)
        self.norm = nn.LayerNorm((width,), epsilon=1e-6)
        self.pwconv1, self.pwconv2 = nn.Dense(width, 4 * width), nn.Dense(4 * width, width)
        self.act = nn.GELU(approximate=False)
        self.layer_scale = Parameter(ops.ones((width,), ms.float32) * 1e-6)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def construct(self, x):
        y = ops.transpose(self.dwconv(x), (0, 2, 3, 1))
        y = self.pwconv2(self.act(self.pwconv1(self.norm(y))))
        y = ops.transpose(self.layer_scale * y, (0, 3, 1, 2))
        return x + self.drop_path(y)


class Network(nn.Cell):
    """The loss of classes."""

    def __init__(self, s):
        super().__init__()
        self.stem = nn.Conv2d(3, s.widths[0], 4, 4, pad_mode="valid", has_bias=True)
        self.stem_norm = ChannelNorm(s.widths[0])
        rates, layers, before = dropped_paths(s), [], s.widths[0]
        for depth, width in zip(s.depths, s.widths, strict=True):
            if width != before:
                layers += [ChannelNorm(before), nn.Conv2d(before, width, 2, 2, pad_mode="valid", has_bias=True)]
            layers += [Block(width, rates.pop(0)) for _ in range(depth)]
            before = width
        self.layers = nn.SequentialCell(layers)
        self.norm, self.head = nn.LayerNorm((before,), epsilon=1e-6), nn.Dense(before, s.classes)
        self.loss = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)

    def construct(self, images, classes):
        x = self.layers(self.stem_norm(self.stem(images)))
        return self.loss(self.head(self.norm(x.mean((2, 3)))), classes)
