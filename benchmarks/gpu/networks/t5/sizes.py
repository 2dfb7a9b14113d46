"""Sizes of T5 (Raffel et al. 2020): encoder and decoder, a learnt bias of how far places are apart, no other scaling
of scores, RMSNorm without biases, a tied table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.networks.start import Optimizer, drawn


@dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    batch: int
    length: int
    answer: int
    buckets: int = 32
    furthest: int = 128
    dropout: float = 0.1


GPU = Sizes(layers=12, width=768, heads=12, hidden=3072, vocabulary=32128, batch=16, length=512, answer=128)
CPU = Sizes(layers=2, width=256, heads=8, hidden=1024, vocabulary=8000, batch=4, length=256, answer=64)
"""`layers` of the encoder and as many of the decoder."""
OPTIMIZER = Optimizer("adamw", 1e-4)


def data(sizes: Sizes) -> tuple[Any, ...]:
    """Words [batch, length], whether they are words; the answer's words and those that follow [batch, answer], -100
    behind its end; all int32."""
    draw = drawn()
    words = draw.integers(0, sizes.vocabulary, (sizes.batch, sizes.length)).astype(np.int32)
    lengths = draw.integers(sizes.length // 2, sizes.length + 1, (sizes.batch, 1))
    answer = draw.integers(0, sizes.vocabulary, (sizes.batch, sizes.answer + 1)).astype(np.int32)
    ends = draw.integers(sizes.answer // 2, sizes.answer + 1, (sizes.batch, 1))
    wanted = np.where(np.arange(sizes.answer) < ends, answer[:, 1:], -100).astype(np.int32)
    return words, (np.arange(sizes.length) < lengths).astype(np.int32), answer[:, :-1].copy(), wanted


def buckets(length: int, sizes: Sizes, both_ways: bool) -> Any:
    """The bucket of every pair of places, int32 [length, length]: single distances near, ever wider ones further."""
    apart = np.arange(length)[None, :] - np.arange(length)[:, None]
    count = sizes.buckets // 2 if both_ways else sizes.buckets
    start = np.where(apart > 0, count, 0) if both_ways else 0
    far = np.abs(apart) if both_ways else np.maximum(-apart, 0)
    near = count // 2
    wide = np.log(np.maximum(far, 1) / near) / math.log(sizes.furthest / near) * (count - near)
    wide = np.minimum(near + wide.astype(np.int32), count - 1)
    return (start + np.where(far < near, far, wide)).astype(np.int32)
