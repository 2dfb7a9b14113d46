"""No public name is lost, and none changes what it is or takes: `public_names.txt` holds all there were."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from mspc import Tensor
from mspc.mindspore_api import rooms
from mspc.mindspore_api.index.module import said_of
from mspc.mindspore_api.index.table import rows_of

THERE = Path(__file__).with_name("public_names.txt")
IN_NUMPY = ("numpy.array_creations", "numpy.array_ops", "numpy.logic_ops", "numpy.math_ops")
"""Files that MindSpore has, too."""


UNKNOWN = "(?)"
"""A signature of which Python knows nothing."""
UNSAID = re.compile(r" at 0x[0-9a-f]+|: 'Any'| -> 'Any'")
"""Names that a signature need not say to be known."""


def described(found: Any) -> str:
    """The kind of an object and what it is called with, on one line."""
    if isinstance(found, ModuleType):
        return "module"
    if not callable(found):
        return type(found).__name__
    kind = "class" if isinstance(found, type) else "function"
    try:
        signature = str(inspect.signature(found))
    except (TypeError, ValueError):
        signature = UNKNOWN
    return f"{kind} {UNSAID.sub('', signature)}"


@cache
def described_once(found: Any) -> str:
    return described(found)


def members(name: str) -> Iterator[tuple[str, str]]:
    """(name, description) of what a script may have of a public module; of a file without `__all__` what it defines."""
    module = importlib.import_module(f"mspc.{name}".rstrip("."))
    home = importlib.import_module(rooms.home_of(name) or "")
    listed = getattr(home, "__all__", ()) if name else dir(module)
    if not listed and "__dir__" in vars(home):
        listed = dir(home)
    if not listed:
        found = vars(home).items()
        listed = [n for n, its in found if n[0] != "_" and getattr(its, "__module__", "") == home.__name__]
    for member in listed:
        found = getattr(module, member)
        is_hashed = isinstance(found, FunctionType | type)
        if not member.startswith("__"):
            yield member, described_once(found) if is_hashed else described(found)


def methods() -> Iterator[tuple[str, str]]:
    """(name, description) of what tensors have."""
    for name in dir(Tensor([1.0])):
        if not name.startswith("_"):
            static = inspect.getattr_static(Tensor, name, None)
            yield name, "property" if isinstance(static, property) else described(getattr(Tensor, name))


FIRST = ("amp", "context", "device", "dtype", "runtime")
FILES = (
    "common.dtype", "common.initializer", "common.parameter", "common.seed", "common.tensor",
    "communication.comm_func", "communication.management", "dataset.config", "dataset.transforms", "dataset.vision",
    "mint.distributed", "mint.nn.functional", "nn.loss", "ops.functional",
    "ops.operations", "train.amp", "train.callback", "train.metrics", "train.model", "train.serialization",
)  # fmt: skip
"""Public modules that are no folders of mindspore_api/."""


def known_modules() -> list[str]:
    """Public modules but for the files that only mspc has; those of docs/reference/names.md are among them."""
    modules = rooms.public_modules()
    folders = {m for m in modules if not m or hasattr(importlib.import_module(rooms.home_of(m) or ""), "__path__")}
    judged = {m for m in rows_of("mindspore", "lists") if m not in ("mspc", "Tensor") and not said_of(m)}
    return sorted({*folders, *judged, *rooms.other_names(), *FIRST, *FILES, *IN_NUMPY})


def public_names() -> dict[str, dict[str, str]]:
    """Description by name, for every public module and for `Tensor`."""
    return {**{module: dict(members(module)) for module in known_modules()}, "Tensor": dict(methods())}


def text_of(found: dict[str, dict[str, str]]) -> str:
    """Which modules have the same names; then for each description the modules that have it and their names that it
    fits."""
    same: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for module, names in found.items():
        same.setdefault(tuple(names.items()), []).append(module or "mspc")
    lines = [f"{' '.join(modules)} =" for modules in same.values() if len(modules) > 1]
    for description in sorted({d for names in found.values() for d in names.values()}):
        lines.append(description)
        places: dict[str, list[str]] = {}
        for names, modules in same.items():
            there = " ".join(sorted(name for name, its in names if its == description))
            if there:
                places.setdefault(there, []).append(modules[0])
        lines += [f"  {' '.join(modules)}: {names}" for names, modules in places.items()]
    return "\n".join(lines) + "\n"


def read(text: str) -> dict[str, dict[str, str]]:
    """The text that `text_of` wrote."""
    found: dict[str, dict[str, str]] = {}
    description = ""
    for line in text.splitlines():
        if line.endswith(" ="):
            names: dict[str, str] = {}
            found |= {module: names for module in line.split()[:-1]}
        elif not line.startswith("  "):
            description = line
        else:
            modules, _, there = line.strip().partition(": ")
            for module in modules.split():
                found.setdefault(module, {}).update(dict.fromkeys(there.split(), description))
    return {"" if module == "mspc" else module: names for module, names in found.items()}


def test_every_name_of_before_is_there_and_takes_the_same(update_goldens: bool) -> None:
    """`--update-goldens` takes new names in."""
    found = public_names()
    if update_goldens:
        THERE.write_text(text_of(found), encoding="utf-8")
    wrong: list[str] = []
    for module, names in read(THERE.read_text(encoding="utf-8")).items():
        for name, description in names.items():
            now = found.get(module, {}).get(name)
            if now is None:
                there = importlib.import_module(f"mspc.{module}".rstrip("."))
                now = described(getattr(there, name)) if hasattr(there, name) else None
            if now != description and not (now and description.endswith(UNKNOWN)):
                wrong.append(f"{module}.{name} was {description}, is {now or 'missing'}")
    assert not wrong, "\n".join(wrong[:50])


def test_a_lost_name_and_a_changed_one_are_told() -> None:
    found = {"": {"a": "function (x)", "b": "class ()"}, "nn": {"a": "function (x)", "b": "class ()"}}
    assert read(text_of(found)) == found
    assert text_of(found) == "mspc nn =\nclass ()\n  mspc: b\nfunction (x)\n  mspc: a\n"
