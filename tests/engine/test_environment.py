"""What a rank reads of its launcher."""

from __future__ import annotations

import os

import pytest

from mspc.engine.ranks import environment
from mspc.ops.cpu.blocks import thread_count


@pytest.mark.parametrize(("ranks", "count"), [(2, 4), (4, 2), (16, 1)])
def test_ranks_of_one_machine_share_its_cores(ranks: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # so that what is set below is undone
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for name, value in (("SIZE", ranks), ("LOCAL_RANK", 0), ("LOCAL_SIZE", ranks)):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    environment.limit_threads()
    assert thread_count.__wrapped__() == count


def test_a_process_that_nobody_started_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.place() == {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1, "claimed": 1}
    monkeypatch.setenv("RANK_ID", "2")
    monkeypatch.setenv("RANK_SIZE", "4")
    assert environment.place() == {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1, "claimed": 4}


@pytest.mark.parametrize(("rank", "size"), [("0", "²"), ("0", "9" * 5000), ("4", "4"), ("0", "-1")])
def test_a_launcher_that_cannot_be_is_none(rank: str, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", size)
    assert environment.place()["size"] == 1


SRUN = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1", "SLURM_TASKS_PER_NODE": "2(x3)"}


@pytest.mark.parametrize(("variables", "expected"), [
    ({**SRUN, "PMIX_RANK": "5"}, (5, 6, 1, 2)),
    ({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "6", "PMI_FD": "9"}, (5, 6, 1, 2)),
    (SRUN, (0, 1, 0, 1)),  # a batch script: srun speaks of tasks there, but started no rank
], ids=["PMIx", "PMI2", "batch"])  # fmt: skip
def test_ranks_that_srun_starts(
    variables: dict[str, str], expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tuple(environment.place().values())[:4] == expected
    assert environment.mpi_size() == (expected[1] if "PMIX_RANK" in variables or "PMI_RANK" in variables else 0)
