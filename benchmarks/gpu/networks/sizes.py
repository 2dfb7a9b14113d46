"""The networks of the comparison: sizes, optimizers, data, and first values of parameters by name.

Needs NumPy alone, since each program has other libraries. A parameter's name is its path of attributes, the same in
every framework; layers' own words for the last part of it (`gamma`, `embedding_table`) are brought to one.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

SEED = 1
TABLES = ("embedding", "position", "token", "relative")
"""Parts of the names of what is looked up or added: small first values whatever the shape."""
PIECE = 1 << 20
"""Elements that are drawn in one go."""
LAST = {"gamma": "weight", "beta": "bias", "embedding_table": "weight"}


@dataclass(frozen=True)
class Optimizer:
    """`kind` is "adamw" (decay beside the gradient), "adam" or "sgd"; gradients longer than `clip` are clipped to it
    by their global norm, where it is given."""

    kind: str
    rate: float
    weight_decay: float = 0.0
    momentum: float = 0.0
    clip: float | None = None


def same_name(name: str) -> str:
    """A parameter's name in all frameworks."""
    path, dot, last = name.rpartition(".")
    return path + dot + LAST.get(last, last)


def first_values(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Float32 first values of parameters by name, which depend on the seed, the name and the shape alone.

    They are drawn on all cores in pieces, as every program's start waits for them.

    Vectors are near 1 (weights of norms), near 0.1 (scales of layers) or near 0 (biases); tables are small; weights
    [out, in, ...] keep the variance of what they multiply.
    """
    values = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
    pieces = [
        (name, start, value.reshape(-1)[start : start + PIECE])
        for name, value in values.items() for start in range(0, value.size, PIECE)
    ]  # fmt: skip

    def draw(name: str, start: int, piece: Any) -> None:
        scale, shift = _scale(same_name(name), shapes[name])
        seeds = [SEED, zlib.crc32(same_name(name).encode())] + [start] * (start > 0)
        np.random.default_rng(seeds).standard_normal(out=piece, dtype=np.float32)
        piece *= np.float32(scale)
        if shift:
            piece += np.float32(shift)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for drawing in [pool.submit(draw, *piece) for piece in pieces]:
            drawing.result()
    return values


def _scale(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """The deviation and the mean of a parameter's first values."""
    if any(part in name for part in TABLES):
        return 0.02, 0.0
    if len(shape) == 1:
        return 0.02, {"weight": 1.0, "layer_scale": 0.1}.get(name.rpartition(".")[2], 0.0)
    inputs = shape[-1] if len(shape) == 3 else math.prod(shape[1:])  # three are matrices of several experts
    return 1 / math.sqrt(inputs), 0.0


@dataclass(frozen=True)
class Network:
    """Sizes for a GPU and for a CPU, the optimizer, and the data of a step."""

    gpu: Mapping[str, Any]
    cpu: Mapping[str, Any]
    optimizer: Optimizer
    data: Callable[[Any], tuple[Any, ...]]


def sizes_of(network: str, size: str, random: bool = True) -> tuple[Network, Any]:
    """Return a network and its set of sizes, "gpu" or "cpu"; without `random` nothing is dropped."""
    found = NETWORKS[network]
    sizes = SimpleNamespace(**{"gpu": found.gpu, "cpu": found.cpu}[size])
    for name in vars(sizes):
        if name.startswith("drop") and not random:
            setattr(sizes, name, 0.0)
    return found, sizes


def drawn() -> np.random.Generator:
    """The generator of a network's data."""
    return np.random.default_rng(SEED + 1)


def text(sizes: Any) -> tuple[Any, ...]:
    """Words and the words that follow them, int32 [batch, length]."""
    words = drawn().integers(0, sizes.vocabulary, (sizes.batch, sizes.length + 1)).astype(np.int32)
    return words[:, :-1].copy(), words[:, 1:].copy()


def text_by_place(sizes: Any) -> tuple[Any, ...]:
    """Words and the words that follow them, int32 [length, batch]."""
    words = drawn().integers(0, sizes.vocabulary, (sizes.length + 1, sizes.batch)).astype(np.int32)
    return words[:-1].copy(), words[1:].copy()


def masked_text(sizes: Any) -> tuple[Any, ...]:
    """Words, their segments and whether they are words (0 after a text's end), int32 [batch, length]; places of hidden
    words and their values, int32 [batch, hidden_words]; whether the second text follows, int32 [batch]."""
    draw, shape = drawn(), (sizes.batch, sizes.length)
    words = draw.integers(0, sizes.vocabulary, shape).astype(np.int32)
    lengths = draw.integers(sizes.length // 2, sizes.length + 1, (sizes.batch, 1))
    places = np.arange(sizes.length)
    segments, present = (places >= lengths // 2).astype(np.int32), (places < lengths).astype(np.int32)
    hidden = np.stack([np.sort(draw.permutation(n)[: sizes.hidden_words]) for n in lengths[:, 0]]).astype(np.int32)
    wanted = draw.integers(0, sizes.vocabulary, hidden.shape).astype(np.int32)
    return words, segments * present, present, hidden, wanted, draw.integers(0, 2, sizes.batch).astype(np.int32)


def images(sizes: Any) -> tuple[Any, ...]:
    """Images, Float32 [batch, 3, side, side], and their classes, int32 [batch]."""
    draw = drawn()
    found = draw.standard_normal((sizes.batch, 3, sizes.side, sizes.side), np.float32)
    return found, draw.integers(0, sizes.classes, sizes.batch).astype(np.int32)


def questions(sizes: Any) -> tuple[Any, ...]:
    """Words [batch, length], whether they are words; the answer's words and those that follow [batch, answer], -100
    after its end; all int32."""
    draw = drawn()
    words = draw.integers(0, sizes.vocabulary, (sizes.batch, sizes.length)).astype(np.int32)
    lengths = draw.integers(sizes.length // 2, sizes.length + 1, (sizes.batch, 1))
    answer = draw.integers(0, sizes.vocabulary, (sizes.batch, sizes.answer + 1)).astype(np.int32)
    ends = draw.integers(sizes.answer // 2, sizes.answer + 1, (sizes.batch, 1))
    wanted = np.where(np.arange(sizes.answer) < ends, answer[:, 1:], -100).astype(np.int32)
    return words, (np.arange(sizes.length) < lengths).astype(np.int32), answer[:, :-1].copy(), wanted


def noisy_images(sizes: Any) -> tuple[Any, ...]:
    """Noisy images and their noise, Float32 [batch, colours, side, side]; waves of their times [batch, channels[0]]."""
    draw, shape = drawn(), (sizes.batch, sizes.colours, sizes.side, sizes.side)
    found, noise = (draw.standard_normal(shape, np.float32) for _ in range(2))
    half = sizes.channels[0] // 2
    waves = draw.integers(0, 1000, (sizes.batch, 1)) * 10000.0 ** (-np.arange(half) / half)
    return found, np.concatenate((np.sin(waves), np.cos(waves)), 1).astype(np.float32), noise


def clicks(sizes: Any) -> tuple[Any, ...]:
    """Float32 [batch, dense]; rows of tables, int32 [batch, tables], low ones more often; clicks, Float32 [batch]."""
    draw = drawn()
    numbers = draw.standard_normal((sizes.batch, sizes.dense), np.float32)
    rows = (sizes.rows * draw.random((sizes.batch, sizes.tables)) ** 3).astype(np.int32)
    return numbers, rows, draw.integers(0, 2, sizes.batch).astype(np.float32)


def edges(sizes: Any) -> tuple[Any, ...]:
    """Nodes, Float32 [nodes, width]; both ends of edges, few nodes having many, and their weights; nodes' classes."""
    draw = drawn()
    ends = (sizes.nodes * draw.random((2, sizes.edges)) ** 2).astype(np.int32)
    degrees = np.bincount(ends[1], minlength=sizes.nodes).astype(np.float32)
    nodes = draw.standard_normal((sizes.nodes, sizes.width), np.float32)
    return nodes, *ends, degrees[ends[1]] ** -0.5, draw.integers(0, sizes.classes, sizes.nodes).astype(np.int32)


def angles(sizes: Any) -> Any:
    """Angles by which places rotate pairs of a head's numbers, Float32 [length, size of a head]."""
    size = sizes.width // sizes.heads
    turned = np.outer(np.arange(sizes.length), 10000.0 ** (-np.arange(0, size, 2) / size))
    return np.concatenate((turned, turned), 1).astype(np.float32)


def buckets(length: int, sizes: Any, both_ways: bool) -> Any:
    """The bucket of every pair of places, int32 [length, length]: single distances near, ever wider ones further."""
    apart = np.arange(length)[None, :] - np.arange(length)[:, None]
    count = sizes.buckets // 2 if both_ways else sizes.buckets
    start = np.where(apart > 0, count, 0) if both_ways else 0
    far = np.abs(apart) if both_ways else np.maximum(-apart, 0)
    near = count // 2
    wide = np.log(np.maximum(far, 1) / near) / math.log(sizes.furthest / near) * (count - near)
    wide = np.minimum(near + wide.astype(np.int32), count - 1)
    return (start + np.where(far < near, far, wide)).astype(np.int32)


def dropped_paths(sizes: Any) -> list[float]:
    """The share of dropped paths of every block of ConvNeXt."""
    count = sum(sizes.depths)
    return [sizes.drop_path * i / (count - 1) for i in range(count)]


def capacity(sizes: Any) -> int:
    """Words for which an expert has room."""
    return math.ceil(sizes.room * sizes.chosen * sizes.batch * sizes.length / sizes.experts)


SMALL = {"layers": 4, "width": 256, "heads": 8, "vocabulary": 8000, "batch": 4, "length": 256}
BASE = {"layers": 12, "width": 768, "heads": 12}
NETWORKS = {
    # Radford et al. 2019: learnt positions, norms before attention and MLP, dropout, a tied table
    "gpt2": Network(
        BASE | {"vocabulary": 50304, "batch": 8, "length": 1024, "dropout": 0.1}, SMALL | {"dropout": 0.1},
        Optimizer("adamw", 3e-4, weight_decay=0.1), text,
    ),
    # Touvron et al. 2023, with grouped key heads: RMSNorm, rotated queries and keys, SwiGLU
    "llama": Network(
        {"layers": 12, "width": 1024, "heads": 16, "key_heads": 4, "hidden": 2816, "vocabulary": 32000, "batch": 8,
         "length": 1024},
        SMALL | {"key_heads": 2, "hidden": 704}, Optimizer("adamw", 3e-4, weight_decay=0.1), text,
    ),
    # Devlin et al. 2019, in pre-training: padding, gathered positions of hidden words, next sentence
    "bert": Network(
        BASE | {"vocabulary": 30522, "batch": 32, "length": 512, "hidden_words": 76, "dropout": 0.1},
        SMALL | {"hidden_words": 38, "dropout": 0.1}, Optimizer("adamw", 1e-4, weight_decay=0.01), masked_text,
    ),
    # Dosovitskiy et al. 2020, with dropout, dropped paths and smoothed labels
    "vit": Network(
        BASE | {"side": 224, "patch": 16, "classes": 1000, "batch": 64, "dropout": 0.1, "drop_path": 0.1},
        {"layers": 4, "width": 256, "heads": 8, "side": 64, "patch": 8, "classes": 1000, "batch": 16, "dropout": 0.1,
         "drop_path": 0.1},
        Optimizer("adamw", 3e-4, weight_decay=0.05), images,
    ),
    # Raffel et al. 2020: as many layers in the encoder as in the decoder, a learnt bias of how far places are apart, no
    # other scaling of scores, RMSNorm without biases, a tied table
    "t5": Network(
        BASE | {"hidden": 3072, "vocabulary": 32128, "batch": 16, "length": 512, "answer": 128, "buckets": 32,
                "furthest": 128, "dropout": 0.1},
        SMALL | {"layers": 2, "hidden": 1024, "answer": 64, "buckets": 32, "furthest": 128, "dropout": 0.1},
        Optimizer("adamw", 1e-4), questions,
    ),
    # Ho et al. 2020: GroupNorm, SiLU, self-attention in the middle, nearest upsampling, concatenated skips, a time in
    # every block; each level of channels is half as high and wide as the one before
    "unet": Network(
        {"channels": (128, 256, 512), "groups": 32, "heads": 8, "side": 64, "batch": 32, "colours": 3, "time": 512},
        {"channels": (32, 64, 128), "groups": 8, "heads": 4, "side": 32, "batch": 8, "colours": 3, "time": 128},
        Optimizer("adam", 2e-4), noisy_images,
    ),
    # Liu et al. 2022: depthwise 7 x 7, LayerNorm over channels, scales of layers, dropped paths
    "convnext": Network(
        {"depths": (3, 3, 9, 3), "widths": (96, 192, 384, 768), "side": 224, "classes": 1000, "batch": 64,
         "drop_path": 0.1},
        {"depths": (1, 1, 2, 1), "widths": (32, 64, 128, 256), "side": 64, "classes": 1000, "batch": 8,
         "drop_path": 0.1},
        Optimizer("adamw", 3e-4, weight_decay=0.05), images,
    ),
    # Shazeer et al. 2017, Fedus et al. 2021: two of eight experts for every word, as many words for each as it has room
    # for, a loss that evens out the choice of experts
    "experts": Network(
        {"layers": 8, "width": 1024, "heads": 16, "hidden": 2816, "experts": 8, "chosen": 2, "vocabulary": 32000,
         "batch": 8, "length": 1024, "room": 1.25},
        SMALL | {"hidden": 512, "experts": 8, "chosen": 2, "room": 1.25},
        Optimizer("adamw", 3e-4, weight_decay=0.1), text,
    ),
    # Naumov et al. 2019 (DLRM): tables of categories, a tower of dense numbers, matmuls of every two; `bottom`, `top`
    # are the widths between a tower's first and last
    "recommender": Network(
        {"dense": 13, "tables": 26, "rows": 40000, "width": 128, "bottom": (512, 256), "top": (1024, 1024, 512, 256),
         "batch": 8192},
        {"dense": 13, "tables": 8, "rows": 8000, "width": 64, "bottom": (256, 128), "top": (256, 256, 128),
         "batch": 1024},
        Optimizer("sgd", 0.1), clicks,
    ),
    # Zaremba et al. 2014: dropout between layers, a tied table, SGD with clipped gradients
    "lstm": Network(
        {"layers": 2, "width": 1500, "vocabulary": 33278, "batch": 64, "length": 35, "dropout": 0.65},
        {"layers": 2, "width": 256, "vocabulary": 8000, "batch": 32, "length": 32, "dropout": 0.65},
        Optimizer("sgd", 1.0, clip=0.25), text_by_place,
    ),
    # Kipf and Welling 2016: every node adds up the weighted rows of its neighbours
    "graph": Network(
        {"layers": 3, "width": 256, "nodes": 100000, "edges": 1000000, "classes": 40},
        {"layers": 3, "width": 64, "nodes": 5000, "edges": 40000, "classes": 10}, Optimizer("adamw", 1e-3), edges,
    ),
    # Feng et al. 2024 (minGRU): gates that read the input alone, so that all places are scanned at once, in logarithms
    "recurrence": Network(
        {"layers": 8, "width": 768, "vocabulary": 32000, "batch": 8, "length": 1024}, SMALL,
        Optimizer("adamw", 3e-4, weight_decay=0.1), text,
    ),
}  # fmt: skip
SMOOTHING = 0.1
"""Number of the labels of images."""
EVEN = 0.01
"""Weight of the loss that evens out the choice of experts."""
