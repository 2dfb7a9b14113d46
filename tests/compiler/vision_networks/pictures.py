"""Networks whose result is an image: UNet, DeepLab, a style network."""

from typing import Any

from mspc import nn, ops
from mspc.ops import functional as F
from mspc.ops import operations as P


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
