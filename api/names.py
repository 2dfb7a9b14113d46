"""The public names of mspc, as `mindspore` has them, by the index: where each one lives. Looked up on first use."""

from __future__ import annotations

import importlib
from typing import Any

from mspc.api.alias import home_of, public, public_modules
from mspc.api.index.table import rows_of

HOME = {name: row.home for name, row in rows_of("mspc").items()}


def find(name: str) -> Any:
    """The object behind a public name.

    Raises:
        AttributeError: mspc has no such name.
    """
    if name == "__all__":
        return names()
    if name in HOME:
        return public(getattr(importlib.import_module(HOME[name]), name))
    if name and home_of(name) is not None:
        return importlib.import_module(f"mspc.{name}")
    from mspc.api.absent import why_absent  # only on the way to an error

    raise AttributeError(f"module 'mspc' has no attribute {name!r}{why_absent(name, names())}")


def names() -> list[str]:
    """Every public name, for `dir()` and `import *`: the objects, and the modules right below; none hides Python's."""
    return sorted({*HOME.keys() - {"bool"}, *(module for module in public_modules() if module and "." not in module)})
