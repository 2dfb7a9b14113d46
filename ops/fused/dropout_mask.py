"""The mask of a dropout by itself, for kernels that draw it where they need it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import BOOL, TensorType
from mspc.ops.cuda.move import put_values
from mspc.ops.cuda.random import RANDOM, seed_name
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op
from mspc.ops.random.draws import before_step, bound_of, device_key, device_word, key_of, random_words


class DropoutMask(Op):
    """The mask of a Dropout as a rank's own graph has it: a Bool of shape `sizes`, true where an element is stored.

    Without operands, so that whoever needs the mask may draw it again instead of reading it. shape, begin, local: of
    the global draws, see `Dropout`.
    """

    keep_prob: float = 0.5
    Seed0: int = 0
    Seed1: int = 0
    sizes: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()
    local: tuple[int, ...] = ()
    bprop = NotDifferentiable("it is drawn, after all gradients are taken")

    @property
    def bound(self) -> int:
        """The largest of 64 random bits with which an element is stored."""
        return bound_of(self.keep_prob)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on the place of the slice
        word = device_word(self.shape, self.begin, self.local, "{i}")
        key = f"mixed({seed_name(before_step(self.Seed0, self.Seed1))} + {{s}})"
        return f"{word.replace('key', key)} <= {self.bound}ull"

    def as_broadcast(self, *types: TensorType) -> tuple[Op, tuple[tuple[int, ...], ...]]:
        return self, ()

    def rule(self, *types: TensorType) -> str:
        raise MspcError(f"{self.name} is of a rank's own graph: it has no sharding rule")

    def infer(self, *types: TensorType) -> TensorType:
        if types:
            raise MspcError(f"{self.name} takes no tensors, not {len(types)}")
        if math.prod(self.local) != math.prod(self.sizes):
            raise MspcError(f"{self.name}: a mask of shape {self.sizes} is not drawn for a slice of {self.local}")
        return TensorType(BOOL, self.sizes)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        key = key_of(self.Seed0, self.Seed1, getattr(be, "step", 0))
        return (random_words(be.xp, key, self.shape, self.begin, self.local) <= be.xp.uint64(self.bound)).reshape(
            self.sizes
        )

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        text = f"{device_word(self.shape, self.begin, self.local)} <= {self.bound}ull"
        operands = [("step", device.step)]
        return put_values(device, "dropout_mask", out, text, operands, device_key(self.Seed0, self.Seed1), RANDOM)
