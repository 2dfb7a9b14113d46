"""Judges of products of matrices and of arithmetic on three tensors."""

from tests.oracle.inputs import drawn
from tests.oracle.judging import torch
from tests.oracle.names import everywhere
from tests.oracle.shapes import judged

_RIGHT = [[drawn(3, 4, dtype=kind), drawn(4, 2, dtype=kind)] for kind in ("float32", "float64", "int32")]
_BATCHES = [[drawn(2, 3, 4), drawn(2, 4, 5)], [drawn(2, 3, 4, dtype="float32"), drawn(2, 4, 5, dtype="float32")]]
_VECTORS = [
    [drawn(4), drawn(4)],
    [drawn(3, 4), drawn(4)],
    [drawn(3), drawn(3, 4)],
    [drawn(2, 3, 4), drawn(4)],
    [drawn(4), drawn(2, 4, 3)],
    [drawn(5, 1, 3, 4), drawn(2, 4, 2)],
]
JUDGES = [
    judged(everywhere("matmul mm", "MatMul MatMulExt"), torch.matmul, _RIGHT, loose=8),
    judged(everywhere("matmul"), torch.matmul, [*_BATCHES, *_VECTORS], loose=8),
    judged(everywhere("bmm batch_matmul", "BatchMatMul BatchMatMulExt"), torch.matmul, _BATCHES, loose=8),
    judged(
        ("mint.baddbmm",),
        torch.baddbmm,
        [[drawn(2, 3, 5), drawn(2, 3, 4), drawn(2, 4, 5)]],
        named=({}, {"beta": 2, "alpha": 0.5}),
        loose=8,
    ),
    judged(
        ("ops.dense",),
        torch.nn.functional.linear,
        [
            [drawn(3, 4), drawn(2, 4)],
            [drawn(3, 4), drawn(2, 4), drawn(2)],
            [drawn(2, 3, 4), drawn(2, 4), drawn(2)],
            [drawn(4), drawn(2, 4), drawn(2)],
        ],
        loose=8,
    ),
    judged(
        ("ops.bias_add", "ops.BiasAdd"),
        lambda x, b: x + b.reshape(-1, *[1] * (x.dim() - 2)),
        [[drawn(3, 4), drawn(4)], [drawn(2, 3, 4, 5), drawn(3)]],
    ),
    judged(
        ("mint.add", "ops.add_ext", "ops.AddExt"),
        lambda x, y: torch.add(x, y, alpha=2),
        [[drawn(3, 4), drawn(4)]],
        ours=lambda f, x, y: f(x, y, 2) if hasattr(f, "op") else f(x, y, alpha=2),
    ),
    judged(
        ("mint.sub", "ops.sub_ext", "ops.SubExt"),
        lambda x, y: torch.sub(x, y, alpha=2),
        [[drawn(3, 4), drawn(4)]],
        ours=lambda f, x, y: f(x, y, 2) if hasattr(f, "op") else f(x, y, alpha=2),
    ),
]
