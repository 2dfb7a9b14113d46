"""Judges of simple functions element by element, of sorted elements and of counts."""

from typing import Any

import numpy as np

from tests.oracle.inputs import binary, drawn, reduced, unary
from tests.oracle.judging import Judge, torch
from tests.oracle.names import everywhere

PRECISE = ("float32", "float64")
BOTH = [case for case in binary(types=PRECISE) if case[0].dtype == case[1].dtype]
_COMPLEX = [[np.array([3 + 4j, -5j, 0, -2])]]
_SORTED = [
    [np.sort(drawn(6)), drawn(3, 2)],
    [np.sort(drawn(2, 5)), drawn(2, 3)],
    [np.array([1.0, 2, 2, 3]), np.array(2.0)],
]
_DISTINCT = [[drawn(5, 4)], [drawn(3, 7)], [drawn(2, 3, 5)]]
_HOLES = [[np.array([[1.0, np.nan, 2.0, 5.0], [np.nan, np.nan, 4.0, 0.5]])], [drawn(3, 7)]]


_NOT_NUMBERS = [[np.array([[1.0, np.nan, 2.0], [np.nan, np.nan, 4.0], [3.0, 1.0, 2.0]])]]
_RANKS = [[drawn(5)], [drawn(3, 4)], [drawn(2, 3, 4)], [drawn(2, 2, 3, 2)]]


def _on_implicit(function: Any) -> Any:
    return lambda x: function(x, 0 if x.dim() in (0, 1, 3) else 1)


def _pair(found: Any) -> Any:
    return found.values, found.indices


def _on(dim: int) -> list[tuple[Any, ...]]:
    return [(dim,), (dim, True)]


