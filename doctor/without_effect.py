"""This module lists what mspc takes and what changes nothing: functions, and arguments of functions, by the settings
that they set."""

from __future__ import annotations

import functools
from typing import Any

from mspc.api import settings
from mspc.api.placement import EVERYWHERE
from mspc.api.setting_kind import Setting, Table, table
from mspc.doctor.public import MISSING, Public, PublicModule, member, module_exists

_NO_CACHE = table(
    Setting("cache", None, ignored="rows are read again in every epoch"),
    Setting("max_rowsize", 6, ignored="worker processes hand rows on through pipes"),
    Setting("offload", None, ignored="rows are made where the script runs"),
)
_KEYWORDS: dict[str, Table] = {
    "set_context": settings.CONTEXT,
    "set_auto_parallel_context": settings.PARALLEL,
    "JitConfig": settings.JIT_CONFIG,
    "jit": settings.JIT,
    "parallel.set_algo_parameters": settings.ALGORITHM,
    "nn.Cell.recompute": settings.RECOMPUTE,
}
"""Functions that take the settings of a table and, beside their own arguments, nothing else."""
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
"""Functions some of whose arguments are settings."""
_OFF = {
    "disable_loss_repeated_mean": "loss_repeated_mean",
    "enable_fp32_communication": "force_fp32_communication",
    "no_init_parameters_in_compile": "init_param_in_compile",
    "print_local_norm": "dump_local_norm",
    "dump_local_norm": "dump_local_norm_path",
    "enable_device_local_norm": "dump_device_local_norm",
}
_CALLS: dict[str, str] = {
    "runtime.launch_blocking": "errors name their operator also where steps are replayed",
    "dataset.config.set_enable_shared_mem": "worker processes hand rows on through pipes",
    "nn.Cell.place": EVERYWHERE,
    "ops.Primitive.place": EVERYWHERE,
    "nn.Cell.set_grad": str(settings.SET_GRAD["requires_grad"].ignored),
    **{f"parallel.AutoParallel.{method}": str(settings.PARALLEL[name].ignored) for method, name in _OFF.items()},
}


def settings_of(function: Any) -> tuple[Table, bool]:
    """(the settings that a function, a method or a class takes as arguments, whether it takes no others)"""
    keywords = _entry(_KEYWORDS, function)
    return keywords or _entry(_ARGUMENTS, function) or {}, keywords is not None


def why_without_effect(function: Any) -> str:
    """Why the call of a function or a method changes nothing; "" where it does something."""
    return _entry(_CALLS, function) or ""


def _entry(by_name: dict[str, Any], function: Any) -> Any:
    """What stands for a function; only those of its own name are looked up, as that imports their modules."""
    same = [name for name in by_name if name.rpartition(".")[2] == getattr(function, "__name__", "")]
    return next((by_name[name] for name in same if function_named(name) is function), None)


@functools.cache
def function_named(name: str) -> Any:
    """The function, method or class of that public name.

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
