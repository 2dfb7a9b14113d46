"""`mspc search` asked about meshes, one operator, two plans, and told when to end."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.machine import KNOWN_MACHINES
from mspc.passes.base import VERIFY
from mspc.search.solver import elimination
from tests.commands.test_search import MACHINE, SCRIPT
from tests.serving import invoke

pytestmark = pytest.mark.usefixtures("brief_searches")

Run = Callable[..., Any]
FIRST = "network-Net/MatMul-op0"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VERIFY, raising=False)
    Path("net.py").write_text(SCRIPT)
    Path("machine.toml").write_text(MACHINE)

    def mspc(*arguments: str) -> Any:
        return invoke("search", "net.py", "--machine", "machine.toml", *arguments)

    return mspc


def plans(run: Run, *arguments: str) -> list[dict[str, Any]]:
    done = run(*arguments, "--json", "plans.json", "-q")
    assert done.exit_code == 0, done.output
    return json.loads(Path("plans.json").read_text())["plans"]


def test_meshes_side_by_side(run: Run) -> None:
    done = run("--mesh", "8,2x4", "--ranks", "4", "-q", "--top", "9")
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stdout.splitlines()[2:] if not line.startswith("note: ")]
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines]
    assert [row[0] for row in rows if row[1] == "search"] == ["4", "8", "2x4"]
    assert [row[0] for row in rows if row[1] == "data parallel"] == ["4", "8"], "a mesh is the search's own"


def test_a_mesh_takes_what_is_quicker_there(run: Run) -> None:
    (plan, *_) = plans(run, "--mesh", "2x2x2")
    assert (plan["name"], plan["mesh"]) == ("search", "2x2x2")
    assert plan["taken_from"] == "replication on all ranks", "links are slow"


def test_a_mesh_of_one_axis_holds_what_is_sharded_one_way(run: Run) -> None:
    assert run("--mesh", "8", "--out", "one.toml", "-q").exit_code == 0
    assert "(2, 4)" not in Path("one.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--mesh", "2*4"), "--mesh is '2*4', not meshes of at most 4 axes as in 8x4 or 8x8,16x4"),
        (("--mesh", "2x0"), "--mesh is '2x0', not meshes of at most 4 axes"),
        (("--mesh", "2x2x2x2x2"), "not meshes of at most 4 axes"),
        (("--mesh", "8,2x4", "--out", "x.toml"), "--out is for one case"),
        (("--ranks", "4,8", "--explain", "MatMul-op0"), "--explain is for one case"),
        (("--ranks", "8", "--explain", "MatMul-op0", "--out", "x.toml"), "--out has no meaning beside --explain"),
        (("--ranks", "8", "--explain", "MatMul-op7"), "the network has no operator 'MatMul-op7'"),
        (("--ranks", "8", "--compare", "a.toml", "b.toml"), "there is no plan 'a.toml'"),
        (("--ranks", "8", "--machine", "h300"), "there is no machine 'h300', nor a file of that name"),
    ],
)
def test_what_cannot_be_asked(run: Run, arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_near_names_are_offered(run: Run) -> None:
    done = run("--ranks", "8", "--explain", "MatMul-op7")
    assert "MatMul-op0" in done.stderr
    assert "h100" in run("--ranks", "8", "--machine", "h101").stderr


def test_an_operator_is_explained(run: Run) -> None:
    done = run("--ranks", "8", "--explain", FIRST, "--top", "2", "--json", "why.json")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "MatMul 'matmul', Default/network-Net/MatMul-op0"
    assert "self.product(self.relu(self.matmul(x, self.first)), self.second)" in lines[1]
    assert lines[2] == "decided by search (*), for GPU programs on slow links"
    assert re.fullmatch(r"\*       the least  \(8\) \[-, -\]; \(8\) \[-, 0\]", lines[4])
    assert len([line for line in lines if " more  (" in line]) == 2
    found = json.loads(Path("why.json").read_text())
    costs = [way["seconds"] for way in found["alternatives"]]
    assert costs == sorted(costs)
    assert costs[0] == 0
    dearer = found["alternatives"][-1]
    assert dearer["where"]
    assert abs(dearer["seconds"] - sum(spent["seconds"] for spent in dearer["where"])) < 0.5 * dearer["seconds"]


def test_each_way_costs_what_a_search_held_to_it_finds(run: Run) -> None:
    """The other way to the same figure: the operator's layouts are given, and all others are looked for anew."""
    Path("machine.toml").write_text(re.sub("(kernel|latency) = .*", r"\1 = 1e-15", MACHINE))
    assert run("--ranks", "4", "--explain", FIRST, "--top", "1", "--json", "why.json").exit_code == 0
    ways = json.loads(Path("why.json").read_text())["alternatives"]
    costs = []
    for way in ways[:4]:
        cuts = re.findall(r"\((.*?)\) \[(.*?)\]", " ".join(way["layouts"]))
        strategy = []
        for mesh, dims in cuts:
            sizes = [int(n) for n in mesh.split(", ")]
            strategy.append(tuple(eval_shards(entry, sizes) for entry in dims.split(", ")))
        Path("net.py").write_text(SCRIPT.replace("= ops.MatMul(),", f"= ops.MatMul().shard({tuple(strategy)}),", 1))
        (found,) = [plan for plan in plans(run, "--ranks", "4") if plan["name"] == "search"]
        costs.append(found["nbytes"])
    order = sorted(range(len(costs)), key=lambda i: ways[i]["seconds"])
    assert [costs[i] for i in order] == sorted(costs)


