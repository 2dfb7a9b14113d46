"""Declarations of operators about memory hold for their kernels: views, updates in place, effects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import INT32, TensorType
from mspc.ops.collective.base import Collective
from mspc.ops.op import REGISTRY, load_operators
from tests.grouped import MANY, grouped
from tests.ops.simulate import BACKEND, arrays_of, operator_of, samples_of, types_of

load_operators()


@grouped([(*case, floats) for case in samples_of(()) for floats in ("Float32", "Float64")], MANY)
def test_results_show_the_declared_operands_alone(name: str, index: int, floats: str) -> None:
    op, sample = operator_of(name, index)
    arrays = arrays_of(name, sample, types_of(sample, floats))
    before = [array.copy() for array in arrays]
    out: Any = op.kernel(BACKEND)(*arrays)
    results = out if isinstance(out, tuple) else (out,)
    shown = {i for i, array in enumerate(arrays) if any(np.shares_memory(array, result) for result in results)}
    assert shown <= set(op.aliased_operands(len(arrays)))
    changed = {i for i, (array, old) in enumerate(zip(arrays, before, strict=True)) if array.tobytes() != old.tobytes()}
    assert changed <= set(op.mutates)
    if op.is_view:
        assert results[0].tobytes() == before[0].tobytes()


def test_what_changes_something_has_an_effect() -> None:
    own = {name: cls for name, cls in REGISTRY.items() if cls.__module__.startswith("mspc.")}
    assert [name for name, cls in own.items() if cls.mutates and not cls.has_side_effect] == []
    assert [name for name, cls in own.items() if cls.is_collective != issubclass(cls, Collective)] == []
    assert [name for name, cls in own.items() if cls.is_collective and not cls.has_side_effect] == []


def test_operators_of_floating_point_refuse_integers() -> None:
    kinds = [(name, kind) for name, kind in load_operators().items() if kind.float_only and kind.samples]
    assert len(kinds) > 60
    for name, kind in kinds:
        given = kind.samples[0]
        types = [TensorType(INT32, shape) for shape in given.shapes]
        with pytest.raises(MspcError, match=name):
            kind(**given.fields).infer(*types)
