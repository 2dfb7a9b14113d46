"""Norms, weights and buffers as users write them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from benchmarks.pytorch.plain.registry import BATCH, module

WIDTH = 12


def rows() -> dict[str, Tensor]:
    return {"x": torch.randn(BATCH, WIDTH), "y": torch.randn(BATCH, WIDTH)}


def images() -> dict[str, Tensor]:
    return {"x": torch.randn(BATCH, 4, 8, 8), "y": torch.randint(5, (BATCH,))}


@module(rows)
class OwnNorms(nn.Module):
    """A layer norm, a root mean square norm and a norm of scale, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.g, self.b, self.r = (nn.Parameter(torch.rand(WIDTH) + 0.5) for _ in range(3))
        self.s = nn.Parameter(torch.tensor(2.0))
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        x = self.fc(self.g * (x - mean) / torch.sqrt(var + 1e-5) + self.b)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.r
        x = self.s * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5)
        return {"loss": (x - y).pow(2).sum(-1).sqrt().mean()}


@module(rows)
class WeightNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = parametrizations.weight_norm(nn.Linear(WIDTH, 16))
        self.two = parametrizations.weight_norm(nn.Linear(16, WIDTH), dim=1)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": F.mse_loss(self.two(torch.tanh(self.one(x))), y)}


@module(rows)
class SpectralNorm(nn.Module):
    """The buffers of the power iteration are written in training."""

    def __init__(self) -> None:
        super().__init__()
        self.one = parametrizations.spectral_norm(nn.Linear(WIDTH, 16))
        self.two = nn.Linear(16, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": F.mse_loss(self.two(F.relu(self.one(x))), y)}


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).transpose(-1, -2)


@module(rows)
class Parametrized(nn.Module):
    """A weight that another module makes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        parametrize.register_parametrization(self.fc, "weight", Symmetric())

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": F.huber_loss(self.fc(F.softplus(self.fc(x))), y)}


@module(rows)
class TiedWeights(nn.Module):
    """An autoencoder whose decoder has the encoder's weights, turned."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(WIDTH, 6)
        self.shift = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        code = torch.sigmoid(self.encoder(x))
        return {"loss": F.mse_loss(F.linear(code, self.encoder.weight.t(), self.shift), y)}


@module(rows)
class MovingMean(nn.Module):
    """Buffers that are written in training: a mean, a count, the rows that were seen last."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("queue", torch.zeros(16, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        out = self.fc(x - self.mean)
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
                self.count += 1
                self.queue.copy_(torch.cat([x, self.queue[:8]]))
        return {"loss": F.mse_loss(out, y)}


@module(rows)
class Teacher(nn.Module):
    """A copy of the weights that follows them slowly, and a loss to what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("weight", torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        target = F.linear(x, self.weight).detach()
        loss = 1 - F.cosine_similarity(self.student(x), target, dim=-1).mean()
        with torch.no_grad():
            self.weight.lerp_(self.student.weight, 0.01)
        return {"loss": loss + F.mse_loss(self.student(y), x)}


@module(rows)
class InPlace(nn.Module):
    """Operators that change tensors and parts of them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = self.fc(x)
        z = z * 2
        z[:, :4] += y[:, :4]
        z[:, 4:8].mul_(0.5)
        z[::2].clamp_(-1, 1)
        z[:, -1] = 0
        w = torch.zeros_like(z)
        w[1:] = z[:-1]
        w.add_(z).relu_()
        return {"loss": F.mse_loss(w, y)}


@module(rows)
class Mixture(nn.Module):
    """Experts of which all compute, weighted by a gate of the best two; a loss that balances."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        scores = self.gate(x).softmax(-1)
        top, places = scores.topk(2, dim=-1)
        weights = torch.zeros_like(scores).scatter(1, places, top / top.sum(-1, keepdim=True))
        made = torch.stack([expert(x) for expert in self.experts], dim=1)
        share = F.one_hot(places, 4).float().sum(1).mean(0)
        return {"loss": F.mse_loss((made * weights.unsqueeze(-1)).sum(1), y) + 0.1 * (share * scores.mean(0)).sum()}


@module(images, "float64")
class Normalised(nn.Module):
    """Norms of groups, of instances and of batches, squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.group, self.instance = nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True, track_running_stats=True)
        self.squeeze, self.head = nn.Sequential(nn.Linear(8, 2), nn.ReLU(), nn.Linear(2, 8)), nn.Linear(8, 5)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        x = F.silu(self.group(self.conv(x)))
        x = x * torch.sigmoid(self.squeeze(x.mean((2, 3))))[:, :, None, None]
        return {"loss": F.cross_entropy(self.head(self.instance(F.gelu(x + 1)).amax((2, 3))), y, label_smoothing=0.1)}


@module(images, "float64")
class StandardisedWeights(nn.Module):
    """Convolutions of weights that are standardised, depthwise and pointwise, with a scale for every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.deep, self.point = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8), nn.Conv2d(8, 8, 1)
        self.scale = nn.Parameter(1e-1 * torch.ones(8, 1, 1))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        w = self.conv.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        x = F.conv2d(x, w, self.conv.bias, padding=1)
        x = x + self.scale * self.point(F.gelu(self.deep(x)))
        logits = self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return {"loss": F.nll_loss(F.log_softmax(logits, -1), y, weight=torch.linspace(0.5, 1.5, 5, dtype=x.dtype))}


@module(images, "float64")
class BatchNormalised(nn.Module):
    """A block with batch norm, and a pool with places that is undone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 6, 3, padding="same"), nn.BatchNorm2d(6)
        self.back = nn.ConvTranspose2d(6, 5, 2, stride=2)
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        x, places = self.pool(F.leaky_relu(self.norm(self.conv(x)), 0.1))
        x = self.back(self.unpool(x, places))
        return {"loss": F.cross_entropy(x.flatten(2).mean(-1), y)}


@module(rows)
class Adapter(nn.Module):
    """Weights that do not train, with products of low rank beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH)
        self.base.requires_grad_(False)
        self.a, self.b = nn.Parameter(0.1 * torch.randn(2, WIDTH)), nn.Parameter(torch.zeros(WIDTH, 2))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        out = self.base(x) + (x @ self.a.T @ self.b.T) * 0.5
        return {"loss": F.mse_loss(out, y)}


@module(rows)
class Quantised(nn.Module):
    """Rounding with the gradient of what was rounded, and a codebook."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.codes = nn.Linear(WIDTH, WIDTH), nn.Embedding(7, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = self.fc(x)
        z = z + (torch.round(z * 8) / 8 - z).detach()
        near = torch.cdist(z, self.codes.weight).argmin(-1)
        code = self.codes(near)
        commit = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        return {"loss": F.mse_loss(z + (code - z).detach(), y) + commit}
