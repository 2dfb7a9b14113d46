"""The list of operator modules. Importing them fills the registry, so that a text can be parsed."""

from __future__ import annotations

from importlib import import_module

from mspc.ops.op import REGISTRY, Op

MODULES = (
    "structural", "cast", "reshape", "broadcast", "comparison", "arithmetic", "elementwise",
    "trigonometry", "special", "integer", "reduce", "all_finite", "matmul", "slicing", "shape", "activation",
    "piecewise",
    "softmax", "norm", "attention", "embedding", "scatter", "masking", "creation", "random", "selection", "loss",
    "mint", "mint_selection", "mint_arithmetic", "random_mask", "parts", "parameter_scatter", "distance",
    "dump", "sampling", "optimizer", "comm", "exchange", "regroup", "point_to_point",
    "fused_elementwise", "fused_matmul", "fused_norm", "grouped_update",
)  # fmt: skip
"""Modules of `mspc.ops` that define operators, in the order in which they build on each other."""


def load_operators() -> dict[str, type[Op]]:
    """Import every operator module and return the registry."""
    for module in MODULES:
        import_module(f"mspc.ops.{module}")
    return REGISTRY
