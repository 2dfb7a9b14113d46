"""A strategy on the sequence of an attention is enough: what ranks exchange for it, and what is said of mistakes."""

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from mspc.analysis.cost.nodes import sent_bytes
from mspc.commands.report.plan_summary import summary_lines
from mspc.engine.capture import CapturedCall, capture
from mspc.ir.graph import Graph, element_layouts
from mspc.mindspore_api.state import Session
from mspc.ops.nn.attention import FlashAttentionScore
from mspc.plans.files.plan_file import write_plan
from mspc.search.calibration.machine_file import machine_of
from mspc.search.plans.alternatives import WAYS, PlanRequest
from mspc.search.plans.row import SEARCH, PlanResult, Plans
from mspc.search.plans.table import plan_of_file, plans_for
from tests.compiled_scripts import Compiled, CompileOptions, compiled_script, verify_target
from tests.compiler.sharded_networks import check_equals_one_device, compiled
from tests.context.drawn_network import WAYS as PARALLEL_WAYS
from tests.context.drawn_network import DrawnNetwork
from tests.errors import error_of
from tests.graphs import REGISTRY, difference, parse, print_graph
from tests.judged_seeds import EQUAL
from tests.sharded_beside_one import beside_one_device
from tests.shares import share_of

ONE = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w, self.v = Parameter(tensor(2, {queries}, {heads}, 2), "w"), Parameter(tensor(2, {keys}, {key_heads}, 2), "v")
        self.op = P.FlashAttentionScore({heads}, 1.0, 0.5, input_layout="BSND", sparse_mode={mode}).shard({strategy})
        for name, value in {attributes}.items():
            self.op.add_prim_attr(name, value)
        self.query, self.key, self.value = P.Mul(){of_query}, P.Mul(){of_keys}, P.Mul(){of_keys}
    def construct(self, x):
        return self.op(self.query(x, self.w), self.key(self.v, self.v), self.value(self.v, self.v))[3]
C.GradOperation(get_all=True, get_by_list=True)(Net())(tensor(2, {queries}, {heads}, 2))
"""  # noqa: E501
SLICED = "((1, 8, 1, 1),) * 3"
BY_LAYOUT = '(layout("None", ("dp", "sp"), "mp", "None"),) * 3'


def one(
    strategy: str, heads: int = 8, key_heads: int = 8, mode: int = 2, queries: int = 16, keys: int = 16,
    **attributes: object,
) -> str:  # fmt: skip
    divides = queries % 8 == keys % 8 == 0
    of_query, of_keys = (f".shard((({strategy})[{i}],) * 2)" if divides else "" for i in (0, 1))
    return ONE.format(
        strategy=strategy, heads=heads, key_heads=key_heads, mode=mode, queries=queries, keys=keys,
        attributes=attributes, of_query=of_query, of_keys=of_keys,
    )  # fmt: skip


WRITTEN = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(2, 4, 16, 4), "w")
        self.first, self.last = P.BatchMatMul(transpose_b=True){first}, P.BatchMatMul(){last}
        self.softmax = P.Softmax(){softmax}
        self.mask = Tensor(np.triu(np.full((16, 16), -1e9, np.float32), 1))
    def construct(self, x):
        return self.last(self.softmax(self.first(x * self.w, self.w) * 0.5 + self.mask), self.w)
C.GradOperation(get_all=True, get_by_list=True)(Net())(tensor(2, 4, 16, 4))
"""
PRODUCTS = ".shard(((1, 1, 8, 1), (1, 1, 1, 1)))"


def written(**strategies: str) -> str:
    return WRITTEN.format_map(dict.fromkeys(("first", "softmax", "last"), "") | strategies)


def exchanges(graph: Graph) -> Counter[str]:
    names = ("NeighborExchange", "AlltoAll", "JoinAttention", "FlashAttentionScore", "FlashAttentionScoreGrad")
    return Counter(node.op.name for node in graph.nodes if node.op.name in names)


def on_ranks(made: Compiled) -> list[Counter[str]]:
    return [exchanges(made.rank_graph(rank)) for rank in range(8)]


def test_slices_for_heads_send_the_fewest_bytes_where_there_are_heads_enough(tmp_path: Path) -> None:
    for found in on_ranks(compiled(tmp_path, one(SLICED))):
        assert not found["NeighborExchange"]
        assert found["AlltoAll"] >= 4
        assert found["FlashAttentionScore"] == found["FlashAttentionScoreGrad"] == 1


