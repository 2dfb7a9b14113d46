"""The U-Net in PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F

CHANNELS_LAST = True
"""Images keep their channels behind height and width, PyTorch's own advice for convolutions."""


def conv(ins, outs, length=3, stride=1):
    return nn.Conv2d(ins, outs, length, stride, length // 2)


class Block(nn.Module):
    def __init__(self, s, ins, outs):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(s.groups, ins), conv(ins, outs)
        self.time = nn.Linear(s.time, outs)
        self.norm2, self.conv2 = nn.GroupNorm(s.groups, outs), conv(outs, outs)
        self.skip = conv(ins, outs, 1) if ins != outs else nn.Identity()

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(y))) + self.skip(x)


class Attention(nn.Module):
    """Every place of an image reads all others."""

    def __init__(self, s, channels):
        super().__init__()
        self.heads = s.heads
        self.norm = nn.GroupNorm(s.groups, channels)
        self.qkv, self.proj = conv(channels, 3 * channels, 1), conv(channels, channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj(y.transpose(-1, -2).reshape(b, c, h, w))


class Network(nn.Module):
    """The mean squared error of the noise."""

    def __init__(self, s):
        super().__init__()
        first, last = s.channels[0], s.channels[-1]
        self.time1, self.time2 = nn.Linear(first, s.time), nn.Linear(s.time, s.time)
        self.first = conv(s.colours, first)
        self.downs, self.ups, self.shrinks, self.grows = (nn.ModuleList() for _ in range(4))
        before = first
        for i, channels in enumerate(s.channels):
            self.downs.append(Block(s, before, channels))
            self.shrinks.append(conv(channels, channels, 3, 2) if i < len(s.channels) - 1 else nn.Identity())
            before = channels
        self.middle1, self.attention, self.middle2 = Block(s, last, last), Attention(s, last), Block(s, last, last)
        for i, channels in enumerate(reversed(s.channels)):
            self.ups.append(Block(s, before + channels, channels))
            self.grows.append(conv(channels, channels) if i < len(s.channels) - 1 else nn.Identity())
            before = channels
        self.norm, self.last = nn.GroupNorm(s.groups, first), conv(first, s.colours)

    def forward(self, images, waves, noise):
        time = self.time2(F.silu(self.time1(waves)))
        x, skips = self.first(images), []
        for down, shrink in zip(self.downs, self.shrinks, strict=True):
            x = down(x, time)
            skips.append(x)
            x = shrink(x)
        x = self.middle2(self.attention(self.middle1(x, time)), time)
        for i, (up, grow) in enumerate(zip(self.ups, self.grows, strict=True)):
            x = up(torch.cat((x, skips.pop()), 1), time)
            if i < len(self.ups) - 1:
                x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = grow(x)
        return F.mse_loss(self.last(F.silu(self.norm(x))).float(), noise)
