"""Names and places of the public modules that scripts import.

mindspore_api/ has the layout of MindSpore, module for module; the index lists the modules with another place.
"""

from __future__ import annotations

import functools
import os

ROOMS = ("mindspore_api",)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder of mspc."""
PUBLIC = tuple(f"mspc.{room}." for room in ROOMS)
"""Prefixes of the full names of public modules."""
_INTERNAL = frozenset(
    "alias checks errors guarded index launch pytest_plugin rooms setting_kind settings state".split()
)
"""Modules of mindspore_api/ that no script imports."""


def public_name(module: str) -> str:
    """Return the name of a public module without its folder: `nn.loss` for `mspc.mindspore_api.nn.loss`."""
    room = next((room for room in PUBLIC if module.startswith(room)), "")
    return module.removeprefix(room)


@functools.cache
def other_names() -> dict[str, str]:
    """Return the modules of mspc by their MindSpore name, for those with different names."""
    from mspc.mindspore_api.index.table import rows_of  # `import mspc` costs nothing

    return {name: row.target for name, row in rows_of("mspc", "module").items()}


def public_modules() -> list[str]:
    """Return the names of all public modules without the first part; "" is mspc itself."""
    found = {"", *other_names()}
    for top in (os.path.join(ROOT, room) for room in ROOMS):
        for folder, _, files in os.walk(top):
            parts = os.path.relpath(folder, top).split(os.sep) if folder != top else []
            if "__init__.py" in files:
                found.add(".".join(parts))
            found |= {".".join([*parts, file[:-3]]) for file in files if file.endswith(".py") and file != "__init__.py"}
    return sorted(name for name in found if name.partition(".")[0] not in _INTERNAL)


@functools.cache
def home_of(name: str) -> str | None:
    """Return the module of mspc for a public name (`nn.loss.loss`), or None. The result is cached, because some file
    systems take half a millisecond to report a missing file."""
    if name in other_names():
        return other_names()[name]
    if not name:
        return "mspc"
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    if name.partition(".")[0] in _INTERNAL:
        return None
    for room in ROOMS:
        place = os.path.join(ROOT, room, *name.split("."))
        if os.path.isfile(f"{place}.py") or os.path.isfile(os.path.join(place, "__init__.py")):
            return f"mspc.{room}.{name}"
    return None
