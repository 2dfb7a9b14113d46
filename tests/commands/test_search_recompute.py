"""`mspc search --memory`: cells computed again, parameters sharded further, and both in plan files."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.view.dump import read_dump
from mspc.passes.base import VERIFY
from mspc.plans.files.plan_file import read_plan, write_plan
from tests.search.blocks_network import blocks
from tests.serving import invoke
from tests.shares import is_taken

SCRIPT = blocks(512)
LIMIT = 535_000
"""Bytes, of 898 kB without a limit."""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a search within a limit to which both what is computed again and what is sharded further belong."""
    folder = tmp_path_factory.mktemp("limited")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv(VERIFY, raising=False)
        Path("net.py").write_text(SCRIPT)
        done = invoke(
            "search", "net.py", "--ranks", "4", "--json", "plans.json", "--top", "1", "-q", "--memory", str(LIMIT),
            "--out", "plan.toml",
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        Path("notes.txt").write_text(done.stdout)
    return folder


@pytest.fixture
def folder(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VERIFY, raising=False)
    Path("net.py").write_text(SCRIPT)
    return own_folder


def searched(limited: Path) -> dict[str, Any]:
    """The plan that was found, whose file is put into the current folder."""
    shutil.copy(limited / "plan.toml", "plan.toml")
    (plan,) = json.loads((limited / "plans.json").read_text())["plans"]
    return plan | {"notes": (limited / "notes.txt").read_text()}


def compiled_memory() -> int:
    options = ("--strategies", "plan.toml", "--out", "out", "--json", "c.json", "-q")
    invoke("compile", "net.py", "--ranks", "4", *options, status=0)
    memory = json.loads(Path("c.json").read_text())["memory"]
    return sum(memory[part] for part in ("weights", "states", "inputs", "constants", "step"))


@pytest.mark.thorough
def test_cells_are_computed_again_where_only_that_fits(folder: Path, limited: Path) -> None:
    plan = searched(limited)
    assert plan["name"] == "search"
    assert plan["memory"] <= LIMIT
    assert 0 <= plan["search_gap"] < 1
    assert plan["foreseen"] == pytest.approx(plan["memory"], rel=0.1)
    found = read_plan(Path("plan.toml"))
    assert list(found.recompute) == plan["recompute"] != []
    assert all("blocks-CellList" in cell for cell in found.recompute)
    assert compiled_memory() == pytest.approx(plan["memory"], rel=1e-3)

    text = Path("plan.toml").read_text()
    Path("plan.toml").write_text("\n".join(line for line in text.splitlines() if "/" not in line or " = " in line))
    assert read_plan(Path("plan.toml")).recompute == ()
    assert compiled_memory() > LIMIT, "it is what is computed again that makes it fit"
    assert f"note: search on 4 ranks computes {len(found.recompute)} cells again: {found.recompute[0]}" in plan["notes"]


@pytest.mark.skipif(not is_taken(1), reason="a search of half a minute; --thorough runs it")
def test_a_limit_below_what_the_search_foresees_is_kept(folder: Path) -> None:
    done = invoke("search", "net.py", "--ranks", "4", "--json", "plans.json", "--top", "1", "-q", "--memory", "510kB",
               "--out", "plan.toml")  # fmt: skip
    assert done.exit_code == 0, done.output
    (plan,) = json.loads(Path("plans.json").read_text())["plans"]
    assert compiled_memory() == pytest.approx(plan["memory"], rel=1e-3)
    assert plan["memory"] <= 510_000
    assert len(read_plan(Path("plan.toml")).parameters) == plan["cut_further"] > 0


def test_parameters_are_sharded_further_and_said_so(folder: Path, limited: Path) -> None:
    plan = searched(limited)
    found = read_plan(Path("plan.toml"))
    assert len(found.parameters) == plan["cut_further"] > 0
    assert len(found.gather_again) == plan["gathered_again"]
    assert set(found.gather_again) <= set(found.parameters)
    assert compiled_memory() == pytest.approx(plan["memory"], rel=1e-3)
    assert plan["memory"] <= LIMIT
    totals = json.loads(Path("c.json").read_text())["totals"]
    assert (totals["bytes_sent"], totals["collectives"]) == (plan["nbytes"], plan["collectives"])
    shown = read_dump(Path("out"))
    assert shown.notes == []
    assert shown.global_graph is not None, "layouts of a compile without dumps are made by the same plan once more"
    stored = {parameter.name: str(parameter.layout) for parameter in shown.global_graph.parameters}
    assert {name: stored[name] for name in found.parameters} == {n: str(c) for n, c in found.parameters.items()}
    assert invoke("diff", "plan.toml", "out").exit_code == 0
    write_plan(Path("edited.toml"), replace(found, parameters={}, gather_again=()))
    beside = json.loads(invoke("diff", "edited.toml", "out", "--json", "-").stdout)
    assert {(d["name"], d["first"]) for d in beside["memory"]} == {(n, None) for n in found.parameters}
    assert len(beside["memory"]) == len(found.parameters) + len(found.gather_again)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('recompute = "x"', "plan.toml: recompute is 'x', not a list of names"),
        ("gather_again = [1]", "plan.toml: gather_again is [1], not a list of names"),
        ("parameters = 3", "plan.toml: parameters is 3, not a table [parameters]"),
        ('[parameters]\n"blocks.0.up.weight" = 3',
         "'blocks.0.up.weight' has the entry 3, not a layout as '(2, 4) [0, -]'"),
        ('recompute = ["Default/network-Net/block"]',
         "the plan plan.toml computes Default/network-Net/block again, which the network does not have"),
        ('[parameters]\n"up.weight" = "(4) [0, -]"',
         "the plan plan.toml stores up.weight, which are no parameters of the network"),
        ('gather_again = ["weight"]',
         "the plan plan.toml stores weight, which are no parameters of the network"),
        ("offload = 1", "plan.toml: offload is 1, not a list of names"),
        ("offload_states = 1", "plan.toml: offload_states is 1, not true or false"),
        ('offload = ["Default/network-Net/block"]',
         "the plan plan.toml keeps values of Default/network-Net/block on the host, which the network does not have"),
        ('[parameters]\n"blocks.0.up.weight" = "(4) [0]"',
         "the plan plan.toml stores blocks.0.up.weight as (4) [0], and its shape is (128, 32)"),
    ],
)
def test_mistakes_in_plans(folder: Path, text: str, said: str) -> None:

    Path("plan.toml").write_text(f"ranks = 4\n{text}\n[operators]\n")
    done = invoke("compile", "net.py", "--ranks", "4", "--strategies", "plan.toml", "--out", "out", status=2)
    assert said in done.stderr


def test_what_would_save_memory_is_explained(folder: Path) -> None:
    done = invoke("search", "net.py", "--ranks", "4", "--memory", "1MB", "--explain", "0-Block/up-Dense/MatMul-op0")
    assert done.exit_code == 0, done.output
    notes = " ".join(line.removeprefix("note: ") for line in done.stdout.splitlines() if "would save" in line)
    cell = "Default/network-Net/blocks-CellList/0-Block"
    assert re.search(rf"computing {cell} again would save \d+ bytes and take \d+\.\d us more", notes)
    assert re.search(r"storing blocks.0.up.weight as \(2, 2\) .* would save \d+ bytes", notes)
