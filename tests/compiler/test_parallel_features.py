"""Every documented way to train in parallel, as a script on eight ranks: equal to one device, and seen in the graph."""

import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mspc import Parameter, load_checkpoint
from mspc.compiler.driver import DumpPoint
from mspc.parallel import build_searched_strategy, merge_sliced_parameter, restore_group_info_list
from tests.compiled_scripts import CompileOptions, compiled_script, run_script, verify_target
from tests.graphs import Collective, Graph, MspcError, Node

RANKS = 8
SLICED, SCHEDULED = "slice_to_rank", "execute"
FEATURES = Path(__file__).parent / "parallel_features"


def ops(graph: Graph, name: str, phase: str = "") -> list[Node]:
    return [node for node in graph.nodes if node.op.name == name and phase in ("", node.phase)]


def sent(graph: Graph, *phases: str) -> Counter[tuple[str, tuple[int, ...]]]:
    """How often a rank's graph has which collective between which ranks."""
    found = [node for node in graph.nodes if isinstance(node.op, Collective) and node.op.communicates]
    return Counter((node.op.name, node.op.ranks) for node in found if node.phase in phases)  # type: ignore[union-attr]


def reduced(graph: Graph) -> list[set[str]]:
    """The parameters whose gradients travel together."""
    found = [node.attrs["mirror_user_id"] for node in graph.nodes if "mirror_user_id" in node.attrs]
    return [set(str(names).split(", ")) for names in found]


def shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    return {p.name: p.shape for p in graph.parameters}


def operators_are_sharded(graph: Graph, said: str) -> None:
    assert sent(graph, "forward")["ReduceScatter", (0, 2, 4, 6)] == 1  # partial sums over sp and dp
    assert shapes(graph)["fc1_weight"] == (16, 32)
    assert shapes(graph)["accum.fc2_weight"] == (4, 16)


def updates_are_shared(graph: Graph, said: str) -> None:
    found = shapes(graph)
    assert found["weight"] == found["adam_m.weight"] == found["adam_v.weight"] == (16, 16)
    assert found["replicated"] == (16, 32)  # by its parallel_optimizer=False
    assert found["bias"] == (32,)  # below the threshold
    assert sent(graph, "forward")["AllGather", (0, 2)] == 1
    assert {"weight"} in reduced(graph)
    assert sent(graph, "update")["AllReduce", (0, 4)] == 1  # across the pairs that share


def blocks_are_computed_again(graph: Graph, said: str) -> None:
    assert [len(ops(graph, "Sin", phase)) for phase in ("forward", "backward")] == [2, 2]
    assert [len(ops(graph, "Tanh", phase)) for phase in ("forward", "backward")] == [2, 0]  # by its recompute(False)
    assert [len(ops(graph, "Exp", phase)) for phase in ("forward", "backward")] == [1, 1]
    gathered = [sent(graph, phase)["AllGather", (0, 4)] for phase in ("forward", "backward")]
    assert gathered == [4, 3]  # the first needs no gradient of its input
    again = [str(node.attrs["reason"]) for node in ops(graph, "ReduceScatter", "backward")]
    assert not any("input 0 of BiasAdd" in reason for reason in again)  # what was communicated is saved


def parts_are_reduced_once(graph: Graph, said: str) -> None:
    assert len([node for node in ops(graph, "MatMul", "forward") if node.instance == "matmul"]) == 2 * 4
    found = Counter(name for names in reduced(graph) for name in names if name.endswith("weight"))
    assert found == {"layer1.weight": 1, "layer2.weight": 1}


def tables_are_said_to_stay_on_the_device(graph: Graph, said: str) -> None:
    assert shapes(graph)["table"] == (8, 8)
    assert shapes(graph)["deep_embedding.embedding_table"] == (64, 1)
    for setting in ("primitive_target='CPU'", "LazyAdam.target='CPU'"):
        assert said.count(f"{setting} changes nothing here: all of a rank runs on its one device") == 1


def one_copy_computes_while_the_other_communicates(graph: Graph, said: str) -> None:
    first = graph.nodes.index(ops(graph, "ReduceScatter", "forward")[0])
    reader = min(i for i, node in enumerate(graph.nodes) if graph.nodes[first] in node.inputs)
    assert any(node.op.name == "MatMul" for node in graph.nodes[first:reader])
    assert reduced(graph) == [{"layer1.weight", "layer2.weight"}]


def weights_and_activations_are_sharded_twice(graph: Graph, said: str) -> None:
    assert shapes(graph)["w1"] == (8, 32)
    assert shapes(graph)["w2"] == (16, 16)
    found = sent(graph, "forward")
    assert found["AllGather", (0, 4)] == 2  # the weights, over x
    assert found["ReduceScatter", (0, 1)] == found["ReduceScatter", (0, 2)] == 1


