"""Every rank's graphs, made once for its kind, are byte for byte those of the passes run for that rank alone."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mspc.compiler.driver import DumpPoint
from mspc.compiler.pipeline import rank_passes
from mspc.compiler.rank_graphs import RankGraphs
from mspc.passes.base import find_pass, parse_passes, run_passes
from tests.compiled_scripts import compiled_script
from tests.graphs import Graph, MspcError, print_graph
from tests.networks import PASSES, RandomNetwork
from tests.shares import is_taken, share_of
from tests.texts import IMPORTS

SAMPLES = ("quickstart/net.py", "operator_parallel/net.py", "operator_parallel/net_layout.py", "transformer/net.py")
HEAD = IMPORTS + """
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num={ranks}, full_batch=True)
def weight(*shape):
    return Parameter(initializer("normal", list(shape)))
def train(net, *inputs):
    step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
    step(*inputs)
"""
EMBEDDING = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table, self.w = weight(48, 24), weight(24, 12)
        self.gather = ops.Gather().shard((({rows}, 1), (1,)))
        self.matmul = ops.MatMul().shard(((1, {columns}), ({columns}, 1)))
        self.places = Tensor(np.arange(24).reshape(24, 1), ms.float32)
        self.add = ops.Add().shard((({rows}, 1), ({rows}, 1)))
    def construct(self, ids):
        x = self.add(self.gather(self.table, ids, 0), self.places)
        return ops.reduce_mean(self.matmul(x, self.w)[:, 1:5])
train(Net(), Tensor(np.arange(24) % 7, ms.int32))
"""
RESHARDED = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w, self.v = weight(24, 24), weight(24, 24)
        self.one = ops.MatMul().shard(((2, 3), (3, {other})))
        self.two = ops.MatMul().shard((({other}, 3), (3, 2)))
        self.relu = ops.ReLU().shard(((1, {ranks}),))
        self.dropout = ops.Dropout(0.5)
    def construct(self, x):
        y = self.relu(self.one(x, self.w))
        y, _ = self.dropout(ops.tril(self.two(y, self.v)))
        return ops.reduce_sum(ops.concat((y[2:8], y), 0))
train(Net(), Tensor(np.ones([24, 24]), ms.float32))
"""
SLICED = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w, self.v = weight{shape}, weight{shape}
        self.op = {made}
        self.mean = ops.ReduceMean().shard(({slices},))
    def construct(self, x):
        return self.mean({called})
queries, heads, images, windows = (1, 2, 4, 1), (1, 2, 1, 1), (4, 1, 2, 1), (1, 1, 1, 1)
train(Net(), Tensor(np.ones({shape}), ms.float32))
"""
FLASH = 'ops.FlashAttentionScore(4, scale_value=0.5, input_layout="BNSD", {}).shard((queries, heads, heads{}))'
ATTENTION = "self.op(x, self.w, self.v)[3]"
MASKED = "self.op(x, self.w, self.v, None, None, None, ops.ones((128, 128), ms.uint8))[3]"
SLICES = {
    "attention to all": (1, FLASH.format("sparse_mode=0", ""), ATTENTION),
    "attention by a mask": (1, FLASH.format("sparse_mode=0", ", (4, 1)"), MASKED),
    "attention to what is before": (4, FLASH.format("sparse_mode=3", ""), ATTENTION),
    "attention to a window": (4, FLASH.format("pre_tokens=8, next_tokens=0, sparse_mode=4", ""), ATTENTION),
    "images": (2, 'ops.Conv2D(4, 3, pad_mode="same").shard((images, windows))', "self.op(x, self.w[:, :, :3, :3])"),
}  # fmt: skip
"""(kinds of ranks, the operator, its call): slices of queries and of rows, which know where they begin."""


