"""The mask of a dropout as an operator, for kernels that draw it on demand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import BOOL, TensorType
from mspc.ops.cuda.moves import put_values
from mspc.ops.cuda.text import seed_name
from mspc.ops.device import Array, Device, Launch
from mspc.ops.fused.body import RankOp
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op
from mspc.ops.random.words import before_step, device_keeps, device_key, keep_mask, key_of, number_of_run


class DropoutMask(RankOp):
    """The mask of a Dropout in a rank's own graph: a Bool of shape `sizes`, true for stored elements. It has no
    operands, so that readers may draw it again instead of reading it.

    shape, begin, local: of the global draws, see `Dropout`. steps: the distance in draws of neighbours along every
    dimension of `sizes`, if these are in another order than the draws.
    """

    keep_prob: float = 0.5
    Seed0: int = 0
    Seed1: int = 0
    sizes: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()
    local: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    omitted = ("steps",)
    bprop = NotDifferentiable("it is drawn, after all gradients are taken")

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on the place of the slice
        key = f"mixed({seed_name(before_step(self.Seed0, self.Seed1))} + {{s}})"
        return self._device_keeps("{i}", key)

    def made_in(self, order: MemoryOrder, types: Sequence[TensorType]) -> Reordered | None:
        made = replace(self, sizes=order.stored, steps=order.steps)
        return None if self.steps else Reordered(made, (), (order,))

    def as_broadcast(self, *types: TensorType) -> tuple[Op, tuple[tuple[int, ...], ...]]:
        return self, ()

    def infer(self, *types: TensorType) -> TensorType:
        if types:
            raise MspcError(f"{self.name} takes no tensors, not {len(types)}", code="E0301")
        if math.prod(self.local) != math.prod(self.sizes):
            raise MspcError(f"{self.name}: a mask of shape {self.sizes} is not drawn for a slice of {self.local}")
        if self.steps and len(self.steps) != len(self.sizes):
            raise MspcError(f"{self.name}: steps {self.steps} are not one for each dimension of {self.sizes}")
        return TensorType(BOOL, self.sizes)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        key = key_of(self.Seed0, self.Seed1, number_of_run(be))
        drawn = keep_mask(be.xp, key, self.shape, self.begin, self.local, self.keep_prob)
        if not self.steps:
            return drawn.reshape(self.sizes)
        places = be.xp.indices(self.sizes).reshape(len(self.sizes), -1)
        number = sum((step * each for step, each in zip(self.steps, places, strict=True)), start=0 * places[0])
        return drawn.reshape(-1)[number].reshape(self.sizes)

    @property
    def draws(self) -> bool:
        return True

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        text = self._device_keeps("at", "key")
        operands = [("step", device.step)]
        return put_values(device, "dropout_mask", out, text, operands, device_key(self.Seed0, self.Seed1))

    def _device_keeps(self, at: str, key: str) -> str:
        terms = [
            f"{at} / {math.prod(self.sizes[d + 1 :])} % {n} * {step}"
            for d, (n, step) in enumerate(zip(self.sizes, self.steps, strict=False))
            if n != 1
        ]
        draw = f"({' + '.join(terms)})" if terms else at
        return device_keeps(self.shape, self.begin, self.local, self.keep_prob, draw, key)
