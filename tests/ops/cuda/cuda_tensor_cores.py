"""The emulated device with tensor cores that may round."""

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.ops.cuda.cuda_emulator import Emulator
from tests.ops.cuda.cuda_stand_ins import GUARD, INSTRUCTIONS, without_tensor_cores

SHARED = 227 << 10
"""Bytes of shared memory of a multiprocessor, for all of its blocks; each takes 1 KB beside its own."""


class TensorCores(Emulator):
    """The emulated device with tensor cores.

    rounds: operands of products lose the bits that TF32 has not, else products are those of Float32. eager: a copy to
    shared memory is made at once, which shows a buffer that is overwritten too early; else when it is waited for, which
    shows one that is read too early.
    """

    tf32 = True

    def __init__(self, folder: Path, rounds: bool = False, eager: bool = False) -> None:
        super().__init__(folder)
        self.rounds, self.eager = rounds, eager
        self.launched: list[str] = []

    def stood_in(self, source: str) -> str:
        return without_tensor_cores(source, self.rounds)

    def attention(self, *_operands: Any, **_settings: Any) -> None:
        """No library has a kernel here."""

    def kernel(self, source: str, name: str) -> Any:
        if INSTRUCTIONS not in source:
            return super().kernel(source, name)
        nbytes, blocks = (int(re.findall(rf"#define {name} (\d+)", source)[0]) for name in ("SHARED", "BLOCKS"))
        call = super().kernel(source, name)
        number = self.sources[self.stood_in(source), name]

        def checked(grid: Any, block: int, arguments: Sequence[Any], shared: int = 0) -> None:
            assert shared == nbytes <= SHARED // blocks - 1024
            library, place = self.library(number)
            symbol = f"_ZN{len(str(place)) + 1}k{place}6memoryE"  # k<place>::memory
            size = nbytes // 4
            memory = np.ctypeslib.as_array((ctypes.c_uint * (size + GUARD)).in_dll(library, symbol))
            memory[:] = 0xFFFFFFFF  # NaN
            call(grid, block, arguments, shared)
            assert (memory[size:] == 0xFFFFFFFF).all()
            self.launched.append(name)

        return checked
