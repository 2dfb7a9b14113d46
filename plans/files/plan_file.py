"""Plan files in TOML, which people edit: the layouts of every operator's operands, and the stages."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import shown_path, write_atomically
from mspc.ir.files.parsing import check_keys, quoted, read_toml, table_in
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout, NamedLayout
from mspc.ir.text.families import are_cells, each_of_cells, name_of_cells
from mspc.ir.text.fragments import read_attributes, read_layouts
from mspc.ir.text.printer import strategy_text
from mspc.ir.text.source_text import Malformed

KEY = "stages"
STAGE_KEYS = ("count", "schedule", "chunks", "micro_batches", "cells")


@dataclass(frozen=True)
class StagePlan:
    """Stages of a network. count: the number of stages, 1 for none; it overrides the script. schedule: the name used in
    scripts. chunks: the chunks per stage, placed in rounds or there and back. cells: the chunk of each cell, by scope,
    in the order of chunks. tries: the plan belongs to a search, which uses `micro_batches` of them (0: the script's
    number) and may use more stages than `count`."""

    count: int
    schedule: str
    micro_batches: int
    chunks: int = 1
    cells: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    tries: bool = False

    @cached_property
    def _each(self) -> dict[str, int]:
        return {name: chunk for key, chunk in self.cells.items() for name in each_of_cells(key)}

    def chunk_of(self, scope: str) -> int | None:
        """Return the chunk of a cell, or of equal cells that share one graph; None if the plan does not name it."""
        return self._each.get(next(each_of_cells(scope)))


def together(cells: Mapping[str, int]) -> dict[str, int]:
    """Return `cells` with neighbours of one chunk, if their names count up, joined into one entry."""
    found: dict[str, int] = {}
    run: list[str] = []
    for name, chunk in (*cells.items(), ("", -1)):
        if run and (chunk != cells[run[0]] or not name_of_cells([*run, name])):
            found[name_of_cells(run) if len(run) > 1 else run[0]] = cells[run[0]]
            run = []
        run.append(name)
    return found


def stage_lines(plan: StagePlan) -> Iterator[str]:
    """Yield the lines of a file for this plan of stages."""
    yield from ("", f"[{KEY}]", f"count = {plan.count}", f"schedule = {quoted(plan.schedule)}")
    if plan.chunks > 1:
        yield f"chunks = {plan.chunks}"
    yield f"micro_batches = {plan.micro_batches}"
    yield from ("", f"[{KEY}.cells]") if plan.cells else ()
    yield from (f"{quoted(name)} = {chunk}" for name, chunk in plan.cells.items())


def read_stages(shown: str, found: Any) -> StagePlan:
    """Return the stages of a file's table; `shown` names the file. Raise MspcError if the table is wrong."""
    if not isinstance(found, dict):
        raise MspcError(f"{shown}: {KEY} is {found!r}, not a table [{KEY}]")
    table = cast("dict[str, Any]", found)
    check_keys(shown, table, STAGE_KEYS, f"[{KEY}]")
    count = _number(shown, table, "count", 1)
    chunks = _number(shown, {"chunks": 1, **table}, "chunks", 1)
    schedule, cells = table.get("schedule", "1f1b"), table_in(shown, table, "cells", f"{KEY}.cells", required=False)
    if not isinstance(schedule, str):
        raise MspcError(f"{shown}: [{KEY}] has the schedule {schedule!r}, not a name as \"1f1b\"")
    for name, chunk in cells.items():
        if type(chunk) is not int or not 0 <= chunk < count * chunks:
            what = "chunks" if chunks > 1 else "stages"
            raise MspcError(f"{shown}: {name!r} is of {chunk!r}, and there are {what} 0 to {count * chunks - 1}")
    return StagePlan(
        count, schedule, _number(shown, table, "micro_batches", 1), chunks, cells
    )  # fmt: skip


