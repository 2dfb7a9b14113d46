"""What a style says of a layer: how its weight is cut, what it takes and what it gives.

Names are those of transformers' `base_model_tp_plan` and `base_model_ep_plan`, the classes of `parallelize_module`, and
Megatron's two words.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.nearest import did_you_mean

OUT, IN, ROWS, COLUMNS, NOTHING = "out", "in", "rows", "columns", "nothing"
OPEN, PREPARED, STACK = "open", "prepared", "stack"
"""What of a weight is cut: what it gives, what it takes, the rows or the columns of a table; OPEN: it is not said;
PREPARED: it is about what layers inside of a module take; STACK: of several weights every rank has some."""
WHOLE, CUT, SEQUENCE = "whole", "cut", "sequence"
"""How ranks hold what a layer takes or gives: all of it, a slice of the last dimension, or a slice of dimension 1."""


@dataclass(frozen=True)
class Style:
    """One style.

    name: as it is written. weight, takes, gives: see the words above; takes "": as it comes. sums_gradient: ranks sum
    the gradient of a weight that each of them has whole, and of which each sees its own part of the data alone.
    is_local: what it gives is every rank's own tensor, and no DTensor. sums: of a module, that what it gives is summed
    over ranks.
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
"""All styles. Those that are OPEN say how ranks divide work by hand; what they do is divided as the rest suggests."""
_ARGUMENTS = ("desired_input_layouts", "input_layouts", "output_layouts", "use_local_output", "sequence_dim")


def style_of(text: str) -> Style:
    """The style that a text names: `colwise`, or `ColwiseParallel(output_layouts=Replicate())`.

    Raises:
        MspcError: there is no such style.
    """
    name, mark, _ = text.partition("(")
    style = STYLES.get(name.strip())
    if style is None:
        notes = [*did_you_mean(name.strip(), STYLES), f"there are {', '.join(STYLES)}"]
        raise MspcError(f"there is no style {text!r:.80}", notes=notes)
    style = replace(style, name=text)
    if not mark:
        return style
    for word, value in _given(text).items():
        if word == "input_layouts":
            style = replace(style, takes=_held(text, value))
        elif word in ("output_layouts", "desired_input_layouts"):
            style = replace(style, gives=_held(text, value))
        elif word == "use_local_output":
            style = replace(style, is_local=not (isinstance(value, ast.Constant) and value.value is False))
    return style


def _given(text: str) -> dict[str, ast.expr]:
    """The arguments of a style that is written as a call, by their names."""
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


def _held(text: str, value: ast.expr) -> str:
    """How ranks hold a tensor by `Shard(-1)`, `Shard(1)` or `Replicate()`; of several the first one."""
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
