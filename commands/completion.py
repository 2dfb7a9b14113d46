"""Completions of a shell for an incomplete word: operators, passes, dtypes, files.

The module is imported at every start of `mspc`, so it imports nothing heavy at the top.
"""

from __future__ import annotations

import os

SCRIPTS = (".py", ".pt2", ".mlir")
GRAPHS = (".ir",)


def complete_operator(incomplete: str) -> list[str]:
    """Return the names of operators that begin with `incomplete`."""
    from mspc.ops.op import REGISTRY

    return [name for name in sorted(REGISTRY) if name.startswith(incomplete)]


def complete_passes(incomplete: str) -> list[str]:
    """Return lists of passes in which the last name is completed."""
    from mspc.passes.base import pass_names

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in pass_names() if name.startswith(last)]


def complete_input(incomplete: str) -> list[str]:
    """Return completions of the dtype in `float32[16,32]`."""
    from mspc.ir.types import DTYPES

    return [f"{name.lower()}[" for name in DTYPES if name.lower().startswith(incomplete)]


def complete_script(incomplete: str) -> list[str]:
    """Return scripts, and folders that may contain them."""
    return _files(incomplete, SCRIPTS)


def complete_graph(incomplete: str) -> list[str]:
    """Return text graphs, and folders that may contain them."""
    return _files(incomplete, GRAPHS)


def _files(incomplete: str, endings: tuple[str, ...]) -> list[str]:
    folder, begin = os.path.split(incomplete)
    try:
        entries = sorted(os.scandir(folder or "."), key=lambda entry: entry.name)
    except OSError:
        return []
    found: list[str] = []
    for entry in entries:
        shown = entry.name.startswith(begin) and (begin != "" or not entry.name.startswith("."))
        if shown and (entry.is_dir() or entry.name.endswith(endings)):
            found.append(os.path.join(folder, entry.name) + ("/" if entry.is_dir() else ""))
    return found
