"""Strategies of operators that speak of more than their inputs' dimensions: each network equals one device."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Layout
from tests.compiler.sharded_networks import check_equals_one_device, compiled, networks

NETWORKS = networks("operator_strategies")


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_equals_one_device(tmp_path: Path, name: str) -> None:
    check_equals_one_device(tmp_path, NETWORKS[name])


def test_a_parameter_is_stored_as_its_change_needs_it(tmp_path: Path) -> None:
    graph = compiled(tmp_path, NETWORKS["a parameter changed on slices of its own"]).graph
    layout = graph.parameter("w").layout
    assert isinstance(layout, Layout)
    assert layout.strategy == (4, 2)


READERS = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(32, 8), "w")
        self.first = P.%s().shard(((4, 2), (4, 2)))
        self.second = P.%s().shard(%s)
    def construct(self, x):
        a = self.first(self.w, x)
        return self.second(self.w, a)
Net()(tensor(32, 8))
"""


@pytest.mark.parametrize("operators", [("AssignAdd", "AssignAdd"), ("Mul", "Mul"), ("Mul", "AssignAdd")])
def test_strategies_of_one_parameter_must_agree(tmp_path: Path, operators: tuple[str, str]) -> None:
    with pytest.raises(MspcError) as raised:
        compiled(tmp_path, READERS % (*operators, "((2, 1), (2, 1))"))
    assert raised.value.kind is RuntimeError
    assert (
        f"{operators[1]} 'second': its strategy shards the parameter w (2, 1), but that of "
        f"{operators[0]} 'first' (4, 2)"
    ) in str(raised.value)


@pytest.mark.parametrize("strategy", ["((4, 2), (4, 2))", "None"])
def test_readers_of_one_parameter_with_one_strategy_share_it(tmp_path: Path, strategy: str) -> None:
    graph = compiled(tmp_path, READERS % ("Mul", "Mul", strategy)).graph
    assert str(graph.parameter("w").layout) == "(4, 2) [0, 1]"


def test_a_layout_of_tile_cannot_shard_a_repeated_dimension(tmp_path: Path) -> None:
    text = NETWORKS["a Layout of Tile that speaks of the input"].replace("8, 1, 4", "8, 2, 4").replace("6, 1", "3, 1")
    with pytest.raises(MspcError) as raised:
        compiled(tmp_path, text.replace('"None"', '"sp"'))
    assert "Tile 'tile': the strategy" in str(raised.value)
    assert "does not shard the result into contiguous slices" in str(raised.value)


def test_out_strategy_sends_one_reduce_scatter(tmp_path: Path) -> None:
    graph = compiled(tmp_path, NETWORKS["a matrix product scattered by out_strategy"]).graph
    sent = [node.op.name for node in graph.nodes if node.phase == "forward" and node.op.name.startswith("Reduce")]
    assert sent.count("ReduceScatter") == 1


@pytest.mark.parametrize(
    ("size", "cuts", "message"),
    [
        (4, (8, 1), ""),
        (6, (8, 1), "group_size is 6, not a power of two"),
        (0, (8, 1), "group_size is 0, not a power of two"),
        (True, (8, 1), "group_size is True, not a power of two"),
        (2, (2, 4), "with a group_size the strategy may shard the batch alone, and is (2, 4) for input 0"),
    ],
)
def test_a_group_of_ranks_that_share_statistics(
    tmp_path: Path, size: object, cuts: tuple[int, int], message: str
) -> None:
    text = f"""
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.norm.bn_train.shard(({cuts}, *[({cuts[1]},)] * 4)).add_prim_attr("group_size", {size})
    def construct(self, x):
        return self.norm(x)
net = Net()
net.set_train()
net(tensor(32, 8))
"""
    if not message:
        assert compiled(tmp_path, text).graph.nodes
        return
    with pytest.raises(MspcError) as raised:
        compiled(tmp_path, text)
    assert raised.value.kind is RuntimeError
    assert message in str(raised.value)
