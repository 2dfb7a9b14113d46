"""A kind of operation, and its attributes in both written forms."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.readers.stablehlo.emitter import HloEmitter
from mspc.readers.stablehlo.module import Dense, HloOperation, SymbolReference, Words

Function = Callable[[HloEmitter, HloOperation, Sequence[Any]], Sequence[Any]]
"""Returns the results of an operation for its operands."""
Kinds = Mapping[str, Function]
"""Functions by the names of operations, without `stablehlo.`."""


def integers(operation: HloOperation, *names: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return a list of integers. Raise MspcError if the operation has none of these names."""
    for name in names:
        if name in operation.attributes:
            return integers_in(operation.attributes[name], name)
    if default is None:
        raise MspcError(f"{operation.name} has no {names[0]}")
    return tuple(default)


def integers_in(value: Any, name: str) -> tuple[int, ...]:
    """Return the integers of a list or a constant."""
    if isinstance(value, Dense):
        return tuple(map(int, re.findall(r"-?\d+", value.text)))
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
        raise MspcError(f"{name} is {value!r:.60}, not a list of integers")
    return tuple(map(int, value))


def rows(value: Any, count: int) -> tuple[tuple[int, int], ...]:
    """Return pairs of integers, one for each dimension: of nested lists or a constant."""
    if value is None:
        return ((0, 0),) * count
    flat = [n for row in value for n in row] if isinstance(value, list) else list(integers_in(value, "padding"))
    if len(flat) == 1:
        flat *= 2 * count
    if len(flat) != 2 * count:
        raise MspcError(f"padding has {len(flat)} numbers for {count} dimensions")
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def word(operation: HloOperation, name: str, known: Sequence[str], default: str = "") -> str:
    """Return one of some words: of the attribute `name` in generic form, or of the words of the operation."""
    value = operation.attributes.get(name)
    if isinstance(value, Words) and value.entries:
        value = value.entries[-1]
    if value is None:
        value = next((each for each in operation.words if each in known), default)
    if value not in known:
        raise MspcError(f"{operation.name}: {name} is {value!r:.60}; known are {', '.join(known)}")
    return str(value)


def symbol(operation: HloOperation, name: str) -> str:
    """Return the name of a function or a target that the operation names."""
    found = operation.attributes.get(name) or next((e for e in operation.entries if isinstance(e, SymbolReference)), "")
    return found.name if isinstance(found, SymbolReference) else str(found)


def flag(operation: HloOperation, name: str) -> bool:
    """Return a truth value, which is false if it is not written."""
    return operation.attributes.get(name) in (True, 1)
