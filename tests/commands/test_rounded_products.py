"""A script that lets GPUs round products of Float32 is estimated by other rates than one that does not, wherever times
are estimated; old files of machines have rates of one of the two."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.machine import H200, KNOWN_MACHINES, PRODUCTS, ROUNDS, Machine, Rate
from mspc.analysis.cost.timeline import MissingRate, StreamTimeline, missing_rates
from mspc.commands.facts.reading import folder_facts
from mspc.commands.report.plan_summary import missing_rate_notes
from mspc.commands.view.dump import read_dump
from mspc.commands.view.proof import page_facts
from mspc.runtime.program import load_program
from mspc.search.calibration.machine_file import read_machine
from mspc.search.plans.alternatives import terms_for
from tests.commands.test_search import FAST, KINDS, SCRIPT, SLOW
from tests.commands.written_files import Run, ending, runner
from tests.graphs import BFLOAT16, FLOAT32, MspcError
from tests.pipelining.test_other_commands import SCRIPT as STAGED

BLACKWELL = {KNOWN_MACHINES[name].name for name in ("b200", "b300", "gb200", "gb300")}
"""Machines whose tensor cores are faster than Hopper's, while their other cores are not."""
SETTING = 'ms.set_context(gpu_config={"matmul_allow_tf32": True})\n'
FILE = """
name = "slow products"
memory = 1e15
kernel = 1e-12
other_products = 1e9
[products]
Float32 = 1e9
TF32 = 4e9
[link]
latency = 1e-12
bandwidth = 1e15
"""
"""Products take nearly all of a step's time."""
OLD = FILE.replace("TF32 = 4e9\n", "").replace('name = "slow products"', 'name = "old"\nsource = "{}"')
SOURCE = "measured by mspc calibrate on 4 ranks, products of Float32 rounded to TF32; no time was left for attention"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    files = {"machine.toml": FILE}
    for name, script in (("net", SCRIPT), ("staged", STAGED.replace(", OTHERS", ""))):
        files[f"{name}.py"] = script
        files[f"{name}_rounded.py"] = script.replace("\nclass ", f"\n{SETTING}class ", 1)
    return ending(runner(tmp_path, monkeypatch, files))


def first_plan(run: Run, script: str, *words: str) -> dict[str, Any]:
    words = ("--ranks", "2", "--machine", "machine.toml", "--json", "plans.json", "--summary", "-q", *words)
    lines = run("search", script, *words).stdout.splitlines()
    [said] = [line for line in lines if " a rank, " in line][:1] or [""]
    return {**json.loads(Path("plans.json").read_text())["plans"][0], "said": said.rpartition("a rank, ")[2]}


def test_a_search_reckons_with_what_the_script_lets_gpus_do(run: Run) -> None:
    exact, rounded = first_plan(run, "net.py", "--out", "plan.toml"), first_plan(run, "net_rounded.py")
    assert exact["compute"] == pytest.approx(4 * rounded["compute"], rel=1e-3)
    assert exact["least"] == pytest.approx(4 * rounded["least"], rel=1e-3)
    assert exact["said"] == rounded["said"] != "", "the share of what its own products reach"
    pair = "--compare", "plan.toml", "plan.toml"
    exact, rounded = first_plan(run, "net.py", *pair), first_plan(run, "net_rounded.py", *pair)
    assert exact["step"] == pytest.approx(4 * rounded["step"], rel=1e-3)


def test_stages(run: Run) -> None:
    exact, rounded = (first_plan(run, f"{name}.py", "--stages", "2") for name in ("staged", "staged_rounded"))
    assert exact["step"] == pytest.approx(4 * rounded["step"], rel=1e-2)


def test_what_is_compiled_says_it(run: Run) -> None:
    """Programs, dumps and their readers have it from the header; an equal network without it has other bytes."""
    for name in ("net", "net_rounded"):
        run("compile", f"{name}.py", "--ranks", "2", "--out", name, "-q")
    programs = [load_program(Path(name)) for name in ("net", "net_rounded")]
    assert [program.graph(0, program.text(0)).attrs.get(ROUNDS) for program in programs] == [None, True]
    slow = read_machine(Path("machine.toml"))
    exact, rounded = (folder_facts(Path(name), slow).kinds[0] for name in ("net", "net_rounded"))
    assert exact.times is not None
    assert rounded.times is not None
    assert exact.times.compute == pytest.approx(4 * rounded.times.compute, rel=1e-3)
    cells = [sum(scope.seconds or 0.0 for scope in kind.scopes.values()) for kind in (exact, rounded)]
    assert cells[0] == pytest.approx(4 * cells[1], rel=1e-3)
    pages = [page_facts(read_dump(Path(name), slow))["graphs"][0]["schedule"] for name in ("net", "net_rounded")]
    assert pages[0]["compute"] == pytest.approx(4 * pages[1]["compute"], rel=1e-3)