def eval_shards(entry: str, mesh: list[int]) -> int:
    product = 1
    for axis in entry.split("."):
        product *= 1 if axis == "-" else mesh[int(axis)]
    return product


def test_a_configured_operator_says_who_decided(run: Run) -> None:
    Path("net.py").write_text(SCRIPT.replace("= ops.MatMul(),", "= ops.MatMul().shard(((8, 1), (1, 1))),", 1))
    done = run("--ranks", "8", "--explain", FIRST, "--top", "1")
    assert done.exit_code == 0, done.output
    assert "decided by shard() (*), for GPU programs on slow links" in done.stdout
    assert re.search(r"^\*\s+[\d.]+ [um]s more  \(8\) \[0, -\]; \(8\) \[-, -\]$", done.stdout, re.MULTILINE)
    assert "note: shard() speaks against the ways that cost less" in done.stdout


def test_two_plans_are_compared(run: Run) -> None:
    assert run("--mesh", "2x2x2", "--out", "a.toml", "-q").exit_code == 0
    text = Path("a.toml").read_text()
    edited = re.sub(r'(MatMul-op0" = )\["\(.*', r'\1["(8) [0, -]", "(8) [-, -]"]', text)
    Path("b.toml").write_text(f'recompute = ["Default/network-Net"]\n{edited}')
    done = run("--ranks", "8", "--compare", "a.toml", "b.toml", "--json", "both.json")
    assert done.exit_code == 0, done.output
    assert "operators that differ: 1 of " in done.stdout
    found = json.loads(Path("both.json").read_text())
    assert found["operators"] == {
        "Default/network-Net/MatMul-op0": [["(8) [-, -]", "(8) [-, -]"], ["(8) [0, -]", "(8) [-, -]"]]
    }
    assert "cells and parameters that plans treat in different ways: 1" in done.stdout
    assert [(d["name"], d["first"], d["second"]) for d in found["memory"]] == [("Default/network-Net", None, "yes")]
    assert found["plans"][0]["nbytes"] < found["plans"][1]["nbytes"]
    alike = run("--ranks", "8", "--compare", "a.toml", "a.toml")
    assert "the plans shard every operator alike" in alike.stdout
    assert re.search(r"second - first +\+0\.0 us .*\+0 +\+0 ", alike.stdout)


def test_a_folder_takes_every_plan(run: Run) -> None:
    found = plans(run, "--mesh", "8,2x4", "--out", "plans", "--top", "9")
    assert sorted(p.name for p in Path("plans").iterdir()) == sorted({plan["file"] for plan in found})
    assert {"8-search-8.toml", "8-search-2x4.toml", "8-data-parallel.toml"} <= {plan["file"] for plan in found}
    two = ("plans/8-search-2x4.toml", "plans/8-data-parallel.toml")
    both = run("--ranks", "8", "--compare", *two, "--json", "both.json")
    assert both.exit_code == 0, both.output
    sent = [plan["nbytes"] for plan in json.loads(Path("both.json").read_text())["plans"]]
    assert sent == [next(p["nbytes"] for p in found if p["file"] == f"8-{name}.toml") for name in
                    ("search-2x4", "data-parallel")]  # fmt: skip
    Path("taken").write_text("")
    assert "--out taken is no folder" in run("--ranks", "8", "--out", "taken").stderr


def test_pairs_of_products_are_a_way_of_their_own(run: Run) -> None:
    (found,) = [plan for plan in plans(run, "--ranks", "8", "--top", "9") if plan["name"].startswith("Megatron-style")]
    assert found["name"] == "Megatron-style, 1 x 8"
    scattered, gathered = 7 / 8 * 16 * 64 * 4, 7 / 8 * 16 * 64 * 4
    assert found["nbytes"] == scattered + gathered + 2 * 7 / 8 * 4, "one sum behind the pair, and that of the mean"
    pair = "self.product(self.relu(self.matmul(x, self.first)), self.second)"
    single = SCRIPT.replace(pair, "self.matmul(x, self.first)")
    Path("net.py").write_text(single)
    done = run("--ranks", "8")
    assert "note: Megatron-style: no product of a weight follows on another" in done.stdout


def test_a_search_whose_time_is_over_has_a_plan_and_its_gap(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**9, 60))
    monkeypatch.setattr(elimination.time, "monotonic", lambda: float(next(clock)))
    (found,) = [plan for plan in plans(run, "--ranks", "8", "--time-limit", "1") if plan["name"] == "search"]
    assert 0 <= found["gap"] <= 1


def test_hosts_keep_traffic_within(run: Run) -> None:
    """Where links between hosts are slow, what crosses them is less than in the plan for one host."""
    hosts = MACHINE.replace("[products]", "ranks_per_host = 4\n[products]")
    slow = hosts + "[network]\nlatency = 1e-9\nbandwidth = 1e7\n"
    steps = []
    for text in (MACHINE, slow):
        Path("machine.toml").write_text(text)
        assert run("--ranks", "8", "--free", "--out", "plan.toml", "-q").exit_code == 0
        Path("machine.toml").write_text(slow)
        assert run("--ranks", "8", "--compare", "plan.toml", "plan.toml", "--json", "both.json").exit_code == 0
        steps.append(json.loads(Path("both.json").read_text())["plans"][0]["step"])
    assert steps[1] <= steps[0]


@pytest.mark.parametrize("name", sorted(KNOWN_MACHINES))
def test_machines_that_come_along_say_where_their_rates_are_from(name: str) -> None:
    machine = KNOWN_MACHINES[name]
    assert machine.source
    assert machine.network is not None
    assert machine.ranks_per_host
