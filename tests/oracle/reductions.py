"""Judges of what combines or compares elements along dimensions."""

from typing import Any

import numpy as np

from tests.oracle.inputs import EMPTY, FLOATS, TYPES, WHOLE, drawn, reduced, unary
from tests.oracle.judging import Judge, torch
from tests.oracle.names import everywhere

AXES = ((), (0,), (1,), (-1,), ((0, 2),), ((-1, 0),), ((0, 1, 2),))
KEEP = ({}, {"keep": True})
NUMBERS = (*FLOATS, *WHOLE)
FEW = ("float16", "float32", "float64", "int32", "int64", "uint8")


def _spelled(name: str, axis: Any, keep: bool) -> dict[str, Any]:
    """Axis and keep-dims by the names that the place gives them."""
    place, short = name.split(".")
    found: dict[str, Any] = {}
    if axis != ():
        dim = place == "mint" or (place == "ops" and short in ("sum", "argmax"))
        found["dim" if dim else "axis"] = axis[0]
    if keep:
        by_place = {"mint": "keepdim", "Tensor": "keepdims"}
        functions = {"sum": "keepdim", "argmax": "keepdim"}
        functions |= dict.fromkeys(("argmin", "amax", "amin", "var", "std"), "keepdims")
        found[by_place.get(place, functions.get(short, "keep_dims"))] = True
    return found


class _Along:
    """A public reduction, called as `function(x, axes, keep)` whatever its arguments are called there."""

    def __init__(self, name: str, more: dict[str, Any] | None = None) -> None:
        self.name, self.more = name, more or {}

    def __call__(self, function: Any, x: Any, *axis: Any, keep: bool = False) -> Any:
        if self.name.split(".")[1][0].isupper():
            made = type(function)(keep)
            return made(x, *axis)
        return function(x, **_spelled(self.name, axis, keep), **self.more)


def _along(
    names: tuple[str, ...], theirs: Any, inputs: Any, axes: Any = AXES, more: Any = None, **rest: Any
) -> list[Judge]:
    def judge(x: Any, *axis: Any, keep: bool = False) -> Any:
        return theirs(x, axis[0] if axis else tuple(range(x.dim())), keep)

    return [
        Judge((name,), judge, inputs, arguments=axes, named=KEEP, ours=_Along(name, more), **rest) for name in names
    ]


def _prod(x: Any, axis: Any, keep: bool) -> Any:
    whole = x if x.is_floating_point() else x.long()
    for dim in sorted({a % x.dim() for a in ((axis,) if isinstance(axis, int) else axis)}, reverse=True):
        whole = whole.prod(dim, keepdim=keep)
    return whole


def _mean(x: Any, axis: Any, keep: bool) -> Any:
    """The mean of integers is cut off to one: MindSpore keeps the element type."""
    if not x.is_floating_point():
        return x.double().mean(axis, keepdim=keep).to(x.dtype)
    return x.mean(axis, keepdim=keep)


def _spread(function: Any, correction: int) -> Any:
    def judge(x: Any, axis: Any, keep: bool) -> Any:
        found = function(x if x.is_floating_point() else x.double(), axis, correction=correction, keepdim=keep)
        return found.to(x.dtype)

    return judge


def _each(function: Any) -> Any:
    """all and any along several dimensions."""

    def judge(x: Any, axis: Any, keep: bool) -> Any:
        return function(x != 0, axis, keepdim=keep)

    return judge


def _sum(x: Any, axis: Any, keep: bool) -> Any:
    return x.sum(axis, keepdim=keep)


def _same(x: Any, axis: Any, keep: bool) -> Any:
    return x.sum(axis, keepdim=keep).to(x.dtype)


