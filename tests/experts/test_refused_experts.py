"""Layers of experts: refused ones, random ones beside one device, training, and the rows that ranks exchange."""

import contextlib
import io
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ops.collective.collectives import AlltoAll
from mspc.runtime.comm.local import LocalComm
from tests.compiled_scripts import CompileOptions, compiled_script, run_script, verify_target
from tests.errors import error_of
from tests.experts.drawn_experts import FORMS, DrawnExperts
from tests.judged_seeds import EQUAL
from tests.sharded_beside_one import beside_one_device
from tests.shares import is_taken, share_of
from tests.texts import IMPORTS

HEAD = """
import numpy as np
import mspc as ms
from mspc import Parameter, Tensor, nn, ops

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((8, 4, 4))), name="w")
        self.grouped = ops.auto_generate.GroupedMatmul(3, 0)
        self.batched, self.routing = ops.BatchMatMul(), ops.TopKRouter()

    def construct(self, x, given):
"""
GROUPED = "        return self.grouped([x], [self.w], None, None, None, None, None, given)[0]\n"
SHARDED = GROUPED + "net = Net()\nnet.grouped.shard(((1, 1), (2, 1, 1), (1,)))"
ROOM = """        slots = ops.tensor_scatter_update(ops.zeros((9, 4), ms.float64), given.expand_dims(-1), x)[:8]
        found = self.batched(slots.reshape(8, 1, 4), self.w).reshape(8, 4)
        return ops.gather(ops.cat((found, ops.zeros((1, 4), ms.float64)), 0), given, 0)
"""
CASES = {
    "experts that ranks do not divide": (
        GROUPED + "net = Net()\nnet.grouped.shard(((1, 1), (3, 1, 1), (1,)))", "np.arange(1, 9)", 6,
        "dimension 0 of input 1 is 8, which 3 does not divide",
    ),
    "experts that ranks do not divide, in a batch of products": (
        ROOM + "net = Net()\nnet.batched.shard(((3, 1, 1), (3, 1, 1)))", "np.arange(8)", 6,
        "is 8, which 3 does not divide",
    ),
    "no capacity": (
        "        return self.routing(given.reshape(1, 8, 1), 0, 8)[0]\nnet = Net()", "np.arange(8)", 2,
        "capacity is 0, not a positive number",
    ),
    "an expert that there is not": (
        "        return self.routing(given.reshape(1, 8, 1), 2, 8)[0]\nnet = Net()", "np.arange(8) + 2", 2,
        "TopKRouter: expert 9 is chosen, there are 8",
    ),
    "groups that end behind the last row": (
        SHARDED, "np.arange(8) * 3", 2, "an expert's rows end at 9, but there are 8 rows",
    ),
    "a slot that there is not": (
        ROOM + "net = Net()\nnet.batched.shard(((2, 1, 1), (2, 1, 1)))", "np.arange(8) + 2", 2,
        "place 9 is named, but there are 9",
    ),
    "room for less than even shares": (
        SHARDED + "\nnet.grouped.add_prim_attr('most_rows', 0.5)", "np.arange(1, 9)", 2,
        "most_rows is 0.5, not a number from 1 on",
    ),
    "more rows than there is room for": (
        SHARDED + "\nnet.grouped.add_prim_attr('most_rows', 1.0)", "np.full(8, 8)", 2,
        "8 rows of part 0 of the batch go to the experts of rank 0 of 2, and most_rows leaves room for 4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_named(name: str, tmp_path: Path) -> None:
    text, given, ranks, message = CASES[name]
    script = tmp_path / "net.py"
    script.write_text(f"{HEAD}{text}\nprint(net(Tensor(np.ones((8, 4))), Tensor(({given}).astype(np.int32))))\n")
    assert message in error_of(run_script, script, ranks, simulate=True).render()


@pytest.mark.share(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", range(share_of(8)))
def test_experts_on_ranks_are_those_of_one_device(number: int, form: str) -> None:
    outcome = beside_one_device(5000 + number, DrawnExperts(5000 + number, (form,)))
    assert outcome.kind == EQUAL, outcome.message


STEPS = 20


def losses(root: Path, ranks: int, *arguments: str) -> list[float]:
    """The losses of 20 steps of a network of `benchmarks/networks/experts.py`, of the first rank."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        run_script(root / "benchmarks/networks/experts.py", ranks, simulate=True,
                   script_arguments=[*arguments, str(STEPS)])  # fmt: skip
    found = [float(text) for text in re.findall(r"loss ([0-9.e+-]+)", printed.getvalue())]
    return found[::ranks]


@pytest.mark.parametrize(
    ("network", "form"),
    [each for place, each in enumerate(product(["small-mixtral", "small-deepseek"], ["sorted", "tables"]))
     if is_taken(place, 4)],
)  # fmt: skip
def test_losses_are_those_of_one_device(network: str, form: str, root: Path) -> None:
    alone = losses(root, 1, network, form, "1")
    assert len(alone) == STEPS
    assert alone[-1] < alone[0] - 0.5
    assert losses(root, 8, network, form, "4") == pytest.approx(alone, rel=2e-6)


RANKS, EACH, WIDTH, EXPERTS, CHOSEN = 8, 6, 4, 8, 2
SCRIPT = """
import numpy as np
import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.communication import get_rank, init

init()
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="data_parallel")
drawn = np.random.RandomState(3)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.before = Parameter(Tensor(drawn.randn({width}, {width})), name="before")
        self.up = Parameter(Tensor(drawn.randn({experts}, {width}, 6)), name="up")
        self.down = Parameter(Tensor(drawn.randn({experts}, 6, {width})), name="down")
        self.first, self.second = (ops.auto_generate.GroupedMatmul(3, 0) for _ in range(2))
        for product in (self.first, self.second):
            product.shard((({outer}, 1), ({parts}, 1, 1), (1,)))

    def construct(self, x, experts, weights):
        rows, back = ops.moe_token_permute(ops.matmul(x, self.before), experts)
        taken = ops.one_hot(experts.reshape(-1), {experts}, Tensor(1.0, ms.float64), Tensor(0.0, ms.float64))
        ends = ops.cumsum(taken.sum(0), 0).astype(ms.int64)
        hidden = ops.silu(self.first([rows], [self.up], None, None, None, None, None, ends)[0])
        found = self.second([hidden], [self.down], None, None, None, None, None, ends)[0]
        return (ops.moe_token_unpermute(found, back, weights) ** 2).mean()


net = Net()
step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
experts = np.array({routing}, np.int32)
mine = slice(get_rank() * {each}, (get_rank() + 1) * {each})
x = drawn.randn(experts.shape[0], {width})
step(Tensor(x[mine]), Tensor(experts[mine]), Tensor(np.ones(experts.shape)[mine]))
"""
ROUTINGS = {
    "drawn": lambda r: r.integers(0, EXPERTS, (RANKS * EACH, CHOSEN)),
    "one expert for all": lambda r: np.full((RANKS * EACH, CHOSEN), 5),
    "near experts alone": lambda r: np.arange(RANKS).repeat(EACH)[:, None] + np.zeros((1, CHOSEN), int),
}


def script(tmp_path: Path, parts: int, routing: Any) -> Path:
    path = tmp_path / "net.py"
    path.write_text(SCRIPT.format(
        width=WIDTH, experts=EXPERTS, outer=RANKS // parts, parts=parts, each=EACH, routing=routing.tolist()
    ))  # fmt: skip
    return path


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_what_travels(parts: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routing = ROUTINGS[name](np.random.default_rng(4))
    sent: list[tuple[int, int, int]] = []
    exchange = LocalComm.exchange

    def counted(self: LocalComm, sends: Sequence[tuple[int, Any]], receives: Any) -> Any:
        sent.extend((self.rank, to, len(array)) for to, array in sends if array.dtype.kind == "f" and to != self.rank)
        return exchange(self, sends, receives)

    monkeypatch.setattr(LocalComm, "exchange", counted)
    run_script(script(tmp_path, parts, routing), RANKS, simulate=True)
    wanted = 0
    for token, chosen in enumerate(routing):
        rank = token // EACH
        owners = [rank // parts * parts + expert // (EXPERTS // parts) for expert in chosen]
        wanted += sum(owner != rank for owner in owners)
    assert sum(rows for *_, rows in sent) == 4 * wanted  # there and back, and the same for gradients
    assert all(rank // parts == to // parts for rank, to, _ in sent)


CONFIGURED_SCRIPT = IMPORTS + """
from mindspore.ops import operations as P

DP, EP, ROOM, WIDTH, EXPERTS, CHOSEN = 8, {parts}, 4, 6, 8, 2
OUTER = DP // EP
random = np.random.RandomState(1)


def weight(*shape):
    return Parameter(Tensor(random.randn(*shape)))


class Experts(nn.Cell):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = weight(WIDTH, EXPERTS), weight(EXPERTS, WIDTH, 5), weight(EXPERTS, 5, WIDTH)
        self.route = P.MatMul().shard(((DP, 1), (1, 1)))
        self.softmax, self.topk = P.Softmax(-1).shard(((DP, 1, 1),)), P.TopK().shard(((DP, 1, 1),))
        self.places = ops.TopKRouter().shard(((DP, 1, 1),))
        self.pad = P.Concat(1).shard(((DP, 1, 1), (DP, 1, 1)))
        self.pad_rooms = P.Concat(2).shard(((DP, 1, 1, 1), (DP, 1, 1, 1)))
        self.dispatch, self.combine = (P.Gather(batch_dims=1).shard(((DP, 1, 1), (DP, 1, 1))) for _ in range(2))
        self.turn = P.Transpose().shard(((OUTER, 1, EP, 1, 1),))
        self.first, self.second = (P.BatchMatMul().shard(((OUTER, EP, 1, 1), (EP, 1, 1))) for _ in range(2))
        self.relu = P.ReLU().shard(((OUTER, EP, 1, 1),))
        self.mul, self.sum = P.Mul().shard(((DP, 1, 1, 1),) * 2), P.ReduceSum().shard(((DP, 1, 1, 1),))

    def construct(self, x):
        x = x.reshape(DP, -1, WIDTH)
        scores = self.route(x.reshape(-1, WIDTH), self.gate).reshape(DP, -1, EXPERTS)
        weights, experts = self.topk(self.softmax(scores), CHOSEN)
        tables, places = self.places(experts, ROOM, EXPERTS)
        given = self.dispatch(self.pad((ops.zeros((DP, 1, WIDTH), x.dtype), x)), tables, 1)
        given = self.turn(given.reshape(OUTER, EP, EXPERTS, ROOM, WIDTH), (0, 2, 1, 3, 4))
        given = given.reshape(OUTER, EXPERTS, EP * ROOM, WIDTH)
        found = self.second(self.relu(self.first(given, self.up)), self.down)
        found = self.turn(found.reshape(OUTER, EXPERTS, EP, ROOM, WIDTH), (0, 2, 1, 3, 4))
        found = self.pad_rooms((ops.zeros((DP, EXPERTS, 1, WIDTH), x.dtype), found.reshape(DP, EXPERTS, ROOM, WIDTH)))
        found = self.combine(found.reshape(DP, EXPERTS * (ROOM + 1), WIDTH), places, 1)
        found = self.sum(self.mul(found, weights.reshape(DP, -1, CHOSEN, 1)), 2)
        return (found * found).mean()


ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=DP, dataset_strategy=((DP, 1, 1),))
net = Experts()
ms.value_and_grad(net, 0, net.trainable_params())(Tensor(random.randn(1, 64, WIDTH)))
"""


@pytest.mark.parametrize("parts", [2, 8])
def test_it_sends_rooms_alone(parts: int, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text(CONFIGURED_SCRIPT.format(parts=parts))
    graph = compiled_script(script, 8).graph
    rooms = [node for node in graph.nodes if isinstance(node.op, AlltoAll)]
    assert len(rooms) == 4
    assert {node.tensor_type.size for node in rooms} == {8 * 8 * 4 * 6}  # of all ranks
    verify_target(str(script), CompileOptions(), seed=1)
