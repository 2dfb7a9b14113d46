"""Every operator on the tensors of all ranks at once gives what its kernel gives rank by rank."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mspc.ops.op import load_operators
from mspc.verify.scale.rank_kernels import run_on_all
from mspc.verify.scale.rank_kinds import parts_of, widened
from tests.ops.backend import BACKEND
from tests.ops.simulate import arrays_of, operator_of, samples_of, types_of

load_operators()
ELSEWHERE = (
    "control.structural", "control.custom", "control.regions", "collective.collectives", "collective.exchange",
    "collective.point_to_point", "collective.row_exchange",
)  # fmt: skip
"""Modules whose operators are collectives, or have no kernel."""
CASES = list(samples_of(ELSEWHERE))
MESH = (2, 3)


def given_to_ranks(arrays: list[np.ndarray], wide: tuple[int, ...], random: np.random.Generator) -> list[np.ndarray]:
    """Operands with leading dimensions: elements of those in `wide` stand in another order along one of these."""
    found: list[np.ndarray] = []
    for number, array in enumerate(arrays):
        lead = (2, 1) if number % 2 == 0 else (1, 3)
        if number not in wide:
            lead = (1, 1)
        blocks = [random.permutation(array.reshape(-1)).reshape(array.shape) for _ in range(max(lead))]
        blocks[0] = array
        found.append(np.stack(blocks[: max(lead)]).reshape(*lead, *array.shape))
    return found


@pytest.mark.parametrize(("name", "index"), CASES)
def test_all_ranks_at_once(name: str, index: int) -> None:
    op, sample = operator_of(name, index)
    if op.draws:
        pytest.skip("it draws other numbers on other ranks")
    arrays = arrays_of(name, sample, types_of(sample))
    random = np.random.default_rng(0)
    for wide in {tuple(range(len(arrays))), *((i,) for i in range(len(arrays)))}:
        given = given_to_ranks(arrays, wide, random)
        if op.mutates:
            given = [np.array(widened(a, MESH)) if i in op.mutates else a for i, a in enumerate(given)]
        before = [np.array(widened(array, MESH)) for array in given]
        expected: dict[tuple[int, ...], tuple[np.ndarray, ...]] = {}
        try:
            with np.errstate(all="ignore"):
                for place in itertools.product(*map(range, MESH)):
                    expected[place] = parts_of(op.kernel(BACKEND)(*(np.array(array[place]) for array in before)))
        except (IndexError, ValueError, np.linalg.LinAlgError):  # it does not take elements in any order
            continue
        with np.errstate(all="ignore"):
            found = parts_of(run_on_all(op, BACKEND, len(MESH), [np.array(array) for array in given]))
        for place, results in expected.items():
            for made, wanted in zip(found, results, strict=True):
                assert made.dtype == np.asarray(wanted).dtype
                np.testing.assert_allclose(
                    widened(made, MESH)[place], wanted, rtol=1e-12, atol=1e-12, err_msg=f"{name} wide in {wide}"
                )
