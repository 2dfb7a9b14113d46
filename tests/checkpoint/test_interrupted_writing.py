"""Kills and full disks while a set is written: the last set stays."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from mspc.checkpoint.opening import open_checkpoint
from mspc.checkpoint.sets import find_sets
from mspc.ir.diagnostics import MspcError
from tests.checkpoint.trained import Trained, trained  # noqa: F401  # a fixture
from tests.checkpoint.written_sets import WHOLE, write_set
from tests.kills import in_a_process


def test_killed_at_any_call_a_set_is_whole(tmp_path: Path) -> None:
    """The process is killed before each of its calls that change files: the newest set is the old or the new one, with
    all of its bytes, and the next run writes on and leaves nothing behind."""
    folder = tmp_path / "sets"
    seen: list[int] = []

    def newest() -> int:
        found = open_checkpoint(find_sets(folder, "CKP")[-1].path)
        number = int(found.state["total_step"])
        assert np.array_equal(found.read("w"), WHOLE + number)
        return number

    def begin() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        write_set(folder, 1)

    begin()
    calls = in_a_process(lambda: write_set(folder, 2))
    for call in sorted({*range(1, calls + 1, 2), calls}):
        begin()
        in_a_process(lambda: write_set(folder, 2), call)
        seen.append(newest())
        write_set(folder, 2)
        assert newest() == 2
        assert [p.name for p in folder.glob("CKP-1_2/*") if p.name.startswith(".")] == []
    assert set(seen) == {1, 2}
    assert seen == sorted(seen), "once the new set is there it stays"


def full(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """From so many files on the disk is full."""
    ordinary, count = os.fsync, [0]

    def fsync(descriptor: int) -> None:
        count[0] += 1
        if count[0] > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        ordinary(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("style", ["", ", async_save=True"])
def test_a_full_disk_ends_training(style: str, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    full(monkeypatch, 18)
    with pytest.raises(MspcError, match="No space left on device"):
        trained.run(2, 1, config=f"dict(integrated_save=False{style})")
    monkeypatch.undo()
    monkeypatch.chdir(trained.folder)
    kept = find_sets(Path("sets"), "CKP")
    assert kept
    assert [text for entry in kept for _, text in open_checkpoint(entry.path).verified() if text] == []
    assert {p.name for p in Path("sets").iterdir()} == {entry.path.name for entry in kept}
    assert trained.run(2, 1)


def test_on_a_full_disk_training_goes_on_where_that_is_asked(
    trained: Trained,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full(monkeypatch, 18)
    losses = trained.run(2, 1, config='dict(integrated_save=False, on_failure="continue")')
    assert len(losses) == 8
    assert "No space left on device; training continues" in trained.out.err
    assert [entry.path.name for entry in find_sets(Path("sets"), "CKP")] == ["CKP-1_1", "CKP-1_2"]
