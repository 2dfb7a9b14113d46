"""ResNet: He, Zhang, Ren and Sun, arXiv 1512.03385; the stride of a block is that of its 3 x 3 convolution."""

import mindspore.nn as nn
from mindspore import ops


def conv(in_channels, out_channels, kernel_size, stride=1):
    """A convolution without bias: the normalisation behind it has one."""
    return nn.Conv2d(in_channels, out_channels, kernel_size, stride, pad_mode="pad", padding=kernel_size // 2,
                     weight_init="HeNormal")


class Bottleneck(nn.Cell):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside the input, which is projected where its shape changes."""

    def __init__(self, in_channels, channels, stride, expansion=4):
        super().__init__()
        out_channels = channels * expansion
        self.conv1 = conv(in_channels, channels, 1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels, 3, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = conv(channels, out_channels, 1)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU()
        self.projected = stride != 1 or in_channels != out_channels
        if self.projected:
            self.project = conv(in_channels, out_channels, 1, stride)
            self.project_bn = nn.BatchNorm2d(out_channels)

    def construct(self, x):
        beside = x
        if self.projected:
            beside = self.project_bn(self.project(x))
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + beside)


class ResNet(nn.Cell):
    """Images [n, 3, h, w] to scores [n, num_classes].

    blocks: how many in each of the four stages. width: channels of the first stage's 3 x 3 convolutions.
    """

    def __init__(self, blocks, num_classes, width=64):
        super().__init__()
        self.conv1 = conv(3, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        stages = []
        channels = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(Bottleneck(channels, width << stage, stride))
                channels = (width << stage) * 4
        self.stages = nn.SequentialCell(stages)
        self.mean = ops.ReduceMean(keep_dims=False)
        self.end_point = nn.Dense(channels, num_classes)

    def construct(self, x):
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.stages(x)
        return self.end_point(self.mean(x, (2, 3)))


def resnet50(batch_size, num_classes, width=64):
    """ResNet-50. batch_size is there because the tutorial's network takes it; any batch will do."""
    return ResNet((3, 4, 6, 3), num_classes, width)
