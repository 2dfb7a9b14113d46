"""ShuffleNetV2: depthwise convolutions between channels that are shuffled."""

from typing import Any

from mspc import nn
from mspc.ops import operations as P


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
