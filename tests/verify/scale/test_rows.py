"""Rows that are routed to experts: their sizes become smaller, and all ranks are computed at once."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.verify import of_script, verify_target
from mspc.commands.verify_folder import of_folder
from mspc.verify.scale import program_sizes, proof
from mspc.verify.scale.meetings import along_axes, result_of_rank
from mspc.verify.scale.program_sizes import Divisors, Sizing
from mspc.verify.scale.proof import ScaleProof
from mspc.verify.scale.rank_kernels import places_on_each, run_on_all
from mspc.verify.scale.readers import has_multiples
from mspc.verify.scale.small_programs import small_programs
from tests.compiled_scripts import NETWORKS, QUIET, CompileOptions, compile_target
from tests.executors import NumPyBackend, OneRank
from tests.graphs import FLOAT32, INT32, Builder, Graph, Parameter, TensorType
from tests.operators import Add, ExpertPlaces, ExpertProduct, FetchRows, Mul, OneHot, SendRows, Sort, TopK, TupleGetItem

CROWDED = '''import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer

EXPERTS, WIDTH, HIDDEN, ROWS = 8, 64, 32, 4096


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.gate = Parameter(initializer(Normal(0.02), (WIDTH, EXPERTS), ms.float32))
        self.up = Parameter(initializer(Normal(0.02), (EXPERTS, WIDTH, HIDDEN), ms.float32))
        self.product = ops.auto_generate.GroupedMatmul(3, 0)
        self.product.shard(((1, 1), (8, 1, 1), (1,))).add_prim_attr("most_rows", 4)
        self.bias = Tensor([100.0] + [0.0] * 7, ms.float32)

    def construct(self, tokens):
        weights, experts = ops.topk(ops.softmax(ops.matmul(tokens, self.gate)) + self.bias, 1)
        rows, back = ops.moe_token_permute(tokens, experts.astype(ms.int32))
        on, off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
        ends = ops.cumsum(ops.one_hot(experts.reshape(-1), EXPERTS, on, off).sum(0), 0).astype(ms.int64)
        found = self.product([rows], [self.up], None, None, None, None, None, ends)[0]
        return ops.square(ops.moe_token_unpermute(found, back, weights)).mean()


ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
net = Net()
nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 1e-3))(Tensor(shape=(ROWS, WIDTH), dtype=ms.float32))
'''
"""All rows go to the first of eight ranks."""

MESH = (2, 3, 2)
AXES = (0, 2)
GROUPS = [tuple(int(r) for r in np.arange(12).reshape(MESH)[:, i].reshape(-1)) for i in range(3)]


@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("wide", [(2, 3, 2), (2, 1, 2), (1, 3, 2)])
def test_rows_that_travel_along_dimensions(sends: bool, wide: tuple[int, ...]) -> None:
    generator = np.random.default_rng(3)
    if sends:
        rows, op = generator.standard_normal((*wide, 5, 2)), SendRows(size=4, total=16, sets=False)
    else:
        rows, op = generator.standard_normal((*wide, 4, 2)), FetchRows(total=16)
    places = generator.integers(-1, 17, (*wide[:2], 2, 5)).astype(np.int32)
    ops = {rank: replace(op, rank_list=group) for group in GROUPS for rank in group}
    found = along_axes(ops[0], [rows, places], MESH, AXES)
    flats = [np.broadcast_to(a, (*MESH, *a.shape[3:])).reshape(12, *a.shape[3:]) for a in (rows, places)]
    tensors = {rank: [flat[rank] for flat in flats] for rank in range(12)}
    wanted = {rank: result_of_rank(op, rank, tensors) for rank, op in ops.items()}
    own = found.shape[3:]
    np.testing.assert_array_equal(
        np.broadcast_to(found, (*MESH, *own)).reshape(12, *own), np.stack([wanted[rank] for rank in range(12)])
    )


def test_places_of_each_rank() -> None:
    whole = ExpertPlaces(outer=2, parts=2)
    ops = [replace(whole, own=(rank // 2, 1, rank % 2, 1)) for rank in range(4)]
    operands = [np.array([1, 3, 4, 8]).reshape(1, 1, 4), np.array([3, 1, 7, 5, 0, 2, 4, 6]).reshape(1, 1, 8)]
    backend = NumPyBackend(OneRank())
    found = places_on_each(ops, (2, 2), backend, operands)
    for rank, op in enumerate(ops):
        own = op.kernel(backend)(*(array.reshape(-1) for array in operands))
        for all_ranks, mine in zip(found, own, strict=True):
            wide = np.broadcast_to(all_ranks, (2, 2, *all_ranks.shape[2:]))
            np.testing.assert_array_equal(wide[rank // 2, rank % 2], mine)


def test_places_that_are_multiples() -> None:
    ids = Parameter("ids", TensorType(INT32, (8,)))
    builder = Builder(Graph(""))
    order = builder.emit(Sort(), builder.emit(Mul(), ids, builder.constant(4, INT32)))
    assert not has_multiples(ids)
    assert not has_multiples(order)
    far = builder.emit(Add(), builder.emit(Mul(), ids, builder.constant(40, INT32)), ids)
    assert has_multiples(far)
    assert not has_multiples(
        builder.emit(Mul(), Parameter("x", TensorType(FLOAT32, (8,))), builder.constant(1.0, FLOAT32))
    )


def test_sizes_of_which_some_must_be_left() -> None:
    divisors = Divisors()
    one, other = divisors.new(), divisors.new()
    divisors.divides(one, 256)
    divisors.divides(other, 40960)
    divisors.leaves(one, 256, 9)
    divisors.has_room(other, 40960, one, 4096)
    some = divisors.new()
    divisors.divides(some, 40960)
    divisors.has_room(some, 40960, one, 1 << 20, 512)
    found = divisors.values()
    left = 256 // divisors.value(one, found)
    assert 9 <= left < 256
    assert 4096 // divisors.value(one, found) <= 40960 // divisors.value(other, found) < 40960
    even = (1 << 20) // divisors.value(one, found) // 512
    assert even < 40960 // divisors.value(some, found) < 16 * even


@pytest.mark.parametrize("is_known", [True, False])
def test_numbers_of_the_best_that_name_places(is_known: bool) -> None:
    scores = Parameter("scores", TensorType(FLOAT32, (64, 32)))
    builder = Builder(Graph("net"))
    best = builder.emit(TupleGetItem(1), builder.emit(TopK(k=2), scores))
    on, off = builder.constant(1.0, FLOAT32), builder.constant(0.0, FLOAT32)
    taken = builder.emit(OneHot(depth=32), best, on, off)
    if not is_known:  # a slot of an expert, as where each has room for four
        builder.emit(Mul(), best, builder.constant(4, INT32))
    graph = Graph("net")
    graph.parameters, graph.nodes, graph.results = [scores], builder.nodes, [taken]
    sizing = Sizing()
    sizing.add(graph)
    sizing.resolve()
    experts = {sizing.divisor(sizing.dims(value)[0][-1]) for value in (scores, taken)}
    assert len(experts) == 1
    assert (experts == {1}) is not is_known


@pytest.mark.thorough
def test_latent_attention_and_routed_experts() -> None:
    words = ("small", "sorted", "2", "2", "2")
    options = CompileOptions(ranks=8, loudness=QUIET, script_arguments=words)
    found = of_script(str(NETWORKS / "deepseek.py"), options).proved(0)
    assert found.same
    assert found.ranks == 8
    real, small = found.sizes["layers.1.forward.experts.gate"]
    assert all(n < whole for n, whole in zip(small[1:], real[1:], strict=True))


def test_rows_that_all_go_one_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First there is room for what goes each way in the mean, here for no more; then for all."""
    monkeypatch.setattr(program_sizes, "CROWDED", 1)
    monkeypatch.setattr(program_sizes, "SPARE", 0)
    made: list[int] = []

    def small(*given: Any, **named: Any) -> Any:
        programs = small_programs(*given, **named)
        nodes = [node for kind in programs[1] for node in kind.graph.all_nodes()]
        made.extend(node.op.room for node in nodes if isinstance(node.op, ExpertPlaces))
        return programs

    monkeypatch.setattr(proof, "small_programs", small)
    (tmp_path / "net.py").write_text(CROWDED)
    options = CompileOptions(ranks=8, loudness=QUIET)
    assert of_script(str(tmp_path / "net.py"), options).proved(0).same
    even, every = made
    assert every == 8 * even


