"""What scripts call `ops`: a Primitive for every operator, and functions over them.

Names are looked up on first use: operators in the registry, functions in `mspc.api.ops.functional`, and
what belongs to other layers by the table below. Code inside mspc imports the operators' modules instead.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from typing import Any

_ELSEWHERE = {
    "GradOperation": "mspc.api.common.gradient",
    "grad": "mspc.api.common.gradient",
    "value_and_grad": "mspc.api.common.gradient",
    "Primitive": "mspc.api.ops.primitive",
    "ReduceOp": "mspc.api.communication.group",
    "functional": "mspc.api.ops.functional",
    "_VirtualDataset": "mspc.api.nn.virtual_dataset",
    "reshard": "mspc.api.parallel.reshard",
    "HyperMap": "mspc.api.ops.hyper_map",
    "Map": "mspc.api.ops.hyper_map",
    "MultitypeFuncGraph": "mspc.api.ops.multitype",
    "partial": "functools",
}
_FUNCTIONS = "mspc.api.ops.functional"
_FUNCTION_CLASSES = {"DType": "dtype", "Rank": "rank", "Shape": "shape"}
"""Classes of MindSpore whose objects answer at compile time: calling one gives the function."""


class _Facade(types.ModuleType):
    """Keeps functions such as `ops.matmul` and `ops.cast` from being hidden by the files of the
    same names.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, types.ModuleType) and value.__name__ == f"{__name__}.{name}"):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _ELSEWHERE:
        module = importlib.import_module(_ELSEWHERE[name])
        return module if name == "functional" else getattr(module, name.lstrip("_"))
    if name in _FUNCTION_CLASSES:
        return functools.partial(getattr, importlib.import_module(_FUNCTIONS), _FUNCTION_CLASSES[name])
    if name[0].isupper():
        globals()[name] = _operator(name)
        return globals()[name]
    functional = importlib.import_module(_FUNCTIONS)
    if name in functional.OPERATORS:
        globals()[name] = _operator(functional.OPERATORS[name])()
        return globals()[name]
    function = functional.__dict__.get(name)
    if getattr(function, "__module__", None) == _FUNCTIONS:
        return function
    module = sys.modules.get(f"{__name__}.{name}")
    if module is None:
        raise AttributeError(f"ops has no function {name!r}; `mspc ops` lists what there is")
    return module


def _operator(name: str) -> Any:
    from mspc.api.ops.primitive import primitive_class
    from mspc.ops.modules import load_operators  # late: it imports NumPy and all operators
    from mspc.ops.op import REGISTRY

    load_operators()
    op = REGISTRY.get(_SPELLINGS.get(name, name))
    if op is None:
        raise AttributeError(f"ops has no operator {name!r}; `mspc ops` lists what there is")
    return primitive_class(op)


_SPELLINGS = {"Gelu": "GeLU", "TensorAdd": "Add", "GatherV2": "Gather", "Acos": "ACos", "ArgMax": "Argmax"}
"""Older names of operators."""
