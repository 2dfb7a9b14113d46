"""The fuzzer itself: what it looks for it finds, and goes on behind it."""

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from mspc.ir.diagnostics import MspcError
from tests import fuzz


def test_every_kind_of_find_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"
    inside = tmp_path / "cases"
    inside.mkdir()

    def case(corpus: Any, rng: random.Random, folder: Path) -> None:
        kinds = {
            1: lambda: 1 / 0,
            2: lambda: os._exit(3),
            3: lambda: time.sleep(60),
            4: lambda: outside.write_text("x"),
            5: lambda: bytearray(1 << 40),
            6: lambda: (folder / "mine").write_text("x"),
            7: _refuse,
            8: _hide,
        }
        kinds.get(int(folder.joinpath("number").read_text()), lambda: None)()

    def numbered(corpus: Any, number: int, folder: Path) -> str:
        (folder / "number").write_text(str(number))
        return ordinary(corpus, number, folder)

    ordinary = fuzz.run_case
    monkeypatch.setattr(fuzz, "run_case", numbered)
    monkeypatch.setattr(fuzz, "_opt_case", case)
    monkeypatch.setattr(fuzz, "_run_case", case)
    monkeypatch.setattr(fuzz, "MEMORY", 1 << 36)
    monkeypatch.setattr(fuzz, "LOADED", 2)
    tally = fuzz.fuzz(fuzz.Corpus([], []), 0, 10, inside, limit=1.0)
    assert tally.ends == {"well": 3, "refused": 1}
    assert {what.partition(":")[0]: numbers for what, numbers in tally.finds.items()} == {
        "ZeroDivisionError": [1],
        "the worker died": [2],
        "longer than 1 s": [3],
        f"touches open '{outside}'": [4],
        "MemoryError": [5],
        "KeyError": [8],
    }


def _refuse() -> None:
    raise MspcError("no")


def _hide() -> None:
    """As the guard of `mspc opt`, which must not hide a pass's failure from the fuzzer."""
    try:
        raise KeyError(7)
    except KeyError as error:
        raise MspcError("cannot work on this graph") from error
