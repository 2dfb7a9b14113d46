"""The manager through which every pass runs."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from mspc import Layout, Tensor, nn, ops, reshard
from mspc import Parameter as CellParameter
from mspc.passes.base import VERIFY, Pass, PassManager
from tests import random_networks
from tests.compiled_scripts import Config, compile_call
from tests.executors import Executor, LocalComm, NumPyBackend, World
from tests.graphs import FLOAT32, REGISTRY, Builder, Graph, MspcError, Parameter, TensorType, check_graph
from tests.networks import INDEXED, SCANS, SUMS, RandomNetwork, usable
from tests.operators import AllReduce, Exp
from tests.random_updates import OPTIMIZERS
from tests.shares import share_of


@dataclass(frozen=True)
class Forget(Pass):
    """Lose the node that makes the result."""

    def run(self, graph: Graph) -> bool:
        graph.nodes.clear()
        return True


@dataclass(frozen=True)
class Mistype(Pass):
    """Write another type at the node that makes the result."""

    def run(self, graph: Graph) -> bool:
        graph.nodes[-1].type = TensorType(FLOAT32, (5,))
        return True


def small() -> Graph:
    graph = Graph("main")
    graph.parameters.append(Parameter("x", TensorType(FLOAT32, (4,))))
    graph.results = [Builder(graph).emit(Exp(), graph.parameters[0])]
    return graph


def test_a_broken_graph_names_the_pass() -> None:
    with pytest.raises(AssertionError, match="test_pass_manager leaves a broken graph: "):
        PassManager(verify="types").apply(Forget(), small())


def test_a_wrong_type_names_the_pass() -> None:
    with pytest.raises(AssertionError, match=r"test_pass_manager leaves a broken graph: .* its operands make"):
        PassManager(verify="types").apply(Mistype(), small())
    PassManager(verify="structure").apply(Mistype(), small())


@pytest.mark.parametrize(("stages", "is_refused"), [(2, False), (1, True), ("x", True), (None, True)])
def test_a_rank_is_one_of_all_stages_before_they_are_cut(stages: object, is_refused: bool) -> None:
    graph = small()
    graph.attrs |= {"ranks": 2, "rank": 3, "pipeline_stages": stages}
    if is_refused:
        with pytest.raises(MspcError, match="the header says rank 3 of 2"):
            check_graph(graph)
    else:
        check_graph(graph)


def test_checks_are_made_where_the_environment_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        PassManager().apply(Forget(), small())
    monkeypatch.delenv(VERIFY)
    _, changed = PassManager().apply(Forget(), small())
    assert changed


def test_passes_are_told_in_their_order() -> None:
    told: list[tuple[str, bool]] = []
    manager = PassManager(lambda name, graph, changed: told.append((name, changed)), verify="")
    manager.run(small(), [Forget(), Forget()])
    assert told == [("test_pass_manager", True)] * 2


START = np.arange(32, dtype=np.float32).reshape(8, 4)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = CellParameter(Tensor(START), "w")
        self.product = ops.MatMul().shard(((1, 2), (2, 1)))
        self.replicated = Layout((2,), ("all",))("None", "None")
        self.add = ops.AssignAdd()

    def construct(self, x: Any) -> Any:
        product = self.product(x, self.w)
        before = ops.relu(reshard(self.w, self.replicated))
        self.add(self.w, ops.ones_like(self.w))
        return product, before, ops.relu(reshard(self.w, self.replicated)), self.w


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
def test_the_second_reader_gets_the_new_values(mode: str) -> None:
    config = Config(ranks=2, mode=mode, dataset_strategy="full_batch")
    compiled = compile_call(Net(), [TensorType(FLOAT32, (4, 8))], config)

    def main(comm: LocalComm) -> list[Any]:
        graph = compiled.rank_graph(comm.rank)
        mine = START[graph.parameter("w").tensor_layout.slices_for(comm.rank, START.shape)].copy()
        return Executor(graph, NumPyBackend(comm), {"w": mine}).run([np.ones((4, 8), np.float32)])

    for product, before, after, stored in World(2).run(main):
        np.testing.assert_array_equal(product, np.ones((4, 8)) @ START)
        np.testing.assert_array_equal(before, START)
        np.testing.assert_array_equal(after, START + 1)
        np.testing.assert_array_equal(stored, START + 1)


SEED, COUNT = 20261122, share_of(960, 32)
LEAST = 70
"""Operators that the networks have at least."""


def test_networks_equal_one_device() -> None:
    """Optimizers, clipping, accumulation, dropout, integers, several results, recompute among them."""
    seeds = [seed for seeds in random_networks.batches(SEED, COUNT) for seed in seeds]
    found = random_networks.check_all(seeds, partial(RandomNetwork, names=usable()))
    assert found.lines == []
    assert len(found.operators) >= LEAST


@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_indexed_networks_equal_one_device(device: str) -> None:
    """Scans, lookups and sums of rows, fused, with gradients: hubs, duplicates, no integers, and integers of no row."""
    seeds = [seed for seeds in random_networks.batches(SEED + 2, share_of(2000, 80)) for seed in seeds]
    found = random_networks.check_all(seeds, partial(RandomNetwork, pieces=INDEXED, ranks=(1, 2, 4)), device=device)
    assert found.lines == []
    assert found.operators >= {*SCANS, *SUMS, "ScatterElements"}
    assert device == "CPU" or found.operators >= {"EdgeSums", "EdgeProducts", "FusedScan"}


def test_what_can_be_drawn_is_what_is_asked_for() -> None:
    """Attention, sorting, indexing, random masks and integers are among the operators, and every optimizer is."""
    names = set(usable())
    wanted = {
        "Gather", "GatherD", "TensorScatterUpdate", "Concat", "Split", "SortExt", "TopK", "OneHot", "Select",
        "StridedSlice", "Transpose", "FlashAttentionScore", "Dropout", "LayerNorm", "BatchMatMul",
        "BitwiseAnd", "LogicalNot",
    }  # fmt: skip
    assert wanted - names == set()
    named = {name: getattr(op, "operands", ()) for name, op in REGISTRY.items() if op.mutates}
    optimizers = {name for name, of in named.items() if isinstance(of, tuple) and "gradient" in of}
    assert optimizers == set(OPTIMIZERS)


def test_a_sum_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that hold their own term of a sum: some of a few networks differ, and nothing else is reported."""
    monkeypatch.setattr(AllReduce, "bind", lambda self, comm: np.array)
    (seeds,) = random_networks.batches(3, random_networks.BATCH)
    found = random_networks.check_all(seeds, partial(RandomNetwork, names=usable()), 1)
    assert found.kinds[random_networks.WRONG] > 3
    assert set(found.kinds) == {random_networks.WRONG}
    assert len(found.lines) == found.kinds[random_networks.WRONG]
