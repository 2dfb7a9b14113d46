"""Fused operators hand numbers on as they are: every operator that is broadcast takes one for any operand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mspc.ops.bases import Elementwise
from mspc.ops.op import REGISTRY, load_operators

load_operators()
BACKEND = SimpleNamespace(xp=np, comm=None, step=1)
OPERATORS = sorted(
    name
    for name, kind in REGISTRY.items()
    if issubclass(kind, Elementwise) and kind.broadcasts and kind.samples and len(kind.samples[0].shapes) > 1
)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_number_is_broadcast(name: str) -> None:
    found = REGISTRY[name].samples[0]
    draws = np.random.default_rng(3)
    whole = np.broadcast_shapes(*found.shapes)
    kinds = [np.dtype(kind.lower()) for kind in found.dtypes or ("float64",) * len(found.shapes)]
    full = [draws.uniform(max(found.low, 0.1), found.high, whole).astype(kind) for kind in kinds]
    signs = [np.where(draws.random(whole) < 0.5, 1, -1) if found.low < 0 and kind.kind == "f" else 1 for kind in kinds]
    full = [(array * sign).astype(array.dtype) for array, sign in zip(full, signs, strict=True)]
    kernel = REGISTRY[name](**found.fields).kernel(BACKEND)
    for place, array in enumerate(full):
        number = array.reshape(-1)[:1].reshape(())
        other = [np.full(whole, number, number.dtype) if i == place else a for i, a in enumerate(full)]
        given = [number if i == place else a for i, a in enumerate(full)]
        np.testing.assert_array_equal(kernel(*given), kernel(*other), err_msg=f"operand {place}")