def test_cpus_never_round() -> None:
    header = {ROUNDS: True}
    cpu = replace(H200, device="CPU")
    assert cpu.under(header) is cpu
    gpu = H200.under(header)
    assert (gpu.rounds, gpu.under(header), gpu.under({})) == (True, gpu, H200)
    assert [gpu.name_of(kind, FLOAT32) for kind in (PRODUCTS, "elementwise", "draws")] == ["TF32", "Float32", "Float32"]
    assert gpu.name_of(PRODUCTS, BFLOAT16) == "BFloat16"


@pytest.mark.parametrize("machine", KNOWN_MACHINES.values(), ids=KNOWN_MACHINES)
def test_machines_that_come_along_have_both(machine: Machine) -> None:
    rounded, least = machine.under({ROUNDS: True}), 3.5 if machine.name.startswith("AMD") else 6
    for kind in (PRODUCTS, "deep_products", "attention", "convolutions", "grouped_convolution_filters"):
        ratio = rounded.work_rate(kind, FLOAT32).at(1e12) / machine.work_rate(kind, FLOAT32).at(1e12)
        assert least <= ratio < (50 if machine.name in BLACKWELL else 10)
    assert missing_rates([KINDS], rounded) == ()
    assert terms_for(rounded).compute < terms_for(machine).compute / (least - 1)


def test_an_old_file_has_rates_of_one_of_the_two(tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text(OLD.format(SOURCE) + "[elementwise]\nFloat32 = 1e13\n[attention]\nFloat32 = 2e9\nBFloat16 = 3e9\n")
    old = read_machine(file)
    assert old.work == {
        PRODUCTS: {"TF32": Rate.of(1e9)}, "elementwise": {"Float32": Rate.of(1e13)},
        "attention": {"TF32": Rate.of(2e9), "BFloat16": Rate.of(3e9)},
    }  # fmt: skip
    assert old.known_rate("attention", FLOAT32) is None
    assert old.under({ROUNDS: True}).known_rate("causal_attention", FLOAT32) == Rate.of(2e9)
    file.write_text(OLD.format("measured in May"))
    assert read_machine(file).work == {PRODUCTS: {"Float32": Rate.of(1e9)}}
    file.write_text(FILE.replace("memory", f'source = "{SOURCE}"\nmemory', 1))
    assert set(read_machine(file).work[PRODUCTS]) == {"Float32", "TF32"}, "it has both, whatever it says"
    file.write_text(FILE + "[elementwise]\nTF32 = 1e13\n")
    with pytest.raises(MspcError, match="TF32"):
        read_machine(file)


def test_a_missing_one_is_told(run: Run) -> None:
    def notes(script: str, *words: str) -> list[str]:
        done = run("search", script, "--ranks", "2", "--machine", "old.toml", "-q", *words)
        return [line for line in done.stdout.splitlines() if "has no rates of" in line]

    Path("old.toml").write_text(OLD.format("measured in May"))
    assert notes("net_rounded.py", "--explain", "MatMul-op0") == [
        "note: the file of old has no rates of products of TF32: those of products of Float32 stand in, so that times "
        "may be far off; `mspc calibrate` measures them"
    ]
    Path("old.toml").write_text(OLD.format(SOURCE))
    assert notes("net_rounded.py") == []
    assert notes("net.py") == [
        "note: the file of old has no rates of products of Float32: those of products of TF32 stand in, so that times "
        "may be far off; `mspc calibrate` measures them"
    ]


def test_what_stands_in() -> None:
    """Rounded products take the rates of Float32 as it is, which are slower, even if convolutions alone lack rates."""
    early = replace(H200, work={PRODUCTS: {"BFloat16": FAST, "Float32": SLOW}}, other_products=FAST)
    rounded = early.under({ROUNDS: True})
    assert rounded.work_rate("convolutions", FLOAT32) == SLOW
    KINDS.attrs[ROUNDS] = True
    try:
        missing = missing_rates([KINDS], early)
        assert StreamTimeline(KINDS, early).total == StreamTimeline(KINDS, rounded).total
    finally:
        del KINDS.attrs[ROUNDS]
    assert missing[0] == MissingRate("products", "TF32")
    assert {each.dtype for each in missing} == {"TF32", "Int32"}
    assert "those of products of Float32 stand in" in missing_rate_notes(missing, early)[0]
    only = replace(early, work={PRODUCTS: {"TF32": FAST}}, other_products=SLOW)
    assert (only.work_rate(PRODUCTS, FLOAT32), only.under({ROUNDS: True}).work_rate(PRODUCTS, FLOAT32)) == (SLOW, FAST)
