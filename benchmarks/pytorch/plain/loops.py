"""Loops and sequences as users write them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.pytorch.plain.registry import BATCH, module

LENGTH, WIDTH, VOCABULARY = 6, 10, 20


def sequences() -> dict[str, Tensor]:
    return {"x": torch.randn(BATCH, LENGTH, WIDTH), "y": torch.randn(BATCH, LENGTH, WIDTH)}


def words() -> dict[str, Tensor]:
    return {"x": torch.randint(VOCABULARY, (BATCH, LENGTH)), "y": torch.randint(VOCABULARY, (BATCH, LENGTH))}


@module(sequences)
class OwnScan(nn.Module):
    """A state space by a loop over the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(0.5 * torch.randn(WIDTH, 4)) for _ in range(3))
        self.step = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        h = x.new_zeros(x.shape[0], WIDTH, 4)
        delta = F.softplus(self.step(x))
        found = []
        for t in range(x.shape[1]):
            decay = torch.exp(-delta[:, t, :, None] * self.a.exp())
            h = decay * h + delta[:, t, :, None] * self.b * x[:, t, :, None]
            found.append((h * self.c).sum(-1))
        return {"loss": F.mse_loss(torch.stack(found, dim=1), y)}


@module(sequences)
class OwnCells(nn.Module):
    """Cells of LSTM and GRU in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(WIDTH, WIDTH), nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        h = c = g = torch.zeros(x.size(0), WIDTH)
        losses = 0.0
        for t in range(x.size(1)):
            h, c = self.lstm(x[:, t], (h, c))
            g = self.gru(h, g)
            losses = losses + F.mse_loss(g, y[:, t])
        return {"loss": losses / x.size(1)}


@module(words)
class Recurrent(nn.Module):
    """A bidirectional LSTM of two layers on embedded words."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.lstm = nn.LSTM(WIDTH, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        out, (h, _) = self.lstm(self.table(x))
        return {"loss": F.cross_entropy(self.head(out).transpose(1, 2), y, ignore_index=0) + h.pow(2).mean()}


@module(words)
class Gated(nn.Module):
    """A GRU with a first state, and a head tied to the table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        out, _ = self.gru(self.table(x), self.first.expand(-1, x.size(0), -1).contiguous())
        return {"loss": F.cross_entropy(self.head(out).view(-1, VOCABULARY), y.view(-1))}


@module(sequences)
class Checkpointed(nn.Module):
    """Layers that are computed again for gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))
                                    for _ in range(3))  # fmt: skip

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return {"loss": F.mse_loss(x, y)}


@module(sequences)
class Refined(nn.Module):
    """One layer called again and again, with its loss at every turn."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z, losses = torch.zeros_like(x), []
        for _ in range(4):
            z = z + torch.tanh(self.layer(torch.cat([x, z], -1)))
            losses.append(F.mse_loss(z, y))
        return {"loss": torch.stack(losses).mean()}


@module(sequences)
class Exponential(nn.Module):
    """A moving average by a matrix of powers, and sums in logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.fc = nn.Parameter(torch.zeros(WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        a = torch.sigmoid(self.decay)
        t = torch.arange(x.shape[1], dtype=x.dtype)
        powers = (t[:, None] - t[None]).clamp(min=0)
        kernel = torch.tril(torch.ones(len(t), len(t))).unsqueeze(-1) * a ** powers.unsqueeze(-1)
        mean = torch.einsum("tsc,bsc->btc", kernel, self.fc(x)) * (1 - a)
        return {"loss": F.mse_loss(mean, y) + 0.01 * torch.logsumexp(mean, dim=(1, 2)).mean()}


@module(words)
class Bags(nn.Module):
    """Bags of words, and a product of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(VOCABULARY, WIDTH, mode="mean")
        self.table = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = self.table(x)
        pairs = 0.5 * (z.sum(1).square() - z.square().sum(1))
        both = F.normalize(self.bag(x), dim=-1) @ F.normalize(self.bag(y), dim=-1).t() / 0.2
        return {"loss": F.cross_entropy(both, torch.arange(x.shape[0])) + 0.01 * pairs.mean()}


@module(sequences)
class Convolved(nn.Module):
    """Causal convolutions with growing steps, and gates."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(WIDTH, 2 * WIDTH, 2, dilation=2**i) for i in range(2))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = x.transpose(1, 2)
        for i, conv in enumerate(self.convs):
            z = z + F.glu(conv(F.pad(z, (2**i, 0))), dim=1)
        return {"loss": F.mse_loss(z.transpose(1, 2), y)}


@module(sequences)
class Scanned(nn.Module):
    """`scan`, an operator that runs a graph along the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(0.3 * torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        from torch._higher_order_ops.scan import scan

        def step(h: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(h @ self.w + z)
            return h, h * 1.0

        _, out = scan(step, torch.zeros(x.shape[0], WIDTH), x, dim=1)
        return {"loss": F.mse_loss(out, y)}


@module(sequences)
class Looped(nn.Module):
    """`while_loop`, an operator that runs a graph while a condition holds; nothing is differentiated through it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        from torch._higher_order_ops.while_loop import while_loop

        with torch.no_grad():
            _, scale = while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s * 0.9), (torch.tensor(0), x.abs().mean()))
        return {"loss": F.mse_loss(self.fc(x) * scale, y)}


@module(sequences)
class Mapped(nn.Module):
    """`map`, an operator that runs a graph for every row."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        from functorch.experimental.control_flow import map as mapped

        out = mapped(lambda row, w: torch.sin(row @ w), x, self.fc.weight)
        return {"loss": F.mse_loss(out, y)}
