"""Compiled loops against NumPy: every operator that they take, chains, rows, sums, updates, edges of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mspc.ops.cpu.loops import program
from mspc.ops.cpu.loops.library import compiler
from mspc.ops.fused.elementwise import FusedElementwise
from tests.ops.cuda.cuda_chains import Case, NumPy, chain_cases, edge_cases, row_cases, sample_cases
from tests.passes.fusion.test_fuse_elementwise import fused
from tests.passes.fusion.test_fuse_rows import PASSES, random_graph

pytestmark = pytest.mark.skipif(not compiler(), reason="needs a C++ compiler")


def kernels_of(cases: Sequence[Case]) -> dict[int, Any]:
    return program.kernels(NumPy(), {i: (case.op, case.types, case.results()) for i, case in enumerate(cases)}).loops


def check(cases: Sequence[Case], missing: int) -> None:
    """Run the cases that are loops, with results of their own and over an operand, and compare with NumPy; as many as
    `missing` are none."""
    kernels = kernels_of(cases)
    assert len(cases) - len(kernels) == missing, [str(c) for i, c in enumerate(cases) if i not in kernels]
    for number, kernel in kernels.items():
        case = cases[number]
        inputs = case.inputs()
        before = [np.array(x) for x in inputs]
        out = [np.empty(t.shape, t.dtype.numpy) for t in case.results()]
        if case.alias >= 0:
            out[0] = inputs[case.alias]
        made = kernel(*inputs, out=tuple(out) if len(out) > 1 else out[0])
        made = made if isinstance(made, tuple) else (made,)
        assert all(one is other for one, other in zip(made, out, strict=True))
        case.check(made, before)
        again = kernel(*before)
        for one, other in zip(again if isinstance(again, tuple) else (again,), made, strict=True):
            np.testing.assert_array_equal(one, other)
