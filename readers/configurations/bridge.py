"""Reader of rows of Megatron-Bridge's performance summary: a published model, its degrees and its precision."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.readers.configurations.presets import PRESETS, preset_settings
from mspc.readers.configurations.settings import Setting, tables_of

DEGREES = tables_of("trainers")["bridge"]
"""Columns, and Megatron's names of their settings."""
RECIPES = {
    "BF16": "", "FP8": "delayed", "FP8-CS": "tensorwise", "FP8-MX": "mxfp8", "MXFP8": "mxfp8", "NVFP4": "nvfp4",
}  # fmt: skip
"""Precisions, and Megatron's recipes of 8-bit and 4-bit matmuls."""


def is_row(content: Mapping[str, Any]) -> bool:
    """Return if a JSON object is a row."""
    return "#-GPUs" in content and "GBS" in content


def row_settings(row: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield the settings of a row, with Megatron's names. Raise MspcError if its model is not known."""
    found = {setting.name: setting for setting in preset_settings(preset_of(row))}
    for column, name in DEGREES.items():
        number = first_number(str(row.get(column, "")))
        if number is not None and not (name.startswith("num-virtual") and number == 1):
            found[name] = Setting(name, number, shown=column)
    tensor, stages, chunks = (
        max(1, first_number(str(row.get(column, ""))) or 1) for column in ("TP", "PP", "VP")
    )  # fmt: skip
    if tensor > 1:
        found["sequence-parallel"] = Setting("sequence-parallel", True)
        found["tp-comm-overlap"] = Setting("tp-comm-overlap", True)
        found["expert-tensor-parallel-size"] = Setting("expert-tensor-parallel-size", 1)
    found["moe-token-dispatcher-type"] = Setting("moe-token-dispatcher-type", "flex")
    found["cross-entropy-loss-fusion"] = Setting("cross-entropy-loss-fusion", True)
    found["cross-entropy-fusion-impl"] = Setting("cross-entropy-fusion-impl", "te")
    if (first_number(str(row.get("FSDP", ""))) or 0) > 1:
        found["use-megatron-fsdp"] = Setting("use-megatron-fsdp", True)
        found["data-parallel-sharding-strategy"] = Setting("data-parallel-sharding-strategy", "optim_grads_params")
    precision = str(row.get("Precision", "")).split(" ")[0] or "FP8-CS"
    if precision not in RECIPES:
        raise MspcError(f"Precision is {precision!r}", notes=[f"it is one of {', '.join(RECIPES)}"])
    if RECIPES[precision]:
        found["fp8-format"] = Setting("fp8-format", "hybrid")
        found["fp8-recipe"] = Setting("fp8-recipe", RECIPES[precision])
    if "num-experts" in found and has_graphs(row):
        found["cuda-graph-impl"] = Setting("cuda-graph-impl", "transformer_engine")
    if "w/o MTP" in str(row.get("Model", "")):
        found.pop("mtp-num-layers", None)
    if int(found["num-layers"].value) % (stages * chunks):
        # The recipes count the embedding and the loss as layers then.
        for name in ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"):
            found[name] = Setting(name, True)
    yield from found.values()


def has_graphs(row: Mapping[str, Any]) -> bool:
    """Return if the recipe of a model with experts captures CUDA graphs: from release 26 on, and before if experts drop
    tokens, so that all shapes are fixed (megatron/bridge/recipes, `cuda_graph_impl`)."""
    return (first_number(str(row.get("container", ""))) or 0) >= 26 or "tokendrop" in str(row.get("Model", ""))


def preset_of(row: Mapping[str, Any]) -> str:
    """Return the name of the published model of a row."""
    text = str(row.get("Model") or row.get("section") or "")
    word = re.sub(r"\(.*?\)", "", text).strip().lower().replace("_", "-").replace(" ", "-")
    word = re.sub(r"^(deepseek|kimi)-?", r"\1-", word)
    if word not in PRESETS:
        raise MspcError(f"Model is {text!r}", notes=[f"published models with known sizes: {', '.join(PRESETS)}"])
    return word


def machine_of_row(row: Mapping[str, Any]) -> str:
    """Return the name of the machine of a row, such as "h100"."""
    text = str(row.get("System") or row.get("section") or "")
    return text.lower().removeprefix("dgx-")


def first_number(text: str) -> int | None:
    """Return the first number of a cell such as `64 (0)`, or None for `n/a`."""
    found = re.match(r"\s*(\d+)", text)
    return int(found[1]) if found else None
