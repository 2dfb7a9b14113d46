"""Any damage to any file of a set is noticed, or does no harm: what is read is what was written."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc.checkpoint.opening import open_checkpoint, own_state
from mspc.checkpoint.sets import INDEX, rank_file
from mspc.commands.checkpoints import check_checkpoint, merge_checkpoint
from mspc.ir.diagnostics import MspcError
from tests.checkpoint.written_sets import changed, unsealed, write_set
from tests.damage import damage

FILES = (INDEX, rank_file(0, 1), rank_file(1, 1))


def read(place: Path) -> Any:
    """What a run that goes on takes of a set, once everything was checked. Raises MspcError."""
    found = open_checkpoint(place)
    wrong = next((text for _, text in found.verified() if text), "")
    if wrong:
        raise MspcError(wrong)
    tensors = {name: (stored.layout, found.read(name).tobytes()) for name, stored in found.tensors.items()}
    return tensors, found.state, found.ranks, found.sequence, [own_state(found, rank) for rank in range(2)]


def damages(place: Path, chance: random.Random) -> Iterator[tuple[str, str]]:
    """(file, what was done to it) of one damage after another; the set is mended before the next."""
    for name in FILES:
        data = (place / name).read_bytes()
        for at in range(len(data)):
            (place / name).write_bytes(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :])
            yield name, f"byte {at} flipped"
        for size in {0, 1, 7, 8, 9, len(data) - 1, *(chance.randrange(len(data)) for _ in range(20))}:
            (place / name).write_bytes(data[:size])
            yield name, f"cut at {size}"
        for size in (4, 16, 64, 1000):
            for at in (0, 8, *(chance.randrange(len(data)) for _ in range(8))):
                (place / name).write_bytes(data[:at] + chance.randbytes(size) + data[at + size :])
                yield name, f"{size} random bytes at {at}"
                (place / name).write_bytes(data[:at] + data[at + size :] + b"\0" * len(data[at : at + size]))
                yield name, f"{size} bytes from {at} lost, zeros at its end"
        for number in range(80):
            (place / name).write_bytes(data)
            damage(chance, place / name)
            yield name, f"changed in the way of its kind, {number}"
        for other in FILES:
            shutil.copy(place / other, place / "other")
            shutil.copy(place / "other", place / name)
            (place / "other").unlink()
            yield name, f"replaced by {other}"
        (place / name).write_bytes(data)


def test_any_damage_is_noticed_or_does_no_harm(tmp_path: Path) -> None:
    """Every byte of the index, of headers and of slices; truncations, losses, files of another rank or kind."""
    place, chance = write_set(tmp_path, 1), random.Random(3)
    whole, noticed, tried = read(place), 0, 0
    for name, what in damages(place, chance):
        tried += 1
        try:
            found = read(place)
        except MspcError:
            noticed += 1
            continue
        assert found == whole, f"{name}: {what} is not noticed"
    assert read(place) == whole
    assert noticed > 0.9 * tried > 1500


def test_headers_of_all_ranks_are_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = write_set(tmp_path, 1)
    assert check_checkpoint(place, None, None) == 0
    assert capsys.readouterr().out == "complete: 1 tensors, 256 B\n"
    for rank in range(2):
        path = place / rank_file(rank, 1)
        length = int.from_bytes(path.read_bytes()[:8], "little")
        changed(path, lambda data, size=length: bytes(data[:8]) + random.Random(0).randbytes(size) + data[8 + size :])
    assert check_checkpoint(place, None, None) == 1
    said = capsys.readouterr().out
    for rank in range(2):
        name = rank_file(rank, 1)
        assert f"damaged: {name}: {place}/{name} is no file of a checkpoint" in said
        with pytest.raises(MspcError, match="is no file of a checkpoint: its header cannot be read"):
            own_state(open_checkpoint(place), rank)
    with pytest.raises(MspcError, match=r"load_checkpoint: .* is no file of a checkpoint: its header cannot be read"):
        ms.load_checkpoint(str(place), crc_check=True)


def test_the_header_of_another_set_is_noticed(tmp_path: Path) -> None:
    """It is complete, its slices are equal, and it has another state of the rank."""
    place, other = write_set(tmp_path / "a", 1), write_set(tmp_path / "b", 1)
    path = other / rank_file(1, 1)
    changed(path, lambda data: unsealed(bytes(data)).replace(b"[1,1]", b"[1,2]"))
    shutil.copy(path, place / path.name)
    with pytest.raises(MspcError, match=r"has .* bytes, and"):
        read(place)
    padded = path.read_bytes()
    length = int.from_bytes(padded[:8], "little") + len((other / rank_file(0, 1)).read_bytes()) - len(padded)
    cut = 8 + int.from_bytes(padded[:8], "little")
    (place / path.name).write_bytes(
        length.to_bytes(8, "little") + padded[8:cut].ljust(length) + padded[cut:]
    )  # as large as before, without a checksum of its own
    with pytest.raises(MspcError, match="the checksum of its header is none, and the index has"):
        read(place)


def test_sets_without_checksums_of_headers_are_read_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As mspc wrote them once."""
    place = write_set(tmp_path, 1)
    whole = read(place)
    for rank in range(2):
        changed(place / rank_file(rank, 1), lambda data: unsealed(bytes(data)))
    content = json.loads(unsealed((place / INDEX).read_bytes()))
    for rank, entry in enumerate(content["files"]):
        entry["bytes"] = (place / rank_file(rank, 1)).stat().st_size
        begin = entry["bytes"] - 128
        content["tensors"]["w"]["slices"][rank]["offset"] = begin
    (place / INDEX).write_text(json.dumps(content))
    assert read(place) == whole
    assert check_checkpoint(place, None, None) == 0
    said = capsys.readouterr().out
    assert said.endswith("256 B; its headers have no checksums, or none that can be compared here\n")
    assert np.array_equal(ms.load_checkpoint(str(place))["w"].asnumpy(), open_checkpoint(place).read("w"))
    assert "it was written when headers had no checksums" in capsys.readouterr().err


def test_a_merged_file_keeps_the_first_ranks_numbers(tmp_path: Path) -> None:
    place = write_set(tmp_path, 1)
    merge_checkpoint(place, tmp_path / "whole.safetensors", None, None)
    found = open_checkpoint(tmp_path / "whole.safetensors")
    assert own_state(found, 0) == own_state(found, 1) == {"numbers": [0, 1]}
    assert found.state == {"total_step": 1}
