"""What a rank reads of its launcher."""

from __future__ import annotations

import os

import pytest

from mspc.engine.ranks import environment
from mspc.ops.cpu.threads import thread_count


@pytest.mark.parametrize(("ranks", "count"), [(2, 4), (4, 2), (16, 1)])
def test_ranks_of_one_machine_share_its_cores(ranks: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # so that what is set below is undone
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", str(ranks))
    environment.limit_threads()
    assert thread_count.__wrapped__() == count


def test_the_place_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_ID", "2")
    monkeypatch.setenv("RANK_SIZE", "4")
    assert environment.place() == {"rank": 2, "size": 4, "local_rank": 2, "local_size": 4}
