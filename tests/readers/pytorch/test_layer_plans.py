"""Plans of layers: what they make of a network, and the mistakes in them that are told."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.exported_program import ExportedProgram
from mspc.readers.pytorch.exporting import export_made
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.plans.strategies import LayerPlan, planned
from mspc.readers.pytorch.plans.written_plan import plan_in, plan_of
from mspc.readers.pytorch.sizes import with_sizes
from tests.exported_programs import Exported
from tests.serving import serve

pytestmark = pytest.mark.usefixtures("brief_searches")

SAMPLE = Path(__file__).resolve().parents[3] / "samples" / "pytorch" / "language_model.pt2"
ATTENTION, FEED = "layers.*.attention", "layers.*"
MEGATRON = {
    f"{ATTENTION}.query": "colwise", f"{ATTENTION}.key": "colwise", f"{ATTENTION}.value": "colwise",
    f"{ATTENTION}.out": "rowwise", f"{FEED}.up": "colwise", f"{FEED}.down": "rowwise",
}  # fmt: skip
ROWS = "RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))"
SEQUENCE = {
    **MEGATRON, "words": ROWS,
    **{f"{FEED}.{name}": "sequence_parallel" for name in ("attention_norm", "feed_forward_norm")},
    "norm": "sequence_parallel", "head": "ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())",
    **{name: "ColwiseParallel(input_layouts=Shard(1))" for name, style in MEGATRON.items() if style == "colwise"},
    **{name: "RowwiseParallel(output_layouts=Shard(1))" for name, style in MEGATRON.items() if style == "rowwise"},
}  # fmt: skip
"""Between the layers every rank holds a slice of the sequence."""
PLACES = {"parameters": {"places": "Shard(0)"}}


def by_plan(said: Mapping[str, Any], *arguments: str, cwd: Path) -> str:
    """The output of a command by a plan, which succeeds."""
    (cwd / "plan.json").write_text(json.dumps(said))
    done = serve(*arguments, "--plan", "plan.json", cwd=cwd, status=0)
    return done.stdout


@cache
def program() -> ExportedProgram:
    return with_sizes(read_program(SAMPLE), {})


def plan(layers: Mapping[str, str | None], ranks: int = 4, **others: Any) -> LayerPlan:
    """The plan of these layers for the sample."""
    found = {"layers": {name: style for name, style in layers.items() if style is not None}, **others}
    return planned(program(), plan_of("plan.toml", found, ranks))


MISTAKES: dict[str, tuple[Mapping[str, str | None], int, str, str]] = {
    "unknown style": ({f"{FEED}.up": "colwize"}, 4, "no style 'colwize'", ""),
    "names no layer": ({f"{FEED}.upp": "colwise"}, 4, r"'layers.\*.upp' names no layer", ""),
    "row-wise behind nothing": (
        {f"{FEED}.up": None}, 4, "layers.0.down is row-wise .* every rank holds its whole input", "self.down(",
    ),
    "row-wise is missing": (
        {f"{FEED}.down": None}, 4, "layers.0.down reads its whole input, but layers.0.up", "self.down(",
    ),
    "column behind column": (
        {f"{FEED}.down": "colwise"}, 4, "layers.0.down is column-wise .* layers.0.up leaves each rank a slice",
        "self.down(",
    ),
    "not gathered": (
        {f"{ATTENTION}.out": "colwise", f"{ATTENTION}.query": None, f"{ATTENTION}.key": None,
         f"{ATTENTION}.value": None}, 4,
        "slices of the result of layers.0.attention.out are combined with a tensor that", "x + ",
    ),
    "query without key": (
        {f"{ATTENTION}.key": None}, 4, "attention reads slices of layers.0.attention.query, but all of key",
        "scaled_dot_product_attention",
    ),
    "heads": (dict.fromkeys(()), 16, "attention.query is viewed as .* 16 ranks do not divide the 8 of", "self.query"),
    "features": ({f"{FEED}.up": "colwise"}, 3, "viewed as .* 3 ranks do not divide the 8 of", "self.query"),
    "gathered twice": (
        {f"{FEED}.up": "ColwiseParallel(input_layouts=Shard(-1))"}, 4,
        "layers.0.up gathers an input that every rank already holds", "self.up(",
    ),
    "gathered ahead of row-wise": (
        {f"{FEED}.up": "colwise_gather_output"}, 4, "layers.0.down is row-wise", "self.down(",
    ),
    "gathered along the sequence, which nothing cuts": (
        {f"{FEED}.up": "ColwiseParallel(input_layouts=Shard(1))"}, 4, "gathers its input along dimension 1", "self.up(",
    ),
    "places are whole": (
        {"words": "colwise"}, 4, "every rank holds all of places, but a slice of the result of words", "self.places",
    ),
    "sequence of nothing": (
        {f"{FEED}.attention_norm": "sequence_parallel"}, 4,
        "layers.0.attention_norm is sequence_parallel, but its input is not sharded", "attention_norm",
    ),
    "a style of tables": ({f"{FEED}.up": "embedding_rowwise"}, 4, "for tables of an embedding", "self.up("),
}  # fmt: skip
"""Changes of a right plan, ranks, what is told, and the line of the model that it is told at."""


SEQUENCE_MISTAKES: dict[str, tuple[Mapping[str, str | None], int, str, str]] = {
    "a norm's gradient": (
        {f"{FEED}.attention_norm": None}, 4, "gradient of layers.0.attention_norm.weight is never summed",
        "attention_norm",
    ),
    "sequence is not gathered": (
        {f"{FEED}.up": "colwise"}, 4,
        "layers.0.up is column-wise .* a slice along dimension 1: gather it first", "self.up(",
    ),
    "sequence meets all": ({f"{FEED}.down": "rowwise"}, 4, "combined with a tensor that every rank holds", "x + "),
    "sequence into the loss": (
        {"head": "ColwiseParallel(input_layouts=Shard(1))"}, 4, "the loss reads all classes", "cross_entropy",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*MISTAKES, *SEQUENCE_MISTAKES])
def test_a_mistake_is_told_with_its_layer_and_its_line(name: str) -> None:
    changes, ranks, message, line = (MISTAKES | SEQUENCE_MISTAKES)[name]
    right, others = (MEGATRON, {}) if name in MISTAKES else (SEQUENCE, PLACES)
    with pytest.raises(MspcError, match=message) as told:
        plan({**right, **changes}, ranks, **others)
    if line:
        assert told.value.location is not None
        assert told.value.location.file.endswith("samples/pytorch/language_model.py")
        source = (SAMPLE.parent / "language_model.py").read_text().splitlines()[told.value.location.line - 1]
        assert line in source


WORDS = {"colwise": "ColwiseParallel()", "rowwise": "RowwiseParallel(output_layouts=Replicate())"}


@pytest.mark.parametrize("layers", [MEGATRON, {name: WORDS[style] for name, style in MEGATRON.items()}])
def test_a_right_plan_is_not_told_of(layers: Mapping[str, str]) -> None:
    styles = plan(layers).styles
    assert {name for name in styles if ".0." in name} == {
        *(f"layers.0.attention.{part}.weight" for part in ("query", "key", "value", "out")),
        *(f"layers.0.{layer}.{part}" for layer in ("up", "down") for part in ("weight", "bias")),
    }


@pytest.mark.parametrize(
    "said", [{"layers": MEGATRON}, MEGATRON, {"base_model_tp_plan": MEGATRON, "model_type": "words", "hidden_size": 32}]
)
def test_json_has_the_dictionary_alone_or_a_models_configuration(tmp_path: Path, said: Mapping[str, Any]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(said))
    assert plan_in(path, 4).layers == plan_of("", {"layers": MEGATRON}, 4).layers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[layers]\na = 1", "'a' has the style 1, not a name"),
        ("layers = 1", "layers is 1, not a table"),
        ("", "there is no table"),
        ("layer = 1", "a plan of layers has no key 'layer'"),
        ("[operators]", "is a plan of operators, not of layers"),
        ("mesh = {tp = 3}\nlayers = {a = 'colwise'}", "mesh is tp 3, of 3 ranks, and there are 4"),
        ("mesh = {tp = 2, pp = 2}\nlayers = {a = 'colwise'}", "after others"),
        ("mesh = 4\nlayers = {a = 'colwise'}", "mesh is 4, not axes"),
        ("fully_shard = 1", "fully_shard is 1"),
        ("[parameters]\na = 'Shard'", "not one for each of tp"),
        ("[parameters]\na = ['Shard(0)', 'Shard(1)']", "not one for each of tp"),
        ("[parameters]\na = 'Partial()'", "is Partial"),
        ("[layers]\na = 'colwise('", "cannot read the style"),
        ("[layers]\na = 'colwise(output=Shard(1))'", "has no 'output'"),
        ("[layers]\na = 'colwise(output_layouts=Partial())'", "has a layout that is not"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(MspcError, match=re.escape(message)):
        plan_in(path, 4)


def test_what_is_handed_on_as_a_dtensor_takes_care_of_itself() -> None:
    head = "ColwiseParallel(input_layouts=Shard(1), use_local_output=False)"
    assert plan({**SEQUENCE, "head": head}, **PLACES).styles["head.weight"].name == head


def test_a_pattern_of_the_models_own_plan_may_name_nothing() -> None:
    written = plan_of("own", {"layers": {**MEGATRON, "layers.*.experts": "moe_tp_experts"}}, 4)
    assert planned(program(), written, is_own=True).styles == plan(MEGATRON).styles


MEGATRON_COLLECTIVES = {"AllReduce": 9}
"""Two of every layer forward, two backward, and one of the gradients of norms."""


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("layers", "others", "ranks"),
    [
        (MEGATRON, {}, 4), (MEGATRON, {"mesh": {"dp": 2, "tp": 4}}, 8), (SEQUENCE, PLACES, 4),
        (MEGATRON, {"mesh": {"dp": 2, "tp": 2}, "fully_shard": True}, 4),
        ({"head": "colwise", "words": "embedding_rowwise"}, {"loss_parallel": True}, 4),
        ({"head": "colwise_gather_output", "words": "embedding_rowwise", "norm": "replicate"}, {}, 4),
        ({}, {"mesh": {"dp": 2, "tp": 2},
              "parameters": {"layers.*.up.weight": ["Replicate()", "Shard(0)"],
                             "words.weight": ["Shard(1)", "Shard(0)"], "head.weight": ["Replicate()", "Shard(1)"]}}, 4),
    ],
)  # fmt: skip
def test_ranks_have_the_numbers_of_one_device(
    tmp_path: Path, layers: Mapping[str, str], others: Mapping[str, Any], ranks: int
) -> None:
    trained = ("--ranks", str(ranks), "--optimizer", "sgd:lr=0.1")
    found = by_plan({"layers": layers, **others}, "verify", str(SAMPLE), *trained, cwd=tmp_path)
    assert f"values on {ranks} ranks within 1e-05 of one device" in found


def test_megatrons_plan_sends_megatrons_collectives(tmp_path: Path) -> None:
    options = ("--ranks", "4", "--optimizer", "sgd:lr=0.1", "--json", "-", "--quiet")
    found = json.loads(by_plan(MEGATRON, "compile", str(SAMPLE), *options, cwd=tmp_path))
    assert Counter(each["operator"] for each in found["collectives"]) == MEGATRON_COLLECTIVES


def test_a_parallel_loss_gathers_no_logits(tmp_path: Path) -> None:
    options = ("--ranks", "4", "--optimizer", "sgd:lr=0.1", "--json", "-", "--quiet")
    plan = {"layers": {"head": "colwise"}, "loss_parallel": True}
    found = json.loads(by_plan(plan, "compile", str(SAMPLE), *options, cwd=tmp_path))["collectives"]
    assert "the largest element of rows" in "".join(each["reason"] for each in found)


def test_tied_weights_have_the_style_of_the_module_that_reads_them() -> None:
    tied = replace(program(), same={"head.weight": "words.weight"})
    layers = {"words": "embedding_rowwise", "head": "colwise_gather_output"}
    found = planned(tied, plan_of("plan", {"layers": layers}, 4))
    assert {scope: style.name for scope, style in found.tied.items()} == {
        "words-Embedding": "embedding_rowwise", "head-Linear": "colwise_gather_output",
    }  # fmt: skip


def normed_heads(path: Path) -> Path:
    """A product, its result in four heads, each times the same weight, and a product of all."""
    made, random = Exported(), np.random.default_rng(0)
    q, norm, o = (
        made.stored(name, random.normal(size=shape).astype(np.float32))
        for name, shape in (("q.weight", (8, 8)), ("norm.weight", (2,)), ("o.weight", (8, 8)))
    )
    x = made.user("x", "float32", (4, 6, 8))
    wide, heads = ("float32", (4, 6, 8)), ("float32", (4, 6, 4, 2))
    x = made.node("aten.linear.default", {"input": x, "weight": q}, {"q": wide}, "q", 3)
    x = made.node("aten.view.default", {"self": x, "size": [4, 6, 4, 2]}, {"split": heads}, "", 4)
    x = made.node("aten.mul.Tensor", {"self": x, "other": norm}, {"normed": heads}, "norm", 5)
    x = made.node("aten.view.default", {"self": x, "size": [4, 6, 8]}, {"joined": wide}, "", 6)
    x = made.node("aten.linear.default", {"input": x, "weight": o}, {"o": wide}, "o", 7)
    made.output(x)
    return made.save(path / "heads.pt2")


def test_a_norm_of_every_head_needs_its_gradient_summed(tmp_path: Path) -> None:
    found = with_sizes(read_program(normed_heads(tmp_path)), {})
    layers = {"q": "colwise", "o": "rowwise"}
    with pytest.raises(MspcError, match=r"norm.weight is never summed: norm reads only the slice .* q ") as told:
        planned(found, plan_of("plan", {"layers": layers}, 4))
    assert str(told.value.location).startswith("net.py:5")
    summed = {**layers, "norm": "replicated_with_grad_allreduce"}
    cuts = planned(found, plan_of("plan", {"layers": summed}, 4)).cuts
    assert cuts == {"q": 2, "split": 2, "normed": 2, "joined": 2}
    with pytest.raises(MspcError, match="8 ranks do not divide the 4 of dimension 2"):
        planned(found, plan_of("plan", {"layers": summed}, 8))


def test_a_program_alone_brings_no_plan_and_a_script_takes_none(tmp_path: Path) -> None:
    done = serve("compile", str(SAMPLE), "--ranks", "4", "--plan", "own", cwd=tmp_path, status=2)
    assert "brings no plan of its own" in done.stderr
    done = serve("compile", str(SAMPLE), "--plan", "own", "--strategies", "plan.toml", cwd=tmp_path, status=2)
    assert "--plan and --strategies both" in done.stderr
    (tmp_path / "script.py").write_text("")
    done = serve("compile", "script.py", "--plan", "own", cwd=tmp_path, status=2)
    assert "--plan is for a network of PyTorch" in done.stderr


def test_a_module_brings_its_own_plan(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)
            self._tp_plan = {"up": "colwise", "down": "rowwise", "experts": "moe_tp_experts"}

        def forward(self, x: Any) -> Any:
            return self.down(self.up(x))

    exported = export_made((Layers(), torch.zeros(2, 4)), tmp_path / "layers.pt2", "make")
    assert exported.own_plan == {"up": "colwise", "down": "rowwise", "experts": "moe_tp_experts"}


def test_a_search_keeps_what_a_plan_says(tmp_path: Path) -> None:
    """Sums that the plan asks for are complete for whoever reads them."""
    options = ("--ranks", "4", "--optimizer", "sgd:lr=0.1", "--json", "-")
    found = json.loads(by_plan(MEGATRON, "search", str(SAMPLE), *options, cwd=tmp_path))
    searched = next(each for each in found["plans"] if each["name"] == "search")
    assert searched["collectives"] == sum(MEGATRON_COLLECTIVES.values())


def test_two_plans_are_compared(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(MEGATRON))
    (tmp_path / "other.json").write_text(json.dumps({"layers.*.up": "colwise", "layers.*.down": "rowwise"}))
    both = (str(SAMPLE), str(SAMPLE), "--ranks", "4", "--optimizer", "sgd:lr=0.1", "--plan", "one.json")
    done = serve("diff", *both, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip().endswith("are equal")
    done = serve("diff", *both, "--plan", "other.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"{SAMPLE} by one.json and {SAMPLE} by other.json differ" in done.stdout
    done = serve("diff", *both, "--plan", "one.json", "--plan", "other.json", cwd=tmp_path, status=2)
    assert "--plan is given 3 times" in done.stderr


def experts(path: Path) -> Path:
    """Rows of two experts, each with two products, whose weights are stacks [experts, out, in]."""
    made, random = Exported(), np.random.default_rng(0)
    up, down = (
        made.stored(f"experts.{name}", random.normal(size=shape).astype(np.float32))
        for name, shape in (("up", (2, 8, 4)), ("down", (2, 4, 8)))
    )
    ends = made.stored("ends", np.array([2, 6], np.int32), "tensor_constant", trains=False)
    x = made.user("x", "float32", (6, 4))
    for number, (name, weight, out) in enumerate((("up", up, 8), ("down", down, 4))):
        shape = ("float32", (2, 12 - out, out))
        dims = {"self": weight, "dim0": -2, "dim1": -1}
        swapped = made.node("aten.transpose.int", dims, {f"swapped_{name}": shape}, "experts", number)
        product = {"self": x, "mat2": swapped, "offs": ends}
        x = made.node("aten._grouped_mm.default", product, {name: ("float32", (6, out))}, "experts", number)
    made.output(x)
    return made.save(path / "experts.pt2")


@pytest.mark.parametrize(
    "layers",
    [{"experts.up": "packed_colwise", "experts.down": "rowwise", "experts": "moe_tp_experts"},
     {"experts.up": "grouped_gemm", "experts.down": "grouped_gemm", "experts": "ep_dispatch_experts"}],
    ids=["layers", "experts"],
)  # fmt: skip
def test_stacks_of_experts_weights_are_cut(tmp_path: Path, layers: Mapping[str, str]) -> None:
    """Whole experts are none that ranks have: they have slices of all."""
    target = (str(experts(tmp_path)), "--ranks", "2")
    found = json.loads(by_plan(layers, "compile", *target, "--json", "-", "--quiet", cwd=tmp_path))
    assert found["totals"]["parameter_bytes"] == 4 * (2 * 8 * 4 + 2 * 4 * 8) // 2
    assert [each["operator"] for each in found["collectives"]] == ["AllReduce"]
    by_plan(layers, "verify", *target, cwd=tmp_path)


def test_an_input_that_a_module_gathers_is_whole_for_its_layers() -> None:
    inside = {name: "colwise" for name, style in MEGATRON.items() if style == "colwise" and ATTENTION in name}
    gathers = "PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))"
    found = plan({**SEQUENCE, **inside, ATTENTION: gathers}, **PLACES)
    assert found.cuts == plan(SEQUENCE, **PLACES).cuts
    with pytest.raises(MspcError, match="gather it first"):
        plan({**SEQUENCE, **inside}, **PLACES)
