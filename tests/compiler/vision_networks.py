"""Convolutional networks as their papers describe them, in narrow widths, spelled as public code spells them."""

from typing import Any

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.common.initializer import TruncatedNormal, initializer
from mspc.ops import functional as F
from mspc.ops import operations as P

# ShuffleNetV2: depthwise convolutions between channels that are shuffled.


class ShuffleV2Block(nn.Cell):
    def __init__(self, inp: int, oup: int, mid_channels: int, *, ksize: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        pad, outputs = ksize // 2, oup - inp
        self.branch_main = nn.SequentialCell([
            nn.Conv2d(inp, mid_channels, kernel_size=1, stride=1, pad_mode="pad", padding=0, has_bias=False),
            nn.BatchNorm2d(num_features=mid_channels, momentum=0.9),
            nn.ReLU(),
            nn.Conv2d(mid_channels, mid_channels, kernel_size=ksize, stride=stride, pad_mode="pad", padding=pad,
                      group=mid_channels, has_bias=False),
            nn.BatchNorm2d(num_features=mid_channels, momentum=0.9),
            nn.Conv2d(mid_channels, outputs, kernel_size=1, stride=1, pad_mode="pad", padding=0, has_bias=False),
            nn.BatchNorm2d(num_features=outputs, momentum=0.9),
            nn.ReLU(),
        ])  # fmt: skip
        if stride == 2:
            self.branch_proj: Any = nn.SequentialCell([
                nn.Conv2d(inp, inp, kernel_size=ksize, stride=stride, pad_mode="pad", padding=pad, group=inp,
                          has_bias=False),
                nn.BatchNorm2d(num_features=inp, momentum=0.9),
                nn.Conv2d(inp, inp, kernel_size=1, stride=1, pad_mode="pad", padding=0, has_bias=False),
                nn.BatchNorm2d(num_features=inp, momentum=0.9),
                nn.ReLU(),
            ])  # fmt: skip
        else:
            self.branch_proj = None

    def construct(self, old_x: Any) -> Any:
        if self.stride == 1:
            x_proj, x = self.channel_shuffle(old_x)
            return P.Concat(1)((x_proj, self.branch_main(x)))
        return P.Concat(1)((self.branch_proj(old_x), self.branch_main(old_x)))

    def channel_shuffle(self, x: Any) -> Any:
        batchsize, num_channels, height, width = P.Shape()(x)
        x = P.Reshape()(x, (batchsize * num_channels // 2, 2, height * width))
        x = P.Transpose()(x, (1, 0, 2))
        x = P.Reshape()(x, (2, -1, num_channels // 2, height, width))
        return x[0], x[1]


class ShuffleNetV2(nn.Cell):
    """Ma et al. 2018."""

    def __init__(self, n_class: int = 10) -> None:
        super().__init__()
        self.first_conv = nn.SequentialCell([
            nn.Conv2d(3, 8, kernel_size=3, stride=2, pad_mode="pad", padding=1, has_bias=False),
            nn.BatchNorm2d(num_features=8, momentum=0.9),
            nn.ReLU(),
        ])  # fmt: skip
        self.max_pool = nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="same")
        input_channel, features = 8, []
        for output_channel, repeats in ((16, 2), (24, 2)):
            for i in range(repeats):
                inp, stride = (input_channel, 2) if i == 0 else (input_channel // 2, 1)
                features.append(ShuffleV2Block(inp, output_channel, output_channel // 2, ksize=3, stride=stride))
                input_channel = output_channel
        self.features = nn.SequentialCell([*features])
        self.conv_last = nn.SequentialCell([
            nn.Conv2d(input_channel, 32, kernel_size=1, stride=1, pad_mode="pad", padding=0, has_bias=False),
            nn.BatchNorm2d(num_features=32, momentum=0.9),
            nn.ReLU(),
        ])  # fmt: skip
        self.globalpool = nn.AvgPool2d(kernel_size=2, stride=1, pad_mode="valid")
        self.classifier = nn.SequentialCell([nn.Dense(32, n_class, has_bias=False)])

    def construct(self, x: Any) -> Any:
        x = self.first_conv(x)
        x = self.max_pool(x)
        x = self.features(x)
        x = self.conv_last(x)
        x = self.globalpool(x)
        x = P.Reshape()(x, (-1, 32))
        return self.classifier(x)


# ConvNeXt, which normalises channels last.


class DropPath(nn.Cell):
    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.keep_prob = 1.0 - drop_prob
        self.dropout = nn.Dropout(p=drop_prob)

    def construct(self, x: Any) -> Any:
        if not self.training:
            return x
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        return self.dropout(ops.ones(shape, x.dtype)) * x


class ConvNextLayerNorm(nn.LayerNorm):
    """Normalises the channels of images [n, c, h, w]."""

    def __init__(self, normalized_shape: tuple[int, ...], epsilon: float) -> None:
        super().__init__(normalized_shape=normalized_shape, epsilon=epsilon)

    def construct(self, input_x: Any) -> Any:
        input_x = ops.transpose(input_x, (0, 2, 3, 1))
        y, _, _ = self.layer_norm(input_x, self.gamma, self.beta)
        return ops.transpose(y, (0, 3, 1, 2))


class ConvNextBlock(nn.Cell):
    def __init__(self, dim: int, drop_path: float = 0.1, layer_scale_init_value: float = 1e-2) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, kernel_size=7, group=dim, has_bias=True)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-6)
        self.pwconv1 = nn.Dense(dim, 4 * dim)
        self.act = nn.GELU()
        self.pwconv2 = nn.Dense(4 * dim, dim)
        self.gamma_ = Parameter(Tensor(layer_scale_init_value * np.ones(dim), dtype=ms.float32), requires_grad=True)
        self.drop_path = DropPath(drop_path)

    def construct(self, x: Any) -> Any:
        downsample = x
        x = self.dwconv(x)
        x = ops.transpose(x, (0, 2, 3, 1))
        x = self.norm(x)
        x = self.pwconv2(self.act(self.pwconv1(x)))
        x = self.gamma_ * x
        x = ops.transpose(x, (0, 3, 1, 2))
        return downsample + self.drop_path(x)


class ConvNeXt(nn.Cell):
    """Liu et al. 2022."""

    def __init__(self, num_classes: int = 10, drop_path: float = 0.1) -> None:
        super().__init__()
        dims = (8, 16)
        self.downsample = nn.CellList([
            nn.SequentialCell([nn.Conv2d(3, dims[0], kernel_size=4, stride=4, has_bias=True),
                               ConvNextLayerNorm((dims[0],), epsilon=1e-6)]),
            nn.SequentialCell([ConvNextLayerNorm((dims[0],), epsilon=1e-6),
                               nn.Conv2d(dims[0], dims[1], kernel_size=2, stride=2, has_bias=True)]),
        ])  # fmt: skip
        self.stages = nn.CellList([nn.SequentialCell([ConvNextBlock(d, drop_path) for _ in range(2)]) for d in dims])
        self.norm = nn.LayerNorm((dims[-1],), epsilon=1e-6)
        self.head = nn.Dense(dims[-1], num_classes)
        for _, cell in self.cells_and_names():
            if isinstance(cell, (nn.Dense, nn.Conv2d)):
                cell.weight.set_data(initializer(TruncatedNormal(sigma=0.02), cell.weight.shape, cell.weight.dtype))

    def construct(self, x: Any) -> Any:
        for i in range(2):
            x = self.stages[i](self.downsample[i](x))
        x = self.norm(x.mean([-2, -1]))
        return self.head(x)


# Pieces of newer networks in one: asymmetric kernels, split attention, CBAM, YOLO's focus and SPP, unpooling.


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


# Networks whose result is an image: UNet, DeepLab, a style network.


class DoubleConv(nn.Cell):
    def __init__(self, in_channel: int, out_channel: int) -> None:
        super().__init__()
        self.double_conv = nn.SequentialCell(
            nn.Conv2d(in_channel, out_channel, 3, pad_mode="same", weight_init="HeNormal"), nn.BatchNorm2d(out_channel),
            nn.ReLU(),
            nn.Conv2d(out_channel, out_channel, 3, pad_mode="same"), nn.BatchNorm2d(out_channel), nn.ReLU(),
        )  # fmt: skip

    def construct(self, x: Any) -> Any:
        return self.double_conv(x)


class Up(nn.Cell):
    def __init__(self, in_channel: int, out_channel: int, use_deconv: bool) -> None:
        super().__init__()
        if use_deconv:
            self.up: Any = nn.Conv2dTranspose(in_channel, out_channel, 2, stride=2, pad_mode="same")
        else:
            self.up = nn.SequentialCell(UpsampleTwice(), nn.Conv2d(in_channel, out_channel, 1))
        self.concat = F.Concat(axis=1)
        self.conv = DoubleConv(2 * out_channel, out_channel)

    def construct(self, high: Any, low: Any) -> Any:
        x = self.up(high)
        return self.conv(self.concat((low, x)))


class UpsampleTwice(nn.Cell):
    def construct(self, x: Any) -> Any:
        h, w = x.shape[2:]
        return P.ResizeNearestNeighbor((h * 2, w * 2))(x)


class UNet(nn.Cell):
    """Ronneberger et al. 2015."""

    def __init__(self, n_classes: int = 3, width: int = 4) -> None:
        super().__init__()
        self.inc = DoubleConv(3, width)
        self.down1 = nn.SequentialCell([nn.MaxPool2d(kernel_size=2, stride=2), DoubleConv(width, 2 * width)])
        self.down2 = nn.SequentialCell([nn.MaxPool2d(kernel_size=2, stride=2), DoubleConv(2 * width, 4 * width)])
        self.up1 = Up(4 * width, 2 * width, True)
        self.up2 = Up(2 * width, width, False)
        self.outc = nn.Conv2d(width, n_classes, 1, has_bias=True)

    def construct(self, x: Any) -> Any:
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x = self.up1(x3, x2)
        x = self.up2(x, x1)
        return self.outc(x)


class ASPPConv(nn.Cell):
    def __init__(self, in_channels: int, out_channels: int, atrous_rate: int = 1) -> None:
        super().__init__()
        if atrous_rate == 1:
            conv = nn.Conv2d(in_channels, out_channels, kernel_size=1, has_bias=False, weight_init="xavier_uniform")
        else:
            conv = nn.Conv2d(in_channels, out_channels, kernel_size=3, pad_mode="pad", padding=atrous_rate,
                             dilation=atrous_rate, weight_init="xavier_uniform")  # fmt: skip
        self._aspp_conv = nn.SequentialCell([conv, nn.BatchNorm2d(out_channels), nn.ReLU()])

    def construct(self, x: Any) -> Any:
        return self._aspp_conv(x)


class ASPPPooling(nn.Cell):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.SequentialCell([
            nn.Conv2d(in_channels, out_channels, kernel_size=1, weight_init="xavier_uniform"),
            nn.BatchNorm2d(out_channels), nn.ReLU(),
        ])  # fmt: skip
        self.shape = P.Shape()

    def construct(self, x: Any) -> Any:
        size = self.shape(x)
        out = nn.AvgPool2d(size[2])(x)
        out = self.conv(out)
        return P.ResizeNearestNeighbor((size[2], size[3]), True)(out)


class DeepLab(nn.Cell):
    """Chen et al. 2017: dilated convolutions side by side over a strided stem, and back to the image's size."""

    def __init__(self, num_classes: int = 3, rates: tuple[int, ...] = (1, 2, 4)) -> None:
        super().__init__()
        self.stem = nn.SequentialCell([
            nn.Conv2d(3, 8, 3, stride=2, pad_mode="pad", padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, pad_mode="pad", padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        ])  # fmt: skip
        self.aspp = nn.CellList([ASPPConv(8, 8, rate) for rate in rates])
        self.pooling = ASPPPooling(8, 8)
        self.conv1 = nn.Conv2d((len(rates) + 1) * 8, 8, kernel_size=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.concat = P.Concat(axis=1)
        self.conv2 = nn.Conv2d(8, num_classes, kernel_size=1, has_bias=True)
        self.shape = P.Shape()

    def construct(self, x: Any) -> Any:
        size = self.shape(x)
        out = self.stem(x)
        branches: tuple[Any, ...] = ()
        for branch in self.aspp:
            branches += (branch(out),)
        branches += (self.pooling(out),)
        out = self.concat(branches)
        out = self.relu(self.bn1(self.conv1(out)))
        out = self.conv2(out)
        return P.ResizeBilinear((size[2], size[3]), True)(out)


class Generator(nn.Cell):
    """Zhu et al. 2017: reflected margins, instance normalisation, transposed convolutions."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.pad = nn.Pad(paddings=((0, 0), (0, 0), (3, 3), (3, 3)), mode="REFLECT")
        self.conv_in = nn.Conv2d(3, width, 7, 1, pad_mode="valid")
        self.norm = nn.InstanceNorm2d(width, affine=False)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, pad_mode="pad", padding=1)
        self.block = nn.SequentialCell(
            nn.ReflectionPad2d(1), nn.Conv2d(2 * width, 2 * width, 3, pad_mode="valid"), nn.BatchNorm2d(2 * width),
            nn.ReLU(), nn.Dropout(p=0.0),
        )  # fmt: skip
        self.up = nn.Conv2dTranspose(2 * width, width, 4, 2, pad_mode="pad", padding=1, weight_init="normal")
        self.out = nn.Conv2d(width, 3, 7, pad_mode="same", has_bias=True)
        self.tanh = nn.Tanh()

    def construct(self, x: Any) -> Any:
        x = ops.leaky_relu(self.norm(self.conv_in(self.pad(x))), 0.2)
        x = self.down(x)
        x = x + self.block(x)
        return self.tanh(self.out(self.up(x)))
