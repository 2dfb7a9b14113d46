"""What a public module answers that is asked for a name: rows, as scripts get them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from mspc.api.index.table import Row, rows_of


def names_of(module: str) -> list[str]:
    """Public names of the rows of a module."""
    return sorted(name for name in rows_of(module) if name[0] not in "._")


def find(module: str, name: str) -> Any:
    """The object behind a name of a module, whose arguments are checked where it is a function of tensors.

    Raises:
        KeyError: the index has no such name.
    """
    row = rows_of(module)[name]
    from mspc.api.index.functions import found  # where a name is asked for: modules open without their parts

    return _checked(f"{module}.{name}", row, found(row))


def _checked(label: str, row: Row, found: Any) -> Any:
    if not callable(found) or isinstance(found, type) or hasattr(found, "check_arguments"):
        return found
    from mspc.api.ops.checked import checked  # it imports NumPy

    return checked(label, found)


def answers(module: str, kind: str = "function") -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a public module. kind: what its names are, for the message where there is none."""
    package = f"mspc.api.{module}"

    def get(name: str) -> Any:
        if name == "__all__":
            return names_of(module)
        if name not in rows_of(module) or name.startswith("_"):
            raise AttributeError(name if name.startswith("__") else f"{module} has no {kind} {name!r}")
        answer = find(module, name)
        setattr(sys.modules[package], name, answer)
        return answer

    return get, lambda: names_of(module)
