"""Copies of parameters that updates write, in the kernels as g++ runs them: what Cast makes of the new values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, DType
from mspc.ops.device import Copy
from tests.operators import Adam, ApplyMomentum, AssignAdd, Cast, GroupedUpdate
from tests.ops.cuda.cuda_emulator import NEEDED, Emulator, placed

pytestmark = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
EDGES = np.array(
    [np.nan, -np.nan, np.inf, -np.inf, 0, -0.0, 65504, 65519.99, 65520, -70000, 3.4e38, 3.39e38, 1e-8, -6e-8, 1e-40, 1,
     1.00390625, 1.01171875, 1.0004883, 1.0014648], np.float32,
)  # fmt: skip


def values(count: int, seed: int = 0) -> Any:
    found = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    found[: len(EDGES)] = EDGES[:count]
    return found


def rows(array: Any, copy: Copy) -> Any:
    """Where the rows of a copy stand."""
    size = array.size // copy.columns
    return np.lib.stride_tricks.as_strided(
        copy.array, (size, copy.columns), (copy.pitch * copy.array.itemsize, copy.array.itemsize)
    )


def check(device: Any, dtype: DType, members: list[tuple[Any, Copy | None]], launch: Any) -> None:
    """Launch, and compare every copy with what Cast makes of its parameter."""
    casts = []
    for variable, copy in members:
        wanted = placed(np.zeros(variable.shape, dtype.numpy), 0)
        casts.append((wanted, Cast(dtype).launch(device, wanted, variable) if copy is not None else None))
    with np.errstate(all="ignore"):
        launch()
        for (variable, copy), (wanted, cast) in zip(members, casts, strict=True):
            if copy is not None:
                if cast is not None:
                    cast()
                found = np.ascontiguousarray(rows(variable, copy))
                np.testing.assert_array_equal(found.view(np.uint8).ravel(), wanted.view(np.uint8).ravel())


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16])
def test_copies_are_what_cast_makes(dtype: DType, tmp_path: Path) -> None:
    """Whole, with a rest behind the last pack; side by side in rows; and a member without a copy."""
    device = Emulator(tmp_path)
    op = GroupedUpdate.of(ApplyMomentum(), 5)
    joined = placed(np.full((12, 64), 7, dtype.numpy), 0)
    flat = joined.reshape(-1)
    alone = placed(np.full(5003, 7, dtype.numpy), 0)
    members: list[tuple[Any, Copy | None]] = [
        (placed(values(5003), 0), Copy(alone, 5003, 5003)),
        (placed(values(12 * 24, 1).reshape(12, 24), 0), Copy(flat[8:], 24, 64)),
        (placed(values(12 * 32, 2).reshape(12, 32), 0), Copy(flat[32:], 32, 64)),
        (placed(values(77, 3), 0), None),
        (placed(values(0, 4), 0), None),
    ]
    rate, momentum = placed(np.float32(0.5), 0), placed(np.float32(0.9), 0)
    inputs: list[Any] = []
    for variable, _ in members:
        gradient = np.zeros(variable.shape, np.float32)
        gradient.reshape(-1)[len(EDGES) :] = 0.125
        inputs += [variable, placed(np.zeros(variable.shape, np.float32), 0), rate, placed(gradient, 0), momentum]
    copies = {5 * i: copy for i, (_, copy) in enumerate(members) if copy is not None}
    launch = op.launch(device, None, *inputs, copies=copies)
    before = np.array(members[3][0])
    check(device, dtype, members, launch)
    assert (joined[:, :8] == 7).all()
    assert (members[3][0] != before).any()
    assert members[0][0][-1] == values(5003)[-1] - np.float32(0.0625)


def test_rows_that_no_packs_divide(tmp_path: Path) -> None:
    device = Emulator(tmp_path)
    joined = placed(np.zeros((31, 15), np.float32), 0)
    variable = placed(values(31 * 7).reshape(31, 7), 0)
    copy = Copy(joined.reshape(-1)[3:], 7, 15)
    launch = AssignAdd().launch(device, None, variable, placed(np.ones((31, 7), np.float32), 0), copies={0: copy})
    check(device, FLOAT32, [(variable, copy)], launch)
    assert (joined[:, 10:] == 0).all()


def test_copies_of_several_element_types(tmp_path: Path) -> None:
    device = Emulator(tmp_path)
    scalars = [placed(np.float32(v), 0) for v in (0.5, 0.5, 0.1, 0.9, 0.9, 1e-8)]
    made: list[tuple[DType, Any, Copy]] = []
    inputs: list[Any] = []
    for dtype in (FLOAT16, BFLOAT16, FLOAT32):
        variable = placed(np.random.default_rng(0).random(300).astype(np.float32), 0)
        made.append((dtype, variable, Copy(placed(np.zeros(300, dtype.numpy), 0), 300, 300)))
        moments = [placed(np.zeros(300, np.float32), 0) for _ in range(2)]
        inputs += [variable, *moments, *scalars, placed(np.ones(300, np.float32), 0)]
    op = GroupedUpdate.of(Adam(), 3)
    launch = op.launch(device, None, *inputs, copies={10 * i: copy for i, (_, _, copy) in enumerate(made)})
    assert launch is not None
    launch()
    for dtype, variable, copy in made:
        np.testing.assert_array_equal(copy.array, variable.astype(dtype.numpy))
        assert (variable < 1).all()


def test_nothing_is_copied_after_a_stop(tmp_path: Path) -> None:
    device = Emulator(tmp_path)
    device.stop[0] = 1
    variable, copy = placed(values(64), 0), Copy(placed(np.full(64, 7, np.float16), 0), 64, 64)
    launch = AssignAdd().launch(device, None, variable, placed(values(64), 0), copies={0: copy})
    assert launch is not None
    launch()
    assert (copy.array == 7).all()


def test_updates_without_copies_have_the_kernel_that_they_had(tmp_path: Path) -> None:
    device = Emulator(tmp_path)
    inputs = [placed(values(64), 0), placed(values(64), 0)]
    AssignAdd().launch(device, None, *inputs)
    AssignAdd().launch(device, None, *inputs, copies={})
    ((source, _),) = device.sources
    assert "const copy" not in source
