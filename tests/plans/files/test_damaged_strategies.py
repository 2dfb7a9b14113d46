"""Strategy files and files of groups with bytes that are not those that were written: an error each, or no matter."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.plans.files.strategy_file import (
    ENTRY,
    ParameterCut,
    StrategyFile,
    read_restore_ranks,
    read_strategies,
    write_groups,
    write_strategies,
)

TIMES = 1500
GIVEN = StrategyFile(
    {"MatMul_w": ((2, 4), (4, 1)), "Add_b": ((1, 3), (3,)), "Default/network-Net/ReLU-op0": ((8, 1),)},
    {f"layer{i}.w": ParameterCut((2, 2, 2), ((2, 0), (1,)), i, 2 - i) for i in range(3)},
)
GROUPS = {"4-123": (0, 1, 2, 3), "2-77": (0, 4)}


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """The bytes with some of them, side by side, others; with some lost; or truncated."""
    kind, at, size = rng.randrange(4), rng.randrange(len(whole)), rng.randrange(1, 9)
    if kind == 0:
        return whole[:at]
    if kind == 1:
        return whole[:at] + whole[at + size :]
    if kind == 2:
        return whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :]
    return whole[:at] + rng.randbytes(size) + whole[at + size :]


def _write(path: Path) -> None:
    write_strategies(path, GIVEN)


@pytest.mark.parametrize(
    ("name", "write", "read"),
    [
        ("s.ckpt", _write, read_strategies), ("s.json", _write, read_strategies),
        ("g.pb", lambda path: write_groups(path, GROUPS, (0, 4)), read_restore_ranks),
    ],
    ids=["message", "JSON", "groups"],
)  # fmt: skip
def test_damage_is_an_error_or_no_matter(
    name: str, write: Callable[[Path], None], read: Callable[[Path], Any], tmp_path: Path
) -> None:
    path = tmp_path / name
    write(path)
    whole, given, rng = path.read_bytes(), read(path), random.Random(26)
    noticed = 0
    for _ in range(TIMES):
        data = damaged(whole, rng)
        path.write_bytes(data)
        try:
            found = read(path)
        except MspcError as error:
            noticed += str(path) in error.message
            continue
        assert found == given, data
    assert noticed > TIMES * 0.9


def test_a_message_that_ends_between_two_entries_is_noticed(tmp_path: Path) -> None:
    """It is a complete one of fewer entries, for those who look at nothing else."""
    path = tmp_path / "s.ckpt"
    write_strategies(path, GIVEN)
    whole = path.read_bytes()
    shorter = whole[: whole.rindex(b"\n\x08layer2.w") - 2]
    path.write_bytes(shorter)
    with pytest.raises(MspcError, match="is no strategy file: it is damaged: its bytes are not those"):
        read_strategies(path)
    path.write_bytes(shorter[7:])  # as MindSpore would have it, without a checksum
    assert list(read_strategies(path).parameters) == ["layer0.w", "layer1.w"]


def test_an_edited_file_is_taken_without_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    write_strategies(path, GIVEN)
    edited = path.read_text().replace("MatMul_w", "MatMul_v")
    path.write_text(edited)
    with pytest.raises(MspcError, match=f"it is damaged; if it was edited by hand, take the entry '{ENTRY}' out"):
        read_strategies(path)
    path.write_text("".join(line for line in edited.splitlines(keepends=True) if ENTRY not in line))
    assert "MatMul_v" in read_strategies(path).operators
    write_strategies(path, GIVEN)
    path.write_text(path.read_text().replace("\n", " "))
    assert read_strategies(path) == GIVEN
