"""Budgets are read from files of TOML, be it one of their own or the pyproject.toml of a project.

    [mspc.budget]                   # of a file with one budget
    max-bytes = "3MB"               # that a rank sends in one step
    max-memory = "60GB"             # of a rank, all of its step together
    max-collectives = 9             # or by operator: {AllGather = 4, AllReduce = 2}
    forbid = ["AllGather in Default/network-Net/head"]

    [mspc.budgets.large]            # of a file with several, by name
    max-bytes = "1GB"
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from mspc.commands.budget.limits import KEYS, Budget, budget_of
from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.files.parsing import check_keys, read_toml

LARGEST = 1 << 20
"""Bytes of a file."""
ONE, SEVERAL = "budget", "budgets"


def read_budget(path: Path, name: str = "") -> Budget:
    """The budget in a file.

    Args:
        path: of it. name: of the budget, in a file with several; "" for the one of `[mspc.budget]`.

    Raises:
        MspcError: there is no such file or budget, a key is unknown, or a value is none that its key takes.
    """
    shown = shown_path(path)
    found = _table(read_toml(path, "budget file", LARGEST), "mspc", shown, "mspc.budget")
    check_keys(shown, found, (ONE, SEVERAL), "[mspc]")
    if name:
        several = _table(found, SEVERAL, shown, f"mspc.{SEVERAL}.{name}")
        if name not in several:
            notes = did_you_mean(name, several) or [f"it has {', '.join(several)}"]
            raise MspcError(f"{shown}: there is no budget {name!r}", kind=ValueError, notes=notes)
        return _budget(_table(several, name, shown, f"mspc.{SEVERAL}.{name}"), shown)
    if ONE not in found and SEVERAL in found:
        names = ", ".join(_table(found, SEVERAL, shown, f"mspc.{SEVERAL}"))
        raise MspcError(f"{shown} has several budgets", notes=[f"name one of them: {names}"])
    return _budget(_table(found, ONE, shown, f"mspc.{ONE}"), shown)


def _budget(table: dict[str, Any], shown: str) -> Budget:
    check_keys(shown, table, KEYS, "a budget")
    return budget_of(table, f"{shown}: ")


def _table(found: dict[str, Any], key: str, shown: str, full: str) -> dict[str, Any]:
    table = found.get(key)
    if not isinstance(table, dict):
        raise MspcError(f"{shown}: {'there is no' if table is None else 'it has no'} table [{full}]")
    return cast("dict[str, Any]", table)
