"""Ranks are told apart by the parts in which they differ as by their programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.analysis.cost.machine import H200
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.compiler.driver import Compiled
from mspc.compiler.program_figures import sent_by_each, sent_by_ranks
from mspc.engine.capture import capture
from mspc.mindspore_api.state import Session
from mspc.plans.files.plan_file import write_plan
from mspc.search.plans import table
from mspc.search.plans.alternatives import PlanRequest, all_ways
from mspc.search.plans.figures import max_bytes_sent, rank_loads
from mspc.search.plans.row import DATA_PARALLEL, SEARCH
from mspc.search.plans.table import FAR, SLOWER, folded_network, folded_tries, plan_of_file, plans_for
from tests.compiled_scripts import compiled_script

NETWORKS = Path(__file__).resolve().parents[3] / "benchmarks" / "networks"
RANKS = 8
WINDOWS = """
import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = Parameter(Tensor(np.ones((4, 3, 3, 3), np.float32)))
        self.second = Parameter(Tensor(np.ones((5, 4, 3, 3), np.float32)))
        self.one = ops.Conv2D(4, 3, pad_mode="same").shard(((1, 1, 8, 1), (1, 1, 1, 1)))
        self.other = ops.Conv2D(5, 3, pad_mode="same", stride=2).shard(((2, 1, 4, 1), (1, 1, 1, 1)))

    def construct(self, x):
        return ops.square(self.other(ops.tanh(self.one(x, self.first)), self.second)).mean()


net = Net()
nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))(Tensor(shape=(2, 3, 32, 8), dtype=ms.float32))
"""


def compiled(script: str, given: str) -> Compiled:
    return compiled_script(NETWORKS / script, RANKS, *given.split())


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("script", "given"),
    [
        ("long_llama.py", "2 64 8 2 128 256 1 4 2 64 1"),
        ("long_llama.py", "lazy 3 64 8 2 128 256 1 8 1 64 1"),
        ("experts.py", "small-deepseek sorted 4"),
    ],
)
def test_bytes_are_those_of_the_programs(script: str, given: str) -> None:
    made = compiled(script, given)
    found, sent = rank_loads(made, H200), sent_by_ranks(made)
    assert (found.rank, found.most, found.mean) == (sent.rank, pytest.approx(sent.most), pytest.approx(sent.mean))


def test_what_operators_share_is_sent_once(tmp_path: Path) -> None:
    """A gradient of a filter reads the slices beside its own that the convolution has received."""
    (tmp_path / "net.py").write_text(WINDOWS)
    made = compiled(str(tmp_path / "net.py"), "")
    found, sent = rank_loads(made, H200), sent_by_ranks(made)
    assert (found.rank, found.most, found.mean) == (sent.rank, pytest.approx(sent.most), pytest.approx(sent.mean))


def test_the_bytes_of_stages_are_those_of_the_rank_that_sends_the_most(tmp_path: Path) -> None:
    """Slices in the middle have two beside them, the first one has one."""
    text = WINDOWS.replace("full_batch=True", "full_batch=True, pipeline_stages=2")
    text = text.replace("(2, 1, 4, 1)", "(1, 1, 4, 1)").replace("(1, 1, 8, 1)", "(1, 1, 4, 1)")
    text = text.replace("net = Net()", "net = nn.PipelineCell(Net(), 2, {'stem': 0, 'other': 1})")
    text = text.replace("self.one = ops", "self.stem, self.other = nn.Tanh(), nn.ReLU()\n        self.one = ops")
    text = text.replace("self.other = ops", "self.two = ops")
    text = text.replace("self.other(ops.tanh(", "self.other(self.two(self.stem(")
    text = text.replace("self.second))", "self.second)))")
    (tmp_path / "net.py").write_text(text)
    made = compiled(str(tmp_path / "net.py"), "")
    firsts = sent_by_each(made, [0, RANKS // 2])
    assert max_bytes_sent(made, [0, 1], H200) == sent_by_ranks(made).most > max(firsts)


def test_the_slowest_rank_of_a_ring_is_the_one_whose_program_takes_the_longest() -> None:
    made = compiled("long_llama.py", "2 64 16 2 128 256 1 8 1 8192 1")
    steps = [StreamTimeline(made.rank_graph(rank), H200).compute for rank in range(RANKS)]
    assert steps[rank_loads(made, H200).slowest] == pytest.approx(max(steps), rel=1e-3)
    assert min(steps) < 0.99 * max(steps)


@pytest.mark.parametrize(("rows", "slower"), [(64, True), (1, False)])
def test_ranks_to_a_product_are_chosen_with_layers_as_one_graph(rows: int, slower: bool) -> None:
    captured = capture(NETWORKS / "llama.py", f"lazy 4 256 8 1024 512 1 1 64 {rows}".split(), Session.of_rank(0, RANKS))
    asked = PlanRequest(RANKS, H200)
    ways = list(all_ways(captured, asked))
    network = folded_network(captured, asked, ways)
    assert network is not None
    tries = folded_tries(network, asked, ways)
    found, pairs = tries.slow, [way.name for way in ways if way.tensor]
    assert all(name in pairs for name in found)
    assert (set(found.values()) == {SLOWER}) if slower else len(found) < len(pairs)
    step, least = (tries.far.plan.step, tries.far.plan.least) if tries.far is not None else (0.0, 1.0)
    assert (step > FAR * least) == (tries.far is not None)


def test_nothing_is_tried_with_layers_as_one_graph_within_memory_or_where_none_are_equal() -> None:
    captured = capture(NETWORKS / "llama.py", "4 256 8 1024 512 1 1 64 1".split(), Session.of_rank(0, RANKS))
    for asked in (PlanRequest(RANKS, H200), PlanRequest(RANKS, H200, memory=1 << 40)):
        assert folded_network(captured, asked, list(all_ways(captured, asked))) is None


@pytest.mark.thorough
def test_the_row_of_a_plan_that_is_far_from_good_is_of_layers_as_one_graph(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is what its file compiles to, as all rows are."""
    monkeypatch.setattr(table, "LARGE_GRAPH", 0)
    monkeypatch.setattr(table, "can_fork", lambda: False)
    given = "lazy 2 1024 8 8 3584 1024 1 8 1 16384".split()
    captured = capture(NETWORKS / "long_llama.py", given, Session.of_rank(0, 32))
    asked = PlanRequest(32, H200, free=True)
    ways = [way for way in all_ways(captured, asked) if way.name in (SEARCH, DATA_PARALLEL) or way.tensor in (2, 4)]
    found = plans_for(captured, asked, ways=ways)
    by_name = {plan.name: plan for plan in found.plans}
    assert by_name[SEARCH].alike == 0
    far = by_name[DATA_PARALLEL]
    assert far.alike == 2
    assert far.step > FAR * far.least
    write_plan(tmp_path / "far.toml", found.files[DATA_PARALLEL])
    assert plan_of_file(captured, asked, tmp_path / "far.toml").columns == far.columns
