"""Pieces of newer networks in one: asymmetric kernels, split attention, CBAM, YOLO's focus and SPP, unpooling."""

from typing import Any

from mspc import nn, ops
from mspc.common.initializer import TruncatedNormal
from mspc.ops import operations as P


class BasicConv(nn.Cell):
    def __init__(self, in_channel: int, out_channel: int, **given: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channel, out_channel, has_bias=False, weight_init=TruncatedNormal(0.1), **given)
        self.bn = nn.BatchNorm2d(out_channel, eps=0.001, momentum=0.9)
        self.relu = nn.ReLU()

    def construct(self, x: Any) -> Any:
        return self.relu(self.bn(self.conv(x)))


class InceptionE(nn.Cell):
    """Szegedy et al. 2015."""

    def __init__(self, in_channel: int) -> None:
        super().__init__()
        self.branch0 = BasicConv(in_channel, 4, kernel_size=1)
        self.branch1 = BasicConv(in_channel, 4, kernel_size=1)
        self.branch1_a = BasicConv(4, 4, kernel_size=(1, 3), pad_mode="same")
        self.branch1_b = BasicConv(4, 4, kernel_size=(3, 1), pad_mode="same")
        pool = nn.AvgPool2d(kernel_size=3, stride=1, pad_mode="same")
        self.branch_pool = nn.SequentialCell([pool, BasicConv(in_channel, 4, kernel_size=1)])
        self.concat = P.Concat(axis=1)

    def construct(self, x: Any) -> Any:
        x1 = self.branch1(x)
        x1 = self.concat((self.branch1_a(x1), self.branch1_b(x1)))
        return self.concat((self.branch0(x), x1, self.branch_pool(x)))


class SplitAttention(nn.Cell):
    """Zhang et al. 2020."""

    def __init__(self, channels: int, radix: int = 2) -> None:
        super().__init__()
        self.radix = radix
        self.conv = nn.Conv2d(channels, channels * radix, 3, pad_mode="pad", padding=1, group=radix)
        self.fc = nn.Conv2d(channels, channels * radix, 1, has_bias=True)
        self.gap = ops.AdaptiveAvgPool2D(1)

    def construct(self, x: Any) -> Any:
        x = self.conv(x)
        batch = x.shape[0]
        splits = ops.split(x, x.shape[1] // self.radix, axis=1)
        attention = self.fc(self.gap(splits[0] + splits[1])).view(batch, 1, self.radix, -1).swapaxes(1, 2)
        attention = ops.softmax(attention, axis=1).view(batch, -1, 1, 1)
        parts = ops.chunk(attention, self.radix, axis=1)
        out = 0
        for i in range(self.radix):
            out += parts[i] * splits[i]
        return out


class CBAM(nn.Cell):
    """Woo et al. 2018."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.avg, self.max = nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1)
        self.fc = nn.SequentialCell([nn.Conv2d(channels, channels // 2, 1), nn.ReLU(),
                                     nn.Conv2d(channels // 2, channels, 1)])  # fmt: skip
        self.sigmoid = nn.Sigmoid()
        self.conv = nn.Conv2d(2, 1, 7, pad_mode="pad", padding=3)

    def construct(self, x: Any) -> Any:
        x = x * self.sigmoid(self.fc(self.avg(x)) + self.fc(self.max(x)))
        mean = x.mean(axis=1, keep_dims=True)
        most, _ = ops.max(x, axis=1, keepdims=True)
        return x * self.sigmoid(self.conv(ops.cat([mean, most], axis=1)))


class Focus(nn.Cell):
    def construct(self, x: Any) -> Any:
        parts = (x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2])
        return ops.concat(parts, 1)


class SPP(nn.Cell):
    """He et al. 2014, as YOLO has it."""

    def __init__(self) -> None:
        super().__init__()
        self.pools = nn.CellList([nn.MaxPool2d(size, 1, pad_mode="same") for size in (3, 5)])

    def construct(self, x: Any) -> Any:
        outs = (x,)
        for pool in self.pools:
            outs = (*outs, pool(x))
        return ops.Concat(1)(outs)


class Pieces(nn.Cell):
    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.SequentialCell(Focus(), InceptionE(12), SplitAttention(16), CBAM(16), SPP())
        self.norm = nn.GroupNorm(4, 48)
        self.dropout = nn.Dropout2d(0.0)
        self.depthwise = nn.Conv2d(48, 48, 3, group=48, pad_mode="same", dilation=2)
        self.act = nn.get_activation("hswish")
        self.prelu = nn.PReLU(48)
        self.up = nn.Upsample(scale_factor=2.0, mode="bilinear", recompute_scale_factor=True)
        self.pad = nn.ZeroPad2d((0, 1, 0, 1))
        self.head = nn.Dense(48, num_classes)

    def construct(self, x: Any) -> Any:
        x = self.norm(self.stem(x))
        x = self.prelu(self.act(self.depthwise(self.dropout(x))))
        x = self.pad(self.up(x))[:, :, :-1, :-1]
        x = ops.sqrt(4 * ops.avg_pool2d(ops.square(ops.sigmoid(x) + 0.5), 2, 2))
        x = ops.interpolate(x, size=(4, 4), mode="bicubic", align_corners=False)
        most, places = ops.max_pool2d(x, 2, return_indices=True)
        x = ops.max_unpool2d(most, places, 2)
        return self.head(x.mean((2, 3)))