def _number(shown: str, table: Mapping[str, Any], key: str, least: int) -> int:
    value = table.get(key)
    if type(value) is not int or value < least:
        said = f"{key} is {value!r}" if key in table else f"[{KEY}] does not say {key}"
        raise MspcError(f"{shown}: {said}, not a number from {least}")
    return value


LARGEST = 1 << 28
"""Most bytes of a file."""
SUFFIX = ".toml"
KEYS = (
    "ranks", "device", "operators", "results", "strategies", "parameters", "recompute", "gather_again", "loops",
    "stages", "offload", "offload_states",
)  # fmt: skip
DEVICES = ("CPU", "GPU")
STATES_IN_WORDS = "optimizer states"
SIDES = {"in": ("in_strategy", "in_layout"), "out": ("out_strategy", "out_layout")}
"""The keys of a strategy or layout of operands ("in") and of results ("out")."""


@dataclass(frozen=True)
class Given:
    """The in_strategy and out_strategy that a script gives one operator; None for a missing one."""

    operands: tuple[Any, ...] | None
    results: tuple[Any, ...] | None

    @property
    def texts(self) -> list[str]:
        """The strategies as texts of a file."""
        sides = (("in", self.operands), ("out", self.results))
        return [strategy_text(side, given) for side, given in sides if given is not None]


@dataclass(frozen=True)
class PlanFile:
    """Contents of a plan file. operators: operand layouts of every operator. parameters: layouts of stored parameters.
    recompute: cells whose forward work is repeated for backward. gather_again: parameters that are gathered
    again for gradients. results: layouts of results that do not follow from the operands. strategies: replace all
    strategies of the script; None to use the script's. device: the target of the programs, "" for the script's. loops:
    layouts of the carried and saved values of loops. stages: None to use the script's. offload: cells
    whose values saved for gradients are stored on the host. offload_states: optimizer states are stored on the host."""

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
        """The cells with values on the host, and `STATES_IN_WORDS` if optimizer states are there."""
        return self.offload + (STATES_IN_WORDS,) * self.offload_states

    def for_operators(self, known: Collection[str]) -> PlanFile:
        """Return this plan for a network with operators of these names. Layers that share no graph there are named one
        by one. Layers that share a graph with fewer of them get its name, and loops over them are left out."""
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
    """Return whether a file is a plan that names equal layers together; False if it cannot be read."""
    try:
        return path.suffix == SUFFIX and _TOGETHER.search(path.read_bytes()) is not None
    except OSError:
        return False


_STAGES = re.compile(rb"^\s*\[stages\]", re.MULTILINE)


def stages_of_plan(path: Path) -> StagePlan | None:
    """Return the stages of a plan file; None if it has none, cannot be read or is no plan. Raise MspcError if they are
    wrong."""
    try:
        if path.suffix != SUFFIX or not _STAGES.search(path.read_bytes()):
            return None
    except OSError:
        return None
    found = read_toml(path, "plan", LARGEST).get("stages")
    return None if found is None else read_stages(shown_path(path), found)


def write_plan(path: Path, plan: PlanFile) -> None:
    """Write a plan. Raise MspcError if it cannot be written."""
    lines = ["# How the operands of every operator are sharded; docs/reference/plan-files.md.", f"ranks = {plan.ranks}"]
    if plan.device:
        lines.append(f"device = {quoted(plan.device)}")
    lists = (("recompute", plan.recompute), ("gather_again", plan.gather_again), ("offload", plan.offload))
    for key, names in lists:
        if names:
            lines += [f"{key} = [", *(f"    {quoted(name)}," for name in names), "]"]
    lines += ["offload_states = true"] * plan.offload_states
    if plan.stages is not None:
        lines += stage_lines(plan.stages)
    if plan.parameters:
        lines += ["", "[parameters]"]
        lines += [f"{quoted(name)} = {quoted(str(layout))}" for name, layout in plan.parameters.items()]
    if plan.strategies is not None:
        lines += ["", "[strategies]"]
        lines += [_entry(name, given.texts) for name, given in plan.strategies.items()]
    lines += ["", "[operators]", *(_entry(name, map(str, layouts)) for name, layouts in plan.operators.items())]
    for key, table in (("loops", plan.loops), ("results", plan.results)):
        if table:
            lines += ["", f"[{key}]", *(_entry(name, map(str, layouts)) for name, layouts in table.items())]
    text = "\n".join(lines) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def _entry(name: str, texts: Iterable[str]) -> str:
    return f"{quoted(name)} = [{', '.join(map(quoted, texts))}]"


