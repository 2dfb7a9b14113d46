"""Damaged folders under `mspc view`, `mspc diff` and `mspc check`: one message and status 2, or a result; nothing half
written."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.budget.limits import budget_of
from mspc.commands.check import Limits, check_target
from mspc.commands.compile import CompileOptions
from mspc.commands.diff import diff_targets
from mspc.commands.report.verbosity import Loudness
from mspc.commands.view.page import ViewOptions, view_target
from mspc.ir.diagnostics import MspcError
from tests.commands.view.reading import compiled
from tests.commands.view.test_view_mistakes import NETWORK

TRIES = 25
LONGEST = 2500
"""Characters of a message."""
VALUES = (None, -1, 0, "x", "", [], {}, 10**30, True, [1], {"a": 1}, "../x", 1e308)
PIECES = (b"((((", b'"', b"}", b"%", b"\x00", b"\xff", b"(" * 3000, b"-1", b"99999999999999999999")


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "net.py").write_text(NETWORK)
    return compiled(folder / "net.py", folder / "graphs", level=0)


def other_value(value: Any, draws: random.Random) -> Any:
    """A value of JSON with something else in one place."""
    if not isinstance(value, dict | list) or not value or draws.random() < 0.2:
        return draws.choice(VALUES)
    place = draws.choice(list(value)) if isinstance(value, dict) else draws.randrange(len(value))
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    if draws.random() < 0.2:
        del copy[place]
    else:
        copy[place] = other_value(value[place], draws)
    return copy


def damage(folder: Path, draws: random.Random) -> None:
    """Change one file of a folder."""
    path = draws.choice(sorted(one for one in folder.rglob("*") if one.suffix in (".ir", ".json")))
    content, at = path.read_bytes(), draws.randrange(path.stat().st_size)
    if path.suffix == ".json" and draws.random() < 0.7:
        path.write_text(json.dumps(other_value(json.loads(content), draws)))
        return
    piece = draws.choice(PIECES)
    ways = (content[:at], content[:at] + piece + content[at:], content[:at] + piece + content[at + 9 :], b"")
    path.write_bytes(draws.choice(ways))


def view(target: str) -> None:
    view_target(target, ViewOptions(CompileOptions(loudness=Loudness(quiet=True)), out=Path("page.html")))


def diff(target: str) -> None:
    diff_targets("whole", target, CompileOptions(), Path("table.json"), Path("page.html"))


def check(target: str) -> None:
    limits = Limits(budget_of({"max-bytes": "1KB"}, "--"))
    check_target(target, CompileOptions(), limits, Path("table.json"))


@pytest.mark.parametrize("command", [view, diff, check])
def test_damaged_folders(
    command: Callable[[str], None], complete: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(complete, "whole")
    refused = 0
    for seed in range(TRIES):
        shutil.copytree(complete, "damaged")
        damage(Path("damaged"), random.Random(f"{command.__name__} {seed}"))
        error: MspcError | None = None
        try:
            command("damaged")
        except MspcError as raised:
            error = raised
        if error is not None:
            refused += 1
            assert error.exit_status == 2, seed
            assert len(str(error)) < LONGEST, seed
            assert not [*Path().glob("page*"), *Path().glob("table*")], seed
        shutil.rmtree("damaged")
        for name in ("page.html", "table.json"):
            Path(name).unlink(missing_ok=True)
    assert TRIES // 4 < refused
