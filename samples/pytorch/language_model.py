"""A small language model in PyTorch, and how it is exported: `python language_model.py` writes language_model.pt2.

`mspc compile language_model.py:make --torch` exports it on the way.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

WORDS, WIDTH, HEADS, LAYERS, LENGTH = 64, 32, 8, 2, 16


class Attention(nn.Module):
    """Every place looks at those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = (batch, length, HEADS, width // HEADS)
        query, key, value = (part(x).view(heads).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """Attention and a feed-forward network, each behind a norm and beside what goes past it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.feed_forward_norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(functional.gelu(self.up(self.feed_forward_norm(x))))


class LanguageModel(nn.Module):
    """The mean cross entropy of the next word at every place, and the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.words(words) + self.places
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        loss = functional.cross_entropy(logits.view(-1, WORDS), labels.view(-1))
        return {"loss": loss, "logits": logits}


def make() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model and inputs of an example."""
    torch.manual_seed(0)
    words = torch.randint(0, WORDS, (16, LENGTH + 1))
    return LanguageModel(), (words[:, :-1].contiguous(), words[:, 1:].contiguous())


def without_folders(program: torch.export.ExportedProgram) -> None:
    """Takes the folders of this machine out of the places that nodes come from."""
    for node in program.graph.nodes:
        if "stack_trace" in node.meta:
            node.meta["stack_trace"] = re.sub(r'"/[^"]*/(?=torch/|samples/)', '"', node.meta["stack_trace"])


if __name__ == "__main__":
    model, inputs = make()
    batch = torch.export.Dim("batch", min=2, max=1024)
    shapes = {"words": {0: batch}, "labels": {0: batch}}
    exported = torch.export.export(model, inputs, dynamic_shapes=shapes, strict=False)
    without_folders(exported)
    torch.export.save(exported, Path(__file__).with_suffix(".pt2"))
