"""The registry of operator classes by name. A module of operators is imported when one of its names is needed. The
module that declares a name is found in the text of the modules, so that nothing is entered by hand and nothing is
imported for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Generic, TypeVar

from mspc import ops

Operator = TypeVar("Operator", bound=type[Any])

KERNELS = ("cpu", "cuda")
"""Folders of `mspc.ops` without operators."""

_DECLARATION = "\nclass "
"""The text before the name of an operator's class."""
_ROWS = (" = operator(", " = unary(", " = binary(", " = smooth(", " = resampling(", " = convolutions(")
"""The text after the name of an operator, or names with commas between, in the table of a family."""


class Operators(Mapping[str, Operator], Generic[Operator]):
    """Operator classes by their names; iterating over them imports all of them.

    A class enters itself when it is made, so that operators outside of mspc are included once they are imported.
    """

    def __init__(self) -> None:
        self._made: dict[str, Operator] = {}

    def enter(self, name: str, operator: Operator) -> None:
        """Enter an operator class under its name."""
        self._made[name] = operator

    def __getitem__(self, name: str) -> Operator:
        if name not in self._made and name in homes():
            import_module(homes()[name])
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
    """Return the files in the folders of `mspc.ops` that may define operators, by the names of their modules, in
    order."""
    found: dict[str, str] = {}
    for folder in ops.__path__:
        for room in sorted(set(os.listdir(folder)).difference(KERNELS)):
            place = os.path.join(folder, room)
            if os.path.isfile(os.path.join(place, "__init__.py")):
                names = (file[:-3] for file in sorted(os.listdir(place)) if file.endswith(".py") and file[0] != "_")
                found |= {f"{ops.__name__}.{room}.{name}": os.path.join(place, f"{name}.py") for name in names}
    return found


@cache
def homes() -> dict[str, str]:
    """Return the modules that declare classes, operators or not, by the names of the classes."""
    found: dict[str, str] = {}
    for module, path in operator_modules().items():
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for rest in text.split(_DECLARATION)[1:]:
            name, _, bases = rest.partition("):")[0].partition("(")
            if "abstract=True" not in bases:
                found[name] = module
        for row in _ROWS:
            lines = (before.rpartition("\n")[2] for before in text.split(row)[:-1])
            found |= {name: module for line in lines for name in line.split(", ")}
    return found
