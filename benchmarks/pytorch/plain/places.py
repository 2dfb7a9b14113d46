"""Places, sorts, images and losses as users write them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.pytorch.plain.registry import BATCH, module

WIDTH, NODES, CLASSES = 10, 24, 7


def rows() -> dict[str, Tensor]:
    return {"x": torch.randn(BATCH, WIDTH), "y": torch.randint(CLASSES, (BATCH,))}


def images() -> dict[str, Tensor]:
    return {"x": torch.randn(BATCH, 3, 12, 12), "y": torch.randn(BATCH, 3, 12, 12)}


def graphs() -> dict[str, Tensor]:
    return {"x": torch.randn(BATCH, NODES, WIDTH), "edges": torch.randint(NODES, (BATCH, 2, 40)),
            "y": torch.randn(BATCH, NODES, WIDTH)}  # fmt: skip


@module(graphs)
class Messages(nn.Module):
    """Messages along edges: gathered, added up by scatter_add, and their maximum by scatter_reduce."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, edges: Tensor, y: Tensor) -> dict[str, Tensor]:
        ends = [e.unsqueeze(-1).expand(-1, -1, WIDTH) for e in edges.unbind(1)]
        sent = F.relu(self.fc(torch.cat([x.gather(1, e) for e in ends], -1)))
        total = torch.zeros_like(x).scatter_add_(1, ends[1], sent)
        most = torch.zeros_like(x).scatter_reduce(1, ends[1], sent, "amax", include_self=True)
        return {"loss": F.mse_loss(self.out(torch.cat([total, most], -1)), y)}


@module(graphs)
class Counted(nn.Module):
    """index_add, index_put that adds up, bincount of a fixed length, and a product with the degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edges: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = self.fc(x)
        batch = torch.arange(x.shape[0])[:, None].expand(-1, edges.shape[-1])
        summed = torch.zeros_like(z).index_put((batch, edges[:, 1]), z[batch, edges[:, 0]], accumulate=True)
        degree = F.one_hot(edges[:, 1], NODES).sum(1).clamp(min=1).unsqueeze(-1)
        flat = torch.zeros(NODES, WIDTH).index_add(0, edges[0, 0], z[0, :40 - 16].repeat(2, 1)[:40])
        return {"loss": F.mse_loss(summed / degree.sqrt(), y) + flat.square().mean()}


@module(rows)
class Margins(nn.Module):
    """A margin at the class's own angle, as faces are told apart."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        cosine = F.linear(F.normalize(x), F.normalize(self.weight)).clamp(-0.99, 0.99)
        angle = torch.acos(cosine)
        own = torch.zeros_like(cosine)
        own.scatter_(1, y.view(-1, 1), 1)
        return {"loss": F.cross_entropy(8 * torch.where(own.bool(), torch.cos(angle + 0.2), cosine), y)}


@module(rows)
class Focal(nn.Module):
    """Losses of classes by hand, and the supervised contrastive one with masks."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        logits = self.fc(x)
        p = F.binary_cross_entropy_with_logits(logits, F.one_hot(y, CLASSES).float(), reduction="none")
        focal = ((1 - torch.exp(-p)) ** 2 * p).mean()
        z = F.normalize(logits, dim=1)
        scores = z @ z.T / 0.5
        other = ~torch.eye(len(y), dtype=torch.bool)
        alike = (y[:, None] == y[None]) & other
        shares = scores - torch.logsumexp(scores.masked_fill(~other, -1e9), 1, keepdim=True)
        return {"loss": focal - (shares * alike).sum() / alike.sum().clamp(min=1)}


@module(rows)
class Sorted(nn.Module):
    """Sorts, cumulated shares, the nearest of a table, a quantile."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("borders", torch.linspace(-1, 1, 5))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        p = self.fc(x).softmax(-1)
        best, order = p.sort(dim=-1, descending=True)
        mass = best.cumsum(-1)
        kept = torch.where(mass - best < 0.8, best, torch.zeros_like(best))
        back = torch.zeros_like(p).scatter(1, order, kept / kept.sum(-1, keepdim=True))
        bins = torch.bucketize(x, self.borders).float().mean(-1)
        own = torch.gather(back, 1, y[:, None]).squeeze(1)
        return {"loss": -torch.log(own + 1e-3).mean() + 0.1 * (bins * p.amax(-1)).mean() + p.median(-1).values.mean()}


@module(rows)
class Choices(nn.Module):
    """Branches by masks: torch.where, boolean factors, piecewise functions, flips and rolls."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = self.fc(x)
        z = torch.where(z > 0, torch.log1p(z.clamp(min=0)), torch.expm1(z.clamp(max=0)))
        z = z * (y % 2 == 0)[:, None] + z.flip(-1) * (y % 2 == 1)[:, None] + z.roll(1, -1)
        z = torch.max(z, torch.minimum(x, x.new_tensor(0.3)))
        return {"loss": (z.abs() + torch.sign(z) * 0.1 * z).sum(-1).mean()}


@module(rows)
class Triples(nn.Module):
    """Losses of nn beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Bilinear(WIDTH, WIDTH, WIDTH)
        self.prelu = nn.PReLU(WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = self.prelu(self.fc(x, x.roll(1, 0)))
        loss = F.triplet_margin_loss(z, x, x.flip(0)) + F.multi_margin_loss(z[:, :CLASSES], y)
        loss = loss + F.kl_div(F.log_softmax(z, -1), x.softmax(-1), reduction="batchmean")
        loss = loss + F.cosine_embedding_loss(z, x, (y % 2 * 2 - 1).float()) + F.soft_margin_loss(z, torch.sign(x))
        return {"loss": loss + F.poisson_nll_loss(0.1 * z, y[:, None].float(), full=True)}


@module(images)
class Resized(nn.Module):
    """Pyramids: interpolation in several modes, pixel shuffle, and what is put side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 12, 1)
        self.out = nn.Conv2d(9, 3, 3, padding=1, padding_mode="reflect")

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = F.pixel_shuffle(self.up(F.mish(self.down(x))), 2)
        small = F.interpolate(F.avg_pool2d(x, 3, stride=3), scale_factor=3.0, mode="nearest")
        smooth = F.interpolate(x[..., ::2, ::2], size=(12, 12), mode="bilinear", align_corners=False)
        return {"loss": F.l1_loss(self.out(torch.cat([z, small, smooth], 1)), y)}


@module(images)
class Warped(nn.Module):
    """A grid that a network moves, and images that are sampled there."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Linear(27, 6)
        self.where.bias.data.copy_(torch.tensor([1.0, 0.1, 0, 0.1, 1, 0]))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        theta = self.where(F.adaptive_avg_pool2d(x, 3).flatten(1)).view(-1, 2, 3)
        moved = F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)
        return {"loss": F.mse_loss(moved, y)}


