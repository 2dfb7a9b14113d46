"""`mspc verify --mpi`: the ranks run under mpirun; MPI's communicator is held to NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mspc.cli import app
from mspc.runtime.comm.local import LocalComm, World
from mspc.verify.judged_collectives import asked, expected
from tests.conftest import HANG
from tests.planted_errors import verified_through_mpi
from tests.planted_shared import THROUGH_MPI


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
def test_every_collective_of_a_communicator_is_numpys(ranks: int) -> None:
    found = World(ranks).run(asked)
    for rank, arrays in enumerate(found):
        wanted = expected(rank, ranks)
        assert len(arrays) == len(wanted) >= 100
        for array, (label, right) in zip(arrays, wanted, strict=True):
            assert array.dtype == right.dtype, label
            np.testing.assert_array_equal(array.astype(np.float64), right.astype(np.float64), label)


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "exchange"])
def test_a_collective_that_keeps_its_own_part_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right: Any = getattr(LocalComm, name)

    def wrong(self: LocalComm, *args: Any, **named: Any) -> Any:
        found = right(self, *args, **named)
        if name == "exchange":
            return [np.array(array) for _, array in args[0]]
        own = np.asarray(args[0])
        return np.array(own) if own.shape == found.shape else np.flip(found)

    monkeypatch.setattr(LocalComm, name, wrong)
    found = World(2).run(asked)
    labels = [label for label, _ in expected(1, 2)]
    apart = [
        label for label, array, (_, wanted) in zip(labels, found[1], expected(1, 2), strict=True)
        if not np.array_equal(array.astype(np.float64), wanted.astype(np.float64))
    ]  # fmt: skip
    assert apart
    assert all(label.startswith(name) for label in apart)


def test_what_is_right_and_what_is_wrong_under_mpirun() -> None:
    run = verified_through_mpi(None, HANG)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("equal: ")
    run = verified_through_mpi(THROUGH_MPI[0], HANG)
    assert run.returncode == 1, run.stdout + run.stderr
    assert run.stdout.startswith("differs: ")
    assert "Traceback" not in run.stderr


def test_one_judge_at_a_time(tmp_path: Any) -> None:
    (tmp_path / "net.py").write_text("")
    done = CliRunner().invoke(app, ["verify", str(tmp_path / "net.py"), "--mpi", "--against", "torch"])
    assert isinstance(done.exception, SystemExit | Exception)
    assert "--against torch judges one device, and --mpi runs ranks" in str(done.exception) + done.output
