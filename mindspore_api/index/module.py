"""Attributes of public modules, looked up in the index."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from mspc.mindspore_api.index.table import IndexRow, rows_of
from mspc.mindspore_api.rooms import home_of, public_modules, public_name

_WHOLE = "mspc"
Getter = Callable[[str], Any]


@functools.cache
def places_of(module: str) -> dict[str, tuple[str, str]]:
    """Return (defining module, name in it) of every object that a public module shows; ("", "") for objects made from
    rows.

    An object taken from all of another public module has the place at which that module finds it.
    """
    found: dict[str, tuple[str, str]] = {}
    for home in rows_of(module, "all"):
        other = public_name(home)
        is_table = other != module and bool(rows_of(other) or rows_of(other, "all"))
        found |= places_of(other) if is_table else _defined(home)
    for name, row in rows_of(module).items():
        if name[0] != "." and row.is_public and row.kind != "hidden":
            found[name] = (row.home, row.target if row.home else "")
    return found


def _defined(home: str) -> dict[str, tuple[str, str]]:
    return {name: (place, name) for name, place in defined_in(home).items()}


def names_of(module: str) -> list[str]:
    """Return the names of the objects that a public module shows."""
    return sorted(places_of(module))


def listed(module: str) -> list[str]:
    """Return `__all__` of a public module: its objects, and the modules that its table names. For mspc itself these are
    the top-level public modules; no name hides one of Python's."""
    modules: Iterable[str] = rows_of(module, "modules")
    if module == _WHOLE:
        modules = (name for name in public_modules() if name and "." not in name)
    return sorted({*places_of(module), *modules})


def find(module: str, name: str) -> Any:
    """Return the object with a name in a module, or with `.name` a method of tensors. Functions of tensors get checks
    of their arguments, except those that only tensors have, which check them already. Raise LookupError if the index
    has no such name."""
    row = rows_of(module).get(name)
    if row is None or not (row.is_of_tensors or module == "ops"):
        home, own = places_of(module)[name] if row is None else (row.home, row.target)
        return getattr(importlib.import_module(home), own)
    from mspc.mindspore_api.index.functions import object_of  # late: it imports NumPy

    return object_of(row, name)


class _Package(ModuleType):
    """Public package. Importing a module below it hides no name of the index: `parallel.shard` is a function, defined
    in `parallel/shard.py`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and value.__name__ == f"{self.__name__}.{name}"):
            super().__setattr__(name, value)


def answers(
    package: str, otherwise: Getter | None = None, names: Callable[[], Iterable[str]] = tuple
) -> tuple[Getter, Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a public module that defines none of its objects itself.

    Args:
        package: the full name of the module of mspc.
        otherwise: returns an object that the index does not have, or raises AttributeError.
        names: names of such objects.
    """
    module, get = public_name(package), beside(package, otherwise)
    opened = sys.modules[package]
    if package != _WHOLE and hasattr(opened, "__path__"):
        opened.__class__ = _Package

    def shown() -> list[str]:
        return sorted({*listed(module), *names()})

    def get_or_list(name: str) -> Any:
        if name == "__all__":
            return shown()
        answer = vars(opened)[name] = get(name)
        return answer

    return get_or_list, lambda: sorted({*shown(), *_modules_shown(package)})


