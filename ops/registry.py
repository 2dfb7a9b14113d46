"""Operator classes by name. A module of operators is imported when one of its names is asked for: a table of who
declares what is read from the text of the modules, so that nothing is entered by hand and nothing is imported for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Generic, TypeVar

from mspc import ops

Operator = TypeVar("Operator", bound=type[Any])

KERNELS = ("cpu", "cuda")
"""Rooms of `mspc.ops` without operators."""

CLASS, FUNCTION, METHOD = "class", "function", "method"
"""Which of an operator's names: its class's, or those of `Op.function` and `Op.method`."""
_DECLARATIONS = {CLASS: "\nclass "} | {kind: f"\n    {kind}: ClassVar[Names] = " for kind in (FUNCTION, METHOD)}
"""The text that stands ahead of a name."""
_NAMES = re.compile(r"\([^)]*\)|.*")
"""The text of one name or of a tuple of them."""


class Operators(Mapping[str, Operator], Generic[Operator]):
    """Operator classes by one kind of their names; to walk over all of them imports all of them.

    A class enters itself when it is made, so that operators outside of mspc are here, too, once they are imported.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._made: dict[str, Operator] = {}

    def enter(self, names: Iterable[str], operator: Operator) -> None:
        """Enter an operator class under its names."""
        self._made.update(dict.fromkeys(names, operator))

    def __getitem__(self, name: str) -> Operator:
        if name not in self._made and name in homes()[self._kind]:
            import_module(homes()[self._kind][name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        load_all()
        return iter(sorted(self._made))

    def __len__(self) -> int:
        load_all()
        return len(self._made)


@cache
def load_all() -> None:
    """Import every module of operators."""
    for module in operator_modules():
        import_module(module)


@cache
def operator_modules() -> dict[str, str]:
    """Files in the rooms of `mspc.ops` that may define operators, by the names of their modules, in order."""
    found: dict[str, str] = {}
    for folder in ops.__path__:
        for room in sorted(set(os.listdir(folder)).difference(KERNELS)):
            place = os.path.join(folder, room)
            if os.path.isfile(os.path.join(place, "__init__.py")):
                names = (file[:-3] for file in sorted(os.listdir(place)) if file.endswith(".py") and file[0] != "_")
                found |= {f"{ops.__name__}.{room}.{name}": os.path.join(place, f"{name}.py") for name in names}
    return found


@cache
def homes() -> dict[str, dict[str, str]]:
    """For every kind of name the module that declares one; of classes also those that are no operators."""
    found: dict[str, dict[str, str]] = {kind: {} for kind in _DECLARATIONS}
    for module, path in operator_modules().items():
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for kind, declaration in _DECLARATIONS.items():
            for rest in text.split(declaration)[1:]:
                found[kind].update(dict.fromkeys(_declared(kind, rest), module))
    return found


def _declared(kind: str, text: str) -> list[str]:
    """The names with which the text behind a declaration begins."""
    if kind == CLASS:
        name, _, bases = text.partition("):")[0].partition("(")
        return [] if "abstract=True" in bases else [name]
    match = _NAMES.match(text)
    return match[0].split('"')[1::2] if match else []
