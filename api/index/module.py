"""What a public module answers that is asked for a name: rows, as scripts get them."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from mspc.api.index.table import rows_of

_OF_TENSORS = tuple(f"mspc.api.{room}" for room in ("mint.", "numpy.", "ops.function.", "ops.tensor_method"))
"""Where functions of tensors are defined, whose arguments are checked."""


@functools.cache
def names_of(module: str) -> tuple[str, ...]:
    """Public names of the rows of a module."""
    return tuple(sorted(name for name, row in rows_of(module).items() if name[0] != "." and row.is_public))


def find(module: str, name: str) -> Any:
    """The object behind a name of a module, `.name` for a method of tensors; a function of tensors with its arguments
    checked, but for one that tensors alone have, as they look at them before.

    Raises:
        LookupError: the index has no such name.
    """
    row = rows_of(module)[name]
    from mspc.api.index.functions import found  # where a name is asked for: modules open without their parts

    answer = found(row)
    if isinstance(answer, type):
        return _class(answer) if module == "ops" else answer
    is_of_tensors = not row.home or row.home.startswith(_OF_TENSORS)
    if not (row.is_public and is_of_tensors and isinstance(answer, FunctionType)) or hasattr(answer, "check_arguments"):
        return answer
    from mspc.api.ops.checked import checked  # it imports NumPy

    return checked(f"{module}.{name.removeprefix('.')}", answer)


def _class(found: type) -> type:
    """A class; one written by hand, where no table says what it is made with, checks that before."""
    from mspc.api.ops.checked import checked_class

    is_by_hand = "__init__" in vars(found) or found.__module__.startswith("mspc.api.ops.composed")
    return checked_class(found) if is_by_hand else found


def answers(
    module: str, kind: str = "function", otherwise: Callable[[str], Any] | None = None, modules: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a public module.

    kind: what its names are, for the message where there is none. otherwise: what gives an object that has no row, or
    raises AttributeError. modules: public modules below this one.
    """
    package = f"mspc.api.{module}"

    def get(name: str) -> Any:
        if name == "__all__":
            return sys.modules[package].__dir__()
        if name.startswith("__"):
            raise AttributeError(name)
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        row = rows_of(module).get(name)
        if row is not None and row.is_public:
            answer = find(module, name)
        elif otherwise is not None:
            answer = otherwise(name)
        else:
            raise AttributeError(f"{module} has no {kind} {name!r}")
        setattr(sys.modules[package], name, answer)
        return answer

    return get, lambda: sorted({*names_of(module), *modules})
