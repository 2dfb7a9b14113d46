"""A public module that is asked for a name answers by this module: it gives what the index has, as scripts get that."""

from __future__ import annotations

import functools
import importlib
import importlib.util
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
    """(module that defines it, its name there) of every object that a public module shows; ("", "") of what rows make.

    What is taken from all of another public module is where that one has it from.
    """
    found: dict[str, tuple[str, str]] = {}
    for home in rows_of(module, "all"):
        other = public_name(home)
        is_table = other != module and _has_table(other)
        found |= places_of(other) if is_table else _defined(home)
    for name, row in rows_of(module).items():
        if name[0] != "." and row.is_public and row.kind != "hidden":
            found[name] = (row.home, row.target if row.home else "")
    return found


def _has_table(module: str) -> bool:
    return bool(rows_of(module) or rows_of(module, "all"))


def _defined(home: str) -> dict[str, tuple[str, str]]:

    return {name: (place, name) for name, place in defined_in(home).items()}


def names_of(module: str) -> list[str]:
    """Names of the objects that a public module shows."""
    return sorted(places_of(module))


def listed(module: str) -> list[str]:
    """`__all__` of a public module: its objects, and the modules that its table names. Of the whole these are the
    modules right below it, and no name hides one of Python's."""
    modules: Iterable[str] = rows_of(module, "modules")
    if module == _WHOLE:
        modules = (name for name in public_modules() if name and "." not in name)
    return sorted({*places_of(module), *modules})


def find(module: str, name: str) -> Any:
    """The object behind a name of a module, `.name` for a method of tensors; a function of tensors with its arguments
    checked, but for one that tensors alone have, as they look at them before. Raises LookupError if the index has no
    such name."""
    row = rows_of(module).get(name)
    if row is None or not (row.is_of_tensors or module == "ops"):
        home, own = places_of(module)[name] if row is None else (row.home, row.target)
        return getattr(importlib.import_module(home), own)
    from mspc.mindspore_api.index.functions import object_of  # where a name is used: it imports NumPy

    return object_of(row, name)


class _Package(ModuleType):
    """A public package. A module below it that is imported hides no name of the index: `parallel.shard` is a function,
    which is in `parallel/shard.py`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and value.__name__ == f"{self.__name__}.{name}"):
            super().__setattr__(name, value)


def answers(
    package: str, otherwise: Getter | None = None, names: Callable[[], Iterable[str]] = tuple
) -> tuple[Getter, Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a public module whose objects are all defined elsewhere.

    Args:
        package: the full name of the module of mspc.
        otherwise: gives an object that the index does not have, or raises AttributeError.
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
    """`__getattr__` of a module that defines names itself: what the index has of it beside these."""
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

    known = () if name.startswith("_") else listed(module)  # tools ask every object for names of their own
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
    """Short names of the modules in the folder of a package."""

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
    """The full name of the defining module by public name, of a package or of one file: what the `__all__` of a file
    names, or, in a file without one, its classes and functions without an underscore."""
    files = {home: file for home, file in _files_of(module).items() if os.path.basename(file) != "__init__.py"}
    found = ((name, home) for home, file in files.items() for name in _public(file))
    return {name: home for name, home in found if not name.startswith("_")}


def modules_in(package: str) -> list[str]:
    """Short names of the modules and packages right below a package."""
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
    """The rows by names without the first (`nn.Tril`)."""
    return rows_of("mspc", "absent")


def said_of(path: str, prefix: str = "") -> str:
    """The text of the index for a name without the first, or for a name above it; "" if that is nothing. The text for a
    name of `ops` counts in all modules of `ops`.

    prefix: what is ahead of a name to write instead, "mindspore.".
    """
    parts, rows = path.split("."), absent_names()
    places = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    if parts[0] == "ops" and ".".join(parts[:-1]) in rows_of("mspc", "module"):
        places.append(f"ops.{parts[-1]}")
    row = next((rows[place] for place in places if place in rows), None)
    if row is None:
        return ""
    return f"write {prefix}{row.target}" if row.target else " ".join(row.doc.split())


def why_absent(path: str, known: Iterable[str]) -> str:
    """The message for a name that mspc lacks, `nn.Tril` without the first: what stands for it, why there is none, or
    the known names that are most like it; "" if nothing is known."""
    from mspc.ir.diagnostics import nearest

    said = said_of(path)
    if said:
        return f"; {said}"
    found = nearest(path.rpartition(".")[2], known)
    return f"; did you mean {' or '.join(found)}?" if found else ""
