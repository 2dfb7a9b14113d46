"""Finds the modules that define operators. Importing them fills the registry, so that a text can be parsed."""

from __future__ import annotations

import os
import pkgutil
from functools import cache
from importlib import import_module

from mspc import ops
from mspc.ops.op import REGISTRY, Op

KERNELS = ("cpu", "cuda")
"""Rooms of `mspc.ops` without operators."""


@cache
def operator_modules() -> tuple[str, ...]:
    """Modules in the rooms of `mspc.ops` that may define operators, by name."""
    rooms = [room.name for room in pkgutil.iter_modules(ops.__path__) if room.ispkg and room.name not in KERNELS]
    return tuple(
        f"{ops.__name__}.{room}.{module.name}"
        for room in rooms
        for module in pkgutil.iter_modules([os.path.join(folder, room) for folder in ops.__path__])
    )


@cache
def load_operators() -> dict[str, type[Op]]:
    """Import every operator module and return the registry."""
    for module in operator_modules():
        import_module(module)
    return REGISTRY
