"""Reads and writes plans as files that people edit: how every operator's operands are sharded, in TOML.

    ranks = 8
    device = "GPU"
    recompute = ["Default/network-Net/layers-CellList/0-Layer"]
    gather_again = ["layers.0.weight"]
    offload = ["Default/network-Net/layers-CellList/1-Layer"]
    offload_states = true
    [parameters]
    "layers.0.weight" = "(2, 4) [0, 1]"
    [strategies]
    "Default/network-Net/MatMul-op0" = ["in_strategy: ((2, 1), (1, 4))", "out_strategy: ((8, 1))"]
    [operators]
    "Default/network-Net/MatMul-op0" = ["(2, 4) [0, -]", "(2, 4) [-, 1]"]
    [results]
    "Default/network-Net/Zeros-op0" = ["(8) [0]"]

An operator goes by its cells and its place among those of its kind. Every operand has a layout as dumps have it; one
that it takes in partial sums, as its operand comes out, says so: "(4) [-, -] sum[0]". `results` has the layouts of an
operator's results where they do not follow from those of its operands.

Equal layers that are one graph are named together, "Default/network-Net/layers-CellList/[0..79]-Layer/MatMul-op0" and
"layers.[0..79].weight": under such a plan they are compiled as one graph where that can be, else each of them so.
`loops` has of every such loop the layouts of what is carried from turn to turn, and of what is kept of every turn.
Operators that a file leaves out are not configured. `recompute` names cells that are computed again for gradients,
`parameters` those that are stored otherwise than their first reader needs them, with their states, and `gather_again`
those of them that are gathered for gradients once more instead of being stored. `offload` names cells of which what
gradients read is kept on the host, with `offload_states` the states of optimizers are.

`strategies` is what `shard()` says in the script, as the plan has it: with that table, which may be empty, neither the
script's `shard()` nor its optimizer parallel count, so that the file says everything. Copies that are computed again
and changes of layout behind an operator come from there. `device` is what the plan's figures are for, where it is not
the script's. Of a network in stages `[stages]` says which cells are where; see `stage_table.py`. All but ranks and
operators may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import shown_path, write_atomically
from mspc.ir.files.parsing import check_keys, quoted, read_toml
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout, NamedLayout
from mspc.ir.text.fragments import read_attributes, read_layouts
from mspc.ir.text.printer import strategy_text
from mspc.ir.text.source_text import Malformed

if TYPE_CHECKING:
    from mspc.plans.files.stage_table import StagePlan

LARGEST = 1 << 28
"""Bytes of a file."""
SUFFIX = ".toml"
KEYS = (
    "ranks", "device", "operators", "results", "strategies", "parameters", "recompute", "gather_again", "loops",
    "stages", "offload", "offload_states",
)  # fmt: skip
DEVICES = ("CPU", "GPU")
STATES_IN_WORDS = "optimizer states"
SIDES = {"in": ("in_strategy", "in_layout"), "out": ("out_strategy", "out_layout")}
"""The words for a strategy of operands and for one of results."""


@dataclass(frozen=True)
class Given:
    """What a script gives one operator: its in_strategy and its out_strategy, None where there is none."""

    operands: tuple[Any, ...] | None
    results: tuple[Any, ...] | None

    @property
    def texts(self) -> list[str]:
        """As a file has it."""
        sides = (("in", self.operands), ("out", self.results))
        return [strategy_text(side, given) for side, given in sides if given is not None]


@dataclass(frozen=True)
class PlanFile:
    """What a file says: of every operator the layouts of its operands, of parameters those that they are stored in;
    cells that are computed again, and parameters that are gathered again. results: layouts of results that do not
    follow from those of operands. strategies: all that the script is taken to say; None where it may say it itself.
    device: what programs are made for, "" for the script's. loops: what loops over equal layers carry and keep. stages:
    of the network, None where the script says all of that. offload: cells of which what gradients read is kept on the
    host; offload_states: states of optimizers are."""

    ranks: int
    operators: Mapping[str, tuple[Layout, ...]]
    parameters: Mapping[str, Layout] = field(default_factory=dict[str, Layout])
    recompute: tuple[str, ...] = ()
    gather_again: tuple[str, ...] = ()
    results: Mapping[str, tuple[Layout, ...]] = field(default_factory=dict[str, tuple[Layout, ...]])
    strategies: Mapping[str, Given] | None = None
    device: str = ""
    loops: Mapping[str, tuple[Layout, ...]] = field(default_factory=dict[str, tuple[Layout, ...]])
    stages: StagePlan | None = None
    offload: tuple[str, ...] = ()
    offload_states: bool = False

    @property
    def on_host(self) -> tuple[str, ...]:
        """What lives on the host, in words: cells, and the states of optimizers."""
        return self.offload + (STATES_IN_WORDS,) * self.offload_states

    def for_operators(self, known: Collection[str]) -> PlanFile:
        """The same for a network that has operators of these names: layers that are not one graph there are named one
        by one, those that are one graph with fewer of them by that, and loops over them left out."""
        from mspc.ir.text.families import are_cells, each_of_cells  # late, as only a plan needs them

        scopes = {name.rpartition("/")[0] for name in known}
        runs = {each: scope for scope in scopes if are_cells(scope) for each in each_of_cells(scope)}
        of_run = dict(runs)
        own = {name.rpartition("/")[0] for name in self.operators} - scopes
        inlined = any(are_cells(scope) or scope in runs for scope in own)
        runs = runs if inlined else {}

        def named(found: Mapping[str, Any]) -> dict[str, Any]:
            made: dict[str, Any] = {}
            for key, value in found.items():
                for name in names(key):
                    scope, mark, operator = name.rpartition("/")
                    run = f"{runs.get(scope, scope)}{mark}{operator}"
                    made[run if made.get(run, value) == value else name] = value
            return made

        def names(key: str) -> Iterable[str]:
            return [key] if not are_cells(key) or key.rpartition("/")[0] in scopes else each_of_cells(key)

        strategies = None if self.strategies is None else named(self.strategies)
        loops = {name: value for name, value in self.loops.items() if name in known or not inlined}

        def of_cells(keys: Iterable[str]) -> tuple[str, ...]:
            found = (name for key in keys for name in ([key] if key in scopes else each_of_cells(key)))
            return tuple(dict.fromkeys(of_run.get(name, name) for name in found))

        return replace(
            self, operators=named(self.operators), results=named(self.results), strategies=strategies,
            loops={} if runs else loops, recompute=of_cells(self.recompute), offload=of_cells(self.offload),
        )  # fmt: skip


_TOGETHER = re.compile(rb'^\s*"[^"\n]*\[\d+\.\.\d+\]', re.MULTILINE)


def names_layers_together(path: Path) -> bool:
    """Whether a file is a plan that names equal layers together; False where it cannot be read."""
    try:
        return path.suffix == SUFFIX and _TOGETHER.search(path.read_bytes()) is not None
    except OSError:
        return False


_STAGES = re.compile(rb"^\s*\[stages\]", re.MULTILINE)


def stages_of_plan(path: Path) -> StagePlan | None:
    """What a file says of stages; None where it says nothing, or is no plan. Raises MspcError where it is wrong."""
    try:
        if path.suffix != SUFFIX or not _STAGES.search(path.read_bytes()):
            return None
    except OSError:
        return None
    found = read_toml(path, "plan", LARGEST).get("stages")
    return None if found is None else _read_stages(shown_path(path), found)


def write_plan(path: Path, plan: PlanFile) -> None:
    """Write a plan. Raises MspcError where that cannot be."""
    lines = ["# How the operands of every operator are sharded; see docs/search.md.", f"ranks = {plan.ranks}"]
    if plan.device:
        lines.append(f"device = {quoted(plan.device)}")
    lists = (("recompute", plan.recompute), ("gather_again", plan.gather_again), ("offload", plan.offload))
    for key, names in lists:
        if names:
            lines += [f"{key} = [", *(f"    {quoted(name)}," for name in names), "]"]
    lines += ["offload_states = true"] * plan.offload_states
    if plan.stages is not None:
        from mspc.plans.files.stage_table import stage_lines  # late: few plans have stages

        lines += stage_lines(plan.stages)
    if plan.parameters:
        lines += ["", "[parameters]"]
        lines += [f"{quoted(name)} = {quoted(str(layout))}" for name, layout in plan.parameters.items()]
    if plan.strategies is not None:
        lines += ["", "[strategies]"]
        lines += [_entry(name, given.texts) for name, given in plan.strategies.items()]
    lines += ["", "[operators]", *(_entry(name, map(str, layouts)) for name, layouts in plan.operators.items())]
    if plan.loops:
        lines += ["", "[loops]", *(_entry(name, map(str, layouts)) for name, layouts in plan.loops.items())]
    if plan.results:
        lines += ["", "[results]", *(_entry(name, map(str, layouts)) for name, layouts in plan.results.items())]
    text = "\n".join(lines) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def _entry(name: str, texts: Iterable[str]) -> str:
    return f"{quoted(name)} = [{', '.join(map(quoted, texts))}]"


def read_plan(path: Path) -> PlanFile:
    """Read a plan.

    Raises:
        MspcError: there is no such file, or it is no plan.
    """
    shown = shown_path(path)
    found = read_toml(path, "plan", LARGEST)
    check_keys(shown, found, KEYS, "a plan")
    ranks, device = found.get("ranks"), found.get("device", "")
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        said = f"ranks is {ranks!r}, not a number of ranks" if "ranks" in found else "it does not say ranks"
        raise MspcError(f"{shown}: {said}")
    if device not in ("", *DEVICES):
        raise MspcError(f"{shown}: device is {device!r}, not one of {', '.join(DEVICES)}")
    operators = found.get("operators")
    if not isinstance(operators, dict):
        raise MspcError(f"{shown}: there is no table [operators]")
    stored = _table(shown, found, "parameters")
    given = _table(shown, found, "strategies") if "strategies" in found else None
    return PlanFile(
        ranks,
        {name: _strategy(shown, name, value, ranks) for name, value in cast("dict[str, Any]", operators).items()},
        {name: _layout(shown, name, value, ranks, sums=False) for name, value in stored.items()},
        _names(shown, "recompute", found.get("recompute", [])),
        _names(shown, "gather_again", found.get("gather_again", [])),
        {name: _strategy(shown, name, value, ranks) for name, value in _table(shown, found, "results").items()},
        None if given is None else {name: _given(shown, name, value) for name, value in given.items()},
        device,
        {name: _strategy(shown, name, value, ranks) for name, value in _table(shown, found, "loops").items()},
        _read_stages(shown, found["stages"]) if "stages" in found else None,
        _names(shown, "offload", found.get("offload", [])),
        _flag(shown, "offload_states", found.get("offload_states", False)),
    )


def _table(shown: str, found: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A table that may be left out. Raises MspcError."""
    value = found.get(key, {})
    if not isinstance(value, dict):
        raise MspcError(f"{shown}: {key} is {value!r}, not a table [{key}]")
    return cast("dict[str, Any]", value)


