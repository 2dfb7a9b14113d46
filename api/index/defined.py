"""Names that the files of a package define are found in their text: no module is imported for that, and nothing is
entered by hand."""

from __future__ import annotations

import functools
import importlib.util
import os
import re

_DEFINED = re.compile(r"\n(?:(?:class|def) ([A-Za-z]\w*)|([a-z]\w*) = [a-z]\w*(?=\n))")
"""Classes, functions, and second names of functions (`divide = div`)."""
_LISTED = re.compile(r"\n__all__[^=]*= *[\[(]([^\])]*)[\])]")


@functools.cache
def defined_in(module: str) -> dict[str, str]:
    """The full name of the defining module by public name, of a package or of one file: what the `__all__` of a file
    names, or, in a file without one, its classes and functions without an underscore."""
    files = {home: file for home, file in _files_of(module).items() if os.path.basename(file) != "__init__.py"}
    found = ((name, home) for home, file in files.items() for name in _public(file))
    return {name: home for name, home in found if not name.startswith("_")}


def modules_in(package: str) -> list[str]:
    """Short names of the modules and packages right below a package."""
    return [home.rpartition(".")[2] for home in _files_of(package) if home != package]


def _files_of(module: str) -> dict[str, str]:
    """The files of what stands right below a package, by their full names; of a module its own."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    if spec.submodule_search_locations is None:
        return {module: str(spec.origin)}
    found: dict[str, str] = {}
    for folder in spec.submodule_search_locations:
        for entry in sorted(os.listdir(folder)):
            place = os.path.join(folder, entry)
            if entry.endswith(".py") and entry != "__init__.py":
                found[f"{module}.{entry[:-3]}"] = place
            elif os.path.isfile(opening := os.path.join(place, "__init__.py")):
                found[f"{module}.{entry}"] = opening
    return found


def _public(file: str) -> list[str]:
    with open(file, encoding="utf-8") as opened:
        text = f"\n{opened.read()}\n"
    listed = _LISTED.search(text)
    if listed is not None:
        return re.findall(r"\w+", re.sub(r"#.*", "", listed[1]))
    return [first or second for first, second in _DEFINED.findall(text)]
