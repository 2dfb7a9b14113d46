"""A plan as its file has it: a mesh of ranks, and what it says of layers and of parameters.

    mesh = {dp = 2, tp = 4}
    fully_shard = true
    [layers]
    "layers.*.attention.query" = "colwise"
    "layers.*.attention.out" = "RowwiseParallel(output_layouts=Shard(1))"
    [parameters]
    "words.weight" = ["Replicate()", "Shard(0)"]

`layers` has styles by patterns of modules, in which `*` is a number or one part of a name. `parameters` has placements,
one for every axis of the mesh. The axis `tp`, or the last one, is the one that styles mean; the batch is cut by all
others but `pp`, which comes first and says how many stages of a pipeline there are. Without a mesh all ranks are `tp`.
`fully_shard` shares parameters with their states among ranks that would hold the same. A JSON file has the same, or the
dictionary of layers alone, or a model's `config.json` with `base_model_tp_plan`, `base_model_ep_plan` and
`base_model_pp_plan`, whose modules are on stages in their order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of, shown_path
from mspc.ir.files.parsing import parsed_json
from mspc.ir.files.regular import check_regular
from mspc.ir.files.toml_text import check_keys, read_toml
from mspc.ir.late_dataclass import dataclass
from mspc.readers.pytorch.plans.styles import PARTIAL, Placement, Style, placement_of, style_of

LARGEST = 1 << 24
"""Bytes of a file."""
KEYS = ("mesh", "layers", "parameters", "fully_shard", "base_model_tp_plan", "base_model_ep_plan", "base_model_pp_plan")
PIPELINE = "pp"
TENSOR = "tp"
"""The axis of the mesh that styles mean, where it has one called so."""


@dataclass(frozen=True)
class WrittenPlan:
    """One plan. name: of its file. mesh: axes of one stage's ranks with their sizes. layers: styles by patterns of
    modules. parameters: placements by patterns of parameters, one for every axis. fully_shard: parameters are shared
    among their replicas. stages: how many; in_order: modules that are divided among them, if any are named.
    """

    name: str
    mesh: Mapping[str, int]
    layers: Mapping[str, Style]
    parameters: Mapping[str, tuple[Placement, ...]] = field(default_factory=dict[str, tuple[Placement, ...]])
    fully_shard: bool = False
    stages: int = 1
    in_order: tuple[str, ...] = ()

    @property
    def tensor_axis(self) -> str:
        """The axis that styles mean."""
        return TENSOR if TENSOR in self.mesh else list(self.mesh)[-1]

    @property
    def parts(self) -> int:
        """Into how many slices styles cut."""
        return self.mesh[self.tensor_axis]

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The axes that cut the batch."""
        return tuple(axis for axis in self.mesh if axis != self.tensor_axis)


def plan_in(path: Path, ranks: int) -> WrittenPlan:
    """The plan in a file, for so many ranks. Raises MspcError where it is none, or for others."""
    shown = shown_path(path)
    if path.suffix == ".json":
        found = _json(path, shown)
        if not set(found) & set(KEYS):
            found = {"layers": found}
        elif set(found) - set(KEYS):  # a model's configuration, of which all else is not the plan
            found = {key: value for key, value in found.items() if key in KEYS}
    else:
        found = read_toml(path, "plan", LARGEST)
        check_keys(shown, found, KEYS, "a plan of layers")
    return plan_of(shown, found, ranks)


