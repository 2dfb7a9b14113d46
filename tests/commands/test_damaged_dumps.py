"""Damaged folders under `mspc view`, `mspc diff` and `mspc check`: one message and status 2, or a result; nothing half
written."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mspc.commands.budget.limits import budget_of
from mspc.commands.check import Limits, check_target
from mspc.commands.diff import diff_targets
from mspc.commands.view.page import ViewOptions, view_target
from mspc.ir.diagnostics import MspcError
from tests.commands.view.reading import compiled
from tests.commands.view.test_view_mistakes import NETWORK
from tests.compiled_scripts import QUIET, CompileOptions
from tests.damage import damage

TRIES = 25
LONGEST = 2500
"""Characters of a message."""


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "net.py").write_text(NETWORK)
    return compiled(folder / "net.py", folder / "graphs", level=0)


def view(target: str) -> None:
    view_target(target, ViewOptions(CompileOptions(loudness=QUIET), out=Path("page.html")))


def diff(target: str) -> None:
    diff_targets("whole", target, CompileOptions(json=Path("table.json")))


def check(target: str) -> None:
    limits = Limits(budget_of({"max-bytes": "1KB"}, "--"))
    check_target(target, CompileOptions(json=Path("table.json")), limits)


@pytest.mark.parametrize("command", [view, diff, check])
@pytest.mark.usefixtures("own_folder")
def test_damaged_folders(command: Callable[[str], None], complete: Path) -> None:
    shutil.copytree(complete, "whole")
    refused = 0
    for seed in range(TRIES):
        shutil.copytree(complete, "damaged")
        draws = random.Random(f"{command.__name__} {seed}")
        files = (one for one in Path("damaged").rglob("*") if one.suffix in (".ir", ".json"))
        damage(draws, draws.choice(sorted(files)))
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
