"""Judges of functions that are made of other functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.oracle.inputs import binary, drawn, reduced, unary
from tests.oracle.judging import Judge, torch
from tests.oracle.names import everywhere

PRECISE = ("float32", "float64")
_THREE = [[drawn(3, 4, dtype=kind), drawn(4, dtype=kind), drawn(3, 1, dtype=kind, low=0.5)] for kind in PRECISE]
_HOLES = [[np.array([[1.0, np.nan, 2.0], [np.nan, np.nan, 4.0]], kind)] for kind in PRECISE] + reduced(PRECISE)[:2]
_ROWS = [[drawn(3, 4), drawn(3, 2)], [drawn(3), drawn(2)], [drawn(2, 3, 2), drawn(2, 1, 2)]]
_SAME_ROWS = [[drawn(3), drawn(3)], [drawn(2, 4), drawn(2, 4)]]


def _joined(function: Any, *arrays: Any) -> Any:
    return function(arrays)


def _stacked(names: str, theirs: Any, inputs: Any) -> Judge:
    return Judge(everywhere(names), lambda *arrays: theirs(arrays), inputs, ours=_joined)


JUDGES = [
    Judge(everywhere("log2"), torch.log2, unary(0.1, 4.0)),
    Judge(everywhere("log10"), torch.log10, unary(0.1, 4.0)),
    Judge(everywhere("exp2"), torch.exp2, unary()),
    Judge(everywhere("frac"), torch.frac, unary(0.1, types=PRECISE)[:5]),
    Judge(everywhere("logaddexp"), torch.logaddexp, binary(types=PRECISE), loose=4),
    Judge(everywhere("logaddexp2"), torch.logaddexp2, binary(types=PRECISE), loose=4),
    Judge(everywhere("isneginf"), torch.isneginf, unary()),
    Judge(everywhere("isposinf"), torch.isposinf, unary()),
    Judge(everywhere("float_power"), torch.float_power, binary(0.5, 3.0)),
    Judge(everywhere("float_power"), torch.float_power, unary(0.5, types=PRECISE)[:4], arguments=[(2,), (0.5,)]),
    Judge(everywhere("deg2rad"), torch.deg2rad, unary()),
    Judge(everywhere("rad2deg"), torch.rad2deg, unary()),
    Judge(everywhere("sinc"), torch.sinc, unary(types=PRECISE)[:6], loose=4),
    Judge(everywhere("addcdiv"), torch.addcdiv, _THREE),
    Judge(everywhere("addcdiv"), lambda *x, value: torch.addcdiv(*x, value=value), _THREE, named=[{"value": 0.5}]),
    Judge(everywhere("addcmul"), torch.addcmul, _THREE),
    Judge(everywhere("addcmul"), lambda *x, value: torch.addcmul(*x, value=value), _THREE, named=[{"value": 2}]),
    Judge(everywhere("nansum"), torch.nansum, _HOLES, arguments=[(), (0,), (1, True)], loose=4),
    Judge(everywhere("nanmean"), torch.nanmean, _HOLES, arguments=[(), (0,), (1, True)], loose=4),
    Judge(
        everywhere("count_nonzero", "", "mint.count_nonzero"),
        lambda x, *axis: torch.count_nonzero(x, *axis).int(),
        [[np.array([[0, 2, -1], [0, 0, 3]], kind)] for kind in ("float32", "int32", "bool")] + [[drawn(0, 3)]],
        arguments=[(), (0,), (1,)],
    ),
    Judge(everywhere("dot"), torch.dot, [[drawn(4), drawn(4)]], loose=4),
    Judge(everywhere("dot"), torch.matmul, [[drawn(3, 4), drawn(4, 2)], [drawn(2, 3, 4), drawn(4)]], loose=4),
    Judge(everywhere("inner"), torch.inner, [[drawn(4), drawn(4)], [drawn(3, 4), drawn(2, 4)]], loose=4),
    Judge(everywhere("inner"), torch.inner, [[drawn(), drawn(2, 4)], [drawn(2, 4), drawn()]]),
    Judge(
        everywhere("addmv"),
        lambda *x, **by: torch.addmv(*x, **by),
        [[drawn(3), drawn(3, 4), drawn(4)]],
        named=[{}, {"beta": 0.5, "alpha": 2}],
        loose=4,
    ),
    Judge(
        everywhere("addr"),
        lambda *x, **by: torch.addr(*x, **by),
        [[drawn(3, 4), drawn(3), drawn(4)]],
        named=[{}, {"beta": 0.5, "alpha": 2}],
    ),
    Judge(everywhere("trace"), torch.trace, [[drawn(3, 3)], [drawn(2, 4)], [drawn(3, 3, dtype="float32")]], loose=4),
    Judge(everywhere("diff"), torch.diff, [[drawn(3, 4)], [drawn(5)]], arguments=[(), (2,), (0,)]),
    Judge(
        everywhere("diff"),
        lambda x, before, after: torch.diff(x, 1, 1, before, after),
        [[drawn(3, 4), drawn(3, 1), drawn(3, 2)]],
        ours=lambda function, x, before, after: function(x, 1, 1, before, after),
    ),
    _stacked("hstack", torch.hstack, _ROWS),
    _stacked("vstack", torch.vstack, _SAME_ROWS),
    _stacked("column_stack", torch.column_stack, [[drawn(3), drawn(3, 2)], *_ROWS[2:]]),
    Judge(
        everywhere("moveaxis movedim"),
        torch.moveaxis,
        [[drawn(2, 3, 4)]],
        arguments=[(0, 2), (-1, 0), ((0, 1), (2, 0)), ((2, 0), (0, 1))],
    ),
]
