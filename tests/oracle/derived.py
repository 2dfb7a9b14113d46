"""Judges of functions that are made of other functions."""

from typing import Any

import numpy as np

from tests.oracle.inputs import binary, drawn, reduced
from tests.oracle.judging import Judge, torch
from tests.oracle.names import everywhere

PRECISE = ("float32", "float64")
_HOLES = [[np.array([[1.0, np.nan, 2.0], [np.nan, np.nan, 4.0]], kind)] for kind in PRECISE] + reduced(PRECISE)[:2]
_ROWS = [[drawn(3, 4), drawn(3, 2)], [drawn(3), drawn(2)], [drawn(2, 3, 2), drawn(2, 1, 2)]]


def _joined(function: Any, *arrays: Any) -> Any:
    return function(arrays)


def _stacked(names: str, theirs: Any, inputs: Any) -> Judge:
    return Judge(everywhere(names), lambda *arrays: theirs(arrays), inputs, ours=_joined)


JUDGES = [
    Judge(everywhere("logaddexp"), torch.logaddexp, binary(types=PRECISE), loose=4),
    Judge(
        everywhere("count_nonzero", "", "mint.count_nonzero"),
        lambda x, *axis: torch.count_nonzero(x, *axis).int(),
        [[np.array([[0, 2, -1], [0, 0, 3]], kind)] for kind in ("float32", "int32", "bool")] + [[drawn(0, 3)]],
        arguments=[(), (0,), (1,)],
    ),
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
    _stacked("column_stack", torch.column_stack, [[drawn(3), drawn(3, 2)], *_ROWS[2:]]),
]