SUMS = [
    *_along(everywhere("sum"), _sum, reduced() + EMPTY, loose=8),
    *_along(("ops.reduce_sum", "ops.ReduceSum"), _same, reduced(NUMBERS) + EMPTY, loose=8),
    *_along(
        everywhere("sum"),
        lambda x, axis, keep: x.double().sum(axis, keepdim=keep),
        reduced(FEW),
        more={"dtype": "float64"},
        gradient=False,
    ),
    *_along(("ops.mean", "Tensor.mean"), _mean, reduced(NUMBERS), loose=4),
    *_along(("mint.mean", "ops.reduce_mean", "ops.ReduceMean"), _mean, reduced(FLOATS), loose=4),
    *_along(
        ("ops.prod", "Tensor.prod", "mint.prod"),
        _prod,
        reduced(("float32", "float64", *WHOLE, "bool"), 0.3, 2.0),
        loose=8,
    ),
    *_along(("ops.ReduceProd",), _prod, reduced(("float32", "float64", "int64"), 0.3, 2.0), loose=8),
    *_along(everywhere("all", "ReduceAll", "ops.ReduceAll"), _each(torch.all), reduced() + EMPTY),
    *_along(everywhere("any", "ReduceAny", "ops.ReduceAny"), _each(torch.any), reduced() + EMPTY),
    *_along(("ops.ReduceAll",), _each(torch.all), reduced(("bool",))[:1]),
    *_along(("ops.ReduceAny",), _each(torch.any), reduced(("bool",))[:1]),
    *_along((*everywhere("amax", "ReduceMax"), "Tensor.max"), lambda x, a, k: torch.amax(x, a, k), reduced(NUMBERS)),
    *_along((*everywhere("amin", "ReduceMin"), "Tensor.min"), lambda x, a, k: torch.amin(x, a, k), reduced(NUMBERS)),
    *_along(("ops.var", "Tensor.var"), _spread(torch.var, 0), reduced(("float32", "float64")), loose=8),
    *_along(("ops.var", "Tensor.var"), _spread(torch.var, 1), reduced(("float64",))[:1], AXES, {"ddof": 1}, loose=8),
    *_along(("ops.std", "Tensor.std"), _spread(torch.std, 0), reduced(("float32", "float64"))[:2], loose=8),
    *_along(("ops.std", "Tensor.std"), _spread(torch.std, 1), reduced(("float64",))[:1], AXES, {"ddof": 1}, loose=8),
]
_DIMS = ((), (0,), (1,), (-1,), (-2,))


def _place(function: Any) -> Any:
    def judge(x: Any, *axis: Any, keep: bool = False) -> Any:
        return function(x, axis[0], keepdim=keep) if axis else function(x)

    return judge


def _placed(short: str, function: Any) -> list[Judge]:
    names = everywhere(short)
    return [Judge((n,), _place(function), reduced(NUMBERS), _DIMS, KEEP, ours=_Along(n)) for n in names]


def _with_value(function: Any, best: Any) -> Any:
    def judge(x: Any) -> Any:
        return function(x, 0).to(torch.int32), best(x, 0).values

    return judge


