"""Public names, and the places where a short one stands."""

from __future__ import annotations

from mspc import mint, ops
from mspc.api.ops.method_table import method_names


def everywhere(functions: str, operators: str = "", besides: str = "") -> tuple[str, ...]:
    """Full names of these functions in ops, mint and Tensor, where they are, and of these operators; `besides` names
    those that another judge has."""
    found = [f"ops.{name}" for name in operators.split()]
    for name in functions.split():
        found += [f"ops.{name}"] * (name in dir(ops)) + [f"mint.{name}"] * (name in dir(mint))
        found += [f"Tensor.{name}"] * (name in method_names())
    return tuple(name for name in found if name not in besides.split())
