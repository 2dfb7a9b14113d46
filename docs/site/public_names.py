"""Which of MindSpore's public names mspc has, module by module: `docs/reference/names.md`, made from the index.

The tests hold the document to the index, and write it anew with `--update-goldens`. The index's names of MindSpore are
taken from an installed one in two steps, for which two interpreters may be needed, as no mspc may be in the way of
the first:

    python docs/site/public_names.py list > names.json     # where MindSpore is installed
    python docs/site/public_names.py take names.json       # where mspc is; writes mindspore_api/index/mindspore.txt
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = (
    "", "nn", "nn.optim", "nn.loss", "nn.wrap", "ops", "ops.operations", "ops.composite", "ops.functional", "mint",
    "mint.nn", "mint.nn.functional", "mint.optim", "mint.distributed", "mint.linalg", "mint.special", "numpy", "Tensor",
    "dataset", "dataset.transforms", "dataset.vision", "dataset.text", "train", "train.callback", "train.serialization",
    "amp", "parallel", "parallel.nn", "communication", "communication.comm_func", "common", "common.dtype",
    "common.initializer", "context", "log", "runtime",
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
DOCUMENT, TABLE = ROOT / "docs" / "reference" / "names.md", ROOT / "mindspore_api" / "index" / "mindspore.txt"
HEAD = """# Names

MindSpore's public names in mspc: the names that MindSpore {version}, a build for the CPU, lists in a module
(`__all__`, or its `dir()`), and those that mspc has under the same name. `Tensor` is the row of methods and
attributes of tensors. A function may still refuse an argument, with a message. Generated from the tables of
`mindspore_api/index/` by `docs/site/public_names.py`.

| Module | MindSpore | mspc | Share |
|---|---|---|---|
"""

AFTER_TABLE = """
Most missing names have no use in scripts: names within MindSpore's own modules (`scalar_add`, `tuple_getitem`), and
names that hardly any file of the examined public collections uses. For the others mspc gives a reason or a
replacement:

| instead | names |
|---|---|
"""
MISSING = """
## Missing names

| module | names |
|---|---|
"""
TABLE_HEAD = """\
# What MindSpore {version}, a build for the CPU, lists in a module: how many names, and those that mspc lacks.
# Made by `docs/site/public_names.py`.

"""


def owner(first: str, module: str) -> Any:
    """The module, or the class Tensor. Raises ImportError where there is none."""
    if module == "Tensor":
        return importlib.import_module(first).Tensor
    return importlib.import_module(f"{first}.{module}".rstrip("."))


def public(module: Any) -> list[str]:
    """Return the names that a module or a class lists and has, without modules and helpers that it happens to
    import."""
    names = getattr(module, "__all__", None) or dir(module)
    wanted = {name for name in names if name.isidentifier() and not name.startswith("_") and hasattr(module, name)}
    return sorted(name for name in wanted if _is_own(getattr(module, name)))


def _is_own(value: Any) -> bool:
    if isinstance(value, ModuleType) or type(value).__name__ == "_Feature":
        return False
    home = getattr(value, "__module__", None) if inspect.isclass(value) or inspect.isroutine(value) else None
    return home is None or not str(home).startswith(("typing", "abc", "functools", "collections", "importlib", "types"))


def listed() -> dict[str, Any]:
    """Return the names that MindSpore has, by module."""
    found: dict[str, Any] = {"version": importlib.import_module("mindspore").__version__}
    for module in MODULES:
        try:
            found[module] = public(owner("mindspore", module))
        except ImportError:
            continue
    return found


def lacking(module: str, names: Iterable[str]) -> list[str]:
    """Those of some names that mspc lacks in a module."""
    try:
        place = owner("mspc", module)
    except ModuleNotFoundError:
        return list(names)
    return [name for name in names if not hasattr(place, name)]


def table(names: dict[str, Any]) -> str:
    """The text of the index's table of what MindSpore lists."""
    version = names.pop("version")
    rows = [
        ["lists:", module or "mspc", "=", str(len(theirs)), *lacking(module, theirs)]
        for module, theirs in names.items() if theirs
    ]  # fmt: skip
    return TABLE_HEAD.format(version=version) + "".join(f"{_wrapped(row, behind=' ' * 8)}\n" for row in rows)


def document() -> str:
    """The text of docs/reference/names.md, from the index."""
    from mspc.mindspore_api.alias import API_LEVEL
    from mspc.mindspore_api.index.table import rows_of

    text, missing = HEAD.format(version=API_LEVEL), ""
    total = there = 0
    for name, row in rows_of("mindspore", "lists").items():
        module = "" if name == "mspc" else name
        count, *lacked = row.target.split()
        lacked = lacking(module, lacked)
        theirs, mine = int(count), int(count) - len(lacked)
        total, there = total + theirs, there + mine
        shown = f"`mindspore.{module}`".replace(".`", "`")
        text += f"| {shown} | {theirs} | {mine} | {round(100 * mine / theirs)} % |\n"
        if lacked:
            missing += f"| {shown} | {_listed(lacked)} |\n"
    text += f"| all | {total} | {there} | {round(100 * there / total)} % |\n"
    return f"{text}\n## Why not\n{AFTER_TABLE}{_reasons()}{MISSING}{missing}"


def _reasons() -> str:
    """Return a row for every reason that the index gives for names that mspc lacks."""
    from mspc.mindspore_api.index.module import absent_names, said_of

    why: dict[str, list[str]] = {}
    for name in sorted(absent_names()):
        why.setdefault(said_of(name), []).append(name)
    return "".join(f"| {reason} | {_listed(names)} |\n" for reason, names in sorted(why.items()))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _wrapped(words: Iterable[str], width: int = 120, behind: str = "") -> str:
    """Words in lines. behind: what a line begins with that is not the first."""
    lines = [""]
    for word in words:
        longer = f"{lines[-1]} {word}" if lines[-1].strip() else f"{lines[-1]}{word}"
        if len(longer) > width and lines[-1].strip():
            lines.append(behind + word)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    if arguments == ["list"]:
        json.dump(listed(), sys.stdout, indent=1)
    elif len(arguments) == 2 and arguments[0] == "take":
        names = json.loads(Path(arguments[1]).read_text(encoding="utf-8"))
        TABLE.write_text(table(names), encoding="utf-8")
    else:
        sys.exit("public_names.py list > names.json, then public_names.py take names.json")


if __name__ == "__main__":
    main(sys.argv[1:])
