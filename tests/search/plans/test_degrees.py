"""Plans in the words of the field: degrees are those by which the script shards."""

from pathlib import Path

import pytest

from mspc.analysis.cost.machine import H200
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.commands.report.plan_summary import summary_lines
from mspc.compiler.program_figures import sent_by_each, sent_by_ranks
from mspc.engine.capture import capture
from mspc.mindspore_api.state import Session
from mspc.output.programs import config_of
from mspc.plans.files.plan_file import write_plan
from mspc.search.calibration.machine_file import machine_of
from mspc.search.plans import table
from mspc.search.plans.alternatives import PlanRequest, all_ways
from mspc.search.plans.degrees import Degrees, degrees_of
from mspc.search.plans.figures import figures, max_bytes_sent, rank_loads
from mspc.search.plans.row import DATA_PARALLEL, SEARCH
from mspc.search.plans.table import FAR, SLOWER, folded_network, folded_tries, plan_of_file, plans_for
from tests.compiled_scripts import NETWORKS, Compiled, compile_call, compiled_script, compiled_text
from tests.texts import IMPORTS


@pytest.mark.parametrize(
    ("script", "given", "wanted"),
    [
        ("llama.py", "2 32 4 48 64 4 2 4 16", (4, 2, 1, 1)),
        ("llama.py", "lazy 4 32 4 48 64 2 4 2 16", (2, 4, 1, 1)),
        ("long_llama.py", "1 64 4 4 128 256 1 4 2 64 1", (1, 2, 4, 1)),
        ("long_llama.py", "1 64 8 8 128 256 1 4 2 64 2", (1, 2, 4, 1)),
        ("long_llama.py", "1 64 8 8 128 256 2 4 1 64 4", (2, 1, 4, 1)),
        ("experts.py", "small-mixtral tables 4", (8, 1, 1, 4)),
        ("experts.py", "small-mixtral sorted 2", (8, 1, 1, 2)),
    ],
)
def test_degrees(script: str, given: str, wanted: tuple[int, ...]) -> None:
    found = degrees_of(compiled_script(NETWORKS / script, 8, *given.split()))
    assert (found.data, found.tensor, found.context, found.expert) == wanted
    assert found.zero == (3 if script == "experts.py" else 0), "weights of experts are gathered for gradients again"
    assert found.operations > 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("1 64 4 4 128 256 1 4 2 64 1", "CP 4 (ring)"),
        ("1 64 8 8 128 256 1 4 2 64 2", "CP 4 (ring 2 x Ulysses 2)"),
        ("1 64 8 8 128 256 1 4 2 64 4", "CP 4 (Ulysses)"),
    ],
)
def test_ways_to_share_the_text(given: str, words: str) -> None:
    captured = capture(NETWORKS / "long_llama.py", given.split(), Session.of_rank(0, 8))
    compiled = compile_call(captured.target, captured.args, config_of(captured, 8))
    machine = machine_of("")
    plan = figures("as configured", compiled, captured, PlanRequest(8, machine))
    (line,) = summary_lines([plan], machine)
    assert f" x {words} x " in line


def test_a_sentence() -> None:
    captured = capture(NETWORKS / "llama.py", "2 32 4 48 64 4 2 4 16".split(), Session.of_rank(0, 8))
    compiled = compile_call(captured.target, captured.args, config_of(captured, 8))
    machine = machine_of("")
    plan = figures("as configured", compiled, captured, PlanRequest(8, machine))
    assert plan.degrees == Degrees(4, 2, 1, 1, 0, plan.degrees.operations, "Float32", 64, "rows")
    (line,) = summary_lines([plan], machine)
    assert line.startswith(
        "as configured on 8 ranks: DP 4 x TP 2 x PP 1 x CP 1 x EP 1, no ZeRO, no recompute; "
    )  # fmt: skip
    assert line.endswith(" KiB a rank")
    assert " rows per second, " in line


