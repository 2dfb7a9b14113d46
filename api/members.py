"""Public names of a package of api/, found in the text of its files: a module is imported when one of its names is
asked for, and nothing is entered by hand.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_DEFINED = re.compile(r"\n(?:(?:class|def) ([A-Za-z]\w*)|([a-z]\w*) = [a-z]\w*(?=\n))")
"""Classes, functions, and second names of functions (`divide = div`)."""
_LISTED = re.compile(r"\n__all__[^=]*= *[\[(]([^\])]*)[\])]")


class Members:
    """The public names of one package: what the `__all__` of a module names, or, in a module without one, its classes
    and functions without an underscore.

    Args:
        package: full name of the package.
        others: modules that stand elsewhere, or packages below whose names belong here too, by their short names.
    """

    def __init__(self, package: str, **others: str) -> None:
        self.package = package
        self.others = others
        self.own_names: dict[str, str] = {}
        """What the module that defines it calls a public name, where that is another name."""

    @functools.cached_property
    def _files(self) -> dict[str, str]:
        """The files of the package's modules, by their full names."""
        return dict(_files_in(self.package, sys.modules[self.package].__path__))

    @functools.cached_property
    def modules(self) -> dict[str, str]:
        """Full names of the package's modules, by their short names."""
        return {home.rpartition(".")[2]: home for home in self._files} | self.others

    @functools.cached_property
    def homes(self) -> dict[str, str]:
        """Full name of the module that defines a public name."""
        opened = set(self.others.values())
        found = (
            place for home in self.modules.values() for place in _names_in(home, self._file(home), home in opened)
        )
        return {name: home for name, home in found if not name.startswith("_")}

    def _file(self, module: str) -> str:
        """The file of one of `modules`; of another package's Python says it."""
        spec = None if module in self._files else importlib.util.find_spec(module)
        return (spec and spec.origin) or self._files[module]

    def find(self, name: str) -> Any:
        """The public class or function, or the module, of that name: what the package's `__getattr__` answers.

        Raises:
            AttributeError: there is none.
        """
        if name == "__all__":
            return sorted(self.homes)
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self.homes:
            found = getattr(importlib.import_module(self.homes[name]), self.own_names.get(name, name))
            setattr(sys.modules[self.package], name, found)
            return found
        if name in self.modules:
            return importlib.import_module(self.modules[name])
        from mspc.api.absent import why_absent  # only on the way to an error
        from mspc.api.rooms import public_name

        short = public_name(self.package)
        raise AttributeError(f"{short} has no {name!r}{why_absent(f'{short}.{name}', self.homes)}")

    def names(self) -> list[str]:
        """Every public name, for `dir()`."""
        return sorted({*self.homes, *self.modules})


class Listed(Members):
    """The public names of a package that lists them, since its modules hold more than that.

    Args:
        package: full name of the package.
        homes: by the short name of a module the names that it gives, separated by spaces; `name=other` is what the
            module calls `other`.
        modules: short names of modules of the package that are public themselves.
    """

    def __init__(self, package: str, homes: Mapping[str, str], *modules: str) -> None:
        super().__init__(package)
        listed = [(name.partition("="), home) for home, names in homes.items() for name in names.split()]
        self.homes = {name: f"{package}.{home}" for (name, _, _), home in listed}
        self.modules = {module: f"{package}.{module}" for module in modules}
        self.own_names = {name: own for (name, _, own), _ in listed if own}

    def find(self, name: str) -> Any:
        """As of a package whose files say what is public, but that `__all__` has the modules, too."""
        return self.names() if name == "__all__" else super().find(name)


def _files_in(package: str, path: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(full name, file) of every module and package right below a package, in the order of their names."""
    for folder in path:
        for entry in sorted(os.listdir(folder)):
            place = os.path.join(folder, entry)
            if entry.endswith(".py"):
                if entry != "__init__.py":
                    yield f"{package}.{entry[:-3]}", place
            elif os.path.isfile(opening := os.path.join(place, "__init__.py")):
                yield f"{package}.{entry}", opening


def _names_in(module: str, file: str, is_opened: bool) -> Iterator[tuple[str, str]]:
    """(public name, module) of a module that is not imported for that; of a package's modules where it `is_opened`."""
    if os.path.basename(file) != "__init__.py":
        with open(file, encoding="utf-8") as opened:
            names = _public(opened.read())
        yield from ((name, module) for name in names)
    elif is_opened:
        for inner, place in _files_in(module, [os.path.dirname(file)]):
            yield from _names_in(inner, place, False)


def _public(text: str) -> list[str]:
    text = f"\n{text}\n"
    listed = _LISTED.search(text)
    if listed is not None:
        return re.findall(r"\w+", re.sub(r"#.*", "", listed[1]))
    return [first or second for first, second in _DEFINED.findall(text)]
