"""Plans as files that people read and edit: how every operator's operands are cut, in TOML.

    ranks = 8
    recompute = ["Default/network-Net/layers-CellList/0-Layer"]
    gather_again = ["layers.0.weight"]
    [parameters]
    "layers.0.weight" = "(2, 4) [0, 1]"
    [operators]
    "Default/network-Net/MatMul-op0" = ["(2, 4) [0, -]", "(2, 4) [-, 1]"]

An operator goes by its cells and its place among those of its kind. Every operand has a layout as dumps have it; one
that it takes in partial sums, as its operand comes out, says so: "(4) [-, -] sum[0]".
Operators that a file leaves out are not configured. `recompute` names cells that are computed again for gradients,
`parameters` those that are stored otherwise than their first reader needs them, with their states, and `gather_again`
those of them that are gathered for gradients once more instead of being kept. All three may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.toml_text import check_keys, quoted, read_toml
from mspc.ir.files.whole import shown_path, write_whole
from mspc.ir.layout import Layout
from mspc.ir.text.fragments import Malformed, read_layouts

LARGEST = 1 << 28
"""Bytes of a file."""
SUFFIX = ".toml"
KEYS = ("ranks", "operators", "parameters", "recompute", "gather_again")


@dataclass(frozen=True)
class PlanFile:
    """What a file says: of every operator the layouts of its operands, of parameters those that they are stored in;
    cells that are computed again, and parameters that are gathered again."""

    ranks: int
    operators: Mapping[str, tuple[Layout, ...]]
    parameters: Mapping[str, Layout] = field(default_factory=dict[str, Layout])
    recompute: tuple[str, ...] = ()
    gather_again: tuple[str, ...] = ()


def write_plan(path: Path, plan: PlanFile) -> None:
    """Write a plan. Raises MspcError where that cannot be."""
    lines = ["# How the operands of every operator are cut; see docs/search.md.", f"ranks = {plan.ranks}"]
    for key, names in (("recompute", plan.recompute), ("gather_again", plan.gather_again)):
        if names:
            lines += [f"{key} = [", *(f"    {quoted(name)}," for name in names), "]"]
    if plan.parameters:
        lines += ["", "[parameters]"]
        lines += [f"{quoted(name)} = {quoted(str(layout))}" for name, layout in plan.parameters.items()]
    lines += ["", "[operators]"]
    for name, layouts in plan.operators.items():
        lines.append(f"{quoted(name)} = [{', '.join(quoted(str(layout)) for layout in layouts)}]")
    text = "\n".join(lines) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def read_plan(path: Path) -> PlanFile:
    """Read a plan.

    Raises:
        MspcError: there is no such file, or it is no plan.
    """
    shown = shown_path(path)
    found = read_toml(path, "plan", LARGEST)
    check_keys(shown, found, KEYS, "a plan")
    ranks, operators = found.get("ranks"), found.get("operators")
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        said = f"ranks is {ranks!r}, not a number of ranks" if "ranks" in found else "it does not say ranks"
        raise MspcError(f"{shown}: {said}")
    if not isinstance(operators, dict):
        raise MspcError(f"{shown}: there is no table [operators]")
    entries = cast("dict[str, Any]", operators)
    parameters = found.get("parameters", {})
    if not isinstance(parameters, dict):
        raise MspcError(f"{shown}: parameters is {parameters!r}, not a table [parameters]")
    stored = cast("dict[str, Any]", parameters)
    return PlanFile(
        ranks,
        {name: _strategy(shown, name, value, ranks) for name, value in entries.items()},
        {name: _layout(shown, name, value, ranks, sums=False) for name, value in stored.items()},
        _names(shown, "recompute", found.get("recompute", [])),
        _names(shown, "gather_again", found.get("gather_again", [])),
    )


def _names(shown: str, key: str, value: Any) -> tuple[str, ...]:
    """A list of names. Raises MspcError."""
    entries = cast("list[Any]", value) if isinstance(value, list) else None
    if entries is None or not all(isinstance(entry, str) for entry in entries):
        raise MspcError(f"{shown}: {key} is {value!r}, not a list of names")
    return tuple(dict.fromkeys(entries))


def _strategy(shown: str, name: str, value: Any, ranks: int) -> tuple[Layout, ...]:
    """The layouts of one operator. Raises MspcError."""
    if not isinstance(value, list):
        raise MspcError(f"{shown}: {name!r} is {value!r}, not a list with a layout for every operand")
    return tuple(_layout(shown, name, entry, ranks) for entry in cast("list[Any]", value))


def _layout(shown: str, name: str, entry: Any, ranks: int, sums: bool = True) -> Layout:
    layout = None
    if isinstance(entry, str):
        try:
            (layout,) = read_layouts(entry)
        except (Malformed, ValueError):
            layout = None
    if not isinstance(layout, Layout) or (layout.partial and not sums):
        raise MspcError(f"{shown}: {name!r} has the entry {entry!r}, not a layout as '(2, 4) [0, -]'")
    if layout.ranks != ranks:
        raise MspcError(f"{shown}: {name!r} has the layout {entry!r} of {layout.ranks} ranks, not {ranks}")
    return layout