THREE_DIMENSIONS = IMPORTS + """

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, full_batch=True)


class Layer(nn.Cell):
    {lazy}
    def __init__(self):
        super().__init__()
        self.up, self.down = (Parameter(Tensor(np.ones(shape, np.float32))) for shape in ([4, 8], [8, 4]))
        self.product = ops.BatchMatMul().shard((({batch}, 1, 1), (1, {columns})))

    def construct(self, x):
        return x + ops.matmul(ops.tanh(self.product(x, self.up)), self.down)


net = nn.SequentialCell([Layer() for _ in range(3)])
nn.TrainOneStepCell(net, nn.SGD(net.trainable_params()))(Tensor(np.ones([16, 4, 4], np.float32)))
"""


@pytest.mark.parametrize("lazy", ["@ms.lazy_inline", ""], ids=["one graph", "inlined"])
@pytest.mark.parametrize("wanted", [(8, 1), (2, 4)])
def test_what_a_layer_keeps_for_its_gradients_is_no_weight(lazy: str, wanted: tuple[int, int], tmp_path: Path) -> None:
    """Nor is the first dimension of what it keeps, the batch, one of experts."""
    compiled = compiled_text(tmp_path, THREE_DIMENSIONS.format(lazy=lazy, batch=wanted[0], columns=wanted[1]), 8)
    assert any(node.regions for node in compiled.graph.nodes) == bool(lazy)
    found = degrees_of(compiled)
    assert (found.data, found.tensor, found.context, found.expert) == (*wanted, 1, 1)


UNLIKE = IMPORTS + """

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, full_batch=True)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones([64, 64], np.float32)))
        self.product = ops.MatMul().shard(((4, 1), (1, 2)))
        self.scores = ops.BatchMatMul(transpose_b=True).shard(((8, 1, 1, 1), (8, 1, 1, 1)))

    def construct(self, x):
        x = self.product(x, self.weight).reshape(16, 2, 4, 32)
        return self.scores(x, x).sum()


net = Net()
nn.TrainOneStepCell(net, nn.SGD(net.trainable_params()))(Tensor(np.ones([64, 64], np.float32)))
"""


def test_degrees_multiply_to_the_ranks(tmp_path: Path) -> None:
    """Attention is sharded by the batch over more ranks than the matmuls leave for it."""
    found = degrees_of(compiled_text(tmp_path, UNLIKE, 8))
    assert (found.data, found.tensor, found.context, found.replicas) == (4, 2, 1, 1)


LEVELS = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

level, dtype = sys.argv[1:]
ms.set_auto_parallel_context(
    parallel_mode="semi_auto_parallel", device_num=4, full_batch=True, enable_parallel_optimizer=level != "none",
    parallel_optimizer_config={"parallel_optimizer_threshold": 0, "optimizer_level": level.replace("none", "level1")},
)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell([nn.Dense(64, 64) for _ in range(3)])
        for layer in self.layers:
            layer.matmul.shard(((4, 1), (1, 1)))

    def construct(self, x):
        return self.layers(x).sum()


net = Net().to_float(getattr(ms, dtype))
nn.TrainOneStepCell(net, nn.Adam(net.trainable_params()))(Tensor(np.ones([64, 64], np.float32)))
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("level", "wanted"), [("none", 0), ("level1", 2), ("level3", 3)])
def test_the_level_of_zero_follows_from_layouts(level: str, wanted: int, dtype: str, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text(LEVELS, encoding="utf-8")
    captured = capture(script, [level, dtype], Session.of_rank(0, 4))
    config = config_of(captured, 4)
    compiled = compile_call(captured.target, captured.args, config)
    gathered = sum(node.op.name == "AllGather" and node.phase == "backward" for node in compiled.graph.nodes)
    assert gathered == (2 if level == "level3" else 0), "all but the first layer"
    assert degrees_of(compiled).zero == wanted


RANKS = 8
WINDOWS = IMPORTS + """

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
