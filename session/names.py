"""The public names of mspc, as `mindspore` has them: where each one lives. Looked up on first use."""

from __future__ import annotations

import importlib
from typing import Any

MODULES = {
    "nn": "mspc.nn", "mint": "mspc.mint", "ops": "mspc.ops", "train": "mspc.train", "dataset": "mspc.dataset",
    "dtype": "mspc.session.dtypes",
    "communication": "mspc.communication", "parallel": "mspc.parallel", "context": "mspc.session.context",
    "amp": "mspc.train.amp", "runtime": "mspc.session.device", "device": "mspc.session.device",
    "common": "mspc.session.common",
}  # fmt: skip
"""Modules among the public names."""

_FROM: dict[str, tuple[str, ...]] = {
    "mspc.session.tensor": ("Tensor",),
    "mspc.session.parameter": ("Parameter", "ParameterTuple"),
    "mspc.session.seed": ("set_seed", "get_seed"),
    "mspc.session.gradient": ("value_and_grad", "grad", "jit", "GradOperation"),
    "mspc.session.context": (
        "GRAPH_MODE", "PYNATIVE_MODE", "ParallelMode", "set_context", "get_context",
        "set_auto_parallel_context",
        "get_auto_parallel_context", "reset_auto_parallel_context",
    ),
    "mspc.session.dtypes": (
        "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
        "bfloat16",
        "float32", "float64", "byte", "short", "half", "single", "double", "int_", "uint", "float_", "long",
        "dtype_to_nptype", "dtype_to_pytype", "pytype_to_dtype",
    ),
    "mspc.ir.types": ("DType",),
    "mspc.ir.diagnostics": ("MspcError",),
    "mspc.nn.cell": ("Cell",),
    "mspc.nn.reshard": ("reshard",),
    "mspc.session.functions": ("from_numpy", "tensor", "ms_function", "ms_class", "jit_class", "lazy_inline"),
    "mspc.train.model": ("Model",),
    "mspc.train.serialization": ("load_checkpoint", "load_param_into_net", "save_checkpoint"),
    "mspc.train.callback": (
        "Callback", "CheckpointConfig", "LossMonitor", "ModelCheckpoint", "RunContext", "TimeMonitor",
    ),
    "mspc.parallel.layout": ("Layout",),
    "mspc.parallel.shard": ("shard",),
    "mspc.parallel.auto_parallel": ("AutoParallel",),
    "mspc.parallel.algo_parameters": ("get_algo_parameters", "reset_algo_parameters", "set_algo_parameters"),
}  # fmt: skip
HOME = {name: module for module, names in _FROM.items() for name in names}


def find(name: str) -> Any:
    """The object behind a public name.

    Raises:
        AttributeError: mspc has no such name.
    """
    if name in HOME:
        return getattr(importlib.import_module(HOME[name]), name)
    if name in MODULES:
        return importlib.import_module(MODULES[name])
    raise AttributeError(f"module 'mspc' has no attribute {name!r}")
