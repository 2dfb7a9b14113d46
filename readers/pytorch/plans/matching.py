"""Which layers of a program a plan's patterns name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from mspc.ir.diagnostics import MspcError
from mspc.ir.nearest import did_you_mean
from mspc.readers.pytorch.program import ExportedProgram

T = TypeVar("T")


def modules_of(program: ExportedProgram) -> dict[str, list[str]]:
    """The parameters by the modules that have them, by their qualified names; tied ones under all of theirs."""
    found: dict[str, list[str]] = {}
    for each in program.inputs:
        if each.kind == "parameter":
            module, _, _ = each.qualified.rpartition(".")
            found.setdefault(module, []).append(each.qualified)
    for node in program.graph.nodes:
        if node.scope:
            found.setdefault(node.scope, [])
    return found


def matched(
    plan: str, patterns: Mapping[str, T], names: Iterable[str], what: str, may_miss: bool = False
) -> dict[str, tuple[str, T]]:  # fmt: skip
    """What a plan says of every name that one of its patterns is for: (pattern, what it says); the longest pattern goes
    before others. `*` stands for one part of a name. A pattern may leave out the first part of names, as plans of base
    models do. may_miss: those that name nothing are passed over.

    Raises:
        MspcError: a pattern names nothing.
    """
    known = list(names)
    found: dict[str, tuple[str, T]] = {}
    for pattern in sorted(patterns, key=lambda each: (each.count("*") == 0, len(each))):
        whole = _expression(pattern)
        named = [name for name in known if whole.fullmatch(name)]
        if not named:
            named = [name for name in known if whole.fullmatch(name.partition(".")[2])]
        if not named and not may_miss:
            generic = {re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in known if name}
            generic |= {name.partition(".")[2] for name in generic} - {""}
            raise MspcError(
                f"{plan}: {pattern!r:.100} names no {what} of this network", notes=did_you_mean(pattern, generic)
            )
        found.update({name: (pattern, patterns[pattern]) for name in named})
    return found


def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(r"\.".join("[^.]+" if part == "*" else re.escape(part) for part in pattern.split(".")))
