"""Layouts that are given beside operators that compute (`Cell.shard`, `reshard`, `VirtualDataset`), and operators
that are decomposed to carry out their strategies."""

from pathlib import Path

import pytest

from mspc.compiler.driver import Compiled, DumpPoint
from tests.compiled_scripts import compiled_script
from tests.compiler.sharded_networks import HEAD, check_equals_one_device, networks
from tests.errors import error_of
from tests.graphs import ErrorGroup, Graph

AUTOMATIC = HEAD.replace('"semi_auto_parallel"', '"auto_parallel"')
ALONE = HEAD.replace('"semi_auto_parallel"', '"stand_alone"')
NETWORKS = networks("sharding_constraints")
MODES = {"semi": HEAD, "auto": AUTOMATIC}


def compiled_as(tmp_path: Path, text: str) -> tuple[Compiled, list[DumpPoint]]:
    """The compile of a script for 8 ranks and its stages, those of rank 0 among them."""
    script = tmp_path / "net.py"
    script.write_text(text)
    stages: list[DumpPoint] = []
    found = compiled_script(script, 1 if "stand_alone" in text else 8, look=stages.append)
    found.rank_graph(0, stages.append)
    return found, stages


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_equals_one_device(tmp_path: Path, name: str, mode: str) -> None:
    check_equals_one_device(tmp_path, NETWORKS[name], MODES[mode])


@pytest.mark.parametrize("head", [HEAD, AUTOMATIC, ALONE])
@pytest.mark.parametrize("name", [name for name in NETWORKS if name.startswith(("in ", "of ", "a "))])
def test_a_rank_runs_no_constraint(tmp_path: Path, name: str, head: str) -> None:
    found, _ = compiled_as(tmp_path, head + NETWORKS[name])
    assert "ShardingConstraint" not in names(found.rank_graph(0))


def test_operators_take_their_strategy_from_a_constraint(tmp_path: Path) -> None:
    found, _ = compiled_as(tmp_path, AUTOMATIC + NETWORKS["in the middle"])
    cuts = {node.op.name: node.tensor_layout.strategy for node in found.graph.nodes if node.phase == "forward"}
    assert cuts["MatMul"] == cuts["Mul"] == (2, 4)
    assert cuts["Sin"] == (2, 1)


def test_people_see_constraints_among_the_strategies(tmp_path: Path) -> None:
    _, stages = compiled_as(tmp_path, HEAD + NETWORKS["in the middle"])
    view = next(stage.graph for stage in stages if stage.name == "step_parallel_begin")
    assert [node.strategy for node in view.nodes if node.op.name == "ShardingConstraint"] == [((2, 4),), ((2, 1),)]


def test_the_gradient_of_a_constraint_is_none(tmp_path: Path) -> None:
    _, stages = compiled_as(tmp_path, HEAD + NETWORKS["in the middle"])
    graph = next(stage.graph for stage in stages if stage.name == "grad")
    assert [node.phase for node in graph.nodes if node.op.name == "ShardingConstraint"] == ["forward"] * 2


NORM = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.g, self.w = Parameter(tensor(16), "g"), Parameter(tensor(16, 16), "w")
        self.norm = P.RmsNorm(1e-5).shard(((2, 4), (4,)))
        self.matmul = P.MatMul().shard(((2, 1), (1, 4)))
    def construct(self, x):
        return self.matmul(self.norm(x, self.g)[0], self.w)
net = Net()
ms.value_and_grad(net, None, net.trainable_params())(tensor(8, 16))
"""


def test_decomposing_moves_no_number(tmp_path: Path) -> None:
    not_sharded = NORM.replace("((2, 4), (4,))", "((2, 1), (1,))")
    files = [[stage.file for stage in compiled_as(tmp_path, HEAD + text)[1]] for text in (not_sharded, NORM)]
    assert files[1] == ["00_frontend", "00_decompose", *files[0][1:]]


def test_a_norm_runs_on_the_slices_that_its_strategy_cuts(tmp_path: Path) -> None:
    found, _ = compiled_as(tmp_path, HEAD + NORM)
    cuts = [
        (node.op.name, node.tensor_layout.strategy)
        for node in found.graph.nodes
        if node.phase == "forward" and node.instance == "norm" and node.op.name in ("Square", "Rsqrt")
    ]
    assert cuts == [("Square", (2, 4)), ("Rsqrt", (2, 1))]


def test_one_device_runs_an_operator_without_strategies(tmp_path: Path) -> None:
    found, stages = compiled_as(tmp_path, ALONE + NORM)
    assert "RmsNorm" in names(found.rank_graph(0))
    assert "00_decompose" not in [stage.file for stage in stages]


def test_mistakes_of_decomposed_and_other_operators_come_together(tmp_path: Path) -> None:
    with pytest.raises(ErrorGroup) as raised:
        compiled_as(tmp_path, HEAD + NORM.replace("(4,))", "(2,))").replace("(1, 4)", "(1, 3)"))
    assert [error.message for error in raised.value.errors] == [
        "RmsNorm: the last dimensions of input 0 are sharded (4,), but input 1 (2,)",
        "MatMul 'matmul': dimension 1 of input 1 is 16, which 3 does not divide",
    ]


def test_a_strategy_that_does_not_divide_is_said_once(tmp_path: Path) -> None:
    error = error_of(compiled_as, tmp_path, HEAD + NORM.replace("((2, 4), (4,))", "((2, 3), (3,))"))
    assert error.message == "RmsNorm: dimension 1 of input 0 is 16, which 3 does not divide"


NESTED = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(16, 16), "w")
        self.inner = ms.shard(lambda x: ops.exp(x), ((2, 4),))
        self.outer = ms.shard(lambda x: self.inner(x * 2), ((8, 1),))
    def construct(self, x):
        return self.outer(self.w * x) + self.inner(x)
Net()(tensor(16, 16))
"""


def test_what_is_sharded_calls_what_is_sharded_in_graph_mode_alone(tmp_path: Path) -> None:
    assert names(compiled_as(tmp_path, HEAD + NESTED)[0].graph).count("Exp") == 2
    error = error_of(compiled_as, tmp_path, HEAD + "ms.set_context(mode=ms.PYNATIVE_MODE)\n" + NESTED)
    assert error.kind is RuntimeError
    assert error.message == "a function that shard() gave calls another one, which PyNative mode does not take"
