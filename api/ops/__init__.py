"""`mindspore.ops`: a Primitive for every operator, and functions that call operators.

Names are looked up on first use: those of the index in its tables, operators in the registry. Code inside mspc imports
the operators' modules instead.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

from mspc.api.index.module import answers, names_of


class _Facade(types.ModuleType):
    """Keeps functions such as `ops.matmul` and `ops.cast` from being hidden by the files of the
    same names.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, types.ModuleType) and value.__name__ == f"{__name__}.{name}"):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade


def _otherwise(name: str) -> Any:
    """An operator, or the module of that name."""
    if name == "functional":
        return sys.modules[__name__]
    is_operator = name[0].isupper()
    found = _operator(name) if is_operator else sys.modules.get(f"{__name__}.{name}")
    if found is None:
        kind = "operator" if is_operator else "function"
        raise AttributeError(f"ops has no {kind} {name!r}; `mspc ops` lists what there is")
    return found


def _operator(name: str) -> Any:
    from mspc.api.ops.primitive import primitive_class
    from mspc.ops.op import REGISTRY  # late: it imports NumPy

    importlib.import_module("mspc.api.common.tensor")  # it tells operators of groups and of results outside a graph
    op = REGISTRY.get(name)
    return None if op is None else primitive_class(op)


__getattr__, _ = answers("ops", otherwise=_otherwise)


def __dir__() -> list[str]:
    from mspc.ops.modules import load_operators

    return sorted({*names_of("ops"), *load_operators()})
