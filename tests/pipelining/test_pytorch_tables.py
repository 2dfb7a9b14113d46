"""PyTorch reads the tables of schedules that mspc writes, and mspc those of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from mspc.passes.lib.schedule_tables import read_table, write_table
from mspc.passes.lib.schedules import SCHEDULES, named_schedule


@pytest.fixture(scope="module")
def pytorch() -> Any:
    """PyTorch's schedules: every process that collects tests would take two seconds to load them."""
    return pytest.importorskip("torch.distributed.pipelining.schedules")


@pytest.mark.share(3)
@pytest.mark.parametrize("name", SCHEDULES)
def test_cells_mean_the_same(name: str, pytorch: Any) -> None:
    schedule = named_schedule(name, 4, 8)
    rows = [row.split(",") for row in write_table(schedule).splitlines()]
    read = [[pytorch._Action.from_str(cell) for cell in row] for row in rows]
    assert read_table("\n".join(",".join(map(str, row)) for row in read), name).schedule == schedule
    for actions, entries in zip(read, schedule.entries, strict=True):
        for action, entry in zip(actions, entries, strict=True):
            parts = action.sub_actions or (action,)
            ours = (entry.forward, entry.backward) if action.sub_actions else (entry,)
            assert [(part.stage_index, part.computation_type.value, part.microbatch_index) for part in parts] == [
                (part.chunk, part.kind, part.micro_batch) for part in ours
            ]
