"""Import of public modules: `mindspore.nn` and `mspc.nn` are mindspore_api/nn. One finder class serves both names."""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any

from mspc.mindspore_api.rooms import PUBLIC, ROOT, home_of, public_modules

NAME = "mindspore"
_OWN = "mspc"
SHARED = ("ops", "runtime")
"""Packages of mspc that share their name with a public module: scripts find that module's names in them."""
API_LEVEL = "2.10.0"
"""The value of `mindspore.__version__`: the interface that mspc follows."""


@functools.cache
def _files(folder: str) -> frozenset[str]:
    """Return the names of the modules in a folder, excluding packages, at the first call."""
    try:
        return frozenset(file[:-3] for file in os.listdir(folder) if file.endswith(".py"))
    except OSError:
        return frozenset()


class PublicFinder:
    """Finds and loads `mspc.nn` in mindspore_api/ if mspc has no folder of that name itself."""

    first = _OWN

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        first, _, rest = fullname.partition(".")
        if first == _OWN and rest in SHARED:
            spec = importlib.machinery.PathFinder.find_spec(fullname, path)
            if spec is not None and spec.origin is not None:
                spec.loader = _SharedLoader(fullname, spec.origin)
            return spec
        if first != self.first or self.leaves(rest):
            return None
        if home_of(rest) is None:
            return self.refuse(fullname, rest)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def leaves(self, rest: str) -> bool:
        """Return whether a module is mspc's own, for other finders. A folder without code does not count: updating a
        checkout may leave an old one."""
        folder, _, name = rest.rpartition(".")
        if name in _files(os.path.join(ROOT, *folder.split("."))):
            return True
        place = os.path.join(ROOT, *rest.split("."))
        return os.path.isfile(f"{place}.py") or os.path.isfile(os.path.join(place, "__init__.py"))

    def refuse(self, fullname: str, rest: str) -> None:
        """Handle a missing module; None leaves it to other finders."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Alias(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        target = importlib.import_module(home_of(module.__name__.partition(".")[2]) or _OWN)
        module.__dict__.update(_target=target, _before={}, __doc__=target.__doc__, __file__=target.__file__)


class AliasFinder(PublicFinder):
    """Finds `mindspore` and everything below it."""

    first = NAME

    def leaves(self, rest: str) -> bool:
        return bool(rest) and not isinstance(sys.modules.get(NAME), _Alias)

    def refuse(self, fullname: str, rest: str) -> None:
        from mspc.mindspore_api.index.module import why_absent  # only on the way to an error

        parent, _, name = fullname.rpartition(".")
        module = sys.modules.get(parent)
        is_a_module = name.islower() and _nearest(rest)
        if isinstance(module, _Alias) and not name.startswith("_") and not is_a_module:
            hint = _hint(module, fullname)
            if hint:  # `from mindspore import X` imports a module last; Python's message for its own name says less
                raise ModuleNotFoundError(f"mspc does not support {fullname}{hint}", name=parent)
        raise ModuleNotFoundError(
            f"mspc does not support the module {fullname!r} of mindspore{why_absent(rest, ()) or _nearest(rest)}",
            name=fullname,
        )


_NOTHING = object()


class _Alias(ModuleType):
    """Public module with the attributes of its module of mindspore_api/."""

    def __getattr__(self, name: str) -> Any:
        if name == "__version__" and self.__name__ in (NAME, f"{NAME}.version", f"{_OWN}.version"):
            return API_LEVEL
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        try:
            found = getattr(self.__dict__["_target"], name)
        except AttributeError:
            full = f"{self.__name__}.{name}"
            if home_of(full.partition(".")[2]) is not None:
                return importlib.import_module(full)
            if full.partition(".")[0] == _OWN:
                raise
            raise AttributeError(f"mspc does not support {full}{_hint(self, full)}") from None
        if isinstance(found, ModuleType) and home_of(f"{self.__name__}.{name}".partition(".")[2]) is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        return public(found)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the attribute in the target module. A submodule that its import attaches hides no function."""
        target = self.__dict__.get("_target")
        if target is None or name.startswith("__"):
            super().__setattr__(name, value)
        elif not isinstance(value, _Alias):
            self.__dict__["_before"].setdefault(name, vars(target).get(name, _NOTHING))
            setattr(target, name, value)
        elif isinstance(getattr(target, name, value), ModuleType):
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        """Restore the original of an attribute that the script has set."""
        if name not in self.__dict__.get("_before", ()):
            super().__delattr__(name)
            return
        before = self.__dict__["_before"].pop(name)
        if before is _NOTHING:
            delattr(self.__dict__["_target"], name)
        else:
            setattr(self.__dict__["_target"], name, before)

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["_target"])


def public(found: Any) -> Any:
    """Return the object that a script gets for a public name: functions and classes explain wrong arguments."""
    if not isinstance(found, FunctionType | type) or not found.__module__.startswith(PUBLIC):
        return found
    from mspc.mindspore_api.guarded import guarded  # late: it imports NumPy

    return guarded(found)


def find_public(package: str, name: str) -> Any:
    """Return an attribute of a public module that shares its name with a folder of mspc: `mspc.ops.relu`,
    `mspc.ops.operations`. Raise AttributeError if there is none."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(name)
    full = f"{package}.{name}"
    try:
        found = getattr(importlib.import_module(home_of(package) or _OWN), name)
    except AttributeError:
        if home_of(full) is None:
            raise
        found = None
    if (found is None or isinstance(found, ModuleType)) and home_of(full) is not None:
        return importlib.import_module(f"{_OWN}.{full}")
    return public(found)


class _SharedLoader(importlib.machinery.SourceFileLoader):
    """Loads a package of `SHARED` and lets it find public names."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        package = module.__name__.partition(".")[2]
        module.__dict__["__getattr__"] = functools.partial(find_public, package)
        module.__dict__["__dir__"] = lambda: dir(importlib.import_module(home_of(package) or _OWN))


def install_public() -> None:
    """Make `import mspc.nn` mean mspc/mindspore_api/nn. Another call changes nothing."""
    if not any(type(finder) is PublicFinder for finder in sys.meta_path):
        sys.meta_path.insert(0, PublicFinder())


def install() -> None:
    """Make `import mindspore` mean mspc, before any installed package of that name. Another call changes nothing."""
    found = [finder for finder in sys.meta_path if isinstance(finder, AliasFinder)]
    for finder in found:
        sys.meta_path.remove(finder)
    sys.meta_path.insert(0, found[0] if found else AliasFinder())


def install_last() -> None:
    """Make `import mindspore` mean mspc if no package of that name is installed."""
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.append(AliasFinder())


def _hint(module: ModuleType, full: str) -> str:
    """Return the message for a name that a public module lacks."""
    from mspc.mindspore_api.index.module import why_absent  # only on the way to an error

    return why_absent(full.partition(".")[2], dir(module))


def _nearest(rest: str) -> str:
    import difflib  # only on the way to an error

    near = difflib.get_close_matches(rest, list(filter(None, public_modules())), 1)
    return f"; did you mean '{NAME}.{near[0]}'?" if near else ""
