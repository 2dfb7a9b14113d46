"""Equal layers of a program are one loop, whose results are those of inlined layers, to the bit."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, nn, value_and_grad
from mspc.compiler.frontend.trace import trace
from mspc.ir.text.printer import print_graph
from mspc.readers.pytorch import equal_layers
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.network import ImportedNetwork
from mspc.readers.pytorch.plans.strategies import planned
from mspc.readers.pytorch.plans.written_plan import plan_in
from tests.exported_programs import Exported
from tests.serving import invoke

WIDTH, LAYERS = 4, 9
FLOATS = ("float32", (8, WIDTH))
Change = Callable[[Exported, int, str], str]
"""Adds nodes after a layer; takes the layer's number and result, and returns the next layer's operand."""


def program(folder: Path, count: int = LAYERS, change: Change | None = None, shape: Any = lambda i: WIDTH) -> Path:
    """`x = x + tanh(x @ up_i.T) * scale`, for every layer i, with a constant per layer."""
    generator = np.random.default_rng(0)
    made = Exported()
    for i in range(count):
        made.stored(f"layers.{i}.up.weight", generator.normal(size=(WIDTH, WIDTH)).astype(np.float32) * 0.3)
        made.stored(f"layers.{i}.mask", np.arange(WIDTH, dtype=np.float32), "tensor_constant", trains=False)
    value = made.user("x", *FLOATS)
    for i in range(count):
        scope = f"layers.{i}"
        weight, mask = f"p_layers_{i}_up_weight", f"c_layers_{i}_mask"
        up = made.node("aten.linear.default", {"input": value, "weight": weight}, {f"up{i}": FLOATS}, f"{scope}.up", 3)
        act = made.node("aten.tanh.default", {"self": up}, {f"act{i}": FLOATS}, scope, 4)
        act = made.node("aten.mul.Tensor", {"self": act, "other": mask}, {f"own{i}": FLOATS}, scope, 5)
        value = made.node("aten.add.Tensor", {"self": value, "other": act}, {f"out{i}": FLOATS}, scope, 6)
        value = value if change is None else change(made, i, value)
    made.node("aten.mean.default", {"self": value}, {"total": ("float32", ())}, line=8)
    made.output("total", "loss")
    return made.save(folder / "model.pt2")


def graph_of(network: ImportedNetwork, folds: bool = True) -> Any:
    return trace(network, list(network.input_types), folds=folds).graph


def turns(graph: Any) -> list[int]:
    return [node.op.turns for node in graph.nodes if node.op.name == "For"]


def test_a_step_is_that_of_inlined_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(np.random.default_rng(1).normal(size=(8, WIDTH)).astype(np.float32))
    found: list[list[np.ndarray]] = []
    for fewest in (equal_layers.FEWEST_LAYERS, LAYERS + 1):
        monkeypatch.setattr(equal_layers, "FEWEST_LAYERS", fewest)
        network = ImportedNetwork(read_program(program(tmp_path)))
        assert turns(graph_of(network)) == ([] if fewest > LAYERS else [LAYERS])
        loss, grads = value_and_grad(network, None, network.trainable_params())(x)
        step = nn.TrainOneStepCell(network, nn.Adam(network.trainable_params(), 0.05))
        losses = [step(x) for _ in range(3)]
        found.append([each.asnumpy() for each in (loss, *grads, *losses, *network.trainable_params())])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_text_is_as_long_for_any_number_of_layers(tmp_path: Path) -> None:
    texts = [print_graph(graph_of(ImportedNetwork(read_program(program(tmp_path, n))))) for n in (8, 40)]
    assert texts[0].count("\n") == texts[1].count("\n")
    assert "%para2_layers.{0..39}.up.weight: " in texts[1]
    assert "layers.[0..39]" in texts[1]
    assert "In file net.py(3)" in texts[1]


def other_result(made: Exported, i: int, value: str) -> str:
    """The caller gets a result of the second layer."""
    if i == 1:
        made.output(value, "second")
    return value


def other_operand(made: Exported, i: int, value: str) -> str:
    """Every layer reads the result of the layer before the last one."""
    other = f"out{i - 1}" if i else "x"
    return made.node("aten.sub.Tensor", {"self": value, "other": other}, {f"less{i}": FLOATS}, f"layers.{i}", 7)


def drawn(made: Exported, i: int, value: str) -> str:
    return made.node("aten.dropout.default", {"input": value, "p": 0.5, "train": True}, {f"drawn{i}": FLOATS},
                     f"layers.{i}", 7)  # fmt: skip


def overwritten(made: Exported, i: int, value: str) -> str:
    return made.node("aten.add_.Tensor", {"self": f"p_layers_{i}_up_weight", "other": 1.0},
                     {f"new{i}": ("float32", (WIDTH, WIDTH))}, f"layers.{i}", 7) and value  # fmt: skip


def alternating(made: Exported, i: int, value: str) -> str:
    kind = ("aten.sin.default", "aten.cos.default")[i % 2]
    return made.node(kind, {"self": value}, {f"turned{i}": FLOATS}, f"layers.{i}", 7)


def between(made: Exported, i: int, value: str) -> str:
    """A node of the module around the layers, which does not follow the last one."""
    if i == 2 * LAYERS - 1:
        return value
    return made.node("aten.neg.default", {"self": value}, {f"neg{i}": FLOATS}, "", 7)


def first_alone(made: Exported, i: int, value: str) -> str:
    return value if i else made.node("aten.neg.default", {"self": value}, {"neg": FLOATS}, "layers.0", 7)


KINDS: dict[str, tuple[Change, list[int]]] = {
    "result of one": (other_result, [2 * LAYERS - 2]),
    "carries two": (other_operand, [2 * LAYERS - 1]),
    "draws": (drawn, [2 * LAYERS]),
    "overwrites": (overwritten, []),
    "alternates": (alternating, [LAYERS]),
    "with nodes between": (between, [2 * LAYERS - 1]),
    "first one differs": (first_alone, [2 * LAYERS - 1]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_layers_that_are_a_loop_become_one(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change, expected = KINDS[kind]
    network = ImportedNetwork(read_program(program(tmp_path, 2 * LAYERS, change)), "loss")
    assert turns(graph_of(network)) == expected
    assert turns(graph_of(network, folds=False)) == []
    if "draws" != kind:
        x = Tensor(np.random.default_rng(1).normal(size=(8, WIDTH)).astype(np.float32))
        folded = network(x).asnumpy()
        again = ImportedNetwork(read_program(tmp_path / "model.pt2"), "loss")
        monkeypatch.setattr(equal_layers, "FEWEST_LAYERS", 100)
        np.testing.assert_array_equal(folded, again(x).asnumpy())


def test_pytorch_judges_the_gradients_of_all_layers(tmp_path: Path) -> None:
    """It cannot differentiate a loop, so that the layers that it judges are inlined."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")
    options = ["--loss", "loss", "--optimizer", "sgd:lr=0.1", "--against", "torch", "--all"]
    found = invoke("verify", str(program(tmp_path)), *options, status=0)
    assert f"layers.{LAYERS - 1}.up.weight" in found.stdout
    assert "not compared" not in found.stdout


PLANS: Sequence[tuple[str, list[int]]] = [
    ('mesh = {tp = 2}\n[layers]\n"layers.*.up" = "colwise_rep"\n', [2 * LAYERS]),
    ('mesh = {tp = 2}\n[layers]\n"layers.*.up" = "colwise_rep"\n"layers.3.up" = "rowwise_rep"\n', [2 * LAYERS - 4]),
    ("mesh = {pp = 2}\n", [LAYERS, LAYERS]),
]


@pytest.mark.parametrize(("text", "expected"), PLANS)
def test_layers_of_one_style_and_stage_are_one_loop(text: str, expected: list[int], tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(text)
    read = read_program(program(tmp_path, 2 * LAYERS))
    plan = planned(read, plan_in(tmp_path / "plan.toml", 2))
    network = ImportedNetwork(plan.program)
    network.plan = plan
    stages = 2 if plan.stages else 1
    graph = trace(network, list(network.input_types), stages=stages).graph
    assert turns(graph) == expected
    loops = [node for node in graph.nodes if node.op.name == "For"]
    assert [node.attrs.get("stage") for node in loops] == ([0, 1] if plan.stages else [None])
