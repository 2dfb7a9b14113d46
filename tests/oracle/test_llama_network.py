"""A LLaMA-like network against one of PyTorch's modules with the same weights: the loss and every gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle import llama  # noqa: E402
from tests.oracle.language_models import compare  # noqa: E402  # it imports PyTorch
from tests.oracle.llama import BATCH, DEPTH, HIDDEN, LAYERS, SEQUENCE, SHARED, VOCABULARY, WIDTH, Options  # noqa: E402
from tests.shares import crossed  # noqa: E402

F = torch.nn.functional
WORDS = np.random.default_rng(1).integers(0, VOCABULARY, (BATCH, SEQUENCE + 1)).astype(np.int32)


def linear(rows: int, columns: int) -> Any:
    return torch.nn.Linear(columns, rows, bias=False)


class Attention(torch.nn.Module):
    def __init__(self, adjacent: bool) -> None:
        super().__init__()
        few = WIDTH // SHARED
        self.wq, self.wk, self.wv, self.wo = (linear(n, WIDTH) for n in (WIDTH, few, few, WIDTH))
        turns = torch.tensor(llama.angles(adjacent)[:, :: 2 if adjacent else 1][:, : DEPTH // 2])
        self.turns, self.adjacent = torch.polar(torch.ones_like(turns), turns).to(torch.complex64), adjacent

    def turned(self, x: Any) -> Any:
        """The pairs of elements as complex numbers, turned."""
        pairs = x.unflatten(-1, (-1, 2)) if self.adjacent else x.unflatten(-1, (2, -1)).transpose(-1, -2)
        pairs = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * self.turns)
        return (pairs if self.adjacent else pairs.transpose(-1, -2)).flatten(-2)

    def forward(self, x: Any) -> Any:
        query, key, value = (w(x).unflatten(-1, (-1, DEPTH)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        mixed = F.scaled_dot_product_attention(
            self.turned(query), self.turned(key), value, is_causal=True, enable_gqa=True
        )
        return self.wo(mixed.transpose(1, 2).flatten(2))


class FeedForward(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = linear(HIDDEN, WIDTH), linear(WIDTH, HIDDEN), linear(HIDDEN, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(torch.nn.Module):
    def __init__(self, adjacent: bool) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = (torch.nn.RMSNorm(WIDTH, 1e-5) for _ in range(2))
        self.attention, self.feed_forward = Attention(adjacent), FeedForward()

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(torch.nn.Module):
    def __init__(self, tied: bool, adjacent: bool) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(Layer(adjacent) for _ in range(LAYERS))
        self.norm = torch.nn.RMSNorm(WIDTH, 1e-5)
        if not tied:
            self.head = linear(VOCABULARY, WIDTH)
        self.tied = tied

    def forward(self, words: Any, next_words: Any) -> Any:
        x = self.table(words)
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.table.weight if self.tied else self.head.weight)
        return F.cross_entropy(logits.flatten(0, 1), next_words.flatten())


def other_name(name: str) -> str:
    """A table and a head are parameters of the network itself, and so are the weights of its products."""
    parts = name.split(".")
    return ".".join(parts if "norm" in parts[-2] else parts[:-1])


WAYS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "one rank": (1, "stand_alone", {"sharded": False}),
    "data parallel": (8, "semi_auto_parallel", {"sharded": False}),
    "2 x 4": (8, "semi_auto_parallel", {"data": 2, "tensor": 4}),
    "propagated": (8, "auto_parallel", {"data": 2, "tensor": 4}),
}


@pytest.mark.parametrize(
    ("head", "parts", "turned", "way"), crossed(("untied", "tied"), ("small", "fused"), ("halves", "adjacent"), WAYS)
)
def test_llama(head: str, parts: str, turned: str, way: str) -> None:
    ranks, mode, split = WAYS[way]
    tied, adjacent = head == "tied", turned == "adjacent"
    mine = llama.Llama(Options(tied=tied, fused=parts == "fused", adjacent=adjacent, **split))
    compare(mine, Llama(tied, adjacent), (WORDS[:, :-1], WORDS[:, 1:]), ranks, mode, other_name)
