"""An emulated GPU for many networks in one process: a kernel that an earlier one had is not compiled again."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from tests.gpu.emulated import EmulatedGpu
from tests.ops.cuda.cuda_tensor_cores import TensorCores

Place = tuple[Any, int]
"""Where a kernel is: its library, and its number there."""


class SharingGpu(TensorCores, EmulatedGpu):
    """The emulated GPU with tensor cores. It takes kernels from `known`, by their text and name, and compiles those
    together that are not there when it needs the first of them."""

    def __init__(self, folder: Path, known: dict[tuple[str, str], Place]) -> None:
        super().__init__(folder)
        self.known = known

    def fastest(self, kind: tuple[Any, ...], launches: Any) -> Any:
        """Any of them, the same one at every run: on a GPU it may be any, too."""
        return launches[zlib.crc32(repr(kind).encode()) % len(launches)]

    def library(self, number: int) -> Place:
        found = self.known.get(list(self.sources)[number])
        if found is not None:
            return found
        missing = {key: place for key, place in self.sources.items() if key not in self.known}
        library = self.loaded(missing)
        self.known.update({key: (library, place) for key, place in missing.items()})
        return library, number