@pytest.mark.parametrize("name", ["enable_ring_attention", "enable_flash_sp", "ulysses_degree"])
def test_a_ring_alone_by_an_attribute(name: str, tmp_path: Path) -> None:
    """Causal: 28 pairs of different ranks of which 4 are halves, and one of each rank's own slices."""
    each = on_ranks(compiled(tmp_path, one(SLICED, **{name: True if name.startswith("enable") else 1})))
    assert not any(found["AlltoAll"] for found in each)
    assert sum(found["FlashAttentionScore"] for found in each) == 8 + 28 + 4
    assert sum(found["FlashAttentionScoreGrad"] for found in each) == 8 + 28 + 4
    assert {found["FlashAttentionScore"] for found in each} <= {5, 6}
    assert sum(found["JoinAttention"] for found in each) == 28 + 4


def test_every_pair_of_slices_where_all_keys_are_seen(tmp_path: Path) -> None:
    for found in on_ranks(compiled(tmp_path, one(SLICED, mode=0, ulysses_degree=1))):
        assert found["FlashAttentionScore"] == found["FlashAttentionScoreGrad"] == 8


def test_both_on_two_axes(tmp_path: Path) -> None:
    for found in on_ranks(compiled(tmp_path, one(SLICED, mode=0, ulysses_degree=2))):
        assert found["AlltoAll"] >= 4
        assert found["FlashAttentionScore"] == 4


NETWORKS = {
    "a ring": one(SLICED, enable_flash_sp=True),
    "both, on axes of several dimensions": one(BY_LAYOUT, ulysses_degree=2),
    "one head of keys for all ranks": one(SLICED, key_heads=1),
    "fewer heads of keys than ranks": one("((1, 4, 2, 1),) * 3", key_heads=2, ulysses_degree=4),
    "keys of another length": one(SLICED, mode=3, keys=24, ulysses_degree=1),
    "more queries than keys": one(SLICED, mode=0, queries=24, keys=8, heads=2, key_heads=1),
    "no head for some of the ranks": one(SLICED, heads=2, key_heads=2),
    "one head of keys beside queries of several ranks": one(
        "((1, 4, 2, 1), *((1, 4, 1, 1),) * 2)", key_heads=1, ulysses_degree=1
    ),
    "heads of keys stored apart from their queries": one(
        "((1, 4, 2, 1), *((1, 4, 1, 1),) * 2)", key_heads=4, ulysses_degree=1
    ),
    "written, by the first product": written(first=PRODUCTS),
    "written, by the softmax": written(softmax=".shard(((1, 1, 8, 1),))"),
    "written, by the last product": written(last=PRODUCTS),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_numbers_are_those_of_one_device(name: str, tmp_path: Path) -> None:
    check_equals_one_device(tmp_path, NETWORKS[name])


def test_with_an_addend_slices_go_for_heads_or_keys_are_gathered(tmp_path: Path) -> None:
    text = written(first=".shard(((1, 1, 4, 1), (1, 1, 1, 1)))").replace("* 0.5 + self.mask", "+ x[:, :, :1, :1]")
    for ranks, heads in ((4, 1), (8, 4)):  # of 4 heads
        graph = compiled(tmp_path, text.replace("(1, 1, 4, 1)", f"(1, 1, {ranks}, 1)")).rank_graph(0)
        (found,) = (node for node in graph.nodes if isinstance(node.op, FlashAttentionScore))
        assert found.op.head_num == heads
        assert found.inputs[1].shape == (2, heads, 16, 4)


@pytest.mark.parametrize("part", ["first", "softmax", "last"])
def test_attention_that_is_written_out_becomes_one_operator(part: str, tmp_path: Path) -> None:
    strategy = ".shard(((1, 1, 8, 1),))" if part == "softmax" else PRODUCTS
    each = on_ranks(compiled(tmp_path, written(**{part: strategy})))
    assert all(found["FlashAttentionScore"] and found["NeighborExchange"] for found in each)  # 4 heads for 8 ranks


def test_what_is_exchanged_is_read_back_and_has_reasons_and_lines(tmp_path: Path) -> None:
    graph = compiled(tmp_path, one(SLICED, enable_flash_sp=True)).rank_graph(3)
    assert difference(parse(print_graph(graph), REGISTRY).main, graph) == ""
    found = [node for node in graph.nodes if node.op.name == "NeighborExchange"]
    reasons = {str(node.attrs["reason"]).partition(": ")[2] for node in found}
    assert reasons >= {
        "slices of the sequence go to where pairs of them are worked on",
        "what queries find in other ranks' keys comes back",
        "gradients of slices of the sequence come back from where pairs were worked on",
    }
    assert all(node.frames for node in found)


MISTAKES = {
    "the strategy shards the sequence of query into 8 slices, which do not divide its 12 places":
        one(SLICED, queries=12),
    "the strategy shards the sequence of key into 8 slices, which do not divide its 20 places":
        one(SLICED, keys=20),
    "the strategy of input 0 is (1, 8), which has 2 numbers for 4 dimensions, whose shape is (2, 16, 8, 2)":
        one(SLICED).replace(f".shard({SLICED})", ".shard(((1, 8),) * 3)"),
    "ulysses_degree is 8, but 8 ranks share the sequence and each has 4 heads of query and 4 of key":
        one(SLICED, heads=4, key_heads=4, ulysses_degree=8),
    "ulysses_degree is 3, but 8 ranks share the sequence and each has 8 heads of query and 8 of key":
        one(SLICED, ulysses_degree=3),
}  # fmt: skip


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes(message: str, tmp_path: Path) -> None:
    text = error_of(compiled, tmp_path, MISTAKES[message]).render()
    assert message in text.replace(" 'op'", "")
    assert "return self.op(self.query(" in text
    assert text.count("error:") == 1


def test_a_sequence_that_is_written_out_and_does_not_divide(tmp_path: Path) -> None:
    text = written(first=".shard(((1, 1, 8, 1), (1, 1, 1, 1)))").replace("16", "12")
    error = error_of(compiled, tmp_path, text)
    assert "8" in error.message
    assert "12" in error.message
    assert "self.first(x * self.w" in error.render()


NETWORK = Path(__file__).resolve().parents[2] / "benchmarks" / "networks" / "long_llama.py"
MACHINE = machine_of("h200")
FULL = "lazy 2 4096 32 8 14336 128256"
"""Two of the 32 layers of LLaMA 3 8B."""
RING = "lazy 2 1024 4 1 3584 32000 1 8 1 65536"


@cache
def searched(given: str, ranks: int) -> tuple[CapturedCall, PlanRequest, Plans]:
    captured = capture(NETWORK, given.split(), Session.of_rank(0, ranks))
    asked = PlanRequest(ranks, MACHINE, free=True)
    return captured, asked, plans_for(captured, asked, ways=WAYS[:1])


def words_of(plan: PlanResult) -> str:
    """The context parallelism that the summary states."""
    (line,) = summary_lines([plan], MACHINE)
    return line.partition(" x CP ")[2].partition(" x EP ")[0]


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("given", "ranks", "words"),
    [
        (RING, 8, "8 (ring)"),
        (f"{FULL} 1 8 8 131072", 64, "16 (ring 8 x Ulysses 2)"),
        ("lazy 2 1024 8 2 3584 32000 1 8 1 65536", 8, "8 (Ulysses)"),
        ("2 1024 4 1 3584 32000 8 1 1 4096", 8, "1"),
    ],
)
def test_long_texts_are_shared_and_the_plan_says_what_it_compiles_to(
    given: str, ranks: int, words: str, tmp_path: Path
) -> None:
    captured, asked, found = searched(given, ranks)
    (plan,) = found.plans
    assert words_of(plan) == words
    file = tmp_path / "plan.toml"
    write_plan(file, found.files[SEARCH])
    again = plan_of_file(captured, replace(asked, memory=0), file)
    assert again.columns == plan.columns


