"""Plans of layers as files and styles of layers as PyTorch names them."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, cast

from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.files.parsing import check_keys, read_toml, table_in
from mspc.ir.late_dataclass import dataclass

# Names of styles are those of transformers' `base_model_tp_plan` and `base_model_ep_plan`, the classes of
# `parallelize_module`, and Megatron's two words.


OUT, IN, ROWS, COLUMNS, NOTHING = "out", "in", "rows", "columns", "nothing"
OPEN, PREPARED, STACK = "open", "prepared", "stack"
"""How a weight is cut: by its result, by its operand, by the rows or the columns of a table; OPEN: not given; PREPARED:
it is about the operands of layers inside of a module; STACK: of several weights every rank has some."""
WHOLE, CUT, SEQUENCE = "whole", "cut", "sequence"
"""How ranks hold the input or the result of a layer: whole, a slice of the last dimension, or a slice of dimension
1."""


@dataclass(frozen=True)
class Style:
    """One style.

    name: as it is written. weight, takes, gives: see the words above; takes "": as it comes. sums_gradient: ranks sum
    the gradient of a weight that each of them has whole, and of which each sees its own part of the data alone.
    is_local: its result is every rank's own tensor, and no DTensor. sums: the result of a module is summed over ranks.
    """

    name: str
    weight: str = NOTHING
    takes: str = ""
    gives: str = ""
    sums_gradient: bool = False
    is_local: bool = True
    sums: bool = False


def _styles(names: str, weight: str, takes: str = "", gives: str = "", sums: bool = False) -> dict[str, Style]:
    return {name: Style(name, weight, takes, gives, sums) for name in names.split()}


STYLES: Mapping[str, Style] = {
    **_styles("colwise column ColwiseParallel ColumnParallelLinear", OUT, WHOLE, CUT),
    **_styles("colwise_rep colwise_gather_output", OUT, WHOLE, WHOLE),
    **_styles("rowwise row RowwiseParallel RowParallelLinear", IN, CUT, WHOLE),
    **_styles("rowwise_rep rowwise_split_input", IN, WHOLE, WHOLE),
    **_styles("embedding_rowwise VocabParallelEmbedding", ROWS, WHOLE, WHOLE),
    **_styles("embedding_colwise", COLUMNS, WHOLE, WHOLE),
    **_styles("sequence_parallel SequenceParallel", NOTHING, SEQUENCE, SEQUENCE, True),
    **_styles("replicated_with_grad_allreduce", NOTHING, sums=True),
    **_styles("replicate", NOTHING),
    **_styles("PrepareModuleInput", PREPARED, "", WHOLE),
    **_styles("local_colwise", OUT, WHOLE, CUT),
    **_styles("local_rowwise", IN, CUT, WHOLE),
    **_styles("mla_kv_a_proj", NOTHING, sums=True),
    **_styles("ep_router", NOTHING),
    **_styles("grouped_gemm", STACK),
    **{name: Style(name, OPEN, sums=True) for name in "moe_tp_experts ep_dispatch_experts all_reduce gather".split()},
    **_styles(
        "packed_colwise packed_rowwise moe_identity_expert local_params local local_packed_rowwise isolated", OPEN,
    ),
}  # fmt: skip
"""All styles. Those that are OPEN describe how ranks divide work by hand; that work is divided as the rest suggests."""
_ARGUMENTS = ("desired_input_layouts", "input_layouts", "output_layouts", "use_local_output", "sequence_dim")


def style_of(text: str) -> Style:
    """Return the style that a text names: `colwise`, or `ColwiseParallel(output_layouts=Replicate())`. Raise MspcError
    if there is no such style."""
    name, mark, _ = text.partition("(")
    style = STYLES.get(name.strip())
    if style is None:
        notes = [*did_you_mean(name.strip(), STYLES), f"there are {', '.join(STYLES)}"]
        raise MspcError(f"there is no style {text!r:.80}", notes=notes)
    style = replace(style, name=text)
    if not mark:
        return style
    for word, value in _style_arguments(text).items():
        if word == "input_layouts":
            style = replace(style, takes=_placement_of_tensor(text, value))
        elif word in ("output_layouts", "desired_input_layouts"):
            style = replace(style, gives=_placement_of_tensor(text, value))
        elif word == "use_local_output":
            style = replace(style, is_local=not (isinstance(value, ast.Constant) and value.value is False))
    return style


def _style_arguments(text: str) -> dict[str, ast.expr]:
    """Return the arguments of a style that is written as a call, by their names."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        call = None
    if not isinstance(call, ast.Call) or call.args or any(word.arg is None for word in call.keywords):
        raise MspcError(f"cannot read the style {text!r:.80}", notes=["as ColwiseParallel(output_layouts=Replicate())"])
    found = {str(word.arg): word.value for word in call.keywords}
    for word in found:
        if word not in _ARGUMENTS:
            notes = [*did_you_mean(word, _ARGUMENTS), f"it has {', '.join(_ARGUMENTS)}"]
            raise MspcError(f"the style {text!r:.80} has no {word!r:.60}", notes=notes)
    return found


def _placement_of_tensor(text: str, value: ast.expr) -> str:
    """Return how ranks hold a tensor by `Shard(-1)`, `Shard(1)` or `Replicate()`; of several the first one."""
    if isinstance(value, ast.Tuple) and value.elts:
        value = value.elts[0]
    placement = placement_of(value)
    if placement is None or placement == PARTIAL:
        raise MspcError(f"the style {text!r:.80} has a layout that is not Shard(d) or Replicate()")
    if placement == REPLICATED:
        return WHOLE
    return SEQUENCE if placement == 1 else CUT


