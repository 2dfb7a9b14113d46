"""Attention whose keys and values are on other ranks than those that read them equals one device."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target
from mspc.ir.diagnostics import MspcError
from tests.compiler.sharded_networks import HEAD, check_equals_one_device, compiled

NETWORK = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor{shape}, "w")
        self.op = {made}
    def construct(self, x):
        return self.op(x, x * self.w, self.w{more})[{result}]
{call}(tensor{shape})
"""
FLASH = 'P.FlashAttentionScore(4, 1.0, 0.5, input_layout="{}", sparse_mode={}).add_prim_attr("{}", {}).shard({})'
GRADIENT = "C.GradOperation(get_all=True)(Net())"
BSH, BNSD = "((2, 2, 2),) * 3", "((1, 2, 4, 1),) * 3"
NETWORKS = {
    "a ring": (FLASH.format("BSH", 0, "enable_ring_attention", True, BSH), (4, 8, 16), "", 3, GRADIENT),
    "causal": (FLASH.format("BNSD", 2, "enable_flash_sp", True, BNSD), (2, 4, 8, 2), "", 3, GRADIENT),
    "by Layouts": (
        FLASH.format("BSH", 2, "enable_flash_sp", True, '(layout("dp", "sp", "mp"),) * 3'), (4, 8, 16), "", 3, GRADIENT,
    ),
}  # fmt: skip


def text_of(name: str) -> str:
    made, shape, more, result, call = NETWORKS[name]
    return NETWORK.format(made=made, shape=shape, more=more, result=result, call=call)


GROUPED = """
line = Layout((8,), ("all",))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(2, 4, {width}), "w")
        self.op = P.FlashAttentionScore(8, 1.0, 0.5, input_layout="BSH", sparse_mode=2).shard(
            (layout("None", "None", {queries}), layout("None", "None", {keys}), layout("None", "None", {keys})))
    def construct(self, x):
        return self.op(x, self.w, self.w * 0.5)[3]
C.GradOperation(get_by_list=True)(Net())(tensor(2, 4, 16))
"""


@pytest.mark.parametrize(
    ("width", "queries", "keys"), [(4, '("dp", "mp")', '"mp"'), (8, '("sp", "dp")', '("dp", "mp")')]
)
def test_grouped_heads_that_stand_on_other_ranks_equal_one_device(
    width: int, queries: str, keys: str, tmp_path: Path
) -> None:
    """8 heads of queries look at 2 or 4 of keys: the first axes of the queries' heads say which."""
    check_equals_one_device(tmp_path, GROUPED.format(width=width, queries=queries, keys=keys))


def test_grouped_heads_in_another_number_of_shards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MspcError) as caught:
        compiled(tmp_path, GROUPED.format(width=8, queries='("dp", "sp", "mp")', keys='"mp"'))
    assert "dimension 2 of input 1 and dimension 2 of input 0 are the same dimension" in str(caught.value)


def test_an_axis_that_cuts_across_groups_of_heads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MspcError) as caught:
        compiled(tmp_path, GROUPED.format(width=4, queries='"all"', keys='"all"').replace("layout(", "line("))
    assert "input 0 is 2 parts one after the other, and slices over the axis of size 8 would cross" in str(
        caught.value
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_sequences_in_parts_equal_one_device(name: str, tmp_path: Path) -> None:
    check_equals_one_device(tmp_path, text_of(name))


def test_an_addend_gathers_what_is_stored_in_slices(tmp_path: Path) -> None:
    """The added mask may leave the logarithms of sums too coarse for gradients by slices of the keys."""
    script = tmp_path / "net.py"
    text = text_of("causal").replace(", self.w)[3]", ", self.w, self.w[:1, :1, :, :1])[3]")
    script.write_text(HEAD + text.replace("((1, 2, 4, 1),) * 3", "(*((1, 2, 4, 1),) * 3, (1, 1, 4, 1))"))
    verify_target(str(script), CompileOptions(), seed=1)