@pytest.mark.parametrize("last", [5, -1])
def test_rows_that_end_outside_of_their_block_are_no_rows(last: int) -> None:
    ends = np.array([[[[2, 4], [1, 3]]], [[[2, 4], [1, last]]]])
    arrays = np.ones((2, 8, 3)), np.ones((2, 4, 3, 2)), ends
    with pytest.raises(ValueError, match="of a block of 4"):
        run_on_all(ExpertProduct(), NumPyBackend(OneRank()), 1, arrays)


# `mspc verify --scale` of networks in which every rank feeds rows of its own.


NETWORK = """
import mindspore as ms, numpy as np
from mindspore import nn, ops, Tensor
ms.set_auto_parallel_context(parallel_mode='data_parallel', gradients_mean=True)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Dense(64, 256), nn.BatchNorm1d(256), nn.Dense(256, 64)
        self.drop = nn.Dropout(p=0.3)
    def construct(self, x):
        return ops.reduce_mean(ops.square(self.down(self.drop(ops.gelu(self.norm(self.up(x)))))))
net = Net()
step = nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 1e-3)).set_train()
step(Tensor(np.ones((32, 64), np.float32)))
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own_rows") / "net.py"
    path.write_text(NETWORK)
    return path


def test_all_ranks_are_those_of_one_device_on_their_rows(script: Path) -> None:
    found = of_script(str(script), CompileOptions(ranks=512, loudness=QUIET)).proved(0)
    assert (found.same, found.ranks, found.kinds, len(found.rows)) == (True, 512, 1, 50)
    assert found.sizes["up.weight"] == ((256, 64), (2, 4))


CHANGES = {
    "gradients among some ranks": (r"rank_list: \(0, 1, 2, 3\)(.*mirror_user_id)", r"rank_list: (0, 1)\1", "AllReduce"),
    "the rows of another rank's mask": (r"begin: \((32|64|96), 0\)", "begin: (0, 0)", "Dropout"),
    "how many rows statistics are of": ("count: 128", "count: 32", "BatchNormApply"),
    "statistics of some ranks": (r"rank_list: \(0, 1, 2, 3\)", "rank_list: (0, 1)", "AllReduce"),
}


@pytest.fixture(scope="module")
def compiled(script: Path) -> Path:
    folder = script.parent / "out"
    compile_target(str(script), CompileOptions(ranks=4, out=folder, loudness=QUIET, weights=True))
    return folder


def edited(compiled: Path, folder: Path, old: str, new: str) -> ScaleProof:
    shutil.copytree(compiled, folder)
    for rank in range(4):
        (path,) = (folder / f"rank_{rank}").glob("*_execute_*.ir")
        path.write_text(re.sub(old, new, path.read_text(), count=1))
    return of_folder(folder, CompileOptions(loudness=QUIET)).proved(0)


@pytest.mark.share(2)
@pytest.mark.parametrize("what", CHANGES)
def test_changes_are_found(what: str, compiled: Path, tmp_path: Path) -> None:
    old, new, label = CHANGES[what]
    found = edited(compiled, tmp_path / "out", old, new)
    assert not found.same
    node = found.failed[1] if found.failed is not None else found.first and found.first.node
    assert node is not None
    assert label in (node.inputs[0] if isinstance(node.op, TupleGetItem) else node).label


def test_one_row_of_every_rank(tmp_path: Path) -> None:
    text = NETWORK.replace("(32, 64)", "(1, 64)").replace("BatchNorm1d(256)", "LayerNorm((256,))")
    (tmp_path / "net.py").write_text(text)
    options = CompileOptions(ranks=4, loudness=QUIET)
    assert of_script(str(tmp_path / "net.py"), options).proved(0).same
    verify_target(str(tmp_path / "net.py"), options, 0)


def test_a_folder_is_right(compiled: Path, tmp_path: Path) -> None:
    assert edited(compiled, tmp_path / "out", "nothing", "").same
