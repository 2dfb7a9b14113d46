"""What `Cell.set_inputs` declares of a cell's inputs, and whether a call is as declared."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mspc.api.common.symbol import Symbol
from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError


def declared(construct: Callable[..., Any], inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs by the names that `construct` has for them. Raises TypeError where it has none."""
    try:
        return dict(inspect.signature(construct).bind_partial(*inputs, **named).arguments)
    except TypeError as error:
        raise ApiTypeError(f"Cell.set_inputs: construct(): {error}") from None


def check(name: str, construct: Callable[..., Any], said: Mapping[str, Any], args: Sequence[Any]) -> None:
    """Nothing where the tensors of a call to the cell `name` are as declared. Raises TypeError for an element type,
    ValueError for a shape that is not."""
    given = inspect.signature(construct).bind_partial(*args).arguments
    sizes: dict[int, int] = {}
    for input_name, wanted in said.items():
        found = given.get(input_name)
        several = isinstance(wanted, tuple) and isinstance(found, tuple)
        for place, (one, other) in enumerate(zip(wanted, found, strict=False) if several else [(wanted, found)]):
            if isinstance(one, Tensor) and isinstance(other, Tensor):
                label = f"{input_name}[{place}]" if several else input_name
                _check_one(f"{name}: input {label!r}", one, other, sizes)


def _check_one(what: str, wanted: Tensor, found: Tensor, sizes: dict[int, int]) -> None:
    if wanted.dtype != found.dtype:
        raise ApiTypeError(f"{what} has element type {found.dtype}, but set_inputs declared {wanted.dtype}")
    allowed = wanted.shape if wanted.declared is None else wanted.declared
    if len(allowed) != len(found.shape):
        raise ApiValueError(
            f"{what} has shape {found.shape}, but set_inputs declared {len(allowed)} dimensions: {_shown(allowed)}"
        )
    for place, (rule, size) in enumerate(zip(allowed, found.shape, strict=True)):
        reason = _reason(rule, size, sizes)
        if reason:
            raise ApiValueError(
                f"{what} has shape {found.shape}, but set_inputs declared {_shown(allowed)}: dimension {place} must be "
                f"{reason}, not {size}"
            )


def _reason(rule: Any, size: int, sizes: dict[int, int]) -> str:
    """What a size must be and is not, "" where it is."""
    if not isinstance(rule, Symbol):
        return "" if rule in (None, -1, size) else str(rule)
    least, most = rule.min, rule.max if rule.max > rule.min else None
    if size < least or (most is not None and size > most):
        return f"from {least} to {most}" if most is not None else f"at least {least}"
    if size % rule.divisor != rule.remainder:
        return f"a multiple of {rule.divisor}" + f" and {rule.remainder} more" * bool(rule.remainder)
    if rule.unique and sizes.setdefault(id(rule), size) != size:
        return f"{sizes[id(rule)]}, as where the same symbol stands elsewhere"
    return ""


def _shown(allowed: Sequence[Any]) -> str:
    return "(" + ", ".join("?" if rule in (None, -1) else str(rule) for rule in allowed) + ",)"[len(allowed) > 1 :]
