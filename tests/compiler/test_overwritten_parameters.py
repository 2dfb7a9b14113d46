"""Values of parameters that are taken in many ways stay as they are when the parameters are overwritten: on one device,
on ranks and in the programs of GPUs.
Cells that are recomputed for gradients read what their parameters held, though they overwrite them in every turn.
"""

import contextlib
import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from tests.control.on_gpu import run_on_gpu
from tests.control.plain import Plain
from tests.control.program import ControlProgram
from tests.control.watched import Outcome, watched
from tests.control_programs import check, compare, judged, seeds_of
from tests.judged_seeds import EQUAL, FAILS, HANGS, Different
from tests.ops.cuda.cuda_emulator import NEEDED
from tests.sharded_beside_one import run
from tests.shares import share_of

STEPS = 3
WAYS = (
    "{}.astype(ms.float32)", "{}.float()", "ops.cast({}, ms.float32)", "{}.to(ms.float32)", "{}.type_as(x)",
    "{}.reshape(4, 6)", "ops.reshape({}, (4, -1))", "{}.view(4, 6)", "{}.view(24).view(4, 6)", "ops.flatten({})",
    "self.identity({})", "ops.Identity()({})", "self.dropout({})", "ops.dropout({}, p=0.0)", "{}[:]", "{}[...]",
    "{}[:, 0:6]", "ops.stop_gradient({})", "ops.depend({}, x)", "ops.transpose({}, (0, 1))", "{}.T.T",
    "{}.transpose(1, 0).transpose(1, 0)", "ops.squeeze({})", "{}.expand_dims(0).squeeze(0)",
    "ops.broadcast_to({}, (4, 6))", "{}.expand_as(x)", "ops.tile({}, (1, 1))", "Tensor({})", "{}.contiguous()",
    "{}.copy()", "{}.clone()", "ops.concat([{}])", "ops.stack([{}])[0]", "ops.concat(ops.split({}, 2))", "+{}",
    "sum([{}])", "ops.pad({}, (0, 0, 0, 0))", "ops.roll({}, 0, 0)", "ops.addn([{}])", "ops.depend({}, x)[:]",
    "self.inner({})", "ops.stack([row for row in {}])", "{}.swapaxes(0, 1).T", "mint.narrow({}, 0, 0, 4)",
    "self.sliced({}, 1.0)", "{} * 1", "-(-{})", "ops.select(x > -100, {}, x)", "ops.atleast_2d({})",
)  # fmt: skip
"""How a script takes the value of a parameter."""
OVERWRITTEN = ("ops.assign(self.w, self.w * 0.5 + x)", "self.w.copy_(self.w * 0.5 + x)", "self.w = self.w * 0.5 + x",
               "ops.assign_add(self.w, x * 0.5)")  # fmt: skip
PLACES = ("", "if x[0, 0] < 100:", "while n < 2:")
SCRIPT = '''
import numpy as np
import mindspore as ms
import mspc.communication as comm
from mspc import Parameter, Tensor, mint, nn, ops

ms.set_context(mode=ms.GRAPH_MODE)
comm.init()
ms.set_auto_parallel_context(parallel_mode="{mode}", full_batch=True)


class Inner(nn.Cell):
    def construct(self, w):
        return w.reshape(-1)[:].reshape(w.shape)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.arange(24, dtype=np.float32).reshape(4, 6) / 16), name="w")
        self.identity, self.dropout, self.inner = nn.Identity(), nn.Dropout(p=0.0), Inner()
        self.sliced = ops.Mul(){shard}
        self.grad = ops.value_and_grad(self.forward, None, [self.w], has_aux=True)

    def forward(self, x):
        y = {trained}
        return (y * x).sum(), y

    def construct(self, x):
        n = (x > 0).sum() * 0
        {names} = {zeros}
{body}
        (loss, kept), gradients = self.grad(x)
        ops.assign_sub(self.w, gradients[0] * 0.25)
        return {results}, kept, self.w + 0


net, found = Net(), {{}}
for step in range({steps}):
    x = np.random.default_rng(step).integers(-8, 9, (4, 6)).astype(np.float32) / 8
    found |= {{f"{{step}} {{i}}": value.asnumpy() for i, value in enumerate(net(Tensor(x)))}}
np.savez(f"{folder}/rank_{{comm.get_rank()}}.npz", **found)
'''


def members(turn: int) -> list[list[int]]:
    """The ways of every place: each way is in another one at every turn."""
    return [[i for i in range(len(WAYS)) if (i + turn) % len(PLACES) == place] for place in range(len(PLACES))]


def script(turn: int, mode: str, shard: str, folder: Path) -> str:
    lines: list[str] = []
    for head, ways in zip(PLACES, members(turn), strict=True):
        indent = " " * (12 if head else 8)
        lines += [f"        {head}"] * bool(head)
        for i in ways:
            lines += [f"{indent}y{i} = {WAYS[i].format('self.w')}", indent + OVERWRITTEN[i % len(OVERWRITTEN)]]
    names = ", ".join(f"y{i}" for i in range(len(WAYS)))
    return SCRIPT.format(
        mode=mode, shard=shard, trained=WAYS[turn].format("self.w"), names=names, zeros=", ".join(["x"] * len(WAYS)),
        body="\n".join([*lines, "            n = n + 1"]), results=names, steps=STEPS, folder=folder,
    )  # fmt: skip