REPLICATED, PARTIAL = "replicated", "partial"
"""Placements that cut nothing."""
Placement = int | str
"""The dimension that an axis of the mesh cuts, or one of the words above."""


def placement_of(value: str | ast.expr) -> Placement | None:
    """`Shard(d)` as d, `Replicate()` and `Partial()` as their words; None for anything else."""
    if isinstance(value, str):
        try:
            value = ast.parse(value.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return None
    arguments: list[Any] = [*value.args, *(word.value for word in value.keywords if word.arg == "dim")]
    if value.func.id == "Shard" and len(arguments) == 1:
        try:
            dim = ast.literal_eval(arguments[0])
        except ValueError:
            return None
        return dim if type(dim) is int else None
    words = {"Replicate": REPLICATED, "Partial": PARTIAL}
    return words.get(value.func.id) if not arguments else None


# The file of a plan has a mesh of ranks, styles of layers and placements of parameters.
#
#     mesh = {dp = 2, tp = 4}
#     fully_shard = true
#     [layers]
#     "layers.*.attention.query" = "colwise"
#     "layers.*.attention.out" = "RowwiseParallel(output_layouts=Shard(1))"
#     [parameters]
#     "words.weight" = ["Replicate()", "Shard(0)"]
#
# `layers` has styles by patterns of modules, in which `*` is a number or one part of a name. `parameters` has
# placements, one for every axis of the mesh. The axis `tp`, or the last one, is the one that styles mean; the batch is
# cut by all others but `pp`, which comes first and says how many stages of a pipeline there are. Without a mesh all
# ranks are `tp`. `fully_shard` shares parameters with their states among ranks that would hold the same, and with
# `loss_parallel` losses take slices of classes, as in PyTorch's context of this name. A JSON file
# has the same, or the dictionary of layers alone, or a model's `config.json` with `base_model_tp_plan`,
# `base_model_ep_plan` and `base_model_pp_plan`, whose modules are on stages in their order.


LARGEST = 1 << 24
"""Bytes of a file."""
FLAGS = ("fully_shard", "loss_parallel")
KEYS = ("mesh", "layers", "parameters", *FLAGS, "base_model_tp_plan", "base_model_ep_plan", "base_model_pp_plan")
PIPELINE = "pp"
TENSOR = "tp"
"""The axis of the mesh that styles mean, if it has one called so."""


@dataclass(frozen=True)
class WrittenPlan:
    """One plan.

    name: of its file. mesh: axes of one stage's ranks with their sizes. layers: styles by patterns of modules.
    parameters: placements by patterns of parameters, one for every axis. fully_shard: parameters are shared among their
    replicas. loss_parallel: losses take slices of classes. stages: how many; in_order: modules that are divided among
    them, if any are named.
    """

    name: str
    mesh: Mapping[str, int]
    layers: Mapping[str, Style]
    parameters: Mapping[str, tuple[Placement, ...]] = field(default_factory=dict[str, tuple[Placement, ...]])
    fully_shard: bool = False
    loss_parallel: bool = False
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
    """Return the plan in a file, for so many ranks. Raise MspcError if it is none, or for others."""
    shown = shown_path(path)
    if path.suffix == ".json":
        found = read_toml(path, "plan", LARGEST, as_json=True)
        if not set(found) & set(KEYS):
            found = {"layers": found}
        elif set(found) - set(KEYS):  # a model's configuration, of which all else is not the plan
            found = {key: value for key, value in found.items() if key in KEYS}
    else:
        found = read_toml(path, "plan", LARGEST)
        if "operators" in found:
            notes = ["pass it to `mspc compile --strategies`"]
            raise MspcError(f"{shown} is a plan of operators, not of layers", notes=notes, code="E0412")
        check_keys(shown, found, KEYS, "a plan of layers")
    return plan_of(shown, found, ranks)


def plan_of(shown: str, found: Mapping[str, Any], ranks: int) -> WrittenPlan:
    """Return the plan that a dictionary has. Raise MspcError as above."""
    mesh, stages = _mesh(shown, found.get("mesh", {TENSOR: ranks}), ranks)
    layers: dict[str, Any] = {}
    for key in ("base_model_tp_plan", "base_model_ep_plan", "layers"):
        layers |= table_in(shown, found, key, required=False)
    flags = {key: found.get(key, False) for key in FLAGS}
    for key, value in flags.items():
        if not isinstance(value, bool):
            raise MspcError(f"{shown}: {key} is {value!r:.60}, not true or false")
    parameters = table_in(shown, found, "parameters", required=False)
    if not layers and not parameters and not flags["fully_shard"] and stages == 1:
        raise MspcError(f"{shown}: there is no table [layers], and no other that says anything")
    styles = {name: _style(shown, name, value) for name, value in layers.items()}
    return WrittenPlan(
        shown, mesh, styles, {n: _placements(shown, n, v, mesh) for n, v in parameters.items()}, **flags, stages=stages,
        in_order=tuple(table_in(shown, found, "base_model_pp_plan", required=False)),
    )  # fmt: skip


def _mesh(shown: str, found: Any, ranks: int) -> tuple[dict[str, int], int]:
    """Return the axes of a stage's ranks, and the number of stages."""
    legal = isinstance(found, dict) and found and all(
        type(size) is int and size > 0 for size in cast("dict[str, Any]", found).values()
    )  # fmt: skip
    if not legal:
        raise MspcError(f"{shown}: mesh is {found!r:.60}, not axes with their sizes", notes=["as {dp = 2, tp = 4}"])
    mesh = cast("dict[str, int]", found)
    if PIPELINE in mesh and next(iter(mesh)) != PIPELINE:
        raise MspcError(f"{shown}: its mesh has the axis {PIPELINE!r} after others, and a stage is consecutive ranks",
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
