"""Judges of functions that are several operators: norms, variances, sums in Einstein's notation, margins, diagonals."""

from typing import Any

import numpy as np

from tests.oracle.inputs import FLOATS, TYPES, WHOLE, drawn, reduced, unary
from tests.oracle.judging import Judge, torch
from tests.oracle.names import everywhere
from tests.oracle.shapes import judged

INF = float("inf")
PLAIN = ("float32", "float64")
NUMBERS = (*FLOATS, *WHOLE)
THREE = [[drawn(2, 3, 4, dtype=kind)] for kind in TYPES] + [[drawn(0, 3, 4)], [drawn(1, 1, 1)]]
KEPT = ({}, {"keepdim": True})


def _floating(x: Any) -> Any:
    return x if x.is_floating_point() else x.float()


# Norms --------------------------------------------------------------------------------------------


def _norm(x: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    x = x if dtype is None else x.to(getattr(torch, dtype))
    return torch.linalg.norm(_floating(x), ord, dim, keepdim)


ORDERS = (None, 1, 2, 3, 0, -1, 0.5, INF, -INF)
NORMS = [
    Judge(
        ("ops.norm", "Tensor.norm"),
        _norm,
        [*unary(types=NUMBERS)[:-1], [np.zeros((2, 3))], [drawn(2, 3, 4)]],
        named=KEPT,
        loose=4,
    ),
    Judge(
        ("ops.norm", "Tensor.norm"),
        _norm,
        [[drawn(3, 4)], [drawn(3, 4, dtype="float32")], [drawn(2, 3, 4)], [drawn(1, 2)]],
        [(ord, dim) for ord in ORDERS for dim in (0, -1)],
        KEPT,
        loose=16,
    ),
    Judge(("ops.norm", "Tensor.norm"), _norm, [[drawn(5)]], [(ord,) for ord in ORDERS], loose=16),
    Judge(
        ("ops.norm", "Tensor.norm"),
        _norm,
        [[drawn(3, 4)], [drawn(4, 3)], [drawn(1, 2)]],
        [(ord,) for ord in ("fro", "nuc", 2, -2, 1, -1, INF, -INF)],
        KEPT,
        loose=64,
    ),
    Judge(
        ("ops.norm", "Tensor.norm"),
        _norm,
        [[drawn(2, 3, 4)]],
        [(ord, dim) for ord in (None, "fro", "nuc", 2, -2, 1, -1, INF, -INF) for dim in ((0, 1), (2, 0), (-1, 1))],
        KEPT,
        loose=64,
    ),
    Judge(
        ("ops.norm", "Tensor.norm"),
        _norm,
        [[drawn(2, 3, dtype="float32")]],
        named=({"dtype": "float64"},),
        gradient=False,
    ),
    Judge(
        ("ops.svd",),
        torch.linalg.svdvals,
        [[drawn(3, 4)], [drawn(2, 4, 3)], [drawn(2, 2, dtype="float32")]],
        ours=lambda f, x: f(x, False, False),
        loose=64,
    ),
]


# Variances ----------------------------------------------------------------------------------------


def _moments(function: Any) -> Any:
    def judge(x: Any, dim: Any = None, correction: int = 1, keepdim: bool = False) -> Any:
        return function(x, dim=dim, correction=correction, keepdim=keepdim)

    return judge


_DIMS = ((), (0,), (-1,), ((0, 2),))
_CORRECTED = ({}, {"correction": 0, "keepdim": True})
VARIANCES = [
    *(
        Judge((f"mint.{name}",), _moments(getattr(torch, name)), reduced(FLOATS)[:5], _DIMS, _CORRECTED, loose=8)
        for name in ("var", "std", "var_mean", "std_mean")
    ),
    *(
        Judge(
            (f"ops.{name}",),
            lambda x, axis=None, ddof=0, keepdims=False, function=function: function(
                x, dim=axis, correction=int(ddof), keepdim=keepdims
            ),
            reduced(FLOATS)[:5],
            (*_DIMS, (1, 1), (1, True, True)),
            loose=8,
        )
        for name, function in (("var_mean", torch.var_mean), ("std_mean", torch.std_mean))
    ),
    Judge(
        everywhere("cumprod", besides="mint.cumprod"),
        torch.cumprod,
        [*THREE[:-1], [np.array([[[1.0, 0.0, 2.0, 0.0, 3.0]], [[0.0, 1.0, 5.0, 2.0, -3.0]]])]],
        ((0,), (-1,)),
        refused=frozenset(),
        loose=8,
    ),
    Judge(
        everywhere("cumprod", besides="mint.cumprod"),
        lambda x, dim, dtype: torch.cumprod(x, dim, dtype=getattr(torch, dtype)),
        [[drawn(2, 3)], [drawn(2, 3, dtype="int32")]],
        ((0, "float32"), (1, "float64"), (0, "int64")),
        gradient=False,
        loose=8,
    ),
    Judge(("mint.cumprod",), torch.cumprod, THREE, ((0,), (-1,)), loose=8),
    Judge(
        ("ops.CumProd",),
        lambda x: (x.cumprod(1) / x).flip(1).contiguous().flip(1),
        [[drawn(2, 4, low=0.5)]],
        ours=lambda made, x: type(made)(True)(x, 1),
        loose=16,
    ),
    Judge(
        ("ops.CumProd",),
        lambda x: x.flip(1).cumprod(1).flip(1),
        [[drawn(2, 4)]],
        ours=lambda made, x: type(made)(False, True)(x, 1),
        loose=16,
    ),
]


# Sums in Einstein's notation ----------------------------------------------------------------------

_MATRICES = [drawn(3, 4), drawn(4, 5)]
_EQUATIONS: list[tuple[str, list[np.ndarray]]] = [
    ("i->", [drawn(4)]), ("ij->ji", [drawn(2, 3)]), ("ij->j", [drawn(2, 3)]), ("ij", [drawn(2, 3)]),
    ("ba", [drawn(2, 3)]), ("ii->i", [drawn(3, 3)]), ("ii", [drawn(3, 3)]), ("iij->j", [drawn(3, 3, 2)]),
    ("iijj->ij", [drawn(2, 2, 3, 3)]), ("...->", [drawn(2, 3)]), ("...ij->...ji", [drawn(2, 3, 4)]),
    ("i...->...", [drawn(2, 3, 4)]), ("iii->i", [drawn(2, 2, 2)]), ("i,i->i", [drawn(3), drawn(3)]),
    ("i,i->", [drawn(3), drawn(3)]), ("i,j->ij", [drawn(3), drawn(4)]), ("ij,jk->ik", _MATRICES), ("ij,jk", _MATRICES),
    ("ij,jk->ki", _MATRICES), ("ij,jk->", _MATRICES), ("ij,jk->j", _MATRICES),
    ("bij,bjk->bik", [drawn(2, 3, 4), drawn(2, 4, 5)]), ("...ij,...jk->...ik", [drawn(2, 1, 3, 4), drawn(3, 4, 2)]),
    ("bhqd,bhkd->bhqk", [drawn(2, 3, 4, 5), drawn(2, 3, 2, 5)]),
    ("bqhd,bkhd->bhqk", [drawn(2, 4, 3, 5), drawn(2, 2, 3, 5)]), ("ij,kj->ijk", [drawn(2, 3), drawn(4, 3)]),
    ("ij,ij->ij", [drawn(2, 3), drawn(2, 3)]), (" i j , j -> i ", [drawn(2, 3), drawn(3)]),
    ("i,ij,j->", [drawn(2), drawn(2, 3), drawn(3)]), ("ij,jk,kl->il", [drawn(2, 3), drawn(3, 4), drawn(4, 2)]),
    ("ij,ij->i", [drawn(2, 1), drawn(2, 3)]), ("i...,...j->ij...", [drawn(2, 3), drawn(3, 4)]),
    (",i->i", [drawn(), drawn(3)]), ("ij,jk->ik", [drawn(0, 3), drawn(3, 2)]),
    ("ij,jk->ik", [drawn(2, 0), drawn(0, 2)]), ("aB,Bc->ca", [drawn(2, 3), drawn(3, 4)]),
    ("bn,anm,bm->ba", [drawn(2, 5), drawn(3, 5, 4), drawn(2, 4)]),
    ("ij,jk->ik", [drawn(2, 3, dtype="float32"), drawn(3, 2)]),
    ("ij,jk->ik", [drawn(2, 3, dtype="int32"), drawn(3, 2, dtype="int32")]),
]  # fmt: skip


def _einsum(equation: str, arrays: list[np.ndarray]) -> Judge:
    def theirs(*inputs: Any) -> Any:
        kind = inputs[0].dtype
        for x in inputs[1:]:
            kind = torch.promote_types(kind, x.dtype)
        return torch.einsum(equation, *[x.to(kind) for x in inputs])

    return Judge(everywhere("einsum"), theirs, [arrays], ours=lambda f, *inputs: f(equation, *inputs), loose=16)


EINSTEIN = [_einsum(equation, arrays) for equation, arrays in _EQUATIONS]
EINSTEIN += [
    Judge(
        everywhere("einsum"),
        lambda x, y: torch.einsum("aij,jk->aik", x, y),
        [[drawn(2, 3, 4), drawn(4, 2)]],
        ours=lambda f, x, y: f(x, [Ellipsis, 0, 1], y, [1, 2], [Ellipsis, 0, 2]),
        loose=16,
    )
]


# Order, margins and diagonals ---------------------------------------------------------------------


def _sorted(x: Any, dim: int = -1, descending: bool = False) -> Any:
    values, places = torch.sort(x, dim=dim, descending=descending, stable=True)
    return values, places.int()


_SORTED = [*THREE, [np.array([[1.0, np.nan, -INF, INF, 0.0, -0.0, 1.0]])], [drawn(5)]]
_WAYS = ((), (0,), (-1, True), (0, True))
_ONE = [[drawn(5)], [drawn(1)], [np.zeros(0)]]
MOVED = [
    Judge(everywhere("sort", besides="mint.sort"), _sorted, _SORTED, _WAYS),
    Judge(("ops.Sort",), _sorted, _SORTED),
    Judge(
        everywhere("argsort", besides="mint.argsort"), lambda *given: _sorted(*given)[1], _SORTED, _WAYS, gradient=False
    ),
    Judge(("mint.argsort",), lambda *given: _sorted(*given)[1].long(), _SORTED, _WAYS, gradient=False),
    Judge((*everywhere("unbind"), "ops.unstack"), lambda x, dim=0: x.unbind(dim), THREE[:-2], ((), (1,), (-1,))),
    Judge(
        everywhere("gather_elements gather_d"),
        lambda x, index: torch.gather(x, 0, index.long()),
        [[drawn(3, 4, dtype=kind), np.array([[0, 1, 2], [2, 0, 0]], np.int32)] for kind in TYPES],
        ours=lambda f, x, index: f(x, 0, index),
    ),
    Judge(
        everywhere("gather_nd", "GatherNd"),
        lambda x, i: x[tuple(i.long().unbind(-1))],
        [
            [drawn(3, 4, 2), np.array([[0, 1], [2, 3]], np.int32)],
            [drawn(3, 4), np.array([[[2]], [[0]]])],
            [drawn(3, 4, dtype="int32"), np.array([1, 2])],
        ],
    ),
    Judge(everywhere("diag", besides="mint.diag"), torch.diag, [[drawn(4, dtype=k)] for k in TYPES] + _ONE),
    Judge(
        everywhere("diag", besides="mint.diag"),
        lambda x: torch.diag(x.reshape(-1)).reshape(*x.shape, *x.shape),
        [[drawn(2, 3)], [np.array([INF, 1.0, np.nan])]],
    ),
    Judge(
        everywhere("nonzero"),
        lambda x, **named: torch.nonzero(x, **named),
        [*[[np.array([[1, 0], [0, 5]], kind)] for kind in WHOLE], [np.zeros(3)], [np.ones((0, 2))]],
        named=({}, {"as_tuple": True}),
        gradient=False,
    ),
    Judge(
        ("ops.linspace",),
        lambda: torch.linspace(-2, 3.5, 7),
        [[]],
        ours=lambda f: f(-2, 3.5, 7),
    ),
    Judge(
        ("ops.linspace",),
        lambda a, b: a + (b - a) * torch.arange(5, dtype=a.dtype) / 4,
        [[drawn(), drawn()]],
        ours=lambda f, a, b: f(a, b, 5),
    ),
    Judge(
        ("mint.linspace",),
        lambda steps, dtype: torch.linspace(1, 2, steps, dtype=getattr(torch, dtype)),
        [[]],
        [(1, "float32"), (4, "float32")],
        ours=lambda f, steps, dtype: f(1, 2, steps, dtype=dtype),
    ),
]
REDUCED = [
    judged((f"ops.reduce_{name}",), lambda x, *given, f=f: f(x, *given), [[drawn(2, 3, 4)]], (1,), (1, True), loose=4)
    for name, f in (("max", torch.amax), ("min", torch.amin), ("prod", torch.prod))
]
REDUCED += [
    judged((f"ops.reduce_{name}",), lambda x, *given, f=f: f(x, *given), [[drawn(2, 3, dtype="bool")]], (1,), (1, True))
    for name, f in (("all", torch.all), ("any", torch.any))
]


def _turned(x: Any) -> Any:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


ROTARY = [
    Judge(
        ("ops.RotaryPositionEmbedding", "ops.rotary_position_embedding"),
        lambda x, cos, sin: x * cos + _turned(x) * sin,
        [[drawn(2, 3, 4, 6), drawn(n, 3, 1, 6), drawn(n, 3, 1, 6)] for n in (1, 2)],
        loose=4,
    ),
]
JUDGES = [*ROTARY, *NORMS, *VARIANCES, *EINSTEIN, *MOVED, *REDUCED]
