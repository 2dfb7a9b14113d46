"""AlexNet: convolutions in a chain, with response normalisation."""

from __future__ import annotations

from typing import Any

from mspc import nn
from mspc.common.initializer import TruncatedNormal
from mspc.ops import operations as P


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
