"""Judges of matrices, windows and transforms of parts of signals."""

from typing import Any

import numpy as np

from tests.oracle.inputs import drawn
from tests.oracle.judging import Judge, torch
from tests.oracle.names import everywhere

_SQUARE = [[drawn(3, 3) + 3 * np.eye(3)], [drawn(2, 2, 2) + 4 * np.eye(2)]]
_TALL = [[drawn(4, 3)], [drawn(2, 3, 3)]]
_BATCH = [[drawn(2, 3, 5), drawn(2, 3, 4), drawn(2, 4, 5)]]


PRODUCTS = [
    Judge(everywhere("mv"), torch.mv, [[drawn(3, 4), drawn(4)]], loose=4),
    Judge(
        ("ops.baddbmm", "ops.baddbmm_ext", "Tensor.baddbmm"),
        lambda *x, **by: torch.baddbmm(*x, **by),
        _BATCH,
        named=[{}, {"beta": 0.5, "alpha": 2}],
        loose=8,
    ),
    Judge(
        everywhere("addbmm"),
        lambda *x, **by: torch.addbmm(*x, **by),
        [[drawn(3, 5), *_BATCH[0][1:]]],
        named=[{}, {"beta": 0.5, "alpha": 2}],
        loose=8,
    ),
]
FACTORS = [
    Judge(everywhere("det matrix_determinant", "MatrixDeterminant"), torch.linalg.det, _SQUARE, loose=40),
    Judge(
        everywhere("slogdet log_matrix_determinant", "LogMatrixDeterminant"),
        lambda x: tuple(torch.linalg.slogdet(x)),
        _SQUARE,
        loose=40,
    ),
    Judge(everywhere("qr", "Qr"), lambda x: tuple(torch.linalg.qr(x)), _TALL, loose=400),
    Judge(
        everywhere("svd", "Svd"),
        lambda x: _uniform(*torch.linalg.svd(x, full_matrices=False)),
        [[drawn(4, 3)], [drawn(3, 4)]],
        loose=4000,
        ours=lambda f, x: _uniform_ours(f(x)),
    ),
    Judge(everywhere("svd"), torch.linalg.svdvals, [[drawn(4, 3)]], loose=400, ours=lambda f, x: f(x, False, False)),
]


def _uniform(u: Any, s: Any, vh: Any) -> Any:
    """(values, what does not depend on the vectors' signs)."""
    return s, u @ u.transpose(-1, -2), vh.transpose(-1, -2) @ vh, u @ vh


def _uniform_ours(found: Any) -> Any:
    s, u, v = found
    return s, u.matmul(u.swapaxes(-1, -2)), v.matmul(v.swapaxes(-1, -2)), u.matmul(v.swapaxes(-1, -2))


def _window(name: str, **more: Any) -> Judge:
    theirs = getattr(torch, f"{name}_window")
    return Judge(
        (f"ops.{name}_window",), theirs, [[]], arguments=[(5,), (6,), (1,)], named=[{}, {"periodic": False}], loose=4,
        **more,
    )  # fmt: skip


SIGNALS = [
    *(_window(name) for name in ("hamming", "hann")),
    Judge(("ops.fftfreq",), torch.fft.fftfreq, [[]], arguments=[(5,), (4, 0.5)]),
    Judge(("ops.rfftfreq",), torch.fft.rfftfreq, [[]], arguments=[(5,), (4, 0.5)]),
    Judge(
        ("ops.logspace",), lambda a, b, n: torch.logspace(a, b, n), [[]], arguments=[(0.0, 2.0, 5), (-1, 1, 3)], loose=4
    ),
    Judge(("ops.range",), torch.arange, [[]], arguments=[(0, 9, 2), (0.0, 1.0, 0.25)]),
    Judge(
        ("ops.mirror_pad",),
        lambda x: torch.nn.functional.pad(x[None], (2, 1, 1, 0), "reflect")[0],
        [[drawn(3, 4)]],
        ours=lambda f, x: f(x, ((1, 0), (2, 1)), "REFLECT"),
    ),
]
JUDGES = [*PRODUCTS, *FACTORS, *SIGNALS]
