"""What scripts call `ops`: a Primitive for every operator, and functions over them.

Names are looked up on first use: operators in the registry, functions in `mspc.api.ops.function` and in the registry,
and what belongs to other layers by the table below. Code inside mspc imports the operators' modules instead.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from typing import Any

_IN_PLACE = """bernoulli_ clamp_ erfinv_ exponential_ normal_ put_ random_ sigmoid_ tanh_ uniform_ zero_""".split()
"""Functions that change a tensor."""
_ELSEWHERE = {
    "GradOperation": "mspc.api.common.gradient",
    "grad": "mspc.api.common.gradient",
    "value_and_grad": "mspc.api.common.gradient",
    "Primitive": "mspc.api.ops.primitive",
    **dict.fromkeys(("PrimitiveWithCheck", "PrimitiveWithInfer", "prim_attr_register"), "mspc.api.ops.own_operators"),
    "ReduceOp": "mspc.api.communication.group",
    "_VirtualDataset": "mspc.api.nn.virtual_dataset",
    "reshard": "mspc.api.parallel.reshard",
    "shard": "mspc.api.parallel.shard",
    "HyperMap": "mspc.api.ops.hyper_map",
    "Map": "mspc.api.ops.hyper_map",
    "MultitypeFuncGraph": "mspc.api.ops.multitype",
    "Morph": "mspc.api.ops.morphing",
    "Custom": "mspc.api.ops.custom",
    "InsertGradientOf": "mspc.api.ops.custom",
    "_add_attr": "mspc.api.ops.attributed",
    "Index": "mspc.api.ops.composed_tensors",
    "GroupNorm": "mspc.api.ops.composed_tensors",
    "embedding": "mspc.api.mint.nn.functional",
    "dropout_ext_op": "mspc.api.ops.composed",
    "constexpr": "mspc.api.ops.compile_time",
    "_primexpr": "mspc.api.ops.compile_time",
    "_constexpr": "mspc.api.ops.compile_time",
    "partial": "functools",
    "make_range": "mspc.api.ops.composed",
    "add_flags": "mspc.api.ops.composed",
    "identity": "mspc.api.ops.composed",
    "barrier": "mspc.api.mint.distributed",
    **dict.fromkeys(("jacfwd", "jacrev", "jvp", "linearize", "vjp", "vmap"), "mspc.api.common.derivatives"),
    "is_tensor": "mspc.api.common.api",
    **dict.fromkeys(_IN_PLACE, "mspc.api.ops.tensor_method_changes"),
    **dict.fromkeys((
        "ControlDepend", "DropoutExt", "FloatStatus", "HistogramSummary", "ImageSummary", "InvertPermutation",
        "NPUAllocFloatStatus", "NPUClearFloatStatus", "NPUClearFloatStatusV2", "NPUGetFloatStatus",
        "NPUGetFloatStatusV2", "Partial", "ScalarSummary", "TensorSummary",
    ), "mspc.api.ops.composed"),
    **dict.fromkeys((
        "BCEWithLogitsLoss", "Diag", "DiagPart", "Einsum", "Meshgrid", "NLLLoss", "ReverseSequence", "ScalarCast",
        "ScalarToArray", "ScalarToTensor", "Scatter", "StandardNormal", "UniformInt",
    ), "mspc.api.ops.composed_functions"),
    **dict.fromkeys((
        "AccumulateNV2", "BatchToSpace", "Bernoulli", "Bucketize", "ConjugateTranspose", "Eps", "EqualCount",
        "EuclideanNorm", "FFTWithSize", "FillDiagonal", "HistogramFixedWidth", "IdentityN", "InplaceUpdateV2",
        "LogSpace", "Logit", "LowerBound", "Median", "MultiMarginLoss",
        "Multinomial", "ParallelConcat", "RandomGamma", "RandomShuffle",
        "ListToTensor", "ReduceStd", "ResizeNearestNeighborV2", "SearchSorted", "SpaceToBatch", "StandardLaplace",
        "TensorShape", "TensorToList", "TensorToScalar", "TensorToTuple", "TupleToTensor", "UpperBound",
    ), "mspc.api.ops.composed_operators"),
    **dict.fromkeys(("CTCLoss", "DynamicGRUV2", "DynamicRNN"), "mspc.api.ops.composed_sequences"),
    **dict.fromkeys((
        "ApplyAdaMax", "ApplyAdadelta", "ApplyAdagrad", "ApplyAdagradDA", "ApplyAdagradV2", "ApplyAdamWithAmsgrad",
        "ApplyAdamWithAmsgradV2", "ApplyAddSign", "ApplyCenteredRMSProp", "ApplyFtrl", "ApplyGradientDescent",
        "ApplyKerasMomentum", "ApplyPowerSign", "ApplyProximalAdagrad", "ApplyProximalGradientDescent",
        "ApplyRMSProp",
    ), "mspc.api.ops.composed_updates"),
}
_FUNCTIONS = "mspc.api.ops.function"
_FUNCTION_CLASSES = {
    "DType": "dtype", "Rank": "rank", "Shape": "shape", "Size": "size", "TupleToArray": "tuple_to_array",
}  # fmt: skip
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
    if name == "__all__":
        return __dir__()
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "functional":
        return sys.modules[__name__]
    if name in _ELSEWHERE:
        found = getattr(importlib.import_module(_ELSEWHERE[name]), name.lstrip("_"))
        return _checked(name, found) if name in _IN_PLACE or _makes_unchecked(found) else found
    if name in _FUNCTION_CLASSES:
        return functools.partial(getattr, importlib.import_module(_FUNCTIONS), _FUNCTION_CLASSES[name])
    found = _operator(name) if name[0].isupper() else _function(name)
    if found is None:
        found = next((getattr(table, name) for table in _tables() if name in table.names()), None)
    if found is None:
        raise AttributeError(f"ops has no {'operator' if name[0].isupper() else 'function'} {name!r}; {_LISTED}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    from mspc.ops.op import FUNCTION_OPERATORS, REGISTRY  # late: it imports NumPy

    functions = {*_python_functions(), *FUNCTION_OPERATORS}
    made = (name for table in _tables() for name in table.names())
    return sorted({*_ELSEWHERE, *_FUNCTION_CLASSES, *functions, *REGISTRY, *made})


_LISTED = "`mspc ops` lists what there is"


def _tables() -> list[Any]:
    """Modules whose names are made by tables."""
    return [importlib.import_module(f"mspc.api.ops.{name}") for name in ("composed_table", "sparse_tensor_functions")]


def _operator(name: str) -> Any:
    from mspc.api.ops.primitive import primitive_class
    from mspc.ops.op import REGISTRY

    importlib.import_module("mspc.api.common.tensor")  # it tells operators of groups and of results outside a graph
    op = REGISTRY.get(_SPELLINGS.get(name, name))
    return None if op is None else primitive_class(op)


def _function(name: str) -> Any:
    if name in _python_functions():
        return _checked(name, getattr(importlib.import_module(_FUNCTIONS), name))
    from mspc.api.ops.operator_function import function_of
    from mspc.ops.op import FUNCTION_OPERATORS

    op = FUNCTION_OPERATORS.get(name)
    return sys.modules.get(f"{__name__}.{name}") if op is None else function_of(op)


def _makes_unchecked(found: Any) -> bool:
    """Whether it is a class written by hand, where no table says what it is made with."""
    return isinstance(found, type) and (
        "__init__" in vars(found) or found.__module__.startswith("mspc.api.ops.composed")
    )


def _checked(name: str, found: Any) -> Any:
    from mspc.api.ops.checked import checked, checked_class

    return checked_class(found) if isinstance(found, type) else checked(f"ops.{name}", found)


@functools.cache
def _python_functions() -> frozenset[str]:
    return frozenset(importlib.import_module(_FUNCTIONS).__all__)


_SPELLINGS = {
    "FastGelu": "FastGeLU", "Gelu": "GeLU", "TensorAdd": "Add", "GatherV2": "Gather", "Acos": "ACos",
    "ArgMax": "Argmax",
}  # fmt: skip
"""Older names of operators."""
