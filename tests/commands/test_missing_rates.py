"""A machine's file without rates of the element type that a network computes in: every command that reads it says so,
once for each kind of work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.machine import H200, KNOWN_MACHINES, Rate
from mspc.analysis.cost.timeline import MissingRate, missing_rates
from mspc.commands.report.plan_summary import missing_rate_notes
from mspc.ir.graph import Builder, Graph, Parameter
from mspc.ir.types import BFLOAT16, DTYPES, FLOAT32, INT32, DType, TensorType
from mspc.ops.convolution.convolve import Conv2D, Conv2DBackpropInput
from mspc.ops.math.matmul import MatMul
from mspc.ops.nn.attention import FlashAttentionScore
from tests.commands.test_search import SCRIPT
from tests.commands.written_files import Run, ending, runner
from tests.pipelining.test_other_commands import SCRIPT as STAGED

pytestmark = pytest.mark.usefixtures("brief_searches")

HALVES = """
name = "early"
memory = 1e12
kernel = 1e-6
other_products = 8e14
[products]
BFloat16 = 8e14
[link]
latency = 1e-9
bandwidth = 1e9
"""
NOTE = ("note: the file of early has no rates of products of Float32: those of products of BFloat16 stand in, so that "
        "times may be far off; `mspc calibrate` measures them")  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    files = {"net.py": SCRIPT, "staged.py": STAGED.replace(", OTHERS", ""), "machine.toml": HALVES}
    return ending(runner(tmp_path, monkeypatch, files))


def notes(done: Any) -> list[str]:
    return [line for line in done.stdout.splitlines() if "has no rates of" in line]


def test_a_search_says_it_once(run: Run) -> None:
    words = ("search", "net.py", "--summary", "-q", "--ranks")
    done = run(*words, "2,4", "--machine", "machine.toml", "--json", "plans.json")
    assert notes(done) == [NOTE]
    assert done.stdout.index(NOTE) < done.stdout.index("search on 2 ranks: DP"), "before what it is about"
    plans = json.loads(Path("plans.json").read_text())["plans"]
    assert {json.dumps(plan["missing_rates"]) for plan in plans} == {'[{"kind": "products", "dtype": "Float32"}]'}
    Path("machine.toml").write_text(HALVES.replace("[products]", "[products]\nFloat32 = 5e13"))
    assert notes(run(*words, "2", "--machine", "machine.toml")) == notes(run(*words, "2", "--machine", "h100")) == []


def test_two_plans_and_one_operator(run: Run) -> None:
    run("search", "net.py", "--ranks", "2", "--out", "plan.toml", "-q")
    words = ("search", "net.py", "--ranks", "2", "--machine", "machine.toml")
    assert notes(run(*words, "--compare", "plan.toml", "plan.toml")) == [NOTE]
    assert notes(run(*words, "--explain", "MatMul-op0")) == [NOTE]


def test_stages_and_their_schedule(run: Run) -> None:
    words = "staged.py", "--ranks", "2", "--machine", "machine.toml"
    assert notes(run("search", *words, "--stages", "2", "-q")) == [NOTE]
    assert notes(run("compile", *words, "--schedule", "times.txt", "--out", "graphs")) == [NOTE]
    assert notes(run("diff", "graphs", "graphs", "--machine", "machine.toml")) == [NOTE]
    assert notes(run("diff", "graphs", "graphs")) == []


def test_the_page(run: Run) -> None:
    run("view", "net.py", "--ranks", "2", "--machine", "machine.toml", "-q", "--out", "page.html")
    assert NOTE.removeprefix("note: ") in Path("page.html").read_text()


def graph_of(*nodes: tuple[Any, DType, tuple[tuple[int, ...], ...]]) -> Graph:
    graph = Graph("one")
    b = Builder(graph)
    for op, dtype, shapes in nodes:
        graph.parameters += (own := [Parameter("p", TensorType(dtype, shape), "parameter", False) for shape in shapes])
        b.emit(op, *own)
    return graph


SQUARE = (8, 8), (8, 8)
CONVOLVED = {"out_channel": 8, "kernel_size": 1, "pad_mode": "same"}
KINDS = graph_of(
    (MatMul(), BFLOAT16, SQUARE), (MatMul(transpose_a=True), FLOAT32, ((4096, 8), (4096, 8))),
    (MatMul(), INT32, SQUARE), (Conv2D(**CONVOLVED), FLOAT32, ((2, 8, 4, 4), (8, 8, 1, 1))),
    (Conv2DBackpropInput(input_size=(2, 8, 4, 4), **CONVOLVED), FLOAT32, ((2, 8, 4, 4), (8, 8, 1, 1))),
    (FlashAttentionScore(2, input_layout="BSH", sparse_mode=2), FLOAT32, ((2, 16, 8),) * 3),
    (MatMul(), FLOAT32, SQUARE),
)  # fmt: skip
FAST, SLOW = Rate.of(8e14), Rate.of(1e13)
EARLY = replace(H200, name="early", work={"products": {"BFloat16": FAST}}, other_products=FAST)


def test_kinds_go_by_what_they_are_without_their_forms() -> None:
    missing = missing_rates([KINDS], EARLY)
    assert [(each.kind, each.dtype) for each in missing] == [
        ("products", "Float32"), ("products", "Int32"), ("convolutions", "Float32"), ("attention", "Float32"),
    ]  # fmt: skip
    notes = missing_rate_notes(missing, EARLY)
    assert NOTE == f"note: {notes[0]}"
    assert notes[1].endswith("times may be far off"), "no calibration times integers"


def test_rates_of_any_kind_that_one_is_like_are_its_own() -> None:
    work = {**EARLY.work, "causal_attention": {"Float32": SLOW}, "convolutions": {"Float32": SLOW}}
    missing = missing_rates([KINDS], replace(EARLY, work=work))
    assert [(each.kind, each.dtype) for each in missing] == [("products", "Float32"), ("products", "Int32")]
    complete = {"products": {"Float16": FAST, "Float32": SLOW, "Int32": SLOW}}
    assert missing_rates([KINDS], replace(EARLY, work=complete)) == ()


def test_machines_that_come_along_say_what_others_have() -> None:
    assert missing_rates([KINDS], H200) == ()
    for machine in KNOWN_MACHINES.values():
        assert all(machine.known_rate("attention", dtype) for dtype in DTYPES.values() if dtype.is_float)


def test_what_stands_in_may_be_a_number_of_its_own() -> None:
    [note] = missing_rate_notes([MissingRate("products", "Float64")], replace(EARLY, other_products=SLOW))
    assert "no rates of products of Float64: its other_products stand in, so that times may be far off;" in note
