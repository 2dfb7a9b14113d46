"""The dumps of a compile by the names of their passes: tests name no numbers, which change with every new pass."""

import re
from pathlib import Path

from mspc.compiler.pipeline import FILE_NAMES, OPTIONAL, rank_passes, shared_passes
from mspc.ir.compare import difference
from mspc.ir.opaque import Module

_NAME = re.compile(r"(?:(\d\d)_)?([a-z]\w*)_(\d{4})\.(?:ir|dot)")


def stages(mode: str = "semi_auto_parallel") -> list[str]:
    """Return the dumps of a compile in this mode at level 2, in order: the passes' names in those of the files. Passes
    that are dumped only where they have something to do are left out."""
    names = [name for name in (*shared_passes(mode), *rank_passes()) if name not in OPTIONAL]
    return ["frontend", *(FILE_NAMES.get(name, name) for name in names)]


def pass_of(path: Path) -> str:
    """The pass whose dump a file is: `execute` for 16_execute_0016.ir."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, path.name
    return match[2]


def counter(path: Path) -> int:
    """The last number in a dump's name: how many were written to the folder before it."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, path.name
    return int(match[3])


def dumped(folder: Path, suffix: str = ".ir") -> list[str]:
    """The passes whose dumps stand in a rank's folder, in the order in which they were written."""
    return [pass_of(path) for path in sorted(folder.glob(f"*{suffix}"), key=counter)]


def dump(folder: Path, name: str) -> Path:
    """The file of the pass `name` in a rank's folder."""
    (found,) = (path for path in folder.glob("*.ir") if pass_of(path) == name)
    return found


def module_difference(a: Module, b: Module) -> str:
    """Return the first difference of two files in words, "" if they are equal."""
    if (a.entry, a.dialect) != (b.entry, b.dialect):
        return f"the entries are @{a.entry} and @{b.entry}, the dialects {a.dialect!r} and {b.dialect!r}"
    if len(a.graphs) != len(b.graphs):
        return f"{len(a.graphs)} and {len(b.graphs)} graphs"
    found = (difference(left, right) for left, right in zip(a.graphs, b.graphs, strict=True))
    return next((text for text in found if text), "")
