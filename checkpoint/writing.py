"""This module writes one rank's file of a set: its slices as safetensors, and in the header the place and the checksum
of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mspc.checkpoint.checksum import AT_ONCE, Running, empty, kind_here, shown, started
from mspc.checkpoint.publishing import write_synced
from mspc.checkpoint.seal import SEAL, placeholder, sealed
from mspc.ir.files.tensors import StoredTensor, header_of, in_order, write_array
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType

PLACES = "mspc"
"""The entry of a header that says where the slices belong, as JSON."""


@dataclass(frozen=True)
class TensorSlice:
    """What a rank writes of a tensor.

    global_type: of the global tensor. begin: where the slice begins in it. shape: of the slice. layout: how the
    tensor is sharded, as text. make: gives the slice as an array.
    """

    name: str
    global_type: TensorType
    begin: tuple[int, ...]
    shape: tuple[int, ...]
    layout: str
    make: Callable[[], Any]


class _Summed:
    """Writes to a file, and has a checksum of all that was written."""

    def __init__(self, file: BinaryIO, running: Running) -> None:
        self._file = file
        self._running = running

    def write(self, data: Any, /) -> None:
        self._running.update(data)
        self._file.write(data)


def write_slices(path: Path, slices: Sequence[TensorSlice], about: dict[str, Any] | None = None) -> None:
    """Write a file of slices, one after another, so that no more than one is made at a time.

    about: further facts, which the header stores beside the places.

    Raises:
        MspcError: it cannot be written.
    """
    write_synced(path, lambda file: write_slices_to(file, slices, about))


def write_slices_to(file: BinaryIO, slices: Sequence[TensorSlice], about: dict[str, Any] | None = None) -> None:
    """The same to a file that is open for writing and can go back to its beginning."""
    kind = kind_here()
    by_name = {s.name: s for s in slices}
    stored = in_order([StoredTensor(s.name, TensorType(s.global_type.dtype, s.shape), s.make) for s in slices])
    sums = {s.name: empty(kind) for s in slices}
    if not file.seekable():  # a pipe: its beginning must be known before
        for tensor in stored:
            sums[tensor.name] = _checksum(kind, tensor)
    file.write(sealed(header_of(stored, _about(by_name, sums, about))))
    for tensor in stored:
        running = started(kind)
        assert running is not None
        array = np.asarray(tensor.make(), tensor.type.dtype.numpy).reshape(tensor.type.shape)
        write_array(_Summed(file, running), array, AT_ONCE)
        sums[tensor.name] = shown(kind, running)
        del array
    if file.seekable():
        file.seek(0)
        file.write(sealed(header_of(stored, _about(by_name, sums, about))))
        file.seek(0, 2)


def _checksum(kind: str, tensor: StoredTensor) -> str:
    running = started(kind)
    assert running is not None
    running.update(np.ascontiguousarray(np.asarray(tensor.make(), tensor.type.dtype.numpy)).reshape(-1).view(np.uint8))
    return shown(kind, running)


def _about(slices: dict[str, TensorSlice], sums: dict[str, str], about: dict[str, Any] | None) -> dict[str, str]:
    places = {
        name: {"shape": list(s.global_type.shape), "begin": list(s.begin), "layout": s.layout, "checksum": sums[name]}
        for name, s in sorted(slices.items())
    }
    said = json.dumps({"places": places, **(about or {})}, separators=(",", ":"))
    return {"format": "ms", PLACES: said, SEAL: placeholder()}
