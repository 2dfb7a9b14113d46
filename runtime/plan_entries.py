"""This module reads out of `program.json` what a compile decided, as entries of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, cast

from mspc.ir.late_dataclass import dataclass


@dataclass(frozen=True)
class PlanEntries:
    """The decisions of a compile.

    operators: layouts of their operands, by names as plans have them; results: of their results, where those do not
    follow. parameters: layouts of those that are stored otherwise than operators read them. gather_again: those of them
    that are gathered once more for gradients. recompute: cells that are recomputed. offload: what is kept on the host.
    """

    operators: Mapping[str, tuple[str, ...]]
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    gather_again: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    results: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    offload: tuple[str, ...] = ()


def read_plan_entries(content: Mapping[str, Any]) -> PlanEntries | None:
    """The decisions of the compile; None where there are none. Raises TypeError where entries are of wrong types."""
    if "operators" not in content:
        return None
    operators, results = (_lists(content, key) for key in ("operators", "results"))
    stored = _table(content, "stored")
    for name, layout in stored.items():
        if not isinstance(layout, str):
            raise TypeError(f"stored has {name!r} without a layout")
    again, recompute, offload = (_names(content, key) for key in ("gather_again", "recompute", "offload"))
    return PlanEntries(operators, stored, again, recompute, results, offload)


def _lists(content: Mapping[str, Any], key: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, layouts in _table(content, key).items():
        if not isinstance(layouts, list):
            raise TypeError(f"{key} has {name!r} without a list of layouts")
        found[name] = tuple(map(str, cast("list[Any]", layouts)))
    return found


def _table(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key, {})
    if not isinstance(value, dict):
        raise TypeError(f"{key} is {type(value).__name__}, not dict")
    return cast("dict[str, Any]", value)


def _names(content: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = content.get(key, [])
    if not isinstance(value, list):
        raise TypeError(f"{key} is {type(value).__name__}, not list")
    names = cast("list[Any]", value)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{key} has an entry that is {type(name).__name__}, not str")
    return tuple(names)
