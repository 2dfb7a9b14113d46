"""Names that mspc provides to scripts, read from mspc itself: modules, members, attributes, arguments, settings."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from types import CodeType, ModuleType
from typing import Any

from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api import alias, settings
from mspc.mindspore_api.common.tensor import TensorMethods
from mspc.mindspore_api.index.module import find, listed
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.ops.primitive import Primitive
from mspc.mindspore_api.placement import EVERYWHERE
from mspc.mindspore_api.rooms import home_of, public_name
from mspc.mindspore_api.setting_kind import Setting, Table, table
from mspc.ops.op import REGISTRY, Op, has_gpu_kernel

MISSING = object()
"""Placeholder for a name that does not exist in mspc."""
OUTER = ("", "nn", "ops", "mint", "mint.nn", "mint.nn.functional", "train", "dataset", "dataset.vision",
         "dataset.transforms", "parallel", "communication", "amp", "common.initializer", "runtime")  # fmt: skip
"""Modules whose names are suggested if a script looks for them in another module."""


_SET_BY_COMPILES = frozenset(("parameter_layout_dict",))
"""Attributes of cells that a compile sets."""


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
    """An object that a script created. name: of its class, as the script writes it. or_below: the object may be of a
    subclass."""

    cls: type
    name: str
    or_below: bool = False

    def has(self, name: str) -> bool:
        """Return whether it may have an attribute of that name."""
        below = self.cls.__subclasses__() if self.or_below else ()
        return has_attribute(self.cls, name) or any(Instance(cls, "", True).has(name) for cls in below)


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


def has_attribute(cls: type, name: str) -> bool:
    """Return whether objects of a class may have an attribute, by its definition and the assignments in its methods."""
    if name.startswith("__") or hasattr(cls, name):
        return True
    if issubclass(cls, Primitive):
        operator = cls.op_class
        if operator is None or hasattr(operator, name) or name in {field.name for field in fields(operator)}:
            return True
    assigned = [_assigned(base) for base in cls.__mro__[:-1] if base.__module__ != "mspc.ops"]
    return any(names is None or name in names for names in assigned) or name in _SET_BY_COMPILES


@functools.cache
def _assigned(cls: type) -> frozenset[str] | None:
    """Return the attributes that a class's own text assigns, declares or names; None if the text does not show them."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return None
    answers = "__getattr__" in vars(cls) and not issubclass(cls, TensorMethods | Primitive)
    found: set[str] = set()
    for node in () if answers else ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.Name) and node.id in ("setattr", "vars"):
            return None
    return None if answers else frozenset(found)


def result_of(callee: Public) -> Instance | None:
    """Return the result of a call: an object of the called class, or of the function's annotated return type; None if
    it is unknown."""
    if inspect.isclass(callee.found):
        return Instance(callee.found, callee.name)
    function = inspect.unwrap(callee.found) if callable(callee.found) else None
    said = getattr(function, "__annotations__", {}).get("return")
    cls = getattr(function, "__globals__", {}).get(said) if isinstance(said, str) else said
    return annotated(cls, _name_of(cls, callee.name.partition(".")[0]))


def _name_of(cls: Any, first: str) -> str:
    """Return the full name of a class of mspc in the outermost module that provides it to scripts."""
    parts = public_name(getattr(cls, "__module__", "")).split(".")
    modules = [PublicModule(first, ".".join(parts[:count])) for count in range(len(parts) + 1)]
    name = getattr(cls, "__name__", "")
    for module in modules:
        found = member(module, name) if module_exists(module.path) else None
        if isinstance(found, Public) and found.found is cls:
            return found.name
    return f"{first}.{name}"


def annotated(cls: Any, name: str) -> Instance | None:
    """Return an object of a class of mspc or of a subclass; None for cells and operators, which scripts subclass."""
    is_known = inspect.isclass(cls) and cls.__module__.startswith("mspc.") and not issubclass(cls, Primitive | Cell)
    return Instance(cls, name, or_below=True) if is_known else None


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
    "dataset.config.set_enable_shared_mem": "worker processes hand rows on through pipes",
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
    """Return the function, method or class of that public name.

    Raises:
        LookupError: there is none.
    """
    path, _, last = name.rpartition(".")
    found = member(PublicModule("mindspore", path), last) if module_exists(path) else MISSING
    if found is MISSING and path:
        return getattr(function_named(path), last)
    if not isinstance(found, Public):
        raise LookupError(name)
    return found.found


DEEPEST = 4
"""Greatest depth to which calls between functions are followed."""


def plain_operators(found: Any) -> list[str]:
    """Return the sorted names of operators without a kernel for GPUs that a public function, operator or cell may use.

    Operators in branches that are not taken are included.
    """
    return sorted(name for name in _operators(found, DEEPEST) if not has_gpu_kernel(REGISTRY[name]))


def _operators(found: Any, depth: int) -> set[str]:
    """Return the name of the operator that a public object is, or the names of those that its code mentions."""
    name = found.__name__ if isinstance(found, type) else type(found).__name__
    if _is_operator(name) and not inspect.isfunction(found):
        return {name}
    if not depth:
        return set()
    mentioned = {each for code in _codes(found) for each in code.co_names}
    operators = {each for each in mentioned if _is_operator(each)}
    return operators.union(*(_operators(each, depth - 1) for each in map(_function, mentioned) if each is not None))


def _codes(found: Any) -> Iterator[CodeType]:
    """Yield the code of a function, or of a cell's `construct`, and of all functions defined in it."""
    if isinstance(found, type):
        found = vars(found).get("construct")
    code = getattr(inspect.unwrap(found), "__code__", None) if found is not None else None
    waiting = [code] if isinstance(code, CodeType) else []
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]


def _function(name: str) -> Any:
    """Return the function or the operator of this name in `ops`; None if there is none."""
    from mspc import ops  # late: needed only for an examination for GPUs

    found = None if name.startswith("_") else getattr(ops, name, None)
    return found if inspect.isfunction(found) or _is_operator(type(found).__name__) else None


@functools.cache
def _is_operator(name: str) -> bool:
    return name in REGISTRY and isinstance(REGISTRY[name], type) and issubclass(REGISTRY[name], Op)
