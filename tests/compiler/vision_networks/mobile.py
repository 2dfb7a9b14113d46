"""Networks of depthwise convolutions: MobileNetV3, ShuffleNetV2."""

from __future__ import annotations

from typing import Any

from mspc import nn
from mspc.ops import operations as P


def _make_divisible(v: float, divisor: int, min_value: int | None = None) -> int:
    if min_value is None:
        min_value = divisor
    new_v = max(min_value, int(v + divisor / 2) // divisor * divisor)
    if new_v < 0.9 * v:
        new_v += divisor
    return new_v


class GlobalAvgPooling(nn.Cell):
    def __init__(self, keep_dims: bool = False) -> None:
        super().__init__()
        self.mean = P.ReduceMean(keep_dims=keep_dims)

    def construct(self, x: Any) -> Any:
        return self.mean(x, (2, 3))


class Activation(nn.Cell):
    def __init__(self, act_func: str) -> None:
        super().__init__()
        if act_func == "relu":
            self.act: Any = nn.ReLU()
        elif act_func == "hsigmoid":
            self.act = nn.HSigmoid()
        elif act_func == "hswish":
            self.act = nn.HSwish()
        else:
            raise NotImplementedError

    def construct(self, x: Any) -> Any:
        return self.act(x)


class SE(nn.Cell):
    def __init__(self, num_out: int, ratio: int = 4) -> None:
        super().__init__()
        num_mid = _make_divisible(num_out // ratio, 4)
        self.pool = GlobalAvgPooling(keep_dims=True)
        self.conv1 = nn.Conv2d(in_channels=num_out, out_channels=num_mid, kernel_size=1, has_bias=True, pad_mode="pad")
        self.act1 = Activation("relu")
        self.conv2 = nn.Conv2d(in_channels=num_mid, out_channels=num_out, kernel_size=1, has_bias=True, pad_mode="pad")
        self.act2 = Activation("hsigmoid")
        self.mul = P.Mul()

    def construct(self, x: Any) -> Any:
        out = self.pool(x)
        out = self.act1(self.conv1(out))
        out = self.act2(self.conv2(out))
        return self.mul(x, out)


class Unit(nn.Cell):
    def __init__(self, num_in: int, num_out: int, kernel_size: int = 1, stride: int = 1, padding: int = 0,
                 num_groups: int = 1, use_act: bool = True, act_type: str = "relu") -> None:  # fmt: skip
        super().__init__()
        self.conv = nn.Conv2d(in_channels=num_in, out_channels=num_out, kernel_size=kernel_size, stride=stride,
                              padding=padding, group=num_groups, has_bias=False, pad_mode="pad")  # fmt: skip
        self.bn = nn.BatchNorm2d(num_out)
        self.use_act = use_act
        self.act = Activation(act_type) if use_act else None

    def construct(self, x: Any) -> Any:
        out = self.conv(x)
        out = self.bn(out)
        if self.use_act:
            out = self.act(out)
        return out


class ResUnit(nn.Cell):
    def __init__(self, num_in: int, num_mid: int, num_out: int, kernel_size: int, stride: int, act_type: str,
                 use_se: bool) -> None:  # fmt: skip
        super().__init__()
        self.use_se = use_se
        self.first_conv = num_out != num_mid
        self.use_short_cut_conv = not (num_in == num_out and stride == 1)
        self.expand = Unit(num_in, num_mid, 1, act_type=act_type) if self.first_conv else None
        self.conv1 = Unit(num_mid, num_mid, kernel_size, stride, (kernel_size - 1) // 2, num_mid, True, act_type)
        if self.use_se:
            self.se = SE(num_mid)
        self.conv2 = Unit(num_mid, num_out, 1, use_act=False)
        self.add = None if self.use_short_cut_conv else P.Add()

    def construct(self, x: Any) -> Any:
        out = self.expand(x) if self.first_conv else x
        out = self.conv1(out)
        if self.use_se:
            out = self.se(out)
        out = self.conv2(out)
        if not self.use_short_cut_conv:
            out = self.add(x, out)
        return out


class MobileNetV3(nn.Cell):
    """Howard et al. 2019."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = Unit(3, 8, kernel_size=3, stride=2, padding=1, act_type="hswish")
        blocks = [(3, 8, 8, "relu", True, 2), (3, 24, 12, "relu", False, 1), (5, 24, 12, "hswish", True, 1)]
        units: list[Any] = []
        last = 8
        for kernel_size, mid, out, act, se, stride in blocks:
            units.append(ResUnit(last, mid, out, kernel_size, stride, act, se))
            last = out
        self.bneck_blocks = nn.SequentialCell(units)
        self.conv2 = Unit(last, 24, act_type="hswish")
        self.pool = GlobalAvgPooling(keep_dims=True)
        self.conv3 = nn.Conv2d(24, 32, kernel_size=1, padding=0, has_bias=True, pad_mode="pad")
        self.act = Activation("hswish")
        self.output = nn.Conv2d(32, num_classes, kernel_size=1, has_bias=True, pad_mode="pad")
        self.squeeze = P.Squeeze(axis=(2, 3))

    def construct(self, x: Any) -> Any:
        x = self.conv1(x)
        x = self.bneck_blocks(x)
        x = self.conv2(x)
        x = self.pool(x)
        x = self.act(self.conv3(x))
        x = self.output(x)
        return self.squeeze(x)


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
