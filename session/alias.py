"""Lets scripts import `mindspore`: a finder that resolves its modules to mspc's own by one table."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

NAME = "mindspore"

MODULES: dict[str, str] = {
    "": "mspc",
    "amp": "mspc.train.amp",
    "common": "mspc.session.common",
    "common.api": "mspc.session.functions",
    "common.dtype": "mspc.session.dtypes",
    "common.initializer": "mspc.session.mindspore_initializer",
    "common.parameter": "mspc.session.parameter",
    "common.seed": "mspc.session.seed",
    "common.tensor": "mspc.session.tensor",
    "communication": "mspc.communication",
    "communication.management": "mspc.communication",
    "communication.comm_func": "mspc.communication",
    "context": "mspc.session.context",
    "dataset": "mspc.dataset",
    "dataset.config": "mspc.dataset.config",
    "dataset.transforms": "mspc.dataset.transforms",
    "dataset.transforms.c_transforms": "mspc.dataset.transforms",
    "dataset.transforms.py_transforms": "mspc.dataset.transforms",
    "dataset.transforms.transforms": "mspc.dataset.transforms",
    "dataset.vision": "mspc.dataset.vision",
    "dataset.vision.c_transforms": "mspc.dataset.vision",
    "dataset.vision.py_transforms": "mspc.dataset.vision",
    "dataset.vision.transforms": "mspc.dataset.vision",
    "mint": "mspc.mint",
    "mint.nn": "mspc.mint.nn",
    "mint.nn.functional": "mspc.mint.nn.functional",
    "nn": "mspc.nn",
    "nn.cell": "mspc.nn.cell",
    "nn.dynamic_lr": "mspc.nn.dynamic_lr",
    "nn.layer": "mspc.nn",
    "nn.layer.activation": "mspc.nn.activation",
    "nn.layer.basic": "mspc.nn.basic",
    "nn.layer.container": "mspc.nn.container",
    "nn.layer.embedding": "mspc.nn.basic",
    "nn.layer.normalization": "mspc.nn.basic",
    "nn.learning_rate_schedule": "mspc.nn.learning_rate_schedule",
    "nn.loss": "mspc.nn.loss",
    "nn.loss.loss": "mspc.nn.loss",
    "nn.optim": "mspc.nn.optim",
    "nn.optim.adam": "mspc.nn.optim.adam",
    "nn.optim.ada_grad": "mspc.nn.optim.adaptive",
    "nn.optim.ftrl": "mspc.nn.optim.adaptive",
    "nn.optim.lamb": "mspc.nn.optim.lamb",
    "nn.optim.lazyadam": "mspc.nn.optim.adam",
    "nn.optim.momentum": "mspc.nn.optim.momentum",
    "nn.optim.rmsprop": "mspc.nn.optim.adaptive",
    "nn.optim.optimizer": "mspc.nn.optim.optimizer",
    "nn.optim.sgd": "mspc.nn.optim.sgd",
    "nn.utils": "mspc.nn.utils",
    "nn.wrap": "mspc.nn.wrap",
    "nn.wrap.cell_wrapper": "mspc.nn.wrap",
    "dtype": "mspc.session.dtypes",
    "nn.wrap.loss_scale": "mspc.nn.loss_scale",
    "ops": "mspc.ops",
    "ops.auto_generate": "mspc.ops",
    "ops.auto_generate.gen_ops_def": "mspc.ops",
    "ops.auto_generate.gen_ops_prim": "mspc.ops",
    "ops.composite": "mspc.ops",
    "ops.function": "mspc.ops",
    "ops.functional": "mspc.ops",
    "ops.operations": "mspc.ops",
    "ops.operations.array_ops": "mspc.ops",
    "ops.operations.comm_ops": "mspc.ops",
    "ops.operations.inner_ops": "mspc.ops",
    "ops.operations.math_ops": "mspc.ops",
    "ops.operations.nn_ops": "mspc.ops",
    "ops.operations.other_ops": "mspc.ops",
    "ops.operations.random_ops": "mspc.ops",
    "ops.operations._inner_ops": "mspc.ops",
    "ops.primitive": "mspc.ops.primitive",
    "parallel": "mspc.parallel",
    "parallel.algo_parameter_config": "mspc.parallel.algo_parameters",
    "parallel.auto_parallel": "mspc.parallel.auto_parallel",
    "parallel.nn": "mspc.nn.wrap",
    "parallel.shard": "mspc.parallel.shard",
    "runtime": "mspc.session.device",
    "train": "mspc.train",
    "train.amp": "mspc.train.amp",
    "train.callback": "mspc.train.callback",
    "train.loss_scale_manager": "mspc.train.loss_scale_manager",
    "train.metrics": "mspc.train.metrics",
    "train.model": "mspc.train.model",
    "train.serialization": "mspc.train.serialization",
}
"""Module of mindspore (without its first name) -> module of mspc."""


API_LEVEL = "2.10.0"
"""What scripts are told that ask for `mindspore.__version__`: the interface that mspc follows."""


class AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `mindspore` and everything below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        first, _, rest = fullname.partition(".")
        if first != NAME:
            return None
        if rest not in MODULES:
            raise ModuleNotFoundError(
                f"mspc does not support the module {fullname!r} of mindspore{_nearest(rest)}", name=fullname
            )
        return importlib.machinery.ModuleSpec(fullname, self, is_package=_has_children(rest))

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Alias(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        rest = module.__name__.partition(".")[2]
        module.__dict__["_target"] = importlib.import_module(MODULES[rest])


class _Alias(ModuleType):
    """A module of mindspore: its attributes are those of the module of mspc behind it."""

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return API_LEVEL
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        target = self.__dict__["_target"]
        try:
            found = getattr(target, name)
        except AttributeError:
            child = full.partition(".")[2]
            if child in MODULES:
                return importlib.import_module(full)
            raise AttributeError(f"mspc does not support {full}") from None
        if isinstance(found, ModuleType) and full.partition(".")[2] in MODULES:
            return importlib.import_module(full)
        return found

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["_target"])


def install() -> None:
    """Make `import mindspore` mean mspc, before any installed package of that name. Calling it
    again changes nothing.
    """
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder())


def uninstall() -> None:
    """Undo `install` and forget the modules that were imported by it."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AliasFinder)]
    for name in [n for n, module in sys.modules.items() if isinstance(module, _Alias)]:
        del sys.modules[name]


def _has_children(rest: str) -> bool:
    return not rest or any(name.startswith(f"{rest}.") for name in MODULES)


def _nearest(rest: str) -> str:
    import difflib  # only on the way to an error

    near = difflib.get_close_matches(rest, [m for m in MODULES if m], 1)
    return f"; did you mean '{NAME}.{near[0]}'?" if near else ""
