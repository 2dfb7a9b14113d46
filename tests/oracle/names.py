"""Public names, and the places where a short one stands."""

from functools import cache

from mspc import mint, ops
from mspc.mindspore_api.ops.method_table import method_names


@cache
def _all() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The names in ops, mint and Tensor."""
    return frozenset(dir(ops)), frozenset(dir(mint)), frozenset(method_names())


def everywhere(functions: str, operators: str = "", besides: str = "") -> tuple[str, ...]:
    """Full names of these functions in ops, mint and Tensor, where they are, and of these operators; `besides` names
    those that another judge has."""
    in_ops, in_mint, methods = _all()
    found = [f"ops.{name}" for name in operators.split()]
    for name in functions.split():
        found += [f"ops.{name}"] * (name in in_ops) + [f"mint.{name}"] * (name in in_mint)
        found += [f"Tensor.{name}"] * (name in methods)
    return tuple(name for name in found if name not in besides.split())
