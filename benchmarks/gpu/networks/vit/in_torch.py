"""ViT in PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu.networks.sizes import SMOOTHING


class DropPath(nn.Module):
    """Leaves out what a block adds, image by image."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        if not self.rate:
            return x
        keep = 1 - self.rate
        return x * x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep).div_(keep)


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.size, self.rate = s.heads, s.width // s.heads, s.dropout
        self.qkv, self.out = nn.Linear(s.width, 3 * s.width), nn.Linear(s.width, s.width)
        self.out_drop = nn.Dropout(s.dropout)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, self.size).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.rate)
        return self.out_drop(self.out(y.transpose(1, 2).reshape(b, n, c)))


class Mlp(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(s.width, 4 * s.width), nn.Linear(4 * s.width, s.width)
        self.drop = nn.Dropout(s.dropout)

    def forward(self, x):
        return self.drop(self.fc2(self.drop(F.gelu(self.fc1(x)))))


class Block(nn.Module):
    def __init__(self, s, drop_path):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(s.width, eps=1e-6), nn.LayerNorm(s.width, eps=1e-6)
        self.attn, self.mlp, self.drop_path = Attention(s), Mlp(s), DropPath(drop_path)

    def forward(self, x):
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class Network(nn.Module):
    """The loss of classes, read off one place in front of the patches."""

    def __init__(self, s):
        super().__init__()
        self.patches = nn.Conv2d(3, s.width, s.patch, s.patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, s.width))
        self.position = nn.Parameter(torch.empty(1, (s.side // s.patch) ** 2 + 1, s.width))
        self.pos_drop = nn.Dropout(s.dropout)
        self.blocks = nn.Sequential(*(Block(s, s.drop_path * i / (s.layers - 1)) for i in range(s.layers)))
        self.norm, self.head = nn.LayerNorm(s.width, eps=1e-6), nn.Linear(s.width, s.classes)

    def forward(self, images, classes):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(x.shape[0], -1, -1), x), 1) + self.position
        x = self.norm(self.blocks(self.pos_drop(x)))
        return F.cross_entropy(self.head(x[:, 0]), classes, label_smoothing=SMOOTHING)