def _largest(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Equal ones stand in their order, which PyTorch leaves open."""
    found = torch.sort(x, dim=dim, descending=largest, stable=True)
    return found.values.narrow(dim, 0, k), found.indices.narrow(dim, 0, k)


def _narrow_places(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    values, places = _largest(x, k, -1 if dim is None else dim, largest)
    return values, places.to(torch.int32)


EXTREMES = [
    [np.array([[np.iinfo(kind).min, np.iinfo(kind).max, 0, 1, np.iinfo(kind).min]], kind)] for kind in WHOLE
] + [[np.array([[True, False, True, False]])], [np.array([[1.0, np.nan, np.inf, -np.inf, 0.0]])]]
_SORTED = [*(case for case in reduced(TYPES) if case[0].shape[-1] > 2), *EXTREMES]
_UNIQUE = [[np.argsort(drawn(24)).reshape(2, 3, 4).astype(kind)] for kind in ("float64", "int32")]
PLACES = [
    *_placed("argmax", torch.argmax),
    *[judge for judge in _placed("argmin", torch.argmin) if judge.names[0] == "mint.argmin"],
    *[
        judge
        for judge in _placed("argmin", lambda *args, **by: torch.argmin(*args, **by).int())
        if judge.names[0] != "mint.argmin"
    ],
    Judge(("ops.Argmax",), lambda x: torch.argmax(x, -1).to(torch.int32), reduced(NUMBERS)),
    Judge(("ops.Argmin",), lambda x: torch.argmin(x, -1).to(torch.int32), reduced(NUMBERS)),
    Judge(("ops.ArgMaxWithValue",), _with_value(torch.argmax, torch.max), reduced(NUMBERS)),
    Judge(("ops.ArgMinWithValue",), _with_value(torch.argmin, torch.min), reduced(NUMBERS)),
    Judge(("mint.max",), torch.max, reduced(NUMBERS), ((), (0,), (1, True), (-1,))),
    Judge(("mint.min",), torch.min, reduced(NUMBERS), ((), (0,), (1, True), (-1,))),
    Judge(("ops.MaxDim",), torch.max, reduced(NUMBERS), ((0,), (1, True), (-1,))),
    Judge(("ops.MinDim",), torch.min, reduced(NUMBERS), ((0,), (1, True), (-1,))),
    Judge(("ops.TopkExt", "mint.topk"), _largest, _SORTED, ((1,), (3, -1), (3, -1, False))),
    Judge(("ops.TopkExt", "mint.topk"), _largest, _UNIQUE, ((2, 0), (2, 1, False, True))),
    Judge(("ops.topk", "Tensor.topk"), _narrow_places, _SORTED, ((1,), (3, None), (3, -1, False))),
    Judge(("ops.topk", "Tensor.topk"), _narrow_places, _UNIQUE, ((2, 0), (2, 1, False), (1, -2))),
    Judge(("ops.TopK",), _narrow_places, _SORTED, ((2,),)),
    Judge(
        ("ops.SortExt",),
        lambda x, dim=-1, down=False: tuple(torch.sort(x, dim=dim, descending=down, stable=True)),
        _SORTED,
        ((), (1,), (-1, True)),
    ),
    Judge(
        ("mint.sort",),
        lambda x, dim=-1, descending=False: tuple(torch.sort(x, dim=dim, descending=descending, stable=True)),
        _SORTED,
        named=({}, {"dim": 1}, {"descending": True}),
    ),
]


def _running(x: Any, dim: int, kind: Any = None) -> Any:
    return torch.cumsum(x, dim).to(x.dtype)


def _running_of_tensor(x: Any, dim: int) -> Any:
    narrow = x.dtype in (torch.bool, torch.int8, torch.int16, torch.uint8)
    return torch.cumsum(x, dim, dtype=torch.int32 if narrow else x.dtype)


RUNNING = [
    Judge(("ops.cumsum", "ops.CumSum"), _running, reduced(NUMBERS), ((0,), (1,), (-1,)), loose=4),
    Judge(("Tensor.cumsum",), _running_of_tensor, reduced((*NUMBERS, "bool")), ((0,), (1,), (-1,)), loose=4),
    Judge(
        ("ops.cumsum", "Tensor.cumsum"),
        lambda x, dim, kind: torch.cumsum(x, dim, dtype=torch.float64),
        reduced(FEW),
        ((1, "float64"),),
        gradient=False,
    ),
    Judge(("mint.cumsum",), torch.cumsum, reduced(FLOATS), ((0,), (-1,)), loose=4),
    Judge(("mint.cumsum",), torch.cumsum, reduced((*WHOLE, "bool")), ((0,), (-1,))),
    Judge(
        ("ops.SumExt",),
        lambda x, *rest: torch.sum(x, *rest),
        reduced(("float32", "float64")),
        ((), (0,), ((0, 1), True)),
        loose=8,
    ),
    Judge(
        ("ops.MeanExt",),
        lambda x, *rest: torch.mean(x, *rest),
        reduced(("float32", "float64")),
        ((), (0,), ((0, 1), True)),
        loose=8,
    ),
    Judge(("ops.L2Loss",), lambda x: (x * x).sum() / 2, unary(types=("float32", "float64"))[:5], loose=4),
    Judge(("ops.Cdist",), torch.cdist, [[drawn(4, 3), drawn(5, 3)], [drawn(2, 4, 3), drawn(2, 2, 3)]], loose=8),
    Judge(
        ("ops.Cdist",),
        lambda x, y, p: torch.cdist(x, y, p),
        [[drawn(4, 3), drawn(5, 3)], [drawn(2, 4, 3), drawn(2, 2, 3)], [np.ones((2, 2)), np.array([[1.0, 1], [1, 2]])]],
        ((0.0,), (0.5,), (1.0,), (1.5,), (2.0,), (3.0,), (float("inf"),)),
        ours=lambda made, x, y, p: type(made)(p)(x, y),
        loose=64,
    ),
]
JUDGES = [*SUMS, *PLACES, *RUNNING]
