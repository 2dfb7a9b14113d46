"""Limits of a budget, and their notation on a command line, in a file and in a test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from mspc.commands.facts.graph import CollectiveFact, cell_of
from mspc.commands.options import seconds_of, share_of, size_of
from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.files.parsing import check_keys, read_toml, table_in
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.base import Collective
from mspc.ops.op import REGISTRY

BYTES, MEMORY, COLLECTIVES, STEP, FORBID = "max-bytes", "max-memory", "max-collectives", "max-step", "forbid"
IDLE = "max-idle"
KEYS = (BYTES, MEMORY, COLLECTIVES, STEP, IDLE, FORBID)
ANY = "*"
"""Name for every collective, instead of an operator."""
_COUNT = re.compile(r"(?:([\w*]+)\s*=\s*)?(\d{1,9})", re.ASCII)
_FORBIDDEN = re.compile(r"(\S+)(?:\s+in\s+(\S+))?")


@dataclass(frozen=True)
class Forbidden:
    """A forbidden collective. operator: its name, or ANY. cell: in which it is forbidden, including inner cells and
    gradients; "" for everywhere."""

    operator: str
    cell: str = ""

    def __str__(self) -> str:
        return f"{self.operator} in {self.cell}" if self.cell else self.operator

    def forbids(self, fact: CollectiveFact) -> bool:
        """Return whether a collective is a forbidden one."""
        cells = (cell_of(fact.scope), *(tensor.cell for tensor in fact.tensors))
        inside = not self.cell or any(own == self.cell or own.startswith(f"{self.cell}/") for own in cells)
        return self.operator in (ANY, fact.row.operator) and inside


Budget = Mapping[str, Any]
"""Limits for every rank and one step, by their keys: bytes sent; bytes of all memory of a planned step; numbers of
collectives by operator, ANY for all together; predicted seconds; the share of a step in which a stage of a pipeline may
be idle; and Forbidden collectives."""


def overridden(budget: Budget, other: Budget) -> Budget:
    """Return a budget with its limits overridden by those of another; collectives forbidden in either stay
    forbidden."""
    forbidden = dict.fromkeys((*budget.get(FORBID, ()), *other.get(FORBID, ())))
    counts = {**budget.get(COLLECTIVES, {}), **other.get(COLLECTIVES, {})}
    return _without_empty({**budget, **other, COLLECTIVES: counts, FORBID: tuple(forbidden)})


def budget_of(limits: Mapping[str, Any], where: str = "") -> Budget:
    """Return the budget for values by their keys. limits: values of KEYS; None if there is no limit. where: prefix of
    messages. Raise MspcError if a value is invalid for its key."""
    given = {key: value for key, value in limits.items() if value is not None}
    return _without_empty({key: READERS[key](value, f"{where}{key}") for key, value in given.items()})


def _without_empty(limits: Budget) -> Budget:
    return {key: value for key, value in limits.items() if value not in ({}, ())}


def counts_of(texts: Iterable[str], name: str) -> dict[str, int]:
    """Return the limits in `AllGather=4` and `7`, by operator. Raise MspcError for any other text."""
    found: dict[str, int] = {}
    for text in texts:
        for part in text.split(","):
            match = _COUNT.fullmatch(part.strip())
            if match is None:
                raise MspcError(f"{name} is {part.strip()!r}, not a number as in 7 or AllGather=4")
            found[_known(match[1] or ANY, name)] = int(match[2])
    return found


def _size(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise MspcError(f"{name} is {value!r}, not a size as in 80GB or 512MiB")
    return size_of(str(value), name, 0)


def _share(value: Any, name: str) -> float:
    if not isinstance(value, str):
        raise MspcError(f"{name} is {value!r}, not a share as in '20%'")
    return share_of(value, name)


def _counts(value: Any, name: str) -> dict[str, int]:
    entries = cast("dict[Any, Any]", value) if isinstance(value, dict) else {ANY: value}
    for count in entries.values():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise MspcError(f"{name} has {count!r}, not a number of collectives")
    return {_known(str(operator), name): count for operator, count in entries.items()}


def _forbidden(value: Any, name: str) -> tuple[Forbidden, ...]:
    if not isinstance(value, list | tuple | str):
        raise MspcError(f"{name} is {value!r}, not a list as in ['AllGather in Default/network-Net']")
    found: list[Forbidden] = []
    for entry in [value] if isinstance(value, str) else cast("Iterable[Any]", value):
        match = _FORBIDDEN.fullmatch(entry.strip()) if isinstance(entry, str) else None
        if match is None:
            raise MspcError(f"{name} has {entry!r}, not 'AllGather' or 'AllGather in Default/network-Net/head'")
        found.append(Forbidden(_known(match[1], name), (match[2] or "").strip("/")))
    return tuple(found)


def _known(operator: str, name: str) -> str:
    """Return the name of a collective or ANY. Raise MspcError for any other name."""
    if operator == ANY:
        return operator
    known = [each for each, kind in REGISTRY.items() if issubclass(kind, Collective)]
    if operator not in known:
        notes = did_you_mean(operator, known) or [f"collectives are {', '.join(sorted(known))}"]
        raise MspcError(f"{name} names {operator!r}, which is no collective", notes=notes)
    return operator


READERS: dict[str, Callable[[Any, str], Any]] = {
    BYTES: _size,
    MEMORY: _size,
    COLLECTIVES: _counts,
    STEP: lambda value, name: seconds_of(value if isinstance(value, str) else repr(value), name),
    IDLE: _share,
    FORBID: _forbidden,
}
"""The function that reads the value of every key."""

LARGEST = 1 << 20
"""Most bytes of a file."""
ONE, SEVERAL = "budget", "budgets"


def read_budget(path: Path, name: str = "") -> Budget:
    """Return the budget in a file. path: of the file. name: of the budget, in a file with several; "" for the one of
    `[mspc.budget]`. Raise MspcError if there is no such file or budget, a key is unknown, or a value is invalid for its
    key."""
    shown = shown_path(path)
    found = table_in(shown, read_toml(path, "budget file", LARGEST), "mspc", "mspc.budget")
    check_keys(shown, found, (ONE, SEVERAL), "[mspc]")
    if name:
        several = table_in(shown, found, SEVERAL, f"mspc.{SEVERAL}.{name}")
        if name not in several:
            notes = did_you_mean(name, several) or [f"it has {', '.join(several)}"]
            raise MspcError(f"{shown}: there is no budget {name!r}", kind=ValueError, notes=notes)
        table = table_in(shown, several, name, f"mspc.{SEVERAL}.{name}")
    elif ONE not in found and SEVERAL in found:
        names = ", ".join(table_in(shown, found, SEVERAL, f"mspc.{SEVERAL}"))
        raise MspcError(f"{shown} has several budgets", notes=[f"name one of them: {names}"])
    else:
        table = table_in(shown, found, ONE, f"mspc.{ONE}")
    check_keys(shown, table, KEYS, "a budget")
    return budget_of(table, f"{shown}: ")
