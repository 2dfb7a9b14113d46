"""The small networks of experts of `benchmarks/networks/experts.py` in PyTorch: a product of rows for each expert."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.oracle.judging import torch

F = torch.nn.functional
LESS = -1e9
"""Added to scores of words that come later."""


class Network:
    """sizes: a row of `SIZES` there. values: of the parameters by name, to begin with."""

    def __init__(self, sizes: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> None:
        self.s = SimpleNamespace(**sizes)
        self.values = {name: torch.tensor(np.array(value)) for name, value in values.items()}
        self.trained = [value.requires_grad_() for name, value in self.values.items() if not name.endswith("bias")]

    def train(self, text: np.ndarray, steps: int) -> list[float]:
        """The losses of steps of AdamW with one batch of words [batch, length + 1]."""
        optimizer = torch.optim.AdamW(self.trained, 1e-3)
        words, found = torch.tensor(text).long(), []
        for _ in range(steps):
            loss = self.loss(words[:, :-1], words[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    def loss(self, words: Any, labels: Any) -> Any:
        """The mean cross entropy of the next words, and the balancing losses."""
        s, total = self.s, 0.0
        x = self.values["table"][words]
        for name in (f"dense.{i}" for i in range(s.dense)):
            x = x + self.attention(self.norm(x, f"{name}.attention_norm"), f"{name}.attention")
            x = x + self.gated(self.norm(x, f"{name}.norm"), f"{name}.dense")
        for name in (f"layers.{i}" for i in range(s.layers - s.dense)):
            x = x + self.attention(self.norm(x, f"{name}.attention_norm"), f"{name}.attention")
            found, even = self.experts(self.norm(x, f"{name}.norm"), f"{name}.experts")
            x, total = x + found, total + even
        logits = self.linear(self.norm(x, "norm"), "head").reshape(-1, s.vocabulary)
        return F.cross_entropy(logits, labels.reshape(-1)) + 0.01 * total

    def linear(self, x: Any, name: str) -> Any:
        return x @ self.values[f"{name}.weight"].T

    def norm(self, x: Any, name: str) -> Any:
        return self.values[f"{name}.weight"] * (x * torch.rsqrt((x * x).mean(-1, True) + 1e-6))

    def gated(self, x: Any, name: str) -> Any:
        return self.linear(F.silu(self.linear(x, f"{name}.gate")) * self.linear(x, f"{name}.up"), f"{name}.down")

    def attention(self, x: Any, name: str) -> Any:
        s, (batch, length, _) = self.s, x.shape
        source = self.norm(self.linear(x, f"{name}.short"), f"{name}.norm") if s.latent else x

        def heads(of: Any, part: str, count: int) -> Any:
            return self.linear(of, f"{name}.{part}").view(batch, length, count, s.size).transpose(1, 2)

        query = heads(x, "query", s.heads)
        key, value = (heads(source, p, s.keys).repeat_interleave(s.heads // s.keys, 1) for p in ("key", "value"))
        scores = query @ key.transpose(-1, -2) * s.size**-0.5 + torch.triu(torch.full((length, length), LESS), 1)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, -1)
        return self.linear(mixed, f"{name}.out")

    def experts(self, x: Any, name: str) -> tuple[Any, Any]:
        """The result of the experts of each token, and how unevenly they are chosen."""
        s, rows = self.s, x.reshape(-1, self.s.width)
        logits = self.linear(rows, f"{name}.router.gate")
        scores = torch.sigmoid(logits) if s.sigmoid else logits.softmax(-1)
        by = scores
        if s.groups > 1:
            by = scores + self.values[f"{name}.router.bias"]
            best = by.view(-1, s.groups, s.experts // s.groups).topk(2, -1)[0].sum(-1)
            kept = torch.zeros(len(rows), s.groups).scatter(1, best.topk(s.kept, -1)[1], 1.0)
            by = by.masked_fill(kept.repeat_interleave(s.experts // s.groups, 1) == 0, 0.0)
        chosen = by.topk(s.chosen, -1)[1]
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        even = (F.one_hot(chosen, s.experts).float().sum(1).mean(0) * scores.mean(0)).sum()
        out = torch.zeros_like(rows)
        for expert in range(s.experts):
            token, place = (chosen == expert).nonzero(as_tuple=True)
            hidden = rows[token] @ self.values[f"{name}.experts.up"][expert]
            hidden = F.silu(hidden[:, : s.hidden]) * hidden[:, s.hidden :]
            found = hidden @ self.values[f"{name}.experts.down"][expert]
            out = out.index_add(0, token, found * weights[token, place, None])
        out = out.view(x.shape)
        return (out + self.gated(x, f"{name}.shared") if s.shared else out), even