def beside(package: str, otherwise: Getter | None = None) -> Getter:
    """Return `__getattr__` of a module that defines names itself: it finds the further names of the index."""
    module = public_name(package)

    def get(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _answer(package, module, name, otherwise)

    return get


def _answer(package: str, module: str, name: str, otherwise: Getter | None) -> Any:
    row = rows_of(module).get(name)
    if (row is not None and row.is_public) or name in places_of(module):
        return find(module, name)
    answer = _module_below(package, module, name)
    if answer is None:
        answer = _of_each(module, name)
    if answer is not None:
        return answer
    if otherwise is not None:
        return otherwise(name)

    known = () if name.startswith("_") else listed(module)  # tools look up private names of their own on every object
    if package == _WHOLE:
        raise AttributeError(f"module {_WHOLE!r} has no attribute {name!r}{why_absent(name, known)}")
    raise AttributeError(f"{module} has no {name!r}{why_absent(f'{module}.{name}', known)}")


def _module_below(package: str, module: str, name: str) -> ModuleType | None:
    if package == _WHOLE:
        return importlib.import_module(f"{_WHOLE}.{name}") if name and home_of(name) is not None else None
    full = f"{package}.{name}"
    if full in sys.modules or name in _files(package):
        return importlib.import_module(full)
    row = rows_of(_WHOLE, "module").get(f"{module}.{name}")
    return None if row is None else importlib.import_module(row.target)


@functools.cache
def _files(package: str) -> frozenset[str]:
    """Return the short names of the modules in the folder of a package."""

    return frozenset(modules_in(package))


def _modules_shown(package: str) -> Iterable[str]:
    if package not in rows_of(public_name(package), "all"):
        return ()
    above = f"{public_name(package)}."
    moved = (path.removeprefix(above) for path in rows_of(_WHOLE, "module") if path.startswith(above))
    return {*_files(package), *(name for name in moved if "." not in name)}


def _of_each(module: str, name: str) -> Any:
    for pattern, row in rows_of(module, "each").items():
        before, _, behind = pattern.partition("*")
        if not (name.startswith(before) and name.endswith(behind)):
            continue
        stem = name.removeprefix(before).removesuffix(behind)
        for target in row.target.split():
            place, _, own = target.replace("*", stem).rpartition(".")
            answer = getattr(importlib.import_module(home_of(place) or place), own, None)
            if answer is not None and not isinstance(answer, ModuleType):
                return answer
    return None


_DEFINED = re.compile(r"\n(?:(?:class|def) ([A-Za-z]\w*)|([a-z]\w*) = [a-z]\w*(?=\n))")
"""Classes, functions, and second names of functions (`divide = div`)."""
_LISTED = re.compile(r"\n__all__[^=]*= *[\[(]([^\])]*)[\])]")


@functools.cache
def defined_in(module: str) -> dict[str, str]:
    """Return the full name of the defining module by public name, for a package or one file: the names in the `__all__`
    of a file, or, for a file without one, its classes and functions without an underscore."""
    files = {home: file for home, file in _files_of(module).items() if os.path.basename(file) != "__init__.py"}
    found = ((name, home) for home, file in files.items() for name in _public(file))
    return {name: home for name, home in found if not name.startswith("_")}


def modules_in(package: str) -> list[str]:
    """Return the short names of the modules and packages directly in a package."""
    return [home.rpartition(".")[2] for home in _files_of(package) if home != package]


def _files_of(module: str) -> dict[str, str]:
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


def absent_names() -> dict[str, IndexRow]:
    """Return the rows for missing names, by name without the first part (`nn.Tril`)."""
    return rows_of("mspc", "absent")


def said_of(path: str, prefix: str = "") -> str:
    """Return the text of the index for a name without its first part, or for a prefix of the name; "" if there is none.
    The text for a name of `ops` also applies to all modules of `ops`.

    prefix: written before the suggested name, "mindspore.".
    """
    parts, rows = path.split("."), absent_names()
    places = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    if parts[0] == "ops" and ".".join(parts[:-1]) in rows_of("mspc", "module"):
        places.append(f"ops.{parts[-1]}")
    known = ((rows[place] for place in places if place in rows),
             (row for name, row in rows.items() if name[-1] == "*" and any(p.startswith(name[:-1]) for p in places)))
    row = next(itertools.chain(*known), None)
    if row is None:
        return ""
    return f"write {prefix}{row.target}" if row.target else " ".join(row.doc.split())


def why_absent(path: str, known: Iterable[str]) -> str:
    """Return the message for a name that mspc lacks, `nn.Tril` without the first part: its replacement, the reason, or
    the most similar known names; "" if nothing is known."""
    from mspc.ir.diagnostics import nearest

    said = said_of(path)
    if said:
        return f"; {said}"
    found = nearest(path.rpartition(".")[2], known)
    return f"; did you mean {' or '.join(found)}?" if found else ""