def test_a_ring_is_balanced_and_quicker_than_keys_that_are_gathered(tmp_path: Path) -> None:
    """A plan that shards the queries alone has the last rank do nearly twice the mean."""
    captured, asked, found = searched(RING, 8)
    file = tmp_path / "plan.toml"
    write_plan(file, found.files[SEARCH])
    ring = "= [\"(8) [-, 0, -, -]\", \"(8) [-, 0, -, -]\", \"(8) [-, 0, -, -]\"]"
    gathered = ring.replace("(8) [-, 0, -, -]\", \"(8) [-, 0, -, -]\", \"(8) [-, 0, -, -]",
                            "(8) [-, 0, -, -]\", \"(8) [-, -, -, -]\", \"(8) [-, -, -, -]")  # fmt: skip
    text = file.read_text(encoding="utf-8")
    assert text.count(ring) == 1
    file.write_text(text.replace(ring, gathered), encoding="utf-8")
    assert plan_of_file(captured, asked, file).compute > 1.2 * found.plans[0].compute


RANKS, LENGTH, WIDTH = 4, 128, 8
PARALLEL_NETWORK = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
LAYERS, MODE = int(sys.argv[1]), sys.argv[2]
more = {"search_mode": "sharding_propagation"} if MODE == "auto_parallel" else {}
ms.set_auto_parallel_context(parallel_mode=MODE, dataset_strategy="full_batch", device_num=4, **more)
random = np.random.default_rng(5)
def weight(*shape):
    return Parameter(Tensor(random.normal(size=shape) * 0.3, ms.float64))
