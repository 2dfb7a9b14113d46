"""Names that a mistyped name may have meant."""

from __future__ import annotations

import pytest

from mspc.ir.diagnostics import all_of, did_you_mean, nearest

NAMES = ("grad", "simplify", "MatMul", "BatchMatMul", "Concat", "fuse_norm", "fuse_matmul")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("gard", ["grad"]),
        ("matmul", ["MatMul"]),
        ("MatMull", ["MatMul", "fuse_matmul", "BatchMatMul"]),
        ("norm", ["fuse_norm"]),
        ("zzz", []),
        ("", []),
    ],
)
def test_nearest_names(name: str, found: list[str]) -> None:
    assert nearest(name, NAMES)[: max(1, len(found))] == found


def test_notes() -> None:
    assert did_you_mean("zzz", NAMES) == []
    assert did_you_mean("gard", NAMES) == ["did you mean 'grad'?"]
    assert did_you_mean("float", ["float16", "float32", "float64"]) == [
        "did you mean 'float64', 'float32' or 'float16'?"
    ]
    assert all_of("gard", ["simplify", "execute", "grad"]) == "grad, execute, simplify"