def _given(shown: str, name: str, value: Any) -> Given:
    """What the file states of one operator. Raises MspcError."""
    sides: dict[str, Any] = {}
    for text in cast("list[Any]", value) if isinstance(value, list) else [value]:
        side, found = _side(text)
        if found is None or side in sides:
            raise MspcError(
                f"{shown}: {name!r} has the strategy {value!r}, not a list as "
                "['in_strategy: ((2, 4), (4, 1))', 'out_strategy: ((2, 1))']"
            )
        sides[side] = found
    return Given(sides.get("in"), sides.get("out"))


def _side(text: Any) -> tuple[str, tuple[Any, ...] | None]:
    """("in" or "out", the strategy); None in its place where the text says none."""
    try:
        ((key, value),) = read_attributes(f"{{{text}}}").items() if isinstance(text, str) else ()
    except (Malformed, ValueError):
        return "", None
    side = next((side for side, words in SIDES.items() if key in words), "")
    legal = isinstance(value, tuple) and all(map(_is_entry, cast("tuple[Any, ...]", value)))
    return side, cast("tuple[Any, ...]", value) if side and legal else None


def _is_entry(value: Any) -> bool:
    """Whether it is what a strategy says of one tensor, or of a tuple of tensors."""
    if not isinstance(value, tuple):
        return isinstance(value, NamedLayout)
    return all(type(each) is int or _is_entry(each) for each in cast("tuple[Any, ...]", value))


def _names(shown: str, key: str, value: Any) -> tuple[str, ...]:
    """A list of names. Raises MspcError."""
    entries = cast("list[Any]", value) if isinstance(value, list) else None
    if entries is None or not all(isinstance(entry, str) for entry in entries):
        raise MspcError(f"{shown}: {key} is {value!r}, not a list of names")
    return tuple(dict.fromkeys(entries))


def _flag(shown: str, key: str, value: Any) -> bool:
    """Raises MspcError."""
    if not isinstance(value, bool):
        raise MspcError(f"{shown}: {key} is {value!r}, not true or false")
    return value


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


def _read_stages(shown: str, found: Any) -> StagePlan:
    """Raises MspcError where the table is damaged."""
    from mspc.plans.files.stage_table import read_stages  # late: few plans have stages

    return read_stages(shown, found)
