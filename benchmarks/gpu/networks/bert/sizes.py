"""Sizes of BERT (Devlin et al. 2019) in pre-training: padding, gathered positions of hidden words, next sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.networks.start import Optimizer, drawn


@dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    length: int
    hidden_words: int
    dropout: float = 0.1


GPU = Sizes(layers=12, width=768, heads=12, vocabulary=30522, batch=32, length=512, hidden_words=76)
CPU = Sizes(layers=4, width=256, heads=8, vocabulary=8000, batch=4, length=256, hidden_words=38)
OPTIMIZER = Optimizer("adamw", 1e-4, weight_decay=0.01)


def data(sizes: Sizes) -> tuple[Any, ...]:
    """Words, their segments and whether they are words (0 behind a text's end), int32 [batch, length]; places of
    hidden words and which words they are, int32 [batch, hidden_words]; whether the second text follows, int32 [batch].
    """
    draw, shape = drawn(), (sizes.batch, sizes.length)
    words = draw.integers(0, sizes.vocabulary, shape).astype(np.int32)
    lengths = draw.integers(sizes.length // 2, sizes.length + 1, (sizes.batch, 1))
    places = np.arange(sizes.length)
    segments, present = (places >= lengths // 2).astype(np.int32), (places < lengths).astype(np.int32)
    hidden = np.stack([np.sort(draw.permutation(n)[: sizes.hidden_words]) for n in lengths[:, 0]]).astype(np.int32)
    wanted = draw.integers(0, sizes.vocabulary, hidden.shape).astype(np.int32)
    return words, segments * present, present, hidden, wanted, draw.integers(0, 2, sizes.batch).astype(np.int32)
