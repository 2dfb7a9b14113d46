"""The ResNet-50 of compare.py: its sizes, and the weights and images that all its programs start from.

Images of 224 x 224, 1000 classes, cross entropy, SGD with momentum; float32 master weights, computed in float32 (TF32)
or in bfloat16 with statistics and normalisation in float32. He, Zhang, Ren and Sun, arXiv 1512.03385, with the stride
of a block in its 3 x 3 convolution, as torchvision has it. Needs NumPy alone, since each program has other libraries.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
from transformer import measured

__all__ = ["measured"]

BLOCKS = (3, 4, 6, 3)
RATE, MOMENTUM, DECAY = 0.001, 0.9, 0.9
"""Learning rate; of the optimizer; of moving statistics, the old one's share."""


def parsed() -> argparse.Namespace:
    """The options of a program's command line; `batch` is that of one GPU."""
    parser = argparse.ArgumentParser()
    for name, value in (("batch", 64), ("length", 224), ("classes", 1000), ("width", 64), ("data", 1), ("tensor", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--precision", choices=("tf32", "bf16"), default="bf16")
    parser.add_argument("--steps", type=int, default=20, help="steps of one measurement")
    parser.add_argument("--repeats", type=int, default=5, help="measurements")
    parser.add_argument("--folder", help="CIFAR-10's binary files, which mspc then reads its images from")
    parser.add_argument("--workers", type=int, default=8, help="of the input")
    return parser.parse_args()


def convolutions(width: int) -> dict[str, tuple[int, int, int]]:
    """(out channels, in channels, length of the window) of every convolution, by torchvision's names."""
    found = {"conv1": (width, 3, 7)}
    channels = width
    for stage, count in enumerate(BLOCKS):
        narrow, wide = width << stage, (width << stage) * 4
        for block in range(count):
            name = f"layer{stage + 1}.{block}"
            found |= {f"{name}.conv1": (narrow, channels, 1), f"{name}.conv2": (narrow, narrow, 3),
                      f"{name}.conv3": (wide, narrow, 1)}  # fmt: skip
            if not block:
                found[f"{name}.downsample.0"] = (wide, channels, 1)
            channels = wide
    return found


def norm_of(name: str) -> str:
    """The name of the normalisation behind a convolution."""
    return name.replace("downsample.0", "downsample.1") if "downsample" in name else name.replace("conv", "bn")


def weights(options: argparse.Namespace) -> dict[str, Any]:
    """Float32 weights: of convolutions [out, in, height, width], "fc.weight" [classes, channels], "fc.bias". Those of
    normalisations are ones and zeros."""
    generator = np.random.default_rng(1)
    found: dict[str, Any] = {}
    for name, (out, channels, length) in convolutions(options.width).items():
        deviation = math.sqrt(2 / (out * length * length))
        found[name] = (generator.standard_normal((out, channels, length, length)) * deviation).astype(np.float32)
    bound = 1 / math.sqrt(32 * options.width)
    found["fc.weight"] = generator.uniform(-bound, bound, (options.classes, 32 * options.width)).astype(np.float32)
    found["fc.bias"] = np.zeros(options.classes, np.float32)
    return found


def batch(options: argparse.Namespace) -> tuple[Any, Any]:
    """Float32 images [n, 3, length, length] of all GPUs, and Int32 classes [n]."""
    generator = np.random.default_rng(2)
    count = options.batch * options.data
    images = generator.standard_normal((count, 3, options.length, options.length)).astype(np.float32)
    return images, generator.integers(0, options.classes, count).astype(np.int32)
