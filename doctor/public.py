"""Names that mspc provides to scripts, read from mspc itself: modules, members, attributes, arguments, settings."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api import alias, settings
from mspc.mindspore_api.index.module import find, listed
from mspc.mindspore_api.placement import EVERYWHERE
from mspc.mindspore_api.rooms import home_of
from mspc.mindspore_api.setting_kind import Setting, Table, table

MISSING = object()
"""Placeholder for a name that does not exist in mspc."""
OUTER = ("", "nn", "ops", "mint", "mint.nn", "mint.nn.functional", "train", "dataset", "dataset.vision",
         "dataset.transforms", "parallel", "communication", "amp", "common.initializer", "runtime")  # fmt: skip
"""Modules whose names are suggested if a script looks for them in another module."""


@dataclass(frozen=True)
class PublicModule:
    """A module that scripts import. first: "mindspore" or "mspc", as the script has it. path: the rest of its name."""

    first: str
    path: str

    @property
    def name(self) -> str:
        return f"{self.first}.{self.path}".rstrip(".")


@dataclass(frozen=True, eq=False)
class Public:
    """A class, a function or a constant. found: the object itself. name: its full name in the script. bound: whether
    calls pass the object to which it belongs."""

    found: Any
    name: str
    bound: bool = False


@dataclass(frozen=True, eq=False)
class Instance:
    """An object that a script created. name: of its class, as the script writes it."""

    cls: type
    name: str


def module_exists(path: str) -> bool:
    """Return whether there is a public module `mindspore.<path>`."""
    return home_of(path) is not None


def is_own(first: str, path: str) -> bool:
    """Return whether `mspc.<path>` is an internal module of mspc; nothing is listed from these."""
    return first == "mspc" and not module_exists(path) and alias.PublicFinder().leaves(path)


def member(module: PublicModule, name: str) -> Any:
    """Return a PublicModule or a Public for a name of a module, None if it is unknown, or MISSING."""
    if name.startswith("__"):
        return None
    below = f"{module.path}.{name}".lstrip(".")
    found = _attribute(module.path, name)
    if found is MISSING:
        if module_exists(below):
            return PublicModule(module.first, below)
        return None if is_own(module.first, below) else MISSING
    if isinstance(found, ModuleType):
        return PublicModule(module.first, below) if module_exists(below) else None
    return Public(found, f"{module.name}.{name}")


def _attribute(path: str, name: str) -> Any:
    if not path:
        try:
            return find("mspc", name)
        except LookupError:
            return MISSING
    return getattr(importlib.import_module(home_of(path) or path), name, MISSING)


def names_in(module: PublicModule) -> list[str]:
    """Return the public names of a module."""
    if not module.path:
        return listed("mspc")
    home = importlib.import_module(home_of(module.path) or module.path)
    found = getattr(home, "__all__", None) or dir(home)
    return [name for name in found if not name.startswith("_")]


def places_of(name: str, first: str) -> list[str]:
    """Return the full names under which OUTER modules provide a name. first: "mindspore" or "mspc"."""
    modules = [] if name.startswith("_") else [PublicModule(first, path) for path in OUTER]
    return [f"{module.name}.{name}" for module in modules if isinstance(member(module, name), Public)]


_NO_CACHE = table(
    Setting("cache", None, ignored="rows are read again in every epoch"),
    Setting("max_rowsize", 6, ignored="worker processes hand rows on through pipes"),
    Setting("offload", None, ignored="rows are made by the script's process"),
)
_KEYWORDS: dict[str, Table] = {
    "set_context": settings.CONTEXT,
    "set_auto_parallel_context": settings.PARALLEL,
    "JitConfig": settings.JIT_CONFIG,
    "jit": settings.JIT,
    "parallel.set_algo_parameters": settings.ALGORITHM,
    "nn.Cell.recompute": settings.RECOMPUTE,
}
"""Functions that accept their own arguments, the settings of a table, and nothing else."""
_ARGUMENTS: dict[str, Table] = {
    "runtime.set_memory": settings.DEVICE_MEMORY,
    "parallel.AutoParallel.pipeline": settings.AUTO_PARALLEL,
    "nn.PipelineCell": settings.PIPELINE_CELL,
    "train.CheckpointConfig": table(
        Setting("exception_save", False, ignored="the last complete checkpoint stays, whatever ends the run"),
    ),
    "train.Model": table(Setting("boost_level", "O0", ignored="no step is approximated")),
    "train.Model.predict": table(Setting("backend", None, ignored="the network runs as ever")),
    "dataset.GeneratorDataset": _NO_CACHE,
    "dataset.MnistDataset": _NO_CACHE,
    "dataset.Cifar10Dataset": _NO_CACHE,
    "dataset.Cifar100Dataset": _NO_CACHE,
    "dataset.ImageFolderDataset": _NO_CACHE,
    "dataset.MindDataset": _NO_CACHE,
    "dataset.Dataset.map": _NO_CACHE,
    "dataset.Dataset.batch": _NO_CACHE,
}
"""Functions for which some arguments are settings."""
_OFF = {
    "disable_loss_repeated_mean": "loss_repeated_mean",
    "enable_fp32_communication": "force_fp32_communication",
    "no_init_parameters_in_compile": "init_param_in_compile",
    "print_local_norm": "dump_local_norm",
    "dump_local_norm": "dump_local_norm_path",
    "enable_device_local_norm": "dump_device_local_norm",
}
_CALLS: dict[str, str] = {
    "runtime.launch_blocking": "errors name their operator also in replayed steps",
    "nn.Cell.place": EVERYWHERE,
    "ops.Primitive.place": EVERYWHERE,
    "nn.Cell.set_grad": str(settings.SET_GRAD["requires_grad"].ignored),
    **{f"parallel.AutoParallel.{method}": str(settings.PARALLEL[name].ignored) for method, name in _OFF.items()},
}


def settings_of(function: Any) -> tuple[Table, bool]:
    """Return (the settings that a function, a method or a class accepts as arguments, whether it accepts no others)."""
    keywords = _entry(_KEYWORDS, function)
    return keywords or _entry(_ARGUMENTS, function) or {}, keywords is not None


def why_without_effect(function: Any) -> str:
    """Return the reason a call of a function or a method has no effect; "" if it has one."""
    return _entry(_CALLS, function) or ""


def _entry(by_name: dict[str, Any], function: Any) -> Any:
    """Return the entry of a function, or None. Only entries with its own name are resolved: that imports modules."""
    same = [name for name in by_name if name.rpartition(".")[2] == getattr(function, "__name__", "")]
    return next((by_name[name] for name in same if function_named(name) is function), None)


@functools.cache
def function_named(name: str) -> Any:
    """Return the function, method or class of that public name. Raise LookupError if there is none."""
    path, _, last = name.rpartition(".")
    found = member(PublicModule("mindspore", path), last) if module_exists(path) else MISSING
    if found is MISSING and path:
        return getattr(function_named(path), last)
    if not isinstance(found, Public):
        raise LookupError(name)
    return found.found
