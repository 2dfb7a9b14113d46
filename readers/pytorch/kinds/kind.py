"""A kind is one row of the table: its name in ATen, its arguments with their defaults, and a function for it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass

NEEDED = object()
"""The default of an argument that must be given."""
Function = Callable[..., Any]
Known = Callable[[dict[str, Any]], dict[str, Any]]
"""Gives the arguments of a call, by their names, in other words."""


@dataclass(frozen=True)
class KindArgument:
    """One argument of a kind. is_read: whether the function takes it; memory formats and devices are not read.
    is_fixed: it is not read, and has no other value than its default."""

    name: str
    default: Any
    is_read: bool
    is_fixed: bool = False


@dataclass(frozen=True)
class Kind:
    """One kind of node.

    name: `aten.add.Tensor`. arguments: in the order of the schema. target: a function of mspc's operators, which the
    front end reads; it takes the arguments in that order. put: for a kind whose result shares its first argument's
    elements, that argument with the result's elements replaced: it takes (argument, new result, the other arguments).
    writes: arguments that the kind overwrites; the target returns its results and then a new value for each, None for
    one that keeps its own. known: replaces arguments of which some are `KnownTensor`, before the call. is_counted: the
    numbers of its operands give the shapes of its results; the target takes the exported shapes as its last argument.
    """

    name: str
    arguments: tuple[KindArgument, ...]
    target: Function
    put: Function | None = None
    writes: tuple[str, ...] = ()
    known: Known | None = None
    is_counted: bool = False

    @property
    def unread(self) -> frozenset[str]:
        """The names of arguments that the target does not take."""
        return frozenset(argument.name for argument in self.arguments if not argument.is_read)

    def bound(self, given: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of the target. Raise MspcError for an argument that the row does not have, or that is
        missing."""
        known = {argument.name for argument in self.arguments}
        unknown = [name for name in given if name not in known]
        if unknown:
            raise MspcError(f"{self.name}: there is no argument {', '.join(map(repr, unknown))}")
        missing = [a.name for a in self.arguments if a.default is NEEDED and a.name not in given]
        if missing:
            raise MspcError(f"{self.name}: the argument {', '.join(map(repr, missing))} is missing")
        for argument in self.arguments:
            if argument.is_fixed and given.get(argument.name, argument.default) != argument.default:
                raise MspcError(f"{self.name}: {argument.name} is read as {argument.default} alone, and is "
                                f"{given[argument.name]}")  # fmt: skip
        return [given.get(argument.name, argument.default) for argument in self.arguments if argument.is_read]


def row(
    names: str, arguments: str, target: Function, put: Function | None = None, writes: str = "",
    known: Known | None = None, is_counted: bool = False,
) -> list[Kind]:  # fmt: skip
    """Return a row of the table for one name or several, of `aten` if they begin with no other library.

    arguments: as "self, other, alpha=1, -device=None, !sparse=False": with a "-" in front they are known, and not
    read, with a "!" they are refused if they are not their default.
    """
    read = tuple(_argument(text.strip()) for text in _parts(arguments))
    return [
        Kind(name if name.count(".") > 1 else f"aten.{name}", read, target, put, tuple(writes.split()), known,
             is_counted)
        for name in names.split()
    ]


def _parts(arguments: str) -> list[str]:
    """Split the text at its commas outside of parentheses."""
    found: list[str] = []
    for part in arguments.split(","):
        if found and found[-1].count("(") > found[-1].count(")"):
            found[-1] += f",{part}"
        elif part.strip():
            found.append(part)
    return found


def _argument(text: str) -> KindArgument:
    name, _, default = text.partition("=")
    is_read = name[0] not in "-!"
    value = ast.literal_eval(default) if default else NEEDED if is_read else None
    return KindArgument(name.lstrip("-!"), value, is_read, name.startswith("!"))
