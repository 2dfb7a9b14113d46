"""Chains of convolutions, and those with branches that come together: LeNet5, AlexNet, VGG16, GoogLeNet, SqueezeNet."""

from __future__ import annotations

from typing import Any

from mspc import nn
from mspc.common.initializer import HeNormal, Normal, TruncatedNormal, initializer
from mspc.ops import functional as F
from mspc.ops import operations as P


class LeNet5(nn.Cell):
    """LeCun et al. 1998."""

    def __init__(self, num_class: int = 10, num_channel: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_channel, 6, 5, pad_mode="valid")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.relu = nn.ReLU()
        self.max_pool2d = nn.MaxPool2d(kernel_size=2, stride=2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Dense(16 * 5 * 5, 120, weight_init=Normal(0.02))
        self.fc2 = nn.Dense(120, 84, weight_init=Normal(0.02))
        self.fc3 = nn.Dense(84, num_class, weight_init=Normal(0.02))

    def construct(self, x: Any) -> Any:
        x = self.max_pool2d(self.relu(self.conv1(x)))
        x = self.max_pool2d(self.relu(self.conv2(x)))
        x = self.flatten(x)
        x = self.relu(self.fc1(x))
        x = self.relu(self.fc2(x))
        return self.fc3(x)


def conv(in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0,
         pad_mode: str = "valid", has_bias: bool = True) -> nn.Cell:  # fmt: skip
    return nn.Conv2d(in_channels, out_channels, kernel_size=kernel_size, stride=stride, padding=padding,
                     has_bias=has_bias, pad_mode=pad_mode)  # fmt: skip


def fc_with_initialize(input_channels: int, out_channels: int, has_bias: bool = True) -> nn.Cell:
    return nn.Dense(input_channels, out_channels, weight_init=TruncatedNormal(0.02), has_bias=has_bias)


class AlexNet(nn.Cell):
    """Krizhevsky et al. 2012, with its response normalisation, for images of 67 x 67."""

    def __init__(self, num_classes: int = 10, width: int = 8, dropout: bool = True) -> None:
        super().__init__()
        self.conv1 = conv(3, width, 11, stride=4, pad_mode="same", has_bias=True)
        self.lrn = nn.LRN(depth_radius=2, bias=1.0, alpha=1e-4, beta=0.75)
        self.conv2 = conv(width, 2 * width, 5, pad_mode="same")
        self.conv3 = conv(2 * width, 3 * width, 3, pad_mode="same")
        self.conv4 = conv(3 * width, 3 * width, 3, pad_mode="same")
        self.conv5 = conv(3 * width, 2 * width, 3, pad_mode="same")
        self.relu = P.ReLU()
        self.max_pool2d = nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="valid")
        self.flatten = nn.Flatten()
        self.fc1 = fc_with_initialize(2 * width, 32)
        self.fc2 = fc_with_initialize(32, 32)
        self.fc3 = fc_with_initialize(32, num_classes)
        self.include_dropout = dropout
        self.dropout = nn.Dropout(p=0.35)

    def construct(self, x: Any) -> Any:
        x = self.max_pool2d(self.lrn(self.relu(self.conv1(x))))
        x = self.max_pool2d(self.relu(self.conv2(x)))
        x = self.relu(self.conv3(x))
        x = self.relu(self.conv4(x))
        x = self.max_pool2d(self.relu(self.conv5(x)))
        x = self.flatten(x)
        x = self.relu(self.fc1(x))
        if self.include_dropout:
            x = self.dropout(x)
        x = self.relu(self.fc2(x))
        if self.include_dropout:
            x = self.dropout(x)
        return self.fc3(x)


VGG16 = [1, 1, "M", 2, 2, "M", 4, 4, 4, "M", 8, 8, 8, "M", 8, 8, 8, "M"]


class Vgg(nn.Cell):
    """Simonyan and Zisserman 2014 with batch normalisation, for images of 32 x 32."""

    def __init__(self, base: list[Any], num_classes: int = 10, width: int = 2) -> None:
        super().__init__()
        self.layers = self._make_layer(base, width)
        self.flatten = nn.Flatten()
        self.classifier = nn.SequentialCell(
            [nn.Dense(8 * width, 32), nn.ReLU(), nn.Dense(32, 32), nn.ReLU(), nn.Dense(32, num_classes)]
        )
        self.custom_init_weight()

    def construct(self, x: Any) -> Any:
        x = self.layers(x)
        x = self.flatten(x)
        return self.classifier(x)

    def custom_init_weight(self) -> None:
        for _, cell in self.cells_and_names():
            if isinstance(cell, nn.Conv2d):
                cell.weight.set_data(
                    initializer(HeNormal(mode="fan_out", nonlinearity="relu"), cell.weight.shape, cell.weight.dtype)
                )
                if cell.bias is not None:
                    cell.bias.set_data(initializer("zeros", cell.bias.shape, cell.bias.dtype))
            elif isinstance(cell, nn.Dense):
                cell.weight.set_data(initializer(Normal(0.01), cell.weight.shape, cell.weight.dtype))
                if cell.bias is not None:
                    cell.bias.set_data(initializer("zeros", cell.bias.shape, cell.bias.dtype))

    @staticmethod
    def _make_layer(base: list[Any], width: int) -> nn.Cell:
        layers: list[Any] = []
        in_channels = 3
        for v in base:
            if v == "M":
                layers += [nn.MaxPool2d(kernel_size=2, stride=2)]
                continue
            conv2d = nn.Conv2d(in_channels, v * width, kernel_size=3, padding=1, pad_mode="pad", has_bias=False)
            layers += [conv2d, nn.BatchNorm2d(v * width), nn.ReLU()]
            in_channels = v * width
        return nn.SequentialCell(layers)


