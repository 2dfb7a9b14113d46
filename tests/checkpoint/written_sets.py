"""Sets of a checkpoint as a run writes them, and damage to their files."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mspc.checkpoint.files import TensorSlice, write_slices
from mspc.checkpoint.sets import find_sets, next_sequence, publish, rank_file, remove_set, set_name
from tests.graphs import FLOAT32, Layout, TensorType

WHOLE = np.arange(64, dtype=np.float32).reshape(8, 8)


def write_set(folder: Path, number: int, ranks: int = 2) -> Path:
    """Write and publish a set, and remove all older ones, as a run does."""
    place = folder / set_name("CKP", 1, number)
    place.mkdir(parents=True, exist_ok=True)
    sequence = next_sequence(folder, "CKP")
    cut = Layout.of((ranks,), [(0,), ()])
    for rank in range(ranks):
        part = WHOLE[cut.slices_for(rank, WHOLE.shape)] + number
        begin = (rank * 8 // ranks, 0)
        made = TensorSlice("w", TensorType(FLOAT32, (8, 8)), begin, part.shape, str(cut), lambda part=part: part)
        write_slices(place / rank_file(rank, sequence), [made], {"own": {"numbers": [rank, number]}})
    publish(place, sequence, ranks, {"total_step": number})
    for old in find_sets(folder, "CKP")[:-1]:
        remove_set(old.path)
    return place


def changed(path: Path, change: Callable[[bytearray], Any]) -> None:
    data = bytearray(path.read_bytes())
    kept = change(data)
    path.write_bytes(kept if isinstance(kept, bytes | bytearray) else data)


def unsealed(data: bytes) -> bytes:
    """A file of safetensors, or an index, as mspc wrote it before these had checksums of themselves."""
    found = re.sub(rb',\s*"mspc_checksum":"[^"]*"|,"header":"[^"]*"|, "header": "[^"]*"', b"", data)
    if data.startswith(b"{"):
        return found
    length = int.from_bytes(data[:8], "little") + len(found) - len(data)
    return length.to_bytes(8, "little") + found[8:]


def flip(data: bytearray) -> None:
    data[-1] ^= 1