@module(images)
class Patches(nn.Module):
    """Patches by unfold and by reshape, mixed, and folded back."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.channels = nn.Linear(9, 9), nn.Linear(48, 48)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = F.unfold(x, 4, stride=4).transpose(1, 2)
        z = z + self.places(z.transpose(1, 2)).transpose(1, 2)
        z = F.fold(F.gelu(self.channels(z)).transpose(1, 2), (12, 12), 4, stride=4)
        b, c, h, w = x.shape
        tiles = x.reshape(b, c, h // 3, 3, w // 3, 3).permute(0, 2, 4, 1, 3, 5).amax((3, 4, 5))
        return {"loss": F.mse_loss(z, y) + tiles.mean() * z.mean()}


@module(images)
class Gradients(nn.Module):
    """Differences of images: total variation, fixed filters, a spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.Hardswish(), nn.Conv2d(6, 3, 1))
        self.register_buffer("filter", torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]]).expand(3, 1, 3, 3).clone())

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = self.net(x)
        edges = F.conv2d(z, self.filter, padding=1, groups=3)
        rough = (z[..., 1:] - z[..., :-1]).abs().mean() + torch.diff(z, dim=-2).abs().mean()
        spectrum = torch.fft.rfft2(z - y).abs().mean()
        return {"loss": F.mse_loss(z, y) + edges.square().mean() + 0.1 * rough + 0.01 * spectrum}


@module(rows)
class Flows(nn.Module):
    """An affine coupling with its logarithm of a determinant, and a triangle of products."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 10))
        self.factor = nn.Parameter(torch.eye(WIDTH) + 0.1 * torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        lower = self.factor.tril(-1) + torch.diag(self.factor.diagonal().exp())
        x = x @ lower.T
        a, b = x.chunk(2, -1)
        scale, shift = self.net(a).chunk(2, -1)
        z = torch.cat([a, b * torch.tanh(scale).exp() + shift], -1)
        density = torch.tanh(scale).sum(-1) + self.factor.diagonal().sum()
        return {"loss": (0.5 * z.square().sum(-1) - density).mean()}


@module(rows)
class Processes(nn.Module):
    """A Gaussian process: a kernel, its Cholesky factor, and what is solved with it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.noise = nn.Linear(WIDTH, 3), nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = self.fc(x)
        kernel = torch.exp(-0.5 * (z[:, None] - z[None]).square().sum(-1))
        kernel = kernel + (F.softplus(self.noise) + 0.1) * torch.eye(len(x))
        factor = torch.linalg.cholesky(kernel)
        solved = torch.linalg.solve_triangular(factor, y.float()[:, None], upper=False)
        return {"loss": 0.5 * solved.square().sum() + torch.log(torch.diagonal(factor)).sum()}


@module(rows)
class Capsules(nn.Module):
    """Routing by agreement: a loop of softmax, einsum and a squash."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(0.3 * torch.randn(5, CLASSES, 2, 4))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        votes = torch.einsum("bik,ijko->bijo", x.view(-1, 5, 2), self.w)
        logits = torch.zeros(*votes.shape[:3])
        for _ in range(3):
            s = (logits.softmax(2).unsqueeze(-1) * votes).sum(1)
            n = s.square().sum(-1, keepdim=True)
            v = n / (1 + n) * s / (n + 1e-8).sqrt()
            logits = logits + (votes * v.unsqueeze(1)).sum(-1)
        length = v.norm(dim=-1)
        own = F.one_hot(y, CLASSES)
        return {"loss": (own * F.relu(0.9 - length) ** 2 + 0.5 * (1 - own) * F.relu(length - 0.1) ** 2).sum(1).mean()}


@module(rows)
class Penalised(nn.Module):
    """Sums over all parameters: norms, absolute values, a trace, and what is stacked and split again."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.ModuleDict({"a": nn.Linear(WIDTH, 6), "b": nn.Linear(6, CLASSES)})

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = self.net["b"](F.selu(self.net["a"](x)))
        flat = torch.cat([p.reshape(-1) for p in self.parameters()])
        inner = torch.trace(self.net["a"].weight @ self.net["a"].weight.T) + flat.abs().sum()
        one, two = torch.stack([z, -z]).unbind(0)
        return {"loss": F.cross_entropy(one - 0.5 * two, y) + 1e-3 * inner + 1e-2 * torch.linalg.vector_norm(flat)}
