"""ConvNeXt in PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu.networks.sizes import SMOOTHING, dropped_paths
from benchmarks.gpu.networks.vit.in_torch import DropPath

CHANNELS_LAST = True
"""Images keep their channels behind height and width, PyTorch's own advice for convolutions."""


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of images [n, c, h, w]."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x):
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    def __init__(self, width, drop_path):
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.layer_scale = nn.Parameter(torch.empty(width))
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        y = self.pwconv2(F.gelu(self.pwconv1(self.norm(self.dwconv(x).permute(0, 2, 3, 1)))))
        return x + self.drop_path((self.layer_scale * y).permute(0, 3, 1, 2))


class Network(nn.Module):
    """The loss of classes."""

    def __init__(self, s):
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, s.widths[0], 4, 4), ChannelNorm(s.widths[0])
        rates, layers, before = dropped_paths(s), [], s.widths[0]
        for depth, width in zip(s.depths, s.widths, strict=True):
            if width != before:
                layers += [ChannelNorm(before), nn.Conv2d(before, width, 2, 2)]
            layers += [Block(width, rates.pop(0)) for _ in range(depth)]
            before = width
        self.layers = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(before, eps=1e-6), nn.Linear(before, s.classes)

    def forward(self, images, classes):
        x = self.layers(self.stem_norm(self.stem(images)))
        return F.cross_entropy(self.head(self.norm(x.mean((2, 3)))), classes, label_smoothing=SMOOTHING)
