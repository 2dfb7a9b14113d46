"""Files of a compile that were changed, one change each: `mspc opt` and `mspc run DIR` do what they say or refuse them
with a message; never a traceback."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.opt import optimize
from mspc.compiler.pipeline import rank_passes, shared_passes
from tests.commands.test_run_script import NETWORK
from tests.compiled_scripts import CompileOptions, compile_target, run_directory
from tests.conftest import ROOT
from tests.errors import error_of
from tests.graphs import Graph, MspcError
from tests.serving import succeed
from tests.shares import share_of

CASES = share_of(200, 2)
"""How many changes the suite tries; `python -m tests.fuzz` tries more."""
PASSES = [
    f"{name}{{rank=1}}" if name == "slice_to_rank" else name
    for name in (*shared_passes("semi_auto_parallel"), *rank_passes())
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training step for 2 ranks, all dumps."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "train.py").write_text(f"{NETWORK}\nstep(*rows(0))\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        compile_target("train.py", CompileOptions(ranks=2, level=2, out=Path("out"), json=Path("table.json")))
    return folder / "out"


def runs(folder: Path) -> None:
    run_directory(
        folder, synthetic=True, steps=1, simulate=True, save=folder / "saved", save_outputs=folder / "outputs"
    )


def test_changed_files_are_taken_or_refused() -> None:
    """A short run of tests/fuzz.py, in a process of its own whose memory is limited."""
    done = succeed(sys.executable, "-m", "tests.fuzz", "--cases", str(CASES), "--commands", "1", cwd=ROOT)
    counts = re.fullmatch(r"\d+ cases and 1 commands, (\d+) well, (\d+) refused, 0 finds, .*\n", done.stdout)
    assert counts is not None, done.stdout
    assert sum(map(int, counts.groups())) == CASES
    assert min(map(int, counts.groups())) > CASES // 20


def test_a_pass_at_another_place_runs_or_says_why_not(compiled: Path) -> None:
    for file in sorted((compiled / "rank_1").glob("*.ir")):
        for name in PASSES:
            try:
                optimize(file, name)
            except MspcError as error:
                if error.__cause__ is not None:  # the pass did not see itself that it cannot take the graph
                    raise


def test_what_passes_leave_broken_is_refused(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = (compiled / "rank_0").glob("01_grad*.ir")

    def lose_nodes(manager: Any, graph: Graph, passes: Any) -> Graph:
        graph.nodes.clear()
        return graph

    monkeypatch.setattr("mspc.commands.opt.PassManager.run", lose_nodes)
    with pytest.raises(MspcError, match="a graph that cannot be printed"):
        optimize(source, "simplify")


@pytest.mark.parametrize(
    ("stage", "old", "new", "passes", "message"),
    [
        ("04_check", " = MatMul(%para1_inputs0, ", " = nn(%para1_inputs0, ", "propagate_sharding", "no operator is"),
        ("01_grad", "primitive_attrs: {shape: (1, 1)}", "primitive_attrs: {shape: (2, 1)}", "simplify", "Reshape"),
    ],
)
def test_a_changed_graph_is_refused_by_a_pass(
    compiled: Path, tmp_path: Path, stage: str, old: str, new: str, passes: str, message: str
) -> None:
    (source,) = (compiled / "rank_0").glob(f"{stage}*.ir")
    text = source.read_text()
    assert old in text
    for at in range(text.count(old)):
        before, _, behind = _parted(text, old, at)
        (tmp_path / "graph.ir").write_text(before + new + behind)
        try:
            optimize(tmp_path / "graph.ir", passes)
        except MspcError as error:
            if message in error.message:
                return
    pytest.fail("nothing was refused")


def _parted(text: str, old: str, at: int) -> tuple[str, str, str]:
    """The text before, at and behind the occurrence number `at` of `old`."""
    place = -1
    for _ in range(at + 1):
        place = text.index(old, place + 1)
    return text[:place], old, text[place + len(old) :]


@pytest.mark.parametrize("kind", ["inputs0", "net.w"])
@pytest.mark.parametrize("type", ["<Tuple[Tensor[Float32]], TupleShape((4, 8))>", "<Bool>"])
def test_a_parameter_that_is_no_tensor_any_more(compiled: Path, tmp_path: Path, kind: str, type: str) -> None:
    shutil.copytree(compiled, tmp_path / "out")
    (file,) = (tmp_path / "out" / "rank_1").glob("*_execute_*.ir")
    lines = file.read_text().split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith("%para") and f"_{kind}:" in line)
    start, end = lines[at].index("<"), lines[at].index(">")
    lines[at] = lines[at][:start] + type + lines[at][end + 1 :]
    file.write_text("\n".join(lines))
    assert error_of(runs, tmp_path / "out").exit_status == 2


@pytest.mark.parametrize(
    "global_type", ["<Tensor[Int32], (1)>", "<Tensor[Float32], (8)>", "<Tensor[Float32], (16, 8)>", "<Bool>"]
)
def test_a_parameter_that_is_no_slice_of_its_global_tensor(compiled: Path, tmp_path: Path, global_type: str) -> None:
    shutil.copytree(compiled, tmp_path / "out")
    (file,) = (tmp_path / "out" / "rank_0").glob("*_execute_*.ir")
    text = file.read_text()
    assert "{global: <Tensor[Float32], (8, 8)>}" in text
    file.write_text(text.replace("{global: <Tensor[Float32], (8, 8)>}", f"{{global: {global_type}}}"))
    with pytest.raises(MspcError, match=r"input 'inputs0'.* is (no slice of|a <?Bool)"):
        runs(tmp_path / "out")


@pytest.mark.parametrize("layout", ["(2) [0]", "(3) [-]", "(2) [0, -]", "(2, 2) [-]"])
def test_an_output_that_cannot_have_its_layout(compiled: Path, tmp_path: Path, layout: str) -> None:
    shutil.copytree(compiled, tmp_path / "out")
    path = tmp_path / "out" / "program.json"
    content = json.loads(path.read_text())
    content["outputs"][0]["layout"] = layout
    path.write_text(json.dumps(content))
    with pytest.raises(MspcError, match=r"output 0 of shape \(\) on 2 ranks cannot have the layout"):
        runs(tmp_path / "out")


@pytest.mark.parametrize("name", ["a\\u0000b", "\\ud800", "../out/rank_1", "", "rank_1", "x\\n"])
def test_a_path_that_names_no_file(compiled: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(compiled, tmp_path / "out")
    path = tmp_path / "out" / "program.json"
    execute = next((tmp_path / "out" / "rank_1").glob("*_execute_*.ir"))
    path.write_text(path.read_text().replace(f'"1": "rank_1/{execute.name}"', f'"1": "{name}"'))
    assert error_of(runs, tmp_path / "out").exit_status == 2