ELEMENTS = [
    Judge(everywhere("inv"), torch.reciprocal, unary(0.3, types=PRECISE)[:6]),
    Judge(("ops.tensor_div",), torch.div, [[drawn(3, 4), drawn(4, low=0.5)]]),
    Judge(
        ("ops.truncate_div",),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        [[drawn(3, 4), drawn(3, 4, low=0.5)]],
    ),
    Judge(("ops.truncate_mod",), torch.fmod, [[drawn(3, 4), drawn(3, 4, low=0.5)]]),
    Judge(("ops.float_power_ext",), torch.float_power, [[drawn(3, 4, low=0.5), drawn(4)]]),
    Judge(
        ("ops.einsum_ext",),
        lambda x, y: torch.einsum("ij,jk->ik", x, y),
        [[drawn(2, 3), drawn(3, 4)]],
        loose=4,
        ours=lambda f, x, y: f("ij,jk->ik", x, y),
    ),
    Judge(everywhere("sgn"), torch.sgn, [*unary(types=PRECISE)[:6], *_COMPLEX], gradient=False),
    Judge(everywhere("copysign"), torch.copysign, BOTH[:-1], gradient=False),
    Judge(everywhere("copysign"), torch.copysign, unary(types=PRECISE)[:6], arguments=[(-1.0,), (2,), (-0.0,)]),
    Judge(
        everywhere("ldexp"),
        torch.ldexp,
        [[drawn(3, 4), drawn(4)], [drawn(3, dtype="float32"), drawn(3, dtype="int32")]],
    ),
    Judge(everywhere("is_complex"), torch.is_complex, [*unary()[:3], *_COMPLEX]),
    Judge(everywhere("is_floating_point"), torch.is_floating_point, unary()),
    Judge(
        ("ops.polygamma",),
        lambda x, n: torch.special.polygamma(n, x),
        [[drawn(3, 4, low=0.5)]],
        arguments=[(0,), (1,), (2,)],
        loose=1e4,
        ours=lambda f, x, n: f(n, x),
    ),
    Judge(
        everywhere("logcumsumexp"),
        torch.logcumsumexp,
        [[drawn(3, 5, high=50)], [drawn(1, 4)], [drawn(2, 3, 4)]],
        arguments=[(0,), (-1,)],
        loose=40,
    ),
    Judge(
        everywhere("aminmax"),
        lambda x, **by: tuple(torch.aminmax(x, dim=by.pop("axis", 0), keepdim=by.pop("keepdims", False))),
        [[drawn(3, 4)], [drawn(2, 3, 4, dtype="int32")]],
        named=[{}, {"axis": 1}, {"axis": -1, "keepdims": True}],
    ),
    Judge(everywhere("soft_shrink"), torch.nn.functional.softshrink, unary(types=PRECISE)[:5]),
    Judge(everywhere("mse_loss_ext"), torch.nn.functional.mse_loss, [[drawn(3, 4), drawn(3, 4)]], loose=4),
    Judge(("ops.numel", "Tensor.nelement"), lambda x: torch.numel(x), unary()),
    Judge(everywhere("fills"), lambda x, value: torch.full_like(x, value), unary()[:10], arguments=[(2,)]),
    Judge(("ops.view_as_real",), torch.view_as_real, _COMPLEX),
    Judge(
        everywhere("type_as"), lambda x, y: x.type_as(y), [[drawn(3), drawn(2, dtype="float32")], [drawn(3), drawn(3)]]
    ),
    Judge(("mint.nn.functional.softmax",), _on_implicit(torch.softmax), _RANKS, loose=4),
    Judge(("mint.nn.functional.log_softmax",), _on_implicit(torch.log_softmax), _RANKS, loose=4),
]
SORTED = [
    Judge(
        everywhere("median"),
        lambda x, *a: _pair(torch.median(x, *(a or (-1,)))),
        _DISTINCT,
        arguments=[*_on(0), *_on(-1)],
    ),
    Judge(everywhere("median"), lambda x, *a: _pair(torch.median(x, *a)), _NOT_NUMBERS, arguments=_on(-1)),
    Judge(("mint.median",), torch.median, [*_DISTINCT, *_NOT_NUMBERS]),
    Judge(("mint.kthvalue",), lambda x, *a: _pair(torch.kthvalue(x, *a)), _DISTINCT, arguments=[(2,), (2, -1, True)]),
    Judge(
        everywhere("quantile"),
        lambda x, q, *a: torch.quantile(x, q if isinstance(q, float) else torch.tensor(q, dtype=x.dtype), *a),
        _DISTINCT,
        arguments=[(0.3,), ([0.0, 0.5, 1.0], 0, True), (0.5, -1)],
        loose=4,
    ),
    Judge(
        everywhere("nanquantile"),
        lambda x, q, *a: torch.nanquantile(x, q, *a),
        _HOLES,
        arguments=[(0.3,), (0.6, 1), (0.4, 1, True)],
        loose=4,
    ),
    Judge(
        everywhere("top_k"),
        lambda x, k: (torch.topk(x, k).values, torch.topk(x, k).indices.int()),
        _DISTINCT,
        arguments=[(2,)],
    ),
    Judge(
        ("ops.bucketize",),
        lambda x, b, **by: torch.bucketize(x, torch.tensor(b, dtype=x.dtype), **by).int(),
        [[drawn(3, 4)]],
        arguments=[([-1.0, 0.0, 2.0],)],
        named=[{}, {"right": True}],
    ),
    Judge(everywhere("cummax"), lambda x, d: _pair(torch.cummax(x, d)), _DISTINCT, arguments=[(0,), (-1,)]),
    Judge(everywhere("cummin"), lambda x, d: _pair(torch.cummin(x, d)), _DISTINCT, arguments=[(0,), (-1,)]),
    Judge(everywhere("argwhere"), torch.argwhere, reduced(PRECISE)[:3]),
    Judge(
        everywhere("masked_select"),
        torch.masked_select,
        [[drawn(3, 4), drawn(3, 4, dtype="bool")], [drawn(3, 1), drawn(4, dtype="bool")]],
        gradient=False,
    ),
    Judge(
        everywhere("unique_consecutive"),
        lambda x, *a: torch.unique_consecutive(
            x, **dict(zip(("return_inverse", "return_counts", "dim"), a, strict=False))
        ),
        [[np.array([1.0, 1, 2, 2, 2, 1])], [np.array([[1, 1], [1, 1], [2, 1]])]],
        arguments=[(), (True,), (False, True), (True, True), (True, True, 0)],
        gradient=False,
    ),
    Judge(
        ("Tensor.unique",),
        lambda x, *a: torch.unique(x, *a),
        [[np.array([3, 1, 2, 2, 1])], [np.array([[1, 1], [0, 1], [1, 1]])]],
        arguments=[(), (True, True), (True, True, True), (True, False, True, 0)],
        gradient=False,
    ),
    Judge(
        ("ops.unique",),
        lambda x: (torch.tensor([3, 1, 2]), torch.tensor([0, 1, 2, 2, 1], dtype=torch.int32)),
        [[np.array([3, 1, 2, 2, 1])]],
    ),
    Judge(
        ("mint.bincount",),
        lambda x, *a: torch.bincount(x, *a),
        [[np.array([3, 1, 2, 2, 1])], [np.array([0, 0, 5])]],
        arguments=[(), (None, 8)],
    ),
    Judge(
        ("ops.bincount", "Tensor.bincount"),
        lambda x, *a: torch.bincount(x, *a).float(),
        [[np.array([3, 1, 2, 2, 1])]],
        arguments=[(), (None, 8)],
    ),
    Judge(
        ("ops.sequence_mask",),
        lambda n, size: torch.arange(size) < n[..., None],
        [[np.array([1, 3])], [np.array([[0, 2], [5, 1]])]],
        arguments=[(4,)],
    ),
]
MEASURED = [
    Judge(
        ("ops.cdist", "mint.cdist"),
        torch.cdist,
        [[drawn(2, 4, 3), drawn(2, 5, 3)]],
        arguments=[(), (1.0,), (3.0,)],
        loose=40,
    ),
    Judge(
        ("ops.cosine_similarity",),
        torch.cosine_similarity,
        [[drawn(3, 4), drawn(3, 4)], [drawn(2, 3, 4), drawn(3, 1)]],
        arguments=[(), (-1,)],
        loose=8,
    ),
    Judge(
        ("Tensor.allclose", "mint.allclose"),
        lambda x, y: torch.tensor(torch.allclose(x, y)),
        [[drawn(3), drawn(3)], [np.ones(3), np.ones(3)]],
    ),
    Judge(
        ("Tensor.ptp",),
        lambda x, *a: torch.amax(x, *a) - torch.amin(x, *a),
        [[drawn(3, 4)]],
        arguments=[(0,), (1, True)],
    ),
]


JUDGES = [*ELEMENTS, *SORTED, *MEASURED]
