"""Random training steps and the ways in which they are parallel. `drawn_steps.py` builds them with PyTorch."""

import math
import random
from dataclasses import dataclass

AXES = {
    "ddp": (("data",),),
    "fsdp": (("data",), ("data", "tensor")),
    "hsdp": (("copies", "data"), ("copies", "data", "tensor")),
    "tensor": (("tensor",), ("data", "tensor")),
    "context": (("context",), ("data", "context")),
    "experts": (("data",),),
}
"""The meshes of each way. "context" divides sequences; each expert is on its own ranks of "data"."""
BLOCKS = ("feed", "gated", "attention", "norm")


@dataclass(frozen=True)
class Plan:
    """A network of some blocks and its mesh. sequence: activations between tensor parallel blocks are divided, too.
    micro: number of micro-batches whose gradients are accumulated. words: inputs are words, and the loss a cross
    entropy. frozen: the first layer is not trained."""

    way: str
    mesh: tuple[tuple[str, int], ...]
    blocks: tuple[str, ...]
    optimizer: str
    sequence: bool = False
    micro: int = 1
    clips: bool = False
    words: bool = False
    bias: bool = False
    frozen: bool = False

    @property
    def ranks(self) -> int:
        return math.prod(size for _, size in self.mesh)

    def size(self, axis: str) -> int:
        return dict(self.mesh).get(axis, 1)


def drawn(seed: int) -> Plan:
    """The plan of a seed. Ways follow each other, so that some seeds in a row have all of them."""
    generator = random.Random(seed)
    way = list(AXES)[seed % len(AXES)]
    axes = generator.choice(AXES[way])
    mesh = tuple((axis, 4 if len(axes) == 1 and generator.random() < 0.5 else 2) for axis in axes)
    blocks = tuple(generator.choice(BLOCKS) for _ in range(generator.randint(1, 3)))
    return Plan(
        way, mesh, (*blocks, "experts") if way == "experts" else blocks,
        optimizer=generator.choice(("SGD", "momentum", "Adam", "AdamW")),
        sequence="tensor" in axes and generator.random() < 0.5,
        micro=2 if way in ("ddp", "fsdp", "hsdp") and generator.random() < 0.3 else 1,
        clips=way != "experts" and generator.random() < 0.4,
        words=generator.random() < 0.5, bias=generator.random() < 0.5, frozen=generator.random() < 0.15,
    )  # fmt: skip
