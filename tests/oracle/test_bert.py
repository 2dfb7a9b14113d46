"""A BERT-like network against one of PyTorch's modules with the same weights: the loss and every gradient."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle import bert  # noqa: E402
from tests.oracle.bert import HEADS, HIDDEN, IGNORED, LAYERS, SEQUENCE, VOCABULARY, WIDTH, Options  # noqa: E402
from tests.oracle.language_models import compare  # noqa: E402  # it imports PyTorch
from tests.shares import crossed  # noqa: E402

F = torch.nn.functional
Linear, LayerNorm = torch.nn.Linear, torch.nn.LayerNorm


class Embeddings(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.position_embeddings = torch.nn.Embedding(SEQUENCE, WIDTH)
        self.token_type_embeddings = torch.nn.Embedding(2, WIDTH)
        self.layer_norm = LayerNorm(WIDTH, 1e-12)

    def forward(self, ids: Any, types: Any) -> Any:
        x = self.word_embeddings(ids) + self.token_type_embeddings(types)
        return self.layer_norm(x + self.position_embeddings(torch.arange(SEQUENCE)))


class SelfAttention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (Linear(WIDTH, WIDTH) for _ in range(4))
        self.layer_norm = LayerNorm(WIDTH, 1e-12)

    def forward(self, x: Any, mask: Any) -> Any:
        query, key, value = (
            w(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
        return self.layer_norm(x + self.output(mixed.transpose(1, 2).flatten(2)))


class Layer(torch.nn.Module):
    def __init__(self, approximate: bool) -> None:
        super().__init__()
        self.attention = SelfAttention()
        self.intermediate, self.output = Linear(WIDTH, HIDDEN), Linear(HIDDEN, WIDTH)
        self.gelu, self.layer_norm = torch.nn.GELU("tanh" if approximate else "none"), LayerNorm(WIDTH, 1e-12)

    def forward(self, x: Any, mask: Any) -> Any:
        x = self.attention(x, mask)
        return self.layer_norm(x + self.output(self.gelu(self.intermediate(x))))


class Bert(torch.nn.Module):
    def __init__(self, approximate: bool) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.layers = torch.nn.ModuleList(Layer(approximate) for _ in range(LAYERS))
        self.pooler, self.follows = Linear(WIDTH, WIDTH), Linear(WIDTH, 2)
        self.transform, self.transform_norm = Linear(WIDTH, WIDTH), LayerNorm(WIDTH, 1e-12)
        self.word_bias = Linear(1, VOCABULARY, bias=False)

    def forward(self, ids: Any, types: Any, mask: Any, hidden: Any, follows: Any) -> Any:
        x = self.embeddings(ids, types)
        for layer in self.layers:
            x = layer(x, mask.bool())
        y = self.transform_norm(F.gelu(self.transform(x), approximate="tanh"))
        logits = F.linear(y, self.embeddings.word_embeddings.weight, self.word_bias.weight[:, 0])
        loss = F.cross_entropy(logits.flatten(0, 1), hidden.flatten(), ignore_index=IGNORED)
        return loss + F.cross_entropy(self.follows(torch.tanh(self.pooler(x[:, 0]))), follows)


def other_name(name: str) -> str:
    """Norms have gamma and beta, embeddings a table."""
    *parts, last = name.split(".")
    if parts[-1].endswith("norm"):
        last = {"weight": "gamma", "bias": "beta"}[last]
    elif parts[-1].endswith("embeddings"):
        last = "embedding_table"
    return ".".join((*parts, last))


WAYS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "one rank": (1, "stand_alone", {}),
    "data parallel": (8, "semi_auto_parallel", {}),
    "data 8": (8, "semi_auto_parallel", {"data": 8, "sharded": True}),
    "tensor 4": (8, "semi_auto_parallel", {"data": 2, "tensor": 4, "sharded": True}),
    "propagated": (8, "auto_parallel", {"data": 2, "tensor": 4, "sharded": True}),
}


@pytest.mark.parametrize(("parts", "gelu", "way"), crossed(("small", "fused"), ("erf", "tanh"), WAYS))
def test_bert(parts: str, gelu: str, way: str) -> None:
    ranks, mode, split = WAYS[way]
    approximate = gelu == "tanh"
    mine = bert.Bert(Options(fused=parts == "fused", approximate=approximate, **split))
    compare(mine, Bert(approximate), bert.batch(), ranks, mode, other_name)
