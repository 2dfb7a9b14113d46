"""Which of MindSpore's public names mspc has, module by module: `docs/names.md`.

Two steps, for which two interpreters may be needed, as no mspc may stand in the way of the first:

    python benchmarks/public_names.py list > names.json     # where MindSpore is installed
    python benchmarks/public_names.py table names.json      # where mspc is; writes docs/names.md
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = (
    "", "nn", "nn.optim", "nn.loss", "nn.wrap", "ops", "ops.operations", "ops.composite", "ops.functional", "mint",
    "mint.nn", "mint.nn.functional", "mint.optim", "mint.distributed", "mint.linalg", "mint.special", "numpy", "Tensor",
    "dataset", "dataset.transforms", "dataset.vision", "dataset.text", "train", "train.callback", "train.serialization",
    "amp", "parallel", "parallel.nn", "communication", "communication.comm_func", "common", "common.dtype",
    "common.initializer", "context", "log", "runtime", "_checkparam",
)  # fmt: skip
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "names.md"
HEAD = """# Names

Which of MindSpore's public names mspc has: those that MindSpore {version}, a build for the CPU, lists in a module
(`__all__`, or what its `dir()` shows), and those that can be had under the same name here. `Tensor` stands for the
methods and attributes of tensors. A name that is here may still refuse an argument: it says so then. Made by
`benchmarks/public_names.py`.

| Module | MindSpore | mspc | Share |
|---|---|---|---|
"""

BEHIND = """
Most of what is left has no use in scripts: names within MindSpore's own modules (`scalar_add`, `tuple_getitem`), and
what hardly a file of the public collections uses that were looked through. Of the rest mspc says why, or what to write:

"""
UNLISTED = ("dataset.audio", "nn.probability")
"""Modules that are not in the table."""


def owner(first: str, module: str) -> Any:
    """The module, or the class Tensor. Raises ImportError where there is none."""
    if module == "Tensor":
        return importlib.import_module(first).Tensor
    return importlib.import_module(f"{first}.{module}".rstrip("."))


def public(module: Any) -> list[str]:
    """What a module or a class lists and has, without modules and helpers that it happens to import."""
    names = getattr(module, "__all__", None) or dir(module)
    wanted = {name for name in names if name.isidentifier() and not name.startswith("_") and hasattr(module, name)}
    return sorted(name for name in wanted if _is_own(getattr(module, name)))


def _is_own(value: Any) -> bool:
    if isinstance(value, ModuleType) or type(value).__name__ == "_Feature":
        return False
    home = getattr(value, "__module__", None) if inspect.isclass(value) or inspect.isroutine(value) else None
    return home is None or not str(home).startswith(("typing", "abc", "functools", "collections", "importlib", "types"))


def listed() -> dict[str, Any]:
    """What MindSpore has, by module."""
    found: dict[str, Any] = {"version": importlib.import_module("mindspore").__version__}
    for module in MODULES:
        try:
            found[module] = public(owner("mindspore", module))
        except ImportError:
            continue
    return found


def has(module: str) -> Callable[[str], bool]:
    """Whether mspc has a name in a module."""
    try:
        place = owner("mspc", module)
    except ImportError:
        return lambda name: False

    def find(name: str) -> bool:
        try:
            getattr(place, name)
        except AttributeError:
            return False
        return True

    return find


def table(names: dict[str, Any]) -> str:
    """The text of docs/names.md."""
    text, missing = HEAD.format(version=names["version"]), ""
    why: dict[str, set[str]] = {}
    total = there = 0
    for module, theirs in names.items():
        if module == "version" or not theirs:
            continue
        mine = [name for name in theirs if has(module)(name)]
        total, there = total + len(theirs), there + len(mine)
        shown = f"`mindspore.{module}`".replace(".`", "`")
        text += f"| {shown} | {len(theirs)} | {len(mine)} | {round(100 * len(mine) / len(theirs))} % |\n"
        left = [f"`{name}`" for name in theirs if name not in mine]
        for name in theirs:
            reason = "" if name in mine else reason_of(module, name)
            if reason:
                why.setdefault(reason, set()).add(name)
        if left:
            missing += f"\n### {shown}\n\n{_wrapped(', '.join(left))}\n"
    text += f"| all | {total} | {there} | {round(100 * there / total)} % |\n"
    for name in UNLISTED:
        why.setdefault(reason_of("", name), set()).add(name)
    reasons = "".join(f"{_item(reason, found)}\n" for reason, found in sorted(why.items()))
    return f"{text}\n## Why not\n{BEHIND}{reasons}\n## What is not here\n{missing}"


def reason_of(module: str, name: str) -> str:
    """What mspc says of a name of a module that it lacks; "" where that is nothing."""
    from mspc.api.index.absent import why_absent

    short = "ops" if module.startswith("ops") else module
    places = (f"{short}.{name}".strip("."), name)
    return next((found for place in places if (found := why_absent(place, ()).removeprefix("; "))), "")


def _item(reason: str, names: set[str]) -> str:
    listed = ", ".join(f"`{name}`" for name in sorted(names))
    return _wrapped(f"- {reason}: {listed}").replace("\n", "\n  ")


def _wrapped(text: str, width: int = 118) -> str:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def main(arguments: list[str]) -> None:
    if arguments == ["list"]:
        json.dump(listed(), sys.stdout, indent=1)
    elif len(arguments) == 2 and arguments[0] == "table":
        names = json.loads(Path(arguments[1]).read_text(encoding="utf-8"))
        DOCUMENT.write_text(table(names), encoding="utf-8")
    else:
        sys.exit("public_names.py list > names.json, then public_names.py table names.json")


if __name__ == "__main__":
    main(sys.argv[1:])