def plan_of(shown: str, found: Mapping[str, Any], ranks: int) -> WrittenPlan:
    """The plan that a dictionary has. Raises MspcError, as above."""
    mesh, stages = _mesh(shown, found.get("mesh", {TENSOR: ranks}), ranks)
    layers: dict[str, Any] = {}
    for key in ("base_model_tp_plan", "base_model_ep_plan", "layers"):
        layers |= _table(shown, found, key)
    sharded = found.get("fully_shard", False)
    if not isinstance(sharded, bool):
        raise MspcError(f"{shown}: fully_shard is {sharded!r:.60}, not true or false")
    parameters = _table(shown, found, "parameters")
    if not layers and not parameters and not sharded and stages == 1:
        raise MspcError(f"{shown}: there is no table [layers], and no other that says anything")
    styles = {name: _style(shown, name, value) for name, value in layers.items()}
    return WrittenPlan(
        shown, mesh, styles, {n: _placements(shown, n, v, mesh) for n, v in parameters.items()}, sharded, stages,
        tuple(_table(shown, found, "base_model_pp_plan")),
    )  # fmt: skip


def _json(path: Path, shown: str) -> dict[str, Any]:
    try:
        check_regular(path, LARGEST)
        found = parsed_json(path.read_bytes())
    except FileNotFoundError:
        raise MspcError(f"there is no plan {shown!r}") from None
    except OSError as error:
        raise MspcError(f"cannot read the plan {shown}: {reason_of(error)}") from None
    except ValueError as error:
        raise MspcError(f"{shown} is no JSON file: {error}") from None
    if not isinstance(found, dict):
        raise MspcError(f"{shown} is no plan: it holds no dictionary of layers")
    return cast("dict[str, Any]", found)


def _table(shown: str, found: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = found.get(key) or {}
    if not isinstance(value, dict):
        raise MspcError(f"{shown}: {key} is {value!r:.60}, not a table")
    return cast("dict[str, Any]", value)


def _mesh(shown: str, found: Any, ranks: int) -> tuple[dict[str, int], int]:
    """The axes of a stage's ranks, and the number of stages."""
    legal = isinstance(found, dict) and found and all(
        type(size) is int and size > 0 for size in cast("dict[str, Any]", found).values()
    )  # fmt: skip
    if not legal:
        raise MspcError(f"{shown}: mesh is {found!r:.60}, not axes with their sizes", notes=["as {dp = 2, tp = 4}"])
    mesh = cast("dict[str, int]", found)
    if PIPELINE in mesh and next(iter(mesh)) != PIPELINE:
        raise MspcError(f"{shown}: its mesh has the axis {PIPELINE!r} behind others, and a stage is ranks in a row",
                        notes=[f"as {{{PIPELINE} = 2, tp = 4}}"])  # fmt: skip
    if math.prod(mesh.values()) != ranks:
        axes = " x ".join(f"{axis} {size}" for axis, size in mesh.items())
        raise MspcError(f"{shown}: its mesh is {axes}, of {math.prod(mesh.values())} ranks, and there are {ranks}")
    stages = mesh.get(PIPELINE, 1)
    return {axis: size for axis, size in mesh.items() if axis != PIPELINE} or {TENSOR: 1}, stages


def _style(shown: str, name: str, value: Any) -> Style:
    if not isinstance(value, str):
        raise MspcError(f"{shown}: {name!r:.80} has the style {value!r:.60}, not a name", notes=["as 'colwise'"])
    try:
        return style_of(value)
    except MspcError as error:
        raise MspcError(f"{shown}: {name!r:.80}: {error.message}", notes=error.notes) from None


def _placements(shown: str, name: str, value: Any, mesh: Mapping[str, int]) -> tuple[Placement, ...]:
    entries = cast("list[Any]", value) if isinstance(value, list) else [value]
    found = [placement_of(entry) if isinstance(entry, str) else None for entry in entries]
    if len(found) != len(mesh) or None in found:
        axes = ", ".join(mesh)
        raise MspcError(
            f"{shown}: {name!r:.80} has the placements {value!r:.80}, not one for each of {axes}",
            notes=["a placement is Shard(d) or Replicate()"],
        )
    if PARTIAL in found:
        raise MspcError(f"{shown}: {name!r:.80} is Partial(): a parameter that is stored in sums would be no parameter")
    return tuple(each for each in found if each is not None)
