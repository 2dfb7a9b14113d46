"""The U-Net in MindSpore's style."""

from mspc import nn, ops


def conv(ins, outs, length=3, stride=1):
    return nn.Conv2d(ins, outs, length, stride, pad_mode="pad", padding=length // 2, has_bias=True)


class Block(nn.Cell):
    def __init__(self, s, ins, outs):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(s.groups, ins), conv(ins, outs)
        self.time = nn.Dense(s.time, outs)
        self.norm2, self.conv2 = nn.GroupNorm(s.groups, outs), conv(outs, outs)
        self.act = nn.SiLU()
        self.skip = conv(ins, outs, 1) if ins != outs else nn.Identity()

    def construct(self, x, time):
        y = self.conv1(self.act(self.norm1(x)))
        y = y + self.time(self.act(time)).expand_dims(-1).expand_dims(-1)
        y = self.conv2(self.act(self.norm2(y)))
        return y + self.skip(x)


class Attention(nn.Cell):
    """Every place of an image reads all others."""

    def __init__(self, s, channels):
        super().__init__()
        self.heads = s.heads
        self.norm = nn.GroupNorm(s.groups, channels)
        self.qkv, self.proj = conv(channels, 3 * channels, 1), conv(channels, channels, 1)

    def construct(self, x):
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w)
        q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]
        scores = ops.bmm(q.swapaxes(-1, -2), k) * (c // self.heads) ** -0.5
        y = ops.bmm(ops.softmax(scores, -1), v.swapaxes(-1, -2))
        return x + self.proj(y.swapaxes(-1, -2).reshape(b, c, h, w))


class Network(nn.Cell):
    """The mean squared error of the noise."""

    def __init__(self, s):
        super().__init__()
        first, last = s.channels[0], s.channels[-1]
        self.time1, self.time2 = nn.Dense(first, s.time), nn.Dense(s.time, s.time)
        self.first = conv(s.colours, first)
        downs, shrinks, ups, grows, before = [], [], [], [], first
        for i, channels in enumerate(s.channels):
            downs.append(Block(s, before, channels))
            shrinks.append(conv(channels, channels, 3, 2) if i < len(s.channels) - 1 else nn.Identity())
            before = channels
        self.downs, self.shrinks = nn.CellList(downs), nn.CellList(shrinks)
        self.middle1, self.attention, self.middle2 = Block(s, last, last), Attention(s, last), Block(s, last, last)
        for i, channels in enumerate(reversed(s.channels)):
            ups.append(Block(s, before + channels, channels))
            grows.append(conv(channels, channels) if i < len(s.channels) - 1 else nn.Identity())
            before = channels
        self.ups, self.grows = nn.CellList(ups), nn.CellList(grows)
        self.norm, self.last = nn.GroupNorm(s.groups, first), conv(first, s.colours)
        self.levels = len(s.channels)
        self.loss = nn.MSELoss()

    def construct(self, images, waves, noise):
        time = self.time2(ops.silu(self.time1(waves)))
        x = self.first(images)
        skips = []
        for i in range(self.levels):
            x = self.downs[i](x, time)
            skips.append(x)
            x = self.shrinks[i](x)
        x = self.middle2(self.attention(self.middle1(x, time)), time)
        for i in range(self.levels):
            x = self.ups[i](ops.cat((x, skips[self.levels - 1 - i]), axis=1), time)
            if i < self.levels - 1:
                x = ops.interpolate(x, size=(2 * x.shape[2], 2 * x.shape[3]), mode="nearest")
            x = self.grows[i](x)
        return self.loss(self.last(ops.silu(self.norm(x))), noise)
