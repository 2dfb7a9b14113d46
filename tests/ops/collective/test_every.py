"""Every collective, forward and backward, against NumPy: on simulated ranks, and under MPI with the public functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mspc.engine.ranks.mpirun import find_mpirun, mpirun_environment
from mspc.runtime.comm.local import World
from tests.conftest import HANG
from tests.ops.collective.every import check_all


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_simulated_ranks(ranks: int) -> None:
    compared = World(ranks).run(check_all)
    assert min(compared) > 200
