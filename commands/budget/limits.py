"""Limits of a budget, and their notation on a command line, in a file and in a test."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from mspc.commands.options import seconds_of, share_of, size_of
from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.files.parsing import check_keys, read_toml
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


@dataclass(frozen=True)
class Budget:
    """Limits for every rank and one step. nbytes: sent. memory: total bytes of a planned step. collectives: their
    number by operator, ANY for all together. step: predicted seconds. idle: the share of a step in which a stage of a
    pipeline may be idle. None or empty: no limit."""

    nbytes: int | None = None
    memory: int | None = None
    collectives: Mapping[str, int] | None = None
    forbidden: tuple[Forbidden, ...] = ()
    step: float | None = None
    idle: float | None = None

    def __bool__(self) -> bool:
        figures = (self.nbytes, self.memory, self.step, self.idle)
        return any(figure is not None for figure in figures) or bool(self.collectives or self.forbidden)

    def under(self, other: Budget) -> Budget:
        """Return this budget with its limits overridden by those of another; collectives forbidden in either stay
        forbidden."""
        return Budget(
            self.nbytes if other.nbytes is None else other.nbytes,
            self.memory if other.memory is None else other.memory,
            {**(self.collectives or {}), **(other.collectives or {})},
            tuple(dict.fromkeys((*self.forbidden, *other.forbidden))),
            self.step if other.step is None else other.step,
            self.idle if other.idle is None else other.idle,
        )


def budget_of(limits: Mapping[str, Any], where: str = "") -> Budget:
    """Return the budget for values by their keys.

    Args:
        limits: values of KEYS; None if there is no limit. where: prefix of messages.

    Raises:
        MspcError: a value is invalid for its key.
    """
    counts = limits.get(COLLECTIVES)
    forbidden = limits.get(FORBID)
    forbidden = [forbidden] if isinstance(forbidden, str) else forbidden
    if forbidden is not None and not isinstance(forbidden, list | tuple):
        raise MspcError(f"{where}{FORBID} is {forbidden!r}, not a list as in ['AllGather in Default/network-Net']")
    entries = cast("Iterable[Any]", forbidden or ())
    return Budget(
        _size(limits.get(BYTES), f"{where}{BYTES}"),
        _size(limits.get(MEMORY), f"{where}{MEMORY}"),
        None if counts is None else _counts(counts, f"{where}{COLLECTIVES}"),
        tuple(_forbidden(entry, f"{where}{FORBID}") for entry in entries),
        _seconds(limits.get(STEP), f"{where}{STEP}"),
        _share(limits.get(IDLE), f"{where}{IDLE}"),
    )


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


def _size(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise MspcError(f"{name} is {value!r}, not a size as in 80GB or 512MiB")
    return size_of(str(value), name, 0)


def _seconds(value: Any, name: str) -> float | None:
    if value is None:
        return None
    return seconds_of(value if isinstance(value, str) else repr(value), name)


def _share(value: Any, name: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise MspcError(f"{name} is {value!r}, not a share as in '20%'")
    return share_of(value, name)


def _counts(value: Any, name: str) -> dict[str, int]:
    entries = cast("dict[Any, Any]", value) if isinstance(value, dict) else {ANY: value}
    for count in entries.values():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise MspcError(f"{name} has {count!r}, not a number of collectives")
    return {_known(str(operator), name): count for operator, count in entries.items()}


def _forbidden(value: Any, name: str) -> Forbidden:
    match = _FORBIDDEN.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise MspcError(f"{name} has {value!r}, not 'AllGather' or 'AllGather in Default/network-Net/head'")
    return Forbidden(_known(match[1], name), (match[2] or "").strip("/"))


def _known(operator: str, name: str) -> str:
    """Return the name of a collective or ANY. Raise MspcError for any other name."""
    if operator == ANY:
        return operator
    known = [each for each, kind in REGISTRY.items() if issubclass(kind, Collective)]
    if operator not in known:
        notes = did_you_mean(operator, known) or [f"collectives are {', '.join(sorted(known))}"]
        raise MspcError(f"{name} names {operator!r}, which is no collective", notes=notes)
    return operator


LARGEST = 1 << 20
"""Most bytes of a file."""
ONE, SEVERAL = "budget", "budgets"


def read_budget(path: Path, name: str = "") -> Budget:
    """Return the budget in a file.

    Args:
        path: of the file. name: of the budget, in a file with several; "" for the one of `[mspc.budget]`.

    Raises:
        MspcError: there is no such file or budget, a key is unknown, or a value is invalid for its key.
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
