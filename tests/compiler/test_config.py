"""From a script's context to the compiler's settings.

Dumps of a rank's passes: passes of `OPTIONAL` take no number, and leave no trace where they change nothing.
"""

from __future__ import annotations

import pytest

from mspc.compiler.config import Config, feed
from mspc.compiler.pipeline import RankDumps
from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, TensorType
from mspc.mindspore_api.context import FrozenContext

X = TensorType(FLOAT32, (4, 6))


@pytest.mark.parametrize(
    ("fusion", "nbytes"),
    [
        ((), 64 << 20),
        ((("openstate", False),), 0),
        ((("openstate", True), ("allreduce", (("mode", "auto"), ("config", None)))), 64 << 20),
        ((("openstate", True), ("allreduce", (("mode", "size"), ("config", 32)))), 32 << 20),
    ],
)
def test_bucket_of_gradients(fusion: tuple, nbytes: int) -> None:
    assert Config.from_context(FrozenContext(comm_fusion=fusion), 8).gradient_bucket == nbytes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"parallel_mode": "data_parallel", "dataset_strategy": "full_batch"},
            "data_parallel mode takes no full_batch: every rank trains on its own rows",
        ),
        (
            {"enable_parallel_optimizer": True, "optimizer_shard_size": 16},
            "optimizer_weight_shard_size is 16, but there are 8 ranks",
        ),
    ],
)
def test_settings_that_exclude_each_other(settings: dict, message: str) -> None:
    with pytest.raises(MspcError) as raised:
        Config.from_context(FrozenContext(**settings), 8)
    assert (raised.value.kind, raised.value.message) == (RuntimeError, message)


@pytest.mark.parametrize(
    ("mode", "strategy", "graph", "total", "layout"),
    [
        ("semi_auto_parallel", "data_parallel", (32, 6), (32, 6), "(8) [0, -]"),
        ("semi_auto_parallel", "full_batch", (4, 6), (4, 6), "(8) [-, -]"),
        ("auto_parallel", ((2, 2),), (8, 12), (8, 12), "(2, 2, 2) [0, 1]"),
        ("data_parallel", "data_parallel", (4, 6), (32, 6), "(8) [0, -]"),
        ("stand_alone", "data_parallel", (4, 6), (4, 6), "(8) [-, -]"),
    ],
)
def test_how_an_argument_arrives(mode: str, strategy: object, graph: tuple, total: tuple, layout: str) -> None:
    (fed,) = feed(Config(ranks=8, mode=mode, dataset_strategy=strategy), [X])
    assert (fed.graph_type.shape, fed.global_type.shape, str(fed.layout)) == (graph, total, layout)
    assert isinstance(fed.layout, Layout)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (((2, 1), (1, 1)), "dataset_strategy has 2 entries, but the network is called with 1 tensors"),
        (((3, 1),), "dataset_strategy of input 0 is (3, 1), whose product does not divide 8 ranks"),
        (((2,),), "dataset_strategy of input 0 has 1 entries for 2 dimensions"),
    ],
)
def test_a_dataset_strategy_that_does_not_fit(strategy: tuple, message: str) -> None:
    with pytest.raises(MspcError) as raised:
        feed(Config(ranks=8, mode="semi_auto_parallel", dataset_strategy=strategy), [X])
    assert (raised.value.kind, raised.value.message) == (RuntimeError, message)


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
