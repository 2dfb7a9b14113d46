"""Dumps of a rank's passes: passes of `OPTIONAL` take no number, and leave no trace where they change nothing."""

from __future__ import annotations

import pytest

from mspc.compiler.pipeline import RankDumps

NAMES = ("slice_to_rank", "fuse_large_rows", "fuse_elementwise", "execute")


@pytest.mark.parametrize("changed", [False, True])
def test_a_pass_that_may_do_nothing_shares_a_number(changed: bool) -> None:
    dumps = RankDumps(NAMES, 9, "fuse_gradients")
    optional = ("09_fuse_large_rows", "slice_to_rank") if changed else None
    ahead = "fuse_large_rows" if changed else "slice_to_rank"
    assert [dumps.file_and_before(name, changed) for name in NAMES] == [
        ("step_parallel_end", "fuse_gradients"), optional, ("10_fuse_elementwise", ahead),
        ("11_execute", "fuse_elementwise"),
    ]  # fmt: skip