def wanted(turn: int) -> dict[str, np.ndarray]:
    """The same in NumPy, where a value that is taken is a copy."""
    w, found = np.arange(24, dtype=np.float32).reshape(4, 6) / 16, dict[str, np.ndarray]()
    for step in range(STEPS):
        x = np.random.default_rng(step).integers(-8, 9, (4, 6)).astype(np.float32) / 8
        straight, branch, loop = members(turn)
        for i in (*straight, *branch, *loop, *loop):
            found[f"{step} {i}"] = w
            w = w + x / 2 if i % len(OVERWRITTEN) == 3 else w / 2 + x
        found[f"{step} {len(WAYS)}"] = w
        w = found[f"{step} {len(WAYS) + 1}"] = w - x / 4
    return found


@pytest.mark.share(3)
@pytest.mark.parametrize("turn", range(len(PLACES)))
@pytest.mark.parametrize("where", ["alone", "ranks", "gpu"])
def test_values_stay_when_parameters_are_overwritten(turn: int, where: str, tmp_path: Path) -> None:
    if where == "gpu" and NEEDED is None:
        pytest.skip("g++ is not installed")
    mode = "semi_auto_parallel" if where == "ranks" and turn else "stand_alone"
    mode = "auto_parallel" if where == "ranks" and not turn else mode
    shard = ("", ".shard(((2, 1), ()))", ".shard(((1, 2), ()))")[turn] if where == "ranks" else ""
    text = script(turn, mode, shard, tmp_path)
    if where == "gpu":
        path = tmp_path / "net.py"
        path.write_text(text)
        with contextlib.redirect_stderr(io.StringIO()):
            run_on_gpu(path, 1e-5)
        results = [dict(np.load(tmp_path / "rank_0.npz"))]
    else:
        results = [dict(found) for found in run(text, 2 if where == "ranks" else 1, tmp_path)]
    for found in results:
        for name, value in wanted(turn).items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


class Counting(nn.Cell):
    """Multiplies by what it counts; casts give the gradient something to make again of the count alone."""

    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.full(3, 0.5, np.float32)), name="w")
        self.count = Parameter(Tensor(np.ones(3, np.float32)), name="count", requires_grad=False)

    def construct(self, x: Any) -> Any:
        y = ops.tanh(x * self.w * ops.exp(self.count.astype(ms.float64).astype(ms.float32)))
        ops.assign_add(self.count, ops.ones_like(self.count) * 0.25)
        return y


class Turning(nn.Cell):
    """As many turns as a tensor says."""

    def __init__(self, recomputes: bool) -> None:
        super().__init__()
        self.inner = Counting()
        if recomputes:
            self.inner.recompute()

    def construct(self, x: Any, turns: Any) -> Any:
        i = turns * 0
        while i < turns:
            x = self.inner(x) + x
            i = i + 1
        return x.sum()


def gradient(recomputes: bool) -> Any:
    net = Turning(recomputes)
    _, (found,) = ops.value_and_grad(net, None, [net.inner.w])(Tensor(np.ones(3, np.float32)), Tensor(3, ms.int32))
    return found.asnumpy()


def test_a_turn_is_not_recomputed_from_what_later_turns_wrote() -> None:
    np.testing.assert_allclose(gradient(True), gradient(False), rtol=1e-6)


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: pip install -e '.[oracle]'")


def outcomes(count: int = 12, **options: object) -> list[tuple[int, str, str]]:
    """Differences among some programs; `python -m tests.control_programs` looks at more of them."""
    found = [check(seed, **options) for seed in seeds_of(3, count)]  # type: ignore[arg-type]
    return [(each.seed, each.kind, each.message) for each in found if each.kind != EQUAL]


def test_values_are_those_of_plain_python() -> None:
    assert outcomes() == []


@needs_torch
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_gradients_are_those_of_pytorch(ranks: int) -> None:
    assert outcomes(share_of(4, 4), ranks=ranks, gradients=True) == []


def test_a_program_is_the_same_from_the_same_seed() -> None:
    texts = [ControlProgram(seed).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_another_number_is_found() -> None:
    expected = judged(seeds_of(3, 1)[0], 1, False, 3).expected
    moved = {name: array + np.asarray(1, array.dtype) for name, array in expected.items()}
    with pytest.raises(Different, match="away"):
        compare(moved, expected, "here")
    with pytest.raises(Different, match="float32"):
        compare({name: array.astype(np.float32) for name, array in expected.items()}, expected, "here")
    compare(expected, expected, "here")


def test_conditions_near_a_tie_are_noted() -> None:
    plain = Plain(ControlProgram(1))
    tensor = plain.namespace["Tensor"]
    assert bool(tensor(0.5, "float64") < tensor(0.50025, "float64"))
    assert plain.margins.least == pytest.approx(0.00025)
    assert plain.margins.asked == 1


def test_what_hangs_or_dies_is_named_and_the_rest_goes_on() -> None:
    def work(seed: int) -> Outcome:
        if seed == 2:
            while True:
                pass
        if seed == 4:
            raise SystemExit(3)
        return Outcome(seed, EQUAL)

    found = {each.seed: each for each in watched(work, range(6), 2, 1.0, HANGS)}
    assert sorted(found) == list(range(6))
    assert {seed for seed, each in found.items() if each.kind == EQUAL} == {0, 1, 3, 5}
    assert found[2].message == "takes more than 1 s"
    assert found[4].message == "ended its process: 3"
    assert FAILS != HANGS