def read_plan(path: Path) -> PlanFile:
    """Read a plan. Raise MspcError if the file does not exist, or is no plan."""
    shown = shown_path(path)
    found = read_toml(path, "plan", LARGEST)
    if "layers" in found:
        notes = ["pass it to `mspc compile --plan`; `mspc search --out` writes plans of operators"]
        raise MspcError(f"{shown} is a plan of layers, not of operators", notes=notes, code="E0412")
    check_keys(shown, found, KEYS, "a plan")
    ranks, device = found.get("ranks"), found.get("device", "")
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        said = f"ranks is {ranks!r}, not a number of ranks" if "ranks" in found else "it does not say ranks"
        raise MspcError(f"{shown}: {said}")
    if device not in ("", *DEVICES):
        raise MspcError(f"{shown}: device is {device!r}, not one of {', '.join(DEVICES)}")
    states = found.get("offload_states", False)
    if not isinstance(states, bool):
        raise MspcError(f"{shown}: offload_states is {states!r}, not true or false")
    operators = table_in(shown, found, "operators")
    stored, results, loops = (table_in(shown, found, key, required=False) for key in ("parameters", "results", "loops"))
    given = table_in(shown, found, "strategies") if "strategies" in found else None
    return PlanFile(
        ranks,
        {name: _strategy(shown, name, value, ranks) for name, value in operators.items()},
        {name: _layout(shown, name, value, ranks, sums=False) for name, value in stored.items()},
        _names(shown, "recompute", found.get("recompute", [])),
        _names(shown, "gather_again", found.get("gather_again", [])),
        {name: _strategy(shown, name, value, ranks) for name, value in results.items()},
        None if given is None else {name: _given(shown, name, value) for name, value in given.items()},
        device,
        {name: _strategy(shown, name, value, ranks) for name, value in loops.items()},
        read_stages(shown, found["stages"]) if "stages" in found else None,
        _names(shown, "offload", found.get("offload", [])),
        states,
    )


def _given(shown: str, name: str, value: Any) -> Given:
    """Return the strategies of one operator. Raise MspcError if they are malformed."""
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
    """Return ("in" or "out", the strategy). The strategy is None if the text holds none."""
    try:
        ((key, value),) = read_attributes(f"{{{text}}}").items() if isinstance(text, str) else ()
    except (Malformed, ValueError):
        return "", None
    side = next((side for side, words in SIDES.items() if key in words), "")
    legal = isinstance(value, tuple) and all(map(_is_entry, cast("tuple[Any, ...]", value)))
    return side, cast("tuple[Any, ...]", value) if side and legal else None


def _is_entry(value: Any) -> bool:
    """Return whether a value is a valid entry of a strategy for one tensor, or for a tuple of tensors."""
    if not isinstance(value, tuple):
        return isinstance(value, NamedLayout)
    return all(type(each) is int or _is_entry(each) for each in cast("tuple[Any, ...]", value))


def _names(shown: str, key: str, value: Any) -> tuple[str, ...]:
    """Return a list of names without repetitions. Raise MspcError if it is no list of names."""
    entries = cast("list[Any]", value) if isinstance(value, list) else None
    if entries is None or not all(isinstance(entry, str) for entry in entries):
        raise MspcError(f"{shown}: {key} is {value!r}, not a list of names")
    return tuple(dict.fromkeys(entries))


def _strategy(shown: str, name: str, value: Any, ranks: int) -> tuple[Layout, ...]:
    """Return the layouts of one operator. Raise MspcError if they are malformed or of other ranks."""
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
