"""Collectives in pieces on emulated GPUs: planned memory, pieces of rows and columns, collectives in their place."""

from pathlib import Path

import numpy as np
import pytest

from mspc.passes.base import find_pass
from tests.gpu.test_ranks import steps
from tests.ops.cuda.cuda_emulator import NEEDED
from tests.passes.communication.pieces_networks import WIDTH, Case

pytestmark = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")


@pytest.mark.parametrize("case", [Case(), Case(kind="sums", gelu=True, turned=True)])
def test_steps_equal_numpys(case: Case, tmp_path: Path) -> None:
    found = case.compiled()
    assert find_pass("choose_pieces", {"number": case.number}).run(found.graph)
    assert any(node.attrs.get("piece") == "2 of 2" for node in found.rank_graph(0).nodes)
    data = [np.random.default_rng(3).standard_normal((case.batch, case.words, WIDTH)) / 4]
    wanted, got = (steps(found, data, tmp_path, gpu) for gpu in (False, True))
    for (losses, parameters), (also, others) in zip(wanted, got, strict=True):
        np.testing.assert_allclose(also, losses, rtol=1e-9)
        for name, value in parameters.items():
            np.testing.assert_allclose(others[name], value, rtol=1e-8, atol=1e-9, err_msg=name)