def assert_every_rank_as_alone(graphs: RankGraphs, ranks: Sequence[int]) -> None:
    """The texts of every stage of these ranks, their last graphs, and of every rank the graph of one stage, of another
    than its neighbour's."""
    for rank in ranks:
        found = graphs.of(rank, graphs.passes)
        graph: Graph = graphs.graph
        expected = ""
        for place, name in enumerate(graphs.passes):
            graph, changed = find_pass(name, {"rank": rank} if name == "slice_to_rank" else {}).apply(graph)
            where = f"rank {rank} behind {name}"
            assert found.of_kind[name].changed == changed, where
            if changed:
                expected = print_graph(graph)
            assert found.text(name) == expected, where
            if rank % len(graphs.passes) == place:
                assert print_graph(found.graph(name)) == expected, where
        assert print_graph(graphs.executable(rank)) == expected


def some_of_every_kind(graphs: RankGraphs, ranks: int) -> list[int]:
    """The first, the last and one more rank of every kind, and of those that are of none."""
    of_kind: dict[int | None, list[int]] = {}
    for rank in range(ranks):
        of_kind.setdefault(graphs.kind(rank), []).append(rank)
    return sorted({rank for found in of_kind.values() for rank in (found[0], found[len(found) // 2], found[-1])})


@pytest.mark.share(2)
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("ranks", [8, 16])
def test_samples(root: Path, sample: str, ranks: int) -> None:
    try:
        found = compiled_script(root / "samples" / sample, ranks)
    except MspcError:
        pytest.skip(f"the sample's strategies do not fit {ranks} ranks")
    graphs = found.rank_graphs
    assert_every_rank_as_alone(graphs, some_of_every_kind(graphs, ranks))


def test_conformance_cases(conformance: Path) -> None:
    cases = [each for place, each in enumerate(sorted((conformance / "cases").glob("*.py"))) if is_taken(place, 3)]
    done = 0
    for case in cases:
        try:
            found = compiled_script(case, 16 if case.stem == "repeated_16" else 8)
        except (MspcError, AttributeError):
            continue
        ranks = found.config.ranks
        others = random.Random(case.stem).sample(range(1, ranks), share_of(4, 2))
        assert_every_rank_as_alone(found.rank_graphs, [0, *others])
        done += 1
    assert done >= 3 * len(cases) // 4


@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_random_networks(device: str) -> None:
    generator = random.Random(f"20261121 {device}")
    shared, count = 0, share_of(20, 2)
    for seed in (generator.getrandbits(48) for _ in range(count)):
        graph = run_passes(RandomNetwork(seed).graph, parse_passes(PASSES))
        graphs = RankGraphs(graph, rank_passes(device))
        ranks = int(graph.attrs["ranks"])
        assert_every_rank_as_alone(graphs, random.Random(seed).sample(range(ranks), min(ranks, 5)))
        assert graphs.kinds, f"seed {seed}: the passes ran for every rank"
        shared += graphs.kinds < min(ranks, 5)
    assert shared >= count / 2


@pytest.mark.share(2)
@pytest.mark.parametrize(("rows", "columns", "ranks"), [(2, 2, 4), (3, 2, 6), (4, 3, 12), (8, 1, 8), (3, 3, 3)])
def test_parts_of_an_embedding(tmp_path: Path, rows: int, columns: int, ranks: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD.format(ranks=ranks) + EMBEDDING.format(rows=rows, columns=columns))
    assert_every_rank_as_alone(compiled_script(script, ranks).rank_graphs, range(ranks))


@pytest.mark.share(2)
@pytest.mark.parametrize(("ranks", "other"), [(6, 1), (12, 2), (24, 4)])
def test_exchanges_between_crossing_meshes(tmp_path: Path, ranks: int, other: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD.format(ranks=ranks) + RESHARDED.format(ranks=ranks, other=other))
    graphs = compiled_script(script, ranks).rank_graphs
    assert_every_rank_as_alone(graphs, range(ranks) if ranks < 12 else some_of_every_kind(graphs, ranks))


@pytest.mark.parametrize("device", ["CPU", "GPU"])
@pytest.mark.parametrize("name", SLICES)
def test_slices_that_know_where_they_begin_are_of_kinds(tmp_path: Path, name: str, device: str) -> None:
    most, made, called = SLICES[name]
    script, slices = tmp_path / "train.py", "images" if name == "images" else "queries"
    text = SLICED.format(shape=(4, 4, 128, 64), made=made, called=called, slices=slices)
    script.write_text(HEAD.format(ranks=8) + text)
    graphs = compiled_script(script, 8, device=device).rank_graphs
    assert_every_rank_as_alone(graphs, range(8))
    assert None not in {graphs.kind(rank) for rank in range(8)}
    if name != "images" or device == "CPU":  # slices of images are put in another order on GPUs, by where they begin
        assert graphs.kinds <= most


@pytest.mark.parametrize(
    ("name", "ranks", "most", "arguments"),
    [
        ("layers", 64, 8, ["2"]),
        ("layers", 96, 2, ["2", "64", "96", "4", "8", "12", "8"]),
        ("layers", 1024, 1, ["2", "64", "1024", "16", "8", "128", "8"]),
        ("llama", 64, 2, ["1", "64", "4", "128", "256", "32", "2", "32", "128"]),  # classes over two ranks
    ],
)
def test_layers_on_many_ranks_are_of_few_kinds(
    root: Path, name: str, ranks: int, most: int, arguments: list[str]
) -> None:
    graphs = compiled_script(root / "benchmarks" / "networks" / f"{name}.py", ranks, *arguments).rank_graphs
    for rank in range(ranks):
        graphs.of(rank, ())
    assert 1 <= graphs.kinds <= most
    assert_every_rank_as_alone(graphs, [0, 1, ranks // 3, ranks - 1])


def test_a_rank_of_its_own_command_and_among_all(root: Path) -> None:
    script = root / "benchmarks" / "networks" / "layers.py"
    among_all = compiled_script(script, 8, "2")
    texts = [print_graph(among_all.rank_graph(rank)) for rank in range(8)]
    for rank in (0, 5, 7):
        found: dict[bool, list[tuple[Any, ...]]] = {False: [], True: []}
        for alone, stages in found.items():

            def note(stage: DumpPoint, stages: list[tuple[Any, ...]] = stages) -> None:
                stages.append((stage.name, stage.file, stage.rank, stage.changed, stage.previous, stage.text()))

            graph = compiled_script(script, 8, "2").rank_graph(rank, note, alone=alone)
            assert print_graph(graph) == texts[rank]
        assert found[False] == found[True]


def test_there_is_no_such_rank(root: Path) -> None:
    found = compiled_script(root / "samples" / SAMPLES[0], 8)
    for rank in (0, 1):
        found.rank_graph(rank)
    for rank in (-1, 8):
        with pytest.raises(MspcError, match=f"there is no rank {rank}; ranks are 0 to 7"):
            found.rank_graph(rank)


def test_a_pass_that_cannot_do_with_stand_ins_runs_for_every_rank(root: Path, monkeypatch: Any) -> None:
    """A pass that collects operators in a set, and one that reads the members of the groups."""
    from mspc.passes.fusion.fuse_norm import FuseNorm

    plain = FuseNorm.run

    def in_a_set(self: FuseNorm, graph: Graph) -> bool:
        return bool({node.op for node in graph.nodes}) and plain(self, graph)

    def named(self: FuseNorm, graph: Graph) -> bool:
        for node in graph.nodes:
            if getattr(node.op, "rank_list", ()):
                node.attrs["last"] = max(node.op.rank_list)  # type: ignore[attr-defined]
        plain(self, graph)
        return True

    for run, kinds in ((in_a_set, [0]), (named, range(2, 9))):
        monkeypatch.setattr(FuseNorm, "run", run)
        found = compiled_script(root / "samples" / SAMPLES[0], 8)
        assert_every_rank_as_alone(found.rank_graphs, range(8))
        assert found.rank_graphs.kinds in kinds