class Norm(nn.Cell):
    def __init__(self):
        super().__init__()
        self.gamma, self.beta, self.norm = weight(8), weight(8), ops.LayerNorm(2, -1)
    def construct(self, x):
        return self.norm(x, self.gamma, self.beta)[0]
class Half(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down, self.drop = Norm(), weight(8, 32), weight(32, 8), nn.Dropout(p=0.2)
        self.column = ops.MatMul().shard(((1, 1), (1, 4)))
        self.row = ops.MatMul().shard(((1, 4), (4, 1)))
        self.add = ops.Add()
    def construct(self, x):
        h = ops.gelu(self.column(self.norm(x).reshape(-1, 8), self.up))
        return self.add(x, self.drop(self.row(h, self.down).reshape(1, 128, 8)))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.halves = nn.CellList([Half() for _ in range(2 * LAYERS)])
        self.halves[0].add.shard(((1, 4, 1), (1, 4, 1)))
    def construct(self, x):
        for half in self.halves:
            x = half(x)
        return ops.square(x).mean()
net = Net()
step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1)).set_train()
step(Tensor(random.normal(size=(1, 128, 8)), ms.float64))
"""
MODES = ["semi_auto_parallel", "auto_parallel"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(PARALLEL_NETWORK, encoding="utf-8")
    return path


def made(script: Path, layers: int, mode: str) -> Compiled:
    return compiled_script(script, RANKS, str(layers), mode)


@pytest.mark.parametrize("mode", MODES)
def test_one_strategy_is_carried_through_norms_dropout_and_residuals(script: Path, mode: str) -> None:
    graph = made(script, 2, mode).graph
    names = ("LayerNorm", "Dropout", "Add")
    found = [node for node in graph.nodes if node.op.name in names and len(node.inputs[0].shape) == 3]
    found = [node for node in found if node.phase == "forward"]
    assert len(found) == 3 * 4
    for node in found[1:]:  # the first norm reads what the script feeds, which every rank has
        assert element_layouts(node.layout)[0].strategy == (1, RANKS, 1), node


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_sends_what_megatron_lm_does(script: Path, mode: str) -> None:
    """Two gathers and two scatters forward, as many for gradients; two small sums for each norm (Korthikanti et al.,
    arXiv 2205.05198)."""
    found: list[Counter[str]] = []
    for layers in (3, 4):
        nbytes: Counter[str] = Counter()
        for node in made(script, layers, mode).rank_graph(1).nodes:
            nbytes[node.op.name] += int(sent_bytes(node))
        found.append(nbytes)
    more = found[1] - found[0]
    each = (RANKS - 1) * LENGTH * WIDTH * 8 // RANKS
    assert more["AllGather"] == more["ReduceScatter"] == 4 * each
    assert more["AllReduce"] <= 2 * 2 * 2 * WIDTH * 8  # gradients of two norms
    assert set(more) == {"AllGather", "ReduceScatter", "AllReduce"}


@pytest.mark.parametrize("mode", MODES)
def test_masks_and_gradients_are_those_of_one_device(script: Path, mode: str) -> None:
    verify_target(str(script), CompileOptions(script_arguments=("1", mode)), seed=1)


@pytest.mark.share(3)
@pytest.mark.parametrize("way", PARALLEL_WAYS)
@pytest.mark.parametrize("number", range(share_of(24)))
def test_networks_with_sharded_sequences_are_those_of_one_device(number: int, way: str) -> None:
    outcome = beside_one_device(9000 + number, DrawnNetwork(9000 + number, (way,)))
    assert outcome.kind == EQUAL, outcome.message


def test_gradients_keep_their_ring_where_other_layouts_of_theirs_were_tried() -> None:
    """Propagation tries layouts at an attention's gradients in which ranks hold all keys, and may go back."""
    outcome = beside_one_device(30026, DrawnNetwork(30026))
    assert "SBH" in outcome.text
    assert outcome.kind == EQUAL, outcome.message


SCRIPT = Path(__file__).parents[2] / "benchmarks" / "networks" / "long_llama.py"
SIZES = "2 16 4 2 24 32"
"""Layers, width, heads, heads of keys, hidden width, vocabulary."""


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "arguments",
    [f"{SIZES} 1 4 1 16 1", f"{SIZES} 2 2 1 16 0", f"lazy {SIZES} 1 2 2 16 1", f"lazy {SIZES} 1 4 1 16 2"],
)
def test_long_texts_train_as_on_one_device(arguments: str, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    text = SCRIPT.read_text(encoding="utf-8")
    script.write_text(text.replace("HALF = ms.bfloat16", "HALF = ms.float32"), encoding="utf-8")
    verify_target(str(script), CompileOptions(script_arguments=tuple(arguments.split())), seed=1)
