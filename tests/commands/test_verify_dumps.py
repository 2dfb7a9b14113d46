"""`mspc verify --scale` of MindSpore's dumps: what they say has to fit, and what they do not say is listed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mspc.commands.verify import verify_dumps
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.verify.scale.foreign_dumps import number_of_ranks, tiles

HEAD = """# IR entry: @net
# Total subgraphs: 1

# Total params: 2
# Params:
%para1_x: <Tensor[Float32], (4, 8)>
%para2_w: <Ref[Tensor[Float32]], (8, 2), ref_key=w, is_parameter>  :  has_default

subgraph instance: net : 0x1
subgraph @net() {
"""
NODES = """  %0(a) = AllGather(%para1_x) {instance name: gather} primitive_attrs: {group: "2-77", rank_list: RANKS, rank_size: I64(2)}
      : (<Tensor[Float32], (4, 8)>) -> (<Tensor[Float32], (8, 8)>)
  %1(b) = PrimFunc_MatMul(%0, %para2_w, Bool(0), Bool(0)) {instance name: product} primitive_attrs: {in_strategy: ((1, 1), (1, 4))} cnode_primal_attrs: {origin_input_shapes: ((8, 8), (8, 8))} {in_strategy: ((1, 1), (1, 4))}
      : (<Tensor[Float32], (8, 8)>, <Ref[Tensor[Float32]], (8, 2), ref_key=w, is_parameter>, <Bool, NoShape>, <Bool, NoShape>) -> (<Tensor[Float32], (8, 2)>)
  Return(%1)
      : (<Tensor[Float32], (8, 2)>)
}
"""  # noqa: E501  # as MindSpore writes it


def written(folder: Path, old: str = "", new: str = "", ranks: int = 4) -> Path:
    """A folder of every rank's dump, with one change in that of rank 1."""
    for rank in range(ranks):
        text = HEAD + NODES.replace("RANKS", "(0, 1)" if rank < 2 else "(2, 3)")
        text = text.replace("2-77", "2-77" if rank < 2 else "2-78")
        if rank == 1 and old:
            assert old in text
            text = text.replace(old, new)
        path = folder / f"rank_{rank}" / "net.execute.ir"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return folder


def test_dumps_that_fit(tmp_path: Path) -> None:
    verify_dumps(written(tmp_path / "out"), tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["fits"], found["files"]) == (True, 4)
    assert found["checked"]["orders"] == 2
    assert found["checked"]["operators with slices by their strategies"] == 4
    assert any("values" in each for each in found["unsaid"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("(8, 8)>)\n", "(16, 8)>)\n", r"a group of 2 gathers \(4, 8\) and \(16, 8\)"),
        ("rank_list: (0, 1)", "rank_list: (2, 3)", "rank 1 is none of 2, 3"),
        ("rank_list: (0, 1)", "rank_list: (1, 1)", "names a rank twice"),
        ("rank_size: I64(2)", "rank_size: I64(4)", "is of 2 ranks, and the node says 4"),
        ("AllGather", "ReduceScatter", "a group of 2 scatters"),
        ("strategy: ((1, 1), (1, 4))", "strategy: ((1, 1), (1, 2))", r"operand 1 is \(8, 2\), and strategy \(1, 2\)"),
    ],
)  # fmt: skip
def test_dumps_that_do_not_fit(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(ExecutionError) as error:
        verify_dumps(written(tmp_path, old, new), None)
    assert re.search(said, "\n".join([error.value.message, *error.value.notes]))


def test_orders_that_do_not_meet(tmp_path: Path) -> None:
    again = NODES.splitlines()[:2]
    more = "\n".join([again[0].replace("%0(a)", "%2(c)").replace("RANKS", "(0, 1)"), again[1], "  Return"])
    with pytest.raises(ExecutionError, match="rank 0 calls nothing where rank 1 calls AllGather"):
        verify_dumps(written(tmp_path, "  Return", more), None)


def test_a_folder_of_other_graphs(tmp_path: Path) -> None:
    (tmp_path / "net.ir").write_text("#IR entry      : @net\n#Total subgraph: 1\n\nsubgraph @net() {\n}\n")
    with pytest.raises(MspcError):
        verify_dumps(tmp_path, None)


def test_groups_that_divide_ranks() -> None:
    assert tiles((0, 4), 8)
    assert not tiles((0, 4), 6)
    assert number_of_ranks([(0, 1, 2, 3), (0, 4)]) == 8