class Conv2dBlock(nn.Cell):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0,
                 pad_mode: str = "same") -> None:  # fmt: skip
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size=kernel_size, stride=stride, padding=padding,
                              pad_mode=pad_mode)  # fmt: skip
        self.bn = nn.BatchNorm2d(out_channels, eps=0.001)
        self.relu = nn.ReLU()

    def construct(self, x: Any) -> Any:
        x = self.conv(x)
        x = self.bn(x)
        return self.relu(x)


class Inception(nn.Cell):
    def __init__(self, in_channels: int, n1x1: int, n3x3red: int, n3x3: int, n5x5red: int, n5x5: int,
                 pool_planes: int) -> None:  # fmt: skip
        super().__init__()
        self.b1 = Conv2dBlock(in_channels, n1x1, kernel_size=1)
        self.b2 = nn.SequentialCell([Conv2dBlock(in_channels, n3x3red, kernel_size=1),
                                     Conv2dBlock(n3x3red, n3x3, kernel_size=3)])  # fmt: skip
        self.b3 = nn.SequentialCell([Conv2dBlock(in_channels, n5x5red, kernel_size=1),
                                     Conv2dBlock(n5x5red, n5x5, kernel_size=3)])  # fmt: skip
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=1, pad_mode="same")
        self.b4 = Conv2dBlock(in_channels, pool_planes, kernel_size=1)
        self.concat = P.Concat(axis=1)

    def construct(self, x: Any) -> Any:
        branch1 = self.b1(x)
        branch2 = self.b2(x)
        branch3 = self.b3(x)
        cell = self.maxpool(x)
        branch4 = self.b4(cell)
        return self.concat((branch1, branch2, branch3, branch4))


class GoogleNet(nn.Cell):
    """Szegedy et al. 2014, two blocks of each of two sizes."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = Conv2dBlock(3, 8, kernel_size=7, stride=2, padding=0)
        self.maxpool1 = nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="same")
        self.conv2 = Conv2dBlock(8, 8, kernel_size=1)
        self.block3a = Inception(8, 4, 4, 6, 2, 2, 4)
        self.block3b = Inception(16, 4, 4, 8, 2, 4, 4)
        self.maxpool3 = nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="same")
        self.block4a = Inception(20, 6, 4, 8, 2, 4, 4)
        self.block4b = Inception(22, 6, 4, 10, 2, 4, 4)
        self.mean = P.ReduceMean(keep_dims=True)
        self.flatten = nn.Flatten()
        self.classifier = nn.Dense(24, num_classes, weight_init=TruncatedNormal(0.02), bias_init="zeros")

    def construct(self, x: Any) -> Any:
        x = self.maxpool1(self.conv1(x))
        x = self.conv2(x)
        x = self.block3b(self.block3a(x))
        x = self.maxpool3(x)
        x = self.block4b(self.block4a(x))
        x = self.mean(x, (2, 3))
        x = self.flatten(x)
        return self.classifier(x)


class Fire(nn.Cell):
    def __init__(self, inplanes: int, squeeze_planes: int, expand1x1_planes: int, expand3x3_planes: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inplanes, squeeze_planes, kernel_size=1, has_bias=True)
        self.squeeze_activation = nn.ReLU()
        self.expand1x1 = nn.Conv2d(squeeze_planes, expand1x1_planes, kernel_size=1, has_bias=True)
        self.expand1x1_activation = nn.ReLU()
        self.expand3x3 = nn.Conv2d(squeeze_planes, expand3x3_planes, kernel_size=3, pad_mode="same", has_bias=True)
        self.expand3x3_activation = nn.ReLU()
        self.concat = P.Concat(axis=1)

    def construct(self, x: Any) -> Any:
        x = self.squeeze_activation(self.squeeze(x))
        return self.concat((self.expand1x1_activation(self.expand1x1(x)), self.expand3x3_activation(self.expand3x3(x))))


class SqueezeNet(nn.Cell):
    """Iandola et al. 2016, version 1.1."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.SequentialCell([
            nn.Conv2d(3, 8, kernel_size=3, stride=2, pad_mode="valid", has_bias=True),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2),
            Fire(8, 4, 8, 8),
            Fire(16, 4, 8, 8),
            nn.MaxPool2d(kernel_size=3, stride=2),
            Fire(16, 6, 12, 12),
            Fire(24, 6, 12, 12),
        ])  # fmt: skip
        self.final_conv = nn.Conv2d(24, num_classes, kernel_size=1, has_bias=True)
        self.dropout = nn.Dropout(keep_prob=1.0)
        self.relu = nn.ReLU()
        self.mean = P.ReduceMean(keep_dims=True)
        self.flatten = nn.Flatten()
        self.custom_init_weight()

    def custom_init_weight(self) -> None:
        for _, cell in self.cells_and_names():
            if not isinstance(cell, nn.Conv2d):
                continue
            if cell is self.final_conv:
                cell.weight.set_data(initializer("normal", cell.weight.shape, cell.weight.dtype))
            else:
                cell.weight.set_data(initializer("he_uniform", cell.weight.shape, cell.weight.dtype))
            if cell.bias is not None:
                cell.bias.set_data(initializer("zeros", cell.bias.shape, cell.bias.dtype))

    def construct(self, x: Any) -> Any:
        x = self.features(x)
        x = self.dropout(x)
        x = self.final_conv(x)
        x = self.relu(x)
        x = self.mean(x, (2, 3))
        return F.reshape(x, (F.shape(x)[0], -1))
