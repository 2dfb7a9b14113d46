"""A share of the changes that `python -m tests.verify.scale.planted_changes` plants, and plans without a change."""

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from mspc.commands.options import ImportOptions
from mspc.commands.verify import of_script, verify_scale
from mspc.commands.verify_folder import of_folder
from mspc.verify.scale import proof
from mspc.verify.scale.execution import run_step
from tests.compiled_scripts import NETWORKS, QUIET, CompileOptions, compile_target
from tests.errors import failure_of
from tests.exported_programs import two_layers
from tests.graphs import ExecutionError, Node, element_types
from tests.operators import AllReduce, TupleGetItem
from tests.shares import share_of
from tests.verify import planted_in_scripts
from tests.verify.planted_in_scripts import Script
from tests.verify.scale.changes_of_nodes import Change, with_op
from tests.verify.scale.changes_of_programs import made, rank_of
from tests.verify.scale.networks_that_are_right import EQUAL, drawn, main, outcome_of
from tests.verify.scale.planted_changes import PLANS, Plan, judged, planted

SEEDS = range(share_of(7, 4))
"""Seeds of the changes in every plan."""


@pytest.mark.share(3)
@pytest.mark.parametrize("name", PLANS)
def test_changes_are_found_at_their_place(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = Plan(name, tmp_path_factory.mktemp(name) / "out")
    assert plan.proof(plan.graphs()).same
    assert len(plan.compared) > 50
    found = [planted(plan, random.Random(seed)) for seed in SEEDS]
    assert {each.verdict for each in found} <= {"found", "harmless"}
    told = [each.right for each in found if each.verdict == "found"]
    assert len(told) > len(SEEDS) / 2
    assert sum(told) >= len(told) - 1


@pytest.mark.parametrize("name", ["folded", "loops"][: share_of(2)])
def test_changes_of_scripts_are_reported_at_their_place(name: str, tmp_path: Path) -> None:
    """`mspc verify` of a script, whose ranks are changed before or after operators are fused."""
    script = Script(name, tmp_path)
    seeds = range(100, 100 + share_of(12, 6))
    found = [planted_in_scripts.planted(script, random.Random(seed)).verdict for seed in seeds]
    there = [verdict in ("there", "refused there") for verdict in found if verdict != "equal"]
    assert len(there) > len(seeds) / 2
    assert sum(there) >= len(there) - (name == "loops") * len(there) // 4


@pytest.mark.parametrize(("name", "seeds"), [("loops", (9109, 9133, 9147)), ("recomputed", (9106, 9120))])
def test_changes_of_conditions_and_of_collectives_that_passes_put_in(
    name: str, seeds: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch or a number of iterations is another one; sums, of which one device has none, are of other operands."""
    script, steps = Script(name, tmp_path), list[int]()
    assert script.compared
    monkeypatch.setattr(proof, "run_step", lambda *given: steps.append(given[2]) or run_step(*given))
    assert {planted_in_scripts.planted(script, random.Random(seed)).verdict for seed in seeds} == {"there"}
    assert steps == [1] * len(seeds)  # one run of one step each, in which all values are looked at


def test_ranks_that_take_other_entries_of_a_tuple_are_not_of_one_kind(tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = Plan("llama", tmp_path_factory.mktemp("tuples") / "out")
    graphs = plan.graphs()
    own = rank_of(3, graphs[3])
    node, other = next(_with_an_equal_entry(own.graphs[0].nodes))
    change = Change("setting", node.label, lambda rank: with_op(node, TupleGetItem(other)))
    found = judged(plan, change, (3,), graphs, made(change, [own]))
    assert found.verdict == "found"


def _with_an_equal_entry(nodes: Sequence[Node]) -> Iterator[tuple[Node, int]]:
    """Sums of gradients that are taken out of a tuple, each with another entry of its type."""
    for node in nodes:
        if isinstance(node.op, TupleGetItem) and node.phase == "update" and isinstance(node.inputs[0].op, AllReduce):  # type: ignore[attr-defined]  # a node
            for index, type in enumerate(element_types(node.inputs[0].type)):
                if type == node.type and index != node.op.index:
                    yield node, index


# `mspc verify --scale` of whole plans, and of dumps with one change each.


WORDS = ("1", "32", "4", "48", "64", "2", "2", "2", "16")
SmallChange = Callable[[str], str]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a compiled folder, by their places in it."""
    out = tmp_path_factory.mktemp("compiled") / "out"
    options = CompileOptions(ranks=4, out=out, loudness=QUIET, script_arguments=WORDS, weights=True)
    compile_target(str(NETWORKS / "llama.py"), options)
    return {str(path.relative_to(out)): path.read_bytes().decode("latin1") for path in out.rglob("*") if path.is_file()}


def edited(files: dict[str, str], folder: Path, change: SmallChange, ranks: range) -> Path:
    changed = 0
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if "_execute_" in name and int(name.split("/")[0].removeprefix("rank_")) in ranks:
            before, text = text, change(text)
            changed += text != before
        path.write_bytes(text.encode("latin1"))
    assert changed == len(ranks)
    return folder


def line(pattern: str, old: str, new: str, number: int = 0) -> SmallChange:
    """Change the line of that number which matches."""

    def change(text: str) -> str:
        lines = text.split("\n")
        at = [i for i, each in enumerate(lines) if re.search(pattern, each)][number]
        lines[at] = re.sub(old, new, lines[at])
        return "\n".join(lines)

    return change


ALL = range(4)
PLANTED = {
    "a slice from elsewhere": (line("= StridedSlice", r"begin: \(16\), end: \(32\)", "begin: (0), end: (16)"),
                               range(2, 3), "Gather 'embed'"),
    "another axis": (line("= Softmax", "axis: -1", "axis: -2"), ALL, "Softmax 'softmax'"),
    "another operand": (line("= MatMul.*attention.wk", "para6_layers.0.attention.wk", "para5_layers.0.attention.wq"),
                        ALL, "MatMul 'key'"),
    "a sum left out": (lambda text: re.sub(r"= Add\(%1, %20\)", "= Add(%1, %19)", text), ALL, "Add 'add'"),
}  # fmt: skip


def test_what_is_compiled_is_right(compiled: dict[str, str], tmp_path: Path) -> None:
    folder = edited(compiled, tmp_path / "same", str, range(0))
    verify_scale(str(folder), CompileOptions(json=tmp_path / "found.json", loudness=QUIET), 0)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["equal"]
    assert (found["ranks"], found["kinds"], found["first"]) == (4, 1, None)
    assert max(row["difference"] for row in found["values"]) < 1e-12


@pytest.mark.parametrize("what", PLANTED)
def test_a_change_is_found_where_it_is(what: str, compiled: dict[str, str], tmp_path: Path) -> None:
    change, ranks, first = PLANTED[what]
    folder = edited(compiled, tmp_path / "edited", change, ranks)
    with pytest.raises(ExecutionError, match="values of 4 ranks of 1 kind differ from one device") as caught:
        verify_scale(str(folder), CompileOptions(loudness=QUIET), 0)
    notes = "\n".join(caught.value.notes)
    assert f"first wrong value is that of {first} " in notes
    assert ("input 1 is a part of a sum over 2 ranks" in notes) == (what == "a sum left out")


def test_what_hardly_moves_an_update_is_found(compiled: dict[str, str], tmp_path: Path) -> None:
    change = line("= Adam", "value=1e-08", "value=1.5e-08")
    folder = edited(compiled, tmp_path / "edited", change, ALL)
    with pytest.raises(ExecutionError, match=r"2 of \d+ values of 4 ranks of 1 kind differ") as caught:
        verify_scale(str(folder), CompileOptions(loudness=QUIET), 0)
    assert "that of Adam 'opt' in optimizer-Adam on rank" in caught.value.notes[0]


def over_other_ranks(groups: dict[int, str], others: dict[int, str]) -> SmallChange:
    """Let the first sum over some ranks be over others."""

    def change(text: str) -> str:
        rank = int(re.findall(r"^rank : (\d+)", text, re.M)[0])
        pattern = rf"(= AllReduce\(.*rank_list: )\({groups[rank]}\)"
        return re.sub(pattern, rf"\1({others[rank]})", text, count=1)

    return change


DATA = {0: "0, 2", 1: "1, 3", 2: "0, 2", 3: "1, 3"}
TENSOR = {0: "0, 1", 1: "0, 1", 2: "2, 3", 3: "2, 3"}


@pytest.mark.parametrize(
    ("groups", "others", "told"),
    [
        (TENSOR, DATA, "it adds up over ranks 0, 2, and MatMul 'out' is a part of a sum over ranks 0, 1"),
        (DATA, TENSOR, "it adds up over ranks 0, 1, and MatMul is a part of a sum over ranks 0, 2"),
    ],
)
def test_sums_over_other_ranks(
    groups: dict[int, str], others: dict[int, str], told: str, compiled: dict[str, str], tmp_path: Path
) -> None:
    folder = edited(compiled, tmp_path / "edited", over_other_ranks(groups, others), ALL)
    error = failure_of(verify_scale, str(folder), CompileOptions(loudness=QUIET), 0)
    assert told in error.notes
    assert any(re.fullmatch(r"it is in rank_0/\w+\.ir:\d+, %\d+", note) for note in error.notes)


SUM = "AllReduce{op: sum} among ranks"
NEVER_MEET = {
    ("rank_list: (0, 1, 2, 3)", 0): f"rank 0 calls {SUM} 0, 1, 2, 3, and rank 1 {SUM} 0, 1, so that they never meet",
    ("rank_list: (0, 2)", 0): f"rank 0 calls {SUM} 0, 2, and rank 2 {SUM} 2, 3, so that they never meet",
    ("rank_list: (0, 2)", 1): "AllReduce: rank 1 is not in group",
}


@pytest.mark.parametrize(("group", "rank"), NEVER_MEET)
def test_ranks_that_never_meet_are_told(group: str, rank: int, compiled: dict[str, str], tmp_path: Path) -> None:
    folder = edited(
        compiled, tmp_path / "edited", line("= AllReduce", r"rank_list: \(0, 1\)", group), range(rank, rank + 1)
    )
    assert NEVER_MEET[group, rank] in failure_of(verify_scale, str(folder), CompileOptions(loudness=QUIET), 0).message


def test_messages_without_their_partner_are_told(tmp_path: Path) -> None:
    words = ("2", "8", "2", "2", "8", "8", "1", "2", "2", "2", "4", "1f1b")
    options = CompileOptions(ranks=4, out=tmp_path / "out", loudness=QUIET, weights=True, script_arguments=words)
    compile_target(str(NETWORKS / "staged_llama.py"), options)
    (path,) = (tmp_path / "out" / "rank_0").glob("*_execute_*.ir")
    text = path.read_text()
    path.write_text(line("= SendToStage", r"sr_tag: \d+", "sr_tag: 99")(text))
    with pytest.raises(ExecutionError, match=r"ranks wait for each other: .*ReceiveFromStage"):
        verify_scale(str(tmp_path / "out"), CompileOptions(loudness=QUIET), 0)


def test_sizes_that_no_machine_has_become_small(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("1", "16384", "128", "8", "53248", "128256", "4", "8", "1", "1", "8192")
    options = CompileOptions(ranks=32, script_arguments=(*words, "1f1b"))
    verify_scale(str(NETWORKS / "staged_llama.py"), options, 0)
    said = capsys.readouterr().out
    assert "values of 32 ranks of 1 kind" in said
    table = re.search(r"table and \d+ more +\(128256, 16384\) +\((\d+), (\d+)\)", said)
    assert table is not None
    assert int(table[1]) * int(table[2]) < 4096


def test_ranks_with_one_row_of_the_batch_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    """Their batch stays as large as on one device, where it could be made smaller."""
    words = ("1", "512", "32", "1408", "2048", "8", "2", "8", "128")
    verify_scale(str(NETWORKS / "llama.py"), CompileOptions(ranks=16, loudness=QUIET, script_arguments=words), 0)
    assert "equal: 82 values of 16 ranks of 1 kind" in capsys.readouterr().out


SHARE = {
    "stages": (1, 2, 3),
    "halves": (3, 4, 6),
    "rows": (1, 10),
    "public": (0, 8),
    "control": (0, 2),
    "experts": (1, 3, 4, 21),
    "context": (0, 2, 45, 189, 202, 410, 30086),
    "networks": (*range(share_of(12)), 25, 66, 74, 94, 155, 171, 323, 1005),
}
"""Those too that were not: exchanges among several kinds, rows that travel by places, running sums, results of rows,
exchanges of other rounds, constants of ranks, places of keys, a third, indices beyond small tables, other groups."""


@pytest.mark.share(2)
@pytest.mark.parametrize(("source", "seed"), [(source, seed) for source, seeds in SHARE.items() for seed in seeds])
def test_what_is_right_is_equal(source: str, seed: int) -> None:
    found = outcome_of(drawn(source, seed))
    assert (found.kind, found.message) == (EQUAL, "")
    assert found.values > 0


def test_the_command_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0", "1", "--source", "networks"]) == 0
    assert "networks: 1 equal" in capsys.readouterr().out
SAMPLE = Path(__file__).resolve().parents[3] / "samples" / "pytorch" / "language_model.pt2"


@pytest.mark.parametrize("sample", [False, True])
def test_an_exported_network_and_its_folder(sample: bool, tmp_path: Path) -> None:
    path = SAMPLE
    if not sample:
        path = tmp_path / "two.pt2"
        two_layers(8).save(path)
    imported = ImportOptions(optimizer="adamw:lr=1e-3", loss="" if sample else "mse")
    options = CompileOptions(ranks=4, imported=imported, loudness=QUIET, out=tmp_path / "out", weights=True)
    found = of_script(str(path), options).proved(0)
    assert found.same
    assert not found.whole
    compile_target(str(path), options)
    of_compiled = of_folder(tmp_path / "out", CompileOptions(loudness=QUIET)).proved(0)
    assert of_compiled.same
    assert not of_compiled.whole