def gradients_travel_together(graph: Graph, said: str) -> None:
    groups = [{f"layers.{i}.{name}" for i in pair for name in ("weight", "bias")} for pair in ((2, 3), (0, 1))]
    assert reduced(graph) == groups


def functions_are_sharded(graph: Graph, said: str) -> None:
    assert shapes(graph)["block1.dense2.weight"] == (4, 32)
    (exp,) = ops(graph, "Exp", "forward")
    assert exp.shape == (8, 8)
    assert said.count("shard(device='Ascend') changes nothing here") == 1


FOUND: dict[str, Callable[[Graph, str], None]] = {
    "operator_level": operators_are_sharded,
    "optimizer_parallel": updates_are_shared,
    "recomputation": blocks_are_computed_again,
    "gradient_accumulation": parts_are_reduced_once,
    "host_and_device": tables_are_said_to_stay_on_the_device,
    "multiple_copies": one_copy_computes_while_the_other_communicates,
    "high_dimension": weights_and_activations_are_sharded_twice,
    "merged_communication": gradients_travel_together,
    "functions": functions_are_sharded,
}


@pytest.mark.share(2)
@pytest.mark.parametrize("feature", FOUND)
@pytest.mark.usefixtures("own_folder")
def test_a_feature(feature: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = FEATURES / f"{feature}.py"
    compiled = compiled_script(script, RANKS)
    stages: list[DumpPoint] = []
    compiled.rank_graph(0, stages.append, (SCHEDULED if feature == "multiple_copies" else SLICED,))
    FOUND[feature](stages[0].graph, capsys.readouterr().err)
    verify_target(str(script), CompileOptions(ranks=RANKS), seed=1)


@pytest.mark.usefixtures("own_folder")
def test_a_rank_that_lost_its_checkpoint_goes_on_with_another_s(capsys: pytest.CaptureFixture[str]) -> None:
    script = FEATURES / "disaster_recovery.py"

    def losses(*arguments: str) -> list[str]:
        run_script(script, RANKS, simulate=True, script_arguments=arguments)
        lines = [line.split()[-1] for line in capsys.readouterr().out.splitlines()]
        assert all(len(set(lines[i : i + RANKS])) == 1 for i in range(0, len(lines), RANKS))
        return lines[::RANKS]

    first, second, *rest = losses("4")
    assert losses("2") == [first, second]
    alike = restore_group_info_list("ckpt_dir/rank_5/group_info.pb")
    assert alike == [1, 5]
    shutil.rmtree("ckpt_dir/rank_1")
    shutil.copytree("ckpt_dir/rank_5", "ckpt_dir/rank_1")
    assert losses("2", "ckpt-2_1.ckpt") == rest
    shutil.copy("ckpt_dir/rank_0/ckpt-2_1.ckpt", "ckpt_dir/rank_1/ckpt-2_1.ckpt")
    with pytest.raises(MspcError, match=r"begins with other values on rank 5 than on rank 1"):
        losses("1", "ckpt-2_1.ckpt")  # ranks 0 and 1 hold other slices


@pytest.mark.usefixtures("own_folder")
def test_other_ranks_predict_with_what_was_trained(capsys: pytest.CaptureFixture[str]) -> None:

    def printed(verb: str, ranks: int) -> list[str]:
        run_script(FEATURES / "distributed_inference.py", ranks, simulate=True, script_arguments=(verb,))
        return capsys.readouterr().out.splitlines()

    trained = printed("train", RANKS)
    assert len(trained) == RANKS
    assert len(set(trained)) == 1
    cuts = build_searched_strategy("train.ckpt")
    files = [f"checkpoints/rank_{rank}/net-1_1.ckpt" for rank in range(RANKS)]
    global_values = {
        name: merge_sliced_parameter([Parameter(load_checkpoint(file)[name], name) for file in files], cuts)
        for name in ("w1", "w2")
    }
    assert trained[0].split() == [str(global_values[name].asnumpy().sum()) for name in global_values]
    rows = np.random.default_rng(1).random((8, 16)).astype(np.float32)
    expected = (np.maximum(rows @ global_values["w1"].asnumpy(), 0) @ global_values["w2"].asnumpy()).sum()
    for ranks in (1, 4):
        lines = printed("predict", ranks)
        assert len(set(lines)) == 1
        total, shape = lines[0].split(maxsplit=1)
        assert float(total) == pytest.approx(float(expected), rel=1e-5)
        assert shape == str((16 // ranks, 32))
    for line in printed("transform", 4):
        needed, shape = re.fullmatch(r"\[(.*)\] (.*)", line).groups()  # type: ignore[union-attr]
        assert sorted(needed.split(", ")) == ["0", "1", "2", "3"]  # all columns, of one of the two replicas
        assert shape == "(4, 32)"
